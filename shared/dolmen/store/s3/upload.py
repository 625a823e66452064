"""Streamed uploads to S3 in bounded memory."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future
from contextlib import suppress
from enum import Enum, auto
from itertools import pairwise
from typing import Any, Protocol, Self

from botocore.exceptions import BotoCoreError, ClientError

from dolmen.base.runtime import Runtime, attempts
from dolmen.base.units import MIB
from dolmen.errors import (
    AccessDeniedError,
    CorruptionError,
    Error,
    InputError,
    LimitError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from dolmen.store.base import Buffer, ObjectStore, check_range, create, read_range
from dolmen.store.s3.clients import Connection
from dolmen.store.s3.failures import PutVerdict, denied_in_passing, describe, translated, upload_is_gone, verdict

#: How often an object's creation is asked for, as long as each answer says that nothing has landed.

#: An upload up to this size is one PutObject.
THRESHOLD_BYTES = 16 * MIB

#: Size of the parts of a larger upload. Each is paid for as a request, and is held in memory.
PART_BYTES = 16 * MIB

#: The same where few requests count for more than short waiting (``Runtime.few_requests``).
FEW_THRESHOLD_BYTES, FEW_PART_BYTES = 64 * MIB, 32 * MIB

#: The most bytes of an upload that are on their way at once, in one part or several.
AHEAD_BYTES = 64 * MIB

#: docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
MAX_PARTS = 10_000
LEAST_PART_BYTES = 5 * MIB
"""The least bytes of each part but the last."""

MOST_COPY_BYTES = 128 * MIB
"""The most bytes of a part that the server copies: it answers when it is done, before the request times out."""


class _State(Enum):
    OPEN = auto()
    DONE = auto()  # committed, aborted, or given up with an unknown outcome: nothing may be cleaned up any more


class UploadTarget(ObjectStore, Protocol):
    """A store as its uploads use it."""

    bucket: str
    runtime: Runtime
    connection: Connection
    threshold_bytes: int
    part_bytes: int
    least_part_bytes: int
    copies: bool | None

    @property
    def uploads(self) -> Executor | None:
        """The threads that send parts; None where the caller sends them itself."""

    def ask(self, operation: str, key: str, **request: Any) -> dict[str, Any]:
        """One request about one object, tried again while its answer says that nothing has happened."""

    def object_fields(self, key: str) -> dict[str, Any]:
        """Bucket and key of an object, as requests name it."""


class S3Output:
    """One streamed upload: a PutObject if it turns out small, else a multipart upload whose parts go up meanwhile.

    Holds up to ``AHEAD_BYTES`` in all, plus the part that is being filled and the one being cut off. The object appears
    at ``commit`` and only there, created with ``If-None-Match: *``.
    """

    def __init__(self, store: UploadTarget, key: str, named: dict[str, Any]) -> None:
        self._store, self._key, self._named = store, key, named
        self._buffer = bytearray()
        self._size = 0
        self._state = _State.OPEN
        self._upload: dict[str, Any] | None = None
        self._pending: deque[Future[dict[str, Any]]] = deque()
        self._parts: list[dict[str, Any]] = []

    def write(self, data: Buffer, /) -> int:
        self._check_open()
        view = memoryview(data).cast("B")
        part_bytes = self._store.part_bytes
        for start in range(0, len(view), part_bytes):
            self._buffer += view[start : start + part_bytes]
            if self._upload is None and len(self._buffer) > self._store.threshold_bytes:
                self._begin()
            while self._upload is not None and len(self._buffer) >= part_bytes:
                self._send(part_bytes)
        self._size += len(view)
        return len(view)

    def copy(self, key: str, byte_range: tuple[int, int], etag: str) -> int:
        """Appends a range of another object: by UploadPartCopy, if it is long enough to be a part of its own.

        A part has 5 MB, so what was written before is made as long with the first bytes of the range.
        """
        self._check_open()
        first, end = check_range(key, byte_range)
        least = self._store.least_part_bytes
        lacking = max(0, least - len(self._buffer)) if self._buffer else 0
        start = first + lacking
        if self._store.copies is False or end - start < least:
            self._read_in(key, first, end, etag)
            return end - first
        if self._upload is None:
            self._begin()
        self._read_in(key, first, start, etag)
        while len(self._buffer) >= self._store.part_bytes + least:
            self._send(self._store.part_bytes)
        if self._buffer:
            self._send(len(self._buffer))
        pieces = -(-(end - start) // MOST_COPY_BYTES)
        bounds = [start + (end - start) * piece // pieces for piece in range(pieces + 1)]
        for place, piece in enumerate(pairwise(bounds)):
            if not self._copy_part(key, piece, etag):
                self._read_in(key, bounds[place], end, etag)
                break
            self._size += piece[1] - piece[0]
        return end - first

    def commit(self) -> int:
        self._check_open()
        if self._upload is None:
            create(self._store, self._key, self._buffer, self._store.runtime)
        else:
            if self._buffer:
                self._send(len(self._buffer))
            while self._pending:
                self._parts.append(self._pending.popleft().result())
            self._complete()
        self._state = _State.DONE
        self._buffer = bytearray()
        return self._size

    def abort(self) -> None:
        if self._state is _State.DONE:
            return
        self._state = _State.DONE
        self._buffer = bytearray()
        for future in self._pending:
            future.cancel()
        for future in self._pending:  # a part that arrives after the abort would be kept, and paid for
            if not future.cancelled():
                future.exception()
        if self._upload is not None:
            with suppress(Error):  # unseen by anybody; a lifecycle rule of the bucket removes what is left
                self._store.ask("abort_multipart_upload", self._key, **self._upload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    def _check_open(self) -> None:
        if self._state is not _State.OPEN:
            raise ValueError(f"upload of {self._key!r} is over")

    def _begin(self) -> None:
        answer = self._store.ask("create_multipart_upload", self._key, **self._named)
        self._upload = {**self._named, "UploadId": answer["UploadId"]}

    def _send(self, size: int) -> None:
        """Cuts a part off the buffer and sends it, when there is room for it among those on their way."""
        number = self._next_number()
        while self._pending and (len(self._pending) + 1) * self._store.part_bytes > AHEAD_BYTES:
            self._parts.append(self._pending.popleft().result())
        with memoryview(self._buffer) as view:
            body = bytes(view[:size])
        del self._buffer[:size]
        if executor := self._store.uploads:
            self._pending.append(executor.submit(self._send_part, number, body))
        else:
            self._parts.append(self._send_part(number, body))

    def _next_number(self) -> int:
        number = len(self._parts) + len(self._pending) + 1
        if number > MAX_PARTS:
            raise LimitError(f"{self._key!r} is larger than {MAX_PARTS} parts of {self._store.part_bytes} bytes")
        return number

    def _send_part(self, number: int, body: bytes) -> dict[str, Any]:
        answer = self._store.ask("upload_part", self._key, **self._upload or {}, PartNumber=number, Body=body)
        return _completed_part(number, answer)

    def _read_in(self, key: str, first: int, end: int, etag: str) -> None:
        """Appends a range by reading it."""
        for body in read_range(self._store, key, (first, end), etag):
            self.write(body)

    def _copy_part(self, key: str, byte_range: tuple[int, int], etag: str) -> bool:
        """Lets the server make a part of a range. Returns False if it does not copy: nothing was appended then.

        Whether it does is found out by the first part of the store that is copied.
        """
        number = self._next_number()
        if self._store.copies is None:
            while self._pending:  # parts are listed in order
                self._parts.append(self._pending.popleft().result())
            try:
                self._parts.append(self._send_copy(number, key, byte_range, etag))
            except (InputError, AccessDeniedError):
                self._store.copies = False
                return False
            self._store.copies = True
        elif executor := self._store.uploads:
            self._pending.append(executor.submit(self._send_copy, number, key, byte_range, etag))
        else:
            self._parts.append(self._send_copy(number, key, byte_range, etag))
        return True

    def _send_copy(self, number: int, key: str, byte_range: tuple[int, int], etag: str) -> dict[str, Any]:
        first, end = byte_range
        answer = self._store.ask(
            "upload_part_copy",
            key,
            **self._upload or {},
            PartNumber=number,
            CopySource=self._store.object_fields(key),
            CopySourceRange=f"bytes={first}-{end - 1}",
            CopySourceIfMatch=etag,
        )
        return _completed_part(number, answer.get("CopyPartResult", {}), key)

    def _complete(self) -> None:
        """Makes the object of its parts; an unclear answer is settled by looking, for the name is this writer's own.

        From the first unclear answer on nothing is cleaned up: the object may be there, or come yet.
        """
        unclear, reason = False, ""
        for attempt in attempts(self._store.runtime):
            try:
                self._store.connection.client.complete_multipart_upload(
                    **self._upload or {}, MultipartUpload={"Parts": self._parts}, IfNoneMatch="*"
                )
                return
            except (BotoCoreError, ClientError) as error:
                reason = describe(error)
                found = verdict(error)
                if found is PutVerdict.UNKNOWN:
                    unclear = True
                    self._state = _State.DONE
                # Something between may have sent it twice: the second meets the object, or finds the upload gone.
                doubtful = unclear or found is PutVerdict.PRECONDITION or upload_is_gone(error)
                if found is not PutVerdict.NOTHING_LANDED and doubtful and self._landed():
                    return
                if found is PutVerdict.PRECONDITION:
                    raise CorruptionError(self._key, "another object stands under this name") from error
                if found is PutVerdict.REFUSED or (attempt.is_last and denied_in_passing(error)):
                    raise translated(error, self._store.bucket, self._key) from error
        raise StoreUnavailableError(f"{self._store.url}: {self._key!r} was not uploaded: {reason}")

    def _landed(self) -> bool:
        try:
            size = self._store.head(self._key).size
        except ObjectNotFoundError:
            return False
        if size != self._size:
            raise CorruptionError(self._key, f"another object, of {size} bytes, stands under this name")
        return True


def _completed_part(number: int, answer: dict[str, Any], source: str = "") -> dict[str, Any]:
    """A part's entry in the completion: its number, ETag and checksum."""
    if "ETag" not in answer:
        raise StoreUnavailableError(f"a part was copied from {source!r}, and the answer does not say what it is")
    checksums = {name: value for name, value in answer.items() if name.startswith("ChecksumCRC")}
    return {"PartNumber": number, "ETag": answer["ETag"], **checksums}

"""Streamed uploads to S3 in bounded memory."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Protocol, Self

from botocore.exceptions import BotoCoreError, ClientError

from dolmen.errors import CorruptionError, Error, LimitError, ObjectNotFoundError, StoreUnavailableError
from dolmen.runtime import Runtime
from dolmen.store.backoff import attempts
from dolmen.store.base import Buffer, ObjectStore
from dolmen.store.create import create
from dolmen.store.s3.client import Connection
from dolmen.store.s3.errors import PutVerdict, denied_in_passing, describe, translated, upload_is_gone, verdict
from dolmen.units import MIB

#: How often an object's creation is asked for, as long as each answer says that nothing has landed.
CREATE_ATTEMPTS = 6

#: An upload up to this size is one PutObject; of a larger one, this many bytes may be on their way at once.
THRESHOLD_BYTES = 64 * MIB

#: Size of the parts of a larger upload. Each is paid for as a request, and is held in memory.
PART_BYTES = 32 * MIB

#: docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
MAX_PARTS = 10_000


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

    @property
    def uploads(self) -> Executor | None:
        """The threads that send parts; None where the caller sends them itself."""

    def ask(self, operation: str, key: str, **request: Any) -> dict[str, Any]:
        """One request about one object, tried again while its answer says that nothing has happened."""


class S3Output:
    """One streamed upload: a PutObject if it turns out small, else a multipart upload whose parts go up meanwhile.

    Holds up to the threshold in all, plus the part that is being filled and the one being cut off. The object appears
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
        number = len(self._parts) + len(self._pending) + 1
        if number > MAX_PARTS:
            raise LimitError(f"{self._key!r} is larger than {MAX_PARTS} parts of {self._store.part_bytes} bytes")
        while self._pending and (len(self._pending) + 1) * self._store.part_bytes > self._store.threshold_bytes:
            self._parts.append(self._pending.popleft().result())
        with memoryview(self._buffer) as view:
            body = bytes(view[:size])
        del self._buffer[:size]
        if executor := self._store.uploads:
            self._pending.append(executor.submit(self._send_part, number, body))
        else:
            self._parts.append(self._send_part(number, body))

    def _send_part(self, number: int, body: bytes) -> dict[str, Any]:
        """A part's entry in the completion: its number, ETag and checksum."""
        answer = self._store.ask("upload_part", self._key, **self._upload or {}, PartNumber=number, Body=body)
        checksums = {name: value for name, value in answer.items() if name.startswith("ChecksumCRC")}
        return {"PartNumber": number, "ETag": answer["ETag"], **checksums}

    def _complete(self) -> None:
        """Makes the object of its parts; an unclear answer is settled by looking, for the name is this writer's own.

        From the first unclear answer on nothing is cleaned up: the object may be there, or come yet.
        """
        unclear, reason = False, ""
        for attempt in attempts(self._store.runtime, CREATE_ATTEMPTS):
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
                if found is PutVerdict.REFUSED or (attempt == CREATE_ATTEMPTS - 1 and denied_in_passing(error)):
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

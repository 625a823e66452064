"""An object store in a bucket of S3, or of anything that speaks its protocol with conditional writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from itertools import pairwise
from typing import Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError

from dolmen.base.runtime import READ, Runtime, attempts, cached_property, shared_runtime
from dolmen.base.units import MIB, SECOND_US
from dolmen.errors import (
    AccessDeniedError,
    CorruptionError,
    Error,
    InputError,
    LimitError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from dolmen.store.base import (
    S3,
    Buffer,
    ByteRange,
    Deleted,
    Identity,
    Object,
    ObjectInfo,
    ObjectOutput,
    PreconditionFailed,
    PutOutcome,
    ServerClock,
    Stored,
    Unknown,
    check_range,
    create,
    read_range,
)
from dolmen.store.input import open_pinned
from dolmen.store.s3.connection import StorageOptions, connect, read_body
from dolmen.store.s3.failures import (
    PutVerdict,
    RangeEndedError,
    describe,
    has_upload_ended,
    is_transient_denial,
    status_and_code,
    translate,
    verdict,
)

DELETE_BATCH = LIST_PAGE = 1000
"""The most keys that DeleteObjects takes, and the most objects that one ListObjectsV2 returns."""
RESEND_SECONDS = 30.0
"""The longest time for which a put that replaces an object is sent again when nothing has landed. Its body may have a
time, like the pointer: after a process was frozen, its caller must decide whether the time still holds."""
_CONDITIONS = {"IfMatch", "CopySourceIfMatch"}

_NO_VERSION = "null"  # version id of objects that were written while the bucket kept no versions
THRESHOLD_BYTES = 16 * MIB  # an upload up to this size is one PutObject
PART_BYTES = 16 * MIB
"""Size of the parts of a larger upload. Each part costs a request, and is in memory while it is sent."""
FEW_THRESHOLD_BYTES, FEW_PART_BYTES = 64 * MIB, 32 * MIB  # the same with ``Runtime.few_requests``
AHEAD_BYTES = 64 * MIB  # the most bytes of an upload that are being sent, in one part or several
MAX_PARTS = 10_000  # docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html

LEAST_PART_BYTES = 5 * MIB  # the least bytes of each part but the last
MOST_COPY_BYTES = 128 * MIB
"""The most bytes of a part that the server copies: it responds when it is done, before the request times out."""


class S3Store:
    """Objects under one prefix of a bucket.

    Endpoint, region, credentials, proxies and addressing style come from the ordinary AWS configuration; see
    ``connect``. ETags stay exactly as the server writes them, quotes included.

    Args:
        prefix: what all keys start with, without the ``/`` at either end; empty for the whole bucket.
        session: a ``boto3.Session`` to use instead of the process's ordinary configuration.
        options: settings to use instead; then other processes can't open the store by its URL alone.
        threshold_bytes: uploads up to this size are one PutObject; by default, ``runtime`` decides.
        part_bytes: size of the parts above it, at least 5 MB on S3; by default, ``runtime`` decides.
        least_part_bytes: the least size of a part that the server copies; other servers may take smaller ones.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        runtime: Runtime | None = None,
        session: Any = None,
        options: StorageOptions | None = None,
        threshold_bytes: int | None = None,
        part_bytes: int | None = None,
        least_part_bytes: int = LEAST_PART_BYTES,
    ) -> None:
        self.bucket, self.prefix = bucket, prefix.strip("/")
        self.runtime = runtime or shared_runtime()
        few = self.runtime.few_requests
        self.threshold_bytes = threshold_bytes or (FEW_THRESHOLD_BYTES if few else THRESHOLD_BYTES)
        self.part_bytes = part_bytes or (FEW_PART_BYTES if few else PART_BYTES)
        self.least_part_bytes = least_part_bytes
        self.copies: bool | None = None  # whether the server copies ranges into parts; None = not known yet
        self.options = options
        self.connection = connect(self.runtime, session) if options is None else options.connect(self.runtime)
        self._root = f"{self.prefix}/" if self.prefix else ""

    @property
    def url(self) -> str:
        return f"{S3.name}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def identity(self) -> Identity:
        return (self.connection.identity, self.bucket, self.prefix)

    @property
    def clock(self) -> ServerClock:
        return self.connection.clock

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, etag: str | None = None, version: str | None = None
    ) -> Object:
        request = self.object_fields(key, version)
        if etag is not None:
            request["IfMatch"] = etag
        if byte_range is not None:
            first, end = check_range(key, byte_range)
            if first == end:
                return self._empty_range(key, etag, version)
            request["Range"] = f"bytes={first}-{end - 1}"
        try:
            response = self.ask("get_object", key, **request)
        except RangeEndedError:
            return self._empty_range(key, etag, version)
        return Object(response["Body"], response["ETag"])

    def _empty_range(self, key: str, etag: str | None, version: str | None) -> Object:
        """An empty range of an object, which must exist. HTTP has no form for such a range."""
        info = self.head(key, version=version)
        if etag is not None and info.etag != etag:
            raise ObjectChangedError(key)
        return Object(b"", info.etag)

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        response = self.ask("head_object", key, **self.object_fields(key, version))
        return ObjectInfo(key, response["ContentLength"], response["ETag"], _microseconds(response["LastModified"]))

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        request = self.object_fields(key)
        request["Body"] = body if isinstance(body, (bytes, bytearray)) else bytes(body)
        if if_match is None:
            request["IfNoneMatch"] = "*"
        else:
            request["IfMatch"] = if_match
        reason, began = "", self.runtime.monotonic()
        for attempt in attempts(self.runtime):
            if attempt.number and if_match is not None and self.runtime.monotonic() - began > RESEND_SECONDS:
                break
            try:
                return Stored(self.connection.client.put_object(**request)["ETag"])
            except (BotoCoreError, ClientError) as error:
                if attempt.is_last and is_transient_denial(error):
                    raise translate(error, self.bucket, key) from error
                match verdict(error):
                    case PutVerdict.PRECONDITION:
                        return PreconditionFailed()
                    case PutVerdict.UNKNOWN:
                        return Unknown(describe(error))
                    case PutVerdict.REFUSED:
                        raise translate(error, self.bucket, key) from error
                    case PutVerdict.NOTHING_LANDED:
                        reason = describe(error)
        raise StoreUnavailableError(f"{self.url}: {key!r} was not put: {reason}")

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        request: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self._root + prefix, "MaxKeys": LIST_PAGE}
        if start_after:
            request["StartAfter"] = self._root + start_after
        while True:
            page = self.ask("list_objects_v2", prefix, **request)  # botocore decodes the keys
            for entry in page.get("Contents", ()):
                key = entry["Key"][len(self._root) :]
                if key:  # a console's marker of the root as a "folder" has none
                    yield ObjectInfo(key, entry["Size"], entry["ETag"], _microseconds(entry["LastModified"]))
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        outcomes: list[Deleted] = []
        for start in range(0, len(keys), DELETE_BATCH):
            outcomes += self._delete_batch(keys[start : start + DELETE_BATCH])
        return outcomes

    def _delete_batch(self, keys: Sequence[str]) -> Sequence[Deleted]:
        request = {"Objects": [{"Key": self._root + key} for key in keys], "Quiet": True}
        try:
            response = self.ask("delete_objects", keys[0], Bucket=self.bucket, Delete=request)
        except StoreUnavailableError as error:
            return [Deleted(key, str(error)) for key in keys]  # earlier batches have their outcomes
        # The response is 200 even when no key could be deleted: only its list of errors counts.
        errors = {bad["Key"]: f"{bad.get('Code')}: {bad.get('Message', '')}" for bad in response.get("Errors", ())}
        return [Deleted(key, errors.get(self._root + key)) for key in keys]

    def open_input(self, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
        return open_pinned(self, key, etag=etag, version=version)

    def open_output(self, key: str) -> S3Output:
        return S3Output(self, key)

    def local_path(self, key: str) -> str | None:
        return None

    def sibling(self, root: str) -> S3Store:
        other = copy(self)
        other.bucket, other.prefix, other._root = root, "", ""
        return other

    def tags(self, key: str, *, version: str | None = None) -> dict[str, str]:
        """An object's tags. Raises ObjectNotFoundError."""
        response = self.ask("get_object_tagging", key, **self.object_fields(key, version))
        return {tag["Key"]: tag["Value"] for tag in response["TagSet"]}

    def set_tags(self, key: str, tags: Mapping[str, str], *, version: str | None = None) -> None:
        """Replaces ALL tags of an object: S3 has no condition here."""
        tag_set = [{"Key": name, "Value": value} for name, value in tags.items()]
        self.ask("put_object_tagging", key, **self.object_fields(key, version), Tagging={"TagSet": tag_set})

    def newest_versions(self, prefix: str, start_after: str = "") -> Iterator[tuple[ObjectInfo, str | None]]:
        """See ``VersionedStore``. Needs the permission s3:ListBucketVersions, even for a bucket that keeps no versions.

        On a server without the operation it lists the objects.
        """
        try:
            for page in self._version_pages(prefix, start_after):
                for entry in page.get("Versions", ()):
                    key = entry["Key"][len(self._root) :]
                    if entry["IsLatest"] and key > start_after:
                        version = entry.get("VersionId") or _NO_VERSION
                        changed_us = _microseconds(entry["LastModified"])
                        info = ObjectInfo(key, entry["Size"], entry["ETag"], changed_us)
                        yield info, None if version == _NO_VERSION else version
        except InputError as error:
            cause = error.__cause__
            if not isinstance(cause, ClientError) or status_and_code(cause)[0] != 501:
                raise
            yield from ((info, None) for info in self.list(prefix, start_after))

    def all_versions(self, prefix: str) -> Iterator[tuple[ObjectInfo, bool]]:
        """See ``VersionedStore``. Needs the permission s3:ListBucketVersions."""
        for page in self._version_pages(prefix):
            for entry in page.get("Versions", ()):
                if "IsLatest" not in entry or "LastModified" not in entry:
                    raise InputError(f"{self.url}: the server does not say which versions are the newest")
                changed_us = _microseconds(entry["LastModified"])
                info = ObjectInfo(entry["Key"], entry.get("Size", 0), entry.get("ETag", ""), changed_us)
                yield info, entry["IsLatest"]

    def _version_pages(self, prefix: str, start_after: str = "") -> Iterator[dict[str, Any]]:
        request: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self._root + prefix, "MaxKeys": LIST_PAGE}
        if start_after:
            request["KeyMarker"] = self._root + start_after
        while True:
            try:
                page = self.ask("list_object_versions", prefix, **request)  # botocore decodes the keys
            except AccessDeniedError as error:
                raise AccessDeniedError(f"{error} (s3:ListBucketVersions on the bucket is needed here)") from error
            yield page
            if not page.get("IsTruncated"):
                return
            request["KeyMarker"] = page["NextKeyMarker"]
            request.pop("VersionIdMarker", None)
            if page.get("NextVersionIdMarker"):
                request["VersionIdMarker"] = page["NextVersionIdMarker"]

    def with_parts(self, threshold_bytes: int, part_bytes: int) -> S3Store:
        other = copy(self)
        other.threshold_bytes, other.part_bytes = threshold_bytes, part_bytes
        return other

    def begin_and_abort(self, key: str) -> None:
        fields = self.object_fields(key)
        upload = self.ask("create_multipart_upload", key, **fields)
        self.ask("abort_multipart_upload", key, **fields, UploadId=upload["UploadId"])

    def abort_uploads(self) -> None:
        uploads = self.ask("list_multipart_uploads", "", Bucket=self.bucket, Prefix=self._root)
        for upload in uploads.get("Uploads", ()):
            fields = {"Bucket": self.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            self.ask("abort_multipart_upload", "", **fields)

    def ask(self, operation: str, key: str, **request: Any) -> dict[str, Any]:
        """Sends a request that may be repeated, until it has a response, its body included.

        Raises:
            RangeEndedError: the range begins after the object's end.
            Error: as ``failures.translate`` says; StoreUnavailableError when no attempt had a response.
        """
        for attempt in attempts(self.runtime, READ):
            try:
                response = self.connection.send(operation, request)
                if "Body" in response:
                    response["Body"] = read_body(response, request.get("Range"))
                return response
            except (BotoCoreError, ClientError) as error:
                if attempt.is_last or verdict(error) in (PutVerdict.REFUSED, PutVerdict.PRECONDITION):
                    is_conditional, version = bool(request.keys() & _CONDITIONS), request.get("VersionId")
                    raise translate(error, self.bucket, key, is_conditional=is_conditional, version=version) from error
        raise AssertionError("the last attempt returns or raises")

    @cached_property
    def uploads(self) -> Executor | None:
        """Threads that send parts; None sends them inline.

        They are not the runtime's threads, which may all wait for uploads.
        """
        threads = self.runtime.threads
        return ThreadPoolExecutor(threads, thread_name_prefix="dolmen-upload") if threads > 1 else None

    def object_fields(self, key: str, version: str | None = None) -> dict[str, Any]:
        """Bucket and key of an object, as requests name it. Raises InputError for an empty key."""
        if not key:
            raise InputError("an empty key names no object")
        request = {"Bucket": self.bucket, "Key": self._root + key}
        return request if version is None else {**request, "VersionId": version}


def _microseconds(moment: Any) -> int:
    return int(moment.timestamp()) * SECOND_US  # S3 gives whole seconds; some servers list fractions, but HEAD has none


class S3Output(ObjectOutput):
    """A streamed upload: one PutObject if it is small, otherwise a multipart upload that sends parts during writes.

    Holds up to ``AHEAD_BYTES``, plus the part that is being filled and the part being cut off. The object appears only
    at ``commit``, created with ``If-None-Match: *``.
    """

    def __init__(self, store: S3Store, key: str) -> None:
        self._store, self._key, self._fields = store, key, store.object_fields(key)
        self._buffer = bytearray()
        self._size = 0
        self._is_open = True  # False once nothing may be cleaned up: committed, aborted, or an unknown outcome
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

    def copy(self, key: str, byte_range: ByteRange, etag: str) -> int:
        """Appends a range of another object, by UploadPartCopy where the parts are long enough.

        Buffered bytes become a part of sufficient length with the first bytes of the range.
        """
        self._check_open()
        first, end = check_range(key, byte_range)
        least = self._store.least_part_bytes
        missing = max(0, least - len(self._buffer)) if self._buffer else 0
        start = first + missing
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
        for piece in pairwise(bounds):
            if not self._copy_part(key, piece, etag):
                self._read_in(key, piece[0], end, etag)
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
                self._collect_part()
            self._complete()
        self._is_open = False
        self._buffer = bytearray()
        return self._size

    def abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._buffer = bytearray()
        for future in self._pending:
            future.cancel()
        for future in self._pending:  # a part that arrives after the abort would stay, and cost money
            if not future.cancelled():
                future.exception()
        if self._upload is not None:
            with suppress(Error):  # invisible to readers; a lifecycle rule of the bucket removes the rest
                self._store.ask("abort_multipart_upload", self._key, **self._upload)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"upload of {self._key!r} is over")

    def _begin(self) -> None:
        response = self._store.ask("create_multipart_upload", self._key, **self._fields)
        self._upload = {**self._fields, "UploadId": response["UploadId"]}

    def _send(self, size: int) -> None:
        """Cuts a part off the buffer and sends it, as soon as few enough parts are being sent."""
        number = self._next_number()
        while self._pending and (len(self._pending) + 1) * self._store.part_bytes > AHEAD_BYTES:
            self._collect_part()
        with memoryview(self._buffer) as view:
            body = bytes(view[:size])
        del self._buffer[:size]
        self._start(self._send_part, number, body)

    def _start(self, send: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        """Sends a part, in a thread if there are some."""
        if executor := self._store.uploads:
            self._pending.append(executor.submit(send, *arguments))
        else:
            self._parts.append(send(*arguments))

    def _collect_part(self) -> None:
        self._parts.append(self._pending.popleft().result())

    def _next_number(self) -> int:
        number = len(self._parts) + len(self._pending) + 1
        if number > MAX_PARTS:
            raise LimitError(f"{self._key!r} is larger than {MAX_PARTS} parts of {self._store.part_bytes} bytes")
        return number

    def _send_part(self, number: int, body: bytes) -> dict[str, Any]:
        response = self._store.ask("upload_part", self._key, **self._upload or {}, PartNumber=number, Body=body)
        return _completed_part(number, response)

    def _read_in(self, key: str, first: int, end: int, etag: str) -> None:
        for body in read_range(self._store, key, (first, end), etag):
            self.write(body)

    def _copy_part(self, key: str, byte_range: ByteRange, etag: str) -> bool:
        """Lets the server make a part of a range. Returns False if it does not copy: then nothing was appended.

        The first copied part of a store shows whether its server copies.
        """
        number = self._next_number()
        if self._store.copies is None:
            while self._pending:  # parts are listed in order
                self._collect_part()
            try:
                self._parts.append(self._send_copy(number, key, byte_range, etag))
            except (InputError, AccessDeniedError):
                self._store.copies = False
                return False
            self._store.copies = True
        else:
            self._start(self._send_copy, number, key, byte_range, etag)
        return True

    def _send_copy(self, number: int, key: str, byte_range: ByteRange, etag: str) -> dict[str, Any]:
        first, end = byte_range
        response = self._store.ask(
            "upload_part_copy",
            key,
            **self._upload or {},
            PartNumber=number,
            CopySource=self._store.object_fields(key),
            CopySourceRange=f"bytes={first}-{end - 1}",
            CopySourceIfMatch=etag,
        )
        return _completed_part(number, response.get("CopyPartResult", {}), key)

    def _complete(self) -> None:
        """Makes the object of its parts. After an unclear response it reads the object: the key is this writer's own.

        From the first unclear response on it cleans nothing up: the object may exist, or appear later.
        """
        is_unclear, reason = False, ""
        for attempt in attempts(self._store.runtime):
            try:
                self._store.connection.client.complete_multipart_upload(
                    **self._upload or {}, MultipartUpload={"Parts": self._parts}, IfNoneMatch="*"
                )
                return
            except (BotoCoreError, ClientError) as error:
                reason = describe(error)
                outcome = verdict(error)
                if outcome is PutVerdict.UNKNOWN:
                    is_unclear = True
                    self._is_open = False
                # A proxy may have sent it twice: the second request meets the object, or finds no upload.
                is_doubtful = is_unclear or outcome is PutVerdict.PRECONDITION or has_upload_ended(error)
                if outcome is not PutVerdict.NOTHING_LANDED and is_doubtful and self._has_landed():
                    return
                if outcome is PutVerdict.PRECONDITION:
                    raise CorruptionError(self._key, "another object has this name") from error
                if outcome is PutVerdict.REFUSED or (attempt.is_last and is_transient_denial(error)):
                    raise translate(error, self._store.bucket, self._key) from error
        raise StoreUnavailableError(f"{self._store.url}: {self._key!r} was not uploaded: {reason}")

    def _has_landed(self) -> bool:
        try:
            size = self._store.head(self._key).size
        except ObjectNotFoundError:
            return False
        if size != self._size:
            raise CorruptionError(self._key, f"another object, of {size} bytes, has this name")
        return True


def _completed_part(number: int, response: dict[str, Any], source: str = "") -> dict[str, Any]:
    """A part's entry in the completion: its number, ETag and checksum."""
    if "ETag" not in response:
        raise StoreUnavailableError(f"a part was copied from {source!r}, and the response lacks its ETag")
    checksums = {name: value for name, value in response.items() if name.startswith("ChecksumCRC")}
    return {"PartNumber": number, "ETag": response["ETag"], **checksums}

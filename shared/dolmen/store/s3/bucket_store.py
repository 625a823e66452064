"""An object store in a bucket of S3, or of anything that speaks its protocol with conditional writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from copy import copy
from typing import Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError

from dolmen.base.runtime import READ, Runtime, attempts, cached_property, shared_runtime
from dolmen.base.units import SECOND_US
from dolmen.errors import AccessDeniedError, InputError, ObjectChangedError, StoreUnavailableError
from dolmen.store.base import (
    S3,
    Buffer,
    Deleted,
    Object,
    ObjectInfo,
    PreconditionFailed,
    PutOutcome,
    Stored,
    Unknown,
)
from dolmen.store.clock import ServerClock
from dolmen.store.input import open_pinned
from dolmen.store.s3.clients import connect
from dolmen.store.s3.failures import (
    PutVerdict,
    RangeEndedError,
    denied_in_passing,
    describe,
    status_and_code,
    translated,
    verdict,
)
from dolmen.store.s3.reads import read_body
from dolmen.store.s3.upload import (
    FEW_PART_BYTES,
    FEW_THRESHOLD_BYTES,
    LEAST_PART_BYTES,
    PART_BYTES,
    THRESHOLD_BYTES,
    S3Output,
)

#: The most keys that DeleteObjects takes (docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html).
DELETE_BATCH = 1000


#: The most objects that one ListObjectsV2 returns.
LIST_PAGE = 1000


#: How often a request that may be repeated freely is sent: about 5 seconds of waiting in all.


_CONDITIONS = {"IfMatch", "CopySourceIfMatch"}

_NO_VERSION = "null"
"""Version id of what was written while the bucket kept no versions."""


#: A put that replaces an object is sent again for so many seconds when nothing has landed. Its body may contain a time,
#: as the pointer does: after a process was frozen between attempts, its caller must decide whether that still holds.
RESEND_SECONDS = 30.0


class S3Store:
    """Objects under one prefix of a bucket.

    Endpoint, region, credentials, proxies and addressing style come from the ordinary AWS configuration; see
    ``s3_client.connect``. ETags are kept exactly as the server writes them, quotes included.

    Args:
        bucket: its name.
        prefix: what all keys start with, without the ``/`` at either end; empty for the whole bucket.
        runtime: clock, jitter, sleep and threads.
        session: a ``boto3.Session`` to use instead of the process's ordinary configuration.
        threshold_bytes: uploads up to this size are one PutObject; by default, ``runtime`` decides.
        part_bytes: size of the parts above it; S3 wants at least 5 MB, and takes 10,000 parts. By default as before.
        least_part_bytes: size of a part that the server copies, at least; other servers may take smaller ones.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        runtime: Runtime | None = None,
        session: Any = None,
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
        self.connection = connect(self.runtime, session)
        self._root = f"{self.prefix}/" if self.prefix else ""

    @property
    def url(self) -> str:
        return f"{S3.name}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def clock(self) -> ServerClock:
        return self.connection.clock

    def get(
        self,
        key: str,
        byte_range: tuple[int, int] | None = None,
        *,
        etag: str | None = None,
        version: str | None = None,
    ) -> Object:
        request = self.object_fields(key, version)
        if etag is not None:
            request["IfMatch"] = etag
        if byte_range is not None:
            first, end = byte_range
            if not 0 <= first <= end:
                raise InputError(f"range [{first}, {end}) of {key!r}")
            if first == end:
                return self._nothing_of(key, etag, version)
            request["Range"] = f"bytes={first}-{end - 1}"
        try:
            answer = self.ask("get_object", key, **request)
        except RangeEndedError:
            return self._nothing_of(key, etag, version)
        return Object(answer["Body"], answer["ETag"])

    def _nothing_of(self, key: str, etag: str | None, version: str | None) -> Object:
        """An empty range, which HTTP cannot ask for, of an object that must exist all the same."""
        found = self.head(key, version=version)
        if etag is not None and found.etag != etag:
            raise ObjectChangedError(key)
        return Object(b"", found.etag)

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        answer = self.ask("head_object", key, **self.object_fields(key, version))
        return ObjectInfo(key, answer["ContentLength"], answer["ETag"], _microseconds(answer["LastModified"]))

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
                if attempt.is_last and denied_in_passing(error):
                    raise translated(error, self.bucket, key) from error
                match verdict(error):
                    case PutVerdict.PRECONDITION:
                        return PreconditionFailed()
                    case PutVerdict.UNKNOWN:
                        return Unknown(describe(error))
                    case PutVerdict.REFUSED:
                        raise translated(error, self.bucket, key) from error
                    case PutVerdict.NOTHING_LANDED:
                        reason = describe(error)
        raise StoreUnavailableError(f"{self.url}: {key!r} was not put: {reason}")

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        request: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self._root + prefix, "MaxKeys": LIST_PAGE}
        if start_after:
            request["StartAfter"] = self._root + start_after
        while True:
            page = self.ask("list_objects_v2", prefix, **request)  # botocore decodes the keys
            for found in page.get("Contents", ()):
                key = found["Key"][len(self._root) :]
                if key:  # a console's marker of the root as a "folder" has none
                    yield ObjectInfo(key, found["Size"], found["ETag"], _microseconds(found["LastModified"]))
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        outcomes: list[Deleted] = []
        for start in range(0, len(keys), DELETE_BATCH):
            outcomes += self._delete_batch(keys[start : start + DELETE_BATCH])
        return outcomes

    def _delete_batch(self, keys: Sequence[str]) -> Sequence[Deleted]:
        named = [{"Key": self._root + key} for key in keys]
        try:
            answer = self.ask("delete_objects", keys[0], Bucket=self.bucket, Delete={"Objects": named, "Quiet": True})
        except StoreUnavailableError as error:
            return [Deleted(key, str(error)) for key in keys]  # earlier batches have their outcomes
        # The answer is 200 even when no key could be deleted: what counts is the list of errors in it.
        errors = {bad["Key"]: f"{bad.get('Code')}: {bad.get('Message', '')}" for bad in answer.get("Errors", ())}
        return [Deleted(key, errors.get(self._root + key)) for key in keys]

    def open_input(self, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
        return open_pinned(self, key, etag=etag, version=version)

    def open_output(self, key: str) -> S3Output:
        return S3Output(self, key, self.object_fields(key))

    def local_path(self, key: str) -> str | None:
        return None

    def sibling(self, root: str) -> S3Store:
        other = copy(self)
        other.bucket, other.prefix, other._root = root, "", ""
        return other

    def tags(self, key: str, *, version: str | None = None) -> dict[str, str]:
        """An object's tags. Raises ObjectNotFoundError."""
        answer = self.ask("get_object_tagging", key, **self.object_fields(key, version))
        return {tag["Key"]: tag["Value"] for tag in answer["TagSet"]}

    def set_tags(self, key: str, tags: Mapping[str, str], *, version: str | None = None) -> None:
        """Replaces ALL tags of an object, in whatever state it is: S3 knows no condition here."""
        tag_set = [{"Key": name, "Value": value} for name, value in tags.items()]
        self.ask("put_object_tagging", key, **self.object_fields(key, version), Tagging={"TagSet": tag_set})

    def newest_versions(self, prefix: str, start_after: str = "") -> Iterator[tuple[ObjectInfo, str | None]]:
        """See ``VersionedStore``. Takes the right s3:ListBucketVersions, also for a bucket that keeps no versions.

        Whether a bucket keeps versions decides by which id its events name objects, so it is not guessed. A server that
        knows of no versions at all is listed as it is.
        """
        try:
            for page in self._version_pages(prefix, start_after):
                for found in page.get("Versions", ()):
                    key = found["Key"][len(self._root) :]
                    if found["IsLatest"] and key > start_after:
                        version = found.get("VersionId") or _NO_VERSION
                        changed_us = int(found["LastModified"].timestamp() * SECOND_US)
                        info = ObjectInfo(key, found["Size"], found["ETag"], changed_us)
                        yield info, None if version == _NO_VERSION else version
        except InputError as error:
            cause = error.__cause__
            if not isinstance(cause, ClientError) or status_and_code(cause)[0] != 501:
                raise
            yield from ((info, None) for info in self.list(prefix, start_after))

    def all_versions(self, prefix: str) -> Iterator[tuple[ObjectInfo, bool]]:
        """See ``VersionedStore``. Takes the right s3:ListBucketVersions."""
        for page in self._version_pages(prefix):
            for found in page.get("Versions", ()):
                if "IsLatest" not in found or "LastModified" not in found:
                    raise InputError(f"{self.url}: the server does not say which versions are the newest")
                changed_us = int(found["LastModified"].timestamp() * SECOND_US)
                info = ObjectInfo(found["Key"], found.get("Size", 0), found.get("ETag", ""), changed_us)
                yield info, found["IsLatest"]

    def _version_pages(self, prefix: str, start_after: str = "") -> Iterator[dict[str, Any]]:
        """The answers to ListObjectVersions."""
        request: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self._root + prefix, "MaxKeys": LIST_PAGE}
        if start_after:
            request["KeyMarker"] = self._root + start_after
        while True:
            try:
                page = self.ask("list_object_versions", prefix, **request)  # botocore decodes the keys
            except AccessDeniedError as error:
                raise AccessDeniedError(f"{error} (s3:ListBucketVersions on the bucket is needed here)") from error
            yield page
            is_last = not page.get("IsTruncated")
            if is_last:
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
        named = self.object_fields(key)
        begun = self.ask("create_multipart_upload", key, **named)
        self.ask("abort_multipart_upload", key, **named, UploadId=begun["UploadId"])

    def abort_uploads(self) -> None:
        found = self.ask("list_multipart_uploads", "", Bucket=self.bucket, Prefix=self._root)
        for upload in found.get("Uploads", ()):
            named = {"Bucket": self.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            self.ask("abort_multipart_upload", "", **named)

    def ask(self, operation: str, key: str, **request: Any) -> dict[str, Any]:
        """Sends a request that may be repeated, until it has an answer, its body included.

        Raises:
            RangeEndedError: the range begins after the object's end.
            Error: as ``s3_errors.translated`` says; StoreUnavailableError when no attempt was answered.
        """
        for attempt in attempts(self.runtime, READ):
            try:
                answer = self.connection.send(operation, request)
                if "Body" in answer:
                    answer["Body"] = read_body(answer, request.get("Range"))
                return answer
            except (BotoCoreError, ClientError) as error:
                if attempt.is_last or verdict(error) in (PutVerdict.REFUSED, PutVerdict.PRECONDITION):
                    conditional, version = bool(request.keys() & _CONDITIONS), request.get("VersionId")
                    raise translated(error, self.bucket, key, conditional=conditional, version=version) from error
        raise AssertionError("the last attempt returns or raises")

    @cached_property
    def uploads(self) -> Executor | None:
        """Threads that send parts; None sends them inline.

        They are not the runtime's, which may all be busy writing what waits for these.
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
    """A ``datetime`` as S3 gives it, in whole seconds."""
    return int(moment.timestamp()) * SECOND_US

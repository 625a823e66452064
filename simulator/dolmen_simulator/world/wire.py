"""Runs S3Store in a simulated process: its boto3 session makes a client that sends requests over a Wire.

Everything above the client is production code: retries, verdicts, multipart uploads. Answers and errors have the forms
that botocore gives them. Signatures are not simulated, so that a client whose clock is more than 15 minutes wrong is
not refused.
"""

# ruff: noqa: N803  # arguments have boto3's names

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import Any, NoReturn

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from dolmen.base.runtime import Runtime
from dolmen.store.s3.bucket_store import PART_BYTES, THRESHOLD_BYTES, S3Store
from dolmen_simulator.world.fates import Crash, Fate, Refusal, StoreRequest, Verb
from dolmen_simulator.world.server import Server

_ENDPOINT = "https://simulation.s3.amazonaws.com"
_OPERATIONS = {
    Verb.GET: "GetObject",
    Verb.HEAD: "HeadObject",
    Verb.LIST: "ListObjectsV2",
    Verb.PUT: "PutObject",
    Verb.DELETE: "DeleteObjects",
    Verb.CREATE_UPLOAD: "CreateMultipartUpload",
    Verb.UPLOAD_PART: "UploadPart",
    Verb.COPY_PART: "UploadPartCopy",
    Verb.COMPLETE_UPLOAD: "CompleteMultipartUpload",
    Verb.ABORT_UPLOAD: "AbortMultipartUpload",
}
_STATUS = {Verb.ABORT_UPLOAD: 204}


class SimulatedSession:
    """A substitute for ``boto3.Session``.

    Args:
        server: the server, whose wire decides the fates of requests.
        who: name of the process.
    """

    region_name = "us-east-1"

    def __init__(self, server: Server, who: str) -> None:
        self._server, self._who = server, who

    def client(self, service: str, **options: Any) -> SimulatedClient:
        """Makes a client of S3 that sends each request once."""
        assert service == "s3"
        assert options["config"].retries["total_max_attempts"] == 1, "botocore would repeat conditional puts"
        return SimulatedClient(self._server, self._who)


class _Events:
    """The handlers that a client calls with each request and response."""

    def __init__(self) -> None:
        self.sent: list[Callable[..., None]] = []
        self.answered: list[Callable[..., None]] = []

    def register(self, event: str, handler: Callable[..., None]) -> None:
        """Registers a handler, as botocore does."""
        if event == "before-call.s3":
            self.sent.append(handler)
        elif event == "response-received.s3":
            self.answered.append(handler)
        else:  # those of HTTP requests, of which there are none here
            assert event.startswith(("before-call.s3.", "before-send.s3.")), event


class _Meta:
    def __init__(self) -> None:
        self.events = _Events()


class SimulatedClient:
    """The requests of S3Store, with boto3's names and arguments."""

    def __init__(self, server: Server, who: str) -> None:
        self.meta = _Meta()
        self._server, self._wire, self._who = server, server.wire, who

    def get_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Range: str | None = None,
        IfMatch: str | None = None,
    ) -> dict[str, Any]:
        """Returns an object with its body as a stream, as boto3 does."""
        byte_range = None
        if Range is not None:
            first, last = Range.removeprefix("bytes=").split("-")
            byte_range = int(first), int(last) + 1
        answer = self._send(StoreRequest(self._who, Verb.GET, Key, if_match=IfMatch, byte_range=byte_range))
        return {**answer, "Body": io.BytesIO(answer["Body"])}

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        """Returns an object's size, ETag and time."""
        return self._send(StoreRequest(self._who, Verb.HEAD, Key))

    def list_objects_v2(
        self,
        *,
        Bucket: str,
        Prefix: str,
        MaxKeys: int,
        StartAfter: str = "",
        ContinuationToken: str = "",
    ) -> dict[str, Any]:
        """Returns one page of a listing."""
        after = ContinuationToken or StartAfter
        return self._send(StoreRequest(self._who, Verb.LIST, Prefix, start_after=after, limit=MaxKeys))

    def put_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Body: bytes | bytearray,
        IfMatch: str | None = None,
        IfNoneMatch: str = "",
    ) -> dict[str, Any]:
        """Puts an object, with a copy of the body."""
        create = IfNoneMatch == "*"
        return self._send(StoreRequest(self._who, Verb.PUT, Key, bytes(Body), if_match=IfMatch, if_none_match=create))

    def delete_objects(self, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:
        """Deletes objects, and returns errors only (``Quiet``)."""
        keys = tuple(each["Key"] for each in Delete["Objects"])
        return self._send(StoreRequest(self._who, Verb.DELETE, keys[0], keys=keys))

    def create_multipart_upload(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        """Begins an upload, and returns its id."""
        return self._send(StoreRequest(self._who, Verb.CREATE_UPLOAD, Key))

    def upload_part(
        self,
        *,
        Bucket: str,
        Key: str,
        UploadId: str,
        PartNumber: int,
        Body: bytes,
    ) -> dict[str, Any]:
        """Uploads a part, and returns its ETag and checksum."""
        return self._send(StoreRequest(self._who, Verb.UPLOAD_PART, Key, Body, upload=UploadId, part=PartNumber))

    def upload_part_copy(
        self,
        *,
        Bucket: str,
        Key: str,
        UploadId: str,
        PartNumber: int,
        CopySource: dict[str, str],
        CopySourceRange: str,
        CopySourceIfMatch: str,
    ) -> dict[str, Any]:
        """Makes a part of a range of another object, and returns its ETag."""
        first, last = CopySourceRange.removeprefix("bytes=").split("-")
        return self._send(
            StoreRequest(
                self._who,
                Verb.COPY_PART,
                Key,
                if_match=CopySourceIfMatch,
                byte_range=(int(first), int(last) + 1),
                upload=UploadId,
                part=PartNumber,
                source=CopySource["Key"],
            )
        )

    def complete_multipart_upload(
        self,
        *,
        Bucket: str,
        Key: str,
        UploadId: str,
        MultipartUpload: dict[str, Any],
        IfNoneMatch: str = "",
    ) -> dict[str, Any]:
        """Makes an object of the parts of an upload."""
        parts = tuple((part["PartNumber"], part["ETag"]) for part in MultipartUpload["Parts"])
        create = IfNoneMatch == "*"
        return self._send(
            StoreRequest(self._who, Verb.COMPLETE_UPLOAD, Key, if_none_match=create, upload=UploadId, parts=parts)
        )

    def abort_multipart_upload(self, *, Bucket: str, Key: str, UploadId: str) -> dict[str, Any]:
        """Removes an upload and its parts."""
        return self._send(StoreRequest(self._who, Verb.ABORT_UPLOAD, Key, upload=UploadId))

    # ---- fates -------------------------------------------------------------------------------------------------------

    def _send(self, request: StoreRequest) -> dict[str, Any]:
        context: dict[str, Any] = {}
        for handler in self.meta.events.sent:
            handler(context=context)
        wire, fate = self._wire, self._wire.step(request)
        match fate:
            case Fate.CRASH_BEFORE:
                raise Crash
            case Fate.CRASH_AFTER:
                self._arrive(request)
                raise Crash
            case Fate.UNREACHABLE:
                wire.wait_for_timeout(request)
                raise EndpointConnectionError(endpoint_url=_ENDPOINT)
            case Fate.REQUEST_LOST:
                self._give_up(request)
            case Fate.RESPONSE_LOST:
                self._arrive(request)
                self._give_up(request)
            case Fate.LATE:
                wire.deliver_later(request, lambda: self._arrive(request))
                self._give_up(request)
            case Fate.THROTTLED:
                self._refuse(context, request, Refusal(503, "SlowDown"))
            case Fate.THROTTLED_AFTER:
                self._arrive(request)
                self._refuse(context, request, Refusal(500, "InternalError"))
            case Fate.CONFLICT:
                self._server.conflict(request)
                self._refuse(context, request, Refusal(409, "ConditionalRequestConflict"))
            case Fate.DOUBLED:
                self._arrive(request)
            case Fate.DOUBLED_LATER:
                wire.deliver_later(request, lambda: self._arrive(request))
        answer = self._arrive(request)
        if isinstance(answer, Refusal):
            self._refuse(context, request, answer)
        return self._received(context, _STATUS.get(request.verb, 200), answer)

    def _arrive(self, request: StoreRequest) -> Mapping[str, Any] | Refusal:
        answer: Mapping[str, Any] | Refusal
        try:
            answer = self._server.handle(request)
        except Refusal as refusal:
            answer = refusal
        self._wire.on_arrival(request, answer)
        return answer

    def _give_up(self, request: StoreRequest) -> NoReturn:
        self._wire.wait_for_timeout(request)
        raise ReadTimeoutError(endpoint_url=_ENDPOINT)

    def _refuse(self, context: dict[str, Any], request: StoreRequest, refusal: Refusal) -> NoReturn:
        code = str(refusal.status) if request.verb is Verb.HEAD else refusal.code  # a HEAD's answer has no body
        response = self._received(context, refusal.status, {"Error": {"Code": code, "Message": refusal.code}})
        raise ClientError(response, _OPERATIONS[request.verb])

    def _received(self, context: dict[str, Any], status: int, answer: Mapping[str, Any]) -> dict[str, Any]:
        date = _date(self._server.bucket.clock_us() // 1_000_000)
        for handler in self.meta.events.answered:
            handler(response_dict={"status_code": status, "headers": {"Date": date}}, context=context)
        metadata = {"HTTPStatusCode": status, "HTTPHeaders": {"date": date, "server": "AmazonS3"}, "RetryAttempts": 0}
        return {**answer, "ResponseMetadata": metadata}


@lru_cache(maxsize=64)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


class SimulatedStore(S3Store):
    """The production S3Store over a simulated client.

    Args:
        server: the server, whose wire decides the fates of requests.
        who: name of the process.
        runtime: runtime of the process, with one thread.
        threshold_bytes, part_bytes: see S3Store; small values turn small objects into multipart uploads.
    """

    def __init__(
        self,
        server: Server,
        who: str,
        runtime: Runtime,
        *,
        threshold_bytes: int = THRESHOLD_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        super().__init__(
            "simulation",
            runtime=runtime,
            session=SimulatedSession(server, who),
            threshold_bytes=threshold_bytes,
            part_bytes=part_bytes,
            least_part_bytes=1,
        )

    @property
    def url(self) -> str:
        return "memory://simulation"  # as of a MemoryStore on the same bucket; nothing is cached on disk

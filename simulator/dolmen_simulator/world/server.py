"""The S3 server of the simulation, without faults of its own. It checks conditions when a request arrives."""

from __future__ import annotations

import base64
import hashlib
import zlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any

from dolmen.store.memory import MemoryBucket, MemoryObject
from dolmen_simulator.world.fates import Refusal, StoreRequest, Verb, Wire


class RepeatedCompletion(Enum):
    """Answers of different servers to a repeated completion of an upload."""

    ANSWERED = "the answer to the first completion"  # S3
    GONE = "404 NoSuchUpload"  # MinIO
    REFUSED = "412: the object is there"


@dataclass
class Upload:
    """A multipart upload in progress. Its object gets the time when the upload began, as on S3."""

    key: str
    began_us: int
    parts: dict[int, tuple[bytes, str]] = field(default_factory=dict)


class SortedObjects(dict[str, MemoryObject]):
    """Objects by key, with their keys in order, so that listings need not sort them."""

    def __init__(self, objects: Mapping[str, MemoryObject]) -> None:
        super().__init__(objects)
        self.keys_in_order = sorted(objects)

    def __setitem__(self, key: str, there: MemoryObject) -> None:
        if key not in self:
            insort(self.keys_in_order, key)
        super().__setitem__(key, there)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del self.keys_in_order[bisect_left(self.keys_in_order, key)]

    def update(self, *others: Any, **more: Any) -> None:
        """Adds objects, or replaces them."""
        super().update(*others, **more)
        self.keys_in_order = sorted(self)

    def clear(self) -> None:
        """Removes all."""
        super().clear()
        self.keys_in_order.clear()

    def pop(self, key: str, default: Any = None) -> Any:
        """Removes an object, if it is there."""
        there = self.get(key, default)
        if key in self:
            del self[key]
        return there


class Server:
    """Objects and multipart uploads. Each request is atomic.

    Args:
        bucket: the objects.
        wire: called before each removal.
        page: maximum number of keys in the answer to a list.
        repeated: answer to a repeated completion.
    """

    def __init__(
        self,
        bucket: MemoryBucket,
        wire: Wire,
        *,
        page: int = 1_000,
        repeated: RepeatedCompletion = RepeatedCompletion.ANSWERED,
    ) -> None:
        self.bucket, self.wire, self.page, self.repeated = bucket, wire, page, repeated
        if not isinstance(bucket.objects, SortedObjects):
            bucket.objects = SortedObjects(bucket.objects)
        self.objects: SortedObjects = bucket.objects
        self.uploads: dict[str, Upload] = {}
        self._begun = 0
        self._completed: dict[str, str] = {}

    def handle(self, request: StoreRequest) -> Mapping[str, Any]:
        """Carries out a request, and returns the answer in boto3's form. Raises Refusal."""
        return _HANDLERS[request.verb](self, request)

    def conflict(self, request: StoreRequest) -> None:
        """Ends the upload of a completion that was answered with 409."""
        self.uploads.pop(request.upload, None)

    # ---- objects -----------------------------------------------------------------------------------------------------

    def _find(self, request: StoreRequest) -> MemoryObject:
        there = self.objects.get(request.key)
        if there is None:
            raise Refusal(404, "NoSuchKey" if request.verb is Verb.GET else "404")
        if request.if_match is not None and there.etag != request.if_match:
            raise Refusal(412, "PreconditionFailed")
        return there

    def _get(self, request: StoreRequest) -> Mapping[str, Any]:
        there = self._find(request)
        if request.byte_range is None:
            return {"Body": there.body, "ETag": there.etag, "ContentLength": len(there.body)}
        first, end = request.byte_range
        if first >= len(there.body):
            raise Refusal(416, "InvalidRange")
        body = there.body[first:end]
        came = f"bytes {first}-{first + len(body) - 1}/{len(there.body)}"
        return {"Body": body, "ETag": there.etag, "ContentLength": len(body), "ContentRange": came}

    def _head(self, request: StoreRequest) -> Mapping[str, Any]:
        there = self._find(request)
        return {
            "ContentLength": len(there.body),
            "ETag": there.etag,
            "LastModified": _moment(there.last_modified_us // 1_000_000),
        }

    def _list(self, request: StoreRequest) -> Mapping[str, Any]:
        prefix, objects, keys = request.key, self.objects, self.objects.keys_in_order
        first = max(bisect_left(keys, prefix), bisect_right(keys, request.start_after))
        end = min(first + min(request.limit, self.page), len(keys))
        contents: list[dict[str, Any]] = []
        for key in islice(keys, first, end):
            if not key.startswith(prefix):
                return {"Contents": contents, "IsTruncated": False}
            there = objects[key]
            changed = _moment(there.last_modified_us // 1_000_000)
            contents.append({"Key": key, "Size": len(there.body), "ETag": there.etag, "LastModified": changed})
        if end == len(keys) or not keys[end].startswith(prefix):
            return {"Contents": contents, "IsTruncated": False}
        return {"Contents": contents, "IsTruncated": True, "NextContinuationToken": keys[end - 1]}

    def _put(self, request: StoreRequest) -> Mapping[str, Any]:
        self._check(request)
        etag = f'"{hashlib.md5(request.body, usedforsecurity=False).hexdigest()}"'
        self.objects[request.key] = MemoryObject(request.body, etag, self.bucket.clock_us())
        return {"ETag": etag}

    def _check(self, request: StoreRequest) -> None:
        """Checks the condition of a put or a completion, if there is one. Raises Refusal."""
        there = self.objects.get(request.key)
        if not request.if_none_match and request.if_match is None:
            return
        if request.if_match is not None and there is None:
            raise Refusal(404, "NoSuchKey")
        if there is not None and there.etag != request.if_match:
            raise Refusal(412, "PreconditionFailed")

    def _delete(self, request: StoreRequest) -> Mapping[str, Any]:
        spared = self.wire.keys_not_removed(request)
        for key in request.keys:
            if key not in spared:
                self.wire.before_removal(key)
                self.objects.pop(key)
        return {"Errors": [{"Key": key, "Code": "InternalError", "Message": "try again"} for key in spared]}

    # ---- uploads -----------------------------------------------------------------------------------------------------

    def _create_upload(self, request: StoreRequest) -> Mapping[str, Any]:
        self._begun += 1
        name = f"upload-{self._begun}"
        self.uploads[name] = Upload(request.key, self.bucket.clock_us())
        return {"UploadId": name}

    def _open_upload(self, request: StoreRequest) -> Upload:
        upload = self.uploads.get(request.upload)
        if upload is None or upload.key != request.key:
            raise Refusal(404, "NoSuchUpload")
        return upload

    def _upload_part(self, request: StoreRequest) -> Mapping[str, Any]:
        upload, digest = self._open_upload(request), hashlib.md5(request.body, usedforsecurity=False)
        upload.parts[request.part] = (request.body, f'"{digest.hexdigest()}"')
        checksum = base64.b64encode(zlib.crc32(request.body).to_bytes(4, "big")).decode()
        return {"ETag": f'"{digest.hexdigest()}"', "ChecksumCRC32": checksum}

    def _copy_part(self, request: StoreRequest) -> Mapping[str, Any]:
        upload, there = self._open_upload(request), self.objects.get(request.source)
        if there is None:
            raise Refusal(404, "NoSuchKey")
        if there.etag != request.if_match:
            raise Refusal(412, "PreconditionFailed")
        first, end = request.byte_range or (0, len(there.body))
        if not first < end <= len(there.body):
            raise Refusal(400, "InvalidArgument")
        body = there.body[first:end]
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        upload.parts[request.part] = (body, etag)
        return {"CopyPartResult": {"ETag": etag}}

    def _complete_upload(self, request: StoreRequest) -> Mapping[str, Any]:
        if etag := self._completed.get(request.upload):
            if self.repeated is RepeatedCompletion.REFUSED and request.key in self.objects:
                raise Refusal(412, "PreconditionFailed")
            if self.repeated is RepeatedCompletion.ANSWERED:
                return {"ETag": etag}
        upload = self._open_upload(request)
        self._check(request)
        numbers = [number for number, _ in request.parts]
        if not numbers or numbers != sorted(set(numbers)):
            raise Refusal(400, "InvalidPartOrder")
        if any(upload.parts.get(number, (b"", ""))[1] != etag for number, etag in request.parts):
            raise Refusal(400, "InvalidPart")
        body = b"".join(upload.parts[number][0] for number in numbers)
        digests = b"".join(bytes.fromhex(upload.parts[number][1].strip('"')) for number in numbers)
        etag = f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(numbers)}"'
        self.objects[request.key] = MemoryObject(body, etag, upload.began_us)
        del self.uploads[request.upload]
        self._completed[request.upload] = etag
        return {"ETag": etag}

    def _abort_upload(self, request: StoreRequest) -> Mapping[str, Any]:
        self._open_upload(request)
        del self.uploads[request.upload]
        return {}


_HANDLERS = {
    Verb.GET: Server._get,
    Verb.HEAD: Server._head,
    Verb.LIST: Server._list,
    Verb.PUT: Server._put,
    Verb.DELETE: Server._delete,
    Verb.CREATE_UPLOAD: Server._create_upload,
    Verb.UPLOAD_PART: Server._upload_part,
    Verb.COPY_PART: Server._copy_part,
    Verb.COMPLETE_UPLOAD: Server._complete_upload,
    Verb.ABORT_UPLOAD: Server._abort_upload,
}


@lru_cache(maxsize=4_096)
def _moment(seconds: int) -> datetime:
    """A time in whole seconds, as S3 returns it."""
    return datetime.fromtimestamp(seconds, UTC)

"""The samples in ``events/``, and the files that they name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EVENTS = Path(__file__).parents[2] / "events"
BUCKET = "my-landing-bucket"
FILES: dict[str, str] = json.loads(Path(__file__).with_name("sample_files.json").read_text())

INGESTED: dict[str, list[int]] = {
    "ingest-sqs-s3": [1, 2, 3, 4, 5],
    "ingest-sqs-sns": [1, 2],
    "ingest-sqs-eventbridge": [3],
    "ingest-s3": [1, 2],
    "ingest-s3-multipart": [6, 7],
    "ingest-s3-removed": [],
    "ingest-s3-testevent": [],
    "ingest-eventbridge": [3],
}
"""The ids of the rows that a sample of the ingest function brings."""

EVENT_ROWS = [(1, 42, "view"), (2, 42, "buy"), (3, 7, "buy"), (4, 1, "view"), (5, 8, "buy"), (6, 8, "view")]
EVENT_ROWS += [(7, 9, "x"), (8, 10, "x"), (9, 11, "x")]
USER_ROWS = [(9, 9), (10, 10), (11, 11)]
LEFT: dict[str, tuple[list[int], list[int]]] = {
    "delete-sqs": ([2, 6, 9], [11]),
    "delete": ([3, 4, 5, 6, 7, 8, 9], [9, 10, 11]),
}
"""The ids of ``EVENT_ROWS`` and ``USER_ROWS`` that a sample of the delete function leaves."""

SCHEDULED = {"compact-schedule", "compact-schedule-all", "compact-eventbridge", "gc-schedule", "gc-dry-run"}


def sample(name: str) -> Any:
    """Reads a file of ``events/``."""
    return json.loads((EVENTS / f"{name}.json").read_text())


@contextmanager
def sample_files(s3: Any) -> Iterator[None]:
    """Puts the files that the samples name into their bucket, with the ETags of the samples."""
    s3.create_bucket(Bucket=BUCKET)
    try:
        for key, text in FILES.items():
            body = text.encode()
            if "multipart" in key:
                etag = _put_in_parts(s3, key, body)
                assert etag == hashlib.md5(hashlib.md5(body).digest()).hexdigest() + "-1"
            else:
                etag = s3.put_object(Bucket=BUCKET, Key=key, Body=body)["ETag"].strip('"')
                assert etag == hashlib.md5(body).hexdigest()
        yield
    finally:
        for found in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
            s3.delete_object(Bucket=BUCKET, Key=found["Key"])
        s3.delete_bucket(Bucket=BUCKET)


def _put_in_parts(s3: Any, key: str, body: bytes) -> str:
    where = {"Bucket": BUCKET, "Key": key}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    part = s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=body)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    done = s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)
    etag: str = done["ETag"]
    return etag.strip('"')

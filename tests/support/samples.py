"""The samples in ``events/``, and the files that they name."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.ministack import boto3_client, endpoint_environment

EVENTS = Path(__file__).parents[2] / "events"
BUCKET = "my-landing-bucket"
LANDING = EVENTS / "landing"
README = (EVENTS / "README.md").read_text()
[UPLOAD] = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
"""What the README says uploads the files."""

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
def sample_files(endpoint: str) -> Iterator[None]:
    """Puts the files that the samples name into their bucket, as the README does, with the ETags of the samples."""
    s3 = boto3_client("s3", endpoint)
    s3.create_bucket(Bucket=BUCKET)
    try:
        with patch.dict(os.environ, endpoint_environment(endpoint)), chdir(EVENTS.parent):
            exec(UPLOAD, {})
        for path in LANDING.rglob("*.*"):
            digest = hashlib.md5(path.read_bytes())
            etag = hashlib.md5(digest.digest()).hexdigest() + "-1" if "multipart" in path.name else digest.hexdigest()
            found = s3.head_object(Bucket=BUCKET, Key=str(path.relative_to(EVENTS)))
            assert found["ETag"].strip('"') == etag
        yield
    finally:
        for found in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
            s3.delete_object(Bucket=BUCKET, Key=found["Key"])
        s3.delete_bucket(Bucket=BUCKET)

"""A CSV file far larger than a function's memory goes through the packaged ingest function, and what that takes of it.

The peak is VmHWM: all that the process ever had resident at once, its libraries and its threads' stacks with it.
"""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest

from dolmen import Database
from support.event_builders import notification, s3_record, sqs_event
from support.ministack import boto3_client
from support.rie import Start

pytestmark = pytest.mark.slow

LONG = pytest.mark.skipif(os.environ.get("DOLMEN_LONG") != "1", reason="minutes long, for DOLMEN_LONG=1")
MEMORY_MB = 1024
BLOCK_ROWS = 20_000
MB = 1 << 20


def block() -> bytes:
    """Rows of about 100 bytes that differ: numbers, and text with what CSV must quote."""
    lines = []
    for n in range(BLOCK_ROWS):
        text = f"{(n * 2654435761) % 2**32:08x}" * 9
        kind = f'"{text}, ""{n % 7}"""' if n % 10 == 0 else text
        lines.append(f"{n * 7919 % 1_000_003},{n % 1000},{kind}\n")
    return "".join(lines).encode()


def write_csv(path: Path, size: int) -> int:
    """A gz file of at least so many bytes of CSV; returns how many rows it has."""
    rows = block()
    count = -(-size // len(rows))
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"id,user_id,kind\n")
        for _ in range(count):
            file.write(rows)
    return count * BLOCK_ROWS


@pytest.mark.parametrize(
    "megabytes",
    [
        100,
        pytest.param(1024, marks=LONG),
        pytest.param(5900, marks=[LONG, pytest.mark.timeout(1800)]),  # whose gz has more than 1 GiB
    ],
)
def test_a_large_csv_is_ingested_within_the_memory_of_a_function(
    database: Database, start: Start, ministack: str, s3_url: str, tmp_path: Path, megabytes: int
) -> None:
    bucket = s3_url.removeprefix("s3://").partition("/")[0]
    path = tmp_path / "large.csv.gz"
    rows = write_csv(path, megabytes * MB)
    key = "landing/events/large.csv.gz"
    s3 = boto3_client("s3", ministack)
    with path.open("rb") as body:
        etag = s3.put_object(Bucket=bucket, Key=key, Body=body)["ETag"]
    ingest = start("ingest", timeout=900)
    began = time.monotonic()
    answer = ingest.invoke(sqs_event([notification(s3_record(key, etag, bucket=bucket, size=path.stat().st_size))]))
    took = time.monotonic() - began
    assert (answer.error, answer.payload) == (None, {"batchItemFailures": []})
    peak = ingest.peak_mb()
    print(
        f"{megabytes} MB of CSV, {path.stat().st_size / MB:.0f} MB gz, {rows:,} rows: {took:.1f} s, peak {peak:.0f} MB"
    )
    assert peak < MEMORY_MB
    assert database.table("events").count() == rows
    s3.delete_object(Bucket=bucket, Key=key)

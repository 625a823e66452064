"""Erasures from the request to the receipt on a real S3 server, in buckets with and without versioning.

Weeks pass by a store whose clock is ahead: all that is in the bucket looks as old as it would be then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dolmen import Database
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.store.base import DatedResponse, ServerClock
from dolmen.store.s3.bucket_store import S3Store
from support.erased import SCHEMA, holding, people
from support.ministack import boto3_client, endpoint_environment

MARKER = "marker-anna"
DAY_US = 24 * 3_600_000_000
DAYS = (1, 10, 11, 11.5, 20, 20.5, 21, 26.5, 27, 27.5, 28, 28.5, 29)
"""When there is upkeep: days on which nothing is to be done are left out."""


class LaterClock(ServerClock):
    """A server's clock that is ahead of the true one."""

    def __init__(self, clock: ServerClock, ahead_us: int) -> None:
        super().__init__(clock.runtime)
        self.clock, self.ahead_us = clock, ahead_us

    @property
    def last(self) -> DatedResponse:
        last = self.clock.last
        return last._replace(date_us=last.date_us + self.ahead_us)


class LaterStore(S3Store):
    """A store to which all that it holds looks older than it is."""

    ahead_us = 0

    @property
    def clock(self) -> ServerClock:
        return LaterClock(super().clock, self.ahead_us)


def later(bucket: str, days: float) -> Database:
    """The database as a process sees it some days from now."""
    ahead_us = round(days * DAY_US)
    runtime: Runtime = replace(shared_runtime(), clock_us=lambda: time.time_ns() // 1000 + ahead_us)
    store = LaterStore(bucket, "db", runtime=runtime)
    store.ahead_us = ahead_us
    return Database(store, runtime)


@pytest.fixture
def s3(minio: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in endpoint_environment(minio).items():
        monkeypatch.setenv(name, value)
    return boto3_client("s3", minio)


def bodies(s3: Any, bucket: str, *, current: bool = True) -> Iterator[tuple[str, bytes]]:
    """Objects with their metadata; or the older versions that the bucket keeps."""
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for found in page.get("Versions", ()):
            if found["IsLatest"] == current:
                answer = s3.get_object(Bucket=bucket, Key=found["Key"], VersionId=found["VersionId"])
                yield found["Key"].removeprefix("db/"), answer["Body"].read()
                yield f"metadata of {found['Key']}", str(answer["Metadata"]).encode()


def rows_in_files(s3: Any, bucket: str, directory: Path) -> int:
    """How many rows with the marker DuckDB finds in the data files of the bucket."""
    found = 0
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="db/data/"):
        for info in page.get("Contents", ()):
            s3.download_file(bucket, info["Key"], str(directory / "file.parquet"))
            query = f"SELECT count(*) FROM read_parquet('{directory}/file.parquet') WHERE who LIKE '%{MARKER}%'"
            found += duckdb.sql(query).fetchall()[0][0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "versioning",
    [True, False] if os.environ.get("DOLMEN_LONG") else [True],
    ids=lambda versioning: "versioned" if versioning else "plain",
)
def test_after_gone_no_object_in_the_bucket_holds_the_rows(s3: Any, tmp_path: Path, versioning: bool) -> None:
    bucket = "erasures-versioned" if versioning else "erasures-plain"
    s3.create_bucket(Bucket=bucket)
    if versioning:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    db = later(bucket, 0)
    table = db.create_table("visits", SCHEMA)
    for names in ((MARKER, "bert"), ("carl", "dora"), (MARKER, "zoe")):
        table.append(people(*names))
    table.delete("n < 3")
    db.tag("audit")
    db.clone("visits", "copy")
    erasure = table.erase(where=f"who = '{MARKER}'")
    assert rows_in_files(s3, bucket, tmp_path) == 20
    states: list[str] = []
    for day in DAYS:
        db = later(bucket, day)
        db.maintain()
        db.gc()
        status = db.receipt(erasure.id)
        states += [status.state] if status.state not in states else []
        assert db.at(db.version).table("copy").count(f"who = '{MARKER}'") == 0
        if status.state == "gone":
            break
        if not day % 10:
            assert holding(bodies(s3, bucket), MARKER), "files of older versions, and the list of erasures"
    assert states == ["hidden", "rewritten", "gone"]
    receipt = status.receipt
    assert receipt.gone_at <= receipt.due_at
    assert receipt.tags == ("audit",)
    assert {(file.rows, bool(file.absent_at)) for file in receipt.files} == {(10, True)}
    assert holding(bodies(s3, bucket), MARKER) == []
    assert rows_in_files(s3, bucket, tmp_path) == 0
    assert db.verify_receipt(erasure.id).findings == ()
    assert db.verify(deep=True).ok
    assert db.table("visits").count() == db.table("copy").count() == 40 - 3
    kept = receipt.noncurrent
    assert kept is not None
    if not versioning:
        assert kept.objects == 0
        return
    assert kept.objects > 0
    assert set(holding(bodies(s3, bucket, current=False), MARKER)) >= {file.path for file in receipt.files}
    assert "older versions of objects" in repr(db.receipt(erasure.id))
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for found in page.get("Versions", ()):  # as the bucket's lifecycle does in time
            if not found["IsLatest"]:
                s3.delete_object(Bucket=bucket, Key=found["Key"], VersionId=found["VersionId"])
    assert holding(bodies(s3, bucket, current=False), MARKER) == []

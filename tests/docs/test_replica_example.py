"""The replica of docs/changes.md follows a database by S3's events of its pointer, whenever it is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from support.ministack import boto3_client

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "replica.py"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC"))])
TABLES = ("orders", "customers")


@pytest.fixture
def db(ministack: str, s3_url: str) -> Database:
    db = dolmen.open(s3_url)
    for name in TABLES:
        db.create_table(name, SCHEMA, primary_key="id")
    return db


@pytest.fixture
def queue(ministack: str, db: Database) -> Iterator[str]:
    """A queue that S3 tells of the pointer, as the page says."""
    sqs: Any = boto3_client("sqs", ministack)
    url = sqs.create_queue(QueueName=f"commits-{os.getpid()}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    bucket, _, prefix = db.url.removeprefix("s3://").partition("/")
    page = (ROOT / "docs" / "changes.md").read_text()
    told = page.partition("--notification-configuration '")[2].partition("'")[0]
    configuration = json.loads(told.replace("dolmen/_latest", f"{prefix}/_latest"))
    configuration["QueueConfigurations"][0]["QueueArn"] = arn
    boto3_client("s3", ministack).put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration=configuration
    )
    yield url
    sqs.delete_queue(QueueUrl=url)


def change(db: Database, rng: random.Random) -> int:
    """Makes one commit. Returns its version."""
    table = db.table(rng.choice(TABLES))
    rows = [
        {"id": rng.randrange(50), "text": f"{rng.random()}", "at": datetime(2026, 1, 1, tzinfo=UTC)}
        for _ in range(rng.randint(1, 5))
    ]
    unique = list({row["id"]: row for row in rows}.values())
    kind = rng.random()
    if kind < 0.6:
        return table.upsert(unique).version
    if kind < 0.9:
        return table.delete(f"id % 7 = {rng.randrange(7)}").version
    return table.overwrite(unique).version


class Replica:
    """The example as a process."""

    def __init__(self, db: Database, path: Path, queue: str) -> None:
        command = [sys.executable, "-u", str(EXAMPLE), db.url, str(path), *TABLES, "--queue", queue]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait_for(self, version: int, seconds: float = 120) -> None:
        """Waits until the replica says that it has come to a version."""
        assert self.process.stdout is not None
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ready, _, _ = select.select([self.process.stdout], [], [], 1)
            if ready:
                line = self.process.stdout.readline()
                assert line, "it ended"
                if int(line.split()[1]) >= version:
                    return
        raise AssertionError(f"it has not come to version {version} in {seconds} s")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.slow
def test_the_replica_has_all_rows_though_it_is_killed_now_and_then(db: Database, queue: str, tmp_path: Path) -> None:
    rng, path = random.Random(int(os.environ["DOLMEN_TEST_SEED"])), tmp_path / "replica.duckdb"
    for _ in range(3):
        replica = Replica(db, path, queue)
        try:
            replica.wait_for(0)
            newest = 0
            for _ in range(6):
                newest = change(db, rng)
                if rng.random() < 0.3:
                    replica.wait_for(newest - 1)
            if rng.random() < 0.5:
                replica.wait_for(newest)
        finally:
            replica.kill()
    db.table("orders").add_column("note", pa.string(), "new")
    newest = db.table("orders").upsert([{"id": 1, "text": "last", "at": None, "note": "x"}]).version
    replica = Replica(db, path, queue)
    try:
        replica.wait_for(newest)
    finally:
        replica.kill()
    with duckdb.connect(str(path), read_only=True) as copy:
        for name in TABLES:
            found = copy.sql(f'SELECT * FROM "{name}" ORDER BY id').to_arrow_table()
            wanted = db.table(name).to_arrow().sort_by("id")
            assert found.cast(wanted.schema.remove_metadata()).to_pylist() == wanted.to_pylist()
    assert db.cursor("replica", create=False).version >= newest - 1


def _other_table(db: Database) -> None:
    schema = db.table("t").schema
    db.drop_table("t")
    db.create_table("t", schema, primary_key="id").append([{"id": 9, "x": 9, "n": 9}])


def _clone(db: Database) -> None:
    with db.transaction() as tx:
        tx.clone("t", "new").delete("id = 1")
        tx.drop_table("t")
        tx.rename_table("new", "t")


def _other_column(db: Database) -> None:
    with db.transaction() as tx:
        tx.table("t").drop_column("n")
        tx.table("t").add_column("n", pa.int64())


def _renamed_column(db: Database) -> None:
    table = db.table("t")
    table.rename_column("n", "old")
    table.add_column("n", pa.int64(), 7)
    table.drop_column("old")


def _wider_column(db: Database) -> None:
    db.table("t").widen_column("x", pa.int64())
    db.table("t").append([{"id": 4, "x": 2**40}])


def _column_that_comes_back(db: Database) -> None:
    version = db.version
    db.table("t").drop_column("n")
    db.table("t").restore(version)


def _id_that_is_given_again(db: Database) -> None:
    db.drop_table("t")
    db.restore(2, tables="t")  # before the column n was added
    db.table("t").add_column("n", pa.int64(), 5)


PAIR = pa.schema([("id", pa.int64()), ("x", pa.int32())])
ACTS = [
    _other_table,
    _clone,
    _other_column,
    _renamed_column,
    _wider_column,
    _column_that_comes_back,
    _id_that_is_given_again,
]


@pytest.mark.parametrize("act", ACTS, ids=[act.__name__[1:] for act in ACTS])
def test_the_replica_notices_that_the_table_or_its_columns_are_other_ones(
    act: Callable[[Database], None], tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("replica_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", PAIR, primary_key="id")
    table.append([{"id": id_, "x": id_} for id_ in (1, 2, 3)])
    table.add_column("n", pa.int64(), 1)
    with duckdb.connect() as replica:
        for change in (lambda db: None, act, lambda db: db.table("t").delete("id = 2")):
            change(db)
            example.refresh(db, replica, ["t"])
            found = replica.sql("SELECT * FROM t ORDER BY id").to_arrow_table().to_pylist()
            assert found == db.table("t").to_arrow().sort_by("id").to_pylist()

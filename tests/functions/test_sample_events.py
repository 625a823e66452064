"""Every sample in ``events/`` goes through its function, on a real S3 server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dolmen.store.url import open_store
from support.functions import World
from support.ministack import boto3_client

EVENTS = Path(__file__).parents[2] / "events"
BUCKET = "my-landing-bucket"
FILES: dict[str, str] = json.loads((Path(__file__).parent / "sample_files.json").read_text())


def sample(name: str) -> Any:
    return json.loads((EVENTS / name).read_text())


@pytest.fixture
def samples(ministack: str, s3_world: World) -> Iterator[World]:
    """A world with the files that the samples speak of."""
    s3 = boto3_client("s3", ministack)
    s3.create_bucket(Bucket=BUCKET)
    for key, body in FILES.items():
        answer = s3.put_object(Bucket=BUCKET, Key=key, Body=body.encode())
        assert answer["ETag"].strip('"') == hashlib.md5(body.encode()).hexdigest()
    s3_world.landing = open_store(f"s3://{BUCKET}")
    s3_world.create()
    yield s3_world
    for found in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        s3.delete_object(Bucket=BUCKET, Key=found["Key"])
    s3.delete_bucket(Bucket=BUCKET)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("ingest-sqs-s3.json", [1, 2, 3, 4, 5]),
        ("ingest-s3.json", [1, 2]),
        ("ingest-eventbridge.json", [3]),
        ("ingest-sqs-eventbridge.json", [3]),
        ("ingest-s3-testevent.json", []),
    ],
)
def test_a_sample_event_becomes_rows_once(samples: World, name: str, ids: list[int]) -> None:
    for _ in range(2):
        assert samples.invoke("ingest", sample(name)) == []
        assert samples.ids() == ids
    assert samples.rejects() == {}
    assert samples.versions("ingest") == (1 if ids else 0)


def test_the_sample_of_deletes_is_applied_in_one_commit(samples: World) -> None:
    samples.create("users", pa.schema([("id", pa.int64()), ("user_id", pa.int64())]))
    table = samples.database.table("events")
    rows = [(1, 42, "view"), (2, 42, "buy"), (3, 7, "buy"), (4, 1, "view"), (5, 8, "buy"), (6, 8, "view"), (7, 9, "x")]
    table.append([{"id": i, "user_id": u, "kind": k} for i, u, k in [*rows, (8, 10, "x"), (9, 11, "x")]])
    samples.database.table("users").append([{"id": n, "user_id": n} for n in (9, 10, 11)])
    for _ in range(2):
        assert samples.invoke("delete", sample("delete-sqs.json")) == []
        assert samples.ids() == [2, 6, 9]
        assert samples.ids("users") == [11]
    assert samples.versions("delete") == 1


def test_the_sample_of_a_direct_delete(samples: World) -> None:
    samples.database.table("events").append(
        [{"id": 1, "user_id": 42, "kind": "x"}, {"id": 2, "user_id": 7, "kind": "x"}]
    )
    assert samples.invoke("delete", sample("delete.json")) == []
    assert samples.ids() == [2]


def test_the_samples_of_schedules_are_what_the_scheduled_functions_take(samples: World) -> None:
    for n in range(5):
        samples.database.table("events").append([{"id": n, "user_id": n, "kind": "x"}])
    assert samples.call("compact", sample("compact-schedule.json"))["finished"] is True
    assert samples.call("gc", sample("gc-schedule.json"))["finished"] is True
    assert samples.database.table("events").describe()["files"] == 1
    assert samples.ids() == [0, 1, 2, 3, 4]


def test_every_sample_is_run() -> None:
    run = {"ingest-sqs-s3", "ingest-s3", "ingest-eventbridge", "ingest-sqs-eventbridge", "ingest-s3-testevent"}
    assert {path.stem for path in EVENTS.glob("*.json")} == run | {
        "delete-sqs",
        "delete",
        "compact-schedule",
        "gc-schedule",
    }

"""Every sample in ``events/`` goes through its function, on a real S3 server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from dolmen.store import open_store
from support.functions import World
from support.samples import (
    BUCKET,
    EVENT_ROWS,
    EVENTS,
    INGESTED,
    LEFT,
    SCHEDULED,
    USER_ROWS,
    sample,
    sample_files,
)


@pytest.fixture
def samples(ministack: str, s3_world: World) -> Iterator[World]:
    """A world with the files that the samples speak of."""
    with sample_files(ministack):
        s3_world.landing = open_store(f"s3://{BUCKET}")
        s3_world.create()
        yield s3_world


@pytest.mark.slow
@pytest.mark.parametrize("name", INGESTED)
def test_a_sample_event_becomes_rows_once(samples: World, name: str) -> None:
    for _ in range(2):
        assert samples.invoke("ingest", sample(name)) == []
        assert samples.ids() == INGESTED[name]
    assert samples.rejects() == {}
    assert samples.versions("ingest") == (1 if INGESTED[name] else 0)


@pytest.mark.parametrize("name", LEFT)
def test_a_sample_of_deletes_is_applied_in_one_commit(samples: World, name: str) -> None:
    samples.create("users", pa.schema([("id", pa.int64()), ("user_id", pa.int64())]))
    samples.database.table("events").append([{"id": i, "user_id": u, "kind": k} for i, u, k in EVENT_ROWS])
    samples.database.table("users").append([{"id": i, "user_id": u} for i, u in USER_ROWS])
    for _ in range(2):
        assert samples.invoke("delete", sample(name)) == []
        assert (samples.ids(), samples.ids("users")) == LEFT[name]
    assert samples.versions("delete") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCHEDULED))
def test_the_samples_of_schedules_are_what_the_scheduled_functions_take(samples: World, name: str) -> None:
    for n in range(5):
        samples.database.table("events").append([{"id": n, "user_id": n, "kind": "x"}])
    function = name.partition("-")[0]
    assert samples.call(function, sample(name))["finished"] is True
    assert samples.database.table("events").describe()["files"] == (1 if function == "compact" else 5)
    assert samples.ids() == [0, 1, 2, 3, 4]


def test_every_sample_is_run() -> None:
    there = {path.stem for path in EVENTS.glob("*.json")} - {"local-env"}  # that one is for `sam local invoke`
    assert there == INGESTED.keys() | LEFT.keys() | SCHEDULED


def test_no_two_samples_share_an_id() -> None:
    """Sent into one stack, one after the other, each is a message and a request of its own."""
    ids: list[str] = []
    for path in sorted(EVENTS.glob("*.json")):
        document = json.loads(path.read_text())
        ids += [document[name] for name in ("id", "request_id") if name in document]
        for record in document.get("Records", []):
            ids += [record[name] for name in ("messageId", "receiptHandle") if name in record]
            body = json.loads(record.get("body", "{}"))
            ids += [body["request_id"]] if "request_id" in body else []
    assert len(ids) > 20
    assert len(ids) == len(set(ids))

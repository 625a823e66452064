"""Queues and job services that accept connections and never answer: the files are ingested all the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from handover.conftest import Handing
from handover.test_hand_over import large, metrics, small
from support.black_hole import BlackHole, black_hole
from support.functions import Context

TIMEOUT_SECONDS = 60
"""The shortest time-out that the template allows."""


@dataclass
class Ticking(Context):
    """Tells the time that is really left."""

    began: float = field(default_factory=time.monotonic)

    def get_remaining_time_in_millis(self) -> int:
        return int((TIMEOUT_SECONDS - (time.monotonic() - self.began)) * 1000)


@pytest.fixture
def hole(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlackHole]:
    """SQS and EMR Serverless."""
    with black_hole() as hole:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EMR_SERVERLESS", hole.endpoint)
        monkeypatch.setenv("DOLMEN_INGEST_QUEUE", f"{hole.endpoint}/000000000000/ingest")
        monkeypatch.setenv("DOLMEN_HANDOVER_BACKLOG", "10")
        yield hole


@pytest.mark.slow
def test_files_are_ingested_when_the_queue_never_says_how_many_wait(
    handing: Handing, hole: BlackHole, capsys: pytest.CaptureFixture[str]
) -> None:
    world = handing.world
    world.context = Ticking()
    assert world.ingest(*(world.drop(f"events/{n}.csv", small(n)) for n in range(5))) == []
    assert world.ids() == list(range(5))
    assert len(hole.requests) == 1, hole.requests
    assert world.log_entries("backlog unknown")[0]["error"] == "StoreUnavailableError"
    assert metrics(capsys, "QueueErrors") == [1]


@pytest.mark.slow
def test_large_files_are_noted_when_no_job_can_be_asked_for(
    handing: Handing, hole: BlackHole, capsys: pytest.CaptureFixture[str]
) -> None:
    world = handing.world
    world.context = Ticking()
    assert world.ingest(world.drop("events/large.csv", large(100)), world.drop("events/small.csv", small(1))) == []
    assert world.ids() == [1]
    assert handing.handed() == ["large.csv"]
    assert len(hole.requests) == 1 + 2, hole.requests  # the queue's depth; the list of runs, twice
    assert metrics(capsys, "JobStartsFailed") == [1]


@pytest.mark.slow
def test_a_function_that_has_too_little_time_left_leaves_the_job_to_the_schedule(
    handing: Handing, hole: BlackHole
) -> None:
    world = handing.world
    world.context.remaining_ms = [40_000]
    assert world.ingest(world.drop("events/large.csv", large(100))) == []
    assert handing.handed() == ["large.csv"]
    assert len(hole.requests) == 1, hole.requests
    assert "compact" in world.log_entries("job not started")[0]["reason"]


@pytest.mark.slow
def test_a_round_asks_a_service_that_never_answers_once(
    handing: Handing, hole: BlackHole, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = handing.world
    monkeypatch.setenv("DOLMEN_HANDOVER_COMPACT_BYTES", "1")
    for table in ("events", "more", "most"):
        if table != "events":
            world.create(table)
        for n in range(6):
            world.database.table(table).append([{"id": n, "user_id": n, "kind": "x"}])
    world.drop("events/large.csv", large(100))
    monkeypatch.delenv("DOLMEN_INGEST_QUEUE")
    world.context.remaining_ms = [40_000]
    world.ingest(world.drop("events/large.csv", large(100)))
    assert handing.handed() == ["large.csv"]
    world.context = Ticking()
    assert world.call("compact")["finished"] is True
    assert len(hole.requests) == 2, hole.requests  # the list of runs, twice; nothing for the three tables
    assert [world.database.table(name).describe()["files"] for name in ("events", "more", "most")] == [1, 1, 1]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["JobsStarted"] for line in lines if "JobsStarted" in line] == [[0]]

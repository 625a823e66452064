"""Drops that are handed over: what, when it is acknowledged, who ingests it, and that it is ingested once."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dolmen.ingest.announcements import Drop, read_drops
from dolmen.ingest.batch import read_messages
from dolmen.service.functions.function_settings import FunctionResources, FunctionSettings
from dolmen.service.handover.handover_records import HandoverRecords
from handover.conftest import LARGE_BYTES, Handing
from support.crashing_store import Countdown, Crash, CrashingStore
from support.event_builders import notification, sqs_event
from support.functions import load
from support.handed_job import ingest_handed
from support.ministack import boto3_client

HEAD = "id,user_id,kind\n"

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics")  # of an invocation that died


def large(first: int, rows: int = 20) -> str:
    body = HEAD + "".join(f"{first + n},1,x\n" for n in range(rows))
    assert len(body) > LARGE_BYTES
    return body


def small(id_: int) -> str:
    return f"{HEAD}{id_},1,x\n"


def run_job(handing: Handing) -> list[str]:
    """The job ends well: all records are settled."""
    world, records = handing.world, handing.records
    done = ingest_handed(world.database, FunctionSettings.of(os.environ).open()[1], records)
    for run in handing.runs():
        handing.server.set_state(run.id, "SUCCESS")
    return done


def metrics(capsys: pytest.CaptureFixture[str], name: str) -> list[float]:
    """What invocations measured of this name."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    return [line[name][0] for line in lines if name in line]


def test_what_has_no_table_is_not_noted_but_waits_for_it(handing: Handing) -> None:
    world = handing.world
    record = world.drop("nowhere/large.csv", large(100))
    assert world.ingest(record) == ["message-0"]
    assert (handing.handed(), len(world.log_entries("drop waiting"))) == ([], 1)
    world.create("nowhere")  # by another process: this one looks again
    assert world.ingest(record) == []
    assert handing.handed() == ["large.csv"]


def test_what_has_no_table_is_noted_where_the_job_creates_it(handing: Handing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    world = handing.world
    assert world.ingest(world.drop("nowhere/large.csv", large(100))) == []
    assert handing.handed() == ["large.csv"]


def test_what_is_large_is_noted_for_a_job_and_the_rest_ingested_at_once(
    handing: Handing, capsys: pytest.CaptureFixture[str]
) -> None:
    world = handing.world
    assert world.ingest(world.drop("events/large.csv", large(100)), world.drop("events/small.csv", small(1))) == []
    assert world.ids() == [1]
    assert handing.handed() == ["large.csv"]
    [run] = handing.runs()
    assert run.arguments == ["--database", world.database.url, "--handed", handing.records.url]
    assert metrics(capsys, "FilesHanded") == [1]
    [told] = world.log_entries("drop handed")
    assert told["bytes"] > LARGE_BYTES
    assert world.log_entries("job started")[0]["run"] == run.id
    assert run_job(handing) == ["ingested"]
    assert world.ids() == [1, *range(100, 120)]
    assert handing.handed() == []


def test_a_file_of_just_the_limit_is_ingested_here(handing: Handing) -> None:
    exactly = small(1).ljust(LARGE_BYTES, "\n")
    assert handing.world.ingest(handing.world.drop("events/a.csv", exactly)) == []
    assert handing.world.ids() == [1]
    assert handing.runs() == []


def test_one_job_takes_what_comes_while_it_has_not_ended(handing: Handing) -> None:
    world = handing.world
    for n, state in enumerate(("SUBMITTED", "PENDING", "SCHEDULED", "QUEUED", "RUNNING", "CANCELLING")):
        world.ingest(world.drop(f"events/{n}.csv", large(100 * n)))
        [run] = handing.runs()
        handing.server.set_state(run.id, state)
    assert len(handing.handed()) == 6
    handing.server.set_state(run.id, "SUCCESS")
    world.ingest(world.drop("events/after.csv", large(1000)))
    assert len(handing.runs()) == 2


@pytest.mark.parametrize("lagging", [False, True], ids=["listed", "not listed yet"])
def test_a_message_that_comes_again_writes_no_second_record_and_starts_no_second_job(
    handing: Handing, lagging: bool
) -> None:
    world = handing.world
    record = world.drop("events/large.csv", large(100))
    for _ in range(3):
        assert world.ingest(record) == []
        world.restart()
        if lagging:
            handing.server.hide(*(run.id for run in handing.runs()))
    assert handing.handed() == ["large.csv"]
    assert len(handing.runs()) == 1


def test_a_listing_that_lags_behind_starts_another_job_once_the_hidden_one_has_ended(handing: Handing) -> None:
    """Its token is that of a run that has ended: what was handed over since would otherwise wait for the schedule."""
    world = handing.world
    for n in range(4):
        world.ingest(world.drop(f"events/{n}.csv", large(100 * n)))
        runs = handing.runs()
        assert len(runs) == n + 1
        age(handing)
        handing.server.set_state(runs[-1].id, "SUCCESS")
        handing.server.hide(*(run.id for run in runs))


def age(handing: Handing) -> None:
    """Makes runs old enough not to be taken for those of the caller."""
    handing.server.backdate(3600)


def test_what_a_job_has_ingested_is_not_handed_over_again(handing: Handing) -> None:
    world = handing.world
    record = world.drop("events/large.csv", large(100))
    world.ingest(record)
    run_job(handing)
    world.restart()
    assert world.ingest(record) == []
    assert [told["source"] for told in world.log_entries("drop duplicate")] == ["s3://drops/landing/events/large.csv"]
    assert handing.handed() == []
    assert len(handing.runs()) == 1
    assert world.ids() == list(range(100, 120))


def test_a_record_that_is_written_again_after_the_job_adds_nothing(handing: Handing) -> None:
    """The message was delivered to two functions at once, and the slower one wrote after the job was done."""
    world = handing.world
    world.ingest(world.drop("events/large.csv", large(100)))
    [record] = handing.records.read_all()
    run_job(handing)
    handing.records.add(record.drops)
    assert run_job(handing) == ["duplicate"]
    assert world.ids() == list(range(100, 120))
    assert handing.handed() == []


@pytest.mark.slow
def test_two_invocations_at_once_start_one_job(handing: Handing) -> None:
    world = handing.world
    for round_ in range(3):
        events = [
            sqs_event([notification(world.drop(f"events/{round_}-{n}.csv", large(100 * n)))], [f"message-{n}"])
            for n in range(4)
        ]
        barrier = threading.Barrier(len(events))

        def invoke(event: Any, barrier: threading.Barrier = barrier) -> Any:
            module = load("ingest")
            barrier.wait()
            return module.lambda_handler(event, world.context)

        with ThreadPoolExecutor(len(events)) as pool:
            assert [answer["batchItemFailures"] for answer in pool.map(invoke, events)] == [[]] * len(events)
        assert len(handing.runs()) == round_ + 1
        assert run_job(handing) == ["ingested"] * 4
    assert len(world.ids()) == 3 * 4 * 20


@pytest.mark.slow
def test_a_message_is_not_acknowledged_when_its_record_cannot_be_written(handing: Handing) -> None:
    world = handing.world
    records = [world.drop("events/large.csv", large(100)), world.drop("events/small.csv", small(1))]
    blocking = Path(handing.handover_url.removeprefix("file://"))
    blocking.write_text("a file where the directory would be")
    assert world.ingest(*records) == ["message-0"]
    blocking.unlink()
    assert world.ids() == [1]
    assert handing.runs() == []
    assert world.ingest(*records) == []
    assert handing.handed() == ["large.csv"]


def test_a_job_that_cannot_be_started_loses_nothing_and_is_told(
    handing: Handing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = handing.world
    monkeypatch.setenv("DOLMEN_SPARK_APPLICATION", "00nosuchapplication")
    assert world.ingest(world.drop("events/large.csv", large(100))) == []
    assert handing.handed() == ["large.csv"]
    [told] = world.log_entries("job not started")
    assert told["error"] == "NotFoundError"
    assert metrics(capsys, "JobStartsFailed") == [1]
    monkeypatch.setenv("DOLMEN_SPARK_APPLICATION", handing.application)
    world.call("compact")
    assert len(handing.runs()) == 1


def test_drops_outside_of_tables_are_left_alone(handing: Handing) -> None:
    world = handing.world
    assert world.ingest(world.drop("events/_temporary.csv", large(100))) == []
    assert handing.handed() == []
    assert handing.runs() == []


def test_without_an_application_nothing_is_handed_over(handing: Handing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_SPARK_APPLICATION", "")
    world = handing.world
    assert world.ingest(world.drop("events/large.csv", large(100))) == []
    assert world.ids() == list(range(100, 120))
    assert handing.runs() == []


# ---- backlog --------------------------------------------------------------------------------------------------------


@pytest.fixture
def queue(ministack: str, handing: Handing, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A queue of a real server with five messages in it."""
    sqs = boto3_client("sqs", ministack)
    url = sqs.create_queue(QueueName=f"backlog-{handing.application}")["QueueUrl"]
    for n in range(5):
        sqs.send_message(QueueUrl=url, MessageBody=str(n))
    monkeypatch.setenv("DOLMEN_INGEST_QUEUE", url)
    return sqs, url


@pytest.mark.slow
def test_while_many_messages_wait_everything_goes_to_one_job(
    handing: Handing, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqs, url = queue
    world = handing.world
    monkeypatch.setenv("DOLMEN_HANDOVER_BACKLOG", "5")
    assert world.ingest(world.drop("events/few.csv", small(1))) == []
    assert world.ids() == [1]
    sqs.send_message(QueueUrl=url, MessageBody="one more")
    drops = [world.drop(f"events/{n}.csv", small(10 + n)) for n in range(3)]
    assert world.ingest(*drops) == []
    assert len(list(handing.records.read_all())) == 1  # one record for the batch
    assert world.ids() == [1]
    sqs.purge_queue(QueueUrl=url)
    assert world.ingest(world.drop("events/later.csv", small(2))) == []
    assert world.ids() == [1, 2]
    assert run_job(handing) == ["ingested"] * 3
    assert world.ids() == [1, 2, 10, 11, 12]
    assert len(handing.runs()) == 1


@pytest.mark.slow
def test_a_backlog_that_cannot_be_asked_is_none_and_is_told(
    handing: Handing, queue: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = handing.world
    monkeypatch.setenv("DOLMEN_HANDOVER_BACKLOG", "1")
    monkeypatch.setenv("DOLMEN_INGEST_QUEUE", f"{queue[1]}-that-is-not-there")
    assert world.ingest(world.drop("events/a.csv", small(1))) == []
    assert world.ids() == [1]
    assert world.log_entries("backlog unknown")[0]["error"] == "NotFoundError"
    assert metrics(capsys, "QueueErrors") == [1]


# ---- dying at each request ------------------------------------------------------------------------------------------


class CrashingService:
    """A job service under a countdown."""

    def __init__(self, service: Any, countdown: Countdown) -> None:
        self._service, self._countdown = service, countdown

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._service, name)
        return lambda *args: self._countdown.call(found, *args)


def crash_in(module: Any, countdown: Countdown) -> None:
    """Puts the records and the job service of a function under a countdown."""
    opened = module._open

    @cache
    def open_crashing(settings: FunctionSettings) -> FunctionResources:
        resources: FunctionResources = opened(settings)
        crashing: Any = CrashingStore(resources.handover_records._store, countdown)
        service: Any = CrashingService(resources.job_service, countdown)
        resources.job_service, resources.handover_records = service, HandoverRecords(crashing)
        return resources

    module._open = open_crashing


@pytest.mark.slow
def test_a_function_may_die_at_any_request_and_each_object_is_in_once(handing: Handing) -> None:
    world = handing.world
    step = expected = 0
    while True:
        step += 1
        drops = [world.drop(f"events/{step}-{n}.csv", large(1000 * step + 100 * n)) for n in range(2)]
        world.restart()
        countdown = Countdown((step + 1) // 2, after=step % 2 == 0)
        crash_in(world.functions["ingest"], countdown)
        died = False
        try:
            assert world.ingest(*drops) == []
        except Crash:
            died = True
            world.restart()
            assert world.ingest(drops[0]) == []  # delivered again, in other batches
            assert world.ingest(drops[1]) == []
        alive = [run for run in handing.runs() if run.state == "SUBMITTED"]
        assert len(alive) == 1, step
        run_job(handing)
        age(handing)
        expected += 2 * 20
        assert len(world.ids()) == len(set(world.ids())) == expected
        assert handing.handed() == []
        if not died:
            break
    assert step >= 9  # the record; listing, starting and looking at the run: each before and after


@pytest.mark.slow
def test_a_schedule_that_dies_at_any_request_starts_one_job_in_the_end(handing: Handing) -> None:
    world = handing.world
    step = 0
    while True:
        step += 1
        handing.records.add(announced(handing, f"{step}.csv", step))  # the function died before it started a job
        world.restart()
        crash_in(world.functions["compact"], Countdown((step + 1) // 2, after=step % 2 == 0))
        died = False
        try:
            world.call("compact")
        except Crash:
            died = True
            world.restart()
            world.call("compact")
        assert len([run for run in handing.runs() if run.state == "SUBMITTED"]) == 1, step
        assert run_job(handing) == ["ingested"]
        age(handing)
        if not died:
            break
    assert step >= 9


def announced(handing: Handing, name: str, first: int) -> list[Drop]:
    record = handing.world.drop(f"events/{name}", large(1000 * first))
    [message] = read_messages(notification(record))
    return read_drops(message.body)[0]


# ---- on S3 ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_on_s3_a_record_is_one_conditional_put_before_the_answer(s3_handing: Handing) -> None:
    world = s3_handing.world
    drops = [world.drop("events/large.csv", large(100)), world.drop("events/small.csv", small(1))]
    assert world.ingest(*drops) == []
    assert world.ids() == [1]
    assert [info.key.count("/") for info in world.landing.list("handed/")] == [1]
    assert run_job(s3_handing) == ["ingested"]
    assert world.ids() == [1, *range(100, 120)]
    assert list(world.landing.list("handed/")) == []
    assert world.ingest(*drops) == []
    assert world.ids() == [1, *range(100, 120)]

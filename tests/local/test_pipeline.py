"""The local pipeline: the same functions, real events, redelivery, dead letters."""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen.api.database
from dolmen.base.runtime import Runtime
from dolmen.cli.run import command_line
from dolmen.errors import InputError
from dolmen.ingest.delete_requests import status_of
from dolmen.ingest.queues import open_queue
from dolmen.ingest.reject_listing import list_rejects, retry
from dolmen.service.local import LocalEvent, LocalLayout, run_local
from dolmen.store.local_store import LocalStore
from support.functions import FUNCTIONS, SCHEMA

HEAD = "id,user_id,kind\n"


@pytest.fixture
def layout(tmp_path: Path) -> LocalLayout:
    made = LocalLayout.under(tmp_path)
    made.make()
    return made


def drop(layout: LocalLayout, path: str, text: str) -> Path:
    file = layout.landing / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def request(layout: LocalLayout, name: str, body: Any) -> None:
    (layout.queue / name).write_text(body if isinstance(body, str) else json.dumps(body))


def run(layout: LocalLayout, **options: Any) -> list[LocalEvent]:
    """Runs until all is handled; returns what was told."""
    events: list[LocalEvent] = []
    functions = options.pop("functions", FUNCTIONS)
    options = {"poll_seconds": 0.01, "once": True, "on_event": events.append} | options
    run_local(layout.database, layout.landing, layout.queue, functions, **options)
    return events


def texts(events: list[LocalEvent]) -> list[str]:
    return [event.text for event in events]


def test_files_become_rows_and_requests_delete_them(layout: LocalLayout, capsys: pytest.CaptureFixture[str]) -> None:
    database = dolmen.api.database.open(layout.database)
    table = database.create_table("events", SCHEMA, primary_key="id")
    drop(layout, "events/2026/a + b 日本 100%.csv", f"{HEAD}1,42,x\n2,7,y\n")
    drop(layout, "events/c.jsonl", '{"id": 3, "user_id": 42}\n')
    bad = drop(layout, "events/bad.csv", f"{HEAD}1,oops,x\n")
    events = run(layout)
    assert sorted(texts(events)) == ["committed", "drop ingested", "drop ingested", "drop rejected"]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert bad.exists()
    [report] = [json.loads(path.read_text()) for path in layout.rejected.rglob("*.error.json")]
    assert (report["file"], report["line"], report["column"]) == ("events/bad.csv", 2, "user_id")

    request(layout, "erase.json", {"table": "events", "where": {"user_id": 42}, "request_id": "erase-42"})
    assert texts(run(layout)) == ["delete applied", "committed"]
    assert table.to_arrow()["id"].to_pylist() == [2]
    assert [path for path in layout.queue.rglob("*") if path.is_file()] == []
    assert run(layout) == []
    assert [commit.operation for commit in database.history()] == ["delete", "ingest", "create_table"]
    log = [json.loads(line) for line in (layout.state / "functions.log").read_text().splitlines()]
    assert {line["service"] for line in log} == {"ingest", "delete"}
    assert {name for line in log for name in line} >= {"RowsIngested", "DeletesApplied", "message_id"}
    assert capsys.readouterr().out == ""


def test_a_table_says_what_becomes_of_its_files_and_of_their_bad_rows(layout: LocalLayout) -> None:
    database = dolmen.api.database.open(layout.database)
    database.create_table("events", SCHEMA, primary_key="id")
    database.table("events").set(ingest_mode="upsert", ingest_on_bad_row="quarantine", ingest_landing="expire")
    file = drop(layout, "events/a.csv", f"{HEAD}1,1,old\nx,1,x\n1,1,new\n")
    run(layout)
    assert not file.exists()
    assert [row["kind"] for row in database.table("events").to_arrow().to_pylist()] == ["new"]
    [rows] = layout.rejected.rglob("*.rows.jsonl")
    assert [json.loads(line)["text"] for line in rows.read_text().splitlines()] == ["x,1,x"]
    # What is put back is found like any other file.
    store = LocalStore(layout.rejected)
    [rejected] = list_rejects(store, "events")
    database.drop_table("events")
    database.create_table("events", SCHEMA.set(0, pa.field("id", pa.string())))
    retry(store, rejected.key, Runtime())
    assert texts(run(layout)) == ["drop ingested", "committed"]
    assert database.table("events").to_arrow()["id"].to_pylist() == ["x"]


def test_a_lost_memory_doubles_nothing(layout: LocalLayout) -> None:
    drop(layout, "events/a.csv", f"{HEAD}1,42,x\n")
    run(layout, auto_create=True)
    (layout.state / "landing.jsonl").unlink()
    assert texts(run(layout)) == ["drop duplicate"]
    assert dolmen.api.database.open(layout.database).table("events").count() == 1


def test_tables_are_created_when_that_is_wanted(layout: LocalLayout) -> None:
    drop(layout, "new/a.csv", "a,b\n1,x\n")
    run(layout, auto_create=True)
    assert dolmen.api.database.open(layout.database).table("new").to_arrow().to_pylist() == [{"a": 1, "b": "x"}]


def test_a_table_that_is_created_reads_later_files_as_the_first(layout: LocalLayout) -> None:
    drop(layout, "new/a.csv", "id;betrag\n1;2,5\n2;3,25\n")
    run(layout, auto_create=True)
    database = dolmen.api.database.open(layout.database)
    assert database.table("new").describe()["properties"] == {"ingest_delimiter": ";", "ingest_decimal": ","}
    drop(layout, "new/b.csv", "id;betrag\n3;4\n")
    drop(layout, "new/c.csv", "id,betrag\n4,5.5\n")  # it is strict now
    run(layout, auto_create=True)
    assert database.table("new").to_arrow()["betrag"].to_pylist() == [2.5, 3.25, 4.0]
    [report] = [json.loads(path.read_text()) for path in layout.rejected.rglob("*.error.json")]
    assert report["file"] == "new/c.csv"
    assert (report["hint"], bool(report["found"])) == ({"ingest_delimiter": ","}, True)


def test_a_table_name_that_is_misspelt_is_rejected_within_some_looks(layout: LocalLayout) -> None:
    dolmen.api.database.open(layout.database).create_table("events", SCHEMA)
    drop(layout, "evnets/a.csv", f"{HEAD}1,42,x\n")
    events = run(layout)
    assert texts(events) == ["drop waiting"] * 3 + ["drop rejected", "committed"]
    assert [event.facts["tries_left"] for event in events[:3]] == [3, 2, 1]
    assert "no table 'evnets'" in events[0].facts["reason"]
    assert list(layout.dead_letters.iterdir()) == []
    assert run(layout) == []


def test_a_file_waits_for_its_table(layout: LocalLayout) -> None:
    database = dolmen.api.database.open(layout.database)
    database.create_table("others", SCHEMA)
    drop(layout, "events/a.csv", f"{HEAD}1,42,x\n")
    events: list[LocalEvent] = []

    def create(event: LocalEvent) -> None:
        if event.text == "drop waiting" and not events:
            database.create_table("events", SCHEMA)
        events.append(event)

    run(layout, on_event=create)
    assert texts(events) == ["drop waiting", "drop ingested", "committed"]
    assert list(layout.rejected.rglob("*.json")) == []


def test_a_request_that_can_never_be_applied_becomes_a_dead_letter_at_once_with_its_reason(layout: LocalLayout) -> None:
    table = dolmen.api.database.open(layout.database).create_table("events", pa.schema([("id", pa.int64())]))
    table.append([{"id": 1}, {"id": 2}])
    bodies = {
        "poison.json": {"table": "nowhere", "where": "id = 1"},
        "good.json": {"table": "events", "where": "id = 1"},
    }
    for name, body in bodies.items():
        request(layout, name, body)
    events = run(layout)
    assert table.to_arrow()["id"].to_pylist() == [2]
    [given_up] = [event for event in events if event.text == "given up"]
    assert given_up.level == logging.ERROR
    [path] = layout.dead_letters.iterdir()
    letter = json.loads(path.read_text())
    assert (letter["function"], letter["name"], letter["tries"]) == ("delete", "poison.json", 1)
    assert "no table 'nowhere'" in letter["reason"]
    assert json.loads(letter["body"]) == bodies["poison.json"]
    assert run(layout) == []


def test_the_command_says_how_to_see_why_something_was_not_done(
    layout: LocalLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    table = dolmen.api.database.open(layout.database).create_table("events", pa.schema([("id", pa.int64())]))
    drop(layout, "events/b c.csv", "id\nx\n")
    request(layout, "r.json", {"table": "events", "where": "idd = 7", "request_id": "r-1"})
    root = layout.landing.parent
    command_line()(["local", "--root", str(root), "--once", "--functions", str(FUNCTIONS)], standalone_mode=False)
    told = capsys.readouterr().out.splitlines()
    [hint] = [line.partition(": ")[2] for line in told if "dolmen rejected show" in line]
    command_line()(shlex.split(hint)[1:], standalone_mode=False)
    assert "'x'" in capsys.readouterr().out
    assert any("no column 'idd'" in line for line in told)
    [status] = status_of(dolmen.api.database.open(layout.database), ["r-1"], open_queue(layout.queue))
    assert (status.state, status.reason) == (
        "failed",
        "PredicateError: at character 0: no column 'idd'; did you mean 'id'?",
    )
    assert table.count() == 0


def test_the_command_takes_the_database_from_the_environment_as_all_others_do(
    layout: LocalLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    monkeypatch.setenv("DOLMEN_DATABASE", elsewhere)
    drop(layout, "events/a.csv", "id\n1\n")
    root = layout.landing.parent
    command_line()(["local", "--root", str(root), "--once", "--functions", str(FUNCTIONS)], standalone_mode=False)
    assert dolmen.api.database.open(elsewhere).table("events").count() == 1
    assert not Path(layout.database).exists()


def test_two_processes_on_one_landing_directory_are_refused(layout: LocalLayout) -> None:
    drop(layout, "events/a.csv", HEAD)

    refused = []

    def another(event: LocalEvent) -> None:
        with pytest.raises(InputError, match="another process"):
            run(layout)
        refused.append(event)

    run(layout, on_event=another, auto_create=True)
    assert refused


def test_without_functions_it_says_what_to_do(layout: LocalLayout, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no function"):
        run(layout, functions=tmp_path / "nowhere")


def test_the_environment_is_as_it_was_afterwards(layout: LocalLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_DATABASE", "s3://production/database")
    monkeypatch.delenv("DOLMEN_LANDING_URL", raising=False)
    before = dict(os.environ)
    run(layout)
    assert dict(os.environ) == before


FAKE = """
import json, logging, pathlib
logger = logging.getLogger("fake-" + pathlib.Path(__file__).parent.name)
log = pathlib.Path(__file__).with_name("calls.jsonl")
def lambda_handler(event, context):
    assert context.get_remaining_time_in_millis() > 0
    with log.open("a") as file:
        file.write(json.dumps(event) + "\\n")
    calls = len(log.read_text().splitlines())
    BEHAVIOUR
    return {"batchItemFailures": []}
"""


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], Path]:
    """Functions that note what they are called with, and then do what the test says."""

    def make(behaviour: str) -> Path:
        for name in ("ingest", "delete"):
            (tmp_path / "functions" / name).mkdir(parents=True)
            (tmp_path / "functions" / name / "app.py").write_text(FAKE.replace("BEHAVIOUR", behaviour))
        return tmp_path / "functions"

    return make


def calls(functions: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (functions / name / "calls.jsonl").read_text().splitlines()]


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.naps = 1000.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    @property
    def runtime(self) -> Runtime:
        return Runtime(monotonic=lambda: self.now, sleep=self.sleep)


def test_events_are_those_of_aws(layout: LocalLayout, fake: Callable[[str], Path]) -> None:
    functions = fake("pass")
    drop(layout, "events/a b+ü.csv", "id\n")
    request(layout, "x.json", '{"any": "text"}')
    run(layout, functions=functions)
    [event] = calls(functions, "ingest")
    [record] = event["Records"]
    assert record["eventSource"] == "aws:sqs"
    assert record["attributes"]["ApproximateReceiveCount"] == "1"
    [notified] = json.loads(record["body"])["Records"]
    assert notified["eventName"] == "ObjectCreated:Put"
    assert notified["s3"]["object"]["key"] == "events/a+b%2B%C3%BC.csv"
    assert notified["s3"]["object"]["size"] == 3
    [event] = calls(functions, "delete")
    assert [record["body"] for record in event["Records"]] == ['{"any": "text"}']


def test_only_what_failed_is_delivered_again_each_time_after_a_longer_wait(
    layout: LocalLayout, fake: Callable[[str], Path]
) -> None:
    failing = """
    failed = [record["messageId"] for record in event["Records"]][:1] if calls < 4 else []
    return {"batchItemFailures": [{"itemIdentifier": id_} for id_ in failed]}
"""
    functions, clock = fake(failing), Clock()
    for n in range(3):
        drop(layout, f"events/{n}.csv", f"id\n{n}\n")
    run(layout, functions=functions, poll_seconds=1.0, runtime=clock.runtime)
    delivered = calls(functions, "ingest")
    assert [len(event["Records"]) for event in delivered] == [3, 1, 1, 1]
    assert len({event["Records"][0]["messageId"] for event in delivered}) == 1
    assert [event["Records"][0]["attributes"]["ApproximateReceiveCount"] for event in delivered] == ["1", "2", "3", "4"]
    assert clock.now - 1000 == 1 + 2 + 4 + 8
    assert list(layout.dead_letters.iterdir()) == []


def test_what_was_not_begun_comes_at_once_and_uses_no_try(layout: LocalLayout, fake: Callable[[str], Path]) -> None:
    postponing = """
    left = event["Records"][1:]
    for record in left:
        logger.warning("drop postponed", extra={"message_id": record["messageId"]})
    return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in left]}
"""
    functions, clock = fake(postponing), Clock()
    for n in range(12):
        drop(layout, f"events/{n:02}.csv", f"id\n{n}\n")
    run(layout, functions=functions, poll_seconds=1.0, runtime=clock.runtime)
    delivered = calls(functions, "ingest")
    assert [len(event["Records"]) for event in delivered] == list(range(12, 0, -1))
    assert {record["attributes"]["ApproximateReceiveCount"] for event in delivered for record in event["Records"]} == {
        "1"
    }
    assert clock.now - 1000 == 1  # until the files have come to rest
    assert list(layout.dead_letters.iterdir()) == []


def test_an_invocation_that_raises_fails_its_whole_batch(layout: LocalLayout, fake: Callable[[str], Path]) -> None:
    functions, clock = fake('raise OSError("out of disk")'), Clock()
    for n in range(2):
        drop(layout, f"events/{n}.csv", f"id\n{n}\n")
    run(layout, functions=functions, poll_seconds=1.0, runtime=clock.runtime)
    assert len(calls(functions, "ingest")) == 5
    letters = [json.loads(path.read_text()) for path in layout.dead_letters.iterdir()]
    assert {letter["name"] for letter in letters} == {"events/0.csv", "events/1.csv"}
    assert {letter["reason"] for letter in letters} == {"OSError: out of disk"}


def test_a_file_that_was_given_up_is_tried_anew_at_the_next_start(
    layout: LocalLayout, fake: Callable[[str], Path]
) -> None:
    clock = Clock()
    drop(layout, "events/a.csv", f"{HEAD}1,42,x\n")
    run(layout, functions=fake('raise OSError("no network")'), poll_seconds=1.0, runtime=clock.runtime)
    assert len(list(layout.dead_letters.iterdir())) == 1
    run(layout, auto_create=True)
    assert dolmen.api.database.open(layout.database).table("events").count() == 1

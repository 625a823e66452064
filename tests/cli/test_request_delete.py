"""``dolmen request-delete`` and ``request-status``: into the queue, checked; and what became of it, honestly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.errors import StoreUnavailableError
from dolmen.ingest.delete_requests import apply_deletes, compose, parse_request
from dolmen.ingest.queues import MAX_SQS_BYTES, DirectoryQueue
from support.local_once import local_once
from support.ministack import boto3_client, endpoint_environment

Cli = Callable[..., Any]

_names = itertools.count()


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    db = dolmen.open(str(tmp_path / "db"))
    schema = pa.schema([("id", pa.int64()), ("code", pa.string()), ("user_id", pa.int64()), ("at", pa.date32())])
    for name in ("events", "sessions"):
        db.create_table(name, schema, primary_key="id")
        db.table(name).append([{"id": n, "code": f"0{n}", "user_id": n % 3} for n in range(9)])
    return db


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "queue"
    root.mkdir()
    monkeypatch.setenv("DOLMEN_DELETE_QUEUE", str(root))
    return root


def messages(queue: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(queue.glob("*.json"))]


def applied(db: dolmen.Database, queue: Path) -> None:
    """What the delete function does with the messages there are."""
    for path in sorted(queue.glob("*.json")):
        outcomes = apply_deletes(db, [parse_request(path.read_text(), path.name)]).outcomes
        assert [outcome.error for outcome in outcomes] == [None]
        path.unlink()


def states(outcome: Any) -> dict[str, Any]:
    return {one["request_id"]: (one["state"], one["version"]) for one in json.loads(outcome.out)["requests"]}


def test_a_request_goes_from_the_queue_into_a_version_and_its_status_says_so(
    cli: Cli, db: dolmen.Database, queue: Path
) -> None:
    sent = cli("request-delete", "events", "--where", "user_id = 1")
    request_id = sent.out.strip()
    assert (sent.code, len(request_id), "checked against version 4" in sent.err) == (0, 32, True), sent
    assert messages(queue) == [{"table": "events", "where": "user_id = 1", "request_id": request_id}]
    waiting = cli("request-status", request_id, "--json")
    assert (waiting.code, states(waiting)) == (4, {request_id: ("waiting", None)})
    applied(db, queue)
    done = cli("request-status", request_id, "--json")
    assert (done.code, states(done)) == (0, {request_id: ("applied", 5)})
    assert db.table("events").count() == 6
    assert "applied" in cli("request-status", request_id).out


def test_every_form_of_a_delete_becomes_a_message_that_does_it(
    cli: Cli, db: dolmen.Database, queue: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.csv"
    keys.write_text("user_id,code\n0,00\n1,07\n")
    pq.write_table(pa.table({"id": [5]}), tmp_path / "keys.parquet")
    for arguments in (
        ["events", "sessions", "--where", "id = 8", "--request-id", "erase 8"],
        ["events", "--keys", "1, 2"],
        ["events", "--keys", "03", "--on", "code"],
        ["events", "--keys-file", keys, "--on", "user_id,code"],
        ["events", "--keys-file", tmp_path / "keys.parquet", "--on", "id"],
        ["sessions", "--where", "TRUE", "--mode", "positions"],
    ):
        assert cli("request-delete", *arguments, "--json").code == 0, arguments
    said = [{name: value for name, value in message.items() if name != "request_id"} for message in messages(queue)]
    assert said == [
        {"tables": ["events", "sessions"], "where": "id = 8"},
        {"table": "events", "keys": [1, 2]},
        {"table": "events", "keys": ["03"], "on": ["code"]},
        {"table": "events", "keys": [[0, "00"], [1, "07"]], "on": ["user_id", "code"]},
        {"table": "events", "keys": [5], "on": ["id"]},
        {"table": "sessions", "where": "TRUE", "mode": "positions"},
    ]
    applied(db, queue)
    assert sorted(db.table("events").scan(["id"]).to_arrow()["id"].to_pylist()) == [4, 6]
    assert db.table("sessions").count() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "phrase"),
    [
        (["events"], 2, "one of"),
        (["events", "--where", "id = 1", "--keys", "1"], 2, "one of"),
        (["events", "--where", "nope = 1"], 2, "nope"),
        (["events", "--where", "id ="], 2, "character"),
        (["events", "--where", " "], 2, "where"),
        (["absent", "--where", "id = 1"], 3, "absent"),
        (["events", "absent", "--where", "id = 1"], 3, "absent"),
        (["Bad-Name", "--where", "id = 1"], 2, "Bad-Name"),
        (["events", "events", "--where", "id = 1"], 2, "twice"),
        (["events", "--keys", "x"], 2, "x"),
        (["events", "--keys", "1", "--mode", "positions"], 2, "where"),
        (["events", "--where", "id = 1", "--mode", "quickly"], 2, "quickly"),
        (["events", "--where", "id = 1", "--on", "id"], 2, "keys"),
        (["events", "--where", "id = 1", "--request-id", "s3://x"], 2, "s3://"),
        (["events", "--where", "id = 1", "--request-id", ""], 2, "1 to 256"),
        (["events", "--keys", "2025-01-01", "--on", "at"], 2, "--where"),
        (["events", "--where", "id = 1", "--queue", "/no/such/directory"], 3, "dolmen local"),
        (["events", "--where", "id = 1", "--queue", "ftp://x/y"], 2, "not a queue"),
    ],
)
def test_what_cannot_be_applied_is_not_sent(
    cli: Cli, db: dolmen.Database, queue: Path, arguments: list[str], code: int, phrase: str
) -> None:
    refused = cli("request-delete", *arguments)
    assert (refused.code, phrase in " ".join(refused.err.split())) == (code, True), refused
    assert messages(queue) == []
    assert db.refresh() == 4, "and a check changes nothing"


def test_without_a_database_only_the_text_is_checked_and_it_is_said(
    cli: Cli, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOLMEN_DATABASE")
    sent = cli("request-delete", "events", "--where", "id = 1")
    assert (sent.code, "not checked" in sent.err) == (0, True)
    refused = cli("request-delete", "events", "--keys", "1")
    assert (refused.code, "--database" in refused.err) == (2, True)
    keys = tmp_path / "keys.csv"
    keys.write_text("id\n1\n")
    assert cli("request-delete", "events", "--keys-file", keys).code == 0
    assert [message.get("keys") for message in messages(queue)] == [None, [1]]


def test_another_request_under_a_used_id_is_refused_and_the_same_one_is_not(
    cli: Cli, db: dolmen.Database, queue: Path
) -> None:
    assert cli("request-delete", "events", "--where", "id = 1", "--request-id", "r").code == 0
    applied(db, queue)
    refused = cli("request-delete", "events", "--where", "id = 2", "--request-id", "r")
    assert (refused.code, "version 5" in " ".join(refused.err.split())) == (2, True)
    assert cli("request-delete", "events", "--where", "id = 1", "--request-id", "r").code == 0
    applied(db, queue)
    assert (db.refresh(), db.table("events").count()) == (5, 8)


@pytest.mark.slow
def test_the_queue_of_sqs_takes_requests_and_a_too_large_one_is_told_what_to_do(
    cli: Cli, db: dolmen.Database, ministack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in endpoint_environment(ministack).items():
        monkeypatch.setenv(name, value)
    sqs, name = boto3_client("sqs", ministack), f"requests-{next(_names)}"
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5})
    url = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": redrive})["QueueUrl"]
    sqs.send_message(QueueUrl=dead, MessageBody="given up")
    monkeypatch.setenv("DOLMEN_DELETE_QUEUE", url)
    assert cli("request-delete", "events", "--where", "id = 1", "--request-id", "r1").code == 0
    status = cli("request-status", "r1", "--json")
    told = json.loads(status.out)
    assert (status.code, states(status)) == (4, {"r1": ("unknown", None)}), "a queue of SQS cannot be looked into"
    assert told["queue"] == {"waiting": 1, "under_way": 0, "dead": 1}
    shown = " ".join(cli("request-status", "r1").err.split())
    assert all(part in shown for part in ("dead-letter", "about 1 waiting", "1 given up", f"{name}-dead"))
    [message] = sqs.receive_message(QueueUrl=url)["Messages"]
    apply_deletes(db, [parse_request(message["Body"], None)])
    assert states(cli("request-status", "r1", "--json")) == {"r1": ("applied", 5)}

    keys = tmp_path / "keys.parquet"
    pq.write_table(pa.table({"id": pa.array(range(200_000), pa.int64())}), keys)
    refused = cli("request-delete", "events", "--keys-file", keys)
    text = " ".join(refused.err.split())
    assert (refused.code, "1,048,576" in text, "--where" in text, "dolmen delete" in text) == (2, True, True, True)
    part = int(text.split("at most about ")[1].split()[0].replace(",", ""))
    body = compose(["events"], keys=list(range(200_000 - part, 200_000)), request_id="x" * 32)
    assert len(body) < MAX_SQS_BYTES, "what it advises fits"
    assert part > 100_000


@pytest.mark.slow
def test_a_request_that_was_given_up_says_why_and_sent_again_it_waits(
    cli: Cli, db: dolmen.Database, queue: Path
) -> None:
    """By the local pipeline, which keeps dead letters beside the queue."""
    assert cli("request-delete", "events", "--where", "id = 1", "--request-id", "good").code == 0
    assert cli("request-delete", "sessions", "--where", "id = 1", "--request-id", "bad").code == 0
    db.drop_table("sessions")
    local_once(queue.parent, queue.parent / "db")
    status = cli("request-status", "good", "bad", "never", "--json")
    assert status.code == 2
    assert states(status) == {"good": ("applied", 6), "bad": ("failed", None), "never": ("unknown", None)}
    [reason] = [one["reason"] for one in json.loads(status.out)["requests"] if one["request_id"] == "bad"]
    assert "sessions" in reason
    db.create_table("sessions", pa.schema([("id", pa.int64())]))
    assert cli("request-delete", "sessions", "--where", "id = 1", "--request-id", "bad").code == 0
    again = cli("request-status", "bad", "--json")
    assert (again.code, states(again)) == (4, {"bad": ("waiting", None)})
    (queue / "broken.json").write_text("[")
    (queue / "other.json").write_text("[1]")
    assert states(cli("request-status", "bad", "--json")) == {"bad": ("waiting", None)}


def test_waiting_ends_when_all_are_applied_or_the_time_is_over(
    cli: Cli, db: dolmen.Database, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("request-delete", "events", "--where", "id = 1", "--request-id", "r")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            applied(dolmen.open(db.url), queue)

    monkeypatch.setattr("dolmen.api.database.shared_runtime", partial(Runtime, sleep=sleep))
    assert cli("request-status", "r", "--wait", "3600", "--json").code == 0
    assert slept == [0.2, 0.4, 0.8]
    assert cli("request-status", "r", "--json").code == 0
    assert len(slept) == 3, "nor is anything waited for without --wait"


def test_one_that_may_have_been_sent_is_repeated_under_the_same_id(
    cli: Cli, db: dolmen.Database, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: DirectoryQueue, bodies: Any) -> None:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(DirectoryQueue, "send", lost)
    outcome = cli("request-delete", "events", "--where", "id = 1")
    assert outcome.code == 4
    assert "--request-id" in outcome.err

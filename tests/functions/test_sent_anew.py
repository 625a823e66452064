"""What becomes of messages that are not done, with queues of a real server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from dolmen.base.records import replace
from dolmen.ingest.batch import MAX_TABLE_TRIES
from dolmen.ingest.queues import OutgoingMessage, SqsQueue
from dolmen.service.functions import deliveries
from dolmen.service.functions.deliveries import MAX_CRASHES, MAX_FAILURES
from support.black_hole import black_hole
from support.event_builders import notification
from support.functions import World, use_queues
from support.ministack import boto3_client, endpoint_environment

HEAD = "id,user_id,kind\n"
_names = itertools.count()


@dataclass
class Queues:
    """A function's queue and its dead letters, and the function behind them."""

    world: World
    function: str
    sqs: Any
    own: str
    dead: str

    def send(self, *bodies: Any, **attributes: str) -> None:
        for body in bodies:
            text = body if isinstance(body, str) else json.dumps(body)
            said = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
            self.sqs.send_message(QueueUrl=self.own, MessageBody=text, MessageAttributes=said)

    def receive(self, url: str | None = None) -> list[dict[str, Any]]:
        """What is visible, delivered; as the server tells it."""
        found: list[dict[str, Any]] = []
        while more := self.sqs.receive_message(
            QueueUrl=url or self.own,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        ).get("Messages"):
            found += more
        return found

    def invoke(self, *, crashes: int = 0) -> tuple[list[dict[str, Any]], list[str]]:
        """Delivers what is visible to the function, and deletes what it does not name, as Lambda does.

        Args:
            crashes: how many deliveries nobody answered before.

        Returns:
            The records, and the ids that are to be delivered again.
        """
        records = [self._record(message, crashes) for message in self.receive()]
        failed = self.world.invoke(self.function, {"Records": records})
        for record in records:
            if record["messageId"] not in failed:
                with suppress(self.sqs.exceptions.ReceiptHandleIsInvalid):  # taken off by the function itself
                    self.sqs.delete_message(QueueUrl=self.own, ReceiptHandle=record["receiptHandle"])
        return records, failed

    def _record(self, message: dict[str, Any], crashes: int) -> dict[str, Any]:
        count = int(message["Attributes"]["ApproximateReceiveCount"]) + crashes
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"] | {"ApproximateReceiveCount": str(count)},
            "messageAttributes": {
                name: {"stringValue": value["StringValue"], "dataType": value["DataType"]}
                for name, value in message.get("MessageAttributes", {}).items()
            },
            "eventSource": "aws:sqs",
        }

    def letters(self) -> list[tuple[str, str]]:
        """The dead letters: their bodies and reasons."""
        return [
            (message["Body"], message["MessageAttributes"]["dolmen.reason"]["StringValue"])
            for message in self.receive(self.dead)
        ]


@pytest.fixture
def queues(world: World, ministack: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Queues]]:
    sqs = boto3_client("sqs", ministack)
    for name, value in endpoint_environment(ministack).items():
        monkeypatch.setenv(name, value)

    def make(function: str) -> Queues:
        own, dead = (sqs.create_queue(QueueName=f"anew-{next(_names)}")["QueueUrl"] for _ in range(2))
        monkeypatch.setenv(f"DOLMEN_{function.upper()}_QUEUE", own)
        monkeypatch.setenv("DOLMEN_DEAD_LETTERS", dead)
        return Queues(world, function, sqs, own, dead)

    world.create()
    yield make
    for url in sqs.list_queues(QueueNamePrefix="anew-").get("QueueUrls", []):
        sqs.delete_queue(QueueUrl=url)


def test_what_was_not_begun_is_there_again_at_once_as_new(queues: Callable[[str], Queues], world: World) -> None:
    ingest = queues("ingest")
    ingest.send(*(notification(world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n")) for n in range(3)))
    world.context.remaining_ms = [300_000, 100_000]
    for left in (2, 1, 0):
        records, failed = ingest.invoke()
        assert (len(records), failed) == (left + 1, [])
        assert {record["attributes"]["ApproximateReceiveCount"] for record in records} == {"1"}
        assert len(world.ids()) == 3 - left
        world.context.remaining_ms = [300_000, 100_000]
    assert ingest.receive() == []
    assert ingest.letters() == []


def test_a_drop_without_a_table_is_sent_anew_later_and_later_and_then_rejected(
    queues: Callable[[str], Queues], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[int] = []
    original = SqsQueue.put

    def without_delay(self: SqsQueue, messages: Sequence[OutgoingMessage]) -> None:
        delays.extend(message.delay_seconds for message in messages)
        original(self, [replace(message, delay_seconds=0) for message in messages])

    monkeypatch.setattr(SqsQueue, "put", without_delay)
    ingest = queues("ingest")
    there, nowhere = (notification(world.drop(f"{table}/a.csv", f"{HEAD}1,1,x\n")) for table in ("events", "nowhere"))
    ingest.send(there, nowhere)
    for number in range(MAX_TABLE_TRIES):
        records, failed = ingest.invoke()
        assert (len(records), failed) == (2 if number == 0 else 1, [])
        assert world.ids() == [1], "nobody waits with it"
        assert len(world.rejects()) == (number == MAX_TABLE_TRIES - 1)
    assert delays == [30, 60, 120]
    assert [facts["tries_left"] for facts in world.log_entries("drop waiting")] == [3, 2, 1]
    assert "no table 'nowhere'" in world.log_entries("drop waiting")[0]["reason"]
    assert len(world.log_entries("drop rejected")) == 1
    assert (ingest.receive(), ingest.letters()) == ([], [])


@pytest.mark.slow
def test_a_drop_whose_table_is_created_while_it_waits_is_ingested(
    queues: Callable[[str], Queues], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "FIRST_WAIT_SECONDS", 0)
    ingest = queues("ingest")
    ingest.send(notification(world.drop("later/a.csv", f"{HEAD}7,1,x\n")))
    ingest.invoke()
    world.create("later")
    ingest.invoke()
    assert world.ids("later") == [7]
    assert (world.rejects(), ingest.letters()) == ({}, [])


def test_a_request_without_an_id_keeps_its_message_id_when_it_is_sent_anew(
    queues: Callable[[str], Queues], world: World
) -> None:
    delete = queues("delete")
    delete.send({"table": "events", "keys": [1]}, {"table": "events", "keys": [2]})
    world.context.remaining_ms = [60_000, 20_000]
    first, _ = delete.invoke()
    world.context.remaining_ms = [60_000]
    second, _ = delete.invoke()
    [left] = second
    told = [facts["request_id"] for facts in world.log_entries("delete applied")]
    assert sorted(told) == sorted(record["messageId"] for record in first)
    assert left["messageId"] not in told


def test_what_can_never_be_applied_is_given_up_at_once_and_says_why(
    queues: Callable[[str], Queues], world: World
) -> None:
    delete = queues("delete")
    bodies = ["{", json.dumps({"table": "nowhere", "keys": [1]}), json.dumps({"table": "events", "where": "idd = 7"})]
    delete.send(*bodies, {"table": "events", "keys": [1]})
    assert delete.invoke()[1] == []
    assert delete.receive() == []
    letters = dict(delete.letters())
    assert set(letters) == set(bodies)
    assert letters[bodies[0]].startswith("MessageError: not JSON")
    assert "no table 'nowhere'" in letters[bodies[1]]
    assert len(world.log_entries("delete applied")) == 1
    assert len(world.log_entries("message given up")) == 3


def test_a_malformed_event_is_given_up_at_once(queues: Callable[[str], Queues], world: World) -> None:
    ingest = queues("ingest")
    ingest.send("{", notification(world.drop("events/a.csv", f"{HEAD}1,1,x\n")))
    assert ingest.invoke()[1] == []
    assert world.ids() == [1]
    assert [body for body, _ in ingest.letters()] == ["{"]


@pytest.mark.slow
def test_what_fails_for_the_moment_waits_longer_each_time_and_is_given_up_in_the_end(
    queues: Callable[[str], Queues], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = queues("ingest")
    sent: list[Any] = []
    record = notification(world.drop("events/a.csv", f"{HEAD}1,1,x\n"))

    def fail(*args: object, **others: object) -> None:
        raise OSError("the network is down")

    monkeypatch.setattr("dolmen.ingest.landing.Landing.open", fail)

    class Hasty:
        """The queue, whose delays are noted and left out."""

        def __init__(self, queue: Any) -> None:
            self.queue = queue

        def put(self, messages: Any) -> None:
            sent.extend(message.delay_seconds for message in messages)
            self.queue.put([type(message)(message.body, message.attributes) for message in messages])

    use_queues(world.functions["ingest"], lambda queues: tuple(map(Hasty, queues or ())))
    ingest.send(record)
    for _ in range(MAX_FAILURES):
        assert ingest.invoke()[1] == []
    assert sent == [30, 60, 120, 240, 480, *[900] * 10, 0]
    assert sum(sent) > 2.5 * 3600
    assert ingest.receive() == []
    [(body, reason)] = ingest.letters()
    assert json.loads(body) == record
    assert reason.startswith("OSError: ")
    assert "network" not in reason  # of a bug nothing is said but its kind and place


def test_after_a_death_the_others_go_back_before_suspects_are_begun(
    queues: Callable[[str], Queues], world: World
) -> None:
    ingest = queues("ingest")
    ingest.send(*(notification(world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n")) for n in range(12)))
    records, failed = ingest.invoke(crashes=1)
    assert (len(records), failed) == (12, [])
    assert len(world.ids()) == 10  # ten suspects together
    again = ingest.receive()
    assert [message["MessageAttributes"]["dolmen.crashes"]["StringValue"] for message in again] == ["1", "1"]
    for message in again:
        ingest.sqs.change_message_visibility(
            QueueUrl=ingest.own, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    ingest.invoke(crashes=1)  # of these, too, the function has died: alone now
    assert len(world.ids()) == 11
    ingest.invoke()
    assert len(world.ids()) == 12
    assert ingest.receive() == []


def test_a_message_of_which_the_function_died_again_and_again_is_given_up(
    queues: Callable[[str], Queues], world: World
) -> None:
    ingest = queues("ingest")
    ingest.send(notification(world.drop("events/a.csv", f"{HEAD}1,1,x\n")))
    assert ingest.invoke(crashes=MAX_CRASHES)[1] == []
    assert world.ids() == []
    assert ingest.receive() == []
    [(_, reason)] = ingest.letters()
    assert f"died {MAX_CRASHES} times" in reason


@pytest.mark.slow
def test_without_an_answer_from_sqs_the_queue_delivers_again(
    queues: Callable[[str], Queues], world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    delete = queues("delete")
    delete.send("{", "[", {"table": "events", "keys": [1]})
    with black_hole() as hole:
        monkeypatch.setenv("DOLMEN_DELETE_QUEUE", f"{hole.endpoint}/1/q")
        monkeypatch.setenv("DOLMEN_DEAD_LETTERS", f"{hole.endpoint}/1/dead")
        _, failed = delete.invoke()
        assert len(failed) == 2
        assert len(hole.requests) == 1, hole.requests
    assert len(world.log_entries("delete applied")) == 1
    assert world.log_entries("queue not reached")[0]["error"] == "StoreUnavailableError"
    [line] = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if "QueueErrors" in line]
    assert line["QueueErrors"] == [1.0]


def test_attributes_that_somebody_made_up_do_no_harm(queues: Callable[[str], Queues], world: World) -> None:
    delete = queues("delete")
    made_up = {
        "dolmen.id": "s3://drops/a#b",
        "dolmen.failures": "-7",
        "dolmen.crashes": "many",
        "dolmen.sent": "9" * 30,
    }
    delete.send({"table": "events", "keys": [1]}, **made_up)
    [record], failed = delete.invoke()
    assert failed == []
    assert [facts["request_id"] for facts in world.log_entries("delete applied")] == [record["messageId"]]

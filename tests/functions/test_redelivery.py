"""Whatever is delivered how often in which batches is applied once."""

from __future__ import annotations

import os
import random

import pytest

from dolmen import Database, Transaction
from dolmen.ingest.batch import MAX_TABLE_TRIES
from support.event_builders import notification, sqs_event
from support.functions import World, load
from support.proxy import Proxy

HEAD = "id,user_id,kind\n"


def test_thousands_of_duplicates_are_ingested_once(world: World) -> None:
    """One list of 4,279 events of S3 had 2,508 unique ones (delta-rs' oxbow); the same proportion here."""
    seed = int(os.environ.get("DOLMEN_TEST_SEED", "33"))
    print(f"seed {seed}")
    dice = random.Random(seed)
    world.create()
    records = [world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n", sequencer=f"{n:02X}") for n in range(25)]
    events = records + [dice.choice(records) for _ in range(18)]
    dice.shuffle(events)
    for start in range(0, len(events), 10):
        assert world.ingest(*events[start : start + 10]) == []
    assert world.ids() == list(range(25))
    assert len(world.log_entries("drop duplicate")) == 18
    assert world.versions("ingest") <= 5


@pytest.mark.parametrize("container", ["warm", "new"])
def test_half_of_a_batch_that_was_applied_before_is_left_out(world: World, container: str) -> None:
    """A; then A and B together; then B."""
    world.create()
    a, b = (world.drop(f"events/{name}.csv", f"{HEAD}{n},1,x\n") for n, name in enumerate("ab", 1))
    for batch in ([a], [a, b], [b], [b, a]):
        if container == "new":
            world.restart()
        assert world.ingest(*batch) == []
    assert world.ids() == [1, 2]
    assert world.versions("ingest") == 2


def test_half_of_a_batch_that_another_worker_applies_meanwhile_is_left_out(world: World) -> None:
    """The other worker commits A between this worker's look at the pointer and its commit of A and B."""
    world.create()
    a, b = (world.drop(f"events/{name}.csv", f"{HEAD}{n},1,x\n") for n, name in enumerate("ab", 1))
    other = load("ingest")
    original = Database.transaction

    def the_other_is_faster(database: Database, *args: str) -> Transaction:
        transaction = original(database, *args)
        with pytest.MonkeyPatch.context() as undone:
            undone.setattr(Database, "transaction", original)
            answer = other.lambda_handler(sqs_event([notification(a)]), world.context)
            assert answer == {"batchItemFailures": []}
        return transaction

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "transaction", the_other_is_faster)
        assert world.ingest(a, b) == []
    assert [facts["version"] for facts in world.log_entries("drop duplicate")] == [2]
    assert world.ids() == [1, 2]
    assert world.versions("ingest") == 2


def test_a_lost_response_to_the_commit_fails_nobody(s3_world: World, proxy: Proxy) -> None:
    s3_world.create()
    records = [s3_world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n") for n in (1, 2)]
    proxy.rule("lose", method="PUT", key="_latest_manifest")
    assert s3_world.ingest(*records) == []
    assert s3_world.ids() == [1, 2]
    assert s3_world.versions("ingest") == 1


@pytest.mark.slow
def test_a_commit_that_fails_fails_exactly_the_records_in_it(s3_world: World, proxy: Proxy) -> None:
    s3_world.create()
    done = s3_world.drop("events/done.csv", f"{HEAD}0,1,x\n")
    assert s3_world.ingest(done) == []
    good = [s3_world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n") for n in (1, 2)]
    bad = s3_world.drop("events/bad.csv", f"{HEAD}x,1,x\n")
    proxy.rule("forbid", method="PUT", key="_latest_manifest", times=None)
    assert s3_world.ingest(done, good[0], bad, good[1]) == ["message-1", "message-2", "message-3"]
    assert (s3_world.ids(), s3_world.rejects()) == ([0], {})
    proxy.reset()
    assert s3_world.ingest(bad, *good) == []
    assert s3_world.ids() == [0, 1, 2]
    assert list(s3_world.rejects()) == [
        s3_world.log_entries("drop rejected")[0]["rejected_to"].rpartition("rejected/")[2]
    ]


def test_a_store_that_fails_for_the_moment_rejects_nothing(s3_world: World, proxy: Proxy) -> None:
    s3_world.create()
    records = [s3_world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n") for n in (1, 2)]
    proxy.rule("forbid", method="GET", key="landing/events/1.csv", times=None)
    assert s3_world.ingest(*records) == ["message-0"]
    assert s3_world.ids() == [2]
    proxy.reset()
    assert s3_world.ingest(*records) == []
    assert s3_world.ids() == [1, 2]
    assert s3_world.rejects() == {}


def test_rejects_that_cannot_be_written_are_not_acknowledged(s3_world: World, proxy: Proxy) -> None:
    s3_world.create()
    bad, good = s3_world.drop("events/bad.csv", f"{HEAD}x,1,x\n"), s3_world.drop("events/good.csv", f"{HEAD}1,1,x\n")
    proxy.rule("forbid", method="PUT", key=".error.json", times=None)
    assert s3_world.ingest(bad, good) == ["message-0"]
    proxy.reset()
    assert s3_world.ingest(bad) == []  # meets its own copy of the first time
    assert [report["line"] for report in s3_world.rejects().values()] == [2]
    assert s3_world.ids() == [1]


def test_the_same_request_id_with_another_body_is_reported(world: World) -> None:
    world.create()
    world.ingest(world.drop("events/a.csv", f"{HEAD}1,1,x\n2,2,x\n3,3,x\n"))
    first, other = ({"table": "events", "keys": [n], "request_id": "r"} for n in (1, 2))
    assert world.delete(first, ids=["m1"]) == []
    assert world.delete(other, {"table": "events", "keys": [3]}, ids=["m2", "m3"]) == ["m2"]
    assert world.ids() == [2]
    assert "other content" in world.log_entries("delete failed")[0]["reason"]
    world.restart()
    assert world.delete(first, other, ids=["m1", "m2"]) == ["m2"]
    assert world.ids() == [2]


def test_a_request_that_was_applied_without_a_digest_is_a_duplicate_whatever_its_body_says(world: World) -> None:
    world.create()
    with world.database.transaction() as tx:
        tx.bind("r", "")
        tx.table("events").append([{"id": 1, "user_id": 1, "kind": "x"}], request="r")
    assert world.delete({"table": "events", "keys": [1], "request_id": "r"}) == []
    assert world.ids() == [1]


def test_the_same_request_id_with_two_bodies_in_one_batch_is_reported_for_the_second(world: World) -> None:
    world.create()
    world.ingest(world.drop("events/a.csv", f"{HEAD}1,1,x\n2,2,x\n"))
    bodies = [{"table": "events", "keys": [n], "request_id": "r"} for n in (1, 2, 1)]
    assert world.delete(*bodies) == ["message-1"]
    assert world.ids() == [2]


def test_a_delete_delivered_again_spares_rows_that_came_since(world: World) -> None:
    world.create()
    world.ingest(world.drop("events/a.csv", f"{HEAD}1,42,x\n"))
    delete = {"table": "events", "where": {"user_id": 42}}
    assert world.delete(delete, ids=["m1"]) == []
    world.ingest(world.drop("events/b.csv", f"{HEAD}2,42,x\n"))
    assert world.delete(delete, ids=["m1"]) == []
    assert world.ids() == [2]
    assert world.delete(delete, ids=["m2"]) == []  # another message is another request
    assert world.ids() == []


def test_a_file_that_overtakes_an_erasure_brings_its_rows_back_until_the_request_is_sent_under_a_new_id(
    world: World,
) -> None:
    """As docs/ingest.md says; this is to fail once a request holds for files dropped before it."""
    world.create()
    late = world.drop("events/a.csv", f"{HEAD}1,42,x\n")
    erasure = {"table": "events", "where": {"user_id": 42}, "request_id": "erasure-1"}
    assert world.delete(erasure) == []
    assert world.ingest(late) == []
    assert world.ids() == [1]
    assert world.delete(erasure) == []
    assert world.ids() == [1]
    assert world.delete(erasure | {"request_id": "erasure-1-again"}) == []
    assert world.ids() == []


def test_an_applied_drop_is_known_after_its_file_is_gone(world: World) -> None:
    world.create()
    record = world.drop("events/a.csv", f"{HEAD}1,1,x\n")
    world.ingest(record)
    world.landing.delete(["landing/events/a.csv"])
    world.restart()
    assert world.ingest(record) == []
    assert [facts["version"] for facts in world.log_entries("drop duplicate")] == [2]
    assert world.ids() == [1]


def test_a_rejected_event_stays_rejected_and_the_file_dropped_again_goes_in_once(world: World) -> None:
    first = world.drop("events/a.csv", f"{HEAD}1,1,x\n", sequencer="01")
    assert world.ingest(first, tries=MAX_TABLE_TRIES) == []
    assert "no table 'events'" in next(iter(world.rejects().values()))["reason"]
    world.create()
    again = world.drop("events/a.csv", f"{HEAD}1,1,x\n", sequencer="02")
    for record in (first, again, first, again):
        assert world.ingest(record) == []
    assert world.ids() == [1]
    assert len(world.rejects()) == 1

"""One event delivered twice while its table is being created, in every order of the requests, and with every crash."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from hashlib import md5
from random import Random

import pytest

from dolmen.database import Database
from dolmen.errors import TableNotFoundError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops import ingest as drops
from dolmen.ingest.drops.ingest import ingest_drops
from dolmen.ingest.drops.outcomes import IngestResult
from dolmen.ingest.landing import Landing
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectStore
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.store.s3.store import S3Store
from dolmen_simulator.interleavings.checks import SCHEMA, Pair, PairedCall, rows_of, undisturbed_database
from dolmen_simulator.interleavings.enumeration import Enumeration
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.search import Search
from dolmen_simulator.interleavings.steps import Fault
from dolmen_simulator.world.fates import Fate, Wire
from dolmen_simulator.world.server import Server
from dolmen_simulator.world.wire import SimulatedSession, SimulatedStore

BODY = b'{"k": 1, "v": 10, "t": null}\n'
KEY = "landing/t/a.jsonl"
DROP = Drop("simulation", KEY, len(BODY), md5(BODY, usedforsecurity=False).hexdigest(), sequencer="01")
URL = f"s3://{DROP.bucket}"
_FATES = (Fate.CRASH_AFTER, Fate.RESPONSE_LOST)


def another_table(db: Database) -> None:
    db.create_table("other", SCHEMA)
    assert isinstance(db.context.store, MemoryStore)
    db.context.store.put(KEY, BODY)


def landing_of(store: SimulatedStore, server: Server, who: str) -> Landing:
    """The landing place, in the same bucket, reached like the database."""
    stores: dict[str, ObjectStore] = {}
    for url, prefix in ((URL, ""), (f"{URL}/rejected", "rejected")):
        session = SimulatedSession(server, who)
        stores[url] = shore = S3Store(DROP.bucket, prefix, runtime=store.runtime, session=session)
        shore.connection = store.connection
    return Landing("simulation:", runtime=store.runtime, _stores=stores)


def ingest(peer: Peer) -> IngestResult:
    return ingest_drops(peer.db, landing_of(peer.store, peer._execution.server, str(peer._number)), [DROP])


def create_and_ingest(peer: Peer) -> IngestResult:
    peer.db.create_table("t", SCHEMA)
    return ingest(peer)


PAIR = Pair(
    "delivery/delivery",
    another_table,
    (
        PairedCall("create the table, ingest", create_and_ingest, lambda model: None),
        PairedCall("ingest", ingest, lambda model: None),
    ),
)


def deliver_again(bucket: MemoryBucket) -> str:
    """What becomes of the event when it comes again, and nobody else is there."""
    runtime = Runtime(bucket.clock_us, lambda: bucket.clock_us() / 1e6, lambda seconds: None, Random(0), threads=1)
    server = Server(bucket, Wire())
    store = SimulatedStore(server, "again", runtime)
    return ingest_drops(Database(store, runtime), landing_of(store, server, "again"), [DROP]).outcomes[0].status


def check(execution: Execution) -> tuple[str, ...]:
    """What is not acknowledged comes again; then the file is in once, or rejected, and not both."""
    bucket, told = execution.bucket, []
    for outcome in execution.outcomes:
        assert outcome.kind in ("done", "crashed"), outcome
        done = outcome.value.outcomes[0] if outcome.kind == "done" else None
        told.append(done.status if done and done.status != "failed" else f"again: {deliver_again(bucket)}")
    db = undisturbed_database(bucket)
    try:
        rows = rows_of(db.table("t").to_arrow())
    except TableNotFoundError:
        rows = []
    reports = [json.loads(there.body) for key, there in bucket.objects.items() if key.endswith(".error.json")]
    withdrawn = ["withdrawn" in report for report in reports]
    at = f"{told} {withdrawn} {execution.choices} {execution.fault}"
    assert len(rows) <= 1, at
    assert withdrawn in ([], [True]) if rows else withdrawn == [False], at
    return (*told, f"{len(reports)} reports")


def ends() -> Counter[tuple[str, ...]]:
    """What all executions come to; also with a crash, or without an answer, after a request that changes something."""
    enumeration = Enumeration(PAIR)
    found = Counter[tuple[str, ...]]()
    faults: dict[Fault, None] = {}
    for execution in Search(enumeration.start):
        found[check(execution)] += 1
        for task, requests in enumerate(execution.requests):
            writes = [at for at, request in enumerate(requests) if not request.verb.reads]
            faults.update({Fault(task, at, fate): None for at in writes for fate in _FATES})
    for fault in faults:
        for execution in Search(partial(enumeration.start, fault)):
            if execution.struck:
                found[check(execution)] += 1
    return found


def test_a_file_is_not_both_ingested_and_rejected() -> None:
    found = ends()
    assert found["ingested", "rejected", "1 reports"], "withdrawn by who has ingested it"
    assert found["ingested", "duplicate", "1 reports"], "withdrawn by who has rejected it"
    assert found["ingested", "duplicate", "0 reports"]
    assert sum(found.values()) >= 80


@pytest.mark.parametrize(("look", "without"), [("look_for_commits", 2), ("look_for_reports", 2)])
def test_without_a_look_of_either_it_would_be(look: str, without: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drops, look, lambda *arguments: arguments[without])
    with pytest.raises(AssertionError, match="rejected"):
        ends()

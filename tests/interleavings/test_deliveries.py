"""One event delivered twice while its table comes, or comes to take new columns, in every order of the requests.

Also with every crash. Each delivery is the last try of its message, or one that lets the file wait for its table. By
default some of the crashes are tried, drawn anew for each seed; the long mode tries all of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial
from hashlib import md5

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.change import Expect
from dolmen.commit.head import context_of
from dolmen.errors import TableNotFoundError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.drop_outcomes import IngestResult
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.landing import Landing
from dolmen.store.base import ObjectStore
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.store.s3.bucket_store import S3Store
from dolmen.transactions.unit_of_work import UnitOfWork
from dolmen_simulator.interleavings.checks import SCHEMA, Pair, PairedCall, rows_of, undisturbed_database
from dolmen_simulator.interleavings.enumeration import Enumeration
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.search import Search
from dolmen_simulator.interleavings.steps import Fault
from dolmen_simulator.world.fates import Fate, Wire
from dolmen_simulator.world.server import Server
from dolmen_simulator.world.wire import SimulatedSession, SimulatedStore

LONG = bool(os.environ.get("DOLMEN_LONG"))
SEED = os.environ["DOLMEN_TEST_SEED"]
CRASHES = 4
"""The number that is tried by default."""

BODY = b'{"k": 1, "v": 10, "t": null}\n'
KEY = "landing/t/a.jsonl"


def drop_of(key: str, body: bytes, sequencer: str) -> Drop:
    return Drop("simulation", key, len(body), md5(body, usedforsecurity=False).hexdigest(), sequencer=sequencer)


DROP = drop_of(KEY, BODY, "01")
OTHER_BODY = b'{"v": 20, "t": null, "k": 2}\n'
OTHER_KEY = "landing/t/b.jsonl"
OTHER = Drop(
    "simulation", OTHER_KEY, len(OTHER_BODY), md5(OTHER_BODY, usedforsecurity=False).hexdigest(), sequencer="02"
)
URL = f"s3://{DROP.bucket}"
_FATES = (Fate.CRASH_AFTER, Fate.RESPONSE_LOST)


def another_table(db: Database) -> None:
    db.create_table("other", SCHEMA)
    assert isinstance(context_of(db).store, MemoryStore)
    context_of(db).store.put(KEY, BODY)


def table_of_fewer_columns(db: Database) -> None:
    db.create_table("t", pa.schema([field for field in SCHEMA if field.name != "v"]))
    assert isinstance(context_of(db).store, MemoryStore)
    context_of(db).store.put(KEY, BODY)


def landing_of(store: SimulatedStore, server: Server, who: str) -> Landing:
    """The landing place, in the same bucket, reached like the database."""
    stores: dict[str, ObjectStore] = {}
    for url, prefix in ((URL, ""), (f"{URL}/rejected", "rejected")):
        session = SimulatedSession(server, who)
        stores[url] = shore = S3Store(DROP.bucket, prefix, runtime=store.runtime, session=session)
        shore.connection = store.connection
    return Landing("simulation:", runtime=store.runtime, _stores=stores)


def ingest(peer: Peer, may_wait: bool) -> IngestResult:
    landing = landing_of(peer.store, peer._execution.server, str(peer._number))
    return ingest_drops(peer.db, landing, [DROP], may_wait=[DROP] if may_wait else [])


def create_and_ingest(peer: Peer, may_wait: bool) -> IngestResult:
    peer.db.create_table("t", SCHEMA)
    return ingest(peer, may_wait)


def two_files(db: Database) -> None:
    another_table(db)
    assert isinstance(context_of(db).store, MemoryStore)
    context_of(db).store.put(OTHER_KEY, OTHER_BODY)


def create_for(peer: Peer, drop: Drop) -> IngestResult:
    landing = landing_of(peer.store, peer._execution.server, str(peer._number))
    return ingest_drops(peer.db, landing, [drop], auto_create=True)


def take_columns_and_ingest(peer: Peer) -> IngestResult:
    peer.db.table("t").set(ingest_new_columns="add")
    return ingest(peer, may_wait=False)


def pair(creator_may_wait: bool, other_may_wait: bool) -> Pair:
    """Two deliveries, the first by a process that creates the table before."""
    create_first = partial(create_and_ingest, may_wait=creator_may_wait)
    return Pair(
        "delivery/delivery",
        another_table,
        (
            PairedCall("create the table, ingest", create_first, lambda model: None),
            PairedCall("ingest", partial(ingest, may_wait=other_may_wait), lambda model: None),
        ),
    )


def columns_pair() -> Pair:
    """Two deliveries of a file with a column that its table lacks; the first process makes the table take it."""
    return Pair(
        "delivery/delivery of a new column",
        table_of_fewer_columns,
        (
            PairedCall("take new columns, ingest", take_columns_and_ingest, lambda model: None),
            PairedCall("ingest", partial(ingest, may_wait=False), lambda model: None),
        ),
    )


def creators_pair(other: Drop) -> Pair:
    """Two deliveries for a table that does not exist, which both create it."""
    return Pair(
        "delivery/delivery that create the table",
        two_files,
        tuple(
            PairedCall(f"create for {drop.key}", partial(create_for, drop=drop), lambda model: None)
            for drop in (DROP, other)
        ),
    )


def deliver_again(bucket: MemoryBucket) -> str:
    """The outcome of the event's last delivery, when nobody else is there."""
    runtime = Runtime(
        bucket.clock_us, lambda: bucket.clock_us() / 1e6, lambda seconds: None, random.Random(0), threads=1
    )
    server = Server(bucket, Wire())
    store = SimulatedStore(server, "again", runtime)
    return ingest_drops(Database(store, runtime), landing_of(store, server, "again"), [DROP]).outcomes[0].status


def check(execution: Execution) -> tuple[str, ...]:
    """What is not acknowledged comes again; the file is in once, or rejected, and never both, at any time."""
    bucket, told = execution.bucket, []
    for outcome in execution.outcomes:
        assert outcome.kind in ("done", "crashed"), outcome
        done = outcome.value.outcomes[0] if outcome.kind == "done" else None
        told.append(done.status if done and done.status not in ("failed", "waiting") else "again")
    at = f"{told} {execution.choices} {execution.fault}"
    rows, reports = content(bucket)
    assert rows + reports <= 1, at
    told = [f"again: {deliver_again(bucket)}" if status == "again" else status for status in told]
    assert content(bucket) in ((1, 0), (0, 1)), at
    assert "ingested" not in told or content(bucket) == (1, 0), at
    return (*told, f"{content(bucket)[1]} reports")


def content(bucket: MemoryBucket) -> tuple[int, int]:
    """The numbers of rows and of reports."""
    try:
        rows = rows_of(undisturbed_database(bucket).table("t").to_arrow())
    except TableNotFoundError:
        rows = []
    return len(rows), sum(key.endswith(".error.json") for key in bucket.objects)


def ends(deliveries: Pair) -> Counter[tuple[str, ...]]:
    """What executions come to, in every order.

    Also with a crash, or without an answer, after a request that changes something.
    """
    enumeration = Enumeration(deliveries)
    found = Counter[tuple[str, ...]]()
    faults: dict[Fault, None] = {}
    for execution in Search(enumeration.start):
        found[check(execution)] += 1
        for task, requests in enumerate(execution.requests):
            writes = [at for at, request in enumerate(requests) if not request.verb.reads]
            faults.update({Fault(task, at, fate): None for at in writes for fate in _FATES})
    drawn = list(faults) if LONG else random.Random(SEED).sample(list(faults), CRASHES)
    for fault in drawn:
        for execution in Search(partial(enumeration.start, fault)):
            if execution.struck:
                found[check(execution)] += 1
    return found


@pytest.mark.slow
def test_a_file_is_not_both_ingested_and_rejected() -> None:
    """At the last try of both."""
    found = ends(pair(creator_may_wait=False, other_may_wait=False))
    assert found["ingested", "duplicate", "0 reports"]
    assert found["rejected", "rejected", "1 reports"], "rejected by a commit before the table was there"
    assert found["ingested", "rejected", "1 reports"] == 0
    assert sum(found.values()) >= 80


def test_of_two_deliveries_that_create_the_table_one_ingests_the_file() -> None:
    found = ends(creators_pair(DROP))
    assert found["ingested", "duplicate", "0 reports"]
    assert not any("rejected" in end for end in found)


def test_two_files_that_create_one_table_agree_on_its_columns() -> None:
    """Each of them has the columns in another order. The second reads its file again, by those of the first."""
    versions = Counter[int]()
    for execution in Search(Enumeration(creators_pair(OTHER)).start):
        assert [outcome.value.outcomes[0].status for outcome in execution.outcomes] == ["ingested", "ingested"]
        db = undisturbed_database(execution.bucket)
        rows = [(row["k"], row["v"]) for row in db.table("t").to_arrow().to_pylist()]
        assert sorted(rows) == [(1, 10), (2, 20)]
        versions[db.version] += 1
    assert len(versions) == 1, "no version has the table alone"


@pytest.mark.slow
@pytest.mark.parametrize("creator_may_wait", [False, True])
def test_a_file_that_waits_is_not_rejected_when_its_table_comes(creator_may_wait: bool) -> None:
    found = ends(pair(creator_may_wait, other_may_wait=True))
    assert found["ingested", "duplicate", "0 reports"]
    assert found["ingested", "again: duplicate", "0 reports"], "one has waited"
    assert not any("rejected" in end for end in found), "by a delivery that is not the last"


@pytest.mark.slow
def test_a_file_with_a_new_column_is_not_both_ingested_and_rejected() -> None:
    """History 96004042: by one delivery each, while the report of the rejection was on its way."""
    found = ends(columns_pair())
    assert found["ingested", "duplicate", "0 reports"]
    assert found["rejected", "rejected", "1 reports"], "rejected by a commit before the settings changed"
    assert found["ingested", "rejected", "1 reports"] == 0
    assert sum(found.values()) >= 40


@pytest.mark.parametrize("deliveries", [pair(creator_may_wait=False, other_may_wait=False), columns_pair()])
def test_without_excluding_the_other_it_would_be_both(monkeypatch: pytest.MonkeyPatch, deliveries: Pair) -> None:
    monkeypatch.setattr(UnitOfWork, "exclude", lambda self, request: None)
    monkeypatch.setattr(Expect, "apply", lambda self, draft, ts: None)
    with pytest.raises(AssertionError, match="rejected"):
        ends(deliveries)

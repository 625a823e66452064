"""Pairs in which a process is behind: the store is out, it is frozen, others go on, or what it knows is old."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dolmen.database import Database
from dolmen.errors import UnknownOutcomeError, UnsettledTimestampError
from dolmen.maintenance.gc.collection import collect
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.interleavings.checks import SCHEMA, Pair, Part, Row, Truth, calm, rows_of
from dolmen_simulator.interleavings.execution import MEANWHILE, Execution, Peer
from dolmen_simulator.interleavings.pairs import append, drop, one_table
from dolmen_simulator.interleavings.steps import Outcome
from dolmen_simulator.interleavings.upkeep import upkeep

_MOMENT = 5
"""An outage of so many requests is over when an object's creation has just been given up."""

_FOR_GOOD = 1_000_000

_MANY = 66
"""So many versions later none tells of one in its list of the newest commits."""


def frozen(part: Part, hours: float) -> Part:
    """The same by a process that is frozen whenever it waits, as functions are between two events."""

    def task(peer: Peer) -> Any:
        peer.back_off_hours = hours
        return part.task(peer)

    return replace(part, name=f"{part.name}, frozen", task=task)


def left_behind(part: Part) -> Part:
    """The same, which may be told that it can't be known any more what became of it."""
    return replace(part, may={UnknownOutcomeError: others_went_on})


def asking_twice() -> Part:
    """Asks for the rows at the time when it began, and again; says whether answers that were settled are the same."""

    def task(peer: Peer) -> bool:
        began_us = peer.runtime.clock_us()
        answers = [_rows_at(peer.db, began_us) for _ in range(2)]
        return None in answers or answers[0] == answers[1]

    return Part("ask for the rows at a time, twice", task, lambda truth: True)


def _rows_at(db: Database, timestamp_us: int) -> list[Row] | None:
    try:
        return rows_of(db.at(timestamp=timestamp_us, settled=True).table("t").to_arrow())
    except UnsettledTimestampError:
        return None


def create_when_told() -> Part:
    """Creates a table by a handle that knew it, as soon as another one sees none; says what it did."""

    def effect(truth: Truth) -> str:
        if "new" in truth.tables:
            return "it is there"
        truth.tables["new"] = []
        return "created"

    def task(peer: Peer) -> str:
        behind = peer.db
        if "new" in Database(peer.store, peer.runtime).tables():
            return "it is there"
        behind.create_table("new", SCHEMA, primary_key="k")
        return "created"

    return Part("create a table once it is gone", task, effect)


def going_on() -> Part:
    """Others commit until nobody is told of the versions before, and collect those."""

    def task(peer: Peer) -> None:
        peer.meanwhile(f"others commit {_MANY} times and collect", 0.1, _commit_often, _collect)

    return upkeep("go on for long", task)


def _commit_often(bucket: MemoryBucket) -> None:
    db = calm(bucket, "others")
    for number in range(_MANY):
        db.table("t").set(target_file_bytes=1_000_000 + number)


def _collect(bucket: MemoryBucket) -> None:
    collect(calm(bucket, "collector").context)


def others_went_on(execution: Execution, outcome: Outcome) -> bool:
    """Whether others did a lot before the last that this one did."""
    return any(step.at < outcome.last for step in execution.steps if step.waiting.told.startswith(MEANWHILE))


def with_short_memory(db: Database) -> None:
    """Versions expire at once."""
    one_table(db)
    db.set(retention="1m", keep_versions=1)


def with_new(db: Database) -> None:
    """Two tables."""
    one_table(db)
    db.create_table("new", SCHEMA, primary_key="k")


DOUBT: tuple[Pair, ...] = (
    Pair(
        "append in an outage/append",
        one_table,
        (append((4, 40, None)), append((5, 50, None))),
        quick=(0,),
        outages=(_MOMENT, _FOR_GOOD),
    ),
    Pair(
        "frozen append/rows at a time",
        one_table,
        (frozen(append((4, 40, None)), 0.5), asking_twice()),
        hours=5,
        quick=(0,),
    ),
    Pair(
        "append/many commits",
        with_short_memory,
        (left_behind(append((4, 40, None))), going_on()),
        hours=5,
        quick=(0,),
    ),
    Pair("create when told/drop", with_new, (create_when_told(), drop())),
)

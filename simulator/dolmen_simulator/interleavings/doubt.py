"""Pairs with a process that falls behind: in an outage, frozen, beside many other commits, or with an old handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.base.units import utc
from dolmen.commit.head import context_of
from dolmen.errors import UnknownOutcomeError, UnsettledTimestampError
from dolmen.maintenance.gc.collection import collect
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.interleavings.checks import (
    SCHEMA,
    ExpectedTables,
    Pair,
    PairedCall,
    Row,
    rows_of,
    undisturbed_database,
)
from dolmen_simulator.interleavings.execution import MEANWHILE, Execution, Peer
from dolmen_simulator.interleavings.pairs import append, drop, one_table
from dolmen_simulator.interleavings.steps import TaskOutcome
from dolmen_simulator.interleavings.upkeep import upkeep
from dolmen_simulator.judge.never import Never, ViolationError

MOMENT = 5
"""Requests of an outage that ends just when the creation of an object has been given up."""

FOR_GOOD = 1_000_000
"""Requests of an outage that does not end."""

_MANY = 66
"""Commits after which a version is no longer in the list of the newest commits."""


def freeze(call: PairedCall, hours: float) -> PairedCall:
    """The same call in a process that is frozen whenever it waits, as functions are between two events."""

    def task(peer: Peer) -> Any:
        peer.back_off_hours = hours
        return call.task(peer)

    return replace(call, name=f"{call.name}, frozen", task=task)


def allow_unknown_outcome(call: PairedCall) -> PairedCall:
    """The same call, which may get UnknownOutcomeError after many other commits."""
    return replace(call, allowed_errors={UnknownOutcomeError: others_committed_before})


def read_one_time_twice() -> PairedCall:
    """Reads the rows at the time of its beginning twice; returns whether both settled answers are equal."""

    def task(peer: Peer) -> bool:
        began_us = peer.runtime.clock_us()
        answers = [_rows_at(peer.db, began_us) for _ in range(2)]
        return None in answers or answers[0] == answers[1]

    return PairedCall("ask for the rows at a time, twice", task, lambda model: True)


def _rows_at(db: Database, timestamp_us: int) -> list[Row] | None:
    try:
        return rows_of(db.at(timestamp=timestamp_us, settled=True).table("t").to_arrow())
    except UnsettledTimestampError:
        return None


def append_after_rest(rest: Callable[[Peer], None], row: Row) -> PairedCall:
    """Appends a row in a process that has read the table and rested since. Its commit is not dated before that."""
    call = append(row)

    def task(peer: Peer) -> Any:
        peer.db.table("t").count()
        rest(peer)
        asked = utc(peer.true_us)
        commit = call.task(peer)
        if commit.created_at < asked:
            raise ViolationError(Never.MISDATED, f"{commit} was asked for at {asked}")
        return commit

    return replace(call, task=task)


def create_after_drop() -> PairedCall:
    """Creates a table through a handle that knew it, once another handle sees no such table; returns what it did."""

    def effect(model: ExpectedTables) -> str:
        if "new" in model.tables:
            return "it is there"
        model.tables["new"] = []
        return "created"

    def task(peer: Peer) -> str:
        behind = peer.db
        if "new" in Database(peer.store, peer.runtime).tables():
            return "it is there"
        behind.create_table("new", SCHEMA, primary_key="k")
        return "created"

    return PairedCall("create a table once it is gone", task, effect)


def many_commits() -> PairedCall:
    """Commits until the list of the newest commits has forgotten the versions before, and collects those."""

    def task(peer: Peer) -> None:
        peer.meanwhile(f"others commit {_MANY} times and collect", 0.1, _commit_often, _collect)

    return upkeep("go on for long", task)


def _commit_often(bucket: MemoryBucket) -> None:
    db = undisturbed_database(bucket, "others")
    for number in range(_MANY):
        db.table("t").set(target_file_bytes=1_000_000 + number)


def _collect(bucket: MemoryBucket) -> None:
    collect(context_of(undisturbed_database(bucket, "collector")))


def others_committed_before(execution: Execution, outcome: TaskOutcome) -> bool:
    """Whether others committed many times before this call's last step."""
    return any(step.at < outcome.last for step in execution.steps if step.waiting.description.startswith(MEANWHILE))


def table_with_short_retention(db: Database) -> None:
    """Makes a table in a database whose versions expire at once."""
    one_table(db)
    db.set(retention="1m", keep_versions=1)


def table_and_new(db: Database) -> None:
    """Makes two tables, ``t`` and ``new``."""
    one_table(db)
    db.create_table("new", SCHEMA, primary_key="k")


DOUBT: tuple[Pair, ...] = (
    Pair(
        "append in an outage/append",
        one_table,
        (append((4, 40, None)), append((5, 50, None))),
        quick=(0,),
        outages=(MOMENT, FOR_GOOD),
    ),
    Pair(
        "frozen append/rows at a time",
        one_table,
        (freeze(append((4, 40, None)), 0.5), read_one_time_twice()),
        hours=5,
        quick=(0,),
    ),
    Pair(
        "append of an idle process/append",
        one_table,
        (append_after_rest(lambda peer: peer.wait(0.001), (4, 40, None)), append((5, 50, None))),
        quick=(0,),
    ),
    Pair(
        "append of a frozen machine/append",
        one_table,
        (
            append_after_rest(lambda peer: peer.freeze(0.05, clock_is_set=True), (4, 40, None)),
            append((5, 50, None)),
        ),
        quick=(0,),
    ),
    Pair(
        "append of a machine whose clocks stood still/append",
        one_table,
        (
            append_after_rest(lambda peer: peer.freeze(2, clock_is_set=False), (4, 40, None)),
            append((5, 50, None)),
        ),
        quick=(0,),
    ),
    Pair(
        "append/many commits",
        table_with_short_retention,
        (allow_unknown_outcome(append((4, 40, None))), many_commits()),
        hours=5,
        quick=(0,),
    ),
    Pair("create when told/drop", table_and_new, (create_after_drop(), drop())),
)

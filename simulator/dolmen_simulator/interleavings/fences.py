"""Pairs in which collection lets things expire beside those who have to be held to that, or set it otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from dolmen.database import Database
from dolmen.errors import StaleWriterError, TableExistsError, VersionExpiredError
from dolmen.maintenance.gc.collection import collect
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.interleavings.checks import SCHEMA, Pair, Part, Row, Truth, arrow, calm, rows_of
from dolmen_simulator.interleavings.doubt import frozen, others_went_on
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.pairs import one_table
from dolmen_simulator.interleavings.steps import Outcome
from dolmen_simulator.interleavings.upkeep import (
    OLD,
    collecting_once,
    slow_append,
    swings,
    upkeep,
    with_old_versions,
    with_short_orphans,
)

_WIDE = pa.schema([*SCHEMA, *((f"a_column_with_a_name_of_its_own_{number}", pa.int64()) for number in range(40))])


def collecting_by_other_settings() -> Part:
    """Collects in full after others have collected, and orphans are to live for longer since."""

    def task(peer: Peer) -> None:
        peer.meanwhile("others collect, then let orphans live for longer", 0, _collect_and_prolong)
        collect(peer.context, full=True)

    return upkeep("collect in full by other settings than before", task)


def _collect_and_prolong(bucket: MemoryBucket) -> None:
    db = calm(bucket, "others")
    collect(db.context)
    db.set(orphan_age="12h")


def appending_before_collecting(*rows: Row) -> Part:
    """Adds rows, and collects."""

    def effect(truth: Truth) -> None:
        truth.tables["t"].extend(rows)

    def task(peer: Peer) -> None:
        peer.db.table("t").append(arrow(rows))
        collect(peer.context)

    return Part(f"append {list(rows)}, collect", task, effect, lambda value: None)


def prolonging(version: int, rows: list[Row]) -> Part:
    """Lets versions live for a year, and reads an old one."""

    def task(peer: Peer) -> Any:
        peer.db.set(retention="365d", keep_versions=100)
        return rows_of(peer.db.at(version=version).table("t").to_arrow())

    return Part(
        f"keep versions for a year, read version {version}",
        task,
        lambda truth: rows,
        may={VersionExpiredError: _had_expired},
    )


def creating_wide() -> Part:
    """Creates a table of so many columns that other things have to leave the root; nothing is uploaded for it."""

    def effect(truth: Truth) -> None:
        if "wide" in truth.tables:
            raise TableExistsError("wide")
        truth.tables["wide"] = []

    return Part("create a wide table", lambda peer: peer.db.create_table("wide", _WIDE), effect, lambda value: None)


def _had_expired(execution: Execution, outcome: Outcome) -> bool:
    """Whether a collection let versions expire before they were to be kept for longer."""
    prolonged = swings(execution, by=0)
    return bool(prolonged) and any(at < prolonged[0] for at in swings(execution, by=1))


def with_a_full_root(db: Database) -> None:
    """Orphans are soon removed, and there is room in the root for the next few commits of a usual size."""
    one_table(db)
    db.set(orphan_age="20m", root_bytes=4096)
    for number in (4, 5):
        db.table("t").append(arrow([(number, 10 * number, None)]))


FENCES: tuple[Pair, ...] = (
    Pair(
        "commit/GC by other settings",
        with_short_orphans,
        (
            replace(slow_append((7, 70, None)), may={StaleWriterError: others_went_on}),
            collecting_by_other_settings(),
        ),
        hours=5,
        quick_fates=(),
    ),
    Pair(
        "longer retention/GC",
        with_old_versions,
        (prolonging(3, OLD), collecting_once()),
        hours=5,
        quick_fates=(),
    ),
    Pair(
        "frozen spill/append and GC",
        with_a_full_root,
        (frozen(creating_wide(), 3), appending_before_collecting((7, 70, None))),
        hours=5,
        quick_fates=(),
    ),
)

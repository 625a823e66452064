"""Pairs with tags, restores and clones, beside each other, beside writers, and beside collection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dolmen.api.database import Database
from dolmen.base.records import replace as altered
from dolmen.commit.head import context_of
from dolmen.errors import Error, TableExistsError, TagExistsError, TagNotFoundError, VersionExpiredError
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.gc.collection import collect
from dolmen_simulator.interleavings.checks import ExpectedTables, Pair, PairedCall, Row, arrow, rows_of
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.pairs import FIRST, append, one_table, two_files
from dolmen_simulator.interleavings.steps import TaskOutcome
from dolmen_simulator.interleavings.upkeep import (
    COMPACTION_OPTIONS,
    EXPIRING_SOON,
    OLD,
    compaction,
    one_collection,
    pointer_commits,
    resolution,
    table_with_old_versions,
    table_with_tombstone,
    two_collections,
)
from dolmen_simulator.world.fates import Fate

_TAG = "golden"
_OLD_VERSION = 3
"""The version of ``table_with_old_versions`` that has rows ``OLD``."""
_RESTORED, _KEPT = 4, 6
"""The version of ``table_released_twice`` with restored rows, and how many follow that have them, too."""


def _collection_was_first(execution: Execution, outcome: TaskOutcome) -> bool:
    """Whether a collection committed before the call did, if that did at all, so that the version may have expired."""
    own, others = pointer_commits(execution, by=0), pointer_commits(execution, by=1)
    return bool(others) and (not own or others[0] < own[0])


EXPIRED: dict[type[Error], Callable[[Execution, TaskOutcome], bool]] = {VersionExpiredError: _collection_was_first}
"""A call that asks for an old version is refused once a collection has let it expire."""


def tag_and_read() -> PairedCall:
    """Tags an old version, and reads it hours later by its tag."""

    def task(peer: Peer) -> Any:
        peer.db.tag(_TAG, _OLD_VERSION)
        peer.wait(3)
        return rows_of(peer.db.at(tag=_TAG).table("t").to_arrow())

    return PairedCall("tag an old version, wait, read it", task, lambda model: OLD, allowed_errors=EXPIRED)


def tag(version: int) -> PairedCall:
    """Tags a version; the name may be taken."""

    def effect(model: ExpectedTables) -> None:
        if _TAG in model.applied:
            raise TagExistsError(_TAG)
        model.applied.add(_TAG)

    return PairedCall(f"tag version {version}", lambda peer: peer.db.tag(_TAG, version), effect, lambda value: None)


def follow_and_read() -> PairedCall:
    """Makes a cursor at an old version, and reads hours later what has changed since: nothing."""

    def task(peer: Peer) -> Any:
        cursor = peer.db.cursor("reader", start=_OLD_VERSION)
        peer.wait(3)
        return cursor.changes("t").read_all().num_rows

    return PairedCall("make a cursor, wait, read by it", task, lambda model: 0, allowed_errors=EXPIRED)


def drop_tag_and_collect() -> PairedCall:
    """Drops the tag of an expired version, and collects before and after its readers had time to end."""

    def task(peer: Peer) -> None:
        peer.db.drop_tag(_TAG)
        peer.wait(1)
        collect(peer.context)
        peer.wait(2)
        collect(peer.context)

    return PairedCall("drop the tag, collect twice", task, lambda model: None, lambda value: None)


def read_tag() -> PairedCall:
    """Reads the version that a tag names."""

    def task(peer: Peer) -> Any:
        return rows_of(peer.db.at(tag=_TAG).table("t").to_arrow())

    return PairedCall(
        "read by the tag", task, lambda model: OLD, allowed_errors={**EXPIRED, TagNotFoundError: _collection_was_first}
    )


def read_version(version: int, rows: Sequence[Row]) -> PairedCall:
    """Reads a version that is kept, hours later too."""

    def task(peer: Peer) -> Any:
        peer.wait(3)
        return rows_of(peer.db.at(version).table("t").to_arrow())

    return PairedCall(f"wait, read version {version}", task, lambda model: list(rows))


def restore(rows: list[Row] | tuple[Row, ...], version: int) -> PairedCall:
    """Restores the table to a version that has these rows."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"] = list(rows)

    def task(peer: Peer) -> Any:
        return peer.db.table("t").restore(version)

    return PairedCall(f"restore version {version}", task, effect, lambda value: None, EXPIRED)


def restore_tagged() -> PairedCall:
    """Restores the table to the version that the tag names, though it has expired."""
    call = restore(OLD, _OLD_VERSION)
    allowed = {**EXPIRED, TagNotFoundError: _collection_was_first}
    return altered(call, task=lambda peer: peer.db.table("t").restore(tag=_TAG), allowed_errors=allowed)


def clone(rows: list[Row], version: int) -> PairedCall:
    """Clones the table of a version that has these rows."""

    def effect(model: ExpectedTables) -> None:
        if "copy" in model.tables:
            raise TableExistsError("copy")
        model.tables["copy"] = list(rows)

    def task(peer: Peer) -> Any:
        return peer.db.clone("t", "copy", version)

    return PairedCall(f"clone version {version}", task, effect, lambda value: None, EXPIRED)


def table_with_expired_tag(db: Database) -> None:
    """Makes a table with a version that has expired, and that only a tag keeps."""
    two_files(db)
    db.tag(_TAG, _OLD_VERSION)
    compact(context_of(db), "t", options=CompactionOptions(growth=1))
    db.set(retention="1m", keep_versions=1, reader_grace="1h", orphan_age="20m")
    settings = DatabaseSettings.of(context_of(db).head.refresh().manifest)
    collect(context_of(db), settings=altered(settings, retention_us=0, reader_grace_us=0))
    context_of(db).head.refresh()


_LATE = (Fate.LATE,)


def table_with_young_versions(db: Database) -> None:
    """Makes versions that are kept for their age alone."""
    two_files(db)
    compact(context_of(db), "t", options=COMPACTION_OPTIONS)
    db.set(**EXPIRING_SOON | {"retention": "1d"})


def table_released_twice(db: Database) -> None:
    """Makes a file that a version released which will expire, that was restored, and then released once more."""
    one_table(db)
    table = db.table("t")
    table.overwrite(arrow([(9, 90, None)]))
    table.restore(2)
    for length in range(_KEPT):
        db.set(root_bytes=50_000 + length)
    table.overwrite(arrow([(9, 90, None)]))
    db.set(**EXPIRING_SOON | {"keep_versions": _KEPT})


PAST: tuple[Pair, ...] = (
    Pair(
        "tag/GC",
        table_with_old_versions,
        (tag_and_read(), two_collections()),
        hours=5,
        quick=(0,),
        quick_fates=(),
    ),
    Pair(
        "cursor/GC",
        table_with_old_versions,
        (follow_and_read(), two_collections()),
        hours=5,
        quick=(0,),
        quick_fates=(),
    ),
    Pair(
        "restore/GC",
        table_with_old_versions,
        (restore(OLD, _OLD_VERSION), two_collections()),
        hours=5,
        quick=(0,),
        quick_fates=_LATE,
    ),
    Pair(
        "clone/GC",
        table_with_old_versions,
        (clone(OLD, _OLD_VERSION), two_collections()),
        hours=5,
        quick=(0,),
        quick_fates=_LATE,
    ),
    Pair(
        "tagged reader/lost tag and GC",
        table_with_expired_tag,
        (read_tag(), drop_tag_and_collect()),
        hours=5,
        quick_fates=(),
    ),
    Pair(
        "restore of a tag/lost tag and GC",
        table_with_expired_tag,
        (restore_tagged(), drop_tag_and_collect()),
        hours=5,
        quick=(0,),
        quick_fates=(),
    ),
    Pair("tag/tag", one_table, (tag(1), tag(2)), quick=(0,)),
    Pair("restore/append", two_files, (restore(FIRST, 2), append((7, 70, None)))),
    Pair("restore/resolve", table_with_tombstone, (restore(OLD, _OLD_VERSION), resolution())),
    Pair("restore/compact", two_files, (restore(FIRST, 2), compaction())),
    Pair("clone/clone", two_files, (clone(list(FIRST), 2), clone(list(FIRST), 2)), quick=(0,)),
    Pair("tag of the newest/GC", one_table, (tag(2), one_collection()), hours=5, quick=(0,)),
    Pair(
        "reader of a young version/GC",
        table_with_young_versions,
        (read_version(_OLD_VERSION, OLD), two_collections()),
        hours=5,
        quick=(0,),
        quick_fates=(),
    ),
    Pair(
        "reader of what is released twice/GC",
        table_released_twice,
        (read_version(_RESTORED + _KEPT, FIRST), two_collections()),
        hours=5,
        quick=(0,),
        quick_fates=(),
    ),
)

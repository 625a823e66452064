"""Pairs in which collection expires versions and objects beside a call that depends on them or changes the settings."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.commit.head import context_of
from dolmen.errors import StaleWriterError, TableExistsError, VersionExpiredError
from dolmen.maintenance.gc.collection import collect
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.interleavings.checks import (
    SCHEMA,
    ExpectedTables,
    Pair,
    PairedCall,
    Row,
    arrow,
    rows_of,
    undisturbed_database,
)
from dolmen_simulator.interleavings.doubt import freeze, others_committed_before
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.pairs import one_table
from dolmen_simulator.interleavings.steps import TaskOutcome
from dolmen_simulator.interleavings.upkeep import (
    OLD,
    one_collection,
    pointer_commits,
    slow_append,
    table_with_old_versions,
    table_with_short_orphan_age,
    upkeep,
)

_WIDE = pa.schema([*SCHEMA, *((f"a_column_with_a_name_of_its_own_{number}", pa.int64()) for number in range(40))])


def collection_with_outdated_settings() -> PairedCall:
    """Collects in full after others have collected and then raised the age of orphans."""

    def task(peer: Peer) -> None:
        peer.meanwhile("others collect, then raise the age of orphans", 0, _collect_and_prolong)
        collect(peer.context, full=True)

    return upkeep("collect in full with outdated settings", task)


def _collect_and_prolong(bucket: MemoryBucket) -> None:
    db = undisturbed_database(bucket, "others")
    collect(context_of(db))
    db.set(orphan_age="12h")


def append_and_collect(*rows: Row) -> PairedCall:
    """Appends rows, then collects."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"].extend(rows)

    def task(peer: Peer) -> None:
        peer.db.table("t").append(arrow(rows))
        collect(peer.context)

    return PairedCall(f"append {list(rows)}, collect", task, effect, lambda value: None)


def longer_retention_and_read(version: int, rows: list[Row]) -> PairedCall:
    """Extends the retention to a year, then reads an old version."""

    def task(peer: Peer) -> Any:
        peer.db.set(retention="365d", keep_versions=100)
        return rows_of(peer.db.at(version=version).table("t").to_arrow())

    return PairedCall(
        f"keep versions for a year, read version {version}",
        task,
        lambda model: rows,
        allowed_errors={VersionExpiredError: _version_had_expired},
    )


def create_wide_table() -> PairedCall:
    """Creates a table with so many columns that entries must leave the root; uploads nothing for it."""

    def effect(model: ExpectedTables) -> None:
        if "wide" in model.tables:
            raise TableExistsError("wide")
        model.tables["wide"] = []

    return PairedCall(
        "create a wide table", lambda peer: peer.db.create_table("wide", _WIDE), effect, lambda value: None
    )


def _version_had_expired(execution: Execution, outcome: TaskOutcome) -> bool:
    """Whether a collection expired versions before the retention was extended."""
    prolonged = pointer_commits(execution, by=0)
    return bool(prolonged) and any(at < prolonged[0] for at in pointer_commits(execution, by=1))


def table_with_full_root(db: Database) -> None:
    """Makes a database with a short orphan age, and room in the root for only a few more commits of a usual size."""
    one_table(db)
    db.set(orphan_age="20m", root_bytes=4096)
    for number in (4, 5):
        db.table("t").append(arrow([(number, 10 * number, None)]))


FENCES: tuple[Pair, ...] = (
    Pair(
        "commit/GC by other settings",
        table_with_short_orphan_age,
        (
            replace(slow_append((7, 70, None)), allowed_errors={StaleWriterError: others_committed_before}),
            collection_with_outdated_settings(),
        ),
        hours=5,
        quick_fates=(),
    ),
    Pair(
        "longer retention/GC",
        table_with_old_versions,
        (longer_retention_and_read(3, OLD), one_collection()),
        hours=5,
        quick_fates=(),
    ),
    Pair(
        "frozen spill/append and GC",
        table_with_full_root,
        (freeze(create_wide_table(), 3), append_and_collect((7, 70, None))),
        hours=5,
        quick_fates=(),
    ),
)

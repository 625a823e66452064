"""The table and version that a frame's rows come from, for writes that must not undo later changes of others.

It is in the metadata of the columns that are read, in Spark's plan. Spark passes it on with each column that is not
computed, through views, caches and checkpoints, also to a data source that writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import types as s

from dolmen.base import arguments
from dolmen.commit.change import Claim
from dolmen.errors import ConflictError
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.transactions.snapshot import pin
from dolmen.transactions.transaction import Transaction, unit_of

_KEY = "dolmen"


@dataclass(frozen=True)
class Origin:
    """The origin of rows: a version of the database, and the uuid of a table."""

    table: str
    version: int

    def mark(self, schema: s.StructType) -> s.StructType:
        """The same columns, each marked with this origin."""
        own = {_KEY: f"{self.table}@{self.version}"}
        return s.StructType(
            [s.StructField(f.name, f.dataType, f.nullable, {**(f.metadata or {}), **own}) for f in schema.fields]
        )


def origins_of(schema: s.StructType) -> set[Origin]:
    """The origins that columns are marked with; computed columns have none."""
    return set(_parsed(field.metadata or {} for field in schema.fields))


def origins_read(frame: DataFrame) -> set[Origin]:
    """The origins of all that a frame reads, anywhere in its plan. Runs no job."""
    plan = frame._jdf.queryExecution().analyzed()
    plans = [plan, *_items(plan.subqueriesAll())]
    leaves = [leaf for each in plans for leaf in _items(each.collectLeaves())]
    return set(_parsed(msgspec.json.decode(column.metadata().json()) for leaf in leaves for column in _first(leaf)))


def _first(leaf: Any) -> list[Any]:
    """The first column of a leaf of the plan: all of its columns have the same mark."""
    return _items(leaf.output())[:1]


def _items(scala: Any) -> list[Any]:
    return [scala.apply(index) for index in range(scala.size())]


def _parsed(metadata: Iterable[dict[str, Any]]) -> Iterator[Origin]:
    for each in metadata:
        table, _, version = str(each.get(_KEY, "")).partition("@")
        if version.isdecimal():
            yield Origin(table, int(version))


@dataclass(frozen=True)
class Reliance:
    """The condition of a write by keys: the table has not changed since the frame was read from it.

    Otherwise the write would undo changes that others made to the same rows. Which rows the frame has read is unknown,
    so any change counts. A frame that reads nothing of the table has no condition.

    Args:
        since: a version that its rows were made from, if Spark's plan does not show it.
        force: there is no condition.
    """

    since: int | None
    force: bool

    @classmethod
    def of(cls, since: int | None, force: bool) -> Reliance:
        """Checks both. Raises InputError."""
        return cls(None if since is None else arguments.number("since", since), arguments.flag("force", force))

    def oldest(self, frame: DataFrame, table: str) -> int | None:
        """The oldest version that a frame reads of a table (its uuid), or was made from; None if there is none."""
        read = {origin.version for origin in origins_read(frame) if origin.table == table}
        return min(read if self.since is None else {*read, self.since}, default=None)

    def add_to(self, transaction: Transaction, name: str, frame: DataFrame) -> None:
        """Makes the commit depend on it.

        Raises:
            ConflictError: others have added or deleted rows after that version.
            VersionNotFoundError, VersionExpiredError: that version does not exist, or has expired.
        """
        unit = unit_of(transaction)
        uuid = unit.entry(name).uuid
        oldest = None if self.force else self.oldest(frame, uuid)
        if oldest is None:
            return
        base = unit.base
        seen = base if oldest == base.version else pin(unit.context, oldest, None).manifest
        epoch = entry_then(seen, name, uuid).epoch
        advice = f"these rows were made from version {oldest}: make the frame again and repeat, or give force=True"
        unit_of(transaction).rely_on(Claim(name, uuid, epoch, seen.commit_ts, lambda _: True, advice))


def entry_then(seen: Manifest, name: str, uuid: str) -> TableEntry:
    """The entry of a table in an older version, where it may have another name.

    Raises:
        TableNotFoundError: the version has neither the table nor one of its present name.
        ConflictError: the version has another table of that name.
    """
    then = seen.name_of(uuid)
    if then is None:
        seen.table(name)
        raise ConflictError(f"table {name!r} was dropped and created again after version {seen.version}")
    return seen.tables[then]

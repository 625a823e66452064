"""Which version of which table a frame's rows come from, told to whoever overwrites a table by them.

It stands in the metadata of the columns that are read, in Spark's plan. From there Spark hands it on with each column
that stays what it is, through views, caches and checkpoints, also to a data source that writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import types as s

from dolmen.errors import ConflictError
from dolmen.format.manifest import Manifest, TableEntry

_KEY = "dolmen"


@dataclass(frozen=True)
class Origin:
    """What was read.

    Args:
        table: uuid of the table.
        version: of the database.
    """

    table: str
    version: int

    def mark(self, schema: s.StructType) -> s.StructType:
        """The same columns, each of which says that it comes from here."""
        own = {_KEY: f"{self.table}@{self.version}"}
        return s.StructType(
            [s.StructField(f.name, f.dataType, f.nullable, {**(f.metadata or {}), **own}) for f in schema.fields]
        )


def origins_of(schema: s.StructType) -> set[Origin]:
    """What columns say of themselves; those that were computed say nothing."""
    return set(_parsed(field.metadata or {} for field in schema.fields))


def origins_read(frame: DataFrame) -> set[Origin]:
    """All that a frame is made from, wherever in its plan that is read; runs no job."""
    plan = frame._jdf.queryExecution().analyzed()
    plans = [plan, *_items(plan.subqueriesAll())]
    leaves = [leaf for each in plans for leaf in _items(each.collectLeaves())]
    return set(_parsed(msgspec.json.decode(column.metadata().json()) for leaf in leaves for column in _first(leaf)))


def _first(leaf: Any) -> list[Any]:
    """One column of a place where rows are read: all of these are marked alike."""
    return _items(leaf.output())[:1]


def _items(scala: Any) -> list[Any]:
    return [scala.apply(place) for place in range(scala.size())]


def _parsed(metadata: Iterable[dict[str, Any]]) -> Iterator[Origin]:
    for each in metadata:
        table, _, version = str(each.get(_KEY, "")).partition("@")
        if version.isdecimal():
            yield Origin(table, int(version))


def entry_then(seen: Manifest, name: str, uuid: str) -> TableEntry:
    """The entry that a table has in a version, whatever it was called then.

    Args:
        name: what it is called now.

    Raises:
        TableNotFoundError: it was not there, and none of that name.
        ConflictError: another table was called so.
    """
    then = seen.name_of(uuid)
    if then is None:
        seen.table(name)
        raise ConflictError(f"table {name!r} was dropped and created again after version {seen.version}")
    return seen.tables[then]

"""Gathering the keys of any number of tombstones into lookups, of which bounded memory is taken.

What comes is held until it is too much. Then the keys over the tuple of columns that has most of them are put in order,
each once; if that leaves much of them, they become a lookup in a temporary file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.format.entries import KeysTombstone
from dolmen.format.schema import Schema
from dolmen.format.widening import widened_keys
from dolmen.rows.scan.keys_lookup import KeysLookup
from dolmen.rows.scan.sorted_keys import HeldKeys, Int64s, StoredKeys

HELD_BYTES = 32 * MIB
"""Keys in memory, over all tuples of columns: values, codes and timestamps. Some three times as much while they are put
in order."""


@dataclass
class _KeysOfColumns:
    """The keys over one tuple of columns.

    Args:
        types: its columns' types in the table now.
    """

    types: list[pa.DataType]
    parts: list[HeldKeys] = field(default_factory=list)
    tombstones: list[KeysTombstone] = field(default_factory=list)
    lookups: list[KeysLookup] = field(default_factory=list)
    bytes: int = 0


class KeysGathering:
    """Takes keys, some at a time.

    Args:
        schema: the table's.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._by_columns: dict[tuple[int, ...], _KeysOfColumns] = {}

    def add(self, tombstones: Sequence[KeysTombstone], keys: pa.Table, ts: Int64s | None = None) -> None:
        """Adds keys of tombstones over the same columns.

        Args:
            keys: named by id, in any of the types that the columns had.
            ts: the timestamp of each key; that of the only tombstone by default.
        """
        columns = tombstones[0].columns
        gathered = self._by_columns.get(columns)
        if gathered is None:
            types = [self._schema.by_id[id_].arrow_type for id_ in columns]
            gathered = self._by_columns[columns] = _KeysOfColumns(types)
        if ts is None:
            ts = np.full(keys.num_rows, tombstones[0].ts, np.int64)
        names = [str(id_) for id_ in columns]
        whole = widened_keys(keys, pa.schema(zip(names, gathered.types, strict=True))).combine_chunks()
        if whole.num_rows:
            part = HeldKeys.of([column.chunk(0) for column in whole.columns], ts)
            gathered.parts.append(part)
            gathered.bytes += part.nbytes
        if not gathered.tombstones or gathered.tombstones[-1] is not tombstones[0]:  # else a list that comes in parts
            gathered.tombstones += tombstones
        while sum(each.bytes for each in self._by_columns.values()) > HELD_BYTES:
            self._make_room()

    def finish(self) -> dict[tuple[int, ...], tuple[KeysLookup, ...]]:
        """All keys as lookups, by their columns."""
        found: dict[tuple[int, ...], tuple[KeysLookup, ...]] = {}
        for columns, gathered in self._by_columns.items():
            if gathered.parts:
                keys = HeldKeys.merge(gathered.parts)
                gathered.lookups.append(KeysLookup(columns, gathered.types, keys, gathered.tombstones))
            found[columns] = tuple(gathered.lookups)
        self._by_columns = {}
        return found

    def _make_room(self) -> None:
        columns, most = max(self._by_columns.items(), key=lambda item: item[1].bytes)
        keys = HeldKeys.merge(most.parts)
        if keys.nbytes <= most.bytes // 2:  # the same keys again and again
            most.parts, most.bytes = [keys], keys.nbytes
            return
        most.lookups.append(KeysLookup(columns, most.types, StoredKeys(keys), most.tombstones))
        most.parts, most.bytes, most.tombstones = [], 0, most.tombstones[-1:]


def group_by_types(tombstones: Sequence[KeysTombstone]) -> list[list[KeysTombstone]]:
    """Tombstones over the same columns of the same types together."""
    alike: dict[tuple[tuple[int, ...], tuple[str, ...]], list[KeysTombstone]] = defaultdict(list)
    for tombstone in tombstones:
        alike[tombstone.columns, tombstone.types].append(tombstone)
    return list(alike.values())

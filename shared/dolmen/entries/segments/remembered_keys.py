"""The memories of deleted keys (CDC), which an erasure of rows by their key has to reach, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dolmen.format.entries import Blob, KeysTombstone, WhereTombstone
from dolmen.format.erasures import ErasedTable
from dolmen.format.evolution import WidenColumn
from dolmen.format.keys import Keys, decode_keys, inline_keys
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.format.values import to_json, to_plain
from dolmen.format.widening import narrowing
from dolmen.predicate import Predicate, from_builtins, from_json, to_builtins

ReadBlob = Callable[[Blob], bytes]
"""Reads a blob, and checks it."""


@dataclass(frozen=True)
class RememberedKeys:
    """A table that remembers the deleted keys of another one (CDC), for which it has columns of the same names.

    Args:
        name: its name.
        entry: its whole entry.
        owner: the whole entry of the other one, in the same version.
    """

    name: str
    entry: TableEntry
    owner: TableEntry

    @classmethod
    def each(cls, tables: Mapping[str, TableEntry]) -> Iterator[RememberedKeys]:
        """Yields those among some tables of one version.

        Args:
            tables: whole entries by name.
        """
        names = {entry.uuid: name for name, entry in tables.items()}
        for owner in tables.values():
            name = names.get(owner.sequences.memory) if owner.sequences is not None else None
            if name is not None:
                yield cls(name, tables[name], owner)

    def may_hold(self, erased: ErasedTable) -> bool:
        """Whether a delete in the other table names rows by the key alone, so that it may match what is remembered."""
        return set(erased.tombstone.columns) <= set(self.owner.primary_key)

    def keys(self, tombstone: KeysTombstone, read: ReadBlob) -> Keys:
        """The keys of a delete in the other table, by the memory's own columns."""
        keys = inline_keys(tombstone)
        if keys is None:
            keys = decode_keys(read(tombstone.blob), tombstone)
        ids = self._ids(tombstone.columns)
        order = sorted(ids, key=ids.__getitem__)
        names = [str(ids[id_]) for id_ in order]
        renamed = keys.select([str(id_) for id_ in order]).rename_columns(names)
        return renamed.sort_by([(name, "ascending") for name in names])

    def predicate(self, tombstone: WhereTombstone, read: ReadBlob) -> Predicate:
        """The predicate of a delete in the other table, over the memory's own columns."""
        inline = tombstone.predicate
        body = to_builtins(from_json(read(tombstone.blob))) if inline is None else inline
        return from_builtins(_with_ids(body, self._ids(tombstone.columns)))

    def columns(self, erased: ErasedTable) -> tuple[Field, ...]:
        """The memory's columns with the types that the delete's values have."""
        ids, known = self._ids(erased.tombstone.columns), self.entry.schema.by_id
        return tuple(
            msgspec.structs.replace(known[ids[field.id]], type=field.type, widened_ts=field.widened_ts)
            for field in erased.columns
        )

    def delete_for_readers(self, erased: ErasedTable, read: ReadBlob) -> ErasedTable:
        """The delete of the same keys from the memory, without a record: nobody may store it."""
        tombstone = erased.tombstone
        place = Blob(f"tombstone/{self.entry.uuid}", tombstone.ts, 0, 0)
        if isinstance(tombstone, KeysTombstone):
            keys = self.keys(tombstone, read)
            ids = self._ids(tombstone.columns)
            bounds = {ids[id_]: ends for id_, ends in zip(tombstone.columns, tombstone.bounds, strict=True)}
            hidden: KeysTombstone | WhereTombstone = KeysTombstone(
                tuple(map(int, keys.column_names)),
                tuple(str(column.type) for column in keys.columns),
                keys.num_rows,
                tuple(bounds[int(name)] for name in keys.column_names),
                place,
                tuple(tuple(map(to_json, to_plain(column.combine_chunks()))) for column in keys.columns),
                tombstone.ts,
            )
        else:
            columns = tuple(sorted(self._ids(tombstone.columns).values()))
            hidden = WhereTombstone(columns, place, to_builtins(self.predicate(tombstone, read)), tombstone.ts)
        return ErasedTable(self.entry.uuid, hidden, self.columns(erased))

    def with_types_of_owner(self) -> TableEntry:
        """The memory's entry with the types that the other table's columns have; they may have become wider."""
        entry = self.entry
        for field in entry.schema.fields:
            own = next((known for known in self.owner.schema.fields if known.name == field.name), None)
            if own and own.type != field.type and not narrowing(field.arrow_type, own.arrow_type):
                entry = WidenColumn(field.name, own.arrow_type).widen(entry, own.widened_ts)
        return entry

    def _ids(self, columns: tuple[int, ...]) -> dict[int, int]:
        """The memory's ids of columns, by those of the other table."""
        there = self.entry.schema
        return {id_: there.field(self.owner.schema.by_id[id_].name).id for id_ in columns}


def _with_ids(node: Any, ids: Mapping[int, int]) -> Any:
    """A predicate as JSON, with other ids of columns."""
    if isinstance(node, dict):
        changed = {name: _with_ids(value, ids) for name, value in node.items()}
        return {**changed, "id": ids[node["id"]]} if node.get("kind") == "column" else changed
    return [_with_ids(each, ids) for each in node] if isinstance(node, list | tuple) else node

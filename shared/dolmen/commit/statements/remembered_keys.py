"""The memories of deleted keys (CDC), which an erasure of rows by their key has to reach, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from dolmen.commit.delete_records import record_keys, record_predicate
from dolmen.commit.uploads import PendingUploads
from dolmen.format.entries import KeysTombstone, Tombstone
from dolmen.format.erasures import ErasedTable
from dolmen.format.keys import decode_keys, inline_keys
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.predicate import from_builtins, from_json, to_builtins


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

    def delete(self, erased: ErasedTable, uploads: PendingUploads) -> ErasedTable:
        """The delete of the same keys from the memory."""
        there, target = self.entry.schema, partial(uploads.shared_object, self.name)
        ids = {id_: there.field(self.owner.schema.by_id[id_].name).id for id_ in erased.tombstone.columns}
        tombstone: Tombstone | None
        if isinstance(erased.tombstone, KeysTombstone):
            keys = inline_keys(erased.tombstone)
            if keys is None:
                keys = decode_keys(uploads.read_blob(erased.tombstone.blob), erased.tombstone)
            order = sorted(ids, key=ids.__getitem__)
            names = [str(ids[id_]) for id_ in order]
            renamed = keys.select([str(id_) for id_ in order]).rename_columns(names)
            tombstone = record_keys(target, renamed.sort_by([(name, "ascending") for name in names]))
        else:
            inline = erased.tombstone.predicate
            body = to_builtins(from_json(uploads.read_blob(erased.tombstone.blob))) if inline is None else inline
            tombstone = record_predicate(target, there, from_builtins(_with_ids(body, ids)))
        assert tombstone is not None, "it names rows, as the one that it is made of"
        return ErasedTable(self.entry.uuid, tombstone, tuple(self._columns(erased, ids)))

    def _columns(self, erased: ErasedTable, ids: Mapping[int, int]) -> Iterator[Field]:
        """The memory's columns with the types that the delete's values have."""
        for field in erased.columns:
            own = self.entry.schema.by_id[ids[field.id]]
            yield msgspec.structs.replace(own, type=field.type, widened_ts=field.widened_ts)


def _with_ids(node: Any, ids: dict[int, int]) -> Any:
    """A predicate as JSON, with other ids of columns."""
    if isinstance(node, dict):
        changed = {name: _with_ids(value, ids) for name, value in node.items()}
        return {**changed, "id": ids[node["id"]]} if node.get("kind") == "column" else changed
    return [_with_ids(each, ids) for each in node] if isinstance(node, list | tuple) else node

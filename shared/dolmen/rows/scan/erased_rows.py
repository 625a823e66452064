"""Tells which rows that are about to be written were erased: by the erasures in force that reach their table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from dolmen.commit.context import Context
from dolmen.entries.segments.erasures_in_force import with_erasures
from dolmen.format.manifest import Erasure, TableEntry
from dolmen.format.schema import constant
from dolmen.format.types import Mask, to_boolean_array, to_mask
from dolmen.predicate import matches
from dolmen.rows.scan.by_key.keys_lookup import Tuples
from dolmen.rows.scan.scan_deletes import BlobReader, Deletes, load_deletes


@dataclass(frozen=True)
class ErasureMatcher:
    """Matches rows with erasures.

    Args:
        entry: the table, with the erasures' deletes alone.
        deletes: these, ready to be applied.
    """

    entry: TableEntry
    deletes: Deletes

    @classmethod
    def of(cls, context: Context, entry: TableEntry, erasures: Iterable[Erasure]) -> ErasureMatcher | None:
        """The matcher of a table; None if no erasure reaches it. It fetches what is not in the manifest.

        Args:
            entry: the table's whole entry.
        """
        bare = msgspec.structs.replace(entry, tombstones=(), segments=(), files=())
        erased = with_erasures(bare, erasures, context.segments)
        if not erased.tombstones:
            return None
        blobs = BlobReader(context.store, context.runtime, cache=context.cache)
        return cls(erased, load_deletes(erased.tombstones, erased.schema, blobs, context.cache))

    @property
    def columns(self) -> frozenset[int]:
        """Ids of the columns by which rows were erased."""
        return frozenset(id_ for tombstone in self.entry.tombstones for id_ in tombstone.columns)

    def mask(self, columns: Mapping[int, pa.Array], rows: int) -> Mask:
        """A mask of the rows that were erased.

        Args:
            columns: by id. A row has the default of a column that is not there.
        """
        schema, known = self.entry.schema, dict(columns)
        dropped = {field.id for field in schema.dropped}
        for id_ in self.columns - known.keys():
            field = schema.by_id[id_]
            known[id_] = constant(None if id_ in dropped else field.write_default, field.arrow_type, rows)
        mask = np.zeros(rows, np.bool_)
        for lookups in self.deletes.lookups.values():
            for lookup in lookups:
                mask |= lookup.hidden_mask(Tuples([known[id_] for id_ in lookup.columns], lookup.types), 0)
        for predicate in self.deletes.predicates.values():
            mask |= to_mask(matches(predicate, known, rows))
        return mask


@dataclass
class ErasedRowsFilter:
    """Counts the rows among those that are written which match an erasure in force, and may leave them out.

    Args:
        matcher: of the table that the rows are for.
        leave_out: whether these rows are left out.
        count: how many there were so far.
    """

    matcher: ErasureMatcher
    leave_out: bool
    count: int = 0

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows to be written.

        Args:
            batches: of the table's columns, by their names.
        """
        ids = {field.name: field.id for field in self.matcher.entry.schema.fields}
        for batch in batches:
            columns = {ids[name]: column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
            mask = self.matcher.mask(columns, batch.num_rows)
            found = int(np.count_nonzero(mask))
            self.count += found
            yield batch.filter(to_boolean_array(~mask)) if found and self.leave_out else batch

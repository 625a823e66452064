"""Late drops: files that were dropped before an erasure, and that are ingested after it, bring no erased row back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import pyarrow as pa

from dolmen.commit.statements.expect_erasures import ExpectErasures
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import constant
from dolmen.predicate import matches
from dolmen.scan.blobs import BlobReader
from dolmen.scan.deletes import Deletes, load_deletes
from dolmen.scan.keys_lookup import Tuples
from dolmen.scan.row_masks import Mask, to_arrow, to_mask
from dolmen.segments.erasures import erasures_of, with_erasures
from dolmen.transaction import Transaction


class ErasedRows:
    """Tells which rows of a late file were erased, and counts them.

    Args:
        entry: the table, with the erasures' deletes alone.
        deletes: these, ready to be applied.
        count: rows that were left out.
    """

    def __init__(self, entry: TableEntry, deletes: Deletes) -> None:
        self._entry, self._deletes = entry, deletes
        self.count = 0

    @classmethod
    def of(cls, transaction: Transaction, name: str, created_us: int | None) -> ErasedRows | None:
        """The rows of one table that were erased after a file was dropped; None if there are none.

        Args:
            created_us: when the file was dropped, by the server's clock; None if that is not known: then all count.
        """
        context, base = transaction.context, transaction.base
        with context.reading(base.version):
            listed = erasures_of(base, context.segments)
            late = [erasure for erasure in listed if erasure.is_later_than(created_us)]
            if not late:
                return None
            bare = msgspec.structs.replace(transaction.entry(name), tombstones=(), segments=(), files=())
            entry = with_erasures(bare, late, context.segments)
            if not entry.tombstones:
                return None
            blobs = BlobReader(context.store, context.runtime, cache=context.cache)
            return cls(entry, load_deletes(entry.tombstones, entry.schema, blobs, context.cache))

    def leave_out(self, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """The rows that were not erased."""
        return pa.RecordBatchReader.from_batches(rows.schema, self._each(rows))

    def keep(self, columns: Mapping[int, pa.Array], rows: int) -> pa.BooleanArray:
        """A mask of the rows that were not erased; counts the others.

        Args:
            columns: by id, as the table has them. A row has the default of a column that is not there.
        """
        mask = self._mask(columns, rows)
        self.count += int(np.count_nonzero(mask))
        return to_arrow(~mask)

    def _each(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        ids = {field.name: field.id for field in self._entry.schema.fields}
        for batch in rows:
            columns = {ids[name]: batch.column(name) for name in batch.schema.names if name in ids}
            kept = batch.filter(self.keep(columns, batch.num_rows))
            if kept.num_rows:
                yield kept

    def _mask(self, columns: Mapping[int, pa.Array], rows: int) -> Mask:
        known = dict(columns)
        dropped = {field.id for field in self._entry.schema.dropped}
        for tombstone in self._entry.tombstones:
            for id_ in tombstone.columns:
                if id_ not in known:
                    field = self._entry.schema.by_id[id_]
                    default = None if id_ in dropped else field.write_default
                    known[id_] = constant(default, field.arrow_type, rows)
        mask = np.zeros(rows, np.bool_)
        for lookups in self._deletes.lookups.values():
            for lookup in lookups:
                mask |= lookup.hidden_mask(Tuples([known[id_] for id_ in lookup.columns], lookup.types), 0)
        for predicate in self._deletes.predicates.values():
            mask |= to_mask(matches(predicate, known, rows))
        return mask


def expect_erasures(transaction: Transaction, name: str, created_us: int | None, request: str) -> None:
    """Makes the commit fail if rows are erased meanwhile that late ones were not held against."""
    uuid, seen_ts = transaction.entry(name).uuid, transaction.base.commit_ts
    transaction.add(ExpectErasures(name, uuid, seen_ts, created_us, request))

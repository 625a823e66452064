"""Gives changes the values that the source left out: each is what its row had before the change.

It comes from the last change before it that has the value, in the same portion of the file, or from the row in the
table. Stored rows are read one batch after the other, as they may hold more than fits into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.schema import Field
from dolmen.ingest.cdc.change_order import NOWHERE, ChangeOrder
from dolmen.ingest.cdc.changes import is_unavailable, unavailable_columns
from dolmen.ingest.cdc.current import condition_on_keys
from dolmen.transaction import Transaction

_SOURCE, _STORED, _PLACE = "source:", "stored", "place"


@dataclass(frozen=True, eq=False)
class PreviousValues:
    """Changes, and where the values come from that they do not have.

    Args:
        changes: those that can be applied. Beside each column with unavailable values they have its source, and
            ``stored``, the place among ``known`` of the row from which they take values.
        every: all of them.
        known: the latest sequences of their keys.
        lost: row in the file and column of each change that nothing has a value for.
    """

    changes: pa.Table
    every: pa.Table
    known: pa.Table
    lost: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, changes: pa.Table, known: pa.Table, keys: Sequence[str], sequence: str, first_ts: int) -> PreviousValues:
        """Finds where values come from.

        Args:
            changes: all changes of some keys.
            known: what ``latest_sequences`` says of these keys.
            first_ts: what has this commit timestamp, or a later one, is of the same file.
        """
        order = ChangeOrder.of(changes, known, keys, sequence, first_ts)
        newer, stored = order.select_newer(), np.full(changes.num_rows, -1)
        lost_column = np.full(changes.num_rows, -1)
        marked = changes
        for column in unavailable_columns(changes):
            missing = is_unavailable(changes, column)
            source = order.find_sources(missing)
            lost_column[missing & newer & (source == NOWHERE)] = column
            missing &= source != NOWHERE
            stored = np.where(missing & (source < 0), -1 - source, stored)
            marked = marked.append_column(f"{_SOURCE}{column}", pa.array(source, mask=~missing))
        lost = lost_column >= 0
        last = np.flatnonzero(order.select_after(lost))  # one that a later change makes up for is no loss
        applied = ~lost & ~(order.deletes & np.isin(order.rows, order.rows[lost]))  # with the delete of its old key
        return cls(
            marked.append_column(_STORED, pa.array(stored, mask=stored < 0)).filter(pa.array(applied)),
            changes,
            known,
            tuple(sorted((int(order.rows[place]), int(lost_column[place])) for place in last)),
        )

    def fill(
        self, upserts: pa.Table, transaction: Transaction, table: str, keys: tuple[Field, ...]
    ) -> Iterator[pa.Table]:
        """Yields some of ``changes`` with all values.

        What is read is claimed: the transaction is valid only if it is still right when it commits.
        """
        sources = {name.removeprefix(_SOURCE): name for name in upserts.column_names if name.startswith(_SOURCE)}
        for column, name in sources.items():
            places = pc.if_else(pc.greater_equal(upserts[name], 0), upserts[name], None)
            upserts = _replace(upserts, column, self.every[column], places)
        yield upserts.filter(pc.is_null(upserts[_STORED]))
        waiting = upserts.filter(pc.is_valid(upserts[_STORED]))
        wanted = [column for column, name in sources.items() if pc.any(pc.less(waiting[name], 0)).as_py()]
        for rows in self._stored_rows(waiting[_STORED], wanted, transaction, table, keys):
            places = pc.index_in(waiting[_STORED], rows[_STORED].combine_chunks())
            part = waiting.filter(pc.is_valid(places))
            for column in wanted:
                is_stored = pc.fill_null(pc.less(part[sources[column]], 0), False)
                part = _replace(part, column, rows[column], pc.if_else(is_stored, places.drop_null(), None))
            yield part

    def _stored_rows(
        self, places: pa.ChunkedArray, wanted: list[str], transaction: Transaction, table: str, keys: tuple[Field, ...]
    ) -> Iterator[pa.Table]:
        """Yields columns of rows in the table with their places among ``known``. Of rows with one key, it takes one."""
        if not wanted:
            return
        entry, names = transaction.entry(table), [str(key.id) for key in keys]
        left = pc.unique(places)
        sought = self.known.select(names).take(left).append_column(_STORED, left)
        columns = [entry.schema.by_id[int(id_)] for id_ in (*names, *wanted)]
        scan = transaction.table(table).scan(
            [field.name for field in columns], condition_on_keys(transaction, table, keys, sought)
        )
        for batch in scan.to_batches():
            rows = pa.Table.from_batches([batch]).rename_columns([*names, *wanted])
            own = rows.select(names).append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
            found = own.join(sought, names, join_type="inner", use_threads=False)
            found = found.filter(pc.is_in(found[_STORED], left)).group_by(_STORED, use_threads=False)
            first = found.aggregate([(_PLACE, "min")])
            left = left.filter(pc.invert(pc.is_in(left, first[_STORED].combine_chunks())))
            yield rows.select(wanted).take(first[f"{_PLACE}_min"]).append_column(_STORED, first[_STORED])
        assert not len(left), "they were there when the latest sequences were read, in the same version"


def _replace(rows: pa.Table, column: str, others: pa.ChunkedArray, places: pa.ChunkedArray) -> pa.Table:
    """Rows with some values of a column taken from others; where a place is NULL, their own."""
    own = rows[column]
    if places.null_count == len(places):
        return rows
    both = pa.chunked_array([*own.chunks, *others.chunks], own.type)
    at = pc.if_else(pc.is_valid(places), pc.add(places, len(own)), pa.array(np.arange(len(own))))
    return rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), both.take(at))

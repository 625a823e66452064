"""Gives changes the values that the source left out: each is what its row had before the change.

It comes from the last change before it that has the value, in the same portion of the file, or from the row in the
table. Stored rows are read one batch after the other, as they may hold more than fits into memory.

A value that is kept is older than its row. That is remembered (``memory``), because a change that comes late may be
between the two: it has the value that should have been kept. Then it is put into the row, whose sequence stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.schema import Field
from dolmen.ingest.cdc.change_order import NOWHERE, ChangeOrder, Mask, Places
from dolmen.ingest.cdc.changes import DELETED, ROW, is_unavailable, unavailable_columns
from dolmen.ingest.cdc.deleted_keys import KEPT_COLUMN, KEPT_SINCE, SEQUENCE, LatestSequences, condition_on_keys
from dolmen.transactions.transaction import Transaction, unit_of

PLACE, STORED = "place", "stored"


@dataclass(frozen=True, eq=False)
class PreviousValues:
    """Changes, and where the values come from that they do not have.

    Args:
        changes: those that can be applied, with their ``place`` among all.
        amended: stored rows into which values of late changes are put, as upserts.
        lost: row in the file and column of each change that nothing has a value for.
        kept: which values are older than their changes: ``place``, ``kept_column``, ``kept_since``.
        every: all changes, and then a row for each known key.
        known: the keys, in the order in which sources count them.
        sources: of each column with values that come from elsewhere, by id (see ``ChangeOrder.find_sources``).
    """

    changes: pa.Table
    amended: pa.Table
    lost: tuple[tuple[int, int], ...]
    kept: pa.Table
    every: pa.Table
    known: pa.Table
    sources: Mapping[int, Places]

    @classmethod
    def of(
        cls, changes: pa.Table, latest: LatestSequences, keys: Sequence[str], sequence: Field, first_ts: int
    ) -> PreviousValues:
        """Finds where values come from.

        Args:
            changes: all changes of some keys.
            latest: what is known of these keys.
            first_ts: what has this commit timestamp, or a later one, is of the same file.
        """
        order_by = str(sequence.id)
        order = ChangeOrder.of(changes, latest, keys, order_by, first_ts)
        count, known = changes.num_rows, latest.rows
        newer, lost_column = order.select_newer(), np.full(count, -1)
        sources: dict[int, Places] = {}
        amended = np.zeros(known.num_rows, bool)
        there = {column for column in order.kept if str(column) in changes.column_names}  # others were dropped
        for column in sorted({*unavailable_columns(changes), *there}):
            missing = is_unavailable(changes, column)
            found, of_rows = order.find_sources(column, missing)
            lost_column[missing & newer & (found == NOWHERE)] = column
            amended |= of_rows >= 0
            sources[column] = np.concatenate((found, of_rows))
        lost = lost_column >= 0
        last = np.flatnonzero(order.select_after(lost))  # one that a later change makes up for is no loss
        applied = ~lost & ~(order.deletes & np.isin(order.rows, order.rows[lost]))  # with the delete of its old key
        amended[np.isin(order.keys[count:], order.keys[:count][applied & newer])] = False

        every = _with_rows(changes, known, keys, order_by)
        kept = _older_values(order, sources)
        if amended.any():
            others = {int(name) for name in changes.column_names if name.isdigit()} - {sequence.id, *map(int, keys)}
            as_it_is = np.concatenate((np.arange(count), -1 - np.arange(known.num_rows)))
            sources |= dict.fromkeys(others - sources.keys(), as_it_is)
        return cls(
            every.slice(0, count).filter(pa.array(applied)),
            every.slice(count).filter(pa.array(amended)),
            tuple(sorted((int(order.rows[place]), int(lost_column[place])) for place in last)),
            kept,
            every,
            known.select(keys),
            sources,
        )

    def kept_of(self, upserts: pa.Table) -> pa.Table:
        """The older values of some changes or amended rows: the columns of these, and of ``kept``."""
        at = pc.index_in(self.kept[PLACE], upserts[PLACE].combine_chunks())
        there = self.kept.filter(pc.is_valid(at)).select([KEPT_COLUMN, KEPT_SINCE])
        rows = upserts.take(at.drop_null())
        for name in there.column_names:
            rows = rows.append_column(name, there[name])
        return rows

    def fill(
        self, upserts: pa.Table, transaction: Transaction, table: str, keys: tuple[Field, ...]
    ) -> Iterator[pa.Table]:
        """Yields some of the changes, or amended rows, with all values.

        What is read is claimed: the transaction is valid only if it is still right when it commits.
        """
        places = upserts[PLACE].to_numpy()
        stored = np.full(len(places), -1)
        for column, sources in self.sources.items():
            source = sources[places]
            upserts = _replace(upserts, str(column), self.every[str(column)], source, source >= 0)
            stored = np.where((source < 0) & (source != NOWHERE), -1 - source, stored)
        yield upserts.filter(pa.array(stored < 0))
        if (stored < 0).all():
            return
        waiting = upserts.append_column(STORED, pa.array(stored)).filter(pa.array(stored >= 0))
        wanted = {id_: of[waiting[PLACE].to_numpy()] < 0 for id_, of in self.sources.items()}
        wanted = {id_: takes for id_, takes in wanted.items() if takes.any()}
        for rows in self._stored_rows(waiting[STORED], list(wanted), transaction, table, keys):
            at = pc.index_in(waiting[STORED], rows[STORED].combine_chunks())
            found = pc.is_valid(at).to_numpy()
            part, at = waiting.filter(pa.array(found)), at.drop_null().to_numpy()
            for column, takes in wanted.items():
                part = _replace(part, str(column), rows[str(column)], at, takes[found])
            yield part

    def _stored_rows(
        self, places: pa.ChunkedArray, wanted: list[int], transaction: Transaction, table: str, keys: tuple[Field, ...]
    ) -> Iterator[pa.Table]:
        """Yields columns of rows in the table with their places among ``known``. Of rows with one key, it takes one."""
        schema, names = unit_of(transaction).entry(table).schema, self.known.column_names
        left = pc.unique(places)
        sought = self.known.take(left).append_column(STORED, left)
        ids = [*names, *map(str, wanted)]
        scan = transaction.table(table).scan(
            [schema.by_id[int(id_)].name for id_ in ids], condition_on_keys(transaction, table, keys, sought)
        )
        for batch in scan.to_batches():
            rows = pa.Table.from_batches([batch]).rename_columns(ids)
            own = rows.select(names).append_column(PLACE, pa.array(np.arange(rows.num_rows)))
            found = own.join(sought, names, join_type="inner", use_threads=False)
            found = found.filter(pc.is_in(found[STORED], left)).group_by(STORED, use_threads=False)
            first = found.aggregate([(PLACE, "min")])
            left = left.filter(pc.invert(pc.is_in(left, first[STORED].combine_chunks())))
            yield rows.select(ids[len(names) :]).take(first[f"{PLACE}_min"]).append_column(STORED, first[STORED])
        assert not len(left), "they were there when the latest sequences were read, in the same version"


def _with_rows(changes: pa.Table, known: pa.Table, keys: Sequence[str], sequence: str) -> pa.Table:
    """Changes, then known keys as upserts without values, each with its place."""
    rows = known.select(keys).append_column(sequence, known[SEQUENCE])
    rows = rows.append_column(DELETED, pa.array(np.zeros(known.num_rows, bool)))
    rows = rows.append_column(ROW, pa.array(np.zeros(known.num_rows, np.int64)))
    every = pa.concat_tables([changes, rows], promote_options="default")
    return every.append_column(PLACE, pa.array(np.arange(every.num_rows)))


def _older_values(order: ChangeOrder, sources: Mapping[int, Places]) -> pa.Table:
    """The values that are older than their rows. A value of another key counts as the change's own."""
    places, columns, ranks = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    count = len(order.rows)
    for column, source in sources.items():
        node = np.where(source >= 0, source, count - 1 - source)
        node[source == NOWHERE] = 0
        since = order.ranks.copy()
        since[count:] = order.kept.get(column, since[count:])
        is_kept = (source != NOWHERE) & (order.keys[node] == order.keys) & (since[node] < order.ranks)
        is_kept[count:] &= source[count:] >= 0  # of other stored rows it is known already
        places.append(np.flatnonzero(is_kept))
        columns.append(np.full(len(places[-1]), column))
        ranks.append(since[node][is_kept])
    rank = np.concatenate(ranks)
    values = order.sequences.take(pa.array(rank, mask=rank < 0))
    names = [PLACE, KEPT_COLUMN, KEPT_SINCE]
    return pa.table([pa.array(np.concatenate(places)), pa.array(np.concatenate(columns)), values], names)


def _replace(rows: pa.Table, column: str, others: pa.ChunkedArray, places: Places, which: Mask) -> pa.Table:
    """Rows with values of a column taken from places among others, where ``which`` says so."""
    own = rows[column]
    if not which.any():
        return rows
    both = pa.chunked_array([*own.chunks, *others.chunks], own.type)
    values = both.take(pa.array(np.where(which, places + len(own), np.arange(len(own)))))
    return rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), values)

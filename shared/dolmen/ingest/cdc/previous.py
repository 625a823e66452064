"""Gives changes the values that the source left out: the values that their rows had before.

The changes of a key are ordered by their sequences, then by their rows in the file. The latest sequence of the key
follows them. A change that gives a row another key continues the row of the old key. The same row of the file deletes
that one, or the row before it (Debezium: ``d``, then ``c``, at one position in the source's log).

A value comes from the last earlier change that has it, in the same portion of the file, or from the row in the table.
The memory (``deleted_keys``) records values that are older than their rows: a late change may fall between the two.
Then its value goes into the row, whose sequence stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base import pc
from dolmen.format.schema import Field
from dolmen.ingest.cdc.changes import CREATED, DELETED, ROW, is_unavailable, unavailable_columns
from dolmen.ingest.cdc.deleted_keys import (
    KEPT_COLUMN,
    KEPT_SINCE,
    LIVE,
    SEQUENCE,
    TS,
    LatestSequences,
    condition_on_keys,
)
from dolmen.transactions.transaction import Transaction, unit_of

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NOWHERE = int(np.iinfo(np.int64).min)  # the source of a value that no change or row has
_AFTER_ALL_ROWS = 1 << 62


@dataclass(frozen=True, eq=False)
class ChangeOrder:
    """The order of some changes and their known keys. Indices count the changes first, then the known keys."""

    keys: Indices  # a number for each key
    ranks: Indices  # the ranks of the sequences; -1 for a stored row without one
    sequences: pa.Array  # by rank
    # by column id, for each known key: the rank of the sequence that supplied the value of the column
    kept: dict[int, Indices]
    rows: Indices  # the changes' rows in the file
    deletes: Mask
    old_keys: Indices  # for a change that gives its row another key, the index of the old key's delete; else -1
    live: Mask  # whether each known key has a row
    same_file: Mask  # whether each known key got its sequence from the same file

    @classmethod
    def of(
        cls, changes: pa.Table, latest: LatestSequences, keys: Sequence[str], sequence: str, first_ts: int
    ) -> ChangeOrder:
        """Orders all changes of some keys. Rows with timestamps from ``first_ts`` on are from the same file."""
        known_keys = latest.rows
        ranks, sequences = _ranks(_concat(changes[sequence], known_keys[SEQUENCE], latest.kept[KEPT_SINCE]))
        ranks, since = np.split(ranks, [changes.num_rows + known_keys.num_rows])
        rows, deletes = changes[ROW].to_numpy(), changes[DELETED].to_numpy()
        columns, indices = latest.kept[KEPT_COLUMN].to_numpy(), latest.kept["index"].to_numpy()
        kept = {column: np.full(known_keys.num_rows, -2) for column in np.unique(columns).tolist()}
        for column, ranks_ in kept.items():
            np.maximum.at(ranks_, indices[columns == column], since[columns == column])
        return cls(
            _key_numbers([_concat(changes[name], known_keys[name]) for name in keys]),
            ranks,
            sequences,
            {column: np.where(own == -2, ranks[len(rows) :], own) for column, own in kept.items()},
            rows,
            deletes,
            _find_old_keys(changes, rows, deletes, ranks),
            known_keys[LIVE].to_numpy(),
            known_keys[TS].to_numpy() >= first_ts,
        )

    def select_newer(self) -> Mask:
        changes, known_keys = self.keys[: len(self.rows)], self.keys[len(self.rows) :]
        latest, may_equal = np.full(len(self.keys), -2), np.zeros(len(self.keys), bool)
        latest[known_keys], may_equal[known_keys] = self.ranks[len(self.rows) :], self.same_file
        own = self.ranks[: len(self.rows)]
        newer: Mask = (own > latest[changes]) | ((own == latest[changes]) & may_equal[changes])
        return newer

    def select_after(self, some: Mask) -> Mask:
        """Selects the changes in ``some`` that come after all other changes of their keys."""
        count = len(self.rows)
        keys = self.keys[:count]
        indices = np.empty(count, np.int64)
        indices[np.lexsort((self.rows, self.ranks[:count], keys))] = np.arange(count)
        last = np.full(len(self.keys), -1)
        np.maximum.at(last, keys[~some], indices[~some])
        return some & (indices > last[keys])

    def find_sources(self, column: int, missing: Mask) -> tuple[Indices, Indices]:
        """Finds the sources of a column's values, which the ``missing`` changes lack.

        Returns:
            For each change, and for each known key: the index of the change that has the value; or the index of the
            known key whose row has it, counted down from -1; or ``NOWHERE``.
        """
        count, key_count = len(self.rows), len(self.live)
        moved = np.flatnonzero(missing & (self.old_keys >= 0))
        deletes = self.old_keys[moved]
        ends = count + np.arange(key_count)
        since = self.kept.get(column, self.ranks[count:])
        # A value is ordered by its source, maybe before late changes; the end of a row is ordered by the row.
        # A change of a key sees its old key as it was before the delete.
        keys = np.concatenate((self.keys, self.keys[deletes], self.keys[ends]))
        ranks = np.concatenate((self.ranks[:count], since, self.ranks[moved], self.ranks[ends]))
        stored_rows = np.where(self.same_file, -1, _AFTER_ALL_ROWS)
        rows = np.concatenate(
            (2 * self.rows, stored_rows, 2 * self.rows[deletes] - 1, np.where(self.same_file, 0, _AFTER_ALL_ROWS))
        )
        is_live = np.isin(self.keys[:count], self.keys[count:][self.live])
        has_value = np.zeros(len(keys), bool)
        has_value[:count] = ~missing & ~(self.deletes & ~self.select_newer() & is_live)
        has_value[count : count + key_count] = True
        order = np.lexsort((np.arange(len(keys)), rows, ranks, keys))
        nothing = len(order)
        before = np.full(nothing + 1, nothing)
        same_key = keys[order[1:]] == keys[order[:-1]]
        before[order[1:][same_key]] = order[:-1][same_key]
        source = np.where(np.append(has_value, True), np.arange(nothing + 1), before)
        source[moved] = count + key_count + np.arange(len(moved))
        while not np.array_equal(source, further := source[source]):
            source = further
        sources = np.concatenate((source[:count], source[nothing - key_count : nothing]))
        stored = sources - count
        is_stored = (stored >= 0) & (stored < key_count)
        is_stored[is_stored] = self.live[stored[is_stored]]
        is_changed = sources < count
        is_changed[is_changed] = ~self.deletes[sources[is_changed]]
        sources = np.where(is_changed, sources, np.where(is_stored, -1 - stored, NOWHERE))
        return sources[:count], sources[count:]


def _find_old_keys(changes: pa.Table, rows: Indices, deletes: Mask, ranks: Indices) -> Indices:
    """The index of the delete of each change's old key, or -1."""
    old_keys = np.full(len(rows), -1)
    order = np.lexsort((~deletes, rows))  # if a row changes its key, the old key's delete comes first
    after, before = order[1:], order[:-1]
    created = np.zeros(len(rows), bool)
    if CREATED in changes.column_names:
        created = pc.fill_null(changes[CREATED], False).to_numpy()
    goes_on = (rows[after] == rows[before]) | (created[after] & (ranks[after] == ranks[before]))
    goes_on &= deletes[before] & ~deletes[after]
    old_keys[after[goes_on]] = before[goes_on]
    return old_keys


def _concat(*columns: pa.ChunkedArray) -> pa.Array:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type).combine_chunks()


def _key_numbers(columns: Sequence[pa.Array]) -> Indices:
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        own = column.dictionary_encode().indices.to_numpy().astype(np.int64)
        _, numbers = np.unique(numbers * (len(own) + 1) + own, return_inverse=True)
    return numbers


def _ranks(values: pa.Array) -> tuple[Indices, pa.Array]:
    """The rank of each value among the distinct values, from 0, -1 for NULL; and the distinct values in order."""
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    ranks = np.full(len(order) + 1, -1)
    ranks[order.to_numpy()] = np.arange(len(order))
    indices: Indices = pc.fill_null(encoded.indices, -1).to_numpy()
    return ranks[indices], encoded.dictionary.take(order)


INDEX, STORED = "index", "stored"


@dataclass(frozen=True, eq=False)
class PreviousValues:
    """Changes, and the sources of the values that they lack."""

    changes: pa.Table  # the changes that can be applied, with their ``index`` among all
    amended: pa.Table  # stored rows that get values of late changes, as upserts
    lost: tuple[tuple[int, int], ...]  # row in the file and column of each value without a source
    kept: pa.Table  # the values that are older than their changes: ``index``, ``kept_column``, ``kept_since``
    every: pa.Table  # all changes, then a row for each known key
    known_keys: pa.Table  # the keys, in the order that sources count them
    sources: Mapping[int, Indices]  # by column id, see ``ChangeOrder.find_sources``

    @classmethod
    def of(
        cls, changes: pa.Table, latest: LatestSequences, keys: Sequence[str], sequence: Field, first_ts: int
    ) -> PreviousValues:
        """Finds the sources of all changes of some keys; see ``ChangeOrder.of``."""
        order_by = str(sequence.id)
        order = ChangeOrder.of(changes, latest, keys, order_by, first_ts)
        count, known_keys = changes.num_rows, latest.rows
        newer, lost_column = order.select_newer(), np.full(count, -1)
        sources: dict[int, Indices] = {}
        amended = np.zeros(known_keys.num_rows, bool)
        kept_columns = {column for column in order.kept if str(column) in changes.column_names}  # others were dropped
        for column in sorted({*unavailable_columns(changes), *kept_columns}):
            missing = is_unavailable(changes, column)
            change_sources, row_sources = order.find_sources(column, missing)
            lost_column[missing & newer & (change_sources == NOWHERE)] = column
            amended |= row_sources >= 0
            sources[column] = np.concatenate((change_sources, row_sources))
        lost = lost_column >= 0
        last = np.flatnonzero(order.select_after(lost))  # a later change may replace the value
        applied = ~lost & ~(order.deletes & np.isin(order.rows, order.rows[lost]))  # with the delete of its old key
        amended[np.isin(order.keys[count:], order.keys[:count][applied & newer])] = False

        every = _append_known_keys(changes, known_keys, keys, order_by)
        kept = _older_values(order, sources)
        if amended.any():
            others = {int(name) for name in changes.column_names if name.isdigit()} - {sequence.id, *map(int, keys)}
            as_it_is = np.concatenate((np.arange(count), -1 - np.arange(known_keys.num_rows)))
            sources |= dict.fromkeys(others - sources.keys(), as_it_is)
        return cls(
            every.slice(0, count).filter(pa.array(applied)),
            every.slice(count).filter(pa.array(amended)),
            tuple(sorted((int(order.rows[index]), int(lost_column[index])) for index in last)),
            kept,
            every,
            known_keys.select(keys),
            sources,
        )

    def select_kept(self, upserts: pa.Table) -> pa.Table:
        """Selects the older values of some changes or amended rows, with the columns of ``upserts`` and ``kept``."""
        indices = pc.index_in(self.kept[INDEX], upserts[INDEX].combine_chunks())
        kept = self.kept.filter(pc.is_valid(indices)).select([KEPT_COLUMN, KEPT_SINCE])
        rows = upserts.take(indices.drop_null())
        for name in kept.column_names:
            rows = rows.append_column(name, kept[name])
        return rows

    def fill(
        self, upserts: pa.Table, transaction: Transaction, table: str, keys: tuple[Field, ...]
    ) -> Iterator[pa.Table]:
        """Yields changes or amended rows with all values; the transaction depends on the rows that it reads."""
        indices = upserts[INDEX].to_numpy()
        stored = np.full(len(indices), -1)
        for column, sources in self.sources.items():
            source = sources[indices]
            upserts = _replace(upserts, str(column), self.every[str(column)], source, source >= 0)
            stored = np.where((source < 0) & (source != NOWHERE), -1 - source, stored)
        yield upserts.filter(pa.array(stored < 0))
        if (stored < 0).all():
            return
        waiting = upserts.append_column(STORED, pa.array(stored)).filter(pa.array(stored >= 0))
        is_stored = {id_: of[waiting[INDEX].to_numpy()] < 0 for id_, of in self.sources.items()}
        is_stored = {id_: mask for id_, mask in is_stored.items() if mask.any()}
        for rows in self._stored_rows(waiting[STORED], list(is_stored), transaction, table, keys):
            indices = pc.index_in(waiting[STORED], rows[STORED].combine_chunks())
            is_found = pc.is_valid(indices).to_numpy()
            part, indices = waiting.filter(pa.array(is_found)), indices.drop_null().to_numpy()
            for column, mask in is_stored.items():
                part = _replace(part, str(column), rows[str(column)], indices, mask[is_found])
            yield part

    def _stored_rows(
        self,
        stored: pa.ChunkedArray,
        columns: list[int],
        transaction: Transaction,
        table: str,
        keys: tuple[Field, ...],
    ) -> Iterator[pa.Table]:
        """Yields columns of stored rows with their index in ``known_keys``: one row for each key."""
        schema, names = unit_of(transaction).entry(table).schema, self.known_keys.column_names
        remaining = pc.unique(stored)
        sought = self.known_keys.take(remaining).append_column(STORED, remaining)
        ids = [*names, *map(str, columns)]
        scan = transaction.table(table).scan(
            [schema.by_id[int(id_)].name for id_ in ids], condition_on_keys(transaction, table, keys, sought)
        )
        for batch in scan.to_batches():
            rows = pa.Table.from_batches([batch]).rename_columns(ids)
            own = rows.select(names).append_column(INDEX, pa.array(np.arange(rows.num_rows)))
            matches = own.join(sought, names, join_type="inner", use_threads=False)
            matches = matches.filter(pc.is_in(matches[STORED], remaining)).group_by(STORED, use_threads=False)
            first = matches.aggregate([(INDEX, "min")])
            remaining = remaining.filter(pc.invert(pc.is_in(remaining, first[STORED].combine_chunks())))
            yield rows.select(ids[len(names) :]).take(first[f"{INDEX}_min"]).append_column(STORED, first[STORED])
        assert not len(remaining), "the latest sequences were read from these rows, in the same version"


def _append_known_keys(changes: pa.Table, known_keys: pa.Table, keys: Sequence[str], sequence: str) -> pa.Table:
    """Appends known keys to changes, as upserts without values; each row gets its index."""
    rows = known_keys.select(keys).append_column(sequence, known_keys[SEQUENCE])
    rows = rows.append_column(DELETED, pa.array(np.zeros(known_keys.num_rows, bool)))
    rows = rows.append_column(ROW, pa.array(np.zeros(known_keys.num_rows, np.int64)))
    every = pa.concat_tables([changes, rows], promote_options="default")
    return every.append_column(INDEX, pa.array(np.arange(every.num_rows)))


def _older_values(order: ChangeOrder, sources: Mapping[int, Indices]) -> pa.Table:
    """The values that are older than their rows. A value from another key counts as the change's own."""
    indices, columns, ranks = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    count = len(order.rows)
    for column, source in sources.items():
        node = np.where(source >= 0, source, count - 1 - source)
        node[source == NOWHERE] = 0
        since = order.ranks.copy()
        since[count:] = order.kept.get(column, since[count:])
        is_kept = (source != NOWHERE) & (order.keys[node] == order.keys) & (since[node] < order.ranks)
        is_kept[count:] &= source[count:] >= 0  # the memory has the others already
        indices.append(np.flatnonzero(is_kept))
        columns.append(np.full(len(indices[-1]), column))
        ranks.append(since[node][is_kept])
    rank = np.concatenate(ranks)
    values = order.sequences.take(pa.array(rank, mask=rank < 0))
    names = [INDEX, KEPT_COLUMN, KEPT_SINCE]
    return pa.table([pa.array(np.concatenate(indices)), pa.array(np.concatenate(columns)), values], names)


def _replace(rows: pa.Table, column: str, others: pa.ChunkedArray, indices: Indices, mask: Mask) -> pa.Table:
    """Replaces values of a column, where ``mask`` is true, by values of ``others`` at ``indices``."""
    own = rows[column]
    if not mask.any():
        return rows
    both = pa.chunked_array([*own.chunks, *others.chunks], own.type)
    values = both.take(pa.array(np.where(mask, indices + len(own), np.arange(len(own)))))
    return rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), values)

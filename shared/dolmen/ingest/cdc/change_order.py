"""The order of the changes of each key, with what the table and its memory have of it: what came before what.

The changes of a key are in the order of their sequences, and of their rows in the file. What is known of the key comes
after the changes that are not newer. A change that gives a row another key goes on from the row of the old key. The old
key is deleted by the same row of the file, or by the row before it, if the file says so in two (Debezium: ``d``, then
``c``, at one position in the source's log).

Cuts the changes of a file into portions, each of which is applied at once and held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.units import MIB
from dolmen.ingest.cdc.changes import CREATED, DELETED, ROW
from dolmen.ingest.cdc.deleted_keys import KEPT_COLUMN, KEPT_SINCE, LIVE, SEQUENCE, TS, LatestSequences

Places = npt.NDArray[np.int64]


Mask = npt.NDArray[np.bool_]


NOWHERE = int(np.iinfo(np.int64).min)
"""The source of a value that nothing has."""


_LAST = 1 << 62


@dataclass(frozen=True, eq=False)
class ChangeOrder:
    """Some changes, and what is known of their keys. The former are counted first, then the latter.

    Args:
        keys: a number for each key.
        ranks: of the sequences; -1 for a stored row without one.
        sequences: by rank.
        kept: of columns of known keys, by id, the rank of the sequence that their value is from, where that is older.
        rows: of the changes: their rows in the file.
        deletes: which changes are deletes.
        old_keys: for each change that gives its row another key the place of the delete of the old one; -1 for others.
        live: which of the known keys have a row.
        same_file: which of the known keys came to their sequence by the same file.
    """

    keys: Places
    ranks: Places
    sequences: pa.Array
    kept: dict[int, Places]
    rows: Places
    deletes: Mask
    old_keys: Places
    live: Mask
    same_file: Mask

    @classmethod
    def of(
        cls, changes: pa.Table, latest: LatestSequences, keys: Sequence[str], sequence: str, first_ts: int
    ) -> ChangeOrder:
        """The order of all changes of some keys.

        Args:
            latest: what is known of these keys.
            first_ts: what has this commit timestamp, or a later one, is of the same file.
        """
        known = latest.rows
        ranks, sequences = _ranks(_joined(changes[sequence], known[SEQUENCE], latest.kept[KEPT_SINCE]))
        ranks, since = np.split(ranks, [changes.num_rows + known.num_rows])
        rows, deletes = changes[ROW].to_numpy(), changes[DELETED].to_numpy()
        columns, places = latest.kept[KEPT_COLUMN].to_numpy(), latest.kept["place"].to_numpy()
        kept = {column: np.full(known.num_rows, -2) for column in np.unique(columns).tolist()}
        for column, ranks_ in kept.items():
            np.maximum.at(ranks_, places[columns == column], since[columns == column])
        return cls(
            _key_numbers([_joined(changes[name], known[name]) for name in keys]),
            ranks,
            sequences,
            {column: np.where(own == -2, ranks[len(rows) :], own) for column, own in kept.items()},
            rows,
            deletes,
            _find_old_keys(changes, rows, deletes, ranks),
            known[LIVE].to_numpy(),
            known[TS].to_numpy() >= first_ts,
        )

    def select_newer(self) -> Mask:
        """Selects the changes that are newer than what is known of their keys."""
        changes, known = self.keys[: len(self.rows)], self.keys[len(self.rows) :]
        latest, may_equal = np.full(len(self.keys), -2), np.zeros(len(self.keys), bool)
        latest[known], may_equal[known] = self.ranks[len(self.rows) :], self.same_file
        own = self.ranks[: len(self.rows)]
        newer: Mask = (own > latest[changes]) | ((own == latest[changes]) & may_equal[changes])
        return newer

    def select_after(self, some: Mask) -> Mask:
        """Selects those of some changes that come after all others of their keys."""
        count = len(self.rows)
        keys = self.keys[:count]
        places = np.empty(count, np.int64)
        places[np.lexsort((self.rows, self.ranks[:count], keys))] = np.arange(count)
        last = np.full(len(self.keys), -1)
        np.maximum.at(last, keys[~some], places[~some])
        return some & (places > last[keys])

    def find_sources(self, column: int, missing: Mask) -> tuple[Places, Places]:
        """Finds where the values of a column come from.

        Args:
            missing: the changes that do not have the value.

        Returns:
            For each change, and for each known key, the place of the change that has the value, or the place of the
            known key whose row has it, counted down from -1, or ``NOWHERE``.
        """
        count, known = len(self.rows), len(self.live)
        moved = np.flatnonzero(missing & (self.old_keys >= 0))
        deletes = self.old_keys[moved]
        ends = count + np.arange(known)
        since = self.kept.get(column, self.ranks[count:])
        # A value is where it comes from, maybe before changes that came late. The end of a row is where the row is.
        # A change of a key looks at its old key as it is before the delete.
        keys = np.concatenate((self.keys, self.keys[deletes], self.keys[ends]))
        ranks = np.concatenate((self.ranks[:count], since, self.ranks[moved], self.ranks[ends]))
        stored_rows = np.where(self.same_file, -1, _LAST)
        rows = np.concatenate(
            (2 * self.rows, stored_rows, 2 * self.rows[deletes] - 1, np.where(self.same_file, 0, _LAST))
        )
        has_value = np.zeros(len(keys), bool)
        has_value[:count] = ~missing & ~(self.deletes & ~self.select_newer() & self._is_live())
        has_value[count : count + known] = True
        order = np.lexsort((np.arange(len(keys)), rows, ranks, keys))
        nothing = len(order)
        before = np.full(nothing + 1, nothing)
        same_key = keys[order[1:]] == keys[order[:-1]]
        before[order[1:][same_key]] = order[:-1][same_key]
        source = np.where(np.append(has_value, True), np.arange(nothing + 1), before)
        source[moved] = count + known + np.arange(len(moved))
        while not np.array_equal(source, further := source[source]):
            source = further
        found = np.concatenate((source[:count], source[nothing - known : nothing]))
        stored = found - count
        is_stored = (stored >= 0) & (stored < known)
        is_stored[is_stored] = self.live[stored[is_stored]]
        is_changed = found < count
        is_changed[is_changed] = ~self.deletes[found[is_changed]]
        found = np.where(is_changed, found, np.where(is_stored, -1 - stored, NOWHERE))
        return found[:count], found[count:]

    def _is_live(self) -> Mask:
        """The changes whose keys have a row."""
        live = np.zeros(len(self.keys), bool)
        live[self.keys[len(self.rows) :]] = self.live
        return live[self.keys[: len(self.rows)]]


def _find_old_keys(changes: pa.Table, rows: Places, deletes: Mask, ranks: Places) -> Places:
    """The place of the delete of each change's old key, or -1."""
    found = np.full(len(rows), -1)
    order = np.lexsort((~deletes, rows))  # a row that changes its key: first the delete of the old one
    after, before = order[1:], order[:-1]
    created = np.zeros(len(rows), bool)
    if CREATED in changes.column_names:
        created = pc.fill_null(changes[CREATED], False).to_numpy()
    goes_on = (rows[after] == rows[before]) | (created[after] & (ranks[after] == ranks[before]))
    goes_on &= deletes[before] & ~deletes[after]
    found[after[goes_on]] = before[goes_on]
    return found


def _joined(*columns: pa.ChunkedArray) -> pa.Array:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type).combine_chunks()


def _key_numbers(columns: Sequence[pa.Array]) -> Places:
    """A number for each key: equal ones for equal keys."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        own = column.dictionary_encode().indices.to_numpy().astype(np.int64)
        _, numbers = np.unique(numbers * (len(own) + 1) + own, return_inverse=True)
    return numbers


def _ranks(values: pa.Array) -> tuple[Places, pa.Array]:
    """The rank of each value among the distinct ones, from 0 on, -1 for NULL; and the distinct ones in order."""
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    ranks = np.full(len(order) + 1, -1)
    ranks[order.to_numpy()] = np.arange(len(order))
    places: Places = pc.fill_null(encoded.indices, -1).to_numpy()
    return ranks[places], encoded.dictionary.take(order)


PORTION_ROWS = 500_000


PORTION_BYTES = 128 * MIB
"""The most bytes that are applied at once; they are held in memory, twice for a moment."""


def cut_portions(tables: Iterator[pa.Table], sequence: str, max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Cuts changes into portions, but not within a change of a key, even if it is two rows of the file."""
    held: list[pa.Table] = []
    rows = size = 0
    for changes in tables:
        for part in _parts(changes, sequence, max_rows):
            if held and (rows + part.num_rows > max_rows or size + part.nbytes > max_bytes):
                *whole, last = held
                border = pa.concat_tables([last.slice(last.num_rows - 1), part.slice(0, 1)], promote_options="default")
                held, rows, size = [], 0, 0
                if _joins(border, sequence)[0]:
                    held, last = [border.slice(0, 1)], last.slice(0, last.num_rows - 1)
                if whole or last.num_rows:
                    yield pa.concat_tables([*whole, last], promote_options="default")
            held.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
    if held:
        yield pa.concat_tables(held, promote_options="default")


def _parts(changes: pa.Table, sequence: str, max_rows: int) -> Iterator[pa.Table]:
    if changes.num_rows <= max_rows:
        yield changes
        return
    start, joins = 0, _joins(changes, sequence)
    while start < changes.num_rows:
        stop = start + max_rows
        while stop < changes.num_rows and joins[stop - 1]:
            stop += 1
        yield changes.slice(start, stop - start)
        start = stop


def _joins(changes: pa.Table, sequence: str) -> npt.NDArray[np.bool_]:
    """The changes, all but the last, that may delete the old key of a row that the next one gives another key."""
    rows, deletes = changes[ROW].to_numpy(), changes[DELETED].to_numpy()
    same: npt.NDArray[np.bool_] = np.diff(rows) == 0
    if CREATED in changes.column_names:
        created = pc.fill_null(changes[CREATED], False).to_numpy()
        equal = pc.equal(changes[sequence][1:], changes[sequence][:-1])
        same |= deletes[:-1] & created[1:] & equal.to_numpy()
    return same

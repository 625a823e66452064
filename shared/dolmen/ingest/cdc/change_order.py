"""The order of the changes of each key, with what the table and its memory have of it: what came before what.

The changes of a key are in the order of their sequences, and of their rows in the file. What is known of the key comes
after the changes that are not newer. A change that gives a row another key goes on from the row of the old key: that key
is deleted by the same row of the file, or by the row before it, if the file says so in two (Debezium: ``d``, then
``c``, at one position in the source's log).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.ingest.cdc.changes import CREATED, DELETED, ROW
from dolmen.ingest.cdc.current import LIVE, SEQUENCE, TS

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
        rows: of the changes: their rows in the file.
        deletes: which changes are deletes.
        old_keys: for each change that gives its row another key the place of the delete of the old one; -1 for others.
        live: which of the known keys have a row.
        same_file: which of the known keys came to their sequence by the same file.
    """

    keys: Places
    ranks: Places
    rows: Places
    deletes: Mask
    old_keys: Places
    live: Mask
    same_file: Mask

    @classmethod
    def of(cls, changes: pa.Table, known: pa.Table, keys: Sequence[str], sequence: str, first_ts: int) -> ChangeOrder:
        """The order of all changes of some keys.

        Args:
            known: what ``latest_sequences`` says of these keys.
            first_ts: what has this commit timestamp, or a later one, is of the same file.
        """
        ranks = _ranks(_joined(changes[sequence], known[SEQUENCE]))
        rows, deletes = changes[ROW].to_numpy(), changes[DELETED].to_numpy()
        return cls(
            _key_numbers([_joined(changes[name], known[name]) for name in keys]),
            ranks,
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
        return (own > latest[changes]) | ((own == latest[changes]) & may_equal[changes])

    def select_after(self, some: Mask) -> Mask:
        """Selects those of some changes that come after all others of their keys."""
        count = len(self.rows)
        keys = self.keys[:count]
        places = np.empty(count, np.int64)
        places[np.lexsort((self.rows, self.ranks[:count], keys))] = np.arange(count)
        last = np.full(len(self.keys), -1)
        np.maximum.at(last, keys[~some], places[~some])
        return some & (places > last[keys])

    def find_sources(self, missing: Mask) -> Places:
        """Finds where the values of one column come from.

        Args:
            missing: the changes that do not have the value.

        Returns:
            For each change the place of a change, or that of a stored row among the known keys, counted down from -1,
            or ``NOWHERE``.
        """
        count, known = len(self.rows), len(self.live)
        moved = np.flatnonzero(missing & (self.old_keys >= 0))
        deletes = self.old_keys[moved]
        # A change of a key looks at its old key as it is before the delete.
        keys = np.concatenate((self.keys, self.keys[deletes]))
        ranks = np.concatenate((self.ranks, self.ranks[moved]))
        rows = np.concatenate((2 * self.rows, np.where(self.same_file, -1, _LAST), 2 * self.rows[deletes] - 1))
        has_value = np.concatenate((~missing, np.ones(known, bool), np.zeros(len(moved), bool)))
        order = np.lexsort((rows, ranks, keys))
        nothing = len(order)
        before = np.full(nothing + 1, nothing)
        same_key = keys[order[1:]] == keys[order[:-1]]
        before[order[1:][same_key]] = order[:-1][same_key]
        source = np.where(np.append(has_value, True), np.arange(nothing + 1), before)
        source[moved] = count + known + np.arange(len(moved))
        while not np.array_equal(source, further := source[source]):
            source = further
        found = source[:count]
        stored = found - count
        is_stored = (stored >= 0) & (stored < known)
        lives = is_stored & self.live[np.where(is_stored, stored, 0)] if known else is_stored
        changed = (found < count) & ~self.deletes[np.where(found < count, found, 0)]
        return np.where(changed, found, np.where(lives, -1 - stored, NOWHERE))


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


def _joined(changes: pa.ChunkedArray, known: pa.ChunkedArray) -> pa.Array:
    return pa.chunked_array([*changes.chunks, *known.chunks], changes.type).combine_chunks()


def _key_numbers(columns: Sequence[pa.Array]) -> Places:
    """A number for each key: equal ones for equal keys."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        own = column.dictionary_encode().indices.to_numpy().astype(np.int64)
        _, numbers = np.unique(numbers * (len(own) + 1) + own, return_inverse=True)
    return numbers


def _ranks(values: pa.Array) -> Places:
    """The rank of each value among the distinct ones, from 0 on; -1 for NULL."""
    encoded = values.dictionary_encode()
    ranks = np.full(len(encoded.dictionary) + 1, -1)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(encoded.dictionary))
    places: Places = pc.fill_null(encoded.indices, -1).to_numpy()
    return ranks[places]

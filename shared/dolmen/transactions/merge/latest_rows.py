"""The one row of each primary key that a merge goes by, in a table where ``append`` has made several of some keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.format.schema import COMMIT_TS, Field
from dolmen.transactions.merge.rewriting import STEP, HiddenRows, PlacedRows, Places
from dolmen.transactions.merge.source import KeyIndex

_NO_ROWS = pa.record_batch([pa.nulls(0)], [""])


class RepeatedKeyError(Exception):
    """Several rows of the table have one primary key. Never leaves the merge, which then starts again."""


class LatestRows:
    """For each source row, the matching row that was committed last: the one that ``get`` returns, too.

    Args:
        index: of the source's keys.
        count: the number of source rows.
        fields: the columns of the primary key.
        rows: of the table, with these columns and the commit timestamp; taken once.
    """

    def __init__(self, index: KeyIndex, count: int, fields: Sequence[Field], rows: Iterable[PlacedRows]) -> None:
        self._paths: dict[str, int] = {}
        self._ts = np.full(count, -1, np.int64)
        self._file, self._position = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._others: list[tuple[PlacedRows, Places]] = []
        for placed in rows:
            ts = placed.rows[COMMIT_TS].cast(pa.int64()).to_numpy()
            files = self._files(placed)
            for _, _, left, right in index.pairs([placed.rows[field.name] for field in fields], STEP):
                order = np.lexsort((left, ts[left], right))
                left, right = left[order], right[order]
                last = np.append(right[1:] != right[:-1], True)[: len(right)]
                left, right = left[last], right[last]
                newer = ts[left] >= self._ts[right]
                left, right = left[newer], right[newer]
                self._ts[right], self._file[right] = ts[left], files[left]
                self._position[right] = placed.positions[left]

    def choose(self, placed: PlacedRows, left: Places, right: Places) -> tuple[Places, Places]:
        """Those pairs of target and source rows that count. The target rows of the others are noted."""
        counts = (self._files(placed)[left] == self._file[right]) & (placed.positions[left] == self._position[right])
        if not counts.all():
            others = left[~counts]
            where = PlacedRows(_NO_ROWS, placed.paths, placed.files[others], placed.positions[others])
            self._others.append((where, right[~counts]))
        return left[counts], right[counts]

    def hide_others(self, hidden: HiddenRows, changed: npt.NDArray[np.bool_]) -> None:
        """Hides the rows that were noted beside one that changes.

        Args:
            changed: whether the row that counts for a source row changes.
        """
        for placed, right in self._others:
            hidden.add(placed, np.flatnonzero(changed[right]))

    def _files(self, placed: PlacedRows) -> Places:
        numbers = [self._paths.setdefault(path, len(self._paths)) for path in placed.paths]
        return np.array(numbers, np.int64)[placed.files]

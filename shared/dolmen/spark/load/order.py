"""Rows in the order of a table's sort key, as Python values that compare as Arrow sorts.

For looking up few rows among many: by bisection in sorted runs, and of samples that say where to cut.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa

from dolmen.format.manifest import TableEntry
from dolmen.format.values import integer_form

Key: TypeAlias = list[list[Any]]
"""The sort key of a row: for each column a rank (values, then NaN, then NULL) and a value that JSON can hold."""

MOST_CHARACTERS = 200
"""Texts are compared by their first characters. That is an order too; only more rows are equal in it."""


class Keys:
    """The sort keys of some rows."""

    def __init__(self, rows: pa.Table, entry: TableEntry) -> None:
        names = [entry.schema.by_id[id_].name for id_ in entry.sort_key]
        self._columns = [_plain(rows.column(name)) for name in names]
        self._rows = rows.num_rows

    def at(self, row: int) -> Key:
        """The key of one row."""
        return [_value(column[row]) for column in self._columns]

    def cuts(self, bounds: Sequence[Key]) -> list[tuple[int, int, int]]:
        """Cuts sorted rows at bounds: (number of the range, first row, end) of each range that has rows.

        Range i has the rows from bound i - 1, included, to bound i.
        """
        if not self._rows:
            return []
        first, last = bisect_right(bounds, self.at(0)), bisect_right(bounds, self.at(self._rows - 1))
        ends = [0]
        for bound in bounds[first:last]:
            ends.append(bisect_left(range(self._rows), bound, lo=ends[-1], key=self.at))
        ends.append(self._rows)
        return [(first + place, *each) for place, each in enumerate(pairwise(ends)) if each[0] < each[1]]


@dataclass(frozen=True)
class Ranges:
    """The bounds of key ranges, so that the parts are about equal.

    Args:
        bounds: ascending, none twice; range i begins with bound i - 1.
        parts: of each range the part that it belongs to, ascending.
    """

    bounds: tuple[Key, ...]
    parts: tuple[int, ...]

    @classmethod
    def of(cls, samples: Iterable[tuple[Key, float]], parts: int, pieces: int) -> Ranges:
        """Cuts for ``parts`` parts of ``pieces`` ranges each.

        Args:
            samples: keys, each standing for so many bytes.
        """
        ordered = sorted(samples)
        total, count = sum(weight for _, weight in ordered), parts * pieces
        bounds, of = list[Key](), [0]
        passed, place = 0.0, 1
        for key, weight in ordered:
            if place < count and passed >= total * place / count and (not bounds or key > bounds[-1]):
                place = min(count - 1, int(passed * count / total))
                bounds.append(key)
                of.append(place // pieces)
                place += 1
            passed += weight
        return cls(tuple(bounds), tuple(of))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as the integers that they are: Python knows no year 10000."""
    integers = integer_form(column.type)
    return column.cast(integers) if integers else column


def _value(scalar: pa.Scalar) -> list[Any]:
    if not scalar.is_valid:
        return [2, 0]
    value = scalar.as_py()
    if isinstance(value, float):
        return [1, 0] if math.isnan(value) else [0, value]
    if isinstance(value, Decimal):
        sign, digits, _ = value.as_tuple()  # all of one scale
        return [0, int("".join(map(str, digits))) * (-1 if sign else 1)]
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return [0, value[:MOST_CHARACTERS] if isinstance(value, str) else int(value)]

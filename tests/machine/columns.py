"""The kinds of columns that the machine's tables have: their values, how these are written in SQL, and how they order.

Values are plain: temporal ones are integers, as stored. Pools are small, so that rows meet, and full of edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

START_US = 1_760_000_000_000_000
"""When the machine's clock begins, where it has one of its own; times of rows lie around it."""

HOUR_US = 3_600_000_000
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Kind:
    """A type of column.

    Args:
        values: strategy of what a row may hold, NULL apart.
        literal: a value as SQL.
        python: a value as users of Python write it.
        order: what comparisons go by; equal where SQL's ``=`` says so.
        is_key: whether it may be part of a key.
    """

    name: str
    arrow: pa.DataType
    values: st.SearchStrategy[Any]
    literal: Callable[[Any], str]
    python: Callable[[Any], Any] = lambda value: value
    order: Callable[[Any], Any] = lambda value: value
    is_key: bool = True

    def __repr__(self) -> str:
        return self.name

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis shows."""
        printer.text(self.name)


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: Kind

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Plain values, as Arrow has them."""
        arrow = self.kind.arrow
        if pa.types.is_temporal(arrow):
            return pa.array(values, pa.int32() if arrow.bit_width == 32 else pa.int64()).view(arrow)
        return pa.array(values, arrow)


def plain(column: pa.ChunkedArray) -> list[Any]:
    """What Arrow gives, as plain values."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column.to_pylist()


def _pool(*edges: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(edges)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _float_literal(value: float) -> str:
    return f"CAST({value:.17e} AS DOUBLE)" if math.isfinite(value) else f"'{value}'::DOUBLE"


def _float_order(value: float) -> tuple[bool, float]:
    """NaN is equal to itself and the greatest; -0.0 equals 0.0."""
    return (True, 0.0) if math.isnan(value) else (False, value)


def _moment(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


_TIMES = (0, 1, -1, START_US, START_US - 2 * HOUR_US, START_US + HOUR_US, START_US - 10 * 24 * HOUR_US)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("int64", pa.int64(), _pool(0, 1, 2, 3, -1, 2**53 + 1, 2**63 - 1, -(2**63)), str),
        Kind("uint64", pa.uint64(), _pool(0, 1, 2, 2**63, 2**64 - 1), str),
        Kind("int8", pa.int8(), _pool(0, 1, 2, -128, 127), str),
        Kind(
            "string",
            pa.string(),
            _pool(
                "", "a", "b", "A", "ab", "ä", "a'b", "%", "_", "日本", "🙂", "e\u0301", "\U0010ffff", "a\n", "x" * 70
            ),
            _quoted,
        ),
        Kind(
            "binary",
            pa.binary(),
            _pool(b"", b"a", b"\x00", b"\xff", b"\xff" * 40, b"'\\"),
            lambda value: "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB",
        ),
        Kind("bool", pa.bool_(), st.booleans(), lambda value: "TRUE" if value else "FALSE"),
        Kind(
            "decimal",
            pa.decimal128(18, 4),
            _pool(*map(Decimal, ("0.0000", "1.0000", "1.5000", "-1.0001", "99999999999999.9999"))),
            lambda value: f"{value:f}",
        ),
        Kind(
            "float64",
            pa.float64(),
            _pool(0.0, -0.0, math.nan, 1.5, -1.0, math.inf, -math.inf, 0.1, 5e-324, 1e300),
            _float_literal,
            order=_float_order,
            is_key=False,
        ),
        Kind(
            "date",
            pa.date32(),
            _pool(0, -1, 20_370, 20_369, 20_355, 2_000_000),
            lambda value: f"DATE '{date(1970, 1, 1) + timedelta(value)}'",
            python=lambda value: date(1970, 1, 1) + timedelta(value),
        ),
        Kind(
            "naive",
            pa.timestamp("us"),
            _pool(*_TIMES),
            lambda value: f"TIMESTAMP '{_moment(value)}'",
            python=_moment,
        ),
        Kind(
            "zoned",
            pa.timestamp("us", tz="UTC"),
            _pool(*_TIMES),
            lambda value: f"TIMESTAMPTZ '{_moment(value)}+00'",
            python=lambda value: _moment(value).replace(tzinfo=UTC),
        ),
    )
}
KEYS = [kind for kind in KINDS.values() if kind.is_key]


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Columns of a table, and the names of those that are its key: one or two, or none."""
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2))
    others = draw(st.lists(st.sampled_from(list(KINDS.values())), min_size=1, max_size=3))
    columns = tuple(Column(f"{'k' if i < len(keys) else 'c'}{i}", kind) for i, kind in enumerate([*keys, *others]))
    return columns, tuple(column.name for column in columns[: len(keys)])


def rows(columns: Sequence[Column], not_null: Sequence[str] = (), most: int = 12) -> st.SearchStrategy[list[Any]]:
    """Rows as tuples of plain values.

    Args:
        not_null: names of columns in which no NULL stands.
    """
    cells = [column.kind.values if column.name in not_null else st.none() | column.kind.values for column in columns]
    return st.lists(st.tuples(*cells), max_size=most)

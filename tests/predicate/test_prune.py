"""Verdicts from statistics: each of these once pruned somebody's rows away."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.format.entries import UNKNOWN, Bounds, bounds, column_stats
from dolmen.format.schema import Schema
from dolmen.predicate.parse import parse
from dolmen.predicate.prune import StatsVerdict, judge

NEVER, MAYBE, ALWAYS = StatsVerdict.NEVER, StatsVerdict.MAYBE, StatsVerdict.ALWAYS
ROWS = 10


def verdict(text: str, arrow_type: pa.DataType, *known: Bounds | None, rows: int = ROWS) -> StatsVerdict:
    """Of a predicate over columns x, y, ... of one type with these statistics."""
    schema = Schema.from_arrow(pa.schema([(name, arrow_type) for name, _ in zip("xyz", known, strict=False)]))
    stats = {column: known_of for column, known_of in enumerate(known, 1) if known_of is not None}
    return judge(parse(text, schema, now_us=0), stats, rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 4", NEVER),
        ("x = 5", MAYBE),
        ("x <> 4", ALWAYS),
        ("x <> 5", MAYBE),
        ("x < 5", NEVER),
        ("x <= 5", MAYBE),
        ("x < 10", ALWAYS),
        ("x <= 9", ALWAYS),
        ("x > 9", NEVER),
        ("x >= 5", ALWAYS),
        ("x < 4.5", NEVER),
        ("x > 4.5", ALWAYS),
        ("x < 300", ALWAYS),
        ("x > -1e300", ALWAYS),
        ("x = 'nan'::DOUBLE", NEVER),
        ("x < 'nan'::DOUBLE", ALWAYS),
        ("NOT x < 5", ALWAYS),
        ("NOT x >= 5", NEVER),
        ("x BETWEEN 0 AND 20", ALWAYS),
        ("x BETWEEN 10 AND 20", NEVER),
        ("x NOT BETWEEN 10 AND 20", ALWAYS),
        ("x IN (1, 2, 20)", NEVER),
        ("x IN (1, 7, 20)", MAYBE),
        ("x IN (1, 7.5, 20)", NEVER),
        ("x NOT IN (1, 2, 20)", ALWAYS),
        ("x IN (1, 20, NULL)", NEVER),
        ("x IN (7, NULL)", MAYBE),
        ("x IN (7, 8, NULL) OR x < 10", ALWAYS),
        ("x NOT IN (1, 20, NULL)", NEVER),
        ("x IS NULL", NEVER),
        ("x IS NOT NULL", ALWAYS),
        ("x IN (NULL)", NEVER),
        ("x < 5 OR x > 9", NEVER),
        ("x < 5 AND x = 7", NEVER),
        ("x >= 5 AND x <= 9", ALWAYS),
        ("x >= 5 AND NULL", NEVER),
        ("x >= 5 OR NULL", ALWAYS),
        ("TRUE", ALWAYS),
        ("FALSE", NEVER),
    ],
)
def test_a_range_of_integers_without_null(text: str, expected: StatsVerdict) -> None:
    assert verdict(text, pa.int8(), Bounds(5, 9, 0, 0)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("x < 10", MAYBE), ("x <> 4", MAYBE), ("x = 4", NEVER), ("x IS NULL", MAYBE), ("x < 10 OR x IS NULL", MAYBE)],
)
def test_nulls_or_an_unknown_number_of_them_prevent_always(text: str, expected: StatsVerdict) -> None:
    assert verdict(text, pa.int64(), Bounds(5, 9, 1, 0)) is expected
    assert verdict(text, pa.int64(), Bounds(5, 9, None, 0)) is expected


@pytest.mark.parametrize("text", ["x = 1", "x <> 1", "NOT x = 1", "x IS NULL", "x IS NOT NULL", "x < 5", "x IN (1, 2)"])
def test_absent_statistics_are_unknown_and_not_all_null(text: str) -> None:
    for absent in (None, UNKNOWN, Bounds(None, None, None, 0)):
        assert verdict(text, pa.int64(), absent) is MAYBE
    # One huge value may drop minimum and maximum, with the counts still there.
    assert verdict("x = 'a'", pa.string(), Bounds(None, None, 0, 0)) is MAYBE
    assert verdict("x <> 'a'", pa.string(), Bounds(None, None, 0, 0)) is MAYBE
    assert verdict("x IS NOT NULL", pa.string(), Bounds(None, None, 0, 0)) is ALWAYS
    assert verdict("x > 'a'", pa.string(), Bounds("b", None, 0, 0)) is ALWAYS
    assert verdict("x < 'a'", pa.string(), Bounds("b", None, 0, 0)) is NEVER


def test_a_column_of_only_null_matches_nothing_but_is_null() -> None:
    known = Bounds(None, None, ROWS, 0)
    for text in ("x = 1", "x <> 1", "NOT x = 1", "x IN (1, 2)", "x NOT IN (1, 2)", "x IS NOT NULL", "x = x"):
        assert verdict(text, pa.int64(), known) is NEVER
    assert verdict("x IS NULL", pa.int64(), known) is ALWAYS
    assert verdict("NOT x LIKE 'a'", pa.string(), known) is NEVER
    assert verdict("x > 1", pa.float64(), Bounds(None, None, ROWS, None)) is NEVER


@pytest.mark.parametrize(
    ("text", "without", "with_nan"),
    [
        ("x <> 3", ALWAYS, ALWAYS),
        ("NOT x < 3", ALWAYS, ALWAYS),
        ("x > 20", NEVER, MAYBE),
        ("NOT x <= 20", NEVER, MAYBE),
        ("x < 20", ALWAYS, MAYBE),
        ("x = 'nan'", NEVER, MAYBE),
        ("x <> 'nan'", ALWAYS, MAYBE),
        ("x >= 'nan'", NEVER, MAYBE),
        ("x <= 'nan'", ALWAYS, ALWAYS),
        ("x > 'nan'", NEVER, NEVER),
        ("x IN (1, 'nan')", NEVER, MAYBE),
        ("x NOT IN (1, 'nan')", ALWAYS, MAYBE),
        ("x NOT IN (1, 2)", ALWAYS, ALWAYS),
        ("x > 'inf'", NEVER, MAYBE),
    ],
)
def test_nan_is_outside_of_minimum_and_maximum(text: str, without: StatsVerdict, with_nan: StatsVerdict) -> None:
    assert verdict(text, pa.float64(), Bounds(5.0, 9.0, 0, 0)) is without
    assert verdict(text, pa.float64(), Bounds(5.0, 9.0, 0, 2)) is with_nan
    assert verdict(text, pa.float64(), Bounds(5.0, 9.0, 0, None)) is with_nan


def test_a_column_of_only_nan() -> None:
    known = Bounds(None, None, 0, ROWS)
    assert verdict("x > 5", pa.float64(), known) is ALWAYS
    assert verdict("x = 5", pa.float64(), known) is NEVER
    assert verdict("x = 'nan'", pa.float64(), known) is ALWAYS
    assert verdict("x = y", pa.float64(), known, known) is ALWAYS
    assert verdict("x = y", pa.float64(), known, Bounds(1.0, 2.0, 0, 0)) is NEVER


def test_negative_zero_in_bounds_is_zero() -> None:
    assert verdict("x = 0", pa.float64(), Bounds(-0.0, -0.0, 0, 0)) is ALWAYS
    assert verdict("x < 0", pa.float64(), Bounds(-0.0, 1.0, 0, 0)) is NEVER


def test_cut_texts_round_outwards() -> None:
    least, greatest = "a" * 30, "b" * 30
    known = bounds(column_stats(least, greatest, 0), pa.string())
    assert verdict(f"x = '{greatest}'", pa.string(), known) is MAYBE
    assert verdict(f"x = '{least}'", pa.string(), known) is MAYBE
    assert verdict(f"x > '{'b' * 16}'", pa.string(), known) is MAYBE
    assert verdict("x > 'c'", pa.string(), known) is NEVER
    top = bounds(column_stats("", "\U0010ffff" * 30, 0), pa.string())
    assert verdict(f"x = '{chr(0x10FFFF) * 30}'", pa.string(), top) is MAYBE
    raw = bounds(column_stats(b"", b"\xff" * 30, 0), pa.binary())
    assert verdict("x > '\\xff\\xff'", pa.binary(), raw) is MAYBE


def test_bounds_of_one_value_decide_equality() -> None:
    assert verdict("x = 5", pa.int64(), Bounds(5, 5, 0, 0)) is ALWAYS
    assert verdict("x <> 5", pa.int64(), Bounds(5, 5, 0, 0)) is NEVER
    assert verdict("x IN (5, 6)", pa.int64(), Bounds(5, 5, 0, 0)) is ALWAYS
    assert verdict("x NOT IN (5, 6)", pa.int64(), Bounds(5, 5, 0, 0)) is NEVER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x LIKE 'b%'", MAYBE),
        ("x LIKE 'ba%'", ALWAYS),
        ("x LIKE 'c%'", NEVER),
        ("x NOT LIKE 'c%'", ALWAYS),
        ("x LIKE 'ba_'", MAYBE),
        ("x LIKE 'c%z'", NEVER),
        ("x LIKE 'c_'", NEVER),
        ("x LIKE 'aaa'", NEVER),
        ("x LIKE '%'", ALWAYS),
        ("x LIKE '%a'", MAYBE),
        ("x LIKE '_a%'", MAYBE),
        ("x LIKE 'b!%' ESCAPE '!'", NEVER),
        ("x ILIKE 'C%'", MAYBE),
    ],
)
def test_like_is_judged_by_its_prefix(text: str, expected: StatsVerdict) -> None:
    known = Bounds("ba", "baz", 0, 0) if text != "x LIKE 'b%'" else Bounds("aa", "bz", 0, 0)
    assert verdict(text, pa.string(), known) is expected


def test_prefixes_at_the_end_of_unicode_have_an_upper_bound_or_none() -> None:
    last = "\U0010ffff"
    assert verdict(f"x LIKE '{last}%'", pa.string(), Bounds("a", "b", 0, 0)) is NEVER
    assert verdict(f"x LIKE '{last}%'", pa.string(), Bounds(last, last + last, 0, 0)) is ALWAYS
    assert verdict("x LIKE '\ud7ff%'", pa.string(), Bounds("\ue000", "\uf000", 0, 0)) is NEVER


@pytest.mark.parametrize(
    ("op", "apart", "same", "crossing"),
    [
        ("<", ALWAYS, NEVER, MAYBE),
        ("<=", ALWAYS, ALWAYS, MAYBE),
        ("=", NEVER, ALWAYS, MAYBE),
        ("<>", ALWAYS, NEVER, MAYBE),
        (">", NEVER, NEVER, MAYBE),
        (">=", NEVER, ALWAYS, MAYBE),
    ],
)
def test_two_columns_are_judged_by_both_ranges(
    op: str, apart: StatsVerdict, same: StatsVerdict, crossing: StatsVerdict
) -> None:
    text = f"x {op} y"
    assert verdict(text, pa.int64(), Bounds(1, 4, 0, 0), Bounds(5, 9, 0, 0)) is apart
    assert verdict(text, pa.int64(), Bounds(5, 5, 0, 0), Bounds(5, 5, 0, 0)) is same
    assert verdict(text, pa.int64(), Bounds(1, 6, 0, 0), Bounds(5, 9, 0, 0)) is crossing
    assert verdict(text, pa.int64(), Bounds(5, 9, 0, 0), Bounds(1, 6, 0, 0)) is crossing
    assert verdict(text, pa.int64(), Bounds(3, 4, 0, 0), Bounds(1, 9, 0, 0)) is crossing
    assert verdict(text, pa.int64(), Bounds(1, 4, 0, 0), None) is MAYBE
    assert verdict(text, pa.int64(), Bounds(1, 4, 0, 0), Bounds(5, 9, ROWS, 0)) is NEVER


def test_boolean_columns() -> None:
    for known, expected in [
        (Bounds(True, True, 0, 0), ALWAYS),
        (Bounds(False, False, 0, 0), NEVER),
        (Bounds(False, True, 0, 0), MAYBE),
        (Bounds(True, True, 1, 0), MAYBE),
        (None, MAYBE),
    ]:
        assert verdict("x", pa.bool_(), known) is expected
        assert verdict("x = TRUE", pa.bool_(), known) is expected
    assert verdict("NOT x", pa.bool_(), Bounds(False, False, 0, 0)) is ALWAYS
    assert verdict("x IS TRUE", pa.bool_(), Bounds(False, False, 3, 0)) is NEVER


@pytest.mark.parametrize("text", ["TRUE", "x = 1", "x IS NULL", "NOT x = 1"])
def test_nothing_matches_in_an_empty_file(text: str) -> None:
    assert verdict(text, pa.int64(), Bounds(None, None, 0, 0), rows=0) is NEVER
    assert verdict(text, pa.int64(), None, rows=0) is NEVER


@pytest.mark.parametrize(
    ("arrow_type", "least", "greatest", "text", "expected"),
    [
        (pa.uint64(), 2**63, 2**64 - 1, "x > 9223372036854775807", ALWAYS),
        (pa.int64(), 2**53, 2**53 + 1, "x = 9007199254740993", MAYBE),
        (pa.int64(), 2**53 + 1, 2**53 + 1, "x = 9007199254740992", NEVER),
        (pa.int64(), 2**53 + 1, 2**53 + 1, "x = 9007199254740992e0", ALWAYS),
        (pa.decimal128(10, 2), Decimal("1.10"), Decimal("1.20"), "x < 1.1", NEVER),
        (pa.decimal128(10, 2), Decimal("1.10"), Decimal("1.20"), "x < 1.2000001", ALWAYS),
        (pa.date32(), 10, 10, "x = '1970-01-11'", ALWAYS),
        (pa.date32(), 10, 10, "x < TIMESTAMP '1970-01-11 00:00:00.000001'", ALWAYS),
        (pa.timestamp("us"), 0, 5, "x < '1970-01-01 00:00:00.000005'", MAYBE),
        (pa.timestamp("us", tz="UTC"), 0, 5, "x <= '1970-01-01 01:00:00.000005+01'", ALWAYS),
        (pa.time64("us"), 0, 5, "x < '00:00:01'", ALWAYS),
        (pa.binary(), b"\x00", b"\xfe", "x < '\\xff'", ALWAYS),
        (pa.float32(), 0.10000000149011612, 0.10000000149011612, "x = 0.1", ALWAYS),
        (pa.float32(), 0.10000000149011612, 0.10000000149011612, "x = 1e-1", NEVER),
    ],
)
def test_every_type_of_bounds_is_exact(
    arrow_type: pa.DataType, least: Any, greatest: Any, text: str, expected: StatsVerdict
) -> None:
    assert verdict(text, arrow_type, Bounds(least, greatest, 0, 0)) is expected


def test_bounds_are_believed_only_as_far_as_they_go() -> None:
    assert verdict("x < 5", pa.float64(), Bounds(-math.inf, math.inf, 0, 0)) is MAYBE
    assert verdict("x <= 'inf'", pa.float64(), Bounds(1.0, math.inf, 0, 0)) is ALWAYS

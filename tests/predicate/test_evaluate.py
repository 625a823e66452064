"""Evaluation on Arrow columns: types that differ from the bound ones, NULL, NaN, shapes of input."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import SchemaError
from dolmen.format.schema import Schema
from dolmen.predicate.ast import Predicate
from dolmen.predicate.evaluate import evaluate, matches
from dolmen.predicate.parse import parse

NAN, INF = math.nan, math.inf


def bound(text: str, **types: pa.DataType) -> Predicate:
    return parse(text, Schema.from_arrow(pa.schema(list(types.items()))), now_us=0)


def truth(p: Predicate, *arrays: Any) -> list[bool | None]:
    data = dict(enumerate(arrays, 1))
    return evaluate(p, data, len(arrays[0])).to_pylist()


def test_comparing_with_null_is_unknown_and_where_keeps_only_true() -> None:
    x = pa.array([1, 2, None])
    assert truth(bound("x <> 1", x=pa.int64()), x) == [False, True, None]
    assert truth(bound("NOT x = 1", x=pa.int64()), x) == [False, True, None]
    assert truth(bound("x NOT IN (1, NULL)", x=pa.int64()), x) == [False, None, None]
    assert truth(bound("x IN (1, NULL)", x=pa.int64()), x) == [True, None, None]
    assert truth(bound("x = 1 OR x IS NULL", x=pa.int64()), x) == [True, False, True]
    assert truth(bound("x = 1 AND NULL", x=pa.int64()), x) == [None, False, None]
    assert matches(bound("x NOT IN (1)", x=pa.int64()), {1: x}, 3).to_pylist() == [False, True, False]


def test_literals_beyond_the_type_compare_as_numbers_and_never_wrap() -> None:
    x = pa.array([-128, 44, 127, None], pa.int8())  # 300 wraps to 44
    for text, expected in [
        ("x = 300", [False, False, False, None]),
        ("x <> 300", [True, True, True, None]),
        ("x < 300", [True, True, True, None]),
        ("x >= -129", [True, True, True, None]),
        ("x > -129", [True, True, True, None]),
        ("x <> -129", [True, True, True, None]),
        ("x = -129", [False, False, False, None]),
        ("x <= -129", [False, False, False, None]),
        ("x <= 300", [True, True, True, None]),
        ("x > 300", [False, False, False, None]),
        ("x >= 300", [False, False, False, None]),
        ("x < -129", [False, False, False, None]),
        ("x IN (300, 127)", [False, False, True, None]),
        ("x NOT IN (300)", [True, True, True, None]),
        ("x < 43.5", [True, False, False, None]),
        ("x >= 44.0", [False, True, True, None]),
        ("x = 44.5", [False, False, False, None]),
        ("x < 1e300", [True, True, True, None]),
    ]:
        assert truth(bound(text, x=pa.int8()), x) == expected, text
    u = pa.array([0, 2**64 - 1], pa.uint64())
    assert truth(bound("u > -1", u=pa.uint64()), u) == [True, True]
    assert truth(bound("u = -1", u=pa.uint64()), u) == [False, False]
    assert truth(bound("u = 18446744073709551615", u=pa.uint64()), u) == [False, True]


def test_a_narrower_file_is_widened_and_the_literal_never_narrowed() -> None:
    p = bound("x = 4294967301", x=pa.int64())  # 2^32 + 5
    assert truth(p, pa.array([5, 0, None], pa.int32())) == [False, False, None]
    assert truth(p, pa.array([5, 2**32 + 5], pa.int64())) == [False, True]


def test_a_double_literal_matches_no_float_that_is_only_near_it() -> None:
    p = bound("x = 0.1", x=pa.float64())
    assert truth(p, pa.array([0.1, 0.25], pa.float32())) == [False, False]
    assert truth(bound("x IN (0.1, 0.25)", x=pa.float64()), pa.array([0.1, 0.25], pa.float32())) == [False, True]


def test_a_list_compares_in_the_widest_type_of_all_its_members() -> None:
    x = pa.array([0.1, 1.0], pa.float32())
    assert truth(bound("x IN (0.1, 1)", x=pa.float32()), x) == [True, True]
    tuples = "(x, x) IN ((0.1, 0.1), (1e0, 1))"
    for text in ("x IN (0.1, 1e0)", "x IN (1e0, 0.1)", "x BETWEEN 0.1 AND 1e-1 OR x = 1", tuples):
        assert truth(bound(text, x=pa.float32()), x) == [False, True], text


def test_columns_compare_in_the_wider_of_bound_and_file_type() -> None:
    p = bound("a = b", a=pa.int64(), b=pa.float64())
    # As float32 both were 16777216.
    assert truth(p, pa.array([16777217]), pa.array([16777216.0], pa.float32())) == [False]


def test_a_predicate_is_not_evaluated_on_a_column_of_another_kind() -> None:
    p = bound("x = 1 AND y = 2", x=pa.int64(), y=pa.int64())
    with pytest.raises(SchemaError, match="in this file"):
        evaluate(p, {1: pa.array(["a"]), 2: pa.array([1])}, 1)


def test_nan_equals_itself_and_is_the_greatest_in_every_operator() -> None:
    x = pa.array([NAN, INF, 1.0, None])
    for text, expected in [
        ("x = 'nan'", [True, False, False, None]),
        ("x <> 'nan'", [False, True, True, None]),
        ("x < 'nan'", [False, True, True, None]),
        ("x <= 'nan'", [True, True, True, None]),
        ("x > 'nan'", [False, False, False, None]),
        ("x >= 'nan'", [True, False, False, None]),
        ("x > 'inf'", [True, False, False, None]),
        ("x > 0", [True, True, True, None]),
        ("NOT x < 3", [True, True, False, None]),
        ("x <> 1", [True, True, False, None]),
        ("x IN (1, 'nan')", [True, False, True, None]),
        ("x NOT IN (1, 2)", [True, True, False, None]),
        ("x BETWEEN 0 AND 'nan'", [True, True, True, None]),
    ]:
        assert truth(bound(text, x=pa.float64()), x) == expected, text
    y = pa.array([NAN, NAN, NAN, 1.0])
    for op, expected in [
        ("=", [True, False, False, None]),
        ("<>", [False, True, True, None]),
        ("<", [False, True, True, None]),
        ("<=", [True, True, True, None]),
        (">", [False, False, False, None]),
        (">=", [True, False, False, None]),
    ]:
        assert truth(bound(f"x {op} y", x=pa.float64(), y=pa.float64()), x, y) == expected, op


def test_negative_zero_is_zero_in_comparisons_and_lists() -> None:
    x = pa.array([-0.0, 0.0, 1.0])
    many = ", ".join(str(i) for i in range(2, 60))
    for text in ("x = 0", "x IN (0, 7)", "x <= 0", f"x IN (0, {many})", "x = -0e0", "x >= -0e0 AND x < 1"):
        assert truth(bound(text, x=pa.float64()), x) == [True, True, False], text


def test_long_lists_mean_what_short_ones_mean() -> None:
    members = ", ".join(str(i) for i in range(1000))
    x = pa.array([5, 1000, None], pa.int16())
    assert truth(bound(f"x IN ({members})", x=pa.int64()), x) == [True, False, None]
    assert truth(bound(f"x IN ({members}, NULL)", x=pa.int64()), x) == [True, None, None]
    f = pa.array([5.0, NAN, None], pa.float32())
    assert truth(bound(f"f IN ({members}, 'nan')", f=pa.float32()), f) == [True, True, None]


def test_large_integers_beside_floats_go_to_the_nearest_float() -> None:
    n = pa.array([2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1])
    assert truth(bound("n = 9007199254740992e0", n=pa.int64()), n) == [True, True, False, False]
    assert truth(bound("n > 9007199254740992e0", n=pa.int64()), n) == [False, False, True, True]
    assert truth(bound("n = 9007199254740993", n=pa.int64()), n) == [False, True, False, False]
    assert truth(bound("n <= 9223372036854775808e0", n=pa.int64()), n) == [True, True, True, True]
    assert truth(bound("n = d", n=pa.int64(), d=pa.float64()), n, pa.array([2.0**53] * 4)) == [True, True, False, False]


@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize("name", ["FLOAT", "DOUBLE"])
def test_literals_and_columns_round_alike_around_every_float(op: str, name: str) -> None:
    """The kernels for a literal (no cast) agree with those for a column (a cast) where rounding decides."""
    floats = [2.0**24, 2.0**24 + 2, 2.0**53, 2.0**53 + 2, -(2.0**63), 2.0**63, 0.1, 1e300, -INF, NAN]
    arrow_type = pa.float32() if name == "FLOAT" else pa.float64()
    floats = pa.array(floats).cast(arrow_type, safe=False).to_pylist()
    whole = pa.array([0, 2**24, 2**24 + 1, 2**24 + 3, 2**53 - 1, 2**53 + 1, 2**53 + 3, 2**63 - 1, -(2**63), None])
    exact = pa.array(
        [Decimal("0.1"), Decimal("0.1000000000000000056"), Decimal(2**53 + 1), None], pa.decimal128(38, 19)
    )
    for column in (whole, exact):
        for value in floats:
            text = f"x {op} CAST('{value!r}' AS {name})"
            by_literal = truth(bound(text, x=column.type), column)
            other = pa.array([value] * len(column), arrow_type)
            assert by_literal == truth(bound(f"x {op} y", x=column.type, y=arrow_type), column, other), text


def test_decimals_of_any_scale_compare_exactly_with_integers_and_each_other() -> None:
    x = pa.array([Decimal("1.10"), Decimal("-0.01"), None], pa.decimal128(5, 2))
    y = pa.array([Decimal("1.1000000001"), Decimal("-0.01"), Decimal(1)], pa.decimal128(38, 10))
    z = pa.array([2**63 - 1, -1, 0])
    assert truth(bound("x < y", x=x.type, y=y.type), x, y) == [True, False, None]
    assert truth(bound("x < z", x=x.type, z=z.type), x, z) == [True, False, None]
    assert truth(bound("y > z", y=y.type, z=pa.uint64()), y, pa.array([1, 0, 2**64 - 1], pa.uint64())) == [
        True, False, False,
    ]  # fmt: skip
    assert truth(bound("x = 1.1", x=x.type), x) == [True, False, None]
    assert truth(bound("x < 1.1000001", x=x.type), x) == [True, True, None]


def test_signed_and_unsigned_extremes_compare_without_overflow() -> None:
    i, u = pa.array([-1, 2**63 - 1]), pa.array([2**64 - 1, 2**63 - 1], pa.uint64())
    assert truth(bound("i < u", i=i.type, u=u.type), i, u) == [True, False]
    assert truth(bound("i = u", i=i.type, u=u.type), i, u) == [False, True]


def test_dates_are_their_midnight_among_timestamps_even_far_away() -> None:
    day = pa.array([0, 1, 2**31 - 1, None], pa.int32()).cast(pa.date32())
    assert truth(bound("day < TIMESTAMP '1970-01-02 00:00:00.000001'", day=day.type), day) == [True, True, False, None]
    at = pa.array([1, 86_400_000_000, 0, 0], pa.timestamp("us"))
    assert truth(bound("day < at", day=day.type, at=at.type), day, at) == [True, False, False, None]
    assert truth(bound("day = at", day=day.type, at=at.type), day, at) == [False, True, False, None]


def test_strings_compare_by_their_bytes() -> None:
    x = pa.array(["Z", "a", "é", "\uffff", "\U0001f642", ""])
    assert truth(bound("x > 'a'", x=pa.string()), x) == [False, False, True, True, True, False]
    assert truth(bound("x > '\uffff'", x=pa.string()), x) == [False, False, False, False, True, False]


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("'a%'", ["a", "ab", "a\nb", "a%b", "a.b"]),
        ("'%b'", ["ab", "a\nb", "a%b", "a.b"]),
        ("'%%'", ["", "a", "ab", "a\nb", "a%b", "a.b", "日本", "\\"]),
        ("'a_b'", ["a\nb", "a%b", "a.b"]),
        ("'a.b'", ["a.b"]),
        ("'__'", ["ab", "日本"]),
        ("'%\n%'", ["a\nb"]),
        ("'a!%b' ESCAPE '!'", ["a%b"]),
        ("'a\\%b'", []),
        ("'\\'", ["\\"]),
        ("'%'", ["", "a", "ab", "a\nb", "a%b", "a.b", "日本", "\\"]),
        ("''", [""]),
        ("'_%'", ["a", "ab", "a\nb", "a%b", "a.b", "日本", "\\"]),
        ("'%_b'", ["ab", "a\nb", "a%b", "a.b"]),
    ],
)
def test_like_knows_percent_underscore_and_newlines(pattern: str, matching: list[str]) -> None:
    texts = ["", "a", "ab", "a\nb", "a%b", "a.b", "日本", "\\"]
    found = truth(bound(f"x LIKE {pattern}", x=pa.string()), pa.array([*texts, None]))
    assert found == [*(text in matching for text in texts), None]


def test_columns_may_be_chunked_dictionaries_large_or_of_type_null() -> None:
    p = bound("x = 'a' AND y > 1", x=pa.string(), y=pa.int64())
    plain = pa.array(["a", "b", None, "a"])
    chunked = pa.chunked_array([["a"], ["b", None, "a"]])
    y = pa.array([2, 2, 2, None])
    for x in (plain, chunked, plain.dictionary_encode(), chunked.dictionary_encode(), plain.cast(pa.large_string())):
        assert truth(p, x, y) == [True, False, None, None], x.type
    assert truth(p, plain, pa.nulls(4)) == [None, False, None, None]
    assert truth(p, pa.chunked_array([], pa.string()), pa.chunked_array([], pa.int64())) == []


def test_constants_take_the_given_length() -> None:
    assert evaluate(bound("TRUE", x=pa.int8()), {}, 3).to_pylist() == [True] * 3
    assert evaluate(bound("x IN (NULL)", x=pa.int8()), {}, 2).to_pylist() == [None] * 2
    assert matches(bound("NULL", x=pa.int8()), {}, 1).to_pylist() == [False]
    assert evaluate(bound("x < 300", x=pa.int8()), {1: pa.array([1, 2], pa.int8())}, 2).to_pylist() == [True, True]

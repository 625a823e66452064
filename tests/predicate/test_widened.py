"""Predicates over columns that got a wider type: the same rows match in files of both, and statistics never lie."""

from __future__ import annotations

import math
import os
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from dolmen.format.column_history import LAST_DAY, widen, widen_keys, widen_stats, widening_problem
from dolmen.format.entries import Bounds, bounds, column_stats
from dolmen.format.schema import Schema
from dolmen.format.types import to_array, to_plain
from dolmen.predicate.ast import Predicate
from dolmen.predicate.bind import compare, days_to_timestamps
from dolmen.predicate.constants import Value
from dolmen.predicate.domains import domain_of
from dolmen.predicate.evaluate import evaluate
from dolmen.predicate.prune import StatsVerdict, judge

SEED = int(os.environ["DOLMEN_TEST_SEED"])
_INTEGERS = st.sampled_from([0, 1, -1, 5, 127, -128])
_FLOATS = st.sampled_from([0.0, -0.0, 0.5, 0.10000000149011612, 16777216.0, math.nan, math.inf, -math.inf, 1e30])
_DAYS = st.sampled_from([0, -1, 1, -719_162, 20_000, LAST_DAY, -LAST_DAY])
PAIRS: list[tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any], st.SearchStrategy[Any]]] = [
    (pa.int8(), pa.int64(), _INTEGERS, _INTEGERS | st.sampled_from([2**53 + 1, -(2**63), 128])),
    (pa.uint8(), pa.uint64(), st.sampled_from([0, 1, 255]), st.sampled_from([0, 1, 255, 256, 2**64 - 1])),
    (pa.float32(), pa.float64(), _FLOATS.filter(lambda v: v != 1e30), _FLOATS | st.sampled_from([0.1, 16777217.0])),
    (
        pa.decimal128(4, 1),
        pa.decimal128(38, 1),
        st.sampled_from(list(map(Decimal, ("0.0", "1.5", "-999.9", "999.9")))),
        st.sampled_from(list(map(Decimal, ("0.0", "1.5", "-999.9", "1000.0", "-99999999999.9")))),
    ),
    (pa.date32(), pa.timestamp("us"), _DAYS, st.sampled_from([0, 1, -1, 86_400_000_000, 86_399_999_999, 2**63 - 1])),
]
OPS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def predicate(op: Any, kind: pa.DataType, value: Any) -> Predicate:
    domain = domain_of(kind)
    assert domain is not None
    return compare(op, Schema.from_arrow(pa.schema([("x", kind)])).field("x"), Value(domain, value))


def known(array: pa.Array) -> Bounds:
    """Exact bounds of a column in its file, as its entry has them."""
    numbers = [value for value in to_plain(array) if value is not None and value == value]
    nans = sum(value is not None and value != value for value in to_plain(array))
    ends = (min(numbers), max(numbers)) if numbers else (None, None)  # type: ignore[type-var]
    return bounds(column_stats(*ends, array.null_count, nans), array.type)


def check(verdict: StatsVerdict, found: pa.BooleanArray) -> None:
    if verdict is StatsVerdict.NEVER:
        assert not pc.any(found.fill_null(False), min_count=0).as_py()
    if verdict is StatsVerdict.ALWAYS:
        assert pc.all(found.fill_null(False), min_count=0).as_py()


@pytest.mark.slow
@pytest.mark.parametrize(("narrow", "wide", "stored", "asked"), PAIRS, ids=lambda one: str(one)[:20])
def test_rows_and_statistics_of_the_narrow_type_answer_as_those_of_the_wide_one(
    narrow: pa.DataType, wide: pa.DataType, stored: st.SearchStrategy[Any], asked: st.SearchStrategy[Any]
) -> None:
    assert widening_problem(narrow, wide) == ""
    assert widening_problem(wide, narrow)

    @seed(SEED)
    @settings(max_examples=150, deadline=None, database=None)
    @given(st.lists(st.none() | stored, min_size=1, max_size=4), OPS, asked, stored)
    def holds(values: list[Any], op: Any, value: Any, older: Any) -> None:
        array = to_array(values, narrow)
        stats = column_stats(*known(array)[:2], array.null_count, known(array).nans)
        told = bounds(widen_stats({1: stats}, {1: (narrow, wide)})[1], wide)
        now = predicate(op, wide, value)
        found = evaluate(now, {1: array}, len(array))
        assert found.equals(evaluate(now, {1: array.cast(wide)}, len(array)))
        check(judge(now, {1: told}, len(array)), found)
        before = predicate(op, narrow, older)
        after = days_to_timestamps(before, {1: wide})
        hidden = evaluate(before, {1: array}, len(array))
        assert hidden.equals(evaluate(after, {1: array}, len(array)))
        check(judge(after, {1: told}, len(array)), hidden)

    holds()


def test_keys_that_are_no_timestamps_are_no_keys() -> None:
    days = pa.array([-LAST_DAY - 1, -LAST_DAY, 0, LAST_DAY, 2**31 - 1], pa.int32()).cast(pa.date32())
    keys = widen_keys(pa.table({"1": days}), pa.schema([("1", pa.timestamp("us"))]))
    assert to_plain(keys["1"].combine_chunks()) == [-LAST_DAY * 86_400_000_000, 0, LAST_DAY * 86_400_000_000]
    assert widen(2**31 - 1, pa.date32(), pa.timestamp("us")) == LAST_DAY * 86_400_000_000

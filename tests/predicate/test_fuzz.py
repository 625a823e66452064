"""Any text and any mapping is refused by an error of dolmen's, or is a predicate that every reader evaluates alike."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dolmen.errors import InputError
from dolmen.format.column_history import with_field_ids
from dolmen.format.schema import Schema
from dolmen.predicate.ast import columns, from_json, listed_tuples, to_json
from dolmen.predicate.evaluate import check_evaluates, evaluate
from dolmen.predicate.mapping_reader import OPERATORS
from dolmen.predicate.parse import parse
from dolmen.predicate.prune import judge
from dolmen.predicate.text import to_sql

CASES = 10_000 if os.environ.get("DOLMEN_LONG") else 300
TABLE = pa.table(
    {
        "id": pa.array([1, -(2**63), 2**63 - 1, 0, None], pa.int64()),
        "tiny": pa.array([1, -128, 127, 0, None], pa.int8()),
        "u": pa.array([0, 1, 2**64 - 1, 2**63, None], pa.uint64()),
        "name": pa.array(["a", "", "Ä%_'", "it's\n", None]),
        "d": pa.array([1.5, float("nan"), float("inf"), -0.0, None]),
        "f": pa.array([0.1, float("nan"), float("-inf"), 0.0, None], pa.float32()),
        "c": pa.array([Decimal("1.25"), Decimal("-99.99"), Decimal(0), Decimal("99.99"), None], pa.decimal128(4, 2)),
        "flag": pa.array([True, False, True, False, None]),
        "raw": pa.array([b"a", b"", b"\xff", b"ab", None]),
        "day": pa.array([0, -(2**31), 2**31 - 1, 19_000, None], pa.int32()).cast(pa.date32()),
        "at": pa.array([0, -(2**63), 2**63 - 1, 1, None], pa.int64()).view(pa.timestamp("us", "UTC")),
        "seen": pa.array([0, -(2**63), 2**63 - 1, 1, None], pa.int64()).view(pa.timestamp("us")),
        "clock": pa.array([0, 1, 86_399_999_999, 5, None], pa.time64("us")),
        "tags": pa.array([["a"], [], None, ["b"], None], pa.list_(pa.string())),
        "place": pa.array(
            [{"zip": "a", "geo": {"n": 1}}, {"zip": None, "geo": None}, None, {"zip": "", "geo": {"n": None}}, None],
            pa.struct([("zip", pa.string()), ("geo", pa.struct([("n", pa.int8())]))]),
        ),
    }
)
SCHEMA = Schema.from_arrow(TABLE.schema)
DATA = {field.id: with_field_ids(TABLE[field.name].combine_chunks(), field.arrow_type) for field in SCHEMA.fields}

LITERALS = [
    "0", "1", "-1", "2", "3.5", "1e3", "1e400", "0.1", "128", "18446744073709551616",
    "99999999999999999999999999999999999999", "'a'", "''", "'A%'", "'1'", "'nan'", "'1e99999'", "'2020-01-31'",
    "'2020-01-31 10:00'", "'99999-12-31'", "'-0044-03-15'", "'10:30'", "TRUE", "FALSE", "NULL", "now()",
    "current_date", "DATE '2020-01-31'",
]  # fmt: skip
OTHERS = ["?", ":x", "$1", "INTERVAL"]
NAMES = [*TABLE.column_names, '"id"', "ID", "nope", "t.id", '"', "place.zip", "place.geo.n", '"place"."ZIP"']
WORDS = [
    "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE", "IS", "DISTINCT", "FROM", "ESCAPE", "CAST", "TRY_CAST",
    "AS", "BIGINT", "TINYINT", "VARCHAR", "DOUBLE", "DATE", "DECIMAL(4,2)", "TIMESTAMP", "TIMESTAMPTZ", "DAY",
    "MONTH", "lower(", "upper(", "length(", "abs(", "isnan(", "coalesce(",
    "contains(", "starts_with(", "NAN", "INTERVAL '1 month'", "INTERVAL 3 DAY", "year(", "month(", "hour(",
    "extract(", "YEAR", "date_trunc(", "CASE", "WHEN",
    "THEN", "END", "SELECT", "EXISTS", "(", ")", ",", "=", "<>", "<", "<=", ">", ">=", "==", "+", "-", "*", "/",
    "%", "//", "::", "||", ";", ".", "--", "/*", "*/", "[", "]", "{", "}", "~", "^", "&", "|", "!", "@", "#",
    "$$", "e'", "x'",
]  # fmt: skip
TYPES = ["TINYINT", "BIGINT", "UBIGINT", "DOUBLE", "FLOAT", "VARCHAR", "DATE", "TIMESTAMP", "DECIMAL(9,3)"]
FUNCTIONS = ["lower", "upper", "length", "abs", "year", "day", "hour", "-"]
SIDES = st.recursive(
    st.sampled_from([*TABLE.column_names[:13], "place.zip", "place.geo.n", *LITERALS]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/%"), inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
        st.tuples(st.sampled_from(FUNCTIONS), inner).map(lambda e: f"{e[0]}({e[1]})"),
        st.tuples(inner, st.sampled_from(TYPES))
        .map(lambda each: f"CAST({each[0]} AS {each[1]})"),
    ),
    max_leaves=4,
)  # fmt: skip
LEAVES = st.one_of(
    st.tuples(SIDES, st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM"]), SIDES).map(" ".join),
    st.tuples(SIDES, SIDES, SIDES).map(lambda each: f"{each[0]} BETWEEN {each[1]} AND {each[2]}"),
    st.tuples(SIDES, st.lists(st.sampled_from(LITERALS), max_size=4)).map(
        lambda each: f"{each[0]} IN ({', '.join(each[1])})"
    ),
    st.tuples(SIDES, st.sampled_from(["LIKE", "ILIKE"]), st.text("a%_'Ä", max_size=6)).map(
        lambda each: f"{each[0]} {each[1]} '{each[2].replace(chr(39), chr(39) * 2)}'"
    ),
    SIDES.map(lambda side: f"{side} IS NULL"),
    st.sampled_from(["flag", "TRUE", "NULL", "flag IS NOT TRUE", "(id, name) IN ((1, 'a'))"]),
)  # fmt: skip
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda each: f"NOT ({each})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
    ),
    max_leaves=4,
)
SOUP = st.one_of(
    st.lists(st.sampled_from([*LITERALS, *OTHERS, *NAMES, *WORDS]), max_size=12).map(" ".join),
    st.text(max_size=40),
    st.text(st.characters(categories=["Cs", "Nd", "Po"]), max_size=10).map(lambda text: f"name = '{text}'"),
)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5), st.decimals(),
    st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.dates(), st.times(), st.timedeltas(), st.uuids(),
    st.complex_numbers(), st.text(st.characters(categories=["Cs"]), max_size=2),
    st.sampled_from([10**1000, -(10**400), 2**64, Decimal("1e999999"), Decimal("sNaN"), pd.NaT, pd.NA, np.int8(3),
                     np.float32(0.1), np.datetime64("NaT"), np.datetime64("2020-01-01", "ns"),
                     np.datetime64("99999-01-01", "D"),
                     np.timedelta64(1, "s"), pd.Timestamp(1), np.array([1]), object(), datetime.max, date.min, time.max,
                     pa.scalar(1), float("-inf"), range(3), {1, 2}, b"\xff", bytearray(b"a"), Ellipsis, int]),
)  # fmt: skip
MAPPINGS = st.dictionaries(
    st.one_of(st.sampled_from(NAMES), st.text(max_size=3)),
    st.one_of(
        VALUES,
        st.lists(VALUES, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(OPERATORS), st.text(max_size=2), st.integers()),
            st.one_of(VALUES, st.lists(VALUES, max_size=3)),
            max_size=3,
        ),
    ),
    max_size=3,
)  # fmt: skip


def check_all(sources: st.SearchStrategy[Any], accepted_share: float) -> None:
    """Checks many conditions. A share of them must be accepted: a fuzz of refused ones finds nothing."""
    accepted = 0

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(sources)
    def run(source: Any) -> None:
        nonlocal accepted
        accepted += check(source)

    run()
    print(f"{accepted} of {CASES} were accepted")
    assert accepted >= CASES * accepted_share


def check(source: Any) -> bool:
    """Refused by an InputError (False), or evaluated alike in every form that there is of it."""
    try:
        p = parse(source, SCHEMA, now_us=1_750_000_000_000_000)
    except InputError as error:
        if len(str(error)) > 1500:
            raise
        return False
    check_evaluates(p)
    found = evaluate(p, DATA, 5)
    stored = from_json(to_json(p))
    assert stored == p
    assert listed_tuples(stored) == listed_tuples(p)
    halves = [
        evaluate(stored, {id_: array.slice(at, 3) for id_, array in DATA.items()}, min(3, 5 - at)) for at in (0, 3)
    ]
    assert pa.chunked_array(halves).combine_chunks().equals(found)
    again = parse(to_sql(p, SCHEMA), SCHEMA, now_us=0)
    assert evaluate(again, DATA, 5).equals(found), to_sql(p, SCHEMA)
    judge(p, {}, 5)
    assert columns(p) <= DATA.keys()
    return True


@pytest.mark.slow
def test_conditions_are_refused_or_evaluated() -> None:
    check_all(CONDITIONS, 0.1)


@pytest.mark.slow
def test_any_text_is_refused_or_evaluated() -> None:
    check_all(SOUP, 0.02)


@pytest.mark.slow
def test_any_mapping_is_refused_or_evaluated() -> None:
    check_all(MAPPINGS, 0.01)


@pytest.mark.slow
def test_any_parameters_are_refused_or_evaluated() -> None:
    texts = st.sampled_from(["id = ?", "name = :x", "id IN ?", "d BETWEEN ? AND ?", "at < ? OR c = ?"]) | SOUP
    some = st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=2), VALUES, max_size=2) | VALUES
    fitting = st.one_of(
        st.tuples(st.sampled_from(["id = ?", "d > ?", "name = ?", "raw <> ?", "at < ?", "day = ?"]), st.tuples(VALUES)),
        st.tuples(st.sampled_from(["d BETWEEN ? AND ?", "at < ? OR c = ?"]), st.tuples(VALUES, VALUES)),
        st.tuples(st.sampled_from(["name = :x", "id IN :x"]), st.fixed_dictionaries({"x": VALUES})),
    )
    check_all(st.tuples(texts, some) | fitting, 0.02)

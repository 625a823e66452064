"""A predicate costs no more than it says: what is too large, too deep or too long is refused before it is read."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import InputError, LimitError, PredicateError
from dolmen.format.schema import Schema
from dolmen.predicate.ast import MAX_DEPTH, MAX_PATTERN, Column, Like, Not, from_json
from dolmen.predicate.evaluate import evaluate
from dolmen.predicate.parse import parse

SCHEMA = Schema.from_arrow(
    pa.schema(
        [
            ("id", pa.int64()),
            ("s", pa.string()),
            ("d", pa.float64()),
            ("c", pa.decimal128(10, 2)),
            ("b", pa.binary()),
            ("t", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
        ]
    )
)
ZEROS = "0" * 5_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "s = '" + "a" * 1_000_000 + "'",
        "s LIKE '" + "a" * 990_000 + "'",
        "s LIKE '" + "_" * (MAX_PATTERN + 1) + "'",
        "id IN (" + ", ".join(["1"] * 60_000) + ")",
        "id IN (" + ", ".join(["'--'"] * 200_000) + ")",
        " OR ".join(["id = 1"] * 10_001),
        "(id, day) IN (" + ", ".join(["(1, 2)"] * 30_000) + ")",
        "<".join(["id"] * 30_000),
        "id" + " IS NULL" * 30_000,
        "CASE WHEN " * 30_000,
        "id = " + "~" * 90_000 + "1",
        "id = " + "+".join(["1"] * 6_000),
        "id" + "::INT" * 6_000 + " = 1",
        ".".join(["id"] * 6_000) + " = 1",
        "-- '\n" + "<".join(["id"] * 200_000) + " -- '",
    ],
    ids=lambda text: text[:20],
)
def test_a_text_that_would_take_long_is_refused(text: str) -> None:
    with pytest.raises(LimitError, match=r"[\d,]{2,}"):
        parse(text, SCHEMA, now_us=0)


@pytest.mark.parametrize(
    "text",
    [
        "id = '1e400000'",
        "id = '1e99999999'",
        "id = '1e-99999999'",
        "c = '1e99999999'",
        "id = '" + "1" * 5_000 + "'",
        "id = " + "1" * 5_000,
        "id = 1" + ZEROS,
        "id = 0." + ZEROS,
        "d = '" + "1" * 100_000 + "'",
        "id = CAST(1 AS DECIMAL(" + "9" * 5_000 + "))",
        "id = CAST(1 AS DECIMAL(a))",
        "id = CAST(1 AS DECIMAL(1, 2, 3))",
        "id = '\u0661'",
        "t < now() - INTERVAL '999999999999999999 years'",
        "t < now() - INTERVAL '" + " " * 900_000 + "'",
        "t < now() - INTERVAL '1 " + "day" * 1000 + "'",
        "t < now() - INTERVAL 1 YEAR * 99999999999999999999999999999999999999",
        "day < DATE '9999999-01-01' + 99999999999999999999999999",
        "t < '" + "2" * 100_000 + "-01-01'",
        "s = '\ud800'",
        '"\ud800" = 1',
        "NOT " * 21 + "id = 1",
        "id = " + "- " * 21 + "1",
        "(" * 21 + "id = 1" + ")" * 21,
        "?" * 20_000 + "id = 1",
        "CASE WHEN " * 10_000,
        "id = " + "+".join(["1"] * 4_000),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_would_never_end_or_end_in_a_bare_error_is_refused(text: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse(text, SCHEMA, now_us=0)
    assert len(str(caught.value)) < 400, "a message quotes no more than it must"


@pytest.mark.parametrize(
    "mapping",
    [
        {"s": "\ud800"},
        {"\ud800": 1},
        {"t": pd.NaT},
        {"id": pd.NA},
        {"id": np.timedelta64(5, "ns")},
        {"t": np.datetime64("NaT")},
        {"t": np.datetime64("2020-01-01T00:00:00.000000001")},
        {"id": [np.array([1])]},
        {"id": object()},
    ],
    ids=lambda mapping: str(mapping).partition(" at 0x")[0],  # the same in all processes
)
def test_a_value_that_equals_nothing_is_refused(mapping: dict[str, Any]) -> None:
    with pytest.raises(PredicateError):
        parse(mapping, SCHEMA, now_us=0)


def test_numbers_beyond_all_columns_equal_nothing() -> None:
    data = {1: pa.array([1], pa.int64()), 4: pa.array([Decimal("1.00")], pa.decimal128(10, 2))}
    for value in (10**1000, -(10**1000), Decimal("1e30"), Decimal("1e999999"), Decimal("sNaN"), Decimal("-Infinity")):
        for name in ("id", "c"):
            assert evaluate(parse({name: value}, SCHEMA, now_us=0), data, 1).to_pylist() == [False]
    assert evaluate(parse("id > 1" + "0" * 390, SCHEMA, now_us=0), data, 1).to_pylist() == [False]


def test_a_list_of_too_many_members_is_refused() -> None:
    with pytest.raises(LimitError, match="1,000,001 members"):
        parse({"id": range(1_000_001)}, SCHEMA, now_us=0)


def test_the_times_of_numpy_mean_what_they_say() -> None:
    expected = parse("t = TIMESTAMPTZ '2020-01-02 03:04:05+00'", SCHEMA, now_us=0)
    naive = Schema.from_arrow(pa.schema([("t", pa.timestamp("us"))]))
    found = parse({"t": np.datetime64("2020-01-02T03:04:05", "ns")}, naive, now_us=0)
    assert found.right.value == expected.right.value  # type: ignore[union-attr]


def _nots(count: int) -> str:
    return '{"kind":"not","arg":' * count + '{"kind":"constant","value":null}' + "}" * count


COLUMN = {"kind": "column", "id": 1, "type": "int64"}


def _compared(of: str, value: Any) -> dict[str, Any]:
    return {"kind": "compare", "op": "=", "left": COLUMN, "right": {"kind": "literal", "type": of, "value": value}}


@pytest.mark.parametrize(
    "document",
    [
        _compared("decimal128(3, 1)", "1e99999999"),
        _compared("decimal128(3, 1)", "1000.0"),
        _compared("decimal128(3, 1)", "NaN"),
        _compared("int64", 2**63),
        _compared("int8", 128),
        _compared("uint8", -1),
        _compared("double", 10**400),
        {"kind": "in", "column": COLUMN, "type": "decimal128(3, 1)", "values": ["1e99999999"]},
        json.loads(_nots(MAX_DEPTH + 1)),
    ],
)
def test_what_no_writer_stored_is_not_read(document: dict[str, Any]) -> None:
    with pytest.raises(PredicateError, match="predicate"):
        from_json(json.dumps(document))


@pytest.mark.parametrize(
    "keys",
    [[Decimal("1e30")], [10**1000], ["\ud800"], [object()], [float("nan")], [Decimal("sNaN")], [b"\xff"]],
    ids=lambda keys: type(keys[0]).__name__,
)
def test_keys_that_no_row_can_have_are_refused(keys: list[Any]) -> None:
    table = dolmen.open(f"memory:///{uuid4()}").create_table(
        "t", pa.schema([("id", pa.int64()), ("s", pa.string())]), primary_key="id"
    )
    for column in ("id", "s"):
        with pytest.raises(InputError):
            table.delete(keys=keys, on=[column])


TEXTS = pa.array(["a" * 60_000, "b" * 60_000, "ab" * 30_000, "a" * 59_999, "", None, "ä" * 60_000])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("_" * 60_000, [True, True, True, False, False, None, True]),
        ("%a" * 58_000, [True, False, False, True, False, None, False]),
        ("%a" * 29_000 + "%b", [False, False, True, False, False, None, False]),
        ("a_" * 29_000 + "%_b", [False, False, True, False, False, None, False]),
        ("%" + "_" * 60_000, [True, True, True, False, False, None, True]),
        ("%_" * 60_000 + "%", [True, True, True, False, False, None, True]),
    ],
    ids=lambda value: str(value)[:8],
)
def test_a_stored_pattern_longer_than_is_now_allowed_is_still_evaluated(
    pattern: str, expected: list[bool | None]
) -> None:
    p = Like(Column(2, "string"), pattern)
    for column in (TEXTS, pa.chunked_array([TEXTS.slice(0, 2), TEXTS.slice(2)]), TEXTS.dictionary_encode()):
        assert evaluate(p, {2: column}, len(TEXTS)).to_pylist() == expected


def test_text_that_is_no_utf8_does_not_stop_a_reader() -> None:
    damaged = pa.Array.from_buffers(pa.string(), 3, pa.array([b"A\xffb", b"AB", None]).buffers())
    for pattern, expected in (
        ("a%b", [True, True, None]),
        ("ab", [False, True, None]),
        ("%\ufffd%", [True, False, None]),
    ):
        p = parse(f"s ILIKE '{pattern}'", SCHEMA, now_us=0)
        assert evaluate(p, {2: damaged}, 3).to_pylist() == expected


@pytest.mark.parametrize("pattern", ["_" * MAX_PATTERN, "%a" * (MAX_PATTERN // 2), "a_%" * 3_000, "\u00e4_" * 5_000])
@pytest.mark.parametrize("word", ["LIKE", pytest.param("ILIKE", marks=pytest.mark.slow)])
def test_a_delete_by_the_longest_pattern_leaves_the_table_readable(pattern: str, word: str) -> None:
    table = dolmen.open(f"memory:///{uuid4()}").create_table("t", pa.schema([("s", pa.string())]))
    table.append({"s": ["a" * MAX_PATTERN, "b", None, ""]})
    table.delete(f"s {word} '{pattern}'")
    found = table.scan().to_arrow()
    assert table.count() == found.num_rows == (4 if "\u00e4" in pattern else 3)


def test_a_delete_that_no_reader_could_evaluate_is_refused() -> None:
    table = dolmen.open(f"memory:///{uuid4()}").create_table("t", pa.schema([("s", pa.string())]))
    table.append({"s": ["a"]})
    for pattern in ("_" * 70_000, "%a" * 58_000):
        with pytest.raises(LimitError, match="LIKE pattern"):
            table.delete(f"s LIKE '{pattern}'")
    deep = from_json(_nots(150))
    for _ in range(MAX_DEPTH):
        deep = Not(deep)
    with pytest.raises(PredicateError, match="evaluate"):
        table.delete(deep)  # type: ignore[arg-type]
    for _ in range(5_000):
        deep = Not(deep)
    for read in (table.count, table.delete):
        with pytest.raises(PredicateError, match="nested"):
            read(deep)
        with pytest.raises(PredicateError, match=r"column.* 9"):
            read(Like(Column(9, "string"), "a"))
    assert table.count() == 1

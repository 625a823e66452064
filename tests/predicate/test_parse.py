"""What text and mappings become, and what is refused, where and why."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from dolmen.errors import PredicateError
from dolmen.format.schema import Schema
from dolmen.predicate.ast import Compare, Constant, In, IsNull, Literal
from dolmen.predicate.parse import parse
from dolmen.predicate.text import to_sql

NOW_US = 1_750_000_000_000_000  # 2025-06-15 15:06:40 UTC

_NAMED_APART = Schema.from_arrow(
    pa.schema(
        [
            ("flag", pa.bool_()),
            ("tiny", pa.int8()),
            ("n", pa.int64()),
            ("u", pa.uint64()),
            ("f", pa.float32()),
            ("d", pa.float64()),
            ("price", pa.decimal128(10, 2)),
            ("name", pa.string()),
            ("raw", pa.binary()),
            ("day", pa.date32()),
            ("clock", pa.time64("us")),
            ("naive", pa.timestamp("us")),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("Mixed", pa.int8()),
            ("k", pa.int8()),
            ("k2", pa.int8()),
            ("order", pa.int8()),
            ('odd "name"', pa.int8()),
            ("x IN (1)", pa.int8()),
        ]
    )
)
SCHEMA = msgspec.structs.replace(  # older tables have columns whose names differ in case only
    _NAMED_APART,
    fields=tuple(msgspec.structs.replace(f, name="K") if f.name == "k2" else f for f in _NAMED_APART.fields),
)


def sql(source: Any) -> str:
    """The canonical text of what ``source`` is understood as; understood again as the same."""
    p = parse(source, SCHEMA, now_us=NOW_US)
    text = to_sql(p, SCHEMA)
    assert parse(text, SCHEMA, now_us=0) == p
    return text


def literal(source: Any) -> Literal:
    p = parse(source, SCHEMA, now_us=NOW_US)
    assert isinstance(p, Compare)
    assert isinstance(p.right, Literal)
    return p.right


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("N = 1", "n = 1"),
        ("MIXED = 1", '"Mixed" = 1'),
        ('"mixed" = 1', '"Mixed" = 1'),
        ('"K" = 1', '"K" = 1'),
        ('"order" = 1', '"order" = 1'),
        ('"odd ""name""" = 1', '"odd ""name""" = 1'),
        ('"x IN (1)" NOT IN (1, 2)', '"x IN (1)" NOT IN (1, 2)'),
        ("5 < n", "n > 5"),
        ("n = 1_000", "n = 1000"),
        ("n == 1", "n = 1"),
        ("n != 1", "n <> 1"),
        ("n = +1 - -2", "n = 3"),
        ("n = 2 + 3 * 4 - 10 // 3 % 2", "n = 13"),
        ("n = -7 // 2", "n = -3"),
        ("n = -7 % 4", "n = -3"),
        ("d = 10 / 4", "d = 2.5"),
        ("d = 0.1 + 0.2", "d = 0.3"),
        ("price = 0.1 * 3", "price = 0.30"),
        ("n = CAST('42' AS BIGINT)", "n = 42"),
        ("n = '42'", "n = 42"),
        ("n BETWEEN 1 AND 3", "n >= 1 AND n <= 3"),
        ("5 BETWEEN tiny AND n", "tiny <= 5 AND n >= 5"),
        ("n IN (3, 1, 2.0, 1)", "n IN (1, 2, 3)"),
        ("n IN (7)", "n = 7"),
        ("n IN (1, NULL)", "n IN (1, NULL)"),
        ("n IN ()", "FALSE"),
        ("n IN (NULL)", "NULL"),
        ("n NOT IN (1, 2)", "n NOT IN (1, 2)"),
        ("n ISNULL", "n IS NULL"),
        ("NOT n IS NULL", "n IS NOT NULL"),
        ("flag", "flag"),
        ("NOT NOT flag", "flag"),
        ("flag = 'true'", "flag = TRUE"),
        ("name LIKE 'a%'", "name LIKE 'a%'"),
        ("name NOT LIKE '50!%' ESCAPE '!'", "NOT name LIKE '50!%' ESCAPE '!'"),
        ("name ILIKE 'It''s'", "name ILIKE 'It''s'"),
        ("raw = '\\x61\\x00b'", "raw = 'a\\x00b'"),
        ("raw = 'ab'::BLOB", "raw = 'ab'"),
        ("n IS DISTINCT FROM 3", "n <> 3 OR n IS NULL"),
        ("n IS NOT DISTINCT FROM NULL", "n IS NULL"),
        ("n = 1 OR (n = 2 OR (n = 3 AND flag))", "n = 1 OR n = 2 OR (n = 3 AND flag)"),
        ("n = 1 AND TRUE", "n = 1"),
        ("n = 1 AND FALSE", "FALSE"),
        ("n = 1 OR NULL", "n = 1 OR NULL"),
        ("1 = 1", "TRUE"),
        ("n = 1;", "n = 1"),
        ("n = 1 -- of course", "n = 1"),
        ("(n, name) = (1, 'a')", "n = 1 AND name = 'a' AND n IS NOT NULL AND name IS NOT NULL"),
    ],
)
def test_text_is_read_as_duckdb_reads_it(text: str, meaning: str) -> None:
    assert sql(text) == meaning


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("at < '2025-01-01'", "at < TIMESTAMPTZ '2025-01-01 00:00:00+00:00'"),
        ("at < '2025-01-01T10:00:00+02:30'", "at < TIMESTAMPTZ '2025-01-01 07:30:00+00:00'"),
        ("at < DATE '2025-01-01'", "at < TIMESTAMPTZ '2025-01-01 00:00:00+00:00'"),
        ("at < now() - INTERVAL 90 DAY", "at < TIMESTAMPTZ '2025-03-17 15:06:40+00:00'"),
        ("at < current_timestamp - INTERVAL '90 days 3 hours'", "at < TIMESTAMPTZ '2025-03-17 12:06:40+00:00'"),
        ("at < date_trunc('month', now())", "at < TIMESTAMPTZ '2025-06-01 00:00:00+00:00'"),
        ("at < date_trunc('week', now())", "at < TIMESTAMPTZ '2025-06-09 00:00:00+00:00'"),
        ("naive < CAST(now() AS TIMESTAMP)", "naive < TIMESTAMP '2025-06-15 15:06:40'"),
        ("naive > '2025-01-01 10:00:00.000001'", "naive > TIMESTAMP '2025-01-01 10:00:00.000001'"),
        ("naive = DATE '2024-01-31' + INTERVAL 1 MONTH", "naive = TIMESTAMP '2024-02-29 00:00:00'"),
        ("naive = TIMESTAMP '2024-03-31 10:00' - INTERVAL '1' MONTH", "naive = TIMESTAMP '2024-02-29 10:00:00'"),
        ("day < current_date - 30", "day < DATE '2025-05-16'"),
        ("day = '2025-1-2'", "day = DATE '2025-01-02'"),
        ("day = '-0044-03-15'", "day = DATE '-0044-03-15'"),
        ("day < '12345-01-01'", "day < DATE '12345-01-01'"),
        ("day < TIMESTAMP '2025-01-01 10:00'", "day < TIMESTAMP '2025-01-01 10:00:00'"),
        ("clock >= '10:30'", "clock >= TIME '10:30:00'"),
    ],
)
def test_times_are_folded_to_utc_microseconds(text: str, meaning: str) -> None:
    assert sql(text) == meaning


def test_now_is_the_callers_and_is_stored_as_a_literal() -> None:
    assert literal("at < now()") == Literal("timestamp[us, tz=UTC]", NOW_US)
    assert literal("naive < current_localtimestamp()") == Literal("timestamp[us]", NOW_US)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tiny = 300", Literal("int64", 300)),
        ("tiny = 3", Literal("int8", 3)),
        ("u = 18446744073709551615", Literal("uint64", 2**64 - 1)),
        ("n < 18446744073709551616", Literal("decimal128(20, 0)", "18446744073709551616")),
        ("n < 1.5", Literal("decimal128(2, 1)", "1.5")),
        ("price = 1", Literal("decimal128(10, 2)", "1.00")),
        ("price = 1.005", Literal("decimal128(4, 3)", "1.005")),
        ("f = 0.1", Literal("float", 0.10000000149011612)),
        ("f = 1e-1", Literal("double", 0.1)),
        ("d = 0.1", Literal("double", 0.1)),
        ("n < 1e3", Literal("double", 1000.0)),
        ("d = -0.0", Literal("double", 0.0)),
        ("d = 'nan'", Literal("double", "NaN")),
        ("d < 1e400", Literal("double", "Infinity")),
        ("n = 1" + "0" * 50, Literal("double", 1e50)),
    ],
)
def test_a_literal_keeps_a_type_that_holds_it(text: str, expected: Literal) -> None:
    assert literal(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "part"),
    [
        ("", None, "write TRUE"),
        ("   -- nothing", None, "write TRUE"),
        ("nam = 1", 0, "'name'"),
        ('name = "abc"', 7, "single quotes"),
        ("n = 1 AND k = 1", 10, "any of k, K"),
        ("t.n = 1", 0, "name alone"),
        ("tags IS NULL", 0, "nested"),
        ("n", 0, "not a condition"),
        ("name = 1", 0, "column 'name' (string)"),
        ("flag = 1", 0, "TRUE or FALSE"),
        ("n = 'abc'", 0, "'abc'"),
        ("n = '1.5'", 0, "without quotes"),
        ("tiny = '300'", 0, "without quotes"),
        ("price = '0.105'", 0, "without quotes"),
        ("raw = '\\x6'", 0, "binary"),
        ("raw = 'ä'", 0, "binary"),
        ("at < TIMESTAMP '2025-01-01'", 0, "time zone"),
        ("naive < now()", 0, "CAST(now() AS TIMESTAMP)"),
        ("naive = at", 0, "time zone"),
        ("naive < '2025-01-01T00:00:00Z'", 0, "remove it"),
        ("day = at", 0, "DATE"),
        ("day = '2025-01-01 10:00'", 0, "time of day"),
        ("day = '2025-02-30'", 0, "day"),
        ("at < '2025-01-01 25:00'", 0, "time"),
        ("at < '2025-01-01 00:00:00.1234567'", 0, "microseconds"),
        ("at < now() + INTERVAL 1000000 YEAR", 0, "range"),
        ("at < now() - INTERVAL 1.5 DAY", 5, "whole number"),
        ("at < now() - INTERVAL 3 FORTNIGHT", 5, "unknown unit"),
        ("n + name = 2", 0, "for numbers"),
        ("lower(n) = 'a'", 0, "for strings"),
        ("CAST(name AS INT) = 1", 5, "cast"),
        ("n // 2 = 1", 0, "constants only"),
        ("u * u = 1", 0, "39 digits"),
        ("d % 2 = 1", 0, "integers"),
        ("name + '1' = 1", 0, "for numbers"),
        ("day + 1 = day", 0, "for numbers"),
        ("reverse(name) = 'a'", 0, "lower, upper, length, abs, year"),
        ("n = random()", 4, "constants"),
        ("1 < n < 3", 0, "supported"),
        ("n IN (SELECT 1)", 0, "supported"),
        ("n IN (1, tiny)", 9, "supported"),
        ("n = 1 OR EXISTS (SELECT 1)", None, "supported"),
        ("n = $1", None, "parameter '1'"),
        ("n = ?", None, "parameter '1'"),
        ("n = :id", None, "parameter 'id'"),
        ("CASE WHEN flag THEN TRUE END", None, "supported"),
        ("name SIMILAR TO 'a'", 0, "supported"),
        ("name ~ 'a'", 0, "supported"),
        ("name GLOB 'a'", 0, "supported"),
        ("name COLLATE nocase = 'a'", 0, "supported"),
        ("name LIKE ANY ('a', 'b')", None, "supported"),
        ("n IS NULL IS NULL", 0, "supported"),
        ("n IN [1, NULL]", 5, "lists"),
        ("tags[1] = 'a'", 4, "lists"),
        ("n = TRY_CAST('3' AS INT)", 13, "not supported"),
        ("n = CAST(1.5 AS INT)", 9, "without loss"),
        ("n = 1 / 0", 4, "zero"),
        ("n = 0x10", 5, "x10"),
        ("n = 1 DROP TABLE t", 6, "DROP"),
        ("n = 1; DROP TABLE t", 7, "DROP"),
        ("n = ", 2, "missing"),
        ("(n = 1", 5, "missing"),
        ("n = 1 AND\nname = = 2", 17, "missing"),
        ("name = 'abc", None, "quote"),
        ("name LIKE 'a!' ESCAPE '!'", 0, "escape"),
        ("name LIKE 'a' ESCAPE 'ab'", 0, "one character"),
        ("name LIKE tiny", 10, "supported"),
        ("n LIKE '1%'", 0, "LIKE"),
        ("(n, name) = (1, NULL)", 1, "not NULL"),
        ("(n, name) IN ((1, 2, 3))", 1, "same length"),
        ("(n, 1) = (1, 1)", 1, "constants"),
        ("(" * 21 + "n = 1" + ")" * 21, 20, "parentheses"),
        ("n = " + "- " * 5000 + "1", 44, "in a row"),
        ("NOT " * 5000 + "flag", 80, "in a row"),
    ],
)
def test_what_is_not_understood_is_refused_at_its_place(text: str, position: int | None, part: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse(text, SCHEMA, now_us=NOW_US)
    assert part in caught.value.reason
    if position is not None:
        assert caught.value.position == position


@pytest.mark.parametrize(
    ("source", "meaning"),
    [
        ({"n": 42}, "n = 42"),
        ({"N": 42}, "n = 42"),
        ({"k": 1}, '"k" = 1'),
        ({"n": None}, "n IS NULL"),
        ({"n": [2, 1]}, "n IN (1, 2)"),
        ({"n": []}, "FALSE"),
        ({"n": 1, "name": "a"}, "n = 1 AND name = 'a'"),
        ({"n": np.int64(7)}, "n = 7"),
        ({"price": 0.1}, "price = 0.10"),
        ({"f": 0.1}, "f = 0.1"),
        ({"d": float("nan")}, "d = CAST('nan' AS DOUBLE)"),
        ({"price": Decimal("2.5")}, "price = 2.50"),
        ({"flag": True}, "flag = TRUE"),
        ({"raw": b"a\xff"}, "raw = 'a\\xFF'"),
        ({"day": date(2025, 1, 2)}, "day = DATE '2025-01-02'"),
        ({"clock": time(1, 2, 3)}, "clock = TIME '01:02:03'"),
        ({"naive": datetime(2025, 1, 2, 3)}, "naive = TIMESTAMP '2025-01-02 03:00:00'"),
        ({"at": datetime(2025, 1, 2, 3, tzinfo=UTC)}, "at = TIMESTAMPTZ '2025-01-02 03:00:00+00:00'"),
        (
            {"at": datetime(2025, 1, 2, 3, tzinfo=timezone(timedelta(hours=3)))},
            "at = TIMESTAMPTZ '2025-01-02 00:00:00+00:00'",
        ),
        ({"at": "2025-01-02"}, "at = TIMESTAMPTZ '2025-01-02 00:00:00+00:00'"),
        ({"n": {">=": 3, "<": 9}, "tiny": 1}, "n >= 3 AND n < 9 AND tiny = 1"),
        ({"n": {"in": [2, 1]}}, "n IN (1, 2)"),
        ({"n": {"NOT IN": range(3)}}, "n NOT IN (0, 1, 2)"),
        ({"n": {"between": [1, 3]}}, "n >= 1 AND n <= 3"),
        ({"n": {"is": None}}, "n IS NULL"),
        ({"n": {"is not": None}}, "n IS NOT NULL"),
        ({"name": {"like": "a%", "not ilike": "%B"}}, "name LIKE 'a%' AND NOT name ILIKE '%B'"),
        ({"n": {"!=": 1}, "at": {"<": "2025-01-02"}}, "n <> 1 AND at < TIMESTAMPTZ '2025-01-02 00:00:00+00:00'"),
        (("n = ? AND name <> ?", [1, "it's"]), "n = 1 AND name <> 'it''s'"),
        (("n BETWEEN ? AND ? OR tiny IN (?, ?)", (1, 2, 3, 4)), "(n >= 1 AND n <= 2) OR tiny IN (3, 4)"),
        (
            ("(n, name) = (?, ?) AND NOT tiny > ?", [1, "a", 2]),
            "n = 1 AND name = 'a' AND n IS NOT NULL AND name IS NOT NULL AND NOT tiny > 2",
        ),
        (("n = $2 AND tiny = $1 AND n > $2", [1, 2]), "n = 2 AND tiny = 1 AND n > 2"),
        (
            ("n = :n AND at < :at", {"n": 1, "at": date(2025, 1, 2)}),
            "n = 1 AND at < TIMESTAMPTZ '2025-01-02 00:00:00+00:00'",
        ),
        (("n IN ?", [[2, 1, 2]]), "n IN (1, 2)"),
        (("n IN $ids", {"ids": {1}}), "n = 1"),
        (("price = ? OR d = ?", [0.1, 0.1]), "price = 0.10 OR d = 0.1"),
        (("n = ?", [None]), "NULL"),
        (("n IS NOT DISTINCT FROM ?", [None]), "n IS NULL"),
        (("n + ? = ? * 2", [1, 3]), "(n + 1) = 6"),
        (("name LIKE ?", ["50!%"]), "name LIKE '50!%'"),
    ],
)
def test_a_mapping_says_equal_in_and_is_null(source: dict[str, Any], meaning: str) -> None:
    assert sql(source) == meaning


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ({}, "TRUE"),
        ({"nope": 1}, "no column 'nope'"),
        ({"tags": ["a"]}, "nested"),
        ({"n": [1, None]}, "OR ... IS NULL"),
        ({"n": {"$gt": 1}}, "operator"),
        ({"n": {}}, "empty"),
        ({"n": {">": None}}, "nothing is > NULL"),
        ({"n": {">": [1]}}, "'in' takes a list"),
        ({"n": {"in": 3}}, "takes a list"),
        ({"n": {"in": [None]}}, "OR ... IS NULL"),
        ({"n": {"between": [1]}}, "two values"),
        ({"n": {"is": 3}}, "None alone"),
        ({"n": {"like": "a%"}}, "LIKE"),
        (("n = ?", [1, 2]), "text"),
        (("n = ?", []), "parameter '1'"),
        (("n = ?", {"n": 1}), "name"),
        (("n = :a", [1]), "parameter 'a'"),
        (("n = ?", 5), "are a list"),
        (("n = ?", [[1]]), "IN"),
        (("n IN ?", [1]), "takes a list"),
        (("n = ?", [object()]), "compared"),
        ({"at": datetime(2025, 1, 1)}, "time zone"),
        ({"flag": 1}, "TRUE or FALSE"),
        ({1: 2}, "column names"),
        (["n = 1"], "list"),
    ],
)
def test_a_mapping_that_is_unclear_is_refused(source: Any, part: str) -> None:
    with pytest.raises(PredicateError, match=part.replace(".", r"\.")):
        parse(source, SCHEMA, now_us=NOW_US)


def test_null_in_a_list_is_kept_for_three_valued_logic() -> None:
    p = parse("n NOT IN (1, 2, NULL)", SCHEMA, now_us=0)
    assert p.arg == In(p.arg.column, "int64", (1, 2), null=True)  # type: ignore[union-attr]


def test_a_long_chain_of_or_is_read_without_recursion() -> None:
    p = parse(" OR ".join(f"n = {i}" for i in range(3000)), SCHEMA, now_us=0)
    assert len(p.args) == 3000  # type: ignore[union-attr]


def test_quoted_exact_names_win_and_unquoted_ones_are_ambiguous() -> None:
    assert parse('"K" IS NULL', SCHEMA, now_us=0) == IsNull(
        parse('"K"=1', SCHEMA, now_us=0).left  # type: ignore[union-attr]
    )
    with pytest.raises(PredicateError, match="any of"):
        parse("K IS NULL", SCHEMA, now_us=0)


def test_true_means_every_row() -> None:
    assert parse("TRUE", SCHEMA, now_us=0) == Constant(True)


def test_sqlglot_is_loaded_only_when_text_is_parsed() -> None:
    code = "import sys, dolmen.predicate.parse; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

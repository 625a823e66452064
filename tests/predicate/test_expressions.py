"""What is computed of columns: as in mathematics and as in DuckDB, on every row, and refused by readers that can't."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import PredicateError, UnsupportedFormatError
from dolmen.format import manifest
from dolmen.format.schema import Schema
from dolmen.predicate.ast import columns, from_json, listed_tuples, to_builtins, to_json
from dolmen.predicate.evaluate import check_evaluates, evaluate
from dolmen.predicate.parse import parse
from dolmen.predicate.text import to_sql

MOMENTS = [0, -1, 1_700_000_000_123_456, -62_135_596_800_000_001, 253_402_300_800_000_000, None]
TABLE = pa.table(
    {
        "i8": pa.array([0, 1, -1, 127, -128, None], pa.int8()),
        "i": pa.array([0, 7, -7, 2**63 - 1, -(2**63), None], pa.int64()),
        "u": pa.array([0, 1, 2, 2**63, 2**64 - 1, None], pa.uint64()),
        "u3": pa.array([0, 1, 2, 2**31, 2**32 - 1, None], pa.uint32()),
        "d": pa.array([0.0, 1.5, -2.25, math.nan, math.inf, None]),
        "f": pa.array([0.0, 0.1, -2.5, math.nan, math.inf, None], pa.float32()),
        "c": pa.array([*map(Decimal, ("0.00", "1.25", "-99999.99", "3.00", "99999.99")), None], pa.decimal128(7, 2)),
        "s": pa.array(["Ab", "ÄÖß", "İı", "ǅ", "", None]),
        "b": pa.array([True, False, True, False, True, None]),
        "day": pa.array([0, -1, 19_000, -719_529, 1_000_000, None], pa.int32()).cast(pa.date32()),
        "n": pa.array(MOMENTS, pa.int64()).cast(pa.timestamp("us")),
        "z": pa.array(MOMENTS, pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
)
SCHEMA = Schema.from_arrow(TABLE.schema)
COLUMNS = {field.id: TABLE[field.name] for field in SCHEMA.fields}
OVERFLOWS = {
    "i8 * i8 = 16384": [False, False, False, False, True, None],
    "-i8 = 128": [False, False, False, False, True, None],
    "i % -1 = 0": [True, True, True, True, True, None],
    "i % i8 = 0": [None, True, True, True, True, None],
    "u * 2 > 5": [False, False, False, True, True, None],
    "u3 * u3 > 1": [False, False, True, True, True, None],
    "2 * i8 + 1 IN (3, 255)": [False, True, False, True, False, None],
    "CAST(i AS TINYINT) = 7": [False, True, False, None, None, None],
    "abs(i8) = 128": [False, False, False, False, True, None],
    "abs(i) > 9223372036854775807": [False, False, False, False, True, None],
    "n + INTERVAL 290000 YEAR IS NULL": [False, False, False, False, True, True],
}
"""What stops DuckDB with an error: dolmen computes on, or gives NULL."""


@pytest.fixture(scope="module")
def oracle() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("t", TABLE)
    return connection


@pytest.mark.parametrize(
    "text",
    [
        "i8 + 1 = 2",
        "i8 - i8 = 0",
        "-i = 7",
        "i + 1 > 5",
        "i * 2 < 0",
        "i8 % 3 = 1",
        "i % 10 = 7",
        "mod(i8, 2) = 1",
        "i8 / 2 = 0.5",
        "i8 / 0 > 1",
        "i8 / 0 = 'nan'",
        "d / 0 = 'inf'",
        "d * 2 > 1",
        "d + f > 0",
        "f * 0.1 < 1",
        "f + 1 > 1",
        "c * 2 = 2.5",
        "c * c > 1",
        "c + i8 > 0",
        "c - 0.25 = 1",
        "c / 3 > 0.4",
        "c + 1e0 > 2",
        "u + 1 = 2",
        "u3 - 5 < 0",
        "i8 + d > 1",
        "i8 * 0.1 = 0.1",
        "f = i8 + 0.1",
        "-d = 'nan'",
        "-f < 0",
        "d - d = 'nan'",
        "i8 + 1 BETWEEN 0 AND 2",
        "i8 % 2 = 0 OR i8 % 2 IS NULL",
        "NOT (i8 + 1 = 2)",
        "lower(s) = 'ab'",
        "upper(s) = 'ÄÖß'",
        "upper(s) = upper(lower(s))",
        "lower(s) LIKE 'i%'",
        "lower(s) IN ('ab', 'äöß')",
        "upper(s) IN ('AB', 'ÄÖSS')",
        "lower(s) NOT ILIKE '%B'",
        "i8::VARCHAR = '127'",
        "CAST(b AS VARCHAR) = 'true'",
        "TRY_CAST(i AS TINYINT) = 7",
        "TRY_CAST(i AS TINYINT) IS NULL",
        "TRY_CAST(u AS BIGINT) IS NULL",
        "i8::DOUBLE = 1",
        "i::DOUBLE = 9223372036854775807",
        "c::DOUBLE = 1.25e0",
        "TRY_CAST(i8 AS DECIMAL(3, 1)) IS NULL",
        "TRY_CAST(i AS DECIMAL(20, 1)) > 6",
        "TRY_CAST(c AS DECIMAL(6, 3)) IS NULL",
        "f::DOUBLE = 0.1",
        "n::DATE = '1970-01-01'",
        "n::DATE = '1969-12-31'",
        "z::DATE <= '1969-12-31'",
        "z::TIMESTAMP = n",
        "n::TIMESTAMPTZ = z",
        "year(day) = 1970",
        "year(day) < 1",
        "month(day) = 12",
        "day(n) = 31",
        "year(n) < 1970",
        "hour(n) = 23",
        "minute(z) = 59",
        "extract(year FROM z) = 2023",
        "hour(z) = hour(n)",
        "abs(u) = 1",
        "abs(d) = 2.25",
        "abs(d) = 'nan'",
        "abs(f) > 2",
        "abs(c) = 99999.99",
        "length(s) = 2",
        "length(s) = 0",
        "length(lower(s)) > 2",
        "coalesce(i8, 5) = 5",
        "coalesce(NULL, i8, i) = 7",
        "coalesce(i8, u) = 1",
        "coalesce(c, i8, 0.125) < 1",
        "coalesce(d, f) = 'nan'",
        "coalesce(f, 1) = 1",
        "coalesce(f, i8, d) > 0.1",
        "coalesce(s, 'x') = 'x'",
        "ifnull(s, '') = ''",
        "coalesce(b, FALSE)",
        "NOT coalesce(b, TRUE)",
        "coalesce(day, '1970-01-02') > '1970-01-01'",
        "coalesce(z, TIMESTAMPTZ '2000-01-01 00:00:00+00') < '2000-01-02'",
        "starts_with(s, 'A')",
        "starts_with(lower(s), 'ä')",
        "ends_with(s, 'ß')",
        "contains(s, '')",
        "contains(s, '%')",
        "NOT contains(s, 'b')",
        "starts_with(s, NULL)",
        "isnan(d)",
        "NOT isnan(f)",
        "n + INTERVAL 1 DAY = '1970-01-02'",
        "n - INTERVAL 1 MONTH < '1969-12-02'",
        "n + INTERVAL '1 month 1 day' = '1970-02-02'",
        "INTERVAL 90 MINUTE + z > '1970-01-01 01:30:00'",
        "day + INTERVAL 1 MONTH = '1970-01-31'",
        "day - INTERVAL 13 MONTH < '1970-01-01'",
        "n + INTERVAL 13 MONTH > n + INTERVAL 395 DAY",
        "year(z - INTERVAL 1 SECOND) = 1969",
        *OVERFLOWS,
    ],
)
def test_what_is_computed_is_what_duckdb_computes(text: str, oracle: duckdb.DuckDBPyConnection) -> None:
    p = parse(text, SCHEMA, now_us=0)
    found = evaluate(p, COLUMNS, len(TABLE)).to_pylist()
    if text in OVERFLOWS:
        assert found == OVERFLOWS[text]
    else:
        assert found == oracle.sql(f"SELECT ({text}) AS found FROM t").to_arrow_table()["found"].to_pylist()
    rows = [{id_: column.slice(at, 1) for id_, column in COLUMNS.items()} for at in range(len(TABLE))]
    assert [evaluate(p, row, 1)[0].as_py() for row in rows] == found, "each row alone may be computed in another way"
    assert from_json(to_json(p)) == p == parse(to_sql(p, SCHEMA), SCHEMA, now_us=0)
    assert listed_tuples(p) is None
    check_evaluates(p)


def test_columns_of_narrower_and_wider_files_compute_alike() -> None:
    for text, narrow in (("u::VARCHAR = '1'", pa.uint8()), ("i::VARCHAR LIKE '%7'", pa.int8())):
        p = parse(text, SCHEMA, now_us=0)
        (column,) = columns(p)
        small = pa.array([0, 1, 7, None], narrow)
        same = small.cast(SCHEMA.by_id[column].arrow_type)
        assert evaluate(p, {column: small}, 4).equals(evaluate(p, {column: same}, 4))
    text = "i8 + 1 > 127 AND f * 2 > 0.1 OR coalesce(f, i8, 0.5) = 0.5 OR abs(i8) = 128 OR abs(f) > 2"
    p = parse(text, SCHEMA, now_us=0)
    wide = {1: TABLE["i8"].cast(pa.int64()), 6: TABLE["f"].cast(pa.float64())}
    assert evaluate(p, wide, 6).to_pylist() == evaluate(p, COLUMNS, 6).to_pylist()


def test_functions_refuse_what_they_cannot_compute() -> None:
    for text, expected in {
        "length(i) = 1": "length is for strings, not for int64",
        "abs(s) = 1": "abs is for numbers, not for string",
        "@ = 0": "abs takes a column",
        "isnan(i)": "only floats can be NaN, and column 'i' is int64",
        "s IS NAN": "only floats can be NaN",
        "coalesce(s, i) = 'a'": "coalesce takes values that can be compared, not string and int64",
        "coalesce(z, n) = z": "coalesce takes values that can be compared",
        "starts_with(s, lower(s))": "is not supported in a predicate",
        "contains(i, '1')": "CAST integers AS VARCHAR",
        "contains(s, 1)": "the text to look for is written in single quotes",
        "i + INTERVAL 1 DAY > 1": "an INTERVAL is added to dates and timestamps, not to int64",
        "n + INTERVAL 99999999 YEAR > n": "longer than the range of timestamps",
        "starts_with('a', s)": "is for columns",
        "n + INTERVAL 1 DAY": "not a condition",
    }.items():
        with pytest.raises(PredicateError, match=expected):
            parse(text, SCHEMA, now_us=0)


def test_what_no_writer_computes_is_not_read() -> None:
    stored = to_builtins(parse("i8 + 1 = 2", SCHEMA, now_us=0))
    for change in (
        {"function": "sin"},
        {"type": "int8"},
        {"args": []},
        {"args": [stored["left"]["args"][1]] * 2},
        {"function": "lower"},
    ):
        with pytest.raises(PredicateError, match="predicate"):
            from_json(json.dumps({**stored, "left": {**stored["left"], **change}}))


def test_a_reader_that_does_not_know_calls_refuses_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = dolmen.open(str(tmp_path))
    table = db.create_table("t", pa.schema([("s", pa.string()), ("n", pa.int64())]))
    table.append({"s": ["A", "b"], "n": [1, 2]})
    table.delete("n > 5")
    assert context_of(db).head.refresh().manifest.features == (), "nothing changes for those who don't compute"
    table.delete("lower(s) = ?", parameters=["a"])
    table.append({"s": ["A"], "n": [3]})
    assert context_of(db).head.refresh().manifest.features == ("predicate-expressions",)
    assert dolmen.open(str(tmp_path)).table("t").scan().to_arrow()["n"].to_pylist() == [2, 3]
    table.delete("starts_with(s, 'z') OR n IS NULL")
    assert context_of(db).head.refresh().manifest.features == ("predicate-expressions",), "this is a LIKE"
    table.delete("coalesce(length(s), 0) = 9")
    assert context_of(db).head.refresh().manifest.features == ("predicate-expressions", "predicate-functions")
    monkeypatch.setattr(manifest, "FEATURES", frozenset({"predicate-expressions"}))
    with pytest.raises(UnsupportedFormatError, match="predicate-functions"):
        dolmen.open(str(tmp_path), runtime=Runtime()).table("t").count()
    monkeypatch.setattr(manifest, "FEATURES", frozenset())
    with pytest.raises(UnsupportedFormatError, match="predicate-expressions"):
        dolmen.open(str(tmp_path), runtime=Runtime()).table("t").count()


def test_deletes_that_compute_are_resolved_and_verified(tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path))
    table = db.create_table("t", pa.schema([("s", pa.string()), ("n", pa.int64())]))
    table.append({"s": ["A", "b", None] * 100, "n": list(range(300))})
    table.delete("upper(s) = 'B' OR n % 3 = 0 AND n / 2 < 10")
    expected = [n for n in range(300) if not (n % 3 == 1 or (n % 3 == 0 and n / 2 < 10))]
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == expected
    db.resolve()
    assert not table.describe()["unresolved_deletes"]
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == expected
    table.delete("CAST(n AS VARCHAR) LIKE '2%'", mode="positions")
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [n for n in expected if not str(n).startswith("2")]

"""Whatever a parameter holds, the statement has that value, and the text stays the same statement."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import InputError
from dolmen.sql.parameters import with_literals
from dolmen.sql.tokens import DUCKDB, tokenize

PIECES = [
    "'",
    "''",
    '"',
    "--",
    "/*",
    "*/",
    "$$",
    "$1",
    "?",
    ";",
    "\\",
    "\n",
    "é",
    "🙂",
    "DROP TABLE t",
    "E'",
    "a",
    " ",
    ")",
    "\u2028",
    "%",
]


def test_texts_arrive_as_they_are() -> None:
    rng = random.Random(1)
    db = dolmen.open("memory://texts")
    db.sql("CREATE TABLE t (id INT, s VARCHAR)")
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(9))) for _ in range(400)]
    db.sql("INSERT INTO t VALUES " + ", ".join(f"({number}, ?)" for number in range(400)), texts)
    assert db["t"].scan(["s"], order_by="id").to_arrow()["s"].to_pylist() == texts
    for number in range(0, 400, 40):
        db.sql(
            "UPDATE t SET s = $new || s WHERE id = $id; DELETE FROM t WHERE s = $gone",
            {"new": "x", "id": number, "gone": texts[number]},
        )
    kept = [f"x{text}" if number % 40 == 0 else text for number, text in enumerate(texts)]
    gone = {texts[number] for number in range(0, 400, 40)}
    assert sorted(db["t"].to_arrow()["s"].to_pylist()) == sorted(each for each in kept if each not in gone)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BIGINT", -(2**63)), ("UBIGINT", 2**64 - 1), ("DOUBLE", 0.1), ("DOUBLE", -1e-300), ("DOUBLE", float("inf")),
        ("FLOAT", 0.5), ("BOOLEAN", True), ("DECIMAL(38, 10)", Decimal("-1234567890.0000000001")),
        ("BLOB", b"\x00'\xff\\"),
        ("DATE", date(1, 1, 1)), ("TIME", time(23, 59, 59, 999999)), ("TIMESTAMP", datetime(2026, 1, 5, 1, 2, 3, 4)),
        ("TIMESTAMPTZ", datetime(2026, 1, 5, tzinfo=UTC)), ("VARCHAR[]", ["it's", None, ""]), ("BIGINT", np.int64(-7)),
        ("STRUCT(a INTEGER, b VARCHAR)", {"a": 1, "b": "x'y"}), ("BIGINT", None), ("BIGINT", pa.scalar(5)),
    ],
)  # fmt: skip
def test_values_of_all_kinds_arrive(kind: str, value: Any) -> None:
    db = dolmen.open(f"memory://values-{kind}-{value!r}")
    db.sql(f"CREATE TABLE t (v {kind}, n INT)")
    db.sql("INSERT INTO t VALUES (?, 1), (NULL, 2); UPDATE t SET v = ? WHERE n = 2", [value, value])
    plain = value.as_py() if isinstance(value, pa.Scalar) else value
    assert db["t"].to_arrow()["v"].to_pylist() == [plain, plain]


def test_a_sign_before_a_negative_number_begins_no_comment() -> None:
    assert [token.text for token in tokenize(with_literals("SELECT 1 -?", [-2]), DUCKDB)] == [
        "SELECT",
        "1",
        "-",
        "(",
        "-",
        "2",
        ")",
    ]
    with pytest.raises(InputError, match="one kind"):
        with_literals("SELECT ?, $a", [1])
    assert with_literals("SELECT '?', $$ ? $$, \"?\" -- ?", None) == "SELECT '?', $$ ? $$, \"?\" -- ?"


@pytest.mark.parametrize(
    "value",
    [
        np.datetime64("2026-01-02T03:04:05.000006000", "ns"),
        np.datetime64("2026-01-02T03:04:05.000006", "us"),
        pd.Timestamp("2026-01-02 03:04:05.000006"),
        datetime(2026, 1, 2, 3, 4, 5, 6),
    ],
)
def test_times_of_libraries_are_times_and_no_numbers(tmp_path: Path, value: Any) -> None:
    db = dolmen.open(str(tmp_path))
    db.sql("CREATE TABLE moments (id INT PRIMARY KEY, at TIMESTAMP, n BIGINT)")
    first = db.sql("INSERT INTO moments VALUES (1, ?, 0)", [value], request="r")
    assert db["moments"].to_arrow()["at"].to_pylist() == [datetime(2026, 1, 2, 3, 4, 5, 6)]
    again = db.sql("INSERT INTO moments VALUES (1, ?, 0)", [datetime(2026, 1, 2, 3, 4, 5, 6)], request="r")
    assert again.already == {"r": first.version}
    with pytest.raises(dolmen.Error):
        db.sql("UPDATE moments SET n = ?", [value])


@pytest.mark.parametrize(
    "value", [pd.NaT, np.datetime64("NaT"), np.datetime64("NaT", "ns"), np.timedelta64("NaT", "s")]
)
def test_not_a_time_is_null(value: Any) -> None:
    assert with_literals("?", [value]).strip() == "NULL"


@pytest.mark.parametrize("value", [pd.Timestamp("2026-01-02 03:04:05.000000006"), np.datetime64(6, "ns")])
def test_digits_beyond_microseconds_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="parameter"):
        with_literals("?", [value])


def test_values_of_numpy_pandas_and_arrow_are_parameters_of_queries_and_statements_alike() -> None:
    db = dolmen.open("memory://values-of-others")
    db.sql("CREATE TABLE t (n BIGINT, x DOUBLE, b BLOB, l BIGINT[], s VARCHAR)")
    values = [np.int64(5), np.float32(1.5), memoryview(b"ab"), np.array([1, 2]), pd.NA]
    db.sql("INSERT INTO t VALUES (?, ?, ?, ?, ?)", values)
    expected = [(5, 1.5, b"ab", [1, 2], None)]
    assert db.sql("FROM t").fetchall() == expected == db.sql("SELECT ?, ?, ?, ?, ?", values).fetchall()
    assert db.sql("SELECT n FROM t WHERE n = $n AND x = $x", {"n": pa.scalar(5), "x": np.float64(1.5)}).fetchall() == [
        (5,)
    ]
    assert db.sql("SELECT ?", [np.datetime64("2026-01-05T00:00:00.000000001")]).fetchall()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("DELETE FROM t WHERE id", "is int32, not a condition"),
        ("UPDATE t SET s = 'x' WHERE s || 'y'", "of type string"),
        ("DELETE FROM t WHERE nope = 1", "no column 'nope'.*there are: id, s"),
        ("", "no statement"),
        ("-- nothing", "no statement"),
        (";;", "no statement"),
    ],
)
def test_a_condition_is_boolean_and_names_columns(text: str, reason: str) -> None:
    db = dolmen.open("memory://conditions-of-statements")
    db.sql("CREATE OR REPLACE TABLE t (id INT, s VARCHAR); INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(InputError, match=reason) as refused:
        db.sql(text)
    assert "__dolmen" not in str(refused.value)
    assert db.sql("FROM t").fetchall() == [(1, "a")]

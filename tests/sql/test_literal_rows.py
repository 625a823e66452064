"""Long lists of literals are read as relations, and mean what DuckDB reads in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database, dbapi
from dolmen.base.runtime import Runtime
from dolmen.errors import Error, RowError
from dolmen.sql import literal_rows
from dolmen.sql.literal_rows import LEAST_ROWS, replace_rows
from dolmen.store import MemoryStore

TYPES = (
    "BIGINT", "SMALLINT", "UTINYINT", "DOUBLE", "REAL", "DECIMAL(9, 2)", "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP",
    "TIMESTAMPTZ", "TIME", "BLOB", "INTEGER[]",
)  # fmt: skip
KINDS: dict[str, Callable[[random.Random], str]] = {
    "whole": lambda rng: str(rng.choice((0, 7, 255, 256, -3, 2**31, -(2**63), 2**63 - 1, 2**53 + 1))),
    "small": lambda rng: rng.choice(("0", "1", "+2", "(-3)", "-4", "007")),
    "huge": lambda rng: rng.choice(("1", "9223372036854775808")),
    "decimal": lambda rng: rng.choice(("1.5", "-0.25", ".5", "3.", "2", "(-1.10)", "12345678.901", "0.1")),
    "long": lambda rng: rng.choice(("1.5", "1234567890123456789012345678901234567890.5")),
    "float": lambda rng: rng.choice(("1e3", "0.1", "-2.5E-1", "1e400", "16777217", "3e0")),
    "text": lambda rng: rng.choice(("'a'", "'it''s'", "''", "'7'", "'2026-01-05'", "'\n,)('", "'🙂'", "'true'")),
    "flag": lambda rng: rng.choice(("TRUE", "false")),
    "date": lambda rng: rng.choice(("DATE '2026-01-05'", "date'0001-01-01'", "CAST('2026-02-01' AS DATE)")),
    "time": lambda rng: rng.choice(("TIMESTAMP '2026-01-05 01:02:03.5'", "CAST('2026-02-01' AS TIMESTAMP)")),
    "zone": lambda rng: rng.choice(("TIMESTAMPTZ '2026-01-05 01:02:03+02'", "TIMESTAMPTZ '2026-01-05'")),
    "double": lambda rng: f"CAST('{rng.choice((0.1, 2.5, 1e300, 7.0))!r}' AS DOUBLE)",
    "bytes": lambda rng: rng.choice((r"CAST('\x00a' AS BLOB)", "CAST('' AS BLOB)")),
    "null": lambda rng: "NULL",
    "any": lambda rng: rng.choice(("1", "'2'", "2.5", "TRUE", "1e2")),
    "other": lambda rng: rng.choice(("1 + 1", "[1, 2]", "lower('A')", "2", "'3'::INT")),
}
"""Literals, and expressions that are none, by what a column of a list has."""


def outcome(text: str, declared: str) -> Any:
    """The rows that a text inserts, or its error's class and place."""
    db = Database(MemoryStore(), Runtime(threads=1))
    db.create_table("t", f"a {declared}, b BIGINT")
    try:
        db.sql(text)
    except Error as error:
        return type(error), getattr(error, "row", None), getattr(error, "column", None)
    return db.table("t").to_arrow()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_lists_mean_the_same_as_relations(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, inserted, refused = random.Random(kind), 0, 0
    for declared in TYPES:
        values = ["NULL" if rng.random() < 0.1 else KINDS[kind](rng) for _ in range(LEAST_ROWS + 3)]
        text = f"INSERT INTO t (a, b) VALUES {', '.join(f'({value},{n})' for n, value in enumerate(values))};"
        monkeypatch.setattr(literal_rows, "LEAST_ROWS", LEAST_ROWS)
        assert bool(replace_rows(text)[1]) is (kind not in ("any", "other", "huge", "long")), text
        found = outcome(text, declared)
        monkeypatch.setattr(literal_rows, "LEAST_ROWS", 10**9)
        assert found == outcome(text, declared), (declared, text)
        inserted, refused = inserted + isinstance(found, pa.Table), refused + isinstance(found, tuple)
    assert inserted or kind in ("any", "other")
    assert refused or kind == "null"


@pytest.fixture
def db(tmp_path: Any) -> Database:
    db = dolmen.open(str(tmp_path / "db"))
    db.create_table("t", "id BIGINT NOT NULL, name VARCHAR, day DATE", primary_key="id")
    return db


def listed(*numbers: int) -> str:
    return ", ".join(f"({n}, 'n{n}', DATE '2026-01-{n % 28 + 1:02}')" for n in numbers)


def test_statements_around_lists_are_read_as_ever(db: Database) -> None:
    some, more = listed(*range(LEAST_ROWS)), listed(*range(1_000, 1_000 + LEAST_ROWS))
    head = 'insert into main."t" as x(ID,"name", day)\nvalues'
    text = f"{head}{some} ;\nINSERT INTO t VALUES {more}; DELETE FROM t WHERE id > 1000"
    assert len(replace_rows(text)[1]) == 2
    commit = db.sql(text)
    assert (commit.rows, db.table("t").count(), db.version) == (2 * LEAST_ROWS, LEAST_ROWS + 1, 2)
    returned = db.sql(f"INSERT OR REPLACE INTO t VALUES {some} RETURNING id + 1 AS next")
    assert sorted(returned.to_arrow()["next"].to_pylist()) == list(range(1, LEAST_ROWS + 1))
    db.sql(f"INSERT INTO t VALUES {some} ON CONFLICT (id) DO UPDATE SET name = excluded.name || '!'")
    assert db.table("t").count("name LIKE '%!'") == LEAST_ROWS
    db.sql(f"INSERT INTO t (id) VALUES {', '.join(f'({n})' for n in range(5_000, 5_100))}", request="r")
    assert db.sql(f"INSERT INTO t (id) VALUES {', '.join(f'({n})' for n in range(5_000, 5_100))}", request="r").already
    assert db.table("t").count("id >= 5000 AND name IS NULL") == 100


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES {some}, (1, 2)",
        "INSERT INTO t (id) VALUES {some}",
        "INSERT INTO t VALUES {some}, (1, 'x', DATE 'tomorrow')",
        "INSERT INTO t VALUES {some} {some}",
        "INSERT INTO t VALUES {some}, SELECT 1",
        "INSERT INTO t VALUES {some}, (1, 'x",
        "INSERT INTO t VALUES {some}; SELECT",
        "INSERT INTO tVALUES {some}",
        "INSERT INTO t VALUES {some} ON",
        "INSERT INTO t BY NAME VALUES {some}",
        "INSERT INTO nothing VALUES {some}",
    ],
)
def test_what_is_wrong_around_lists_is_refused(db: Database, text: str) -> None:
    with pytest.raises(Error):
        db.sql(text.format(some=listed(*range(LEAST_ROWS))))
    assert db.refresh() == 1


def test_a_value_that_does_not_fit_is_named_by_its_row(db: Database) -> None:
    values = [*(f"({n}, 'x', NULL)" for n in range(99)), "(99, 'x', NULL), (NULL, 'y', NULL)"]
    with pytest.raises(RowError, match="row 101, column 'id'"):
        db.sql(f"INSERT INTO t VALUES {', '.join(values)}")


def test_parameters_fill_long_lists(db: Database) -> None:
    days = [date(2026, 1, n % 28 + 1) for n in range(500)]
    rows = [(n, None if n % 3 else f"it's {n}", day) for n, day in enumerate(days)]
    with dbapi.connect(db.url) as connection:
        marks = ", ".join(["(?, ?, ?)"] * len(rows))
        cursor = connection.cursor().execute(f"INSERT INTO t VALUES {marks}", list(itertools.chain(*rows)))
        assert cursor.rowcount == 500
    found = db.sql("SELECT * FROM t ORDER BY id").fetchall()
    assert found == rows

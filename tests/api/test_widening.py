"""Columns get wider types: files keep theirs, and every read, delete and plan over both is exact."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import AppliedIdError, ConflictError, CorruptionError, InputError, RowError, SchemaError
from dolmen.format.evolution import RenameColumn, WidenColumn
from dolmen.format.manifest import Sequences
from dolmen.rows.scan.scan import plan_of
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore

SEED = os.environ["DOLMEN_TEST_SEED"]
F32 = 0.10000000149011612
"""The double that is the float next to 0.1."""


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


def table_of(db: dolmen.Database, kind: pa.DataType, values: list[Any], **options: Any) -> dolmen.Table:
    """A table of ids and values of a type, in one file."""
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("x", kind)]), **options)
    append(table, values)
    return table


def append(table: dolmen.Table, values: list[Any], first: int = 0) -> None:
    kind = table.schema.field("x").type
    table.append(pa.table({"id": pa.array(range(first, first + len(values))), "x": pa.array(values, kind)}))


def ids(table: Any, where: str | None = None) -> list[int]:
    return sorted(table.scan(where=where).to_arrow()["id"].to_pylist())


def values(table: Any) -> list[Any]:
    found: list[Any] = table.to_arrow().sort_by("id")["x"].to_pylist()
    return found


WIDENINGS: list[tuple[pa.DataType, pa.DataType, list[Any], list[Any]]] = [
    (pa.int8(), pa.int16(), [-128, 0, 127, None], [-129, 128]),
    (pa.int8(), pa.int64(), [-128, 0, 127, None], [2**53 + 1, -(2**63)]),
    (pa.int16(), pa.int32(), [-(2**15), 2**15 - 1], [2**31 - 1]),
    (pa.int32(), pa.int64(), [-(2**31), 5, 2**31 - 1, None], [2**32 + 5, 2**63 - 1]),
    (pa.uint8(), pa.uint32(), [0, 255], [256, 2**32 - 1]),
    (pa.uint32(), pa.uint64(), [0, 2**32 - 1], [2**64 - 1]),
    (pa.float32(), pa.float64(), [F32, 16777216.0, -0.0, float("inf"), None], [0.1, 16777217.0, 1e300]),
    (
        pa.decimal128(5, 2),
        pa.decimal128(38, 2),
        [Decimal("-999.99"), Decimal("0.00"), Decimal("12.50"), None],
        [Decimal("123456789012345678901234567890123456.78")],
    ),
    (
        pa.date32(),
        pa.timestamp("us"),
        [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31), None],
        [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2026, 1, 1, 12)],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("narrow", "wide", "before", "after"), WIDENINGS, ids=lambda one: str(one)[:24])
def test_files_of_both_types_are_read_pruned_and_compacted_as_one_column(
    db: dolmen.Database, narrow: pa.DataType, wide: pa.DataType, before: list[Any], after: list[Any]
) -> None:
    table = table_of(db, narrow, before)
    version = db.version
    table.widen_column("x", wide)
    append(table, after, first=len(before))
    expected = pa.array(before, narrow).cast(wide).to_pylist() + after
    assert table.schema.field("x").type == wide
    assert values(table) == expected
    assert db.sql("SELECT x FROM t ORDER BY id").fetchall() == [(value,) for value in expected]
    check_plans(table, expected)
    assert db.at(version=version).table("t").schema.field("x").type == narrow
    assert values(db.at(version=version).table("t")) == pa.array(before, narrow).to_pylist()
    assert db.verify(deep=True).ok
    db.compact("t")
    assert values(table) == expected
    assert db.verify(deep=True).ok
    check_plans(table, expected)


def check_plans(table: dolmen.Table, expected: list[Any]) -> None:
    """Compares conditions with each of the values with what Python finds."""
    known = [(number, value) for number, value in enumerate(expected) if value is not None]
    for _, value in known:
        for op, holds in COMPARISONS.items():
            wanted = [number for number, other in known if holds(other, value)]
            assert ids(table, {"x": {op: value}}) == wanted, (op, value)  # type: ignore[arg-type]
            assert table.count({"x": {op: value}}) == len(wanted), (op, value)
    assert ids(table, "x IS NULL") == [number for number, value in enumerate(expected) if value is None]


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def test_a_delete_before_and_one_after_hide_the_same_rows_as_without_any_change(db: dolmen.Database) -> None:
    table = table_of(db, pa.float32(), [F32, 16777216.0, float("nan"), -0.0, 0.5, float("inf")])
    table.delete("x = 0.1")  # a decimal, compared as the float next to it
    table.widen_column("x", pa.float64())
    append(table, [0.1, F32, 16777217.0, float("nan"), 0.0], first=6)
    assert ids(table) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert ids(table, "x = 0.1") == [6]
    table.delete("x = 16777217")
    assert ids(table) == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    table.delete({"x": float("nan")})
    table.delete("x = 0")
    assert ids(table) == [1, 4, 5, 6, 7]
    db.resolve("t")
    assert ids(table) == [1, 4, 5, 6, 7]
    db.compact("t")
    assert ids(table) == [1, 4, 5, 6, 7]
    assert db.verify(deep=True).ok


def test_integers_never_wrap_and_never_round(db: dolmen.Database) -> None:
    table = table_of(db, pa.int32(), [5, 2**31 - 1, 2**24 + 1])
    table.delete("x + 1 = 6")
    table.widen_column("x", pa.int64())
    append(table, [2**32 + 5, 2**53 + 1, 5], first=3)
    assert ids(table) == [1, 2, 3, 4, 5]
    table.delete({"x": [2**53, 2**32 + 6]})
    table.delete("x + 1 = 2147483648")
    assert ids(table) == [2, 3, 4, 5]
    table.delete("x = 5")
    assert ids(table, "x >= 9007199254740993") == [4]


def test_days_stay_midnights(db: dolmen.Database) -> None:
    table = table_of(db, pa.date32(), [date(1969, 12, 31), date(2026, 1, 1), date(2026, 1, 2), None])
    table.delete("x = DATE '2026-01-01'")
    table.delete("year(x) = 1969 AND x < DATE '1970-01-01'")
    table.widen_column("x", pa.timestamp("us"))
    append(table, [datetime(2026, 1, 1), datetime(2026, 1, 2, 0, 0, 1), datetime(1969, 12, 31)], first=4)
    assert ids(table) == [2, 3, 4, 5, 6]
    assert ids(table, "x = TIMESTAMP '2026-01-02 00:00:00'") == [2]
    table.delete("x IN (TIMESTAMP '2026-01-02 00:00:00', TIMESTAMP '2026-01-02 00:00:01')")
    assert ids(table) == [3, 4, 6]
    assert db.verify(deep=True).ok


def test_a_day_that_is_no_timestamp_is_refused(db: dolmen.Database) -> None:
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("x", pa.date32())]))
    table.append(pa.table({"id": [1], "x": pa.array([200_000_000], pa.int32()).cast(pa.date32())}))
    with pytest.raises(SchemaError, match=r"-290308.*294247"):
        table.widen_column("x", pa.timestamp("us"))
    table.delete("id = 1")
    db.compact("t")
    tx = db.transaction()
    tx.table("t").append(pa.table({"id": [2], "x": pa.array([-200_000_000], pa.int32()).cast(pa.date32())}))
    dolmen.open(db.url).table("t").widen_column("x", pa.timestamp("us"))
    with pytest.raises(ConflictError, match="timestamp"):
        tx.commit()
    assert table.count() == 0


def test_a_default_that_is_no_timestamp_is_refused(db: dolmen.Database) -> None:
    day = pa.scalar(200_000_000, pa.int32()).cast(pa.date32())
    table = table_of(db, pa.date32(), [date(2026, 1, 1)])
    table.set_default("x", day)
    with pytest.raises(SchemaError, match=r"-290308.*294247"):
        table.widen_column("x", pa.timestamp("us"))
    table.set_default("x", date(2026, 1, 2))
    table.widen_column("x", pa.timestamp("us"))
    with pytest.raises(InputError, match=r"200000000'.*timestamp"):
        table.set_default("x", day)
    with pytest.raises(RowError, match=r"row 2, column 'x': '-200000000'.*timestamp"):
        table.append(pa.table({"id": [7, 8], "x": pa.array([0, -200_000_000], pa.int32()).cast(pa.date32())}))
    table.append({"id": [9]})
    assert table.to_arrow()["x"].to_pylist() == [datetime(2026, 1, 1), datetime(2026, 1, 2)]


def test_keys_of_either_type_hide_rows_of_both(db: dolmen.Database) -> None:
    for number, (kind, wide, key) in enumerate(
        [
            (pa.int16(), pa.int64(), 7),
            (pa.uint8(), pa.uint64(), 7),
            (pa.decimal128(4, 1), pa.decimal128(20, 1), Decimal("7.5")),
            (pa.date32(), pa.timestamp("us"), date(2026, 1, 1)),
        ]
    ):
        schema = pa.schema([pa.field("k", kind, nullable=False), ("v", pa.int64())])
        table = db.create_table(f"t{number}", schema, primary_key="k")
        table.append(pa.table({"k": pa.array([key], kind), "v": pa.array([1])}))
        table.upsert(pa.table({"k": pa.array([key], kind), "v": pa.array([2])}))
        table.widen_column("k", wide)
        assert table.to_arrow()["v"].to_pylist() == [2]
        again = pa.array([key], kind).cast(wide)
        table.upsert(pa.table({"k": again, "v": pa.array([3])}))
        assert table.to_arrow().to_pylist() == [{"k": again[0].as_py(), "v": 3}]
        table.delete(keys=again.to_pylist())
        assert table.count() == 0
        table.append(pa.table({"k": again, "v": pa.array([4])}))
        assert table.count() == 1
        db.resolve(table.name)
        assert table.count() == 1
    assert db.verify(deep=True).ok


@pytest.mark.parametrize(
    ("narrow", "wide", "words"),
    [
        (pa.int64(), pa.int32(), "fit"),
        (pa.int32(), pa.float64(), "kind"),
        (pa.uint8(), pa.int16(), "unsigned"),
        (pa.float64(), pa.float32(), "fit"),
        (pa.decimal128(5, 2), pa.decimal128(9, 3), "point"),
        (pa.decimal128(5, 2), pa.decimal128(4, 2), "fit"),
        (pa.date32(), pa.timestamp("us", "UTC"), "kind"),
        (pa.string(), pa.binary(), "kind"),
        (pa.int32(), pa.string(), "kind"),
        (pa.int32(), pa.int32(), "int32"),
        (pa.int32(), pa.null(), "stored"),
    ],
    ids=str,
)
def test_what_is_not_wider_is_refused_with_the_reason(
    db: dolmen.Database, narrow: pa.DataType, wide: pa.DataType, words: str
) -> None:
    table = table_of(db, narrow, [None])
    version = db.version
    with pytest.raises(SchemaError, match=words):
        table.widen_column("x", wide)
    with pytest.raises(InputError, match="pyarrow"):
        table.widen_column("x", "BIGINT")  # type: ignore[arg-type]
    assert db.refresh() == version


def test_a_default_becomes_wider_too(db: dolmen.Database) -> None:
    table = table_of(db, pa.int64(), [1])
    table.add_column("d", pa.date32(), date(2026, 1, 1))
    table.add_column("f", pa.float32(), F32)
    table.delete("f * 2 < 0.1")
    table.widen_column("d", pa.timestamp("us"))
    table.widen_column("f", pa.float64())
    append(table, [2], first=1)
    assert [(row["d"], row["f"]) for row in table.to_arrow().to_pylist()] == [(datetime(2026, 1, 1), F32)] * 2
    assert table.count("d = TIMESTAMP '2026-01-01'") == 2
    assert db.verify(deep=True).ok


def test_a_delete_goes_on_hiding_rows_that_are_older_than_its_column(db: dolmen.Database) -> None:
    table = table_of(db, pa.int64(), [16777217, 1])
    table.add_column("f", pa.float32(), 16777216.0)
    table.delete("f = x")  # as floats, both are the same
    assert ids(table) == [1]
    table.widen_column("f", pa.float64())
    assert ids(table) == [1]
    assert ids(table, "f = x") == []
    db.resolve("t")
    assert ids(table) == [1]


def test_rows_written_under_the_narrower_type_are_committed(db: dolmen.Database) -> None:
    table = table_of(db, pa.date32(), [date(2026, 1, 1)])
    other = dolmen.open(db.url).table("t")
    with db.transaction() as tx:
        append(tx.table("t"), [date(2026, 1, 2)], first=1)
        other.widen_column("x", pa.timestamp("us"))
    assert values(table) == [datetime(2026, 1, 1), datetime(2026, 1, 2)]
    assert ids(table, "x = TIMESTAMP '2026-01-02'") == [1]
    assert ids(table, "x > TIMESTAMP '2026-01-01'") == [1]
    with db.transaction() as tx:
        tx.table("t").overwrite(pa.table({"id": [5], "x": pa.array([datetime(2026, 1, 3, 1)])}))
    assert values(table) == [datetime(2026, 1, 3, 1)]
    assert db.verify(deep=True).ok


@pytest.mark.parametrize(("narrow", "wide", "before", "after"), WIDENINGS, ids=lambda one: str(one)[:24])
def test_rows_of_the_narrower_type_are_still_taken(
    db: dolmen.Database, narrow: pa.DataType, wide: pa.DataType, before: list[Any], after: list[Any]
) -> None:
    table = table_of(db, narrow, before)
    table.widen_column("x", wide)
    rows = pa.array(before, narrow)
    table.append(pa.table({"id": pa.array(range(10, 10 + len(rows))), "x": rows}))
    assert values(table) == rows.cast(wide).to_pylist() * 2


def test_who_has_read_rows_in_the_narrower_type_begins_again(db: dolmen.Database) -> None:
    table_of(db, pa.int8(), [1])
    other = dolmen.open(db.url).table("t")
    tx = db.transaction()
    assert tx.table("t").scan(where="x = 1").count() == 1
    append(tx.table("t"), [2], first=1)
    other.widen_column("x", pa.int16())
    with pytest.raises(ConflictError, match="widened a column"):
        tx.commit()


def test_a_delete_by_floats_that_became_doubles_meanwhile_conflicts(db: dolmen.Database) -> None:
    table_of(db, pa.float32(), [1.0])
    other = dolmen.open(db.url).table("t")
    tx = db.transaction()
    tx.table("t").delete("x < 0.1")
    other.widen_column("x", pa.float64())
    with pytest.raises(ConflictError, match=r"'x'.*double"):
        tx.commit()


def test_wide_rows_do_not_land_in_a_table_that_was_restored_to_the_narrow_type(db: dolmen.Database) -> None:
    table = table_of(db, pa.int8(), [1])
    version = db.version
    table.widen_column("x", pa.int64())
    tx = db.transaction()
    append(tx.table("t"), [300], first=1)
    dolmen.open(db.url).table("t").restore(version)
    with pytest.raises(ConflictError, match=r"'x'.*int8.*int64"):
        tx.commit()
    assert table.schema.field("x").type == pa.int8()
    table.widen_column("x", pa.int16())
    assert values(table) == [1]


def test_widening_is_named_in_the_manifest_and_in_the_history(db: dolmen.Database) -> None:
    table = table_of(db, pa.int8(), [1])
    assert context_of(db).head.refresh().manifest.features == ()
    commit = table.widen_column("x", pa.int16(), request="r")
    assert (commit.operation, [str(deed) for deed in commit.did]) == ("alter", ["alter t(x)"])
    assert context_of(db).head.refresh().manifest.features == ("widened-columns",)
    assert table.widen_column("x", pa.int16(), request="r").version == commit.version
    with pytest.raises(AppliedIdError):
        table.widen_column("x", pa.int32(), request="r")


LADDERS = {
    "int": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "uint": [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    "float": [pa.float32(), pa.float64()],
    "decimal": [pa.decimal128(2, 1), pa.decimal128(9, 1), pa.decimal128(18, 1), pa.decimal128(38, 1)],
    "date": [pa.date32(), pa.timestamp("us")],
}
DRAWS: dict[str, Callable[[random.Random, pa.DataType], Any]] = {
    "int": lambda rng, kind: rng.choice([0, 1, -1, 5, -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1]),
    "uint": lambda rng, kind: rng.choice([0, 1, 5, 2**kind.bit_width - 1]),
    "float": lambda rng, kind: (
        rng.choice([0.0, -0.0, 0.5, F32, 16777216.0, float("nan"), float("inf")])
        if kind == pa.float32()
        else rng.choice([0.1, F32, 16777217.0, 0.0, float("nan"), 1e300])
    ),
    "decimal": lambda rng, kind: Decimal(f"{rng.choice([0, 1, 5, -5, 10**kind.precision - 1])}e-1"),
    "date": lambda rng, kind: (
        date(1970, 1, 1 + rng.randrange(9))
        if kind == pa.date32()
        else datetime(1970, 1, 1 + rng.randrange(9), rng.choice([0, 0, 12]))
    ),
}
HISTORIES = 300 if os.environ.get("DOLMEN_LONG") else 4


@pytest.mark.slow
@pytest.mark.parametrize("number", range(HISTORIES))
def test_random_histories_are_those_of_duckdb(number: int, tmp_path: Path) -> None:
    """Each delete is made in DuckDB, too, on a column of the type of then, which is widened there as well."""
    rng = random.Random(f"{SEED} widening {number}")
    print(f"DOLMEN_TEST_SEED={SEED} history {number}")
    family = rng.choice(list(LADDERS))
    ladder = list(LADDERS[family])
    kind = ladder.pop(0)
    db = dolmen.open(str(tmp_path / "db"))
    db.set(root_bytes="4KB")
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("x", kind)]), sort_key="x")
    oracle, kept, next_id = pa.table({"id": pa.array([], pa.int64()), "x": pa.array([], kind)}), {}, 0
    for _ in range(30):
        what = rng.choice(["append"] * 4 + ["delete"] * 3 + ["widen", "compact", "resolve", "merge"])
        if what == "append":
            drawn = [rng.choice([None, *[DRAWS[family](rng, kind)] * 5]) for _ in range(rng.randint(1, 3))]
            rows = pa.table({"id": pa.array(range(next_id, next_id + len(drawn))), "x": pa.array(drawn, kind)})
            table.append(rows)
            oracle, next_id = pa.concat_tables([oracle, rows]), next_id + len(drawn)
        elif what == "delete":
            op, value = rng.choice(["=", "<", ">=", "in"]), DRAWS[family](rng, kind)
            where = {"x": {op: [value, DRAWS[family](rng, kind)] if op == "in" else value}}
            gone = ids(table, where)  # type: ignore[arg-type]
            assert gone == matching(oracle, op, where["x"][op])
            table.delete(where)  # type: ignore[arg-type]
            oracle = oracle.filter(
                pa.array([number not in set(gone) for number in oracle["id"].to_pylist()], pa.bool_())
            )
        elif what == "widen" and ladder:
            kind = ladder.pop(0)
            table.widen_column("x", kind)
            oracle = oracle.set_column(1, "x", oracle["x"].cast(kind))
        elif what == "compact":
            db.compact("t")
        elif what == "resolve":
            db.resolve("t")
        elif what == "merge":
            db.merge()
        assert str(table.to_arrow().sort_by("id").to_pylist()) == str(oracle.to_pylist()), what
        kept[db.version] = oracle
    for version, rows in kept.items():
        past = db.at(version=version).table("t")
        assert str(past.to_arrow().sort_by("id").to_pylist()) == str(rows.to_pylist())
        assert past.schema.field("x").type == rows.schema.field("x").type
    assert db.verify(deep=True).ok


def matching(rows: pa.Table, op: str, value: Any) -> list[int]:
    """Ids of the rows for which DuckDB finds a condition TRUE, with literals of the column's type."""
    members = value if op == "in" else [value]
    literals = pa.table({"v": pa.array(members, rows.schema.field("x").type)})
    assert literals.num_rows
    condition = "x IN (SELECT v FROM literals)" if op == "in" else f"x {op} (SELECT v FROM literals)"
    return sorted(id_ for (id_,) in duckdb.sql(f"SELECT id FROM rows WHERE {condition}").fetchall())


def test_widening_is_two_puts_whatever_the_files_and_prunes_files_of_either_type() -> None:
    store = CountingStore(MemoryStore())
    db = Database(store, Runtime())
    db.set(root_bytes="4KB")  # entries leave the manifest early
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("x", pa.date32())]))
    for day in range(1, 29):
        append(table, [date(2026, 1, day)], first=day)
    store.reset()
    table.widen_column("x", pa.timestamp("us"))
    assert (store.puts, store.gets, store.lists, store.heads) == (2, 0, 0, 0)
    for day in range(1, 29):
        append(table, [datetime(2026, 1, day, 12)], first=100 + day)
    db.merge()
    entry = context_of(db).head.refresh().manifest.table("t")
    assert entry.segments_of("files")
    for where, found in (
        ("x = TIMESTAMP '2026-01-05 00:00:00'", [5]),
        ("x > TIMESTAMP '2026-01-28'", [128]),
        ("x >= TIMESTAMP '2026-01-05 00:00:00' AND x < TIMESTAMP '2026-01-06'", [5, 105]),
        ("x < TIMESTAMP '2026-01-01'", []),
    ):
        scan = table.scan(where=where)
        assert len(plan_of(scan).files) == len(found), where
        assert sorted(scan.to_arrow()["id"].to_pylist()) == found
    table.delete("x < TIMESTAMP '2026-01-28'")
    assert len(plan_of(table.scan()).files) == 2


@pytest.mark.slow
def test_days_in_segments_are_looked_at_where_the_root_does_not_tell(tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    db.set(root_bytes="4KB")
    table = db.create_table("t", pa.schema([("id", pa.int64())]))
    for number in range(6):
        table.append(pa.table({"id": [number]}))
    table.add_column("x", pa.date32())
    for number in range(6, 30):
        append(table, [date(2026, 1, number)], first=number)
    db.merge()
    segments = context_of(db).head.refresh().manifest.table("t").segments_of("files")
    assert any(2 not in segment.stats for segment in segments)
    version = db.version
    table.widen_column("x", pa.timestamp("us"))
    assert ids(table, "x = TIMESTAMP '2026-01-07'") == [7]
    assert ids(table, "x IS NULL") == list(range(6))
    table.restore(version)
    table.append(pa.table({"id": [99], "x": pa.array([2**31 - 1], pa.int32()).cast(pa.date32())}))
    for number in range(6, 30):
        append(table, [date(2026, 1, number)], first=100 + number)
    db.merge()
    with pytest.raises(SchemaError, match="after 294247"):
        table.widen_column("x", pa.timestamp("us"))
    assert db.verify(deep=True).ok


@pytest.mark.parametrize("setting", ["seq", " seq "])
def test_keys_and_sequences_of_tables_that_took_changes_stay(tmp_path: Path, setting: str) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    columns = pa.schema([("id", pa.int32()), ("seq", pa.int32()), ("v", pa.int32())])
    table = db.create_table("t", columns, primary_key="id")
    manifest = context_of(db).head.refresh().manifest
    entry = msgspec.structs.replace(
        manifest.table("t"), properties={"cdc_sequence": setting}, sequences=Sequences(greatest=1, memory="0" * 32)
    )
    for name in ("id", "seq"):
        with pytest.raises(SchemaError, match="CDC"):
            WidenColumn(name, pa.int64()).apply(entry, 5)
        with pytest.raises(SchemaError, match="CDC"):
            RenameColumn(name, "other").apply(entry, 5)
    assert WidenColumn("v", pa.int64()).apply(entry, 5).schema.field("v").type == "int64"
    table.set(cdc_sequence="seq")
    table.widen_column("seq", pa.int64())  # no changes yet
    assert table.settings()["cdc_sequence"] == "seq"


def test_a_file_with_a_value_that_its_column_cannot_hold_is_damaged(
    db: dolmen.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit makes such a file: here the check is taken away by which rows conflict with a restore."""
    table = table_of(db, pa.int32(), [1])
    narrow = db.version
    table.widen_column("x", pa.int64())
    tx = dolmen.open(db.url).transaction()
    append(tx.table("t"), [2**40], first=1)
    table.restore(narrow)
    monkeypatch.setattr("dolmen.format.evolution.is_successor", lambda *types: True)
    tx.commit()
    with pytest.raises(CorruptionError, match=r"column 'x'.*int64") as at:
        dolmen.open(db.url).table("t").to_arrow()
    assert str(2**40) not in str(at.value)

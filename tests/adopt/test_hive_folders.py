"""Names of folders are values of columns: of several writers, through the life of a table, and when damaged."""

from __future__ import annotations

import os
import random
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.errors import AdoptionError, CorruptionError, InputError, SchemaError, UnsupportedFormatError
from dolmen.format.entries import ConstantColumn
from dolmen.format.layout import seal
from dolmen.format.manifest import CONSTANT_COLUMNS, Manifest
from dolmen.format.segments import decode, encode, to_entries, to_table
from dolmen.rows.scan.scan import plan_of
from support.lake import digests, write_plain
from support.second_reader import load_reader

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return dolmen.open(tmp_path / "db")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def plain(table: pa.Table, columns: list[str]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own."""
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True), key=str)


def reasons(db: Database, source: Path, **how: Any) -> str:
    with pytest.raises(AdoptionError) as caught:
        db.adopt("t", str(source), **how)
    return "\n".join(caught.value.reasons)


def random_rows(rng: random.Random) -> pa.Table:
    texts = ["DE", "a b", "x=y", "50%", "ü/ö", "z:1", "it's", None]
    return pa.table({
        "id": range(200),
        "n": pa.array([rng.choice([-5, 0, 7, 2**40, None]) for _ in range(200)], pa.int64()),
        "day": pa.array([date(2026, 11, rng.randrange(1, 5)) for _ in range(200)]),
        "text": pa.array([rng.choice(texts) for _ in range(200)]),
        "price": pa.array([rng.random() for _ in range(200)]),
    })  # fmt: skip


def write_duckdb(rows: pa.Table, keys: list[str], lake: Path) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        connection.execute(f"COPY rows TO '{lake}' (FORMAT parquet, PARTITION_BY ({', '.join(keys)}))")
        read = f"FROM read_parquet('{lake}/**/*.parquet', hive_partitioning = true, hive_types = {{'text': VARCHAR}})"
        return connection.sql(
            read if "text" in keys else read.replace(", hive_types = {'text': VARCHAR}", "")
        ).to_arrow_table()


def write_pyarrow(rows: pa.Table, keys: list[str], lake: Path) -> pa.Table:
    partitioning = ds.partitioning(pa.schema([rows.schema.field(key) for key in keys]), flavor="hive")
    ds.write_dataset(rows, lake, format="parquet", partitioning=partitioning)
    return ds.dataset(lake, partitioning=partitioning).to_table()


def write_polars(rows: pa.Table, keys: list[str], lake: Path) -> pa.Table:
    pl.DataFrame(rows).write_parquet(lake, partition_by=keys)
    return pl.read_parquet(lake, hive_partitioning=True, missing_columns="insert").to_arrow()


@pytest.mark.parametrize("write", [write_duckdb, write_pyarrow, write_polars])
def test_the_rows_are_those_that_the_writers_own_reader_reads(write: Any, db: Database, lake: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    rows = random_rows(rng)
    keys = rng.sample(["n", "day", "text"], rng.randrange(1, 4))
    own = write(rows, keys, lake)
    before = digests(lake)
    assert set(db.adopt("t", str(lake)).from_folders) == set(keys)
    table, names = db.table("t"), rows.column_names
    found = table.to_arrow()
    assert plain(found, names) == plain(rows, names) == plain(own, names)
    for key in keys:
        assert found.schema.field(key).type == rows.schema.field(key).type
    for where, count in (
        ("n = 7", sum(n == 7 for n in rows["n"].to_pylist())), ("n IS NULL", rows["n"].null_count),
        ("day > '2026-11-02'", sum(day.day > 2 for day in rows["day"].to_pylist())),
        ("text = 'x=y'", rows["text"].to_pylist().count("x=y")),
        ("text LIKE '%%/%'", rows["text"].to_pylist().count("ü/ö")),
    ):  # fmt: skip
        assert table.count(where) == count, where
    assert db.verify(deep=True).ok
    assert digests(lake) == before


@pytest.mark.slow
def test_a_history_over_folders_is_that_of_a_plain_table(db: Database, lake: Path) -> None:
    rng = random.Random(SEED + 1)
    print(f"DOLMEN_TEST_SEED={SEED}")
    rows = random_rows(rng)
    names = rows.column_names
    write_duckdb(rows, ["day", "n"], lake)
    db.adopt("t", str(lake))
    own = db.create_table("own", rows.schema)
    own.append(rows)
    tables = [db.table("t"), own]
    versions: list[tuple[int, list[tuple[Any, ...]]]] = []
    wheres = ["n = 7", "day = '2026-11-03' AND id < 90", "n IS NULL", "text = 'DE' OR day = '2026-11-01'", "n > id"]
    for step in range(12):
        where, kind = rng.choice(wheres), rng.randrange(5)
        for table in tables:
            match kind:
                case 0:
                    table.delete(where, mode=("positions", "tombstone")[step % 2])
                case 1:
                    table.update({"n": dolmen.Expression("n + 1"), "text": "new"}, where)
                case 2:
                    table.append(
                        [{"id": 1_000 + step, "n": step, "day": date(2026, 12, 1), "text": None, "price": 1.0}]
                    )
                case 3:
                    table.compact()
                case 4:
                    keys = {"id": [step, step * 3], "day": [date(2026, 11, 1), date(2026, 11, 2)]}
                    table.delete(keys=keys, on=["id", "day"])
        if kind == 3:
            db.maintain()
        found, wanted = (plain(table.to_arrow(), names) for table in tables)
        assert found == wanted, (step, kind, where)
        assert tables[0].count(where) == tables[1].count(where)
        versions.append((db.version, found))
    for version, wanted in versions:
        assert plain(db.at(version).table("t").to_arrow(), names) == wanted
    assert db.verify(deep=True, all_versions=True).ok


def test_a_file_is_pruned_by_its_folder_without_being_read(db: Database, lake: Path) -> None:
    for day in range(1, 6):
        for country in ("DE", "FR"):
            write_plain(lake / f"day=2026-11-0{day}" / f"country={country}" / "0.parquet", pa.table({"id": range(10)}))
    adopted = db.adopt("t", str(lake), sort_key=["day", "id"], properties={"ttl": "day 36500d"})
    assert adopted.columns == ("id", "day", "country")
    table = db.table("t")
    assert len(plan_of(table.scan(where="day = '2026-11-03' AND country = 'DE'")).files) == 1
    assert table.count("day < '2026-11-03'") == 40
    table.delete("day = '2026-11-01'")
    table.update({"country": "CH"}, "country = 'FR' AND id = 3")
    assert table.count("country = 'CH'") == 4
    assert table.changes(0).read_all().group_by("_change").aggregate([("id", "count")]).num_rows > 1
    table.rename_column("day", "date")
    table.add_column("day", pa.int64(), 7)
    db.maintain()
    assert table.count("day = 7 AND date = '2026-11-02'") == 20
    assert CONSTANT_COLUMNS in context_of(db).head.refresh().manifest.features
    assert db.verify(deep=True, all_versions=True).ok


def test_days_of_folders_become_timestamps_and_integers_wider(db: Database, lake: Path) -> None:
    write_plain(lake / "day=2026-11-27" / "n=5" / "1.parquet", pa.table({"id": [1, 2]}))
    table = db.create_table("t", "id BIGINT, day DATE, n SMALLINT, f FLOAT")
    db.adopt("t", str(lake), into=True)
    write_plain(lake / "f" / "f=0.1" / "day=2026-11-28" / "n=06" / "2.parquet", pa.table({"id": [3]}))
    db.adopt("t", str(lake / "f"), into=True)
    table.delete("f = 0.1 AND id = 4")
    for name, kind in (("day", pa.timestamp("us")), ("n", pa.int64()), ("f", pa.float64())):
        table.widen_column(name, kind)
    assert table.count("day = '2026-11-27 00:00:00' AND n = 5 AND f IS NULL") == 2
    assert table.count("n = 6 AND day > '2026-11-27'") == 1
    assert table.count("f < 0.1000001 AND f > 0.1") == 1
    assert len(plan_of(table.scan(where="day < '2026-11-28'")).files) == 1
    table.append([{"id": 9}])
    db.maintain()
    assert table.count("n = 5") == 2
    assert db.verify(deep=True, all_versions=True).ok


@pytest.mark.slow
def test_constants_survive_in_segments_clones_and_restores(tmp_path: Path, lake: Path) -> None:
    for number in range(300):
        write_plain(
            lake / f"part={number}" / f"{'x' * 30}={'long' * 9}{number}" / "0.parquet", pa.table({"id": [number]})
        )
    db = dolmen.open(tmp_path / "spilled")
    db.set(root_bytes="64KB")
    db.adopt("t", str(lake))
    table = db.table("t")
    table.append([{"id": 1_000}])
    table.delete("part = 7")
    assert context_of(db).head.refresh().manifest.tables["t"].segments_of("files")
    assert table.count("part = 250 AND id = 250") == 1
    assert table.count(f"{'x' * 30} = '{'long' * 9}250'") == 1
    assert len(plan_of(table.scan(where="part = 250")).files) == 1
    clone = db.clone("t", "copy")
    table.restore(version=2)
    db.maintain()
    assert (clone.count("part < 10"), table.count("part < 10")) == (9, 10)
    assert db.verify(deep=True).ok


def test_types_of_folders_are_inferred_from_all_of_them(db: Database, lake: Path) -> None:
    folders = (
        "i=1/m=01/d=2026-01-31/e=2026-02-30/t=1/x=/n=__HIVE_DEFAULT_PARTITION__/b=9223372036854775807/c=9223372036854775808",
        "i=-20/m=12/d=__HIVE_DEFAULT_PARTITION__/e=2026-01-01/t=a/x=1/n=__HIVE_DEFAULT_PARTITION__/b=0/c=1",
    )  # fmt: skip
    for number, folder in enumerate(folders):
        write_plain(lake / folder / "0.parquet", pa.table({"id": [number]}))
    db.adopt("t", str(lake))
    found = db.table("t").scan(order_by=["id"]).to_arrow()
    types = {"i": "int64", "d": "date32[day]", "b": "int64"} | dict.fromkeys("metxnc", "string")
    assert {name: str(found.schema.field(name).type) for name in types} == types
    assert found["m"].to_pylist() == ["01", "12"]
    assert found["x"].to_pylist() == ["", "1"]
    assert found["d"].to_pylist() == [date(2026, 1, 31), None]
    assert found["n"].null_count == 2


def test_values_have_the_type_of_the_tables_column_or_are_refused(db: Database, lake: Path) -> None:
    db.create_table("t", "id BIGINT, Month TINYINT NOT NULL, at TIMESTAMPTZ, price DECIMAL(6, 2), ok BOOLEAN")
    write_plain(
        lake / "month=01" / "at=2026-01-01 10%3A00%3A00" / "price=1.50" / "ok=true" / "0.parquet", pa.table({"id": [1]})
    )
    assert db.adopt("t", str(lake), into=True).from_folders == ("month", "at", "price", "ok")
    assert db.table("t").count("month = 1 AND at = '2026-01-01T10:00:00Z' AND price = 1.5 AND ok") == 1
    for folder, reason in (
        ("month=300", "column 'Month': '300' in a folder is not int8"), ("month=x", "'x' in a folder"),
        ("month=__HIVE_DEFAULT_PARTITION__", "column 'Month': it is NULL in a folder, and it cannot be NULL"),
        ("month=1/price=1.234", "column 'price': '1.234' in a folder"), ("month=1/MONTH=2", "give 'MONTH' twice"),
        ("price=1", "column 'Month': the file lacks it"), ("month=1/other=1", "hive=False ignores folders"),
    ):  # fmt: skip
        write_plain(lake / "more" / folder / "0.parquet", pa.table({"id": [1]}))
        assert reason in reasons(db, lake / "more" / folder, into=True)
    assert db.adopt("t", str(lake / "more" / "month=1" / "other=1"), into=True, new_columns="ignore").rows == 1


def test_a_column_in_the_file_and_in_its_folder_must_agree(db: Database, lake: Path) -> None:
    for number, statistics in ((1, True), (2, False)):
        (lake / f"y={number}").mkdir(parents=True)
        rows = pa.table({"id": [number], "y": pa.array([number], pa.int16())})
        pq.write_table(rows, lake / f"y={number}" / "0.parquet", write_statistics=statistics)
    adopted = db.adopt("t", str(lake))
    assert adopted.columns == ("id", "y")
    assert db.table("t").count("y = 2 AND id = 2") == 1
    write_plain(lake / "y=3" / "0.parquet", pa.table({"id": [3]}))  # this one has it in its folder only
    assert db.adopt("t", str(lake), into=True).rows == 1
    assert db.table("t").count("y = id") == 3
    for number, values in ((4, [4, 5]), (6, [7, 7]), (8, [8, None])):
        rows = pa.table({"id": values, "y": pa.array(values, pa.int16())})
        write_plain(lake / f"y={number}" / "0.parquet", rows)
    told = reasons(db, lake, into=True)
    assert told.count("column 'y': the file's value differs") == 3
    assert db.adopt("t", str(lake), into=True, hive=False).rows == 6
    assert db.table("t").count("y = 7") == 2


def test_folders_must_be_there_for_every_file(db: Database, lake: Path) -> None:
    write_plain(lake / "day=1" / "0.parquet", pa.table({"id": [1]}))
    write_plain(lake / "0.parquet", pa.table({"id": [2]}))
    assert "column 'day': it is only in the names of other files' folders: hive=False" in reasons(db, lake)
    assert "no folder has a name like" in reasons(db, lake / "0.parquet", hive=True)
    assert db.adopt("t", str(lake), hive=False).columns == ("id",)
    assert db.adopt("u", str(lake / "day=1")).columns == ("id", "day")
    assert db.adopt("v", [str(lake / "day=1" / "0.parquet")], hive=True).columns == ("id", "day")


def test_iceberg_gets_the_values_when_compaction_has_written_them(db: Database, lake: Path) -> None:
    for day in range(3):
        write_plain(lake / f"day={day}" / "0.parquet", pa.table({"id": [day]}))
    db.adopt("t", str(lake))
    table = db.table("t")
    with pytest.raises(SchemaError, match="do not see values in names of folders"):
        table.publish_iceberg()
    table.set(iceberg="v2")
    table.compact()
    assert not any(file.file.constants for file in plan_of(table.scan()).files)
    assert table.publish_iceberg().rows == 3
    assert table.count("day = id") == 3


def damage(db: Database, constants: dict[int, ConstantColumn]) -> Manifest:
    manifest = context_of(db).head.refresh().manifest
    entry = manifest.tables["t"]
    files = tuple(msgspec.structs.replace(file, constants=constants) for file in entry.files)
    tables = {"t": msgspec.structs.replace(entry, files=files)}
    return msgspec.structs.replace(manifest, tables=tables)


def test_constants_that_no_table_has_are_refused(db: Database, lake: Path) -> None:
    write_plain(lake / "day=1" / "0.parquet", pa.table({"id": [1]}))
    db.adopt("t", str(lake))
    for constants in (
        {2: ConstantColumn("int64", "x")}, {2: ConstantColumn("int64", 1.5)}, {2: ConstantColumn("int8", 300)},
        {2: ConstantColumn("int128", 1)}, {2: ConstantColumn("date32[day]", "2026-01-01")},
        {3: ConstantColumn("int64", 1)}, {0: ConstantColumn("int64", 1)}, {-1: ConstantColumn("int64", None)},
        {2_147_483_647: ConstantColumn("int64", 1)},
    ):  # fmt: skip
        manifest = damage(db, constants)
        with pytest.raises(CorruptionError, match=f"constant of column {next(iter(constants))}"):
            Manifest.decode(manifest.encode(), manifest.key)
        with pytest.raises(InputError):
            manifest.as_read()
        segment, body = encode("table", list(manifest.tables.values()), "segment/table/" + "0" * 32)
        with pytest.raises(CorruptionError, match="constant of column"):
            decode(segment, body)
    manifest = damage(db, {2: ConstantColumn("int64", 1)})
    assert Manifest.decode(manifest.encode(), manifest.key) == manifest
    body = manifest.encode().replace(b'["int64",1]', b'["int64"]')
    with pytest.raises(CorruptionError):
        Manifest.decode(seal(body[: body.rindex(b',"crc32"')] + b"}"), manifest.key)
    body = manifest.encode().replace(b"constant-columns", b"constant-colours")
    with pytest.raises(UnsupportedFormatError):
        Manifest.decode(seal(body[: body.rindex(b',"crc32"')] + b"}"), manifest.key)
    files = manifest.tables["t"].files
    assert to_entries(to_table(files, manifest.tables["t"].schema)) == list(files)


def test_the_second_reader_reads_constants(db: Database, lake: Path, tmp_path: Path) -> None:
    write_plain(lake / "day=2026-11-27" / "n=5" / "1.parquet", pa.table({"id": [1, 2]}))
    table = db.create_table("t", "id BIGINT, day DATE, n SMALLINT")
    db.adopt("t", str(lake), into=True)
    table.delete("day = '2026-11-27' AND id = 2")
    for name, kind in (("day", pa.timestamp("us")), ("n", pa.int64())):
        table.widen_column(name, kind)
    read = load_reader().Database(lambda key: (tmp_path / "db" / key).read_bytes()).rows("t")
    assert read.to_pylist() == table.to_arrow().to_pylist() == [{"id": 1, "day": datetime(2026, 11, 27), "n": 5}]

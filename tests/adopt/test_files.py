"""Parquet files of other writers become a table: the same rows, through everything that a table goes through."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import AppliedIdError, TableExistsError
from dolmen.format.layout import is_adopted
from dolmen.format.manifest import ADOPTED_FILES
from dolmen.rows.scan.scan import plan_of
from dolmen.store.local_store import LocalStore
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.lake import digests, write_duckdb, write_plain, write_polars

WITH_IDS = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "7"}),
                      pa.field("name", pa.string(), metadata={"PARQUET:field_id": "3"})])  # fmt: skip


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return dolmen.open(tmp_path / "a database")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "a lake, not a database"


def same(found: pa.Table, wanted: pa.Table) -> bool:
    """Whether two tables have the same rows, NaN equal to itself."""

    def plain(table: pa.Table) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = table.sort_by("id").to_pylist()
        return [{k: "NaN" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]

    return found.column_names == wanted.column_names and plain(found) == plain(wanted)


def paths(db: Database, table: str = "t") -> list[str]:
    entry = context_of(db).head.refresh().manifest.tables[table]
    return [file.path for file in context_of(db).segments.whole(entry).files]


@pytest.mark.slow
def test_files_of_duckdb_become_a_table_with_the_same_rows(db: Database, lake: Path) -> None:
    for part in range(3):
        write_duckdb(lake / f"y={part}" / "part 1%.parquet", part * 3_000, part * 3_000 + 3_000)
        pq.write_table(pq.read_table(lake / f"y={part}" / "part 1%.parquet").append_column(
            "y", pa.array([part] * 3_000)), lake / f"y={part}" / "part 1%.parquet")  # fmt: skip
    wanted = pa.concat_tables([pq.read_table(path, partitioning=None) for path in lake.rglob("*.parquet")])
    before = digests(lake)
    adopted = db.adopt("t", str(lake), "id", sort_key="at", properties={"ttl": "at 36500d"})
    assert (adopted.files, adopted.rows, adopted.deleted_rows) == (3, 9_000, 0)
    table = db.table("t")
    assert same(table.scan().to_arrow(), wanted)
    for where, count in (
        ("id < 10", 10), ("price = 5.25", 1), ("name = 'name 77'", 1), ("at < '2026-01-01T00:05:00Z'", 5),
        ("local < '2026-01-01 00:00:05'", 5), ("day = '2026-01-08'", 1), ("visits >= 8999", 1), ("even", 3_600),
        ("even IS NULL", 1_800), ("amount > 2249.6", 1), ("weight > 8999", 1_286), ("y = 2", 3_000),
    ):  # fmt: skip
        assert table.count(where) == count, where
    assert len(plan_of(table.scan(where="id = 8000")).files) == 1
    assert db.verify(deep=True).ok
    assert digests(lake) == before
    assert ADOPTED_FILES in context_of(db).head.refresh().manifest.features
    assert all(path.startswith("adopted/names/file/") and "%25" in path for path in paths(db))


@pytest.mark.slow
def test_an_adopted_table_is_a_table_like_any_other_and_its_files_stay_as_they_are(db: Database, lake: Path) -> None:
    write_duckdb(lake / "1.parquet", 0, 3_000)
    write_duckdb(lake / "2.parquet", 3_000, 6_000)
    before = digests(lake)
    db.adopt("t", str(lake), "id")
    table = db.table("t")
    first = table.scan().to_arrow()
    db.tag("adopted")
    db.clone("t", "copy")
    table.delete("id % 3 = 0")
    table.upsert(first.slice(5, 3).set_column(3, "name", pa.array(["new"] * 3)))
    table.update({"name": "'old ' || name"}, "id < 100 AND id > 50")
    table.rename_column("name", "title")
    table.add_column("name", pa.string(), "added")
    table.rename_column("address.zip", "postcode")
    table.drop_column("raw")
    changed = table.scan().to_arrow()
    assert changed.column("name").unique().to_pylist() == ["added"]
    assert changed.column("address")[0].as_py().keys() == {"postcode", "city"}
    db.maintain()
    assert same(table.scan().to_arrow().select(["id", "title"]), changed.select(["id", "title"]))
    table.delete("id >= 1000")
    db.maintain()
    assert not any(map(is_adopted, paths(db)))  # mostly deleted files are rewritten
    assert table.count() == pc.sum(pc.less(changed["id"], 1_000)).as_py()
    assert same(db.table("copy").scan().to_arrow(), first)
    assert same(db.at(tag="adopted").table("t").scan().to_arrow(), first)
    table.restore(tag="adopted")
    assert same(table.scan().to_arrow(), first)
    table.overwrite(first.slice(0, 10))
    assert db.verify(deep=True, all_versions=True).ok
    assert digests(lake) == before


def test_the_change_feed_shows_the_adopted_rows_as_inserts(db: Database, lake: Path) -> None:
    write_polars(lake / "1.parquet", 0, 20)
    db.adopt("t", str(lake), "id")
    db.table("t").delete("id < 5")
    changes = db.table("t").changes(0).read_all()
    assert changes["_change"].to_pylist() == ["insert"] * 20 + ["delete"] * 5


def test_files_with_field_ids_are_read_by_them_whatever_their_columns_are_called(db: Database, lake: Path) -> None:
    write_plain(lake / "1.parquet", pa.table({"id": [1, 2], "name": ["a", "b"]}, WITH_IDS))
    write_plain(lake / "2.parquet", pa.table({"id": [3], "name": ["c"]}))  # without ids
    write_plain(
        lake / "3.parquet", pa.table({"name": ["d"], "id": [4]}, pa.schema([WITH_IDS.field(1), WITH_IDS.field(0)]))
    )
    db.adopt("t", str(lake))
    table = db.table("t")
    assert {field.name: field.id for field in context_of(db).head.refresh().manifest.tables["t"].schema.fields} == {
        "id": 7, "name": 3,
    }  # fmt: skip
    assert [path.split("/")[1] for path in paths(db)] == ["ids", "names", "ids"]
    table.rename_column("id", "key")
    table.add_column("id", pa.int64(), 99)
    assert table.scan().to_arrow().sort_by("key").to_pylist() == [
        {"key": number, "name": name, "id": 99} for number, name in zip(range(1, 5), "abcd", strict=True)
    ]
    assert db.at(db.version - 2).table("t").scan().to_arrow()["id"].to_pylist() == [1, 2, 3, 4]
    assert db.verify(deep=True).ok


def test_large_strings_and_categories_of_polars_are_read_as_strings(db: Database, lake: Path) -> None:
    write_polars(lake / "1.parquet", 0, 100)
    db.adopt("t", str(lake / "1.parquet"))
    found = db.table("t").scan(where="kind = 'a'").to_arrow()
    assert found.schema.types == [pa.int64(), pa.string(), pa.string()]
    assert found["name"].to_pylist() == [f"name {i}" for i in range(1, 100, 2)]


def test_types_of_arrow_that_dolmen_has_not_are_read_as_those_that_it_has(db: Database, lake: Path) -> None:
    start = datetime.datetime(2026, 1, 1)
    times = [None if i == 3 else start + datetime.timedelta(seconds=i) for i in range(200)]
    rows = pa.table({
        "id": range(200),
        "second": pa.array(times, pa.timestamp("s")),
        "milli": pa.array(times, pa.timestamp("ms", "Europe/Berlin")),
        "clock": pa.array([None if at is None else at.time() for at in times], pa.time32("ms")),
        "kind": pa.array([f"k{i % 3}" for i in range(200)]).dictionary_encode(),
        "view": pa.array([f"v{i}" for i in range(200)], pa.string_view()),
        "bytes": pa.array([b"%03d" % i for i in range(200)], pa.large_binary()),
        "small": pa.array([Decimal(i) / 4 for i in range(200)], pa.decimal32(7, 2)),
        "uuid": pa.array([i.to_bytes(16, "big") for i in range(200)], pa.uuid()),
        "pair": pa.array([[i, None] for i in range(200)], pa.list_(pa.int32(), 2)),
        "deep": pa.array(
            [None if i == 5 else [{"a": f"a{i}", "at": times[i]}] for i in range(200)],
            pa.large_list(pa.struct([("a", pa.large_string()), ("at", pa.timestamp("ms"))])),
        ),
    })  # fmt: skip
    write_plain(lake / "1.parquet", rows.slice(0, 100), 30)
    write_plain(lake / "2.parquet", rows.slice(100), 30)
    db.adopt("t", str(lake))
    table = db.table("t")
    own = db.create_table("own", rows.schema)
    own.append(rows)
    assert table.scan().to_arrow().schema.types == own.scan().to_arrow().schema.types
    assert table.scan().to_arrow().to_pylist() == own.scan().to_arrow().to_pylist()
    for where, count in (
        ("second < '2026-01-01 00:00:02'", 2), ("milli >= '2026-01-01T00:03:19Z'", 1), ("clock = '00:00:07'", 1),
        ("clock IS NULL", 1), ("kind = 'k2'", 66), ("view = 'v199'", 1), ("small < 0.5", 2), ("small >= 49.75", 1),
    ):  # fmt: skip
        assert table.count(where) == own.count(where) == count, where
    assert len(plan_of(table.scan(where="clock > '00:03:00'")).files) == 1
    assert db.verify(deep=True).ok


def test_a_column_that_some_files_lack_is_null_there(db: Database, lake: Path) -> None:
    write_plain(lake / "1.parquet", pa.table({"id": [1]}))
    write_plain(lake / "2.parquet", pa.table({"id": [2], "more": ["x"]}))
    write_plain(lake / "3.parquet", pa.table({"id": pa.array([], pa.int64())}))
    assert db.adopt("t", str(lake)).files == 2  # and one without rows
    assert db.table("t").scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "more": None}, {"id": 2, "more": "x"},
    ]  # fmt: skip
    assert db.table("t").count("more IS NULL") == 1


def test_hidden_files_are_left_out_and_names_of_folders_and_files_may_be_any(db: Database, lake: Path) -> None:
    long = "/".join(["ü" * 120] * 3) + "/1.parquet"  # whose path is longer than keys of a store may be
    for name in ("_SUCCESS", ".part.crc", "_tmp/x.parquet", "ä ö?#%41/=b&.parquet", "000000_0", long):
        write_plain(lake / name, pa.table({"id": [1, 2]}))
    assert db.adopt("t", str(lake)).files == 3
    table = db.table("t")
    assert table.count("id = 1") == 3
    table.delete("id = 2")
    db.maintain()
    assert table.count() == 3
    db.drop_table("t")
    assert db.gc().errors == {}
    assert db.verify().ok


def test_one_list_and_a_get_for_each_footer_are_all_that_it_costs() -> None:
    store = CountingStore(MemoryStore())
    for number in range(7):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": range(100_000), "n": range(100_000)}), sink, compression="none")
        store.put(f"lake/{number}.parquet", sink.getvalue().to_pybytes())
    db = Database(store, Runtime())
    db.refresh()
    store.reset()
    assert db.adopt("t", "lake").rows == 700_000
    # of lists one for the first commit, one for the metadata of Iceberg, and one for the files
    assert (store.gets, store.puts, store.heads, store.lists) == (7, 2, 0, 3)
    assert store.bytes_down <= 7 * 65_536
    store.reset()
    assert db.adopt("u", [f"lake/{number}.parquet" for number in (1, 2)]).rows == 200_000
    assert (store.gets, store.puts, store.heads, store.lists) == (2, 2, 2, 0)
    store.reset()
    assert db.table("u").count("id = 5") == 2
    assert store.heads == store.lists == 0


def test_a_large_footer_takes_a_second_request() -> None:
    store = CountingStore(MemoryStore())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({f"c{number}": range(200) for number in range(40)}), sink, row_group_size=10)
    store.put("lake/1.parquet", sink.getvalue().to_pybytes())
    db = Database(store, Runtime())
    db.refresh()
    store.reset()
    db.adopt("t", "lake")
    assert store.gets == 2
    assert db.table("t").scan(where="c3 = 7").to_arrow().num_rows == 1


def test_a_request_is_applied_once_and_a_dry_run_commits_nothing(db: Database, lake: Path) -> None:
    write_polars(lake / "1.parquet", 0, 10)
    seen: list[tuple[int, int]] = []
    dry = db.adopt("t", str(lake), dry_run=True, progress=lambda done, total: seen.append((done, total)))
    assert (dry.files, dry.rows, dry.commit, db.tables(), seen) == (1, 10, None, [], [(1, 1)])
    first = db.adopt("t", str(lake), request="r", message="m").commit
    assert first is not None
    assert (first.version, first.done, first.message) == (1, "adopt t", "m")
    write_polars(lake / "2.parquet", 10, 20)
    again = db.adopt("t", str(lake), request="r").commit
    assert again is not None
    assert again.already == {"r": 1}
    assert db.table("t").count() == 10
    with pytest.raises(TableExistsError):
        db.adopt("t", str(lake))
    with pytest.raises(AppliedIdError):
        db.adopt("other", str(lake), request="r")


def test_files_in_the_database_itself_go_with_a_copy_of_it(tmp_path: Path) -> None:
    write_polars(tmp_path / "one" / "old" / "1.parquet", 0, 10)
    db = dolmen.open(tmp_path / "one")
    db.adopt("t", "old")
    db.adopt("u", str(tmp_path / "one" / "old" / "1.parquet"))
    assert {path.split("/")[2] for name in "tu" for path in paths(db, name)} == {"own"}
    (tmp_path / "one").rename(tmp_path / "two")
    assert dolmen.open(tmp_path / "two").table("t").count("id < 5") == 5


@pytest.mark.slow
def test_entries_of_adopted_files_survive_in_segments(tmp_path: Path, lake: Path) -> None:
    for number in range(300):
        write_plain(lake / f"{number:03}.parquet", pa.table({"id": [number]}))
    db = Database(CountingStore(LocalStore(tmp_path / "spilled")), Runtime())
    db.set(root_bytes="64KB")
    db.adopt("t", str(lake), "id")
    table = db.table("t")
    table.append({"id": [1_000]})
    table.delete(keys=[7, 1_000])
    assert context_of(db).head.refresh().manifest.tables["t"].segments_of("files")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [n for n in range(300) if n != 7]
    assert table.count("id = 250") == 1
    db.maintain()
    assert table.count() == 299
    assert db.verify(deep=True).ok


def test_ids_that_are_unique_inside_their_struct_only_are_those_of_messages(db: Database, lake: Path) -> None:
    """As parquet-protobuf and parquet-thrift write them: columns are found by their names."""

    def field(name: str, kind: pa.DataType, id_: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(id_)})

    inner = pa.struct([field("name", pa.string(), 1), field("zip", pa.int64(), 2)])
    listed = pa.list_(field("element", inner, 1))
    pairs = pa.map_(pa.string(), inner)
    schema = pa.schema(
        [field("user", inner, 1), field("n", pa.int64(), 2), field("l", listed, 3), field("m", pairs, 4)]
    )
    one = {"name": "a", "zip": 7}
    rows = [{"user": one, "n": 1, "l": [one, None], "m": [("k", one)]}]
    write_plain(lake / "1.parquet", pa.Table.from_pylist(rows, schema))
    write_plain(lake / "2.parquet", pa.Table.from_pylist([{"n": 2}], pa.schema([("n", pa.int64())])))
    db.adopt("t", str(lake))
    found = db.table("t").scan(order_by=["n"]).to_arrow().to_pylist()
    assert found == [*rows, {"user": None, "n": 2, "l": None, "m": None}]
    db.table("t").delete("n = 2")
    db.maintain()
    assert db.table("t").to_arrow().to_pylist() == rows
    assert db.verify(deep=True).ok


def test_the_old_lz4_codec_is_read(db: Database, lake: Path) -> None:
    path = lake / "1.parquet"
    lake.mkdir()
    pq.write_table(pa.table({"a": ["x" * 100] * 50, "b": range(50)}), path, compression="lz4", write_statistics=False)
    body = bytearray(path.read_bytes())
    footer = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    codec, at = b"\x15\x0e\x16", footer  # in Thrift: field of type i32, LZ4_RAW (7), field of type i64
    while (at := body.find(codec, at)) >= 0:
        body[at + 1], at = 0x0A, at + 1  # LZ4 (5)
    path.write_bytes(body)
    db.adopt("t", str(lake))
    assert db.table("t").count("a = 'x'") == 0
    assert db.table("t").scan().to_arrow()["b"].to_pylist() == list(range(50))
    db.table("t").delete("b < 30")
    db.maintain()
    assert db.table("t").count() == 20
    assert db.verify(deep=True).ok


def test_a_field_of_a_struct_is_read_alone(db: Database, lake: Path) -> None:
    rows, rng = 40_000, np.random.default_rng(1)
    numbers = np.arange(rows)
    noise = pa.array([rng.bytes(60).hex() for _ in range(rows)])
    at = pa.array(numbers, pa.timestamp("ms"))  # which dolmen reads as microseconds
    geo = pa.StructArray.from_arrays([noise, pa.array(numbers % 100 / 8), at], ["name", "lat", "at"])
    listed = pa.array([[1]] * rows)
    parts = [pa.array((numbers % 1000).astype(str)).dictionary_encode(), noise, listed, geo]
    address = pa.StructArray.from_arrays(parts, ["zip", "street", "l", "geo"], mask=pa.array(numbers % 7 == 0))
    lake.mkdir()
    pq.write_table(pa.table({"address": address, "noise": noise, "id": numbers}), lake / "one.parquet")
    db.adopt("t", str(lake))
    table = db.table("t")
    group = pq.read_metadata(lake / "one.parquet").row_group(0)
    chunks = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    known = (numbers % 7 > 0) & (numbers % 1000 == 7), (numbers % 7 > 0) & (numbers % 100 == 4), (numbers == 39_999)
    for where, names, expected in (
        ("address.zip = '7'", ["address.zip"], known[0]),
        ("address.geo.lat = 0.5", ["address.geo.lat"], known[1]),
        ("address.zip = '7' OR address.geo.lat = 0.5", ["address.zip", "address.geo.lat"], known[0] | known[1]),
        ("address.geo.at >= '1970-01-01 00:00:39.999'", ["address.geo.at"], known[2]),
    ):
        scan = table.scan(columns=["id"], where=where)
        size = sum(chunks[name].total_compressed_size for name in ["id", *names])
        assert scan.explain().data_fetch.bytes == size
        assert scan.to_arrow()["id"].to_pylist() == numbers[expected].tolist()
        found = table.scan(columns=["address"], where=where).to_arrow()["address"]
        assert found.to_pylist() == address.filter(pa.array(expected)).cast(found.type).to_pylist()
    table.delete("address.geo.lat = 0.5")
    table.rename_column("address.zip", "postcode")
    assert table.count(where="address.postcode = '7'") == (known[0] & ~known[1]).sum()
    assert table.count() == rows - known[1].sum()
    table.compact()
    assert table.count(where="address.postcode = '7'") == (known[0] & ~known[1]).sum()

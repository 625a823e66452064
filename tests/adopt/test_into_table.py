"""Files are added to a table that exists: what fits, what is refused, and that each file is added once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen import Database, Table
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import AdoptionError, InputError, TableNotFoundError
from dolmen.format.layout import is_adopted
from dolmen.format.manifest import ADOPTED_FILES
from dolmen.rows.scan.scan import plan_of
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore
from support.commit_world import ScriptedStore, meanwhile
from support.lake import digests, write_duckdb, write_plain, write_polars


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return dolmen.open(tmp_path / "db")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def reasons(db: Database, source: Path, **how: object) -> str:
    """Why files are refused. The table stays as it was."""
    before = db.table("t").to_arrow(), db.version
    with pytest.raises(AdoptionError) as caught:
        db.adopt("t", str(source), into=True, **how)  # type: ignore[arg-type]
    assert (db.table("t").to_arrow(), db.version) == before
    assert "dolmen append TABLE FILE" in str(caught.value)
    return "\n".join(caught.value.reasons)


def with_ids(rows: dict[str, list[object]], ids: list[int]) -> pa.Table:
    table = pa.table(rows)
    fields = [field.with_metadata({"PARQUET:field_id": str(id_)}) for field, id_ in zip(table.schema, ids, strict=True)]
    return table.cast(pa.schema(fields))


def test_new_files_of_a_folder_are_added_and_those_of_before_are_skipped(db: Database, lake: Path) -> None:
    write_duckdb(lake / "1.parquet", 0, 3_000)
    db.adopt("t", str(lake))
    table = db.table("t")
    table.append(pq.read_table(lake / "1.parquet").slice(0, 5))
    write_duckdb(lake / "2.parquet", 3_000, 6_000)
    before = digests(lake)
    added = db.adopt("t", str(lake), into=True, message="new ones")
    assert (added.files, added.rows, added.skipped) == (1, 3_000, 1)
    assert added.commit is not None
    assert (added.commit.done, added.commit.message, added.commit.counts.rows_added) == ("adopt t", "new ones", 3_000)
    assert table.count() == 6_005
    assert table.count("id >= 3000") == 3_000
    assert len(plan_of(table.scan(where="id = 5999")).files) == 1
    again = db.adopt("t", str(lake), into=True)
    assert (again.files, again.skipped, db.version) == (0, 2, added.commit.version)
    assert table.changes(added.commit.version - 1).read_all()["_change"].unique().to_pylist() == ["insert"]
    table.delete("id < 10 OR id > 5990")
    table.rename_column("name", "title")
    db.maintain()
    assert table.count("title = 'name 17'") == 1
    assert table.count() == 6_005 - 15 - 9
    assert db.at(added.commit.version - 1).table("t").count() == 3_005
    assert db.verify(deep=True, all_versions=True).ok
    assert digests(lake) == before


def test_a_table_that_dolmen_wrote_gets_files_of_other_programs(db: Database, lake: Path) -> None:
    table = db.create_table("t", {"id": pa.int64(), "name": pa.string(), "kind": pa.string()}, sort_key="id")
    table.append([{"id": 1, "name": "a", "kind": "x"}])
    write_polars(lake / "1.parquet", 10, 20)
    db.adopt("t", str(lake), into=True)
    assert table.count("kind = 'a'") == 5
    assert ADOPTED_FILES in context_of(db).head.refresh().manifest.features
    table.rename_column("kind", "sort")
    table.add_column("kind", pa.string(), "new")
    write_plain(lake / "2.parquet", pa.table({"id": [30]}))
    db.adopt("t", str(lake), into=True)
    assert table.count("sort = 'a' AND kind = 'new'") == 5
    assert table.scan(where="id = 30").to_arrow().to_pylist() == [
        {"id": 30, "name": None, "sort": None, "kind": "new"}
    ]  # fmt: skip
    write_polars(lake / "3.parquet", 40, 50)
    assert "files that were adopted earlier have another column under this name" in reasons(db, lake)
    table.update({"name": dolmen.Expression("upper(name)")}, "id < 15")
    db.maintain()
    assert table.count("name LIKE 'NAME%' AND sort = 'b'") == 3
    assert db.verify(deep=True).ok


def test_a_file_is_added_once_whatever_became_of_its_rows(db: Database, lake: Path) -> None:
    for number in range(3):
        write_plain(lake / f"{number}.parquet", pa.table({"id": [number]}))
    db.adopt("t", str(lake))
    table = db.table("t")
    write_plain(lake / "3.parquet", pa.table({"id": [3]}))
    assert db.adopt("t", str(lake), into=True).files == 1
    table.delete("id = 3")
    for _ in range(12):
        table.append([{"id": 9}])
    db.maintain()
    table.delete("id = 9")
    assert not any(is_adopted(file.file.path) for file in plan_of(table.scan()).files)
    db.clone("t", "copy")
    for name in ("t", "copy"):
        assert (db.adopt(name, str(lake), into=True).skipped, db.table(name).count()) == (4, 3)
    assert db.adopt("t", [str(lake / "3.parquet"), str(lake / "0.parquet")], into=True).skipped == 2
    assert db.adopt("t", str(lake / "3.parquet"), into=True, again=True).files == 1
    assert db.adopt("t", str(lake / "3.parquet"), into=True, again=True).skipped == 1
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
    assert db.adopt("u", str(lake)).files == 4  # another table has no memory of it
    write_plain(lake / "2.parquet", pa.table({"id": range(1_000)}))
    assert "2.parquet" in reasons(db, lake)
    assert "different size" in reasons(db, lake)


def test_an_old_file_of_a_folder_may_have_been_forgotten(db: Database, lake: Path) -> None:
    for number in range(3):
        write_plain(lake / f"{number}.parquet", pa.table({"id": [number]}))
        os.utime(lake / f"{number}.parquet", (time.time() - 40 * 86_400,) * 2)
    db.create_table("t", {"id": pa.int64()})
    assert db.adopt("t", str(lake / "0.parquet"), into=True).files == 1
    told = reasons(db, lake)
    assert told.startswith("it is older than applied_retention")
    assert "2 files, the first is" in told
    assert db.adopt("t", [str(lake / f"{number}.parquet") for number in (0, 1)], into=True).files == 1
    db.set(applied_retention="60d")
    assert db.adopt("t", str(lake), into=True).files == 1
    assert sorted(db.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]


@pytest.mark.slow
def test_of_two_that_add_the_same_files_at_once_one_adds_each(tmp_path: Path, lake: Path) -> None:
    for number in range(20):
        write_plain(lake / f"{number}.parquet", pa.table({"id": [number], f"c{number % 3}": [number]}))
    dolmen.open(tmp_path / "db").create_table("t", {"id": pa.int64()})
    start, added = Barrier(4), list[int]()

    def add(first: int) -> None:
        db = dolmen.open(tmp_path / "db")
        start.wait()
        for number in range(first, 20, 2):
            files = [str(lake / f"{each}.parquet") for each in {number, (number + 1) % 20, (number + 5) % 20}]
            added.append(db.adopt("t", files, into=True, new_columns="add").files)
            db.table("t").append([{"id": 1_000}])

    threads = [Thread(target=add, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = dolmen.open(tmp_path / "db").table("t")
    assert sum(added) == 20
    assert sorted(table.scan(where="id < 1000").to_arrow()["id"].to_pylist()) == list(range(20))
    assert table.count("id < 1000 AND (c0 = id OR c1 = id OR c2 = id)") == 20
    assert table.count("id = 1000") == 40


def test_a_request_adds_the_files_of_its_first_call(db: Database, lake: Path) -> None:
    db.create_table("t", {"id": pa.int64()})
    write_plain(lake / "1.parquet", pa.table({"id": [1]}))
    dry = db.adopt("t", str(lake), into=True, dry_run=True)
    assert (dry.files, dry.commit, db.table("t").count()) == (1, None, 0)
    first = db.adopt("t", str(lake), into=True, request="r").commit
    write_plain(lake / "2.parquet", pa.table({"id": [2]}))
    again = db.adopt("t", str(lake), into=True, request="r").commit
    assert first is not None
    assert again is not None
    assert again.already == {"r": first.version}
    assert db.table("t").count() == 1


def test_columns_that_the_table_lacks_are_refused_added_or_ignored(db: Database, lake: Path) -> None:
    db.create_table("t", "id BIGINT, n INTEGER").append([{"id": 0, "n": 0}])
    rows = pa.table({"ID": [1], "n": pa.array([1], pa.int8()), "more": pa.array([7], pa.int32())})
    write_plain(lake / "1.parquet", rows)
    write_plain(lake / "2.parquet", pa.table({"id": [2], "more": [2**40], "sub": [{"a": 1}]}))
    assert "column 'more': the table has no such column: new_columns='add'" in reasons(db, lake)
    ignored = db.adopt("t", str(lake / "1.parquet"), into=True, new_columns="ignore")
    assert ignored.columns == ("id", "n")
    table = db.table("t")
    assert table.count("id = 1 AND n = 1") == 1
    assert "earlier have another column under this name" in reasons(db, lake / "2.parquet", new_columns="add")
    table.add_column("more", pa.int64())
    assert table.count("more IS NULL") == 2  # not the values that were ignored
    db.create_table("u", "id BIGINT, n INTEGER")
    assert db.adopt("u", str(lake), into=True, new_columns="add").columns == ("id", "n", "more", "sub")
    assert db.table("u").scan(order_by=["id"]).to_arrow().to_pylist() == [
        {"id": 1, "n": 1, "more": 7, "sub": None}, {"id": 2, "n": None, "more": 2**40, "sub": {"a": 1}},
    ]  # fmt: skip
    assert db.table("u").count("n = 1") == 1
    db.maintain()
    assert db.verify(deep=True).ok


def test_types_are_those_of_the_table_or_narrower(db: Database, lake: Path) -> None:
    db.create_table("t", "i INTEGER, f DOUBLE, d DECIMAL(9, 2), at TIMESTAMP, day DATE, text VARCHAR")
    narrow = pa.schema({"i": pa.int16(), "f": pa.float32(), "d": pa.decimal128(5, 2), "at": pa.timestamp("ms")})
    write_plain(lake / "1.parquet", pa.Table.from_pylist([{"i": 5, "f": 0.1, "d": 1, "at": 1_000}], narrow))
    assert db.adopt("t", str(lake), into=True).files == 1
    table = db.table("t")
    assert table.count("i = 5 AND d = 1.00 AND at = '1970-01-01 00:00:01' AND day IS NULL") == 1
    table.append([{"i": 70_000}])
    table.delete("i = 70000")
    db.maintain()
    assert db.verify(deep=True).ok
    wide = pa.table({
        "i": [1], "f": [1], "d": pa.array([1], pa.decimal128(9, 3)), "at": pa.array([1], pa.date32()), "text": [1],
        "day": pa.array([1], pa.timestamp("us")),
    })  # fmt: skip
    write_plain(lake / "2.parquet", wide)
    told = reasons(db, lake)
    for part in (
        "column 'i': it is int64 in the file, and int32 in the table", "column 'f': it is int64",
        "column 'd': it is decimal128(9, 3)", "column 'at': it is a date in the file, and a timestamp in the table",
        "column 'text': it is int64", "column 'day': it is timestamp", "2.parquet",
    ):  # fmt: skip
        assert part in told
    times = pa.table({"at": pa.array([1, 2], pa.timestamp("us"))})
    pq.write_table(times, lake / "2.parquet", use_deprecated_int96_timestamps=True)
    assert "INT96" in reasons(db, lake)
    write_plain(lake / "2.parquet", pa.table({"at": pa.array([1, 2], pa.timestamp("ns"))}))
    assert "nanoseconds" in reasons(db, lake)


def test_columns_without_null_need_a_proof_by_statistics_or_by_reading(db: Database, lake: Path) -> None:
    table = db.create_table("t", "id BIGINT NOT NULL, tags VARCHAR[] NOT NULL, name VARCHAR")
    full = pa.table({"id": range(300), "tags": [["a"]] * 300})
    write_plain(lake / "1.parquet", full)
    lake.joinpath("2").mkdir()
    pq.write_table(full, lake / "2" / "no statistics.parquet", write_statistics=False, row_group_size=100)
    assert db.adopt("t", str(lake), into=True).rows == 600
    assert table.count("id = 299") == 2
    for statistics in (True, False):
        some = pa.table({"id": [1, None, None], "tags": [["a"], None, []]})
        pq.write_table(some, lake / "3.parquet", write_statistics=statistics)
        told = reasons(db, lake)
        assert "column 'id': 2 values are NULL, and it cannot be NULL in the table" in told
        assert "column 'tags': 1 value is NULL" in told
    write_plain(lake / "3.parquet", pa.table({"id": [1]}))
    assert "column 'tags': the file lacks it, and it cannot be NULL" in reasons(db, lake)


def test_files_with_field_ids_need_those_of_the_table(db: Database, lake: Path) -> None:
    db.create_table("t", "id BIGINT, name VARCHAR, place STRUCT(zip BIGINT)")
    write_plain(lake / "1.parquet", with_ids({"id": [1], "name": ["a"]}, [1, 2]))
    db.adopt("t", str(lake), into=True)
    assert context_of(db).head.refresh().manifest.tables["t"].files[0].path.startswith("adopted/ids/")
    write_plain(lake / "2.parquet", with_ids({"name": ["a"], "id": [1]}, [1, 2]))
    assert "column 'id': its field id is 2 in the file, and 1 in the table" in reasons(db, lake)
    write_plain(lake / "2.parquet", with_ids({"id": [1], "more": [9]}, [1, 8]))
    db.adopt("t", str(lake), into=True, new_columns="ignore")
    table = db.table("t")
    for number in range(6):
        table.add_column(f"c{number}", pa.int64())
    assert table.count("c4 = 9 OR c5 = 9") == 0
    write_plain(lake / "3.parquet", pa.table({"id": [1], "place": [{"zip": 5, "city": "c"}]}))
    assert "the table's column has no field 'city'" in reasons(db, lake)
    write_plain(lake / "3.parquet", pa.table({"id": [3], "place": [{"zip": 5}]}))
    db.adopt("t", str(lake), into=True)
    table.rename_column("place.zip", "code")
    assert table.scan(where="id = 3").to_arrow()["place"].to_pylist() == [{"code": 5}]
    table.add_column("place.zip", pa.int64())
    write_plain(lake / "4.parquet", pa.table({"id": [4], "place": [{"zip": 5}]}))
    assert "files that were adopted earlier have another field 'zip'" in reasons(db, lake)
    assert db.verify(deep=True).ok


def test_maps_and_lists_of_other_writers_fit_whatever_their_inner_names_are(db: Database, lake: Path) -> None:
    rows = {"l": [[{"a": 1, "b": 2}]], "m": [[("k", 1)]]}
    kinds = {
        "l": pa.list_(pa.field("array", pa.struct({"b": pa.int64(), "a": pa.int64()}))),
        "m": pa.map_(pa.string(), pa.field("v", pa.int64())),
    }
    db.create_table("t", "l STRUCT(a BIGINT, b BIGINT)[], m MAP(VARCHAR, BIGINT)")
    write_plain(lake / "1.parquet", pa.table(rows, pa.schema(kinds)))
    db.adopt("t", str(lake), into=True)
    assert db.table("t").to_arrow().to_pylist() == [{"l": [{"a": 1, "b": 2}], "m": [("k", 1)]}]


def test_tables_with_keys_iceberg_tables_and_settings_are_refused(db: Database, lake: Path) -> None:
    write_plain(lake / "1.parquet", pa.table({"id": [1]}))
    db.create_table("k", {"id": pa.int64()}, "id")
    with pytest.raises(InputError, match="upsert"):
        db.adopt("k", str(lake), into=True)
    with pytest.raises(TableNotFoundError):
        db.adopt("missing", str(lake), into=True)
    with pytest.raises(InputError, match="are for a new table"):
        db.adopt("k", str(lake), "id", into=True)
    with pytest.raises(InputError, match="into=True"):
        db.adopt("n", str(lake), new_columns="add")


def test_a_table_with_checks_takes_no_files(db: Database, lake: Path) -> None:
    write_plain(lake / "1.parquet", pa.table({"id": [-1]}))
    db.create_table("t", {"id": pa.int64()}).add_check("positive", "id > 0")
    with pytest.raises(InputError, match="positive"):
        db.adopt("t", str(lake), into=True)
    assert db.table("t").count() == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [(lambda t: t.add_check("positive", "id > 0"), "has checks"), (lambda t: t.add_primary_key("id"), "primary key")],
)
def test_checks_and_keys_that_come_meanwhile_are_seen(change: Callable[[Table], object], why: str) -> None:
    bucket, sink = MemoryBucket(), pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [-1, -1]}), sink)
    MemoryStore(bucket).put("lake/1.parquet", sink.getvalue().to_pybytes())
    store, other = ScriptedStore(bucket, Runtime()), Database(MemoryStore(bucket, Runtime()), Runtime())
    db = Database(store, Runtime())
    db.create_table("t", {"id": pa.int64()})
    store.script.append(meanwhile(lambda: change(other.table("t"))))
    with pytest.raises(InputError, match=why):
        db.adopt("t", "lake", into=True)
    assert other.table("t").count() == 0


def test_erased_rows_stay_away_from_a_table_that_leaves_them_out(db: Database, lake: Path) -> None:
    table = db.create_table("t", {"id": pa.int64()})
    table.append([{"id": 1}])
    table.set(leave_out_erased=True)
    write_plain(lake / "1.parquet", pa.table({"id": [2]}))
    db.adopt("t", str(lake), into=True)
    table.erase("id = 1")
    write_plain(lake / "2.parquet", pa.table({"id": [1]}))
    assert "leaves out erased rows" in reasons(db, lake)


def test_known_files_cost_no_request_each(tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    for number in range(50):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": [number]}), sink)
        store.put(f"lake/{number:02}.parquet", sink.getvalue().to_pybytes())
    db = Database(store, Runtime())
    db.create_table("t", {"id": pa.int64()})
    db.adopt("t", [f"lake/{number:02}.parquet" for number in range(40)], into=True)
    store.reset()
    assert db.adopt("t", "lake", into=True).files == 10
    # the pointer, and 10 footers; a list for the metadata of Iceberg, and one for the files
    assert (store.gets, store.puts, store.heads, store.lists) == (11, 2, 0, 2)
    store.reset()
    assert db.adopt("t", "lake", into=True).skipped == 50
    assert (store.gets, store.puts, store.lists) == (1, 0, 2)

"""Bulk load: any files of a landing place, each once, whoever else ingests them."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.errors import InputError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.announce_files import DropSource
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.rows.scan.scan import plan_of
from dolmen.service.handover.handover_records import HandoverRecords
from dolmen.spark.load import load as loading
from dolmen.spark.load.load import Loaded, load
from dolmen.store import open_store
from support import refused_files
from support.landing_files import COMPRESSIONS, FORMATS, SCHEMA, drops_in, put, put_bytes, rows_of
from support.refused_files import REFUSED, content

Load = Callable[..., Loaded]


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def source_of(db: Database, landing: Path, *tables: str) -> DropSource:
    return DropSource.of(str(landing), database=db.url, tables=tables)


@pytest.fixture
def loaded(spark: SparkSession, db: Database, landing: Path) -> Load:
    def run(*tables: str, **options: Any) -> Loaded:
        return load(spark, db, source_of(db, landing, *tables), **options)

    return run


def ids(table: Table) -> list[int]:
    return sorted(table.scan(["id"]).to_arrow()["id"].to_pylist())


def reports(tmp_path: Path, table: str) -> dict[str, Any]:
    found = sorted((tmp_path / "rejected" / table).rglob("*.error.json"))
    return {path.name.partition("-")[0]: json.loads(path.read_text()) for path in found}


@pytest.mark.slow
@pytest.mark.parametrize("sort_key", [None, ["at", "id"]])
def test_files_of_all_formats_and_compressions_are_one_commit_and_loaded_once(
    db: Database, landing: Path, loaded: Load, sort_key: list[str] | None
) -> None:
    table = db.create_table("events", SCHEMA, sort_key=sort_key)
    first = 0
    for form in FORMATS:
        for ending in COMPRESSIONS:
            put(landing, f"events/2026/{form}{ending[1:]}.{form}{ending}", rows_of(first, 50))
            first += 50
    put_bytes(landing, "events/_temporary/half.csv", b"id,at,na")
    version = db.version
    done = loaded()
    assert (done.outcomes, done.rows, done.commits, done.skipped) == ({"ingested": 24}, first, 1, 1)
    assert (db.refresh(), ids(table)) == (version + 1, list(range(first)))
    assert table.scan(["id", "name"], "id = 777").to_arrow().to_pylist() == [{"id": 777, "name": "name 7"}]
    again = loaded()
    assert (again.outcomes, again.commits, db.refresh()) == ({"duplicate": 24}, 0, version + 1)
    assert db.verify(deep=True).ok


def test_files_that_lack_a_column_have_its_default(db: Database, landing: Path, loaded: Load) -> None:
    table = db.create_table("events", SCHEMA)
    table.add_column("source", pa.string(), "old", nullable=False)
    put(landing, "events/a.csv", rows_of(0, 50))
    put(landing, "events/b.parquet", rows_of(50, 50))
    assert loaded().outcomes == {"ingested": 2}
    assert table.scan(["source"]).to_arrow()["source"].to_pylist() == ["old"] * 100


def test_rows_that_were_erased_since_files_were_dropped_are_left_out(db: Database, landing: Path, loaded: Load) -> None:
    table = db.create_table("events", SCHEMA)
    put(landing, "events/old.csv", rows_of(0, 50))
    table.erase("id < 20")
    put(landing, "events/new.csv", rows_of(100, 50))
    moment = time.time() + 3_600
    os.utime(landing / "events/new.csv", (moment, moment))
    assert loaded().outcomes == {"ingested": 2}
    assert ids(table) == [*range(20, 50), *range(100, 150)]


@pytest.mark.slow
@pytest.mark.parametrize("sort_key", [None, "id"])
def test_files_ingested_by_events_before_meanwhile_and_after_are_in_the_table_once(
    spark: SparkSession, db: Database, landing: Path, sort_key: str | None
) -> None:
    table = db.create_table("events", SCHEMA, sort_key=sort_key)
    for number in range(6):
        put(landing, f"events/{number}.csv", rows_of(100 * number, 100))
    source = source_of(db, landing)
    drops, other = drops_in(source), dolmen.open(db.url)
    ingest_drops(other, source.landing, drops[:1])
    raced = list[str]()

    def race(done: Loaded, doing: str) -> None:
        if "committing" in doing and not raced:  # all is read and written, and the commit comes next
            raced.extend(outcome.status for outcome in ingest_drops(other, source.landing, drops[2:4]).outcomes)

    done = load(spark, db, source, on_progress=race)
    after = ingest_drops(other, source.landing, drops)
    assert raced == ["ingested", "ingested"]
    assert done.outcomes == {"duplicate": 3, "ingested": 3}
    assert {outcome.status for outcome in after.outcomes} == {"duplicate"}
    assert ids(table) == list(range(600))


def test_two_loads_of_one_place_load_each_file_once(spark: SparkSession, db: Database, landing: Path) -> None:
    table = db.create_table("events", SCHEMA)
    for number in range(4):
        put(landing, f"events/{number}.csv", rows_of(100 * number, 100))
    inner = list[Loaded]()

    def another(done: Loaded, doing: str) -> None:
        if "committing" in doing and not inner:
            inner.append(load(spark, dolmen.open(db.url), source_of(db, landing), max_files=3))

    outer = load(spark, db, source_of(db, landing), on_progress=another)
    assert (inner[0].outcomes, inner[0].commits) == ({"ingested": 4}, 2)
    assert (outer.outcomes, outer.commits) == ({"duplicate": 4}, 0)
    assert ids(table) == list(range(400))


@pytest.mark.slow
@pytest.mark.parametrize("sort_key", [None, "id"])
def test_files_that_cannot_be_read_are_rejected_as_by_ingest_and_the_others_are_loaded(
    spark: SparkSession,
    db: Database,
    landing: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sort_key: str | None,
) -> None:
    monkeypatch.setattr(loading, "BUFFERED_BYTES", 1 << 16)  # what is larger is handed on before its end is seen
    table = db.create_table("events", SCHEMA, sort_key=sort_key)
    good = FORMATS["csv"](rows_of(0, 100))
    put(landing, "events/a.csv", rows_of(0, 100))
    put_bytes(landing, "events/badrow.csv", good + b"x,2026-01-01T00:00:00Z,y\n")
    put_bytes(landing, "events/large.csv", FORMATS["csv"](rows_of(0, 100_000)) + b"x,2026-01-01T00:00:00Z,y\n")
    put_bytes(landing, "events/cut.csv.gz", COMPRESSIONS[".gz"](good)[:-20])
    put_bytes(landing, "events/columns.csv", b"id,other\n1,2\n")
    put_bytes(landing, "events/unknown.xml", b"<id>1</id>")
    put_bytes(landing, "events/damaged.parquet", FORMATS["parquet"](rows_of(0, 100))[:-100])
    put(landing, "events/z.csv", rows_of(100, 100))
    source = source_of(db, landing)
    done = load(spark, db, source)
    assert done.outcomes == {"ingested": 2, "rejected": 6}
    assert ids(table) == list(range(200))
    found = reports(tmp_path, "events")
    assert (found["large"]["line"], found["large"]["row"], found["large"]["column"]) == (100_002, 100_001, "id")

    for path in (tmp_path / "rejected").rglob("*.error.json"):
        path.unlink()
    fresh = dolmen.open(str(tmp_path / "other"))
    fresh.create_table("events", SCHEMA)
    ingest_drops(fresh, source.landing, drops_in(source))
    expected = reports(tmp_path, "events")
    assert found.keys() == expected.keys() == {"badrow", "large", "cut", "columns", "unknown", "damaged"}
    for name, report in expected.items():
        assert {**found[name], "database": 0, "rejected_at": 0} == {**report, "database": 0, "rejected_at": 0}


@pytest.mark.slow
def test_a_table_with_a_sort_key_is_clustered(db: Database, landing: Path, loaded: Load) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.time64("us")), ("unsigned", pa.uint64())])
    table = db.create_table("events", schema, sort_key=["day", "id"], properties={"target_file_bytes": "32KB"})
    count = 40_000
    for number in range(4):
        mine = range(number, count, 4)
        days = [None if id_ % 100 == 0 else 7_919 * id_ % 86_400_000 for id_ in mine]
        body = "".join(f"{id_},{day}\n" for id_, day in zip(mine, days, strict=True) if day is not None)
        rest = "".join(f"{id_},\n" for id_, day in zip(mine, days, strict=True) if day is None)
        times = "id,day\n" + body + rest
        put_bytes(landing, f"events/{number}.csv", times.encode())
    table.set(ingest_timestamp_format="epoch_us")
    assert loaded().rows == count
    assert ids(table) == list(range(count))
    files = [file.file for file in plan_of(table.scan()).files]
    assert len(files) >= 4
    bounds = sorted((stats.min, stats.max) for file in files if (stats := file.stats[2]).min is not None)
    assert all(before[1] <= after[0] for before, after in pairwise(bounds))
    assert sum(bool(file.stats[2].nulls) for file in files) == 1, "NULLs are the last range"


def test_tables_in_which_order_matters_go_through_the_core(db: Database, landing: Path, loaded: Load) -> None:
    upserted = db.create_table(
        "users", pa.schema([("id", pa.int64()), ("name", pa.string())]), "id", None, {"ingest_mode": "upsert"}
    )
    changed = db.create_table(
        "orders",
        pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("name", pa.string())]),
        "id",
        None,
        {"ingest_mode": "cdc", "cdc_envelope": "flat", "cdc_sequence": "seq"},
    )
    kept = db.create_table("kept", pa.schema([("id", pa.int64())]), None, "id", {"ingest_on_bad_row": "quarantine"})
    put_bytes(landing, "users/1.csv", b"id,name\n1,a\n2,b\n")
    put_bytes(landing, "users/2.csv", b"id,name\n2,c\n")
    put_bytes(landing, "orders/1.csv", b"Op,id,seq,name\nI,1,1,a\nI,2,2,b\n")
    put_bytes(landing, "orders/2.csv", b"Op,id,seq,name\nU,1,9,new\nD,2,10,\nU,1,5,late\n")
    put_bytes(landing, "kept/1.csv", b"id\n1\nx\n3\n")
    put_bytes(landing, "none/1.csv", b"id\n1\n")
    done = loaded()
    assert done.outcomes == {"ingested": 5, "rejected": 1}
    assert sorted(upserted.scan().to_arrow()["name"].to_pylist()) == ["a", "c"]
    assert changed.scan(["id", "name"]).to_arrow().to_pylist() == [{"id": 1, "name": "new"}]
    assert ids(kept) == [1, 3]
    assert "no table 'none'" in str(done.problems[0].error)


def test_a_missing_table_is_created_by_its_first_readable_file(
    spark: SparkSession, db: Database, landing: Path
) -> None:
    put_bytes(landing, "made/1.csv", b"")
    put(landing, "made/2.parquet", rows_of(0, 10))
    put(landing, "made/3.csv", rows_of(10, 10))
    ways = list[str]()
    done = load(spark, db, source_of(db, landing), auto_create=True, on_progress=lambda _, doing: ways.append(doing))
    assert done.outcomes == {"rejected": 1, "ingested": 2}
    assert db.table("made").schema == SCHEMA
    assert ids(db.table("made")) == list(range(20))
    assert [way.rpartition(", ")[2] for way in ways[:2]] == ["by the core"] * 2
    assert re.fullmatch(r"\d+ bytes", ways[2].rpartition(", ")[2])


def test_a_load_makes_a_commit_of_so_many_files_and_does_what_the_table_says_with_them(
    db: Database, landing: Path, loaded: Load
) -> None:
    table = db.create_table("events", SCHEMA, properties={"ingest_landing": "expire"})
    for number in range(5):
        put(landing, f"events/{number}.csv", rows_of(10 * number, 10))
    put_bytes(landing, "events/bad.csv", b"nothing\n")
    dry = loaded(dry_run=True)
    assert (dry.outcomes, dry.commits, ids(table)) == ({"would be loaded": 6}, 0, [])
    done = loaded(max_files=2)
    assert (done.outcomes, done.commits) == ({"ingested": 5, "rejected": 1}, 3)
    assert ids(table) == list(range(50))
    assert [path.name for path in (landing / "events").iterdir()] == ["bad.csv"]


def test_records_that_were_handed_over_are_removed_once_all_their_files_are_settled(
    spark: SparkSession, db: Database, landing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("events", SCHEMA)
    db.create_table("users", SCHEMA, "id", None, {"ingest_mode": "upsert"})
    for name in ("events/1.csv", "events/2.csv", "events/3.csv", "users/1.csv"):
        put(landing, name, rows_of(10 * int(name[-5]), 10))
    put_bytes(landing, "events/bad.csv", b"nothing\n")
    source = source_of(db, landing)
    one, two, three, bad, user = drops_in(source)
    handed = HandoverRecords(open_store(str(tmp_path / "handed")))
    handed.add([one, two, Drop("local", "events/gone.csv", 1, "0")])
    handed.add([two, bad, Drop("local", "events/_ignored.csv", 1, "0")])
    left = handed.add([three, user])
    ingest_drops(db, source.landing, [two])

    broken = OSError(errno.EIO, "cannot be written for the moment")

    def refuse(*args: Any, **options: Any) -> None:
        raise broken

    with monkeypatch.context() as patched:
        patched.setattr("dolmen.transactions.transaction_table.TransactionTable.upsert", refuse)
        done = load(spark, db, handed, landing=source.landing)
    expected = {"ingested": 2, "duplicate": 2, "rejected": 1, "superseded": 1, "ignored": 1, "failed": 1}
    assert done.outcomes == expected
    assert [record.key for record in handed.read_all()] == [left]
    assert [problem.error for problem in done.problems if problem.status == "failed"] == [broken]
    again = load(spark, db, handed, landing=source.landing)
    assert again.outcomes == {"ingested": 1, "duplicate": 1}
    assert not list(handed.read_all())
    assert ids(table) == list(range(10, 40))
    with pytest.raises(InputError, match=r"landing="):
        load(spark, db, handed)


def test_records_that_come_while_a_job_runs_are_settled_by_it(
    spark: SparkSession, db: Database, landing: Path, tmp_path: Path
) -> None:
    table = db.create_table("events", SCHEMA)
    put(landing, "events/1.csv", rows_of(0, 10))
    put(landing, "events/2.csv", rows_of(10, 10))
    source = source_of(db, landing)
    one, two = drops_in(source)
    handed = HandoverRecords(open_store(str(tmp_path / "handed")))
    handed.add([one])

    def more(done: Loaded, doing: str) -> None:
        if "committing" in doing and not done.files:
            handed.add([two])

    assert load(spark, db, handed, landing=source.landing, on_progress=more).outcomes == {"ingested": 2}
    assert ids(table) == list(range(20))
    assert not list(handed.read_all())


def test_a_table_that_is_dropped_while_it_is_loaded_makes_its_files_rejects(
    spark: SparkSession, db: Database, landing: Path
) -> None:
    db.create_table("events", SCHEMA)
    put(landing, "events/1.csv", rows_of(0, 10))

    def drop(done: Loaded, doing: str) -> None:
        if "committing" in doing and "events" in db.tables():
            db.drop_table("events")

    done = load(spark, db, source_of(db, landing), on_progress=drop)
    assert done.outcomes == {"rejected": 1}


def test_files_are_read_anew_if_how_is_changed_before_their_commit(
    spark: SparkSession, db: Database, landing: Path, tmp_path: Path
) -> None:
    table = db.create_table("events", SCHEMA)
    put(landing, "events/1.csv", rows_of(0, 10))

    def changed(done: Loaded, doing: str) -> None:
        if "committing" in doing and not table.settings()["ingest_delimiter"]:
            dolmen.open(db.url).table("events").set(ingest_delimiter=";")

    done = load(spark, db, source_of(db, landing), on_progress=changed)
    assert done.outcomes == {"rejected": 1}
    assert ids(table) == []
    assert list(reports(tmp_path, "events")) == ["1"]


def test_a_database_in_memory_is_refused(spark: SparkSession, landing: Path) -> None:
    db = dolmen.open("memory://load")
    db.create_table("events", SCHEMA)
    put(landing, "events/1.csv", rows_of(0, 10))
    with pytest.raises(InputError, match="memory"):
        load(spark, db, source_of(db, landing))


def test_files_that_nobody_has_described_are_read_as_by_infer_and_others_of_another_dialect_are_rejected(
    db: Database, landing: Path, tmp_path: Path, loaded: Load
) -> None:
    german = b"Nr;Betrag;Tag\n1;1.002,50;31.12.2024\n2;13,75;01.01.2025\n"
    put_bytes(landing, "made/1.csv", german)
    put_bytes(landing, "made/2.csv", b"Nr;Betrag;Tag\n3;7;02.01.2025\n")
    put_bytes(landing, "made/3.csv", b"Nr,Betrag,Tag\n4,7.5,2025-01-03\n")
    put_bytes(landing, "other/1.json", b'[{"id": 1},\n {"id": 2}]')
    done = loaded(auto_create=True)
    assert done.outcomes == {"ingested": 3, "rejected": 1}
    for table, name in (("made", "1.csv"), ("other", "1.json")):
        found = dolmen.infer(landing / table / name)
        assert db.table(table).schema == found.schema
        assert db.table(table).describe()["properties"] == found.properties
    assert sorted(db.table("made").to_arrow()["Betrag"].to_pylist()) == [7, 13.75, 1002.5]
    (report,) = reports(tmp_path, "made").values()
    assert report["hint"] == {"ingest_delimiter": ","}


@pytest.mark.slow
def test_a_declared_table_refuses_what_its_settings_do_not_say(
    db: Database, landing: Path, tmp_path: Path, loaded: Load
) -> None:
    db.create_table("t", refused_files.SCHEMA)
    for number, (ending, body, _) in enumerate(REFUSED.values()):
        put_bytes(landing, f"t/{number}.{ending}", content(body))
    assert loaded("t").outcomes == {"rejected": len(REFUSED)}
    found = reports(tmp_path, "t")
    for number, (kind, (_, _, reason)) in enumerate(REFUSED.items()):
        assert reason in found[f"{number}"]["reason"], kind
    assert db.table("t").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("sort_key", [None, ["name", "id"]])
def test_values_in_names_of_folders_are_loaded_as_they_are_ingested(
    db: Database, landing: Path, loaded: Load, sort_key: list[str] | None, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("day", pa.date32(), False), ("name", pa.string())])
    table = db.create_table("events", schema, sort_key=sort_key, properties={"ingest_hive": "day, name"})
    for number in range(6):
        path = f"events/day=2026-11-0{number % 3 + 1}/name=a%2F{number}/{number}.csv"
        put_bytes(landing, path, b"id\n%d\n" % number)
    put_bytes(landing, "events/day=2026-11-01/7.csv", b"id\n7\n")
    assert loaded("events").outcomes == {"ingested": 6, "rejected": 1}
    rows = table.scan(order_by=["id"]).to_arrow().to_pylist()
    assert [(row["id"], row["day"].day, row["name"]) for row in rows] == [(n, n % 3 + 1, f"a/{n}") for n in range(6)]
    (report,) = reports(tmp_path, "events").values()
    assert "no folder has a value of column 'name'" in report["reason"]

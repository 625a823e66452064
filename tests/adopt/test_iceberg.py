"""Iceberg tables become tables: those of pyiceberg, and dolmen's own publications with their deletes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.database import Database
from dolmen.errors import AdoptionError
from support.iceberg_readers import READERS, IcebergReaders
from support.iceberg_writer import PYTHON, write_iceberg
from support.lake import digests, write_duckdb, write_plain

needs_iceberg = pytest.mark.skipif(not PYTHON.exists(), reason="make setup installs pyiceberg")


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return dolmen.open(tmp_path / "db")


def plain(table: pa.Table, key: str = "id") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.sort_by(key).to_pylist()
    return rows


@needs_iceberg
@pytest.mark.parametrize("kind", ["evolved", "first_version", "partitioned"])
def test_tables_of_pyiceberg_have_the_same_rows(db: Database, tmp_path: Path, kind: str) -> None:
    location, rows = write_iceberg(kind, tmp_path / "lake")
    before = digests(tmp_path / "lake")
    adopted = db.adopt("t", location, "id")
    assert (adopted.rows, adopted.deleted_rows) == (rows.num_rows, 0)
    assert adopted.snapshot
    table = db.table("t")
    assert plain(table.scan().to_arrow()) == plain(rows)
    assert table.scan().to_arrow().column_names == rows.column_names
    assert table.count("id >= 3 AND d < 7") == 4
    assert db.verify(deep=True).ok
    table.add_column("more", pa.int64(), 5)
    table.upsert(table.scan(where="id < 5").to_arrow())
    table.delete("id = 7")
    db.maintain()
    assert table.count() == rows.num_rows - 1
    assert db.verify(deep=True).ok
    assert digests(tmp_path / "lake") == before


@needs_iceberg
def test_the_newest_metadata_of_a_folder_is_taken(db: Database, tmp_path: Path) -> None:
    _, rows = write_iceberg("evolved", tmp_path / "lake")
    with pytest.raises(AdoptionError, match="it is the data of an Iceberg table: name the folder of the table"):
        db.adopt("t", str(tmp_path / "lake" / "t" / "data"))
    assert db.adopt("t", str(tmp_path / "lake" / "t")).rows == rows.num_rows


@needs_iceberg
def test_files_without_ids_are_read_by_the_tables_mapping_of_names(db: Database, tmp_path: Path) -> None:
    location, rows = write_iceberg("imported", tmp_path / "lake")
    db.adopt("t", location)
    assert plain(db.table("t").scan().to_arrow(), "key") == plain(rows, "key")
    entry = db.context.head.refresh().manifest.tables["t"]
    assert sorted(file.path.split("/")[1] for file in entry.files) == ["ids", "names"]
    assert db.table("t").count("key < 3") == 3
    assert db.verify(deep=True).ok


@needs_iceberg
def test_an_empty_table_has_columns_and_no_rows(db: Database, tmp_path: Path) -> None:
    location, rows = write_iceberg("empty", tmp_path / "lake")
    assert db.adopt("t", location).files == 0
    db.table("t").append(pa.Table.from_pylist([{"id": 1, "name": "a"}], db.table("t").schema))
    assert db.table("t").scan().to_arrow().column_names == rows.column_names


def published(folder: Path, version: str, **more: str) -> tuple[Database, str]:
    """A database that has published a table with deletes by vectors and tombstones."""
    db = dolmen.open(folder)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("l", pa.list_(pa.string()))])
    table = db.create_table("t", schema, "id")
    for part in range(3):
        ids = range(part * 1_000, part * 1_000 + 1_000)
        table.append({"id": ids, "x": [i / 3 for i in ids], "l": [[str(i)] for i in ids]})
    table.delete("id % 10 = 3", mode="positions")
    table.delete("id > 1500 AND id < 1600")
    table.delete("id >= 2000")
    table.set(iceberg=version, **more)
    return db, table.publish_iceberg().metadata_location


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_deleted_rows_stay_deleted(db: Database, tmp_path: Path, version: str) -> None:
    other, location = published(tmp_path / "other", version)
    adopted = db.adopt("t", location, "id")
    wanted = plain(other.table("t").scan().to_arrow())
    assert (adopted.rows, adopted.deleted_rows) == (len(wanted), 2_000 - len(wanted))  # the third file is not published
    assert plain(db.table("t").scan().to_arrow()) == wanted
    assert plain(db.table("t").changes(0).read_all().drop(["_change", "_version", "_commit_ts"])) == wanted
    assert db.verify(deep=True).ok
    db.table("t").delete("id % 2 = 0")
    db.maintain()
    assert db.table("t").count() == sum(row["id"] % 2 for row in wanted)
    assert other.verify(deep=True).ok


def test_defaults_of_older_rows_and_changed_columns_are_taken_over(db: Database, tmp_path: Path) -> None:
    other = dolmen.open(tmp_path / "other")
    table = other.create_table(
        "t", pa.schema([("id", pa.int32()), ("x", pa.float32()), ("s", pa.struct([("a", pa.int32())]))])
    )
    table.append({"id": [1, 2], "x": [0.5, None], "s": [{"a": 1}, None]})
    for name, value in (("c", 7), ("t", "text"), ("day", datetime.date(2026, 1, 2)), ("f", 0.25)):
        table.add_column(name, pa.scalar(value).type, value, comment=f"about {name}")
    table.widen_column("id", pa.int64())
    table.widen_column("x", pa.float64())
    table.widen_column("s.a", pa.int64())
    table.rename_column("c", "d")
    table.append({"id": [3], "x": [1.0], "s": [{"a": 3}], "d": [8]})
    table.set(iceberg="v3")
    published = table.publish_iceberg()
    assert not published.left_out
    db.adopt("t", published.metadata_location)
    adopted = db.table("t")
    assert plain(adopted.scan().to_arrow()) == plain(table.scan().to_arrow())
    assert adopted.schema.equals(table.schema)
    assert adopted.count("d = 7 AND day = '2026-01-02'") == 2
    assert adopted.count("x = 0.5 AND f < 1") == 1
    adopted.append({"id": [4]})  # defaults of new rows
    table.append({"id": [4]})
    assert plain(adopted.scan().to_arrow()) == plain(table.scan().to_arrow())
    assert [field.comment for field in db.context.head.refresh().manifest.tables["t"].schema.fields][-4:] == [
        "about c", "about t", "about day", "about f",
    ]  # fmt: skip
    db.maintain()
    assert db.verify(deep=True).ok


def change_manifests(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Writes manifests anew with other entries."""
    for path in folder.rglob(name):
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            entries: list[dict[str, Any]] = list(reader)  # type: ignore[arg-type]
            schema = reader.writer_schema
        for entry in entries:
            change(entry)
        with path.open("wb") as file:
            fastavro.writer(file, schema, entries)


def test_all_reasons_against_an_iceberg_table_are_told(db: Database, tmp_path: Path) -> None:
    _, location = published(tmp_path / "other", "v2")

    def refuse(**changes: Any) -> str:
        with pytest.raises(AdoptionError) as caught:
            db.adopt("t", location, "id")
        return str(caught.value)

    change_manifests(tmp_path, "deletes-*.avro", lambda entry: entry["data_file"].update(content=2))
    change_manifests(tmp_path, "data-*.avro", lambda entry: entry["data_file"].update(record_count=7))
    assert "equality deletes" in refuse()
    change_manifests(tmp_path, "deletes-*.avro", lambda entry: entry["data_file"].update(content=1))
    assert "its manifest tells of 7" in refuse()
    change_manifests(tmp_path, "data-*.avro", lambda entry: entry["data_file"].update(file_format="ORC"))
    assert "of the format ORC, not Parquet (2 files, the first is " in refuse()
    assert db.tables() == []


@needs_iceberg
def test_a_column_that_only_partitions_have_is_refused(db: Database, tmp_path: Path) -> None:
    location, _ = write_iceberg("partitioned", tmp_path / "lake")
    sizes = {}
    for path in (tmp_path / "lake" / "t" / "data").rglob("*.parquet"):
        pq.write_table(pq.ParquetFile(path).read().drop(["name"]), path)
        sizes[f"file://{path}"] = path.stat().st_size

    def resize(entry: dict[str, Any]) -> None:
        file = entry["data_file"]
        file["file_size_in_bytes"] = sizes[file["file_path"]]

    change_manifests(tmp_path / "lake", "*-m0.avro", resize)
    with pytest.raises(AdoptionError, match="column 'name': it stands only in the table's partitions"):
        db.adopt("t", location)


def test_damaged_metadata_is_refused_by_name(db: Database, tmp_path: Path) -> None:
    _, location = published(tmp_path / "other", "v2")
    metadata = Path(location.removeprefix("file://"))
    body = metadata.read_bytes()
    for other, reason in (
        (b"{}", "format version None"),
        (b"nothing", "no metadata"),
        (b'{"format-version":9}', "version 9"),
    ):
        metadata.write_bytes(other)
        with pytest.raises(AdoptionError, match=reason):
            db.adopt("t", location)
    metadata.write_bytes(body)
    for path in metadata.parent.glob("snap-*.avro"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(AdoptionError, match="cannot be read"):
        db.adopt("t", location)
    with pytest.raises(AdoptionError, match="there is no such file"):
        db.adopt("t", location.replace("v1.", "v7."))


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_an_adopted_table_is_published_again_and_every_reader_sees_its_rows(
    db: Database, tmp_path: Path, readers: IcebergReaders, version: str
) -> None:
    ids = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "5"})])
    write_plain(tmp_path / "lake" / "a" / "1.parquet", pa.table({"id": range(100)}, ids))
    write_plain(tmp_path / "lake" / "b" / "1.parquet", pa.table({"id": range(100, 200), "l": [["a", None]] * 100}))
    db.adopt("t", str(tmp_path / "lake"))
    table = db.table("t")
    table.rename_column("id", "key")
    table.delete("key % 4 = 1")
    table.append({"key": [1_000], "l": [["x"]]})
    table.set(iceberg=version)
    location = table.publish_iceberg().metadata_location
    assert table.publish_iceberg().is_new is False
    wanted = plain(table.scan().to_arrow(), "key")
    for reader in READERS:
        assert plain(readers.read(reader, location).select(["key", "l"]), "key") == wanted, reader
    assert readers.read("pyiceberg", location, ["key", ">=", 190]).num_rows == 9
    assert db.verify().ok


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_a_copy_of_a_copy_has_the_same_rows(db: Database, tmp_path: Path, version: str) -> None:
    write_duckdb(tmp_path / "lake" / "1.parquet", 0, 500)
    db.adopt("t", str(tmp_path / "lake"))
    table = db.table("t")
    table.delete("id % 5 = 2")
    table.set(iceberg=version)
    published = table.publish_iceberg()
    assert published.left_out is not None
    assert list(published.left_out) == ["visits"]  # unsigned
    other = dolmen.open(tmp_path / "other")
    other.adopt("t", published.metadata_location)
    columns = other.table("t").schema.names
    wanted = table.scan(columns=columns).to_arrow().drop(["weight"])
    assert plain(other.table("t").scan().to_arrow().drop(["weight"])) == plain(wanted)
    assert other.verify(deep=True).ok
    assert pq.read_metadata(tmp_path / "lake" / "1.parquet").num_rows == 500

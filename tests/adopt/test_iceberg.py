"""Iceberg tables become tables: those of pyiceberg, and dolmen's own publications with their deletes."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.errors import AdoptionError, InputError
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


@pytest.mark.slow
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
    with pytest.raises(AdoptionError, match="Iceberg table"):
        db.adopt("t", str(tmp_path / "lake" / "t" / "data"))
    assert db.adopt("t", str(tmp_path / "lake" / "t")).rows == rows.num_rows


@pytest.mark.slow
@needs_iceberg
def test_files_without_ids_are_read_by_the_tables_mapping_of_names(db: Database, tmp_path: Path) -> None:
    location, rows = write_iceberg("imported", tmp_path / "lake")
    db.adopt("t", location)
    assert plain(db.table("t").scan().to_arrow(), "key") == plain(rows, "key")
    entry = context_of(db).head.refresh().manifest.tables["t"]
    assert sorted(file.path.split("/")[1] for file in entry.files) == ["ids", "names"]
    assert db.table("t").count("key < 3") == 3
    assert db.verify(deep=True).ok


@pytest.mark.slow
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
    assert [field.comment for field in context_of(db).head.refresh().manifest.tables["t"].schema.fields][-4:] == [
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
    assert " 7" in refuse()
    change_manifests(tmp_path, "data-*.avro", lambda entry: entry["data_file"].update(file_format="ORC"))
    assert "ORC" in refuse()
    assert db.tables() == []


@pytest.mark.slow
@needs_iceberg
def test_a_column_that_only_partitions_have_is_taken_from_them(db: Database, tmp_path: Path) -> None:
    location, rows = write_iceberg("partitioned", tmp_path / "lake")
    sizes = {}
    for path in (tmp_path / "lake" / "t" / "data").rglob("*.parquet"):
        pq.write_table(pq.ParquetFile(path).read().drop(["name"]), path)
        sizes[f"file://{path}"] = path.stat().st_size

    def resize(entry: dict[str, Any]) -> None:
        file = entry["data_file"]
        file["file_size_in_bytes"] = sizes[file["file_path"]]

    change_manifests(tmp_path / "lake", "*-m0.avro", resize)
    assert db.adopt("t", location).partition_by == "name"
    table = db.table("t")
    assert plain(table.scan().to_arrow()) == plain(rows)
    assert table.count("name = 'two / 2'") == 4
    assert table.partitions()["partition"].to_pylist() == ["name=one", "name=two%20%2F%202"]
    db.maintain()
    assert plain(table.scan().to_arrow()) == plain(rows)
    assert db.verify(deep=True).ok

    def spoil(entry: dict[str, Any]) -> None:
        entry["data_file"]["partition"] = {}

    change_manifests(tmp_path / "lake", "*-m0.avro", spoil)
    change_metadata(location, lambda metadata: metadata["schemas"][0]["fields"][1].update(required=True))
    with pytest.raises(AdoptionError, match="column 'name': neither the file nor its partition has a value"):
        db.adopt("other", location)


def change_metadata(location: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = Path(location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def test_the_current_spec_becomes_partition_by_and_files_keep_their_partitions(db: Database, tmp_path: Path) -> None:
    other = dolmen.open(tmp_path / "other").create_table("t", "id BIGINT, at TIMESTAMP, s VARCHAR", partition_by="s")
    rows = [{"id": id_, "at": datetime.datetime(2026, 11, 1 + id_ % 2), "s": "long" * 9} for id_ in range(40)]
    other.append(rows)
    other.publish_iceberg()
    other.set(partition_by="day(at), bucket[4](id), s")
    other.append(rows)
    adopted = db.adopt("t", other.publish_iceberg().metadata_location)
    assert (adopted.partition_by, adopted.left_out) == ("day(at), bucket[4](id), s", {})
    table = db.table("t")
    assert table.settings()["partition_by"] == "day(at), bucket[4](id), s"
    found, own = (sorted(map(str, each.partitions()["partition"].to_pylist())) for each in (table, other))
    assert found == own
    assert len(set(found)) == 9  # and files of the earlier spec
    assert (
        db.adopt(
            "own", str(tmp_path / "other" / "iceberg" / other._entry.uuid), properties={"partition_by": "s"}
        ).partition_by
        == "s"
    )
    db.maintain()
    assert db.verify(deep=True).ok


def test_partition_fields_that_dolmen_lacks_are_left_out_and_named(db: Database, tmp_path: Path) -> None:
    _, location = published(tmp_path / "other", "v2")
    fields = [
        {"source-id": 1, "field-id": 1000, "name": "old", "transform": "void"},
        {"source-id": 1, "field-id": 1001, "name": "id_trunc", "transform": "truncate[100]"},
        {"source-id": 2, "field-id": 1002, "name": "x", "transform": "identity"},
        {"source-id": 4, "field-id": 1003, "name": "inner", "transform": "identity"},
        {"source-id": 1, "field-id": 1004, "name": "id_z", "transform": "zorder[3]"},
        {"source-id": 1, "field-id": 1005, "name": "id_trunc_7", "transform": "truncate[7]"},
        {"source-ids": [1, 2], "field-id": 1006, "name": "two", "transform": "bucket[3]"},
    ]
    spec = {"spec-id": 7, "fields": fields}
    change_metadata(location, lambda all_: all_.update({"partition-specs": [spec], "default-spec-id": 7}))
    adopted = db.adopt("t", location, "id")
    assert adopted.partition_by == "truncate[100](id)"
    assert list(adopted.left_out) == ["x", "inner", "id_z", "id_trunc_7", "two"]
    assert "of type double" in adopted.left_out["x"]
    assert "partition field x: " in repr(adopted)
    assert db.table("t").count() == adopted.rows


def test_damaged_metadata_is_refused_by_name(db: Database, tmp_path: Path) -> None:
    _, location = published(tmp_path / "other", "v2")
    metadata = Path(location.removeprefix("file://"))
    body = metadata.read_bytes()
    for other, reason in (
        (b"{}", "format version None"),
        (b"nothing", "not metadata"),
        (b'{"format-version":9}', "version 9"),
    ):
        metadata.write_bytes(other)
        with pytest.raises(AdoptionError, match=reason):
            db.adopt("t", location)
    metadata.write_bytes(body)
    for path in metadata.parent.glob("snap-*.avro"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(AdoptionError):
        db.adopt("t", location)
    with pytest.raises(AdoptionError):
        db.adopt("t", location.replace("v1.", "v7."))


@pytest.mark.slow
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


def folder_with_two_versions(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """A table's folder, and the rows of each of its metadata files by their name."""
    source = dolmen.open(tmp_path / "other")
    table = source.create_table("t", pa.schema([("id", pa.int64())]), properties={"iceberg": "v2"})
    rows = {}
    for number in (1, 2):
        table.append({"id": [number]})
        location = Path(table.publish_iceberg().metadata_location.removeprefix("file://"))
        rows[location.name.removesuffix(".metadata.json")] = number
    folder = location.parent
    (folder / "version-hint.text").unlink(missing_ok=True)
    return folder, rows


@pytest.mark.parametrize(
    "form", ["{name}", "{name}.metadata.json", " {number}\n", "file:///lake/t/{name}.metadata.json"]
)
def test_a_hint_names_the_metadata_by_number_or_by_name(db: Database, tmp_path: Path, form: str) -> None:
    folder, versions = folder_with_two_versions(tmp_path)
    for name, rows in versions.items():
        number = re.findall(r"\d+", name)[0]
        (folder / "version-hint.text").write_text(form.format(name=name, number=number))
        assert db.adopt(f"t{rows}", str(folder.parent)).rows == rows


@pytest.mark.parametrize("hint", ["", "7", "-1", "v9", "latest", "00001-aaaa", "1 2", "9" * 30, "\x00", "v1.parquet"])
def test_a_hint_that_names_no_metadata_is_refused(db: Database, tmp_path: Path, hint: str) -> None:
    folder, _ = folder_with_two_versions(tmp_path)
    (folder / "version-hint.text").write_text(hint)
    with pytest.raises(AdoptionError, match="2 metadata files") as caught:
        db.adopt("t", str(folder.parent))
    assert "metadata file" in str(caught.value)
    assert db.tables() == []


@pytest.mark.parametrize("name", ["v_final", "current", "2026-11-28", "v3-nohex", "3.5"])
def test_metadata_of_any_name_can_be_named_and_is_not_passed_over_in_a_folder(
    db: Database, tmp_path: Path, name: str
) -> None:
    folder, versions = folder_with_two_versions(tmp_path)
    newest = folder / f"{max(versions)}.metadata.json"
    newest.rename(folder / f"{name}.metadata.json")
    with pytest.raises(AdoptionError, match="newer"):
        db.adopt("t", str(folder.parent))
    assert db.adopt("t", str(folder / f"{name}.metadata.json")).rows == 2
    (folder / "version-hint.text").write_text(name)
    assert db.adopt("hinted", str(folder.parent)).rows == 2


def test_two_metadata_files_of_the_greatest_number_are_refused(db: Database, tmp_path: Path) -> None:
    folder, versions = folder_with_two_versions(tmp_path)
    newest = folder / f"{max(versions)}.metadata.json"
    number = re.findall(r"\d+", newest.name)[0]
    for place, path in enumerate(folder.glob("*.metadata.json")):
        version = re.findall(r"\d+", path.name)[0]
        path.rename(folder / f"{int(version):05}-{uuid.UUID(int=place)}.metadata.json")
    assert db.adopt("renamed", str(folder.parent)).rows == 2
    other = folder / f"{int(number):05}-{uuid.UUID(int=99)}.metadata.json"
    other.write_text("{}")
    with pytest.raises(AdoptionError, match="current"):
        db.adopt("t", str(folder.parent))
    (folder / "version-hint.text").write_text(number)
    with pytest.raises(AdoptionError, match="2 of the 3"):
        db.adopt("t", str(folder.parent))


MALFORMED_MAPPINGS = (
    '{"type": "struct", "fields": [{"field-id": 1, "names": ["id"]}]}',
    '["id"]',
    '[{"field-id": 1}]',
    '[{"field-id": "x", "names": ["id"]}]',
    '[{"field-id": 1, "names": "id"}]',
    '[{"field-id": 1, "names": ["id"], "fields": {}}]',
    "not json",
    "",
    "null",
    "[" * 100_000,
)


@pytest.mark.parametrize("mapping", MALFORMED_MAPPINGS)
def test_a_malformed_mapping_of_names_is_refused_where_it_is_needed(db: Database, tmp_path: Path, mapping: str) -> None:
    folder, versions = folder_with_two_versions(tmp_path)
    metadata = folder / f"{max(versions)}.metadata.json"
    found = json.loads(metadata.read_bytes())
    found["properties"]["schema.name-mapping.default"] = mapping
    metadata.write_text(json.dumps(found))
    assert db.adopt("by_ids", str(metadata)).rows == 2
    sizes = {}
    for path in (tmp_path / "other" / "data").rglob("*.parquet"):
        rows = pq.ParquetFile(path).read()
        plain_schema = pa.schema([pa.field(field.name, field.type) for field in rows.schema])
        pq.write_table(rows.cast(plain_schema), path)
        sizes[path.name] = path.stat().st_size

    def resize(entry: dict[str, Any]) -> None:
        file = entry["data_file"]
        file["file_size_in_bytes"] = sizes[file["file_path"].rpartition("/")[2]]

    change_manifests(tmp_path, "data-*.avro", resize)
    with pytest.raises(AdoptionError) as caught:
        db.adopt("t", str(metadata))
    assert "a malformed (" in str(caught.value)
    assert "Do not load its files" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"schemas": [{"schema-id": 0}]},
        {"schemas": [{"schema-id": 0, "fields": [{"id": 1, "required": False, "type": "long"}]}]},
        {"schemas": [{"schema-id": 0, "fields": [{"id": "x", "name": "id", "required": False, "type": "long"}]}]},
        {"schemas": [{"schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": 5}]}]},
        {
            "schemas": [
                {"schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": {"type": "list"}}]}
            ]
        },
        {"schemas": []},
        {"schemas": "x"},
        {"last-column-id": None},
        {"snapshots": [{"manifest-list": "x"}]},
        {"snapshots": {"a": 1}},
        {"current-snapshot-id": "x"},
        {"properties": []},
        {"partition-specs": [{"spec-id": 0}]},
        {"partition-specs": [{"spec-id": 0, "fields": [{"source-id": 1}]}]},
    ],
)
def test_malformed_metadata_is_refused_by_name(db: Database, tmp_path: Path, change: dict[str, Any]) -> None:
    folder, versions = folder_with_two_versions(tmp_path)
    metadata = folder / f"{max(versions)}.metadata.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_bytes()) | change))
    with pytest.raises(AdoptionError) as caught:
        db.adopt("t", str(metadata))
    assert metadata.name in str(caught.value)
    assert db.tables() == []


def test_damaged_manifests_are_refused_whatever_byte_is_wrong(db: Database, tmp_path: Path) -> None:
    folder, versions = folder_with_two_versions(tmp_path)
    metadata = folder / f"{max(versions)}.metadata.json"
    rng = random.Random(int(os.environ["DOLMEN_TEST_SEED"]))
    refused = 0
    for path in [*folder.glob("snap-*.avro"), *folder.glob("data-*.avro")]:
        body = path.read_bytes()
        for _ in range(20):
            damaged = bytearray(body)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.3 else damaged)
            try:
                assert db.adopt(f"t{rng.random()}".replace(".", "_"), str(metadata)).rows == 2
            except InputError:
                refused += 1
        path.write_bytes(body)
    assert refused > 20


def _record(name: str, **fields: Any) -> dict[str, Any]:
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


def _text(data: bytes) -> bytes:
    """Bytes as Avro writes them, after their number."""
    number, size = bytearray(), len(data) << 1
    while size >= 0x80:
        number.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*number, size]) + data


DOUBLED = _record("r0", a="null")
for _number in range(1, 30):
    DOUBLED = _record(f"r{_number}", a=DOUBLED, b=f"r{_number - 1}")


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (DOUBLED, b""),
        (_record("r", a={"type": "array", "items": "null"}), b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0"),
        (_record("r", a={"type": "array", "items": _record("s")}), b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0"),
        (_record("r", a=["null", "r"]), b"\2" * 3_000_000),
        (_record("r", a={"type": "array", "items": "r"}), b"\2" * 3_000_000),
        (_record("r", a="r"), b""),
        (_record("r"), b""),
    ],
)
def test_a_manifest_of_any_number_of_values_in_a_few_bytes_is_refused(
    db: Database, tmp_path: Path, schema: Any, body: bytes
) -> None:
    folder, versions = folder_with_two_versions(tmp_path)
    for path in folder.glob("data-*.avro"):
        path.write_bytes(
            b"Obj\1\2"
            + _text(b"avro.schema")
            + _text(json.dumps(schema).encode())
            + bytes(17)
            + b"\2"
            + _text(body)
            + bytes(16)
        )
    with pytest.raises(AdoptionError, match="values"):
        db.adopt("t", str(folder / f"{max(versions)}.metadata.json"))


def test_nothing_advises_to_load_files_whose_table_deletes_rows(db: Database, tmp_path: Path) -> None:
    _, location = published(tmp_path / "other", "v2")
    change_manifests(tmp_path, "deletes-*.avro", lambda entry: entry["data_file"].update(content=2))
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "_delta_log" / "0.json").write_text("{}")
    data = Path(location.removeprefix("file://")).parents[1] / "data"
    data.mkdir(exist_ok=True)
    for source in (location, str(tmp_path / "lake"), str(data)):
        with pytest.raises(AdoptionError) as caught:
            db.adopt("t", source)
        assert "Do not load its files" in str(caught.value), source

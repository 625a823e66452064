"""Partitioned tables are published with partition specs, by which readers leave files out."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.api.table import Table
from dolmen.format.column_terms import parse_partition_by
from dolmen.format.schema import Schema
from dolmen.iceberg.partition_specs import PartitionSpecs, Spec, SpecField
from dolmen.iceberg.publication import IcebergPublication
from support import spark_iceberg
from support.iceberg_readers import READERS, IcebergReaders, sql
from support.spark import SparkProcess

START = datetime(2026, 11, 1, tzinfo=UTC)
VERSIONS = pytest.mark.parametrize("version", ["v2", "v3"])


def rows(days: range, count: int = 40, **more: Any) -> list[dict[str, Any]]:
    """Rows of some days, each with the ids 0 to ``count``."""
    return [
        {"id": id_, "seen": START + timedelta(days=day, minutes=id_), "tenant": f"t{id_ % 2}", **more}
        for day in days
        for id_ in range(count)
    ]


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return dolmen.open(tmp_path / "db")


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", "id BIGINT, seen TIMESTAMPTZ, tenant VARCHAR", partition_by="day(seen), bucket[4](id)")


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def metadata_of(found: IcebergPublication) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(local(found.metadata_location).read_text())
    return read


def manifests_of(found: IcebergPublication) -> list[dict[str, Any]]:
    with local(metadata_of(found)["snapshots"][-1]["manifest-list"]).open("rb") as file:
        return list(fastavro.reader(file))  # type: ignore[arg-type]


def files_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    with local(manifest["manifest_path"]).open("rb") as file:
        return [entry["data_file"] for entry in fastavro.reader(file)]  # type: ignore[call-overload, index]


def files_by_spec(found: IcebergPublication, content: int = 0) -> Counter[int]:
    counts: Counter[int] = Counter()
    for manifest in manifests_of(found):
        if manifest["content"] == content:
            counts[manifest["partition_spec_id"]] += len(files_of(manifest))
    return counts


@VERSIONS
def test_a_spec_is_written_as_the_specification_says(table: Table, version: str) -> None:
    table.set(iceberg=version)
    table.append(rows(range(3)))
    found = table.publish_iceberg()
    metadata = metadata_of(found)
    fields = [
        {"source-id": 2, "field-id": 1000, "name": "seen_day", "transform": "day"},
        {"source-id": 1, "field-id": 1001, "name": "id_bucket", "transform": "bucket[4]"},
    ]
    assert metadata["partition-specs"] == [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": fields}]
    assert (metadata["default-spec-id"], metadata["last-partition-id"]) == (1, 1001)
    (manifest,) = manifests_of(found)
    assert manifest["partition_spec_id"] == 1
    day = (START - datetime(1970, 1, 1, tzinfo=UTC)).days
    days, buckets = manifest["partitions"]
    bounds = [(day + 2).to_bytes(4, "little"), bytes(4), (3).to_bytes(4, "little")]
    assert (days["lower_bound"], days["upper_bound"]) == (day.to_bytes(4, "little"), bounds[0])
    assert (buckets["lower_bound"], buckets["upper_bound"]) == (bounds[1], bounds[2])
    assert not days["contains_null"]
    with local(manifest["manifest_path"]).open("rb") as file:
        reader = fastavro.reader(file)
        assert json.loads(reader.metadata["partition-spec"]) == fields
        assert reader.metadata["partition-spec-id"] == "1"
        (data_file,) = (field["type"] for field in reader.writer_schema["fields"] if field["name"] == "data_file")  # type: ignore[index, call-overload]
        (partition,) = (field["type"]["fields"] for field in data_file["fields"] if field["name"] == "partition")
    assert [(field["field-id"], field["name"]) for field in partition] == [(1000, "seen_day"), (1001, "id_bucket")]
    assert partition[0]["type"] == ["null", {"type": "int", "logicalType": "date"}]
    values = {tuple(file["partition"].values()) for file in files_of(manifest)}
    assert values == {((START + timedelta(days=n)).date(), bucket) for n in range(3) for bucket in range(4)}


def test_a_table_that_never_had_partitions_is_published_without_a_trace_of_them(db: Database) -> None:
    table = db.create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    found = table.publish_iceberg()
    metadata = metadata_of(found)
    assert metadata["partition-specs"] == [{"spec-id": 0, "fields": []}]
    assert (metadata["default-spec-id"], metadata["last-partition-id"]) == (0, 999)
    (manifest,) = manifests_of(found)
    assert (manifest["partition_spec_id"], manifest["partitions"]) == (0, [])
    assert files_of(manifest)[0]["partition"] == {}


def test_another_setting_is_another_spec_and_old_files_keep_theirs(table: Table, readers: IcebergReaders) -> None:
    table.append(rows(range(2)))
    first = table.publish_iceberg()
    table.set(partition_by="month(seen), bucket[4](id)")
    changed = table.publish_iceberg()
    assert changed.is_new
    assert files_by_spec(changed) == files_by_spec(first) == {1: 8}
    assert {each["manifest_path"] for each in manifests_of(changed)} == {
        each["manifest_path"] for each in manifests_of(first)
    }
    table.append(rows(range(31, 32)))
    second = table.publish_iceberg()
    assert files_by_spec(second) == {1: 8, 2: 4}
    specs = metadata_of(second)["partition-specs"]
    assert [field["field-id"] for field in specs[2]["fields"]] == [1002, 1001]  # the same bucket has the same id
    table.set(partition_by="bucket[8](id)")
    table.append(rows(range(40, 41), 1))
    third = table.publish_iceberg()
    assert files_by_spec(third) == {1: 8, 2: 4, 3: 1}
    assert metadata_of(third)["partition-specs"][3]["fields"][0]["name"] == "id_bucket_8"
    table.set(partition_by="day(seen), bucket[4](id)")
    assert metadata_of(table.publish_iceberg())["default-spec-id"] == 1
    table.set(partition_by=None)
    table.append(rows(range(50, 51), 1))
    last = table.publish_iceberg()
    assert metadata_of(last)["default-spec-id"] == 0
    assert files_by_spec(last) == {0: 1, 1: 8, 2: 4, 3: 1}
    for reader in READERS:
        assert readers.read(reader, last.metadata_location).num_rows == table.count(), reader


def test_specs_begin_again_without_partitions_of_bytes_of_a_fixed_size() -> None:
    columns = Schema.from_arrow(pa.schema([("f", pa.binary(2))])).by_id
    (id_,) = columns
    earlier = PartitionSpecs((Spec(0), Spec(1, (SpecField(id_, 1000, "f", "identity"),))), 1, 1000)
    assert earlier.with_default(parse_partition_by("f"), columns).specs == (Spec(0),)
    bucket = earlier.with_default(parse_partition_by("bucket[2](f)"), columns)
    assert [field.field_id for field in bucket.specs[1].fields] == [1001]


def test_a_tables_first_spec_is_for_all_files_that_keep_it(db: Database) -> None:
    table = db.create_table("t", "id BIGINT, seen TIMESTAMPTZ, tenant VARCHAR")
    for day in range(3):
        table.append(rows(range(day, day + 1)))
    table.append(rows(range(3, 5)))
    assert files_by_spec(table.publish_iceberg()) == {0: 4}
    table.set(partition_by="day(seen)")
    assert files_by_spec(table.publish_iceberg()) == {0: 1, 1: 3}
    db.compact("t", repartition=True)
    assert files_by_spec(table.publish_iceberg()) == {1: 5}


@pytest.mark.slow
@VERSIONS
def test_delete_files_have_the_partition_of_their_data_files(
    db: Database, table: Table, readers: IcebergReaders, version: str
) -> None:
    table.set(iceberg=version)
    table.append(rows(range(2)))
    table.publish_iceberg()
    table.set(partition_by=None)
    table.append(rows(range(2, 4)))
    for part in range(10):
        table.delete(f"id = {part}")
        found = table.publish_iceberg()
        assert files_by_spec(found) == {0: 1, 1: 8}
        assert found.delete_files <= 9 * 8
        manifests = [(each, each["partition_spec_id"], files_of(each)) for each in manifests_of(found)]
        partitions = {
            file["file_path"]: (spec, file["partition"])
            for manifest, spec, files in manifests
            if not manifest["content"]
            for file in files
        }
        for _, spec, file in ((*each[:2], file) for each in manifests if each[0]["content"] for file in each[2]):
            bounds = [*(file["lower_bounds"] or ()), *(file["upper_bounds"] or ())]
            paths = {pair["value"].decode() for pair in bounds} or {file["referenced_data_file"]}
            assert {path: partitions[path] for path in paths} == dict.fromkeys(paths, (spec, file["partition"]))
        if part == 5:
            db.resolve("t")
            db.merge()
        for reader in READERS:
            assert readers.read(reader, found.metadata_location).num_rows == 4 * (39 - part), (reader, part)
    assert not db.verify().findings


def test_verify_finds_a_delete_file_of_another_partition(db: Database, table: Table) -> None:
    table.append(rows(range(1)))
    table.delete("id = 3")
    found = table.publish_iceberg()
    (deletes,) = (each for each in manifests_of(found) if each["content"])
    path = local(deletes["manifest_path"])
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        entries: list[Any] = list(reader)
    entries[0]["data_file"]["partition"]["id_bucket"] += 1
    with path.open("wb") as file:
        fastavro.writer(file, reader.writer_schema, entries, metadata=reader.metadata)
    assert db.verify().findings


@pytest.mark.parametrize("change", ["drop", "add"])
def test_specs_begin_again_when_readers_would_refuse_them(
    db: Database, table: Table, readers: IcebergReaders, change: str
) -> None:
    table.set(iceberg_snapshots="kept")
    table.append(rows(range(2)))
    table.publish_iceberg()
    table.set(partition_by="tenant")
    table.append(rows(range(2)))
    assert table.publish_iceberg().snapshots == 2
    if change == "drop":
        table.drop_column("seen")
    else:
        table.add_column("seen_day", pa.string())
    found = table.publish_iceberg()
    assert found.snapshots == 1
    assert len(metadata_of(found)["partition-specs"]) == 2
    assert files_by_spec(found) == {0: 8, 1: 2}
    for reader in READERS:
        assert readers.read(reader, found.metadata_location, ["tenant", "=", "t1"]).num_rows == 80, reader


def test_terms_that_readers_cannot_take_are_left_out(db: Database) -> None:
    columns = "id BIGINT, u UTINYINT, tenant VARCHAR, price DECIMAL(9, 2)"
    terms = (
        "u, tenant, bucket[2](id), truncate[2](tenant), truncate[100](price)"  # DuckDB truncates the last two wrongly
    )
    table = db.create_table("t", columns, partition_by=terms)
    table.append([{"id": 1, "u": 1, "tenant": None}])
    found = table.publish_iceberg()
    assert found.left_out is not None
    assert list(found.left_out) == ["u", "truncate[2](tenant)", "truncate[100](price)"]
    (_, spec) = metadata_of(found)["partition-specs"]
    assert [field["name"] for field in spec["fields"]] == ["tenant", "id_bucket"]


@pytest.mark.slow
def test_partitions_of_bytes_of_a_fixed_size_are_left_out(
    db: Database, readers: IcebergReaders, spark_reader: SparkProcess
) -> None:
    schema = pa.schema([("id", pa.int64()), ("f", pa.binary(2))])
    table = db.create_table("t", schema, partition_by="f, bucket[3](id)")
    table.append(pa.table({"id": [1, 2, 3, 4], "f": [b"ab", b"\xff\xff", b"\0\0", None]}, schema))
    found = table.publish_iceberg()
    assert list(found.left_out or {}) == ["identity(f)"]
    (_, spec) = metadata_of(found)["partition-specs"]
    assert [field["name"] for field in spec["fields"]] == ["id_bucket"]
    folder = found.metadata_location.rpartition("/metadata/")[0]
    seen = [readers.read(reader, found.metadata_location) for reader in READERS]
    for found_rows in (*seen, spark_reader.run(spark_iceberg.read, folder, ["id", "f"])):
        pairs = zip(found_rows["id"].to_pylist(), found_rows["f"].to_pylist(), strict=True)
        assert sorted(pairs) == [(1, b"ab"), (2, b"\xff\xff"), (3, b"\0\0"), (4, None)]


@VERSIONS
def test_readers_leave_out_files_by_their_partitions(table: Table, readers: IcebergReaders, version: str) -> None:
    """Bounds of ids exclude no file of a day: what readers leave out of it, they leave out by its bucket."""
    table.set(iceberg=version)
    table.append(rows(range(5)))
    table.delete("id = 8 AND seen < '2026-11-02T00:00:00Z'")
    location = table.publish_iceberg().metadata_location
    for reader in ("pyiceberg", "duckdb"):
        assert readers.count_files(reader, location) == 20, reader
        assert readers.count_files(reader, location, ["id", "=", 7]) == 5, reader
        first = ["seen", "<", {"timestamptz": "2026-11-02T00:00:00+00:00"}]
        assert readers.count_files(reader, location, ["and", ["id", "=", 7], first]) == 1, reader
        assert readers.read(reader, location, ["id", "=", 8]).num_rows == 4, reader


@pytest.mark.slow
def test_spark_leaves_out_files_by_their_partitions(table: Table, spark_reader: SparkProcess) -> None:
    table.append(rows(range(5)))
    folder = table.publish_iceberg().metadata_location.rpartition("/metadata/")[0]
    assert spark_reader.run(spark_iceberg.count_files, folder, "true") == 20
    assert spark_reader.run(spark_iceberg.count_files, folder, "id = 7") == 5
    assert spark_reader.run(spark_iceberg.count_files, folder, "id = 7 AND seen < '2026-11-02'") == 1


BUCKET, DATES = ("{}", "bucket[3]({})"), ("year({})", "month({})", "day({})")
TYPES: dict[str, tuple[str, list[Any], tuple[str, ...]]] = {
    "i8": ("TINYINT", [-128, -3, 0, 127], (*BUCKET, "truncate[10]({})")),
    "i32": ("INTEGER", [-(2**31) + 20, -3, 7, 2**31 - 1], (*BUCKET, "truncate[10]({})")),
    "i64": ("BIGINT", [-(2**63) + 20, -3, 7, 2**63 - 1], (*BUCKET, "truncate[10]({})")),
    "dec": ("DECIMAL(4, 2)", [Decimal("-99.99"), Decimal("0.05"), Decimal("1.20")], BUCKET),
    "big": ("DECIMAL(30, 2)", [Decimal("-9.99"), Decimal("123456789012345678901.05")], BUCKET),
    "txt": ("VARCHAR", ["", "a/b=c", "ä€😀x", "x" * 40], BUCKET),
    "bin": ("BLOB", [b"", b"\x00\xff", b"z" * 40], (*BUCKET, "truncate[3]({})")),
    "ok": ("BOOLEAN", [True, False], ("{}",)),
    "dt": ("DATE", [date(1969, 12, 31), date(2, 1, 1), date(2026, 11, 29)], (*BUCKET, *DATES)),
    "ts": (
        "TIMESTAMP",
        [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2026, 11, 29, 12), datetime(9999, 12, 31, 23)],
        (*BUCKET, *DATES, "hour({})"),
    ),
    "tz": ("TIMESTAMPTZ", [datetime(1969, 12, 31, 23, 59, 59, 1, UTC), START], (*BUCKET, *DATES, "hour({})")),
}


def literal_of(value: Any) -> Any:
    """A value in a condition."""
    if isinstance(value, datetime):
        return {"timestamptz" if value.tzinfo else "timestamp": value.isoformat()}
    if isinstance(value, (date, Decimal)):
        return {"date" if isinstance(value, date) else "decimal": str(value)}
    return value


@pytest.mark.parametrize(
    ("kind", "term", "value", "spec"),
    [
        ("TINYINT", "truncate[100](x)", -128, 1),  # to a number that TINYINT lacks, and Iceberg's int has
        ("INTEGER", "truncate[100](x)", -(2**31), 0),
        ("BIGINT", "truncate[100](x)", -(2**63), 0),
        ("TIMESTAMP", "month(x)", datetime(1969, 12, 31), 0),
        ("TIMESTAMP", "year(x)", datetime(1969, 12, 31), 1),
        ("DATE", "month(x)", date(1969, 12, 31), 1),
        ("VARCHAR", "x", None, 0),
        ("TIMESTAMP", "x", pa.scalar(2**62, pa.timestamp("us")), 0),
        ("TIMESTAMP", "hour(x)", pa.scalar(2**63 - 1, pa.timestamp("us")), 0),
        ("DATE", "x", pa.scalar(2**30, pa.int32()).cast(pa.date32()), 0),
    ],
)  # fmt: skip
def test_values_that_readers_take_for_others_are_under_no_spec(
    db: Database, readers: IcebergReaders, kind: str, term: str, value: Any, spec: int
) -> None:
    table = db.create_table("t", f"n BIGINT, x {kind}", partition_by=term)
    table.append(pa.table({"n": [1], "x": pa.array([value], table.schema.field("x").type)}))
    found = table.publish_iceberg()
    assert files_by_spec(found) == {spec: 1}
    for reader in ("duckdb", "pyiceberg") if abs(getattr(value, "value", 0)) < 2**60 else ("duckdb",):
        assert readers.read(reader, found.metadata_location, ["or", ["x", "present"], ["n", "=", 1]]).num_rows == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_every_transform_of_every_type_is_read_by_every_reader(
    db: Database, readers: IcebergReaders, name: str
) -> None:
    kind, values, terms = TYPES[name]
    conditions: list[Any] = [[name, "null"], [name, "present"]]
    if kind not in ("BLOB", "BOOLEAN"):
        conditions += [[name, op, literal_of(value)] for op in ("=", "<", ">=", "<>") for value in values]
    for number, term in enumerate(terms):
        table = db.create_table(f"t{number}", f"n BIGINT, {name} {kind}", partition_by=term.format(name))
        table.append([{"n": n, name: value} for n, value in enumerate([*values, None])])
        found = table.publish_iceberg()
        assert metadata_of(found)["default-spec-id"] == 1
        assert files_by_spec(found)[1] >= 1, term
        for where in (None, *conditions):
            text = None if where is None else sql(where)
            expected = sorted(table.scan(["n"], where=text).to_arrow()["n"].to_pylist())
            for reader in READERS:
                seen = readers.read(reader, found.metadata_location, where)["n"].to_pylist()
                assert sorted(seen) == expected, (reader, term, text)

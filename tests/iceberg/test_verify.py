"""``verify`` checks publications: objects that are missing or damaged, other rows, and metadata of others."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.records import replace
from dolmen.commit.head import context_of
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.publication_upkeep import check_publications

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture(params=["v2", "v3"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    db = dolmen.open(tmp_path / "db")
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.set(iceberg=request.param)
    table.append([{"id": id_} for id_ in range(100)])
    table.delete("id < 3")
    table.append([{"id": 200}])
    table.publish_iceberg()
    return db


def kinds(db: Database) -> list[str]:
    return sorted({finding.kind for finding in db.verify().findings})


def objects(tmp_path: Path, pattern: str) -> list[Path]:
    return sorted((tmp_path / "db" / "iceberg").rglob(pattern))


def test_a_good_publication_has_no_findings_whatever_came_later(db: Database) -> None:
    assert db.verify().ok
    db.table("t").delete("id = 50")
    db.resolve()
    db.compact()
    report = db.verify()
    assert (report.findings, report.checked["publications"]) == ((), 1)
    db.table("t").publish_iceberg()
    assert kinds(db) == []


@pytest.mark.parametrize("pattern", ["snap-*.avro", "data-*.avro", "deletes-*.avro", "[pv]*-*.p*"])
def test_a_missing_or_damaged_object_is_found_and_a_new_publication_mends_it(
    db: Database, tmp_path: Path, pattern: str
) -> None:
    (path,) = objects(tmp_path, pattern)
    body = path.read_bytes()
    for damaged in (None, body[: len(body) // 2]):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        assert kinds(db) == ["publication-damaged"]
    assert not db.table("t").publish_iceberg().is_new
    assert db.table("t").publish_iceberg(anew=True).is_new
    assert kinds(db) == []


def test_a_publication_of_other_rows_is_found(db: Database, tmp_path: Path) -> None:
    (old_list,) = objects(tmp_path, "snap-*.avro")
    body = old_list.read_bytes()
    db.table("t").delete("id = 99")
    db.table("t").publish_iceberg()
    (new_list,) = set(objects(tmp_path, "snap-*.avro")) - {old_list}
    (path,) = objects(tmp_path, "v2.metadata.json")
    metadata = TableMetadata.decode(path.read_bytes())
    assert metadata is not None
    stale = metadata.current.manifest_list.replace(new_list.name, old_list.name)
    path.write_bytes(replace(metadata, snapshots=(replace(metadata.current, manifest_list=stale),)).encode())
    assert kinds(db) == ["publication-differs"]
    new_list.write_bytes(body)
    path.write_bytes(metadata.encode())
    assert kinds(db) == ["publication-damaged"]


def test_metadata_of_another_writer_is_a_warning(db: Database, tmp_path: Path) -> None:
    (path,) = objects(tmp_path, "v1.metadata.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"current-snapshot-id": -1}))
    assert kinds(db) == ["publication-foreign"]
    assert db.verify().ok
    assert db.table("t").publish_iceberg().is_repaired
    assert kinds(db) == []


def test_a_publication_made_after_the_check_began_is_no_finding(db: Database) -> None:
    began = context_of(db).head.refresh().manifest
    db.table("t").append([{"id": 300}])
    db.table("t").publish_iceberg()
    assert list(check_publications(context_of(db), began)) == [[]]
    db.drop_table("t")
    assert list(check_publications(context_of(db), began)) == [[]]


def test_the_publication_of_a_dropped_table_is_no_finding(db: Database) -> None:
    db.drop_table("t")
    assert kinds(db) == []

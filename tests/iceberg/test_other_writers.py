"""Other writers on a publication, one by one as docs/iceberg.md lists them: refused, or noticed and published anew."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.iceberg.publication import IcebergPublication
from support import spark_iceberg
from support.iceberg_readers import IcebergReaders
from support.spark import SparkProcess

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


class Published:
    """A published table of ids 0 to 9, of which 0 is deleted."""

    def __init__(self, folder: Path) -> None:
        self.db: Database = dolmen.open(folder)
        self.table = self.db.create_table("t", SCHEMA, primary_key="id")
        self.table.append({"id": list(range(5)), "name": ["a"] * 5})
        self.table.append({"id": list(range(5, 10)), "name": ["b"] * 5})
        self.table.delete("id = 0")
        self.first = self.table.publish_iceberg()
        self.folder = self.first.metadata_location.rpartition("/metadata/")[0]
        self.data = self.data_files()

    def data_files(self) -> dict[str, bytes]:
        root = Path(self.db.url.removeprefix("file://"))
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted((root / "data").rglob("*.parquet"))}

    def ids(self, readers: IcebergReaders, found: IcebergPublication) -> list[int]:
        return sorted(readers.read("duckdb", found.metadata_location)["id"].to_pylist())

    def check_mended(self, readers: IcebergReaders, *, is_repaired: bool) -> None:
        """Publishes again: all readers see dolmen's rows, and none was lost."""
        found = self.table.publish_iceberg()
        assert found.is_repaired == is_repaired
        assert self.ids(readers, found) == list(range(1, 10))
        assert sorted(readers.read("duckdb", self.folder)["id"].to_pylist()) == list(range(1, 10))
        assert sorted(self.table.to_arrow()["id"].to_pylist()) == list(range(1, 10))
        assert self.data_files() == self.data
        assert self.db.verify().ok


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return Published(tmp_path / "db")


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {table} VALUES (77, 'x')",
        "UPDATE {table} SET name = 'x' WHERE id = 3",
        "MERGE INTO {table} t USING (SELECT 3L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'x'",
        "CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))",
    ],
    ids=["insert", "update", "merge", "rewrite"],
)
def test_spark_finds_no_place_for_new_files(
    statement: str, published: Published, spark_reader: SparkProcess, readers: IcebergReaders
) -> None:
    assert "ThisTableIsReadOnly" in spark_reader.run(spark_iceberg.write, published.folder, statement)
    published.check_mended(readers, is_repaired=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01 00:00:00')",
        "CALL {catalog}.system.remove_orphan_files(table => '{name}')",
        "DROP TABLE {table} PURGE",
    ],
    ids=["expire", "orphans", "purge"],
)
def test_what_deletes_files_is_refused(
    statement: str, published: Published, spark_reader: SparkProcess, readers: IcebergReaders
) -> None:
    error = spark_reader.run(spark_iceberg.write, published.folder, statement)
    assert "gc.enabled" in error or "GC is disabled" in error
    published.check_mended(readers, is_repaired=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {table} WHERE TRUE",
        "ALTER TABLE {table} ADD COLUMN more int",
        "ALTER TABLE {table} UNSET TBLPROPERTIES ('gc.enabled')",
    ],
    ids=["delete", "alter", "unset"],
)
def test_what_metadata_alone_can_do_is_noticed_and_published_anew(
    statement: str, published: Published, spark_reader: SparkProcess, readers: IcebergReaders
) -> None:
    assert spark_reader.run(spark_iceberg.write, published.folder, statement) == ""
    assert "publication-foreign" in [finding.kind for finding in published.db.verify().findings]
    published.check_mended(readers, is_repaired=True)


@pytest.mark.parametrize("text", ["99", "nothing", ""])
def test_a_hint_that_another_writer_replaced_is_put_right(
    text: str, published: Published, readers: IcebergReaders
) -> None:
    (Path(published.folder.removeprefix("file://")) / "metadata" / "version-hint.text").write_text(text)
    published.check_mended(readers, is_repaired=False)

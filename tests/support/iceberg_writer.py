"""Iceberg tables as pyiceberg writes them, in the environment of Iceberg's readers (locks/iceberg.in).

This file is both: what tests import, and the program that makes a table and imports nothing of dolmen or of tests.
"""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-iceberg" / "bin" / "python"


def write_iceberg(kind: str, folder: Path) -> tuple[str, pa.Table]:
    """Makes a table ``t`` below a folder; returns the location of its metadata, and its rows as pyiceberg reads them.

    Args:
        kind: name of one of the functions at the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(PYTHON), "-W", "ignore", __file__, kind, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1], pq.read_table(folder / "rows.parquet")


def _catalog(root: str) -> Any:
    """A catalog in a folder, which knows the tables that it made itself."""
    from pyiceberg.catalog import MetastoreCatalog
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table import CommitTableResponse
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    tables: dict[str, Any] = {}

    class FolderCatalog(MetastoreCatalog):
        def create_table(self, identifier: str, schema: Any, location: str, properties: Any) -> Any:
            spec = UNPARTITIONED_PARTITION_SPEC
            made = self._create_staged_table(identifier, schema, location, spec, UNSORTED_SORT_ORDER, properties)
            return self._keep(identifier, made)

        def load_table(self, identifier: str) -> Any:
            return tables[identifier]

        def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
            name = ".".join(table.name())
            made = self._update_and_stage_table(tables[name], table.name(), requirements, updates)
            self._keep(name, made)
            return CommitTableResponse(metadata=made.metadata, metadata_location=made.metadata_location)

        def _keep(self, name: str, made: Any) -> Any:
            self._write_metadata(made.metadata, made.io, made.metadata_location)
            tables[name] = made
            return made

    FolderCatalog.__abstractmethods__ = frozenset()
    return FolderCatalog("folder", warehouse=root)


class _Table:
    """A table of that catalog, loaded anew for each change."""

    def __init__(self, folder: str, schema: pa.Schema, **properties: str) -> None:
        self.folder, self._catalog = folder, _catalog(folder)
        self._catalog.create_table("db.t", schema, f"file://{folder}/t", properties)

    @property
    def now(self) -> Any:
        return self._catalog.load_table("db.t")

    def append(self, rows: list[dict[str, Any]]) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self.now.append(pa.Table.from_pylist(rows, schema_to_pyarrow(self.now.schema(), include_field_ids=False)))

    def show(self) -> None:
        from pyiceberg.table import StaticTable

        location = self.now.metadata_location
        pq.write_table(StaticTable.from_metadata(location).scan().to_arrow(), f"{self.folder}/rows.parquet")
        sys.stdout.write(f"{location}\n")


def _rows(first: int, end: int, **more: Any) -> list[dict[str, Any]]:
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return [
        {
            "id": i, "name": f"n{i}", "x": i / 2, "gone": "g", "place": {"a": i, "b": "b"}, "list": ["l", None],
            "map": [("k", i)], "at": start + datetime.timedelta(minutes=i), "d": decimal.Decimal(i),
            "u": bytes([i]) * 4, **more,
        }
        for i in range(first, end)
    ]  # fmt: skip


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False), ("name", pa.string()), ("x", pa.float32()), ("gone", pa.string()),
        ("place", pa.struct([("a", pa.int32()), ("b", pa.string())])), ("list", pa.list_(pa.string())),
        ("map", pa.map_(pa.string(), pa.int32())), ("at", pa.timestamp("us", "UTC")), ("d", pa.decimal128(9, 2)),
        ("u", pa.binary(4)),
    ]
)  # fmt: skip


def evolved(folder: str, **properties: str) -> None:
    """Columns were widened, dropped, renamed and added; some rows were deleted, which pyiceberg does by copying."""
    from pyiceberg.types import DecimalType, DoubleType, LongType, StringType

    table = _Table(folder, SCHEMA, **properties)
    table.append(_rows(0, 100))
    with table.now.update_schema() as update:
        update.update_column("id", LongType())
        update.update_column("x", DoubleType())
        update.update_column("d", DecimalType(12, 2))
        update.delete_column("gone")
        update.rename_column("name", "title")
        update.add_column("gone", StringType())
        update.add_column(("place", "c"), LongType())
        update.rename_column("place.b", "bee")
    with table.now.update_schema() as update:
        update.move_first("title")
    table.append(
        [{"id": i, "title": "t", "place": {"a": 1, "bee": "x", "c": i}, "gone": "new"} for i in range(100, 200)]
    )
    table.now.delete("id >= 50 and id < 60")
    table.show()


def first_version(folder: str) -> None:
    """A table of format version 1."""
    table = _Table(folder, SCHEMA, **{"format-version": "1"})
    table.append(_rows(0, 10))
    table.append(_rows(10, 20))
    table.show()


def partitioned(folder: str) -> None:
    """By values, in files that have the column."""
    table = _Table(folder, SCHEMA)
    with table.now.update_spec() as update:
        update.add_identity("name")
    table.append(_rows(0, 5, name="one") + _rows(5, 9, name="two / 2"))
    table.show()


def imported(folder: str) -> None:
    """Files of others without field ids, by the property of names."""
    table = _Table(
        folder, pa.schema([("id", pa.int64()), ("place", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.int64()))])
    )
    rows = pa.table({"id": range(5), "place": [{"a": i} for i in range(5)], "l": [[i] for i in range(5)]})
    pq.write_table(rows, f"{folder}/1.parquet")
    table.now.add_files([f"file://{folder}/1.parquet"])
    with table.now.update_schema() as update:
        update.rename_column("id", "key")
    table.append([{"key": 9, "place": {"a": 9}, "l": []}])
    table.show()


def empty(folder: str) -> None:
    """A table without a snapshot."""
    table = _Table(folder, SCHEMA)
    table.show()


if __name__ == "__main__":
    {f.__name__: f for f in (evolved, first_version, partitioned, imported, empty)}[sys.argv[1]](sys.argv[2])

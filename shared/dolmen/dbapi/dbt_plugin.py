"""The plugin of dbt-duckdb: tables as sources of models, and models as tables (docs/dbt.md).

dbt finds ``Plugin`` by the name of this module in ``profiles.yml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.duckdb.utils import SourceConfig, TargetConfig

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.base import arguments
from dolmen.base.runtime import cached_property
from dolmen.errors import InputError
from dolmen.rows.scan.engines.dataset import ScanDataset, needs_boxes
from dolmen.rows.scan.plan import stored_schema_of
from dolmen.transactions.snapshot import Snapshot

_MOMENTS = ("version", "timestamp", "tag")
_WRITES = ("overwrite", "replace", "append", "upsert")


class Plugin(BasePlugin):  # type: ignore[misc]  # dbt is not installed beside mypy
    """One database. ``config`` in ``profiles.yml`` has its ``url``."""

    def initialize(self, plugin_config: Mapping[str, Any]) -> None:
        """Opens the database, which sends no request."""
        if not isinstance(url := plugin_config.get("url"), str):
            raise InputError(
                "the plugin needs the URL of a database: config: {url: s3://bucket/prefix} in profiles.yml"
            )
        self._database: Database = open_database(url)

    @cached_property
    def _newest(self) -> Snapshot:
        """The version that all sources of a run show, unless they name another one."""
        return self._database.at(self._database.version)

    def load(self, source_config: SourceConfig) -> Any:
        """The rows of a source. DuckDB 2 reads only the columns and files that a model needs."""
        name = str(source_config.get("table", source_config.identifier))
        moments = {word: source_config.get(word) for word in _MOMENTS if source_config.get(word) is not None}
        table = (self._database.at(**moments) if moments else self._newest).table(name)
        if needs_boxes():
            return table.scan().to_reader()
        return ScanDataset(name, table.schema, stored_schema_of(table), table.scan)

    def default_materialization(self) -> str:
        """How dbt shows a source: as a view, or as a copy if DuckDB pushes filters that Arrow does not have."""
        return "table" if needs_boxes() else "view"

    def store(self, target_config: TargetConfig) -> None:
        """Writes the rows of a model into a table, in one commit."""
        options: Mapping[str, Any] = target_config.config.get("meta") or {}
        name = str(options.get("table", target_config.relation.identifier))
        write = arguments.one_of("write", options.get("write", "overwrite"), _WRITES)
        rows = _rows_of(target_config)
        with self._database.transaction(write if write != "replace" else "create_table", message=f"dbt: {name}") as tx:
            if write == "replace" or name not in tx.tables():
                keys = {word: options.get(word) for word in ("primary_key", "sort_key", "partition_by")}
                tx.create_table(name, rows.schema, exist="replace" if write == "replace" else "error", **keys)
            table = tx.table(name)
            added: Any = {"new_columns": "add"}
            if write == "overwrite":
                table.overwrite(rows, force=True, **added)
            elif write == "upsert":
                table.upsert(rows, **added)
            else:
                table.append(rows, **added)


def _rows_of(target: TargetConfig) -> pa.RecordBatchReader:
    """The rows of the file that dbt wrote. For a model without rows dbt writes a row of NULLs, which is left out."""
    location = target.location
    if location is None or "://" in location.path:
        raise InputError(f"model {target.relation.identifier!r}: location must be a file of this machine")
    rows = ds.dataset(location.path, format=location.format, partitioning="hive")
    schema: pa.Schema = rows.schema
    if rows.count_rows(use_threads=False) == 1:
        only = rows.to_table(use_threads=False)
        if all(column.null_count for column in only.columns):
            return schema.empty_table().to_reader()
    return rows.scanner(use_threads=False).to_reader()

"""Delta Lake by delta-rs (the package ``deltalake``). Its deletes rewrite files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from bench.peers.peer import Ids, Peer, Sums, numbers, sql_range, sql_value


class Delta(Peer):
    """A table by its path. It is read by SQL (DataFusion), which delta-rs brings."""

    name = "delta"
    title = "Delta Lake (delta-rs)"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"deltalake": deltalake.__version__}

    @property
    def _options(self) -> dict[str, str] | None:
        s3 = self.place.s3
        if s3 is None:
            return None
        return {
            "AWS_ENDPOINT_URL": s3.endpoint,
            "AWS_ACCESS_KEY_ID": s3.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.secret_key,
            "AWS_REGION": s3.region,
            "AWS_ALLOW_HTTP": "true",
            "conditional_put": "etag",
        }

    def create(self, schema: pa.Schema, key: str) -> None:
        self._table = DeltaTable.create(self.place.url, schema, storage_options=self._options)

    def open(self) -> None:
        self._table = DeltaTable(self.place.url, storage_options=self._options)

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self._table, rows, mode="append")

    def _query(self, sql: str) -> pa.Table:
        self._table.update_incremental()
        return pa.table(QueryBuilder().register("events", self._table).execute(sql).read_all())

    def sums(self, low: int | None = None, high: int | None = None, by: str = "id") -> Sums:
        what = "count(*) AS rows, sum(user_id) AS users, sum(amount) AS amount"
        [found] = self._query(f"SELECT {what} FROM events{sql_range(low, high, by)}").to_pylist()
        return Sums(found["rows"], found["users"] or 0, found["amount"] or 0.0)

    def get(self, key: str, value: int | str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._query(f"SELECT * FROM events WHERE {key} = {sql_value(value)}").to_pylist()
        return found

    def ids(self) -> Ids:
        return numbers(self._query("SELECT id FROM events"))

    def delete_range(self, low: int, high: int) -> None:
        self._table.delete(f"id >= {low} AND id < {high}")

    def delete_values(self, column: str, values: Ids) -> None:
        if len(values) == 1:
            self._table.delete(f"{column} = {values[0]}")
            return
        rows = pa.table({column: values})
        merge = self._table.merge(rows, f"t.{column} = s.{column}", source_alias="s", target_alias="t")
        merge.when_matched_delete().execute()

    def upsert(self, rows: pa.Table, key: str) -> None:
        merge = self._table.merge(rows, f"t.{key} = s.{key}", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def register(self, files: Sequence[str], key: str) -> None:
        self.place = replace(self.place, url=str(Path(files[0]).parent))
        deltalake.convert_to_deltalake(self.place.url)
        self.open()

    def compact(self) -> None:
        self._table.optimize.compact()

    def cluster(self, columns: Sequence[str]) -> None:
        self._table.optimize.z_order(columns)

    def clean(self) -> None:
        self._table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def files(self) -> int:
        self._table.update_incremental()
        return len(self._table.file_uris())

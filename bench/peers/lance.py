"""Lance, by its own package (``pylance``)."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.peer import Ids, Peer, Sums, numbers, sql_range, sql_value, sums_of


class Lance(Peer):
    """A dataset by its path."""

    name = "lance"
    title = "Lance"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"pylance": lance.__version__}

    @property
    def _options(self) -> dict[str, str] | None:
        s3 = self.place.s3
        if s3 is None:
            return None
        return {
            "aws_endpoint": s3.endpoint,
            "aws_access_key_id": s3.access_key,
            "aws_secret_access_key": s3.secret_key,
            "aws_region": s3.region,
            "allow_http": "true",
        }

    def create(self, schema: pa.Schema, key: str) -> None:
        self._table = lance.write_dataset(
            pa.table({name: pa.array([], schema.field(name).type) for name in schema.names}, schema),
            self.place.url,
            storage_options=self._options,
        )

    def open(self) -> None:
        self._table = lance.dataset(self.place.url, storage_options=self._options)

    def append(self, rows: pa.Table) -> None:
        self._table = lance.write_dataset(rows, self._table, mode="append", storage_options=self._options)

    def sums(self, low: int | None = None, high: int | None = None, by: str = "id") -> Sums:
        chosen = sql_range(low, high, by).removeprefix(" WHERE ") or None
        return sums_of(self._table.scanner(columns=["user_id", "amount"], filter=chosen).to_batches())

    def get(self, key: str, value: int | str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._table.to_table(filter=f"{key} = {sql_value(value)}").to_pylist()
        return found

    def ids(self) -> Ids:
        return numbers(self._table.to_table(columns=["id"]))

    def delete_range(self, low: int, high: int) -> None:
        self._table.delete(f"id >= {low} AND id < {high}")

    def delete_values(self, column: str, values: Ids) -> None:
        self._table.delete(f"{column} IN ({', '.join(map(str, values.tolist()))})")

    def upsert(self, rows: pa.Table, key: str) -> None:
        self._table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def register(self, files: Sequence[str], key: str) -> None:
        """Rewrites them, one file for each, which is the only way."""
        rows = pq.read_table(str(Path(files[0]).parent))
        self._table = lance.write_dataset(rows, self.place.url, max_rows_per_file=rows.num_rows // len(files))

    def index(self, key: str) -> None:
        self._table.create_scalar_index(key, "BTREE")

    def cluster(self, columns: Sequence[str]) -> None:
        """Lance keeps rows where they are: an index for each column stands in."""
        self.compact()
        for column in columns:
            self.index(column)

    def compact(self) -> None:
        self._table.optimize.compact_files()

    def clean(self) -> None:
        self._table.cleanup_old_versions(older_than=datetime.timedelta(0), delete_unverified=True)

    def files(self) -> int:
        return len(self._table.get_fragments())

"""dolmen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import dolmen.api.database  # loaded before the clock starts, like the libraries of the others
from bench.peers.peer import Ids, Peer, Sums, numbers, sums_of
from dolmen.rows.scan.scan import plan_of


class Ours(Peer):
    """A database with one table."""

    name = "dolmen"
    title = "dolmen"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"pyarrow": pa.__version__}

    def create(self, schema: pa.Schema, key: str) -> None:
        database = dolmen.open(self.place.url)
        database.set(retention="1s", keep_versions=1, reader_grace="1s")
        database.create_table("events", schema, primary_key=key)
        self.open()

    def open(self) -> None:
        self._database = dolmen.open(self.place.url)
        self._table = self._database.table("events")

    def append(self, rows: pa.Table) -> None:
        self._table.append(rows)

    def sums(self, low: int | None = None, high: int | None = None, by: str = "id") -> Sums:
        where = None if low is None else f"{by} >= {low} AND {by} < {high}"
        return sums_of(self._table.scan(["user_id", "amount"], where=where).to_reader())

    def get(self, key: str, value: int | str) -> list[dict[str, Any]]:
        found = self._table.get(value)
        return [] if found is None else [found]

    def ids(self) -> Ids:
        return numbers(self._table.scan(["id"]).to_arrow())

    def delete_range(self, low: int, high: int) -> None:
        self._table.delete(f"id >= {low} AND id < {high}")

    def delete_values(self, column: str, values: Ids) -> None:
        self._table.delete(keys=pa.table({column: values}), on=[column])

    def upsert(self, rows: pa.Table, key: str) -> None:
        self._table.upsert(rows)

    def register(self, files: Sequence[str], key: str) -> None:
        dolmen.open(self.place.url).adopt("events", list(files), primary_key=key)
        self.open()

    def index(self, key: str) -> None:
        self._table.set(index=True)
        self._database.maintain(steps=["index"])

    def cluster(self, columns: Sequence[str]) -> None:
        self._table.set(cluster_by=", ".join(columns))
        self._database.compact("events", recluster=True)

    def resolve(self) -> None:
        self._database.resolve()

    def compact(self) -> None:
        self._database.maintain()

    def clean(self) -> None:
        self._database.gc()

    def publish(self) -> str:
        self._table.set(iceberg="v2")
        return self._table.publish_iceberg().metadata_location

    def files(self) -> int:
        return len(plan_of(self._table.scan()).files)

"""Apache Iceberg by pyiceberg, with its SQL catalog on SQLite. Its deletes rewrite files."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThan

from bench.peers.peer import Ids, Peer, Sums, numbers, sums_of

_NAME = "bench.events"


class Iceberg(Peer):
    """A table of a catalog of its own."""

    name = "iceberg"
    title = "Iceberg (pyiceberg)"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"pyiceberg": pyiceberg.__version__}

    def _catalog(self) -> SqlCatalog:
        self.place.catalog.mkdir(parents=True, exist_ok=True)
        properties = {"uri": f"sqlite:///{self.place.catalog}/catalog.db", "warehouse": self.place.url}
        if (s3 := self.place.s3) is None:
            properties["warehouse"] = f"file://{self.place.url}"
        else:
            properties |= {
                "s3.endpoint": s3.endpoint,
                "s3.region": s3.region,
                "s3.access-key-id": s3.access_key,
                "s3.secret-access-key": s3.secret_key,
                "s3.path-style-access": "true",
            }
        return SqlCatalog("bench", **properties)

    def create(self, schema: pa.Schema, key: str) -> None:
        catalog = self._catalog()
        catalog.create_namespace("bench")
        self._table = catalog.create_table(_NAME, schema)

    def open(self) -> None:
        self._table = self._catalog().load_table(_NAME)

    def append(self, rows: pa.Table) -> None:
        self._table.append(rows)

    def _scan(self, chosen: BooleanExpression | None, *columns: str) -> Any:
        selected = {"selected_fields": columns} if columns else {}
        return self._table.scan(**selected) if chosen is None else self._table.scan(chosen, **selected)

    def sums(self, low: int | None = None, high: int | None = None, by: str = "id") -> Sums:
        chosen = None if low is None else _range(low, high, by)
        return sums_of(self._scan(chosen, "user_id", "amount").to_arrow_batch_reader())

    def get(self, key: str, value: int | str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._scan(EqualTo(key, value)).to_arrow().to_pylist()
        return found

    def ids(self) -> Ids:
        return numbers(self._scan(None, "id").to_arrow())

    def delete_range(self, low: int, high: int) -> None:
        self._table.delete(_range(low, high))

    def delete_values(self, column: str, values: Ids) -> None:
        self._table.delete(In(column, values.tolist()))

    def upsert(self, rows: pa.Table, key: str) -> None:
        self._table.upsert(rows, [key])

    def register(self, files: Sequence[str], key: str) -> None:
        import pyarrow.parquet as pq

        self.create(pq.read_schema(files[0]), key)
        self._table.add_files([f"file://{file}" for file in files], check_duplicate_files=False)

    def clean(self) -> None:
        self._table.maintenance.expire_snapshots().older_than(datetime.datetime.now()).commit()

    def files(self) -> int:
        return sum(1 for _ in self._table.scan().plan_files())


def _range(low: int | None, high: int | None, by: str = "id") -> BooleanExpression:
    return And(GreaterThanOrEqual(by, low), LessThan(by, high))

"""DuckLake: DuckDB, with a catalog in PostgreSQL, or in SQLite where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import duckdb_extension_ducklake
import duckdb_extension_httpfs
import duckdb_extension_postgres_scanner
import duckdb_extension_sqlite_scanner
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.peer import Ids, Peer, Sums, numbers, sql_range, sql_value

_EXTENSIONS: tuple[ModuleType, ...] = (
    duckdb_extension_httpfs,
    duckdb_extension_sqlite_scanner,
    duckdb_extension_postgres_scanner,
    duckdb_extension_ducklake,
)
_TYPES = {"int64": "BIGINT", "double": "DOUBLE", "string": "VARCHAR", "timestamp[us, tz=UTC]": "TIMESTAMPTZ"}


class DuckLake(Peer):
    """A connection of DuckDB with the lake attached."""

    name = "ducklake"
    title = "DuckLake (DuckDB)"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"duckdb": duckdb.__version__}

    def open(self) -> None:
        """Attaches the lake; DuckDB itself is started by the first call."""
        connection: duckdb.DuckDBPyConnection | None = getattr(self, "_connection", None)
        if connection is None:
            self._connection = connection = self._start()
        else:
            connection.execute("DETACH lake")
        catalog = f"sqlite:{self.place.catalog}/catalog.sqlite"
        if self.place.postgres is not None:
            catalog = f"postgres:{self.place.postgres}"
        connection.execute(f"ATTACH 'ducklake:{catalog}' AS lake (DATA_PATH '{self.place.url}/')")

    def _start(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect(config={"allow_unsigned_extensions": True})
        for package in _EXTENSIONS:
            assert package.__file__
            [extension] = Path(package.__file__).parent.rglob("*.duckdb_extension")
            connection.execute(f"LOAD '{extension}'")
        if (s3 := self.place.s3) is not None:
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{s3.access_key}', SECRET '{s3.secret_key}', REGION '{s3.region}', "
                f"ENDPOINT '{s3.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
            )
        self.place.catalog.mkdir(parents=True, exist_ok=True)
        return connection

    def create(self, schema: pa.Schema, key: str) -> None:
        self.open()
        columns = ", ".join(f'"{field.name}" {_TYPES[str(field.type)]}' for field in schema)
        self._connection.execute(f"CREATE TABLE lake.events ({columns})")

    def append(self, rows: pa.Table) -> None:
        self._with(rows, "INSERT INTO lake.events BY NAME SELECT * FROM given")

    def _with(self, rows: pa.Table, sql: str) -> None:
        self._connection.register("given", rows)
        self._connection.execute(sql).fetchall()
        self._connection.unregister("given")

    def sums(self, low: int | None = None, high: int | None = None, by: str = "id") -> Sums:
        where = sql_range(low, high, f'"{by}"')  # some names of columns are keywords
        query = f"SELECT count(*), sum(user_id), sum(amount) FROM lake.events{where}"
        [(rows, users, amount)] = self._connection.execute(query).fetchall()
        return Sums(rows, users or 0, amount or 0.0)

    def get(self, key: str, value: int | str) -> list[dict[str, Any]]:
        query = f"SELECT * FROM lake.events WHERE {key} = {sql_value(value)}"
        found: list[dict[str, Any]] = self._connection.execute(query).to_arrow_table().to_pylist()
        return found

    def ids(self) -> Ids:
        return numbers(self._connection.execute("SELECT id FROM lake.events").to_arrow_table())

    def delete_range(self, low: int, high: int) -> None:
        self._connection.execute(f"DELETE FROM lake.events WHERE id >= {low} AND id < {high}").fetchall()

    def delete_values(self, column: str, values: Ids) -> None:
        if len(values) == 1:
            self._connection.execute(f"DELETE FROM lake.events WHERE {column} = {values[0]}").fetchall()
            return
        delete = f"DELETE FROM lake.events WHERE {column} IN (SELECT {column} FROM given)"
        self._with(pa.table({column: values}), delete)

    def upsert(self, rows: pa.Table, key: str) -> None:
        self._with(
            rows,
            f"MERGE INTO lake.events t USING given s ON t.{key} = s.{key} "
            "WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT",
        )

    def register(self, files: Sequence[str], key: str) -> None:
        self.create(pq.read_schema(files[0]), key)
        self._call(f"ducklake_add_data_files('lake', 'events', '{Path(files[0]).parent}/*.parquet')")

    def _call(self, function: str) -> None:
        self._connection.execute(f"CALL {function}").to_arrow_table()

    def compact(self) -> None:
        self._call("ducklake_rewrite_data_files('lake', 'events', delete_threshold => 0.0)")
        self._call("ducklake_merge_adjacent_files('lake')")

    def clean(self) -> None:
        self._call("ducklake_expire_snapshots('lake', older_than => now())")
        self._call("ducklake_cleanup_old_files('lake', cleanup_all => true)")

    def files(self) -> int:
        query = "SELECT count(*) FROM ducklake_list_files('lake', 'events')"
        [(count,)] = self._connection.execute(query).fetchall()
        return int(count)

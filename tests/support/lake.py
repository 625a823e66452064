"""Files as other programs write them: a lake that tables are adopted from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

QUERY = """
    SELECT i::INTEGER AS id, i / 4 AS amount, (1.25 + i)::DECIMAL(9, 2) AS price, 'name ' || i AS name,
        TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (i) MINUTE AS at,
        TIMESTAMP_MS '2026-01-01' + INTERVAL (i) SECOND AS local, DATE '2026-01-01' + i::INTEGER AS day,
        i::UINTEGER AS visits, CASE WHEN i % 5 = 0 THEN NULL ELSE i % 2 = 0 END AS even,
        [i, NULL] AS numbers, {'zip': i, 'city': 'c' || i} AS address, MAP {'a': i} AS labels, 'x'::BLOB AS raw,
        CASE WHEN i % 7 = 0 THEN 'nan'::FLOAT ELSE i::FLOAT END AS weight
    FROM range($first, $end) AS t(i)
"""
"""Rows with a column of each kind."""


def write_duckdb(path: Path, first: int, end: int) -> None:
    """A file of DuckDB's: no notes of Arrow, decimals as integers, times in milliseconds, and several row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = QUERY.replace("$first", str(first)).replace("$end", str(end))
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")


def write_polars(path: Path, first: int, end: int) -> None:
    """A file of Polars', with large strings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame({"id": range(first, end), "name": [f"name {i}" for i in range(first, end)]})
    frame.with_columns(
        kind=pl.Series(["a" if i % 2 else "b" for i in range(first, end)], dtype=pl.Categorical)
    ).write_parquet(path)


def write_plain(path: Path, table: pa.Table, row_group: int = 100) -> None:
    """A file of pyarrow's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group)


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of all files below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

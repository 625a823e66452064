"""Another engine's reader of an Iceberg table that dolmen has published.

``python -m bench.peers.iceberg_reader READER METADATA`` runs in the environment of locks/iceberg.txt, and imports
nothing of dolmen. It prints the seconds of each query, and the sums, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMES = 3


def duckdb_reader(location: str) -> Callable[[], tuple[Any, ...]]:
    """DuckDB's ``iceberg_scan``."""
    import duckdb
    import duckdb_extension_avro
    import duckdb_extension_iceberg

    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    for package in (duckdb_extension_avro, duckdb_extension_iceberg):
        (extension,) = Path(package.__file__).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    query = f"SELECT count(*), sum(user_id), sum(amount) FROM iceberg_scan('{location}')"
    return lambda: connection.execute(query).fetchall()[0]


def polars_reader(location: str) -> Callable[[], tuple[Any, ...]]:
    """Polars' ``scan_iceberg``."""
    import polars as pl

    columns = [pl.len(), pl.col("user_id").sum(), pl.col("amount").sum()]
    return lambda: pl.scan_iceberg(location).select(columns).collect().row(0)


READERS = {"DuckDB": duckdb_reader, "Polars": polars_reader}


def main() -> None:
    """Prints the seconds of each query, and what the last one found."""
    read = READERS[sys.argv[1]](sys.argv[2])
    took, found = list[float](), ()
    for _ in range(TIMES):
        began = time.perf_counter()
        found = read()
        took.append(time.perf_counter() - began)
    rows, users, amount = found
    print(json.dumps({"seconds": took, "answer": [rows, int(users), float(amount)]}))


if __name__ == "__main__":
    main()

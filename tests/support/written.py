"""Data files of the production writer, and helpers to read them without dolmen."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.runtime import Runtime
from dolmen.format.column_terms import parse_sort_key
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema
from dolmen.rows.write.conform import conform
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.runs import WriteOptions
from dolmen.store import MemoryStore

#: Runs of a few thousand rows, so that small tables have many.
SMALL_RUNS = WriteOptions(run_bytes=64 << 10)


def entry_for(schema: pa.Schema, primary_key: Sequence[str] = (), sort_key: Sequence[str] = ()) -> TableEntry:
    """Makes the manifest's entry of a table with this schema."""
    stored = Schema.from_arrow(schema)
    ids = {field.name: field.id for field in stored.fields}
    return TableEntry(
        uuid="0" * 32,
        epoch=1,
        schema=stored,
        primary_key=tuple(ids[name] for name in primary_key),
        sort_key=parse_sort_key(sort_key, stored),
    )


@dataclass(frozen=True)
class Written:
    """Data files in a MemoryStore, with their entries."""

    store: MemoryStore
    entry: TableEntry
    files: list[DataFile]

    def body(self, place: int = 0) -> bytes:
        return self.store.get(self.files[place].path).body

    def parquet(self, place: int = 0, *, page_checksums: bool = True) -> pq.ParquetFile:
        return pq.ParquetFile(io.BytesIO(self.body(place)), page_checksum_verification=page_checksums)

    def rows(self) -> pa.Table:
        """All rows, in the order of the files."""
        return pa.concat_tables(self.parquet(place).read() for place in range(len(self.files)))


def write(
    rows: pa.Table | Iterable[pa.RecordBatch],
    *,
    primary_key: Sequence[str] = (),
    sort_key: Sequence[str] = (),
    options: WriteOptions | None = None,
    batch_rows: int = 1000,
    runtime: Runtime | None = None,
    entry: TableEntry | None = None,
) -> Written:
    """Writes a table, or batches that fit ``entry`` already."""
    if isinstance(rows, pa.Table):
        entry = entry or entry_for(rows.schema, primary_key, sort_key)
        batches = conform(rows.to_reader(max_chunksize=batch_rows), entry.schema)
    else:
        assert entry is not None
        batches = iter(rows)
    runtime = runtime or Runtime()
    store = MemoryStore(runtime=runtime)
    files = write_data_files(store, "events", entry, batches, runtime, options or WriteOptions())
    return Written(store, entry, files)


def events(rows: int, start: int = 0, seed: int = 1) -> pa.Table:
    """The benchmark's rows: increasing id and time, skewed users, two short texts, amounts, and 60 random letters."""
    rng = np.random.default_rng([seed, start])
    ids = np.arange(start, start + rows, dtype=np.int64)
    letters = np.frombuffer(random.Random(seed).randbytes(rows * 60 + 256), np.uint8)[: rows * 60] % 64 + 48
    offsets = np.arange(0, (rows + 1) * 60, 60, dtype=np.int32)
    time = pa.array(1_700_000_000_000_000 + ids * 1000 + rng.integers(0, 900, rows))
    return pa.table(
        {
            "id": ids,
            "user_id": np.exp(rng.uniform(0, np.log(1e9), rows)).astype(np.int64),
            "event_time": time.view(pa.timestamp("us", tz="UTC")),
            "kind": pa.array(["view", "click", "buy", "refund"]).take(
                pa.array(rng.choice(4, rows, p=[0.8, 0.15, 0.04, 0.01]))
            ),
            "country": pa.array([f"C{number:02}" for number in range(40)]).take(pa.array(rng.integers(0, 40, rows))),
            "amount": np.round(rng.exponential(50, rows), 2),
            "payload": pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters.astype(np.uint8))),
        }
    )

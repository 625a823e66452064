"""Appending a sorted table, beside pyarrow writing the same rows with the same settings."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

import dolmen
from bench.dataset import SCHEMA
from bench.measure import Comparison, compare
from bench.places import Local, Ministack
from dolmen.format.schema import Schema
from dolmen.write.encodings import choose
from dolmen.write.options import DEFAULT


def compare_append(where: Local | Ministack, table: pa.Table, rounds: int) -> Comparison:
    """``Table.append`` into a fresh database each time, and a plain ``ParquetWriter``."""
    first = table.slice(0, DEFAULT.run_rows)
    encodings = choose(first.cast(Schema.from_arrow(SCHEMA).arrow), DEFAULT.compression_level)

    def ours() -> None:
        url = where.fresh()
        create(url).append(table)
        where.remove(url)

    def theirs() -> None:
        url = where.fresh()
        filesystem, path = where.filesystem(url)
        filesystem.create_dir(path, recursive=True)
        with (
            filesystem.open_output_stream(f"{path}/plain.parquet") as sink,
            pq.ParquetWriter(
                sink,
                SCHEMA,
                compression="zstd",
                compression_level=DEFAULT.compression_level,
                data_page_version="1.0",
                write_page_index=True,
                write_page_checksum=True,
                bloom_filter_options={"id": {"ndv": 1 << 17, "fpp": 0.03}},
                **encodings.options(),
            ) as writer,
        ):
            writer.write_table(table, row_group_size=1 << 17)
        where.remove(url)

    return compare(ours, theirs, rounds)


def create(url: str) -> dolmen.Table:
    """The table that is measured, in a new database."""
    return dolmen.open(url).create_table("events", SCHEMA, primary_key="id", sort_key="event_time")

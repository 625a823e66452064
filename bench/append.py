"""Appending a sorted table, compared with pyarrow writing the same rows with the same settings."""

from __future__ import annotations

import pyarrow as pa

import dolmen
from bench import plain
from bench.dataset import SCHEMA
from bench.measure import Comparison, compare
from bench.places import Local, Ministack


def compare_append(where: Local | Ministack, table: pa.Table, rounds: int) -> Comparison:
    """``Table.append`` into a fresh database each time, and a plain ``ParquetWriter``."""
    chosen = plain.settings(table)

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
            plain.writer(sink, chosen) as writer,
        ):
            writer.write_table(table, row_group_size=plain.GROUP_ROWS)
        where.remove(url)

    return compare(ours, theirs, rounds)


def create(url: str) -> dolmen.Table:
    """The table that is measured, in a new database."""
    return dolmen.open(url).create_table("events", SCHEMA, primary_key="id", sort_key="event_time")

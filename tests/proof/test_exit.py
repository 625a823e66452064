"""A process that ends right after its work: no thread of Arrow needs the interpreter then.

A thread that lets go of Python's memory needs the interpreter for it. Where that is gone meanwhile, the process is
aborted ("terminate called without an active exception"), after all has been done. Seen once in some hundreds of
processes that read CSV and ended.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.format.del_object import TombstoneObject, add_keys, decode_keys
from dolmen.ingest.formats import parquet_reader
from dolmen.ingest.formats.delimited.csv_reader import DelimitedFile
from dolmen.ingest.formats.delimited.csv_records import Signs
from dolmen.ingest.formats.json.json_values import parse_objects
from dolmen.ingest.formats.source_file import Format, SourceFile

UUID = "0197fbe0-0000-7000-8000-000000000001"
TIMES = 300
"""Enough: as it was before, CSV and keys failed in each run."""


class Watched(bytes):
    """Tells who lets go of it last, after it was to be needed no more."""

    over = False
    late: ClassVar[list[str]] = []

    def __del__(self) -> None:
        if Watched.over and threading.current_thread() is not threading.main_thread():
            Watched.late.append(threading.current_thread().name)


class Reads(io.BytesIO):
    """A file whose bytes tell who lets go of them."""

    def read(self, size: int | None = -1) -> bytes:
        return Watched(super().read(size))


def csv(rows: pa.Table) -> Callable[[], object]:
    body = b"".join(b"%d,%d\n" % (row["k"], row["v"]) for row in rows.to_pylist())
    file = DelimitedFile("rows.csv", rows.column_names, "the header", iter(()), Signs(","))
    return lambda: file.parse(Watched(body), dict.fromkeys(rows.column_names, pa.int64()))


def json_lines(rows: pa.Table) -> Callable[[], object]:
    body = b"".join(b'{"k":%d,"v":%d}\n' % (row["k"], row["v"]) for row in rows.to_pylist())
    return lambda: parse_objects(Watched(body), rows.schema, "error")


def parquet_file(rows: pa.Table) -> Callable[[], object]:
    pq.write_table(rows, sink := io.BytesIO(), row_group_size=100)
    source = SourceFile(partial(Reads, sink.getvalue()), Format("parquet"), "rows.parquet")
    return lambda: list(parquet_reader.read(source, rows.schema))


def keys(rows: pa.Table) -> Callable[[], object]:
    target = TombstoneObject("tombstone/t/0.del", UUID)
    entry = add_keys(target, rows.rename_columns(["1", "2"]))
    body = target.encode()[entry.blob.offset : entry.blob.offset + entry.blob.length]
    return lambda: decode_keys(Watched(body), entry)


@pytest.mark.slow
@pytest.mark.parametrize("reading", [csv, json_lines, parquet_file, keys])
def test_no_thread_of_arrow_lets_go_of_what_has_been_read(reading: Callable[[pa.Table], Callable[[], object]]) -> None:
    read = reading(pa.table({"k": range(1_000), "v": range(1_000, 2_000)}))
    Watched.late.clear()
    for _ in range(TIMES):
        Watched.over = False
        read()
        Watched.over = True
        time.sleep(0.001)  # others may run
    assert not Watched.late

"""Writing takes bounded memory, however much is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dolmen

pytestmark = pytest.mark.slow

#: Above the interpreter with dolmen imported; an upload to S3 may hold 64 MB more.
LIMIT_MB = 300 - 64

MEASURE = """
import sys, threading, time
import psutil
import dolmen
from dolmen.base.runtime import Runtime
from dolmen.store import LocalStore
from dolmen.rows.write.data_file import write_data_files
from support.written import entry_for, events

process, peak, stop = psutil.Process(), 0, threading.Event()

def watch():
    global peak
    while not stop.wait(0.005):
        peak = max(peak, process.memory_info().rss)

def measure(batches, entry, directory):
    base = process.memory_info().rss
    thread = threading.Thread(target=watch)
    thread.start()
    files = write_data_files(LocalStore(directory), "events", entry, batches(), Runtime(cores=2))
    stop.set()
    thread.join()
    print(sum(file.rows for file in files), (peak - base) >> 20)
"""

GENERATED = """
directory, sort_key, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
part = events(65536)
entry = entry_for(part.schema, ["id"], [sort_key])
batch, = part.cast(entry.schema.arrow).combine_chunks().to_batches()
def batches():
    for _ in range(count):
        yield __import__("pyarrow").RecordBatch.from_arrays(  # copied: each batch takes memory of its own
            [c.take(__import__("numpy").arange(len(c))) for c in batch.columns], schema=batch.schema)
measure(batches, entry, directory)
"""

CSV = """
from dolmen.ingest.formats import formats
directory, path, sort_key = sys.argv[1:]
schema = events(1).schema
entry = entry_for(schema, ["id"], [sort_key])
measure(
    lambda: formats.read(formats.SourceFile(lambda: open(path, "rb"), formats.detect(path), path), entry.schema.arrow),
    entry, directory,
)
"""


def run(program: str, *arguments: str) -> tuple[int, int]:
    """Rows written, and by how many MB memory grew at most."""
    tests = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{Path(dolmen.__file__).parent.parent}"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE + program, *arguments], env=environment, check=True, capture_output=True
    )
    rows, grown = map(int, done.stdout.split())
    print(f"{rows:,} rows, {grown} MB")
    return rows, grown


@pytest.mark.parametrize("sort_key", ["event_time", "user_id"])
def test_300_megabytes_of_rows_take_bounded_memory(sort_key: str, tmp_path: Path) -> None:
    rows, grown = run(GENERATED, str(tmp_path), sort_key, "42")
    assert rows == 42 * 65_536
    assert grown < LIMIT_MB


@pytest.mark.skipif(not os.environ.get("DOLMEN_LONG"), reason="a gigabyte of CSV: DOLMEN_LONG=1")
@pytest.mark.parametrize("sort_key", ["event_time", "user_id"])
def test_a_gigabyte_of_csv_takes_less_than_300_megabytes(sort_key: str, tmp_path: Path) -> None:
    from pyarrow import csv

    from support.written import events

    part, path = events(1 << 17), tmp_path / "rows.csv"
    count = 0
    with path.open("wb") as file, csv.CSVWriter(file, part.schema) as writer:
        while file.tell() < 1 << 30:
            writer.write(part)
            count += part.num_rows
    rows, grown = run(CSV, str(tmp_path / "db"), str(path), sort_key)
    assert rows == count
    assert grown < LIMIT_MB

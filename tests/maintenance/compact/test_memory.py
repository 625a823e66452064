"""Compaction takes bounded memory, however large the table, and whatever order its rows are in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dolmen

LIMIT_MB = 512
"""Memory of the whole process, with the interpreter and all libraries."""

PROGRAM = """
import sys, threading
import msgspec, psutil, pyarrow as pa
from dolmen.transactions.transaction import unit_of
from dolmen.commit.statements.row_changes import Write
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.base.runtime import Runtime
from dolmen.store.local_store import LocalStore
from support.tables import World
from support.written import events

directory, sort_key, copies = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
LocalStore.local_path = lambda self, key: None  # as if it were far away
world = World(LocalStore(directory), Runtime(threads=8, cores=2))
world.db.create_table("t", events(1).schema, primary_key="id", sort_key=sort_key)
world.append(events(131_072), group_rows=1 << 16)
(file,) = world.entry().files
body = world.store.get(file.path).body
with world.db.transaction() as tx:
    unit_of(tx).begin_upload()
    files = [msgspec.structs.replace(file, path=f"data/t/2026/copy{n}.parquet") for n in range(copies)]
    for copy in files:
        world.store.put(copy.path, body)
    unit_of(tx).add(Write("t", world.entry().uuid, files=tuple(files)))
del body
pa.default_memory_pool().release_unused()
process, peak, stop = psutil.Process(), 0, threading.Event()

def watch():
    global peak
    while not stop.wait(0.005):
        peak = max(peak, process.memory_info().rss)

thread = threading.Thread(target=watch, daemon=True)
thread.start()
options = CompactionOptions(growth=1, group_bytes=1 << 40, target_file_bytes=1 << 40)
done = compact(world.db._context, "t", options=options)
stop.set()
thread.join()
print(done.rows, done.bytes_in >> 20, done.spilled_bytes >> 20, peak >> 20)
"""


def run(directory: Path, sort_key: str, copies: int) -> tuple[int, int, int, int]:
    """Rows, MB read, MB spilled, and the greatest MB of memory."""
    tests = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{Path(dolmen.__file__).parent.parent}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), sort_key, str(copies)],
        env=environment,
        check=True,
        capture_output=True,
    )
    rows, read, spilled, peak = map(int, done.stdout.split())
    print(f"{rows:,} rows, {read} MB read, {spilled} MB spilled, {peak} MB of memory")
    return rows, read, spilled, peak


@pytest.mark.slow
@pytest.mark.parametrize("sort_key", ["", "user_id"])
def test_compaction_of_more_than_100_megabytes_takes_bounded_memory(sort_key: str, tmp_path: Path) -> None:
    copies = 80 if os.environ.get("DOLMEN_LONG") else 16
    rows, read, spilled, peak = run(tmp_path, sort_key, copies)
    assert rows == (copies + 1) * 131_072
    assert read > 100
    assert (spilled > 50) == bool(sort_key), "what does not fit must go by way of the disk"
    assert peak < LIMIT_MB

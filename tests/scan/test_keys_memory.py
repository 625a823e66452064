"""Unresolved deletes by key take bounded memory, however many keys there are, whatever is done with the table."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import dolmen

LIMIT_MB = 512
"""Memory of the whole process, with the interpreter and all libraries."""

ROWS = 600_000
LONG = bool(os.environ.get("DOLMEN_LONG"))
ALL = ("count", "scan", "verify", "resolve", "compact")
QUICK = ALL[1:]
"""By default all that counts has been verified, by the same process."""
BY_CODES: list[tuple[str, int, Sequence[str]]] = [
    ("string", 2, ("count", "resolve")),
    ("tuple", 2, ("scan", "compact")),
]
"""Texts and tuples are looked up by codes in the same way: by default one of them is drawn."""
DRAWN = BY_CODES if LONG else [random.Random(os.environ["DOLMEN_TEST_SEED"]).choice(BY_CODES)]

CAST = """
import sys
import numpy as np, pyarrow as pa, pyarrow.compute as pc
import dolmen

directory, kind, lists, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
keys = int(sys.argv[5])

def table(numbers):
    numbers = np.asarray(numbers, np.int64)
    mixed = pa.array(numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    text = pc.binary_join_element_wise(mixed.cast(pa.string()), pa.array(numbers).cast(pa.string()), "-user-")
    if kind == "int64":
        return pa.table({"id": numbers})
    if kind == "string":
        return pa.table({"id": text})
    return pa.table({"tenant": pa.array(numbers % 1000, pa.int32()), "id": text})
"""

BUILD = """
db = dolmen.open(directory)
names = table([0]).column_names
t = db.create_table("t", pa.schema([*table([0]).schema, ("v", pa.float64())]), primary_key=names)
rng = np.random.default_rng(1)
ids = rng.integers(0, 2 * lists * keys, rows)
for some in np.split(ids, 2):
    t.append(table(some).append_column("v", pa.array(rng.random(len(some)))))
for n in range(lists):  # each list is spread over all values
    t.delete(keys=table(np.arange(keys) * lists + n), on=names)
print(int((ids >= lists * keys).sum()), len(db._context.head.refresh().manifest.tables["t"].tombstones))
"""

USE = """
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.store.local_store import LocalStore

LocalStore.local_path = lambda self, key: None  # as if it were far away
what = sys.argv[6]
db = dolmen.open(directory)
t = db.table("t")
if what == "count":
    found = t.count()
elif what == "scan":
    found = sum(batch.num_rows for batch in t.scan().to_batches())
elif what == "resolve":
    found = rows - db.resolve()["t"].rows
elif what == "compact":
    done = compact(db._context, "t", options=CompactionOptions(growth=1, group_bytes=1 << 40))
    found = done.rows
elif what == "verify":
    assert db.verify(deep=True).ok
    found = t.count()
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))
print(found, peak)
"""


def run(program: str, *arguments: object) -> list[int]:
    environment = {**os.environ, "PYTHONPATH": str(Path(dolmen.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", CAST + program, *map(str, arguments)], env=environment, check=True, capture_output=True
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lists", "quick"), [("int64", 5, QUICK), *DRAWN])
def test_millions_of_unresolved_keys_take_bounded_memory(
    kind: str, lists: int, quick: Sequence[str], tmp_path: Path
) -> None:
    lists *= 4 if LONG else 1
    directory = tmp_path / "database"
    shape = (directory, kind, lists, ROWS, 1_000_000)
    live, tombstones = run(BUILD, *shape)
    assert tombstones == lists
    copied = tmp_path / "copy"
    shutil.copytree(directory, copied)
    for what in ALL if LONG else quick:
        found, peak = run(USE, copied if what == "compact" else directory, *shape[1:], what)
        print(f"{lists:,} lists of {kind} keys, {what}: {peak} MB of memory")
        assert found == live, what
        assert peak < LIMIT_MB, what
    for done, where in (("resolve", directory), ("compact", copied)):
        if LONG or done in quick:
            assert dolmen.open(where).table("t").count() == live

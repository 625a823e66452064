"""Unresolved deletes by key: of a value that many rows have, and of more keys than memory may hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import dolmen
from bench.measure import Comparison, compare
from bench.places import Local

ROWS = 2_000_000
TENANTS = 20
COUNT = 1.5
"""Target: the ratio of a count after the delete of one tenant to the count of the other rows before it."""
LISTS = (("int64", 20), ("string", 6))
KEYS = 1_000_000
MEMORY_MB = 512

_USE = """
import sys, dolmen
table = dolmen.open(sys.argv[1]).table("t")
if sys.argv[2] == "count":
    table.count()
else:
    dolmen.open(sys.argv[1]).resolve()
with open("/proc/self/status") as status:  # getrusage has the peak of the process that began this one, too
    print(next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM")))
"""


def tenants(where: Local, rounds: int) -> Iterator[tuple[str, Comparison]]:
    """Counts after ``delete({"tenant": 1})``, in turns with counts of the same rows by a predicate before it."""
    rng = np.random.default_rng(5)
    mixed = rng.integers(0, TENANTS, ROWS)
    for name, values in (("one tenant", np.ones(ROWS, np.int64)), ("sorted", np.sort(mixed)), ("mixed", mixed)):
        url = where.fresh()
        table = dolmen.open(url).create_table("t", pa.schema([("id", pa.int64()), ("tenant", pa.int64())]))
        table.append(pa.table({"id": np.arange(ROWS), "tenant": values}))
        clean = where.pointer(url)
        table.delete({"tenant": 1})
        dirty = where.pointer(url)

        def after(url: str = url, dirty: bytes = dirty) -> int:
            where.pointer(url, dirty)
            return dolmen.open(url).table("t").count()

        def before(url: str = url, clean: bytes = clean) -> int:
            where.pointer(url, clean)
            return dolmen.open(url).table("t").count("tenant <> 1")

        assert after() == before()
        yield name, compare(after, before, rounds)
        where.remove(url)


def memory(where: Local) -> Iterator[tuple[str, int, int, int]]:
    """Kind of key, how many, and the MB that a process, interpreter included, takes at most to count and to resolve."""
    for kind, lists in LISTS:
        url = where.fresh()
        table = dolmen.open(url).create_table("t", pa.schema([("id", kind)]), primary_key="id")
        table.append(_keys(kind, np.random.default_rng(6).integers(0, 2 * lists * KEYS, ROWS)))
        for n in range(lists):
            table.delete(keys=_keys(kind, np.arange(KEYS) * lists + n))
        count, resolved = (_peak(url, what) for what in ("count", "resolve"))
        yield kind, lists * KEYS, count, resolved
        where.remove(url)


def _keys(kind: str, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    if kind == "int64":
        return pa.table({"id": numbers})
    mixed = pa.array(numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).cast(pa.string())
    return pa.table({"id": pc.binary_join_element_wise(mixed, pa.array(numbers).cast(pa.string()), "-user-")})


def _peak(url: str, what: str) -> int:
    command = [sys.executable, "-c", _USE, url, what]
    return int(subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1]).stdout)

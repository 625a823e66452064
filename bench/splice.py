"""Compaction of a table in which few row groups have deleted rows: copying the others, or encoding all again.

``python -m bench.splice``: counts bytes and requests of both exactly, and compares processor time within one run.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.console import Console

import dolmen
from bench.dataset import SCHEMA, events
from bench.places import Local, Ministack, place
from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.base.runtime import shared_runtime
from dolmen.commit.head import Context
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen_simulator.counting import CountingStore

CASES = {
    "1 % of the row groups have a deleted row": 0.01,
    "10 % of them have": 0.1,
    "every row group has": 1.0,
}


@dataclass(frozen=True)
class Cost:
    """The cost of one compaction."""

    copied: int
    down: int
    up: int
    gets: int
    copies: int
    cpu_seconds: float


def measured(database: Database, options: CompactionOptions) -> Cost:
    """Compacts, and counts."""
    counted = CountingStore(database._context.store)
    context = Context(counted, shared_runtime(), Database(counted, shared_runtime())._context.head)
    began = _cpu_seconds()
    done = compact(context, "events", options=options)
    return Cost(
        done.bytes_copied, counted.bytes_down, counted.bytes_up, counted.gets, counted.copies, _cpu_seconds() - began
    )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def compare(where: Local | Ministack, rows: int, share: float, rounds: int) -> tuple[list[Cost], list[Cost]]:
    """Both ways on the same table, in turns. Deletes one row in each of some row groups, and rewrites the file."""
    url = where.fresh()
    database = dolmen.open(url)
    table = database.create_table("events", SCHEMA, primary_key="id", sort_key="event_time")
    table.append(events(rows))
    compact(database._context, "events", options=CompactionOptions(deleted_share=-1.0))
    file_rows, groups = _row_groups(database)
    chosen = np.random.default_rng(7).choice(groups, max(1, round(groups * share)), replace=False)
    ids = [int(file_rows * (group + 0.5) / groups) for group in chosen]
    table.delete(f"id IN ({', '.join(map(str, ids))})", mode="positions")
    dirty = where.pointer(url)
    options = CompactionOptions(deleted_share=0.0)
    found: tuple[list[Cost], list[Cost]] = ([], [])
    for _ in range(rounds):
        for costs, splice_bytes in zip(found, (options.splice_bytes, 0), strict=True):
            where.pointer(url, dirty)
            costs.append(measured(dolmen.open(url), replace(options, splice_bytes=splice_bytes)))
    where.remove(url)
    return found


def _row_groups(database: Database) -> tuple[int, int]:
    """Rows and row groups of all files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = database._context.store
    files = database._context.head.refresh().manifest.table("events").files
    footers = [pq.read_metadata(pa.BufferReader(store.get(file.path).body)) for file in files]
    return sum(footer.num_rows for footer in footers), sum(footer.num_row_groups for footer in footers)


def _median(costs: list[Cost], what: Callable[[Cost], float]) -> float:
    return float(np.median([what(cost) for cost in costs]))


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.splice", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--places", nargs="+", default=["local", "ministack"])
    chosen = parser.parse_args()
    console = Console()
    for name in chosen.places:
        with place(name) as where:
            for case, share in CASES.items():
                spliced, encoded = compare(where, chosen.rows, share, chosen.rounds)
                one, other = spliced[0], encoded[0]
                ratio = _median(spliced, lambda cost: cost.cpu_seconds) / _median(encoded, lambda c: c.cpu_seconds)
                console.print(
                    f"{name}, {chosen.rows:,} rows, {case}: {one.copied:,} bytes copied in {one.copies} ranges; "
                    f"down {one.down:,} beside {other.down:,} bytes ({one.down / other.down:.3f}), "
                    f"up {one.up:,} beside {other.up:,} ({one.up / other.up:.3f}), "
                    f"GETs {one.gets} beside {other.gets}, processor time {ratio:.3f}",
                    soft_wrap=True,
                )


if __name__ == "__main__":
    main()

"""Background work: compaction compared with pyarrow's reading and writing, and scans after many small deletes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import dolmen
from bench import plain, scans
from bench.dataset import SCHEMA
from bench.measure import Comparison, compare
from bench.places import Local, Ministack
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.resolution import resolve

FILES = 24
DELETES = 10_000

#: Targets, as ratios (less is better): 1 / 0.7 of pyarrow's time, and of a scan of the clean table.
COMPACTION = 1 / 0.7
UNRESOLVED = 3.0
RESOLVED = 1.4
COMPACTED = 1.05


@dataclass(frozen=True)
class Result:
    """One line: what was measured, how it compares, and the target (None: no target)."""

    name: str
    found: Comparison
    target: float | None


def maintenance(where: Local | Ministack, table: pa.Table, rounds: int) -> Iterator[Result]:
    """Everything, in a table of ``FILES`` files."""
    in_order = partial(_pieces, table)
    yield Result(
        "compaction, files in the order of the sort key",
        _compare_compaction(where, table, in_order, "event_time", rounds),
        COMPACTION,
    )
    yield Result(
        "compaction, every file spans the whole range of the sort key (compared with: all rows sorted in memory)",
        _compare_compaction(where, table, in_order, "user_id", rounds),
        None,
    )
    yield from _after_deletes(where, table, rounds)


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    step = -(-table.num_rows // FILES)
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step)


def _create(url: str, sort_key: str, pieces: Callable[[], Iterator[pa.Table]]) -> dolmen.Table:
    table = dolmen.open(url).create_table("events", SCHEMA, primary_key="id", sort_key=sort_key)
    for piece in pieces():
        table.append(piece)
    return table


def _compact(url: str, growth: int = 1) -> None:
    """Makes one file of all."""
    done = compact(dolmen.open(url)._context, "events", options=CompactionOptions(growth=growth, group_bytes=1 << 40))
    assert done.groups == 1, done


def _compare_compaction(
    where: Local | Ministack,
    table: pa.Table,
    pieces: Callable[[], Iterator[pa.Table]],
    sort_key: str,
    rounds: int,
) -> Comparison:
    url = where.fresh()
    _create(url, sort_key, pieces)
    dirty = where.pointer(url)
    filesystem, path = where.filesystem(url)
    inputs = ds.dataset(f"{path}/data", filesystem=filesystem, format="parquet").files
    chosen = plain.settings(table)

    def ours() -> None:
        where.pointer(url, dirty)
        _compact(url)

    def theirs() -> None:
        with (
            filesystem.open_output_stream(f"{path}/plain.parquet") as sink,
            plain.writer(sink, chosen) as writer,
        ):
            tables = (pq.read_table(f, filesystem=filesystem, page_checksum_verification=True) for f in inputs)
            if sort_key == "user_id":
                tables = iter([pa.concat_tables(tables).sort_by(sort_key)])
            for rows in tables:
                writer.write_table(rows.cast(SCHEMA), row_group_size=plain.GROUP_ROWS)

    found = compare(ours, theirs, rounds)
    where.remove(url)
    return found


def _after_deletes(where: Local | Ministack, table: pa.Table, rounds: int) -> Iterator[Result]:
    """The same scan after ``DELETES`` deletes of one user each, at every stage of clearing them up."""
    url = where.fresh()
    _create(url, "event_time", lambda: iter([table]))
    clean = where.pointer(url)
    users = np.random.default_rng(3).choice(np.unique(table["user_id"].to_numpy()), DELETES, replace=False)
    db = dolmen.open(url)
    for some in np.array_split(users, 20):
        with db.transaction() as tx:
            for user in some.tolist():
                tx.table("events").delete(keys=[user], on=["user_id"])
    unresolved = where.pointer(url)
    resolve(db._context, "events")
    resolved = where.pointer(url)
    options = CompactionOptions(deleted_share=0.0)
    assert compact(db._context, "events", options=options).groups
    compacted = where.pointer(url)

    def scan(pointer: bytes) -> None:
        where.pointer(url, pointer)
        scans.ours(url)

    stages = {
        "not resolved": (unresolved, UNRESOLVED),
        "resolved": (resolved, RESOLVED),
        "compacted": (compacted, COMPACTED),
    }
    for name, (pointer, target) in stages.items():
        found = compare(partial(scan, pointer), partial(scan, clean), rounds)
        yield Result(
            f"scan after {DELETES:,} deletes of one user each, {name} (compared with: before them)", found, target
        )
    where.remove(url)

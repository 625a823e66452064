"""Random histories with maintenance in between hold the same rows as without, and DuckDB reads the files."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.resolution import resolve
from dolmen.store import LocalStore
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.random_predicates import random_predicate
from support.random_tables import random_table

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES = 400 if os.environ.get("DOLMEN_LONG") else 5
STEPS = 25
ROWS = 60


class History:
    """The same calls on two databases, one of which is maintained in between. ``rid`` is the primary key."""

    def __init__(self, seed: int, seen: Counter[str], directory: Path | None = None) -> None:
        self.rng, self.seen, self.directory = random.Random(seed), seen, directory
        self.pool = random_table(self.rng, ROWS)
        names = [field.name for field in self.pool.schema if not pa.types.is_nested(field.type)]
        schema = self.pool.schema.insert(0, pa.field("rid", pa.int64(), nullable=False))
        sort_key = [None, ["rid"], self.rng.sample(names, min(self.rng.randint(1, 2), len(names)))][seed % 3]
        self.plain = Database(MemoryStore(MemoryBucket(), Runtime()), Runtime())
        store = LocalStore(str(directory)) if directory else MemoryStore(MemoryBucket(), Runtime())
        self.kept = Database(store, Runtime(random=random.Random(seed), threads=self.rng.choice([1, 4])))
        if seed % 2:
            self.kept.set(root_bytes="16KB")
        self.tables = [
            db.create_table("t", schema, primary_key="rid", sort_key=sort_key) for db in (self.plain, self.kept)
        ]
        self.next_rid = 0
        self.versions: dict[int, tuple[int, list[int]]] = {}  # of the maintained one: the plain one's, and its times

    def run(self) -> None:
        steps = [self.append, self.upsert, self.delete, self.transaction, self.maintain]
        for _ in range(STEPS):
            self.rng.choices(steps, [4, 2, 5, 2, 4])[0]()
            if self.rng.random() < 0.3:
                self.versions[self.kept.version] = (self.plain.version, self.times())
        self.finish()
        for version, (plain, _) in self.versions.items():
            assert self.rows(1, version) == self.rows(0, plain), f"version {version}"

    def finish(self) -> None:
        """What has to happen in each history: everything is resolved, and overlapping files are made one."""
        for table in self.tables:
            table.delete(keys=[self.next_rid])
        self.resolve(lambda: False)
        self.append(3)
        last = self.next_rid - 1
        self.upsert([0, last + 1])  # in the order of rid this file is around the other
        whole = CompactionOptions(growth=1, target_file_bytes=1 << 30, memory_bytes=1, run_bytes=1 << 10)
        self.compact(lambda: False, whole)
        for table in self.tables:
            table.delete(f"rid = {last}", mode="positions")
        self.compact(lambda: False, CompactionOptions(deleted_share=0.0, row_group_bytes=1, splice_bytes=1))

    def append(self, count: int = 0) -> None:
        rows = self.rows_of(range(self.next_rid, self.next_rid + (count or self.rng.randint(1, 30))))
        self.next_rid += rows.num_rows
        for table in self.tables:
            table.append(rows)

    def upsert(self, rids: Sequence[int] = ()) -> None:
        rows = self.rows_of(rids or self.rng.sample(range(self.next_rid + 1), min(self.next_rid + 1, 5)))
        for table in self.tables:
            table.upsert(rows)

    def delete(self) -> None:
        where = random_predicate(self.rng, self.pool)
        kind = self.rng.choice(["where", "positions", "keys", "keys of a column"])
        keys = self.rng.sample(range(self.next_rid + 5), 4)
        for table in self.tables:
            if kind == "keys":
                table.delete(keys=keys)
            elif kind == "keys of a column":
                table.delete(f"rid IN ({', '.join(map(str, keys[:2]))})")
            else:
                table.delete(where, mode="positions" if kind == "positions" else "tombstone")

    def transaction(self) -> None:
        """Append k, delete k, append k: one version, in which the second one is left."""
        rid = self.rng.randrange(self.next_rid + 1)
        self.next_rid = max(self.next_rid, rid + 1)
        first, second = self.rows_of([rid]), self.rows_of([rid])
        for db in (self.plain, self.kept):
            with db.transaction() as tx:
                tx.table("t").append(first)
                tx.table("t").delete(keys=[rid])
                tx.table("t").append(second)

    def maintain(self) -> None:
        stop = iter([False] * self.rng.randint(1, 6))
        if self.rng.random() < 0.5:
            self.resolve(lambda: next(stop, True))
            return
        options = CompactionOptions(
            growth=self.rng.choice([1, 2, 4]),
            target_file_bytes=self.rng.choice([8 << 10, 64 << 10, 1 << 20]),
            group_bytes=self.rng.choice([16 << 10, 1 << 30]),
            memory_bytes=self.rng.choice([2 << 10, 1 << 20]),
            run_bytes=self.rng.choice([4 << 10, 1 << 20]),
            row_group_bytes=1,
            splice_bytes=self.rng.choice([0, 1, 1]),
        )
        self.compact(lambda: next(stop, True), options)

    def resolve(self, deadline: Callable[[], bool]) -> None:
        done = resolve(self.kept._context, "t", deadline=deadline)
        self.seen["resolutions"] += done.commits
        self.seen["tombstones dropped"] += done.dropped
        self.check()

    def compact(self, deadline: Callable[[], bool], options: CompactionOptions) -> None:
        done = compact(self.kept._context, "t", deadline=deadline, options=options)
        self.seen["groups"] += done.groups
        self.seen["spilled"] += done.spilled_bytes > 0
        self.seen["spliced"] += done.bytes_copied > 0
        self.check()

    def check(self) -> None:
        assert self.rows(1) == self.rows(0)
        expected = {time: n for n, time in enumerate(sorted(set(self.times(0))))}
        found = {time: n for n, time in enumerate(sorted(set(self.times(1))))}
        assert [found[t] for t in self.times(1)] == [expected[t] for t in self.times(0)], "_commit_ts"

    def rows(self, which: int, version: int | None = None) -> str:
        table = self.tables[which]
        found = (table if version is None else table.at(version=version)).scan(order_by="rid").to_arrow()
        columns = (c.cast(pa.int64()) if pa.types.is_temporal(c.type) and c.type.bit_width == 64 else c for c in found)
        return repr(sorted(zip(*(_texts(column) for column in columns), strict=True)))

    def times(self, which: int = 1) -> list[int]:
        """Commit timestamps in the order of the rows."""
        found = self.tables[which].scan(["rid"], with_commit_ts=True).to_arrow().to_pylist()
        return [row["_commit_ts"] for row in sorted(found, key=lambda row: (row["rid"], row["_commit_ts"]))]

    def rows_of(self, rids: object) -> pa.Table:
        chosen = list(rids)  # type: ignore[call-overload]
        places = [self.rng.randrange(ROWS) for _ in chosen]
        return self.pool.take(pa.array(places, pa.int64())).add_column(0, "rid", pa.array(chosen, pa.int64()))


def _texts(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return [repr(value) for value in column.to_pylist()]


@pytest.mark.slow
def test_histories_with_and_without_maintenance_hold_the_same_rows() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    seen: Counter[str] = Counter()
    for number in range(HISTORIES):
        seed = SEED * 1_000_003 + number
        try:
            History(seed, seen).run()
        except Exception as error:
            raise AssertionError(f"history {seed}: {error!r}") from error
    print(dict(seen))
    assert min(seen[kind] for kind in ("resolutions", "tombstones dropped", "groups")) >= HISTORIES
    assert seen["spilled"] >= HISTORIES // 4
    assert seen["spliced"] >= HISTORIES // 10


@pytest.mark.slow
def test_duckdb_reads_what_a_history_has_left(tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    history = History(SEED, Counter(), tmp_path)
    history.run()
    (file,) = history.kept._context.head.refresh().manifest.table("t").files
    found = duckdb.sql(f"SELECT rid, _commit_ts FROM '{tmp_path / file.path}' ORDER BY ALL").fetchall()
    assert [time for _, time in found] == history.times()
    assert [rid for rid, _ in found] == sorted(history.tables[0].scan(["rid"]).to_arrow()["rid"].to_pylist())

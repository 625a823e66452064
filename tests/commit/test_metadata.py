"""What a thousand small commits upload beside their rows, and what a reader fetches after them: counted exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.base.units import KIB
from dolmen.commit.change import Change
from dolmen.commit.loop import commit
from dolmen.commit.root_budget import LEAST_ENTRIES, MOST_MERGED
from dolmen.commit.statements.row_changes import Write
from dolmen.commit.uploads import PendingUploads
from dolmen.format.manifest import HISTORY_LENGTH, SHORT_HISTORY, Segment
from dolmen.rows.scan.scan import plan_of
from dolmen.store.base import Buffer, PutOutcome
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

COMMITS = 1_000 if os.environ.get("DOLMEN_LONG") else 400
FIRST_US = 1_767_225_600_000_000


class Metered(CountingStore):
    """Counts what is put, by the first part of its key."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.sizes: dict[str, list[int]] = {}

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        self.sizes.setdefault(key.split("/")[0], []).append(len(body))
        return super().put(key, body, if_match=if_match)


@dataclass
class Small:
    """A table in memory to which small commits are made.

    Args:
        width: the number of its columns, all with bounds.
    """

    width: int
    bucket: MemoryBucket = field(default_factory=MemoryBucket)

    def __post_init__(self) -> None:
        self.store, self.db = self._open()
        self.name = f"t{len(self.db.tables())}"
        time = pa.array(range(FIRST_US, FIRST_US + 1_000)).cast(pa.timestamp("us", tz="UTC"))
        numbers = [pa.array(range(number * 10**9, number * 10**9 + 1_000)) for number in range(1, self.width)]
        names = ["event_time", *(f"c{number}" for number in range(1, self.width))]
        rows = pa.table([time, *numbers], names=names)
        self.db.create_table(self.name, rows.schema, sort_key="event_time").append(rows)
        self.entry = self.db._context.head.refresh().manifest.table(self.name)
        self.store.reset()
        self.store.sizes.clear()

    def _open(self) -> tuple[Metered, Database]:
        store = Metered(MemoryStore(self.bucket))
        return store, Database(store, Runtime(threads=1))

    def append(self, request: str | None = None) -> None:
        """Commits another file of 1,000 rows. Its object is not there, as nobody reads it."""
        context, entry = self.db._context, self.entry
        path = f"data/{self.name}/2026/01/01/00/{context.runtime.uuid()}.parquet"
        write = Write(
            self.name, entry.uuid, files=(msgspec.structs.replace(entry.files[0], path=path),), request=request
        )
        applied = {request: "0123456789abcdef0123456789abcdef"} if request else {}
        change = Change(context.runtime.uuid(), "append", (write,), applied)
        commit(context.head, change, PendingUploads(context.store, context.runtime, context.segments))

    def reopen(self) -> None:
        """Forgets all that the process knew."""
        self.store, self.db = self._open()

    def segments(self) -> Iterator[Segment]:
        """Those of the newest version."""
        manifest = self.db._context.head.refresh().manifest
        yield from manifest.segments
        yield from manifest.table(self.name).segments

    def figures(self, commits: int) -> tuple[float, float]:
        """KB of manifests, pointers and segments a commit, and PUTs of segments a commit, since the beginning."""
        sizes = self.store.sizes
        metadata = sum(sum(sizes.get(kind, ())) for kind in ("manifest", "segment", "_latest_manifest"))
        assert len(sizes["manifest"]) == len(sizes["_latest_manifest"]) == commits
        return metadata / commits / KIB, len(sizes.get("segment", ())) / commits


@pytest.mark.slow
@pytest.mark.parametrize("width", [4, 10, 20])
def test_a_small_append_uploads_little_beside_its_rows(width: int) -> None:
    small = Small(width)
    for _ in range(COMMITS):
        small.append()
    size, more = small.figures(COMMITS)
    assert size <= 32
    assert more <= 0.05
    assert max(small.store.sizes["manifest"]) <= 56 * KIB
    assert small.store.gets == 0, "the process knows what it has written"


@pytest.mark.slow
def test_a_small_delete_uploads_little_beside_its_record() -> None:
    small = Small(10)
    for number in range(COMMITS):
        small.db.table(small.name).delete(f"c1 > {number} AND c2 < {number}")
    size, more = small.figures(COMMITS)
    assert size <= 32
    assert more <= 0.05
    assert small.store.gets == 0


def test_ids_of_requests_leave_as_history_and_files_do() -> None:
    small = Small(4)
    for number in range(COMMITS):
        small.append(f"landing/t/2026/01/01/{number:08d}.csv")
    size, more = small.figures(COMMITS)
    assert size <= 32
    assert more <= 0.05
    assert {segment.kind for segment in small.segments()} >= {"files", "history", "applied"}


@pytest.mark.slow
def test_later_commits_upload_no_more_than_earlier_ones() -> None:
    small = Small(4)
    for _ in range(max(COMMITS, 600)):
        small.append()
    sizes = small.store.sizes["manifest"]
    assert max(sizes[-200:]) <= 1.1 * max(sizes[200:400])
    assert sum(sizes[-200:]) <= 1.1 * sum(sizes[200:400])


def test_a_first_plan_fetches_few_segments_though_nothing_was_merged() -> None:
    small = Small(4)
    for number in range(1, COMMITS + 1):
        small.append()
        if number % 200:
            continue
        files = [segment for segment in small.segments() if segment.kind == "files"]
        assert len(files) <= 1 + number // 400
        assert all(segment.count <= MOST_MERGED for segment in files)
        small.reopen()
        assert len(plan_of(small.db.table(small.name).scan()).files) == number + 1
        assert small.store.gets == 2 + len(files)


def test_a_small_table_stays_in_one_object_while_others_are_written() -> None:
    small = Small(4)
    for _ in range(LEAST_ENTRIES - 2):
        small.append()
    other = Small(4, small.bucket)
    assert other.name != small.name
    for _ in range(COMMITS):
        other.append()
    small.reopen()
    assert len(plan_of(small.db.table(small.name).scan()).files) == LEAST_ENTRIES - 1
    assert small.store.gets == 2


def test_a_database_with_a_budget_of_its_own_fills_its_root() -> None:
    small = Small(4)
    small.db.set(root_bytes="80KB")
    while not any(small.segments()):
        small.append()
        assert len(small.db._context.head.newest().manifest.history) < COMMITS
    assert small.store.sizes["manifest"][-2] > 79 * KIB
    assert len(small.db._context.head.newest().manifest.history) >= HISTORY_LENGTH


def test_every_manifest_tells_of_the_last_commits() -> None:
    small = Small(4)
    versions = []
    for _ in range(300):
        small.append()
        manifest = small.db._context.head.newest().manifest
        versions.append(len(manifest.history))
        assert [entry.version for entry in manifest.history] == [*range(manifest.version)][-len(manifest.history) :]
    assert min(versions[20:]) >= SHORT_HISTORY
    assert any(now < before for before, now in pairwise(versions))

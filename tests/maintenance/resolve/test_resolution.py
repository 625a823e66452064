"""Tombstones become deletion vectors: nobody sees a difference, and scans have less to do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.format.del_object import decode_vector
from dolmen.format.manifest import Counts
from dolmen.maintenance import resolution
from dolmen.maintenance.resolution import Resolved, resolve
from dolmen.rows.scan.data_objects import Range, coalesce
from dolmen.store.base import Object
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore
from support.tables import World
from support.written import events


class RecordingStore(CountingStore):
    """Remembers which range of which object was read."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.ranges: list[tuple[str, tuple[int, int] | None]] = []

    def get(self, key: str, byte_range: tuple[int, int] | None = None, **rest: Any) -> Object:
        self.ranges.append((key, byte_range))
        return super().get(key, byte_range, **rest)


def world(rows: int = 400, files: int = 4) -> World:
    """Ids from 0 on in files of row groups of 10."""
    found = World()
    ids = np.arange(rows)
    found.create(pa.table({"id": ids, "user": ids % 7, "text": [f"t{n}" for n in ids]}), files=files, key=["id"])
    return found


def run(found: World, **options: Any) -> Resolved:
    return resolve(found.db._context, "t", **options)


def ids(found: World) -> list[object]:
    return sorted(row["id"] for row in found.rows())  # type: ignore[type-var]


def positions(found: World) -> dict[str, set[int]]:
    """Deleted positions by file, read without dolmen's scans."""
    read = {}
    for file in found.entry().files:
        if file.vector:
            end = file.vector.offset + file.vector.length
            body = found.store.get(file.vector.object, (file.vector.offset, end)).body
            read[file.uuid] = set(decode_vector(body, file.vector, file.rows))
    return read


def test_where_and_keys_become_positions_and_the_tombstones_go() -> None:
    found = world()
    table = found.db.table("t")
    table.delete("user = 3 AND id < 150")
    table.delete(keys=[5, 6, 301])
    expected = ids(found)
    done = run(found)
    assert (done.tombstones, done.dropped, done.finished, done.commits) == (2, 2, True, 1)
    assert (done.looked_at, done.changed) == (4, 3)
    assert done.rows == 400 - len(expected)
    assert found.entry().tombstones == ()
    assert found.manifest.data_change is False
    assert ids(found) == expected
    assert table.count() == len(expected)
    assert all(file.applied_through < found.manifest.commit_ts for file in found.entry().files)
    for shown in (repr(done), done._repr_html_()):
        assert "2 of 2" in shown


def test_positions_are_those_of_the_file_however_many_row_groups_are_skipped() -> None:
    """A position counted after a filter or a skipped row group deletes another row."""
    found = world(300, files=1)
    found.db.table("t").delete("id = 5", mode="positions")
    found.db.table("t").delete("id BETWEEN 110 AND 119 OR id IN (7, 255)")
    found.db.table("t").delete(keys=[256, 299])
    run(found)
    (file,) = found.entry().files
    assert positions(found) == {file.uuid: {5, 7, *range(110, 120), 255, 256, 299}}


def test_a_second_resolution_has_nothing_to_do_and_makes_no_version() -> None:
    found = world()
    found.db.table("t").delete("user = 3")
    run(found)
    version = found.manifest.version
    done = run(found)
    assert (done.tombstones, done.commits, done.finished) == (0, 0, True)
    assert found.manifest.version == version


def test_what_statistics_prove_is_not_read() -> None:
    found = world(400, files=4)
    found.db.table("t").delete("id >= 300")
    found.db.table("t").delete("id BETWEEN 1000 AND 2000")
    found.store.reset()  # type: ignore[attr-defined]
    done = run(found)
    assert (done.read, done.bytes_read, done.rows, done.changed) == (0, 0, 100, 1)
    assert found.store.gets == 1  # type: ignore[attr-defined] # the pointer
    assert positions(found) == {found.entry().files[3].uuid: set(range(100))}


def test_only_the_columns_that_predicates_name_are_read() -> None:
    store = RecordingStore(MemoryStore())
    found = World(store)
    rows = events(120_000)
    found.create(rows, group_rows=40_000, key=["id"])
    found.db.table("t").delete("user_id BETWEEN 100 AND 1000")
    found.db.table("t").delete(keys=pa.table({"user_id": [5, 77, 123_456]}), on=["user_id"])
    (file,) = found.entry().files
    fresh = Database(store, found.runtime)  # its cache is empty
    store.ranges.clear()
    done = resolve(fresh._context, "t")
    read = [byte_range for key, byte_range in store.ranges if key == file.path]
    metadata = pq.read_metadata(pa.BufferReader(store.get(file.path).body))
    chunks = [metadata.row_group(group).column(1) for group in range(3)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    wanted = [Range(start, start + c.total_compressed_size) for start, c in zip(starts, chunks, strict=True)]
    assert read == [(file.footer[0], file.size + 1), *map(tuple, coalesce(wanted))]
    assert len(coalesce(wanted)) == 3, "far enough apart to tell"
    assert done.bytes_read == sum(each.length for each in wanted)
    users = rows["user_id"].to_numpy()
    hidden = ((users >= 100) & (users <= 1000)) | np.isin(users, [5, 77, 123_456])
    assert positions(found) == {file.uuid: set(np.flatnonzero(hidden).tolist())}


@pytest.mark.slow
def test_thousands_of_deletes_of_one_key_each_are_one_pass_over_each_file() -> None:
    """Debt that makes every scan slow is paid at once."""
    found = world(4_000, files=4)
    table = found.db.table("t")
    gone = list(range(0, 4_000, 4))
    with found.db.transaction() as tx:
        for key in gone:
            tx.table("t").delete(keys=[key])
    assert len(found.entry().tombstones) == len(gone)
    fresh = Database(found.store, found.runtime)
    found.store.reset()  # type: ignore[attr-defined]
    done = resolve(fresh._context, "t")
    assert (done.dropped, done.rows, done.read, done.commits) == (len(gone), len(gone), 4, 1)
    assert found.store.gets <= 2 + 4 + 1  # type: ignore[attr-defined] # pointer, manifest, each file, pointer
    assert table.count() == 3_000


def test_kinds_of_deletes_see_each_other() -> None:
    """Rows deleted twice, in different ways, are counted once."""
    found = world(100, files=2)
    table = found.db.table("t")
    table.delete("id < 10", mode="positions")
    table.delete("id < 20")
    table.delete(keys=[5, 15, 25])
    done = run(found)
    assert done.rows == 11
    table.delete("id < 30", mode="positions")
    assert ids(found) == list(range(30, 100))
    assert sum(file.live_rows for file in found.entry().files) == 70


def test_a_row_that_came_after_the_delete_stays() -> None:
    """Also when all of it was one transaction."""
    found = world(20, files=1)
    row = pa.table({"id": [3], "user": [0], "text": ["again"]})
    with found.db.transaction() as tx:
        tx.table("t").append(row)
        tx.table("t").delete(keys=[3])
        tx.table("t").append(row)
    run(found)
    assert [r["text"] for r in found.rows() if r["id"] == 3] == ["again"]
    assert found.entry().tombstones == ()


def meanwhile(monkeypatch: pytest.MonkeyPatch, module: Any, act: Callable[[], object]) -> None:
    """Lets somebody commit between what a job has read and its own commit, once."""
    real, acted = module.submit, []

    def submit(*arguments: Any, **options: Any) -> Any:
        if not acted:
            acted.append(True)
            act()
        return real(*arguments, **options)

    monkeypatch.setattr(module, "submit", submit)


def test_a_delete_that_lands_meanwhile_is_neither_lost_nor_taken_for_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(100, files=2)
    found.db.table("t").delete("id < 5")
    other = Database(found.store, found.runtime).table("t")

    def act() -> None:
        other.delete("id BETWEEN 50 AND 59")
        other.delete("id = 70", mode="positions")
        other.append(pa.table({"id": [3], "user": [0], "text": ["new"]}))

    meanwhile(monkeypatch, resolution, act)
    done = run(found)
    assert (done.dropped, done.rows) == (1, 5)
    assert len(found.entry().tombstones) == 1
    assert ids(found) == [3, *range(5, 50), *range(60, 70), *range(71, 100)]
    run(found)
    assert found.entry().tombstones == ()
    assert ids(found) == [3, *range(5, 50), *range(60, 70), *range(71, 100)]


def test_a_table_that_was_made_anew_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(100, files=2)
    found.db.table("t").delete("id < 5")
    other = Database(found.store, found.runtime)

    def act() -> None:
        other.drop_table("t")
        other.create_table("t", pa.schema([("id", pa.int64())])).append(pa.table({"id": [1, 2]}))

    meanwhile(monkeypatch, resolution, act)
    done = run(found)
    assert (done.commits, done.finished) == (0, False)
    assert ids(found) == [1, 2]


def test_rows_that_a_restore_brings_back_meanwhile_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restored files are those that were resolved, with the pairs of then and no tombstone."""
    found = world(100, files=2)
    version = found.db.refresh()
    found.db.table("t").delete("id < 5")
    other = Database(found.store, found.runtime).table("t")
    meanwhile(monkeypatch, resolution, lambda: other.restore(version))
    done = run(found)
    assert (done.commits, done.finished) == (0, False)
    assert ids(found) == list(range(100))


def test_a_call_that_must_stop_commits_what_it_has_and_the_next_goes_on() -> None:
    found = world(400, files=8)
    found.db.table("t").delete("user = 3")
    expected = ids(found)
    asked = itertools.count()
    first = run(found, deadline=lambda: next(asked) >= 3)
    assert (first.finished, first.read, first.dropped) == (False, 3, 0)
    assert sum(file.vector is not None for file in found.entry().files) == 3
    assert ids(found) == expected
    second = run(found)
    assert (second.finished, second.read, second.dropped) == (True, 5, 1)
    assert ids(found) == expected
    assert run(found, deadline=lambda: True).finished


def test_a_budget_bounds_what_a_call_reads() -> None:
    found = world(400, files=8)
    found.db.table("t").delete("user = 3")
    rounds = 0
    while not (done := run(found, budget_bytes=1)).finished:
        assert done.read == 1
        rounds += 1
    assert rounds == 7


def test_many_files_are_several_commits() -> None:
    found = world(400, files=10)
    found.db.table("t").delete("user = 3")
    expected = ids(found)
    done = run(found, batch_files=4)
    assert (done.commits, done.dropped, done.changed) == (3, 1, 10)
    assert len({file.vector.object for file in found.entry().files if file.vector}) == 3, "one object a commit"
    assert ids(found) == expected


def test_tombstones_go_from_a_table_without_files() -> None:
    found = World()
    found.db.create_table("t", pa.schema([("id", pa.int64())]))
    found.db.table("t").delete("id = 4")
    assert len(found.entry().tombstones) == 1
    assert (run(found).dropped, found.entry().tombstones) == (1, ())


def test_files_in_segments_are_resolved_too() -> None:
    """A segment all of whose files are done says so itself: their entries are not touched one by one."""
    store = MemoryStore(MemoryBucket(), Runtime())
    found = World(store)
    ids_ = np.arange(600)
    found.db.set(root_bytes="16KB")
    found.create(pa.table({"id": ids_, "user": ids_ % 7, "text": [f"t{n}" for n in ids_]}), files=60, key=["id"])
    assert found.entry().segments_of("files"), "there must be something to look at"
    table = found.db.table("t")
    table.delete(keys=[3, 100, 599])
    table.delete("user = 6 AND id < 50")
    expected = ids(found)
    done = run(found)
    assert (done.tombstones, done.dropped, done.finished) == (2, 2, True)
    assert ids(found) == expected
    assert all(segment.resolved_through for segment in found.entry().segments_of("files"))
    assert len(found.entry().overlays) <= done.changed
    assert run(found).commits == 0


def test_counts_of_the_commit_tell_what_was_done() -> None:
    found = world()
    found.db.table("t").delete("id < 3")
    run(found)
    commit = found.db.history(1)[0]
    assert commit.operation == "resolve"
    assert commit.counts == Counts(files_resolved=4, tombstones_removed=1)

"""Files are rewritten and nobody sees a difference, whatever others commit meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen import Database
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import MoveFence
from dolmen.errors import StaleWriterError, TableNotFoundError
from dolmen.format.schema import COMMIT_TS, COMMIT_TS_ID
from dolmen.maintenance.compact import compaction
from dolmen.maintenance.compact.compaction import Compacted, CompactionOptions, compact
from dolmen.maintenance.compact.rewrite import LiveRows
from dolmen.maintenance.resolution import resolve
from dolmen.store import LocalStore
from support.tables import World
from support.written import events

EAGER = CompactionOptions(growth=2)


def rows_of(*ids: int, text: str = "old") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array([text] * len(ids), pa.string())})


def world(files: int = 4, rows: int = 10, *, sort_key: str | None = None) -> World:
    """Ids from 0 on, in files of so many rows, each of a commit of its own."""
    found = World()
    found.db.create_table("t", rows_of().schema, primary_key="id", sort_key=sort_key)
    for n in range(files):
        found.db.table("t").append(rows_of(*range(n * rows, n * rows + rows)))
    return found


def run(found: World, options: CompactionOptions = EAGER, **more: Any) -> Compacted:
    return compact(found.db._context, "t", options=options, **more)


def ids(found: World) -> list[object]:
    return sorted(row["id"] for row in found.rows())  # type: ignore[type-var]


def everything(found: World) -> list[tuple[object, ...]]:
    """All rows with their commit timestamps."""
    rows = found.scan(with_commit_ts=True).to_arrow()
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def test_small_files_become_one_and_each_row_keeps_its_commit_timestamp() -> None:
    found = world(4)
    before = everything(found)
    assert len({row[-1] for row in before}) == 4
    base = found.manifest
    done = run(found)
    (file,) = found.entry().files
    assert everything(found) == before
    assert (done.groups, done.files_in, done.files_out, done.rows, done.finished) == (1, 4, 1, 40, True)
    assert (file.row_ts, file.row_ts_bounds) == (None, (min(r[-1] for r in before), max(r[-1] for r in before)))
    assert file.applied_through == base.commit_ts < found.manifest.commit_ts
    assert COMMIT_TS_ID not in file.stats
    stored = pq.read_table(pa.BufferReader(found.store.get(file.path).body))
    assert stored.column_names == ["id", "text", COMMIT_TS]
    assert stored.schema.field(COMMIT_TS).metadata[b"PARQUET:field_id"] == b"2147483647"
    assert found.manifest.data_change is False
    for shown in (repr(done), done._repr_html_()):
        assert "small files" in shown


def test_files_that_were_compacted_are_compacted_again() -> None:
    found = world(4)
    run(found)
    for n in (100, 110, 120, 130):
        found.db.table("t").append(rows_of(*range(n, n + 10)))
    before = everything(found)
    run(found)
    assert len(found.entry().files) == 1
    assert everything(found) == before


def test_rows_of_one_commit_need_no_column_for_it() -> None:
    found = world(0)
    with found.db.transaction() as tx:
        tx.table("t").append(rows_of(*range(100)))
    found.db.table("t").delete("id < 60", mode="positions")
    before = everything(found)
    run(found)
    (file,) = found.entry().files
    assert (file.row_ts, file.row_ts_bounds, file.rows) == (before[0][-1], None, 40)
    assert pq.read_table(pa.BufferReader(found.store.get(file.path).body)).column_names == ["id", "text"]
    assert everything(found) == before


def test_a_dry_run_only_tells() -> None:
    found = world(4)
    version = found.manifest.version
    done = run(found, dry_run=True)
    assert (len(done.plan.groups), done.commits, done.finished) == (1, 0, True)
    assert found.manifest.version == version


def test_deletes_of_all_kinds_are_applied_by_rewriting() -> None:
    found = world(4, 30)
    table = found.db.table("t")
    table.delete("id IN (1, 35)", mode="positions")
    table.delete("id BETWEEN 3 AND 5")
    table.delete(keys=[40, 119])
    expected = everything(found)
    done = run(found)
    assert (done.rows, done.rows_deleted) == (len(expected), 7)
    assert everything(found) == expected
    assert found.entry().tombstones == ()
    assert [(file.rows, file.vector) for file in found.entry().files] == [(113, None)]


def test_a_file_that_a_tombstone_hides_as_a_whole_goes_unread() -> None:
    found = world(3)
    found.db.table("t").delete("id < 10")
    first = found.entry().files[0]
    fresh = Database(found.store, found.runtime)
    found.store.reset()  # type: ignore[attr-defined]
    done = compact(fresh._context, "t", options=CompactionOptions())
    assert [group.reason for group in done.plan.groups] == ["all rows deleted"]
    assert found.store.puts == 2  # type: ignore[attr-defined] # manifest and pointer: no intent, no data
    assert found.store.gets <= 4  # type: ignore[attr-defined] # the pointer, its manifest
    assert first.path not in {file.path for file in found.entry().files}
    assert ids(found) == list(range(10, 30))


def test_a_tombstone_stays_while_it_hides_rows_of_files_that_were_not_compacted() -> None:
    found = world(4)
    found.db.table("t").append(rows_of(*range(1000, 9000)))
    found.db.table("t").delete(keys=[3, 5000])
    expected = everything(found)
    done = run(found)
    assert (done.files_in, len(found.entry().files)) == (4, 2)
    assert len(found.entry().tombstones) == 1
    assert everything(found) == expected


def test_a_row_deleted_and_added_again_in_one_transaction_survives() -> None:
    """A manifest stamped with its first statement's timestamp would lose it."""
    found = world(2)
    with found.db.transaction() as tx:
        table = tx.table("t")
        table.append(rows_of(500, text="first"))
        table.delete(keys=[500])
        table.append(rows_of(500, text="second"))
    expected = everything(found)
    assert [row[1] for row in expected if row[0] == 500] == ["second"]
    run(found)
    run(found)
    assert everything(found) == expected


def test_upserted_rows_are_there_once_and_old_versions_show_the_old_ones() -> None:
    found = world(2)
    before, version = everything(found), found.manifest.version
    found.db.table("t").upsert(rows_of(3, 15, 99, text="new"))
    now = everything(found)
    run(found)
    assert everything(found) == now
    old = found.db.table("t").at(version=version).scan(with_commit_ts=True).to_arrow()
    assert sorted(zip(*(column.to_pylist() for column in old.columns), strict=True)) == before


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """Lets somebody commit between what a group has read and its commit; ``act`` is told which commit it is."""
    real, commits = compaction.submit, itertools.count()

    def submit(*arguments: Any, **options: Any) -> Any:
        act(next(commits))
        return real(*arguments, **options)

    monkeypatch.setattr(compaction, "submit", submit)


def other(found: World) -> dolmen.Table:
    return Database(found.store, Runtime()).table("t")


@pytest.mark.parametrize("sort_key", [None, "id"])
def test_a_delete_committed_between_plan_and_commit_hides_rows_of_the_new_file(
    sort_key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows must not be promoted past a delete that the compaction has not seen."""
    found = world(4, sort_key=sort_key)
    writer = other(found)

    def act(commit: int) -> None:
        writer.delete(keys=[3])
        writer.delete("id BETWEEN 20 AND 22")
        writer.upsert(rows_of(7, text="new"))

    meanwhile(monkeypatch, act)
    done = run(found)
    assert (done.groups, done.dropped) == (1, 0)
    assert ids(found) == sorted({*range(40)} - {3, 20, 21, 22})
    assert [row["text"] for row in found.rows() if row["id"] == 7] == ["new"]
    monkeypatch.undo()
    expected = everything(found)
    resolve(found.db._context, "t")
    run(found)
    assert everything(found) == expected


def test_a_group_is_dropped_when_rows_of_its_files_were_deleted_by_position_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its output still has the row."""
    found = world(4)
    writer = other(found)
    meanwhile(monkeypatch, lambda commit: commit == 0 and writer.delete("id = 13", mode="positions"))
    done = run(found)
    assert done.dropped == 1
    assert (done.groups, done.finished) == (2, True)  # both halves, planned again on the newest version
    assert len(found.entry().files) == 2
    assert ids(found) == sorted({*range(40)} - {13})


def test_a_group_is_dropped_when_its_files_were_resolved_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(4)
    found.db.table("t").delete("id = 13")
    writer = Database(found.store, Runtime())
    meanwhile(monkeypatch, lambda commit: commit == 0 and resolve(writer._context, "t"))
    done = run(found)
    assert (done.dropped, done.groups) == (1, 2)
    assert found.entry().tombstones == ()
    assert ids(found) == sorted({*range(40)} - {13})


def test_a_table_dropped_and_made_again_meanwhile_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a file of its name is live proves nothing."""
    found = world(4)
    writer = Database(found.store, Runtime())

    def act(commit: int) -> None:
        if commit == 0:
            writer.drop_table("t")
            writer.create_table("t", rows_of().schema).append(rows_of(1, 2))

    meanwhile(monkeypatch, act)
    done = run(found)
    assert (done.groups, done.finished) == (0, False)
    assert ids(found) == [1, 2]


def test_a_table_overwritten_meanwhile_stays_as_it_was_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(4)
    writer = other(found)
    meanwhile(monkeypatch, lambda commit: commit == 0 and writer.overwrite(rows_of(1, 2)))
    assert run(found).groups == 0
    assert ids(found) == [1, 2]


def test_two_compactions_of_the_same_files_keep_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(4)
    expected = everything(found)
    rival = Database(found.store, Runtime())
    real = compaction.submit

    def act(commit: int) -> None:
        if commit == 0:
            monkeypatch.setattr(compaction, "submit", real)
            assert compact(rival._context, "t", options=EAGER).groups == 1

    meanwhile(monkeypatch, act)
    done = run(found)
    assert (done.groups, done.dropped) == (0, 1)
    assert everything(found) == expected


def test_files_left_in_peace_are_compacted_however_often_others_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every single commit somebody deletes by position from one and the same file, and appends."""
    found = world(16)
    writer = other(found)
    hot = found.entry().files[5].path

    def act(commit: int) -> None:
        writer.append(rows_of(1000 + commit))
        if commit < 10:
            writer.delete(f"id = {50 + commit}", mode="positions")

    meanwhile(monkeypatch, act)
    done = run(found)
    monkeypatch.undo()
    assert done.finished
    assert done.files_in >= 14
    assert done.dropped <= 6  # log2(16) times with others, and twice alone, when most of it is deleted
    left = {file.path for file in found.entry().files}
    assert hot in left or done.files_in == 16
    missing = {50 + n for n in range(min(10, done.commits + done.dropped))}
    assert {row for row in ids(found) if row < 1000} == {*range(160)} - missing  # type: ignore[operator]


def test_rows_that_get_lost_on_the_way_stop_the_compaction_before_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(4)
    version, expected = found.manifest.version, everything(found)
    real = LiveRows._decode
    monkeypatch.setattr(LiveRows, "_decode", lambda *a: (real(*a)[0].slice(1), real(*a)[0].num_rows))
    with pytest.raises(AssertionError, match="nothing was committed"):
        run(found)
    assert found.manifest.version == version
    assert everything(found) == expected


def test_progress_survives_a_stop_and_the_next_call_goes_on() -> None:
    found = world(24, 50)
    expected = everything(found)
    size = found.entry().files[0].size
    options = CompactionOptions(growth=2, group_bytes=6 * size, target_file_bytes=100 * size)
    asked = itertools.count()
    done = run(found, options, deadline=lambda: next(asked) >= 1)
    assert (done.finished, done.groups) == (False, 1)
    assert len(done.plan.groups) >= 3
    assert len(found.entry().files) == 24 - done.files_in + 1
    assert run(found, options).finished
    assert len(found.entry().files) < 8
    assert everything(found) == expected


def test_objects_bear_the_name_of_an_intent_that_is_told_to_be_done() -> None:
    found = world(4)
    run(found)
    keys = [info.key for info in found.store.list("intent/")]
    txid = keys[0].split("/")[1]
    assert keys == [f"intent/{txid}/0.json", f"intent/{txid}/done"]
    assert all(file.uuid.startswith(f"{txid}-") for file in found.entry().files)


def test_a_compaction_whose_intent_was_revoked_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(4)
    expected = everything(found)
    gc = Database(found.store, Runtime())

    def act(commit: int) -> None:
        txid = next(iter(found.store.list("intent/"))).key.split("/")[1]
        gc._context.head.refresh()
        submit(gc._context.head, "gc", [MoveFence((0, 0), 0, 0, (txid,))])

    meanwhile(monkeypatch, act)
    with pytest.raises(StaleWriterError):
        run(found)
    monkeypatch.undo()
    assert everything(found) == expected


@pytest.mark.slow
def test_compaction_clusters_by_the_sort_key_across_files() -> None:
    """Twelve files that all span the whole range become files with a part of it each."""
    found = World()
    rng = np.random.default_rng(4)
    found.db.create_table("t", events(1).schema, primary_key="id", sort_key="user_id")
    for n in range(12):
        rows = events(2_000, n * 2_000)
        users = rng.integers(0, 1_000_000, rows.num_rows)
        found.db.table("t").append(rows.set_column(1, "user_id", pa.array(users)))
    before = everything(found)
    size = sum(file.size for file in found.entry().files)
    options = CompactionOptions(
        growth=2, target_file_bytes=size // 4, run_bytes=1 << 18, memory_bytes=1 << 19, row_group_bytes=1 << 16
    )
    done = run(found, options)
    assert done.spilled_bytes > 0
    files = found.entry().files
    assert 3 <= len(files) <= 8
    ranges = sorted((file.stats[2].min, file.stats[2].max) for file in files)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))  # type: ignore[operator]
    assert everything(found) == before
    for file in files:
        users = pq.read_table(pa.BufferReader(found.store.get(file.path).body))["user_id"].to_numpy()
        assert (np.diff(users) >= 0).all()
    assert run(found, options).groups == 0


@pytest.mark.parametrize("kind", ["few values", "long texts"])
def test_what_was_sorted_as_a_whole_is_not_sorted_again(kind: str) -> None:
    found = World()
    schema = pa.schema([("key", pa.string()), ("x", pa.float64())])
    table = found.db.create_table("t", schema, sort_key="key")
    random = np.random.default_rng(7)
    for _ in range(8):
        numbers = random.integers(0, 10**9, 3000)
        keys = numbers % 10 // 9 if kind == "few values" else np.char.add("https://example.org/", numbers.astype(str))
        table.append(pa.table([keys.astype(str), random.random(3000)], schema.names))
    size = found.entry().files[0].size
    options = CompactionOptions(growth=1, target_file_bytes=size, run_bytes=1 << 14, row_group_bytes=1 << 12)
    first = compact(found.db._context, "t", options=replace(options, target_file_bytes=4 * size))
    second = compact(found.db._context, "t", options=replace(options, target_file_bytes=size // 2))
    again = compact(found.db._context, "t", options=replace(options, target_file_bytes=size // 2))
    assert first.files_in == 8
    assert second.plan.files > 1
    assert again.plan.groups == ()


def test_without_a_sort_key_rows_stay_in_the_order_of_the_files() -> None:
    found = world(4)
    run(found)
    (file,) = found.entry().files
    stored = pq.read_table(pa.BufferReader(found.store.get(file.path).body))
    assert stored["id"].to_pylist() == list(range(40))


def test_duckdb_reads_the_files(tmp_path: Any) -> None:
    found = World(LocalStore(str(tmp_path)))
    found.db.create_table("t", events(1).schema, primary_key="id", sort_key="event_time")
    for n in range(4):
        found.db.table("t").append(events(1_000, n * 1_000))
    found.db.table("t").delete("user_id < 1000")
    run(found)
    (file,) = found.entry().files
    read = duckdb.sql(f"SELECT * FROM '{tmp_path / file.path}' ORDER BY id").to_arrow_table()
    ours = found.scan(with_commit_ts=True, order_by="id").to_arrow()
    assert read.cast(ours.schema).equals(ours)
    (plain,) = duckdb.sql(f"SELECT count(*) FROM '{tmp_path / file.path}' WHERE _commit_ts > 0").fetchall()
    assert plain == (ours.num_rows,)


def test_files_in_segments_are_compacted_too() -> None:
    found = World()
    found.db.set(root_bytes="16KB")
    found.db.create_table("t", rows_of().schema, primary_key="id")
    for n in range(60):
        found.db.table("t").append(rows_of(*range(n * 10, n * 10 + 10)))
    assert found.entry().segments_of("files")
    found.db.table("t").delete(keys=[5, 555])
    found.db.table("t").delete("id = 77", mode="positions")
    expected = everything(found)
    done = run(found)
    assert (done.files_in, done.files_out) == (60, 1)
    assert everything(found) == expected
    assert len(expected) == 597


def test_an_empty_table_and_one_of_one_file_have_nothing_to_do() -> None:
    for found in (world(0), world(1)):
        version = found.manifest.version
        done = run(found)
        assert (done.groups, done.finished, found.manifest.version) == (0, True, version)
        assert "nothing" in repr(done.plan)
    with pytest.raises(TableNotFoundError):
        compact(world(0).db._context, "nope")

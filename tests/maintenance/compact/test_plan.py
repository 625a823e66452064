"""What is compacted, and what is left alone: a function of metadata."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest

from dolmen.format.entries import ColumnStats, DataFile, Vector
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema
from dolmen.maintenance.compact.compaction import CompactionOptions, CompactionPlan, plan_compaction

MB = 1 << 20
TARGET = 256 * MB
_names = itertools.count()


def entry(*, sort_key: bool = False) -> TableEntry:
    schema = Schema.from_arrow(pa.schema([("k", pa.int64())]))
    return TableEntry(uuid="0" * 32, epoch=1, schema=schema, sort_key=(1,) if sort_key else ())


def file(size: int, deleted: float = 0.0, keys: tuple[int, int] | None = None) -> DataFile:
    vector = Vector("tombstone/t/x.del", 4, 10, 0, int(1000 * deleted)) if deleted else None
    stats = {1: ColumnStats(*keys, 0)} if keys else {}
    return DataFile(f"data/t/{next(_names):032x}.parquet", size, 1000, (size - 10, 10, 0), vector=vector, stats=stats)


def plan(files: Sequence[DataFile], *, sort_key: bool = False, **options: int) -> CompactionPlan:
    return plan_compaction("t", entry(sort_key=sort_key), files, TARGET, CompactionOptions(**options))


def chosen(found: CompactionPlan) -> list[list[int]]:
    """Sizes in MB by group."""
    return [sorted(each.size // MB for each in group.inputs) for group in found.groups]


def test_small_files_become_a_full_one_and_the_plan_says_why_and_what_it_saves() -> None:
    found = plan([file(10 * MB) for _ in range(26)])
    (group,) = found.groups
    assert (group.reason, len(group.inputs), group.files_out, group.requests_saved) == ("small files", 26, 1, 25)
    assert (group.bytes_in, group.bytes_out) == (260 * MB, 260 * MB)
    for shown in (repr(found), found._repr_html_()):
        assert "small files" in shown
        assert "saves each scan 25 requests" in shown


def test_a_large_file_is_not_rewritten_to_add_a_small_one() -> None:
    found = plan([file(250 * MB), file(100 * MB), file(1 * MB), file(2 * MB)])
    assert found.groups == ()
    assert found.left == {"full": 1, "small, but too few of similar size": 3}
    assert "nothing" in repr(found)


def test_a_file_is_rewritten_only_together_with_others_of_like_size() -> None:
    assert chosen(plan([file(size * MB) for size in (1, 1, 1, 1, 100)])) == [[1, 1, 1, 1]]
    assert chosen(plan([file(size * MB) for size in (1, 1, 1, 1, 4, 4, 4)])) == [[1, 1, 1, 1, 4, 4, 4]]
    assert chosen(plan([file(size * MB) for size in (1, 1, 1)])) == []


def test_a_file_is_rewritten_once_more_than_half_of_it_is_deleted() -> None:
    found = plan([file(200 * MB, 0.5), file(240 * MB, 0.51)])
    assert chosen(found) == [[240]]
    (group,) = found.groups
    assert group.reason == "mostly deleted"
    assert group.deleted_bytes == pytest.approx(240 * MB * 0.51, rel=0.01)


def test_small_files_join_one_that_is_rewritten_anyhow() -> None:
    (group,) = plan([file(200 * MB, 0.75), file(9 * MB)]).groups
    assert (group.reason, len(group.inputs)) == ("mostly deleted, small files", 2)


def test_a_file_without_rows_is_removed_first_and_without_being_read() -> None:
    found = plan([*(file(MB) for _ in range(8)), file(200 * MB, 1.0)])
    assert [group.reason for group in found.groups] == ["all rows deleted", "small files"]
    assert (found.groups[0].bytes_out, found.groups[0].files_out) == (0, 0)


def test_files_that_tombstones_hide_as_a_whole_are_removed() -> None:
    files = [file(200 * MB), file(200 * MB)]
    found = plan_compaction("t", entry(), files, TARGET, CompactionOptions(), {files[0].uuid})
    assert [group.inputs for group in found.groups] == [(files[0],)]


def test_groups_come_by_what_they_save_for_each_byte_that_is_rewritten() -> None:
    files = [*(file(MB) for _ in range(300)), *(file(250 * MB, 0.9) for _ in range(4))]
    groups = plan(files, group_bytes=60 * MB).groups
    assert [group.benefit for group in groups] == sorted((group.benefit for group in groups), reverse=True)
    assert groups[0].benefit > groups[-1].benefit
    assert all(group.bytes_out <= 2 * 60 * MB for group in groups)


def test_much_is_cut_into_groups_of_neighbours_by_the_sort_key() -> None:
    files = [file(10 * MB, keys=(at, at + 5)) for at in (k * 100 % 900 for k in range(9))]
    groups = plan(files, sort_key=True, group_bytes=30 * MB).groups
    ranges = sorted((min(f.stats[1].min for f in g.inputs), max(f.stats[1].max for f in g.inputs)) for g in groups)
    assert len(ranges) == 3
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))


def test_full_files_that_overlap_by_the_sort_key_are_clustered_a_part_of_the_range_at_a_time() -> None:
    tables = [file(250 * MB, keys=(first, first + 99)) for first in (0, 100) for _ in range(4)]
    found = plan(tables, sort_key=True)
    assert [group.reason for group in found.groups] == ["unclustered"] * 4  # 4 overlap in each part, 3 fit at once
    assert all(group.overlap >= 2 for group in found.groups)
    whole = plan(tables, sort_key=True, group_bytes=1000 * MB)
    assert sorted({f.stats[1].min for f in group.inputs} for group in whole.groups) == [{0}, {100}]
    assert [group.overlap for group in whole.groups] == [4, 4]


def test_full_files_that_hardly_overlap_are_left_alone() -> None:
    neighbours = [file(250 * MB, keys=(at * 100, at * 100 + 101)) for at in range(50)]
    found = plan(neighbours, sort_key=True)
    assert found.groups == ()
    assert found.left == {"full, and few overlap by the sort key": 50}
    unknown = plan([file(250 * MB) for _ in range(9)], sort_key=True)
    assert (unknown.groups, unknown.left) == ((), {"full, with unknown bounds of the sort key": 9})


def by_two(*keys: tuple[tuple[str, str], tuple[int, int] | None]) -> CompactionPlan:
    """Full files of a table sorted by a text and then a number, with these bounds."""
    schema = Schema.from_arrow(pa.schema([("tenant", pa.string()), ("at", pa.int64())]))
    table = TableEntry(uuid="0" * 32, epoch=1, schema=schema, sort_key=(1, 2))
    files = [
        msgspec.structs.replace(
            file(250 * MB), stats={1: ColumnStats(*tenant, 0)} | ({2: ColumnStats(*at, 0)} if at else {})
        )
        for tenant, at in keys
    ]
    return plan_compaction("t", table, files, TARGET, CompactionOptions(growth=1))


def test_full_files_that_only_touch_do_not_overlap_or_they_would_be_sorted_for_ever() -> None:
    a, ab, b = ("a", "a"), ("a", "b"), ("b", "b")
    assert by_two((a, (1, 5)), (a, (5, 9)), (ab, (0, 99)), (b, (3, 4)), (b, (4, 7))).groups == ()
    assert by_two((a, None), (a, None), (a, None)).groups == ()
    (group,) = by_two((a, (1, 6)), (a, (5, 9)), (b, (3, 4))).groups
    assert [each.stats[2].min for each in group.inputs] == [1, 5]
    (group,) = by_two((ab, (1, 6)), (ab, (5, 9))).groups
    assert group.overlap == 2


def test_full_files_of_long_texts_with_one_beginning_may_be_in_order_already() -> None:
    one, next_ = "https://example.", "https://example/"  # as statistics cut what begins so, the greatest rounded up
    assert by_two(((one, next_), None), ((one, next_), None)).groups == ()
    assert len(by_two((("http", next_), None), (("https://a", "https://z"), None)).groups) == 1


def test_a_byte_is_rewritten_a_logarithmic_number_of_times_by_a_thousand_appends() -> None:
    """Every append is followed by a compaction: what the plans rewrite is summed up."""
    live: list[DataFile] = []
    rewritten = most_files = 0
    for _ in range(1_000):
        live.append(file(MB))
        for group in plan(live).groups:
            rewritten += group.bytes_in
            paths = {each.path for each in group.inputs}
            live = [each for each in live if each.path not in paths]
            live.append(file(group.bytes_in))
        most_files = max(most_files, len(live))
    assert sum(each.size for each in live) == 1_000 * MB
    assert rewritten <= 1_000 * MB * 4  # log4(256) times: from 1 MB to a full file of 256 MB
    assert most_files <= 3 * 4 + 1_000 * MB // (TARGET // 2) + 1


def test_full_files_of_random_keys_are_clustered_a_logarithmic_number_of_times() -> None:
    """Each new full file spans the whole range of the key; what is merged becomes files that don't overlap."""
    live: list[DataFile] = []
    rewritten = 0
    for _ in range(64):
        live.append(file(250 * MB, keys=(0, 1 << 20)))
        for group in plan(live, sort_key=True, group_bytes=100_000 * MB).groups:
            rewritten += len(group.inputs)
            paths = {each.path for each in group.inputs}
            live = [each for each in live if each.path not in paths]
            step = (1 << 20) // len(group.inputs)
            live += [file(250 * MB, keys=(n * step, n * step + step - 1)) for n in range(len(group.inputs))]
    assert len(live) == 64
    assert rewritten <= 64 * 4  # log4(64) = 3 times, and a little
    assert sum(each.stats[1].min <= 7 <= each.stats[1].max for each in live) <= 3 * 3


def test_a_plan_holds_a_bounded_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolmen.maintenance.compact.compaction_plan.MOST_FILES", 10)
    found = plan([file(MB) for _ in range(25)])
    assert [len(group.inputs) for group in found.groups] == [10]
    assert found.left == {"with the next plan, this one is full": 15}


def test_text_keys_are_compared_as_they_are_ordered() -> None:
    schema = Schema.from_arrow(pa.schema([("k", pa.string())]))
    table = TableEntry(uuid="0" * 32, epoch=1, schema=schema, sort_key=(1,))
    files = [msgspec.structs.replace(file(250 * MB), stats={1: ColumnStats("a", "z", 0)}) for _ in range(4)]
    assert len(plan_compaction("t", table, files, TARGET, CompactionOptions(group_bytes=1000 * MB)).groups) == 1

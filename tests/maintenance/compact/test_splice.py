"""Row groups without deleted rows are copied, and the result reads like one that was encoded anew."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen import Database
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError
from dolmen.format.entries import DataFile
from dolmen.format.properties import ROW_GROUP_BYTES
from dolmen.maintenance.compact.compaction import Compacted, CompactionOptions, compact
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.transactions.transaction import unit_of
from dolmen_simulator.counting import CountingStore
from support.crashing_store import Countdown, Crash, CrashingStore
from support.random_tables import FLAT, random_table
from support.tables import World, write_file

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
TRIALS = 300 if os.environ.get("DOLMEN_LONG") else 6

SPLICE = CompactionOptions(growth=1, deleted_share=0.0, row_group_bytes=1, splice_bytes=1)
"""One deleted row makes a file worth a compaction, and each row group is worth to be copied."""
ENCODE = replace(SPLICE, splice_bytes=0)


def numbers(*ids: int, value: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value + id_ % 5 for id_ in ids], pa.int64())})


def world(rows: int = 100, *, files: int = 1, sort_key: str | None = None) -> World:
    """Ids from 0 on, in files of row groups of ten rows, all of one commit."""
    found = World()
    found.db.create_table("t", numbers().schema, primary_key="id", sort_key=sort_key)
    append(found, *(numbers(*range(n * rows, n * rows + rows)) for n in range(files)))
    return found


def append(found: World, *tables: pa.Table, group_rows: int = 10) -> None:
    """Appends a file for each table, in one commit."""
    from dolmen.commit.statements.row_changes import Write

    with found.db.transaction() as tx:
        entry = unit_of(tx).entry("t")
        unit_of(tx).begin_upload()
        files = tuple(write_file(found.store, "t", entry, data, group_rows) for data in tables)
        unit_of(tx).add(Write("t", entry.uuid, files=files))


def twin(found: World) -> World:
    """Another database with the same objects."""
    bucket = MemoryBucket(found.runtime.clock_us)
    inner = found.store._store if isinstance(found.store, CountingStore) else found.store  # type: ignore[attr-defined]
    bucket.objects.update(inner.bucket.objects)  # type: ignore[attr-defined]
    return World(CountingStore(MemoryStore(bucket)))


def run(found: World, options: CompactionOptions = SPLICE, **more: Any) -> Compacted:
    return compact(found.db._context, "t", options=options, **more)


def rows_of(found: World) -> pa.Table:
    return found.scan(with_commit_ts=True).to_arrow()


def values_of(found: World) -> str:
    """All rows, in their order, with times as numbers."""
    rows = rows_of(found)
    ints = {32: pa.int32(), 64: pa.int64()}
    columns = [c.cast(ints[c.type.bit_width]) if pa.types.is_temporal(c.type) else c for c in rows.columns]
    return repr([column.to_pylist() for column in columns])


def group_sizes(found: World, file: DataFile) -> list[int]:
    metadata = pq.read_metadata(io.BytesIO(found.store.get(file.path).body))
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def same(spliced: World, encoded: World) -> None:
    """Whether two databases show the same rows in the same order, with the same statistics."""
    assert values_of(spliced) == values_of(encoded)
    one, other = spliced.entry().files, encoded.entry().files
    assert sum(file.rows for file in one) == sum(file.rows for file in other)
    if len(one) == len(other) == 1:
        for name in ("rows", "row_ts", "row_ts_bounds", "applied_through", "vector", "erasing", "stats"):
            assert getattr(one[0], name) == getattr(other[0], name), name
        assert bool(one[0].filters) == bool(other[0].filters)
    for found in (spliced, encoded):
        assert found.db.verify(deep=True).ok, found.db.verify(deep=True)


def both(found: World, options: CompactionOptions = SPLICE) -> tuple[World, Compacted]:
    """Compacts with and without copying, and compares. Returns the world in which row groups were copied."""
    other = twin(found)
    done = run(found, options)
    without = run(other, replace(options, splice_bytes=0))
    assert not without.bytes_copied
    assert (done.rows, done.rows_deleted, done.files_in) == (without.rows, without.rows_deleted, without.files_in)
    same(found, other)
    return found, done


# ---- what is copied


def test_row_groups_without_deleted_rows_are_copied_and_the_others_encoded_anew() -> None:
    found = world()
    found.db.table("t").delete("id IN (33, 34)", mode="positions")
    (before,) = found.entry().files
    found, done = both(found)
    (file,) = found.entry().files
    assert group_sizes(found, file) == [10, 10, 10, 8, 10, 10, 10, 10, 10, 10]
    assert 0 < done.bytes_copied < before.size
    assert (file.row_ts, file.vector) == (before.row_ts, None)
    assert "copied" in repr(done)
    assert "copied" not in repr(run(world(3, files=2), ENCODE))


@pytest.mark.parametrize("where", ["id < 10", "id >= 90", "id < 5", "id >= 95", "id BETWEEN 5 AND 95", "id % 20 = 3"])
def test_deleted_rows_may_be_at_either_end_or_anywhere(where: str) -> None:
    found = world()
    found.db.table("t").delete(where, mode="positions")
    _, done = both(found)
    assert bool(done.bytes_copied) is (where != "id BETWEEN 5 AND 95")


def test_tombstones_that_may_hide_a_row_have_its_row_group_encoded_anew() -> None:
    found = world()
    found.db.table("t").delete("id = 3", mode="positions")
    found.db.table("t").delete("id = 55")
    found.db.table("t").delete(keys=[71])
    found.db.table("t").delete("v = 99")  # no row group can have it
    found, done = both(found)
    (file,) = found.entry().files
    assert group_sizes(found, file) == [9, 10, 10, 10, 10, 9, 10, 9, 10, 10]
    assert done.bytes_copied


def test_several_files_become_one_whose_row_groups_are_theirs() -> None:
    found = world(files=3)
    found, done = both(found)
    (file,) = found.entry().files
    assert group_sizes(found, file) == [10] * 30
    assert sorted(found.scan(["id"]).to_arrow()["id"].to_pylist()) == list(range(300))
    assert done.bytes_copied


def test_a_full_file_ends_between_row_groups_that_are_copied() -> None:
    found, rng = World(), random.Random(1)
    found.db.create_table("t", numbers().schema, primary_key="id")
    rows = pa.table({"id": pa.array(range(20_000)), "v": pa.array([rng.getrandbits(62) for _ in range(20_000)])})
    append(found, *(rows.slice(n * 5_000, 5_000) for n in range(4)), group_rows=1_000)
    size = found.entry().files[0].size
    found, done = both(found, replace(SPLICE, target_file_bytes=2 * size + 100))
    assert done.bytes_copied
    assert len(found.entry().files) == done.files_out > 1
    assert [size for file in found.entry().files for size in group_sizes(found, file)] == [1_000] * 20


# ---- what is not


def check_encoded(found: World, options: CompactionOptions = SPLICE) -> None:
    """Nothing is copied, and the result is the same."""
    _, done = both(found, options)
    assert done.groups
    assert not done.bytes_copied


def deleted_from(found: World) -> World:
    found.db.table("t").delete("id = 33", mode="positions")
    return found


def test_rows_of_several_commits_are_copied_only_from_files_that_store_their_timestamps() -> None:
    found = world()
    append(found, numbers(*range(100, 200)))
    check_encoded(found)  # each row gets its timestamp in the file
    times = {row["_commit_ts"] for row in rows_of(found).to_pylist()}
    assert len(times) == 2
    found.db.table("t").delete("id IN (3, 150)", mode="positions")
    run(found, replace(ENCODE, run_bytes=300))
    append(found, numbers(*range(200, 230)))
    found, done = both(found)
    assert done.bytes_copied, "the file that stores them"
    assert len({row["_commit_ts"] for row in rows_of(found).to_pylist()}) == 3


CHANGES: dict[str, Callable[[Any], object]] = {
    "renamed column": lambda table: table.rename_column("v", "w"),
    "added column": lambda table: table.add_column("x", pa.int64()),
    "dropped column": lambda table: table.drop_column("v"),
    "nullable": lambda table: table.add_column("x", pa.string(), default="a"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_with_other_columns_than_the_table_are_encoded_anew(change: str) -> None:
    found = deleted_from(world())
    CHANGES[change](found.db.table("t"))
    check_encoded(found)


def test_files_with_narrower_types_are_encoded_anew() -> None:
    found = World()
    narrow = pa.table({"id": pa.array(range(100)), "v": pa.array(range(100), pa.int16())})
    found.db.create_table("t", narrow.schema, primary_key="id")
    append(found, narrow)
    found.db.table("t").widen_column("v", pa.int32())
    check_encoded(deleted_from(found))


def test_small_row_groups_are_encoded_together() -> None:
    check_encoded(deleted_from(world()), replace(SPLICE, row_group_bytes=ROW_GROUP_BYTES))


def test_a_row_group_between_copied_ones_is_not_left_small() -> None:
    """Its neighbours are encoded together with it, until it has half of a full one's size."""
    found = world()
    found.db.table("t").delete("id BETWEEN 31 AND 39", mode="positions")
    metadata = pq.read_metadata(io.BytesIO(found.store.get(found.entry().files[0].path).body))
    sizes = [sum(metadata.row_group(g).column(c).total_compressed_size for c in range(2)) for g in range(10)]
    found, done = both(found, replace(SPLICE, row_group_bytes=min(sizes)))
    (file,) = found.entry().files
    assert done.bytes_copied
    assert group_sizes(found, file) == [10, 10, 10, 11, 10, 10, 10, 10, 10]


def test_few_bytes_are_not_copied() -> None:
    found = deleted_from(world())
    size = found.entry().files[0].size
    check_encoded(found, replace(SPLICE, splice_bytes=size))


def test_filters_of_fewer_bits_than_are_wanted_now_are_made_anew() -> None:
    found = deleted_from(world())
    found.db.table("t").set(key_filter_bits=32)
    check_encoded(found)
    found.db.table("t").delete("id = 34", mode="positions")
    run(found, replace(ENCODE, run_bytes=200))
    found.db.table("t").delete("id = 50", mode="positions")
    _, done = both(found)
    assert done.bytes_copied, "filters are large enough now"


@pytest.mark.slow
def test_tables_with_an_index_and_files_of_such_times_are_encoded_anew() -> None:
    found = World()
    rows = pa.table({"id": pa.array(range(60_000)), "v": pa.array([n * 7_919 % 65_521 for n in range(60_000)])})
    found.db.create_table("t", rows.schema, primary_key="id")
    append(found, rows, group_rows=20_000)
    deleted_from(found)
    indexed = twin(found)
    _, done = both(found)
    assert done.bytes_copied
    indexed.db.table("t").set(index=True)
    check_encoded(indexed)
    indexed.db.table("t").delete("id = 35", mode="positions")
    indexed.db.table("t").set(index=False)
    check_encoded(indexed, replace(SPLICE, row_group_bytes=ROW_GROUP_BYTES))  # their row groups are small


def test_floats_with_nan_are_encoded_anew_as_nobody_has_counted_them() -> None:
    for values, copies in (([0.5, None] * 50, True), ([0.5, float("nan")] * 50, False)):
        found = World()
        rows = pa.table({"id": pa.array(range(100)), "v": pa.array(values, pa.float64())})
        found.db.create_table("t", rows.schema, primary_key="id")
        append(found, rows)
        _, done = both(deleted_from(found))
        assert bool(done.bytes_copied) is copies


def test_nan_among_rows_that_are_encoded_anew_leaves_statistics_of_the_others() -> None:
    found = World()
    rows = pa.table({"id": pa.array(range(100)), "v": pa.array([float(n) for n in range(100)])})
    found.db.create_table("t", rows.schema, primary_key="id")
    nan = pa.table({"id": pa.array(range(100, 200)), "v": pa.array([float("nan"), 1.0] * 50)})
    append(found, rows, nan)
    found, done = both(found)
    (file,) = found.entry().files
    assert done.bytes_copied
    assert file.stats[2].nans == 50
    metadata = pq.read_metadata(io.BytesIO(found.store.get(file.path).body))
    has = [metadata.row_group(group).column(1).statistics is not None for group in range(metadata.num_row_groups)]
    assert has.count(True) == 10, "those that were copied"
    assert has.count(False) >= 1


# ---- sort keys


def test_row_groups_are_copied_where_no_other_key_lies_between_theirs() -> None:
    found = world(files=2, sort_key="id")
    append(found, numbers(1_000, 1_001))
    found, done = both(found, replace(SPLICE, run_bytes=400))
    assert not done.bytes_copied, "they are of two commits"
    found.db.table("t").delete("id = 150", mode="positions")
    (before,) = found.entry().files
    append(found, numbers(45, 1_002))
    sizes = group_sizes(found, before)
    found, done = both(found, SPLICE)
    assert done.bytes_copied
    ids = found.scan(["id"]).to_arrow()["id"].to_pylist()
    assert ids == sorted(ids)
    assert len(sizes) > 5


def by_two(first: Sequence[int], second: Sequence[int]) -> World:
    found = World()
    rows = pa.table({"id": pa.array(range(len(first))), "a": pa.array(first), "b": pa.array(second)})
    found.db.create_table("t", rows.schema, primary_key="id", sort_key=["a", "b"])
    append(found, rows)
    return deleted_from(found)


def test_row_groups_that_touch_in_the_first_of_two_columns_are_sorted() -> None:
    """Statistics do not tell the order of rows within one value of it, unless a row group has no other value."""
    found = by_two([(n + 5) // 10 for n in range(100)], [(n + 5) % 10 for n in range(100)])
    found, done = both(found)
    assert not done.bytes_copied
    found = by_two([n // 20 for n in range(100)], [n % 20 for n in range(100)])
    found, done = both(found)
    (file,) = found.entry().files
    assert group_sizes(found, file) == [10, 10, 10, 9, 10, 10, 10, 10, 10, 10]


def test_null_and_nan_keys_come_last_and_nothing_is_put_behind_them() -> None:
    found = World()
    values = [*range(90), *[None] * 10]
    rows = pa.table({"id": pa.array(range(100)), "v": pa.array(values, pa.int64())})
    found.db.create_table("t", rows.schema, primary_key="id", sort_key="v")
    append(found, rows, rows.slice(0, 50))
    found, _ = both(found)
    column = found.scan(["v"]).to_arrow()["v"]
    assert column.slice(140).null_count == 10


# ---- random tables


@pytest.mark.slow
def test_random_tables_read_the_same_whichever_way(tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    seen: Counter[str] = Counter()
    for number in range(TRIALS):
        seed = SEED * 1_000_003 + number
        try:
            trial(random.Random(seed), seen, tmp_path / f"{number}.parquet")
        except Exception as error:
            raise AssertionError(f"trial {seed}: {error!r}") from error
    print(dict(seen))
    assert seen["spliced"] >= TRIALS // 6


def trial(rng: random.Random, seen: Counter[str], path: Path) -> None:
    rows = 240
    data = random_table(rng, rows, FLAT if rng.random() < 0.7 else [*FLAT, "list", "struct"])
    data = data.add_column(0, "rid", pa.array(range(rows)))
    flat = [field.name for field in data.schema if not pa.types.is_nested(field.type)]
    sort_key = rng.choice([None, ["rid"], [rng.choice(flat), "rid"]])
    if sort_key and len(set(sort_key)) < len(sort_key):
        sort_key = ["rid"]
    found = World()
    found.db.create_table("t", data.schema, primary_key="rid", sort_key=sort_key)
    pieces = rng.randint(1, 3)
    tables = [data.slice(n * rows // pieces, rows // pieces) for n in range(pieces)]
    if rng.random() < 0.5:
        append(found, *tables, group_rows=rng.choice([7, 30, 80]))
    else:
        for table in tables:
            append(found, table, group_rows=rng.choice([7, 30, 80]))
        run(found, replace(ENCODE, run_bytes=rng.choice([1_000, 10_000])))
    some = rng.sample(range(rows), rng.choice([1, 2, 5]))
    found.db.table("t").delete(f"rid IN ({', '.join(map(str, some))})", mode="positions")
    if rng.random() < 0.3:
        found.db.table("t").delete(keys=[rng.randrange(rows)])
    options = replace(SPLICE, run_bytes=rng.choice([2_000, 1 << 20]), memory_bytes=rng.choice([2_000, 1 << 20]))
    found, done = both(found, options)
    seen["trials"] += 1
    if not done.bytes_copied:
        return
    seen["spliced"] += 1
    expected = found.scan().to_arrow()
    for file in found.entry().files:
        body = found.store.get(file.path).body
        path.write_bytes(body)
        stored = pq.ParquetFile(path, page_checksum_verification=True).read()
        rids = stored["rid"].to_pylist()
        assert duckdb.sql(f"SELECT rid FROM '{path}'").fetchnumpy()["rid"].tolist() == rids
        assert pl.read_parquet(path, columns=["rid"])["rid"].to_list() == rids
        probe = rng.choice(rids)
        assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE rid = {probe}").fetchall() == [(1,)]
        assert pl.scan_parquet(path).filter(pl.col("rid") == probe).collect().height == 1
        assert set(rids) <= set(expected["rid"].to_pylist())
    probe = rng.choice(expected["rid"].to_pylist())
    row = found.scan(where=f"rid = {probe}").to_arrow()
    assert repr(row) == repr(expected.filter(pc.equal(expected["rid"], probe)))


# ---- what it costs


def test_it_reads_footers_and_deleted_rows_row_groups_and_writes_no_more_than_these() -> None:
    rows = 100_000
    found = World()
    rng = random.Random(1)
    data = pa.table({"id": pa.array(range(rows)), "text": pa.array([rng.randbytes(40).hex() for _ in range(rows)])})
    found.db.create_table("t", data.schema, primary_key="id")
    append(found, data, group_rows=10_000)
    found.db.table("t").delete("id = 33333", mode="positions")
    (file,) = found.entry().files
    metadata = pq.read_metadata(io.BytesIO(found.store.get(file.path).body))
    sizes = [
        sum(metadata.row_group(group).column(column).total_compressed_size for column in range(2))
        for group in range(10)
    ]
    behind = file.size - 4 - sum(sizes)
    assert isinstance(found.store, CountingStore)
    found.db._context.head.refresh()
    found = World(found.store)
    found.db._context.head.refresh()
    found.store.reset()
    done = run(found)
    store = found.store
    assert isinstance(store, CountingStore)
    assert done.bytes_copied == sum(sizes) - sizes[3]
    assert (store.copies, store.bytes_copied) == (2, 4 + sum(sizes) - sizes[3])
    (new,) = found.entry().files
    down = sizes[3] + file.footer[1] + behind
    assert down < store.bytes_down < down + 20_000, "the row group, its footer twice, the vector, the manifest"
    assert store.bytes_up < new.size - store.bytes_copied + 20_000


def test_a_table_without_a_large_file_costs_no_request_more() -> None:
    plain, spliced = world(10, files=4), world(10, files=4)
    counts = []
    for found, options in (
        (plain, replace(ENCODE, row_group_bytes=ROW_GROUP_BYTES)),
        (spliced, CompactionOptions(growth=1)),
    ):
        assert isinstance(found.store, CountingStore)
        found.store.reset()
        run(found, options)
        counts.append((found.store.gets, found.store.puts, found.store.heads, found.store.lists, found.store.copies))
    assert counts[0] == counts[1]


# ---- damage, crashes and races


def damage(found: World, path: str, place: int) -> None:
    """Flips a bit of an object, which keeps its ETag: nobody has written it."""
    inner = found.store._store  # type: ignore[attr-defined]
    there = inner.bucket.objects[path]
    body = bytearray(there.body)
    body[place] ^= 1
    inner.bucket.objects[path] = replace(there, body=bytes(body))


def test_a_damaged_byte_of_a_copied_row_group_is_found_in_the_new_file() -> None:
    found = deleted_from(world())
    (file,) = found.entry().files
    damage(found, file.path, 100)  # in the first row group
    done = run(found)
    assert done.bytes_copied
    (new,) = found.entry().files
    with pytest.raises(CorruptionError, match="checksum"):
        found.scan(where="id < 5").to_arrow()
    assert found.scan(where="id > 50").to_arrow().num_rows == 49
    report = found.db.verify(deep=True)
    assert [(finding.kind, finding.object) for finding in report.findings] == [("data-damaged", new.path)]


@pytest.mark.parametrize("part", ["filters", "index"])
def test_damage_behind_the_rows_is_mended_by_encoding_anew(part: str) -> None:
    found = deleted_from(world())
    (file,) = found.entry().files
    damage(found, file.path, file.filters + 40 if part == "filters" else file.footer[0] - 10)
    assert not run(found).bytes_copied
    assert found.db.verify(deep=True).ok


def test_a_file_that_is_missing_is_named() -> None:
    found = deleted_from(world())
    (file,) = found.entry().files
    found.store.delete([file.path])
    with pytest.raises(CorruptionError, match=file.path):
        run(found)


@pytest.mark.slow
def test_whenever_it_is_killed_rows_stay_and_the_next_call_ends_the_work() -> None:
    found = deleted_from(world(files=2))
    found.db.table("t").delete("id = 150", mode="positions")
    expected = rows_of(found).to_pylist()
    steps = 0
    for after in (False, True):
        for left in range(1, 100):
            other = twin(found)
            inner = other.store
            countdown = Countdown(left, after=after)
            db = Database(CrashingStore(inner, countdown), Runtime())
            try:
                compact(db._context, "t", options=SPLICE)
            except Crash:
                pass
            else:
                break
            steps += 1
            again = World(inner)
            assert rows_of(again).to_pylist() == expected
            run(again)
            assert rows_of(again).to_pylist() == expected
            assert again.db.verify(deep=True).ok
    assert steps > 10


@pytest.mark.slow
@pytest.mark.parametrize("server", ["s3", "minio"])
def test_on_s3_the_server_copies_and_the_rest_is_uploaded_with_it(server: str, request: pytest.FixtureRequest) -> None:
    """16 MB of random text in row groups of 1 MB, of which one has a deleted row, in parts of 5 MB at least."""
    db = dolmen.open(request.getfixturevalue(f"{server}_url"))
    rng, rows = random.Random(1), 160_000
    data = pa.table({"id": pa.array(range(rows)), "text": pa.array([rng.randbytes(50).hex() for _ in range(rows)])})
    found = World(CountingStore(context_of(db).store))
    found.db.create_table("t", data.schema, primary_key="id")
    append(found, data, group_rows=10_000)
    found.db.table("t").delete("id = 123456", mode="positions")
    before = found.scan(with_commit_ts=True).to_arrow()
    assert isinstance(found.store, CountingStore)
    found.store.reset()
    done = run(found, replace(SPLICE, splice_bytes=1 << 20))
    assert (done.rows_deleted, found.store.copies) == (1, 2)
    assert done.bytes_copied > 0.9 * found.entry().files[0].size * 15 / 16
    assert found.store.bytes_down < 0.2 * found.entry().files[0].size
    assert found.store.bytes_up < 0.2 * found.entry().files[0].size
    assert found.scan(with_commit_ts=True).to_arrow().equals(before)
    assert found.db.verify(deep=True).findings == ()
    assert context_of(db).store.copies  # type: ignore[attr-defined]

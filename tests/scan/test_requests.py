"""What a scan asks of the store: exactly what its explanation says, to the byte."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dolmen.rows.scan.data_objects import GAP_BYTES, MERGED_BYTES, Range, coalesce
from dolmen.rows.scan.file_bytes import FetchedFile
from dolmen.rows.scan.scan import Scan, plan_of
from dolmen.store.cache import ObjectCache
from dolmen.store.local_store import LocalStore
from support.tables import World
from support.written import events


def large(rows: int = 60_000, group_rows: int = 4096) -> World:
    """One file that is too large to be fetched whole."""
    world = World()
    world.create(events(rows), group_rows=group_rows)
    assert world.entry().files[0].size > 1.5 * GAP_BYTES
    return world


def measure(world: World, scan: Scan) -> tuple[int, int]:
    """GETs and bytes of running a scan, which may ask for nothing else."""
    world.store.reset()
    scan.to_arrow()
    assert (world.store.lists, world.store.heads, world.store.puts) == (0, 0, 0)
    return world.store.gets, world.store.bytes_down


def foretold(world: World, **arguments: object) -> tuple[int, int]:
    fetch = world.scan(**arguments).explain().fetch  # type: ignore[arg-type]
    return fetch.requests, fetch.bytes


def test_two_columns_of_one_file_cost_the_footer_and_coalesced_ranges() -> None:
    world = large()
    wanted = {"columns": ["user_id", "amount"]}
    explanation = world.scan(**wanted).explain()
    assert explanation.footer_fetch.requests == 1
    assert explanation.footer_fetch.bytes == world.entry().files[0].footer[1]
    assert 1 <= explanation.data_fetch.requests <= 3
    assert measure(world, world.scan(**wanted)) == foretold(world, **wanted)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"columns": ["payload"]},
        {"where": "id BETWEEN 5000 AND 5100"},
        {"columns": ["kind"], "where": "id > 50000 AND amount > 10"},
        {"columns": ["kind"], "where": "amount < 0"},
        {"where": "id < 0"},
    ],
)
def test_every_scan_fetches_what_its_explanation_says(arguments: dict[str, object]) -> None:
    world = large(30_000)
    world.append(events(50, start=30_000))
    table = world.db.table("t")
    table.delete("user_id = 7 OR amount > 400")
    table.delete(keys=list(range(100, 25_000, 3)), on=["id"])
    table.delete("id IN (17, 29000)", mode="positions")
    explanation = world.scan(**arguments).explain()  # type: ignore[arg-type]
    assert measure(world, world.scan(**arguments)) == (  # type: ignore[arg-type]
        explanation.fetch.requests,
        explanation.fetch.bytes,
    )


def test_pruned_row_groups_are_not_fetched() -> None:
    world = large()
    explanation = world.scan(columns=["payload"], where="id BETWEEN 9000 AND 9010").explain()
    assert (explanation.row_groups, explanation.row_groups_read, explanation.row_groups_tested) == (15, 1, 1)
    assert explanation.data_fetch.bytes < 350_000


def test_a_pruned_file_costs_no_request() -> None:
    world = World()
    world.create(events(1000), files=5)
    assert measure(world, world.scan(where="id >= 5000")) == (0, 0)
    assert len(plan_of(world.scan(where="id = 777")).files) == 1


def test_a_small_file_comes_whole_in_one_request() -> None:
    world = World()
    world.create(events(1000), files=3)
    sizes = sum(file.size for file in world.entry().files)
    assert measure(world, world.scan()) == (3, sizes)


def test_footers_keys_and_vectors_are_fetched_once() -> None:
    world = large(30_000)
    world.db.table("t").delete(keys=list(range(0, 20_000, 2)), on=["id"])
    world.db.table("t").delete("user_id < 10", mode="positions")
    cache = ObjectCache()
    first = world.scan(columns=["kind"], cache=cache).explain()
    assert (first.footer_fetch.requests, first.tombstone_fetch.requests, first.vector_fetch.requests) == (1, 1, 1)
    again = world.scan(columns=["kind"], cache=cache).explain()
    assert again.fetch == again.data_fetch
    assert measure(world, world.scan(columns=["kind"], cache=cache)) == (again.fetch.requests, again.fetch.bytes)


def test_vectors_of_one_commit_come_in_one_request() -> None:
    world = World()
    world.create(events(1000), files=5)
    world.db.table("t").delete("amount > 20", mode="positions")
    explanation = world.scan().explain()
    assert explanation.vectors == 5
    assert explanation.vector_fetch.requests == 1


def test_inline_tombstones_cost_no_request() -> None:
    world = World()
    world.create(events(1000))
    world.db.table("t").delete("amount > 20")
    world.db.table("t").delete(keys=[4, 9], on=["id"])
    explanation = world.scan().explain()
    assert explanation.tombstone_fetch.requests == 0
    assert (explanation.where_tombstones, explanation.keys_tombstones) == (1, 1)


def test_count_needs_no_request_while_metadata_is_exact() -> None:
    world = large(30_000)
    world.store.reset()
    scan = world.scan()
    world.store.reset()
    assert scan.count() == 30_000
    world.db.table("t").delete("id < 20", mode="positions")
    scan = world.scan(where="id >= -5")
    world.store.reset()
    assert scan.count() == 29_980
    assert world.store.gets == 0


def test_count_reads_only_deciding_columns_of_undecided_row_groups() -> None:
    world = large(30_000)
    world.db.table("t").delete("id < 4100")
    scan = world.scan()
    world.store.reset()
    assert scan.count() == 25_900
    assert world.store.gets == 2  # the footer, and ids of one row group
    assert world.store.bytes_down < world.entry().files[0].footer[1] + 40_000


def test_a_limit_fetches_no_more_row_groups_than_it_needs() -> None:
    world = large()
    world.append(events(5000, start=60_000))
    scan = world.scan(limit=10)
    assert plan_of(scan).pruned == {"limit": 1}
    gets, size = measure(world, scan)
    assert gets == 2
    assert size < 600_000
    world.db.table("t").delete("amount > 300")
    gets, size = measure(world, world.scan(limit=10))
    assert gets == 2
    assert size < 600_000
    assert world.scan(limit=10_000).to_arrow().num_rows == 10_000
    assert world.scan(where="amount < 1", limit=100).to_arrow().num_rows == 100
    assert world.scan(limit=0).to_arrow().num_rows == 0


def test_files_of_this_machine_are_read_in_place(tmp_path: object) -> None:
    world = World(LocalStore(str(tmp_path)))
    world.create(events(30_000), group_rows=4096)
    assert world.scan().explain().data_fetch.requests == 0
    assert world.scan().to_arrow().num_rows == 30_000
    assert world.scan(columns=["id"], where="id > 29990").to_arrow()["id"].to_pylist() == list(range(29_991, 30_000))


def test_ranges_are_merged_over_gaps_that_cost_less_than_a_request() -> None:
    assert coalesce([Range(10, 20), Range(0, 5), Range(25, 30)], gap=5, most=100) == [Range(0, 30)]
    assert coalesce([Range(0, 5), Range(11, 20)], gap=5, most=100) == [Range(0, 5), Range(11, 20)]
    assert coalesce([Range(0, 60), Range(60, 90), Range(90, 120)], gap=5, most=100) == [Range(0, 90), Range(90, 120)]
    assert coalesce([Range(0, 500)], gap=5, most=100) == [Range(0, 500)]
    assert coalesce([]) == []


def test_no_request_is_larger_than_its_bound() -> None:
    rng = np.random.default_rng(1)
    starts = np.cumsum(rng.integers(1, 3 << 20, 200))
    found = coalesce(Range(int(s), int(s) + 100_000) for s in starts)
    assert max(part.length for part in found) <= MERGED_BYTES
    assert all(any(part.start <= s and s + 100_000 <= part.end for part in found) for s in starts)


def test_reading_what_was_not_fetched_is_an_error_and_never_zeros() -> None:
    file = FetchedFile([(4, b"abcd"), (20, b"efgh")], 30)
    file.seek(5)
    assert file.read(3) == b"bcd"
    for start, length in ((0, 4), (6, 4), (10, 2), (22, 8)):
        file.seek(start)
        with pytest.raises(AssertionError, match="not fetched"):
            file.read_buffer(length)


def test_the_cache_is_bounded_and_drops_what_was_not_used() -> None:
    cache = ObjectCache(100)
    for number in range(5):
        cache.put(("footer", str(number), 0), number, 30)
        cache.get(("footer", "0", 0))
    assert cache.memory.bytes <= 100
    assert cache.get(("footer", "0", 0)) == 0
    assert cache.get(("footer", "1", 0)) is None
    cache.put(("footer", "big", 0), "x", 101)
    assert cache.get(("footer", "big", 0)) is None


@pytest.mark.slow
def test_a_predicate_on_a_field_of_a_struct_reads_the_column_of_the_field() -> None:
    rows, rng = 40_000, np.random.default_rng(1)
    numbers = np.arange(rows)
    texts = pa.array([rng.bytes(60).hex() for _ in range(rows)])
    geo = pa.StructArray.from_arrays([texts, pa.array(numbers % 100 / 8)], ["name", "lat"])
    zips = pa.array((numbers % 1000).astype(str))
    address = pa.StructArray.from_arrays([zips, texts, geo], ["zip", "street", "geo"], mask=pa.array(numbers % 7 == 0))
    world = World()
    world.create(pa.table({"id": numbers, "address": address}), group_rows=rows)
    whole = world.scan(columns=["id", "address"]).explain().data_fetch.bytes
    ids = world.scan(columns=["id"]).explain().data_fetch.bytes
    of_zip, of_lat = (numbers % 7 > 0) & (numbers % 1000 == 7), (numbers % 7 > 0) & (numbers % 100 == 4)
    for where, expected in (
        ("address.zip = '7'", of_zip),
        ("address.zip = '7' OR address.geo.lat = 0.5", of_zip | of_lat),
    ):
        scan = world.scan(columns=["id"], where=where)
        assert scan.explain().data_fetch.bytes < ids + whole / 20
        assert measure(world, world.scan(columns=["id"], where=where)) == foretold(world, columns=["id"], where=where)
        assert scan.to_arrow()["id"].to_pylist() == numbers[expected].tolist()
        assert (
            world.scan(where=where).to_arrow()["address"].to_pylist() == address.filter(pa.array(expected)).to_pylist()
        )
    table = world.db.table("t")
    table.delete("address.geo.lat = 0.5 AND address.street IS NOT NULL")
    table.delete("address.zip = '7'")
    assert world.scan().count() == rows - (of_zip | of_lat).sum()
    table.delete("address.zip LIKE '1%' AND address.zip <> '1'")
    scan = world.scan(columns=["id"])
    assert scan.explain().data_fetch.bytes > whole / 4, "a delete tests the street"
    table.add_column("address.note", pa.int32())
    assert (
        world.scan(where="address.note IS NULL AND address.zip IS NOT NULL").count()
        == world.scan(where="address.zip IS NOT NULL").count()
    )

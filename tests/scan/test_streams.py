"""The ways out of a scan: batches, tables, frames, Arrow streams; bounded memory, order, limit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dolmen.errors import InputError, SchemaError, TableNotFoundError
from dolmen.rows.scan.scan import plan_of, scan_files
from support.tables import World
from support.written import events


@pytest.fixture
def world() -> World:
    found = World()
    found.create(events(500), group_rows=50, files=2)
    found.db.table("t").delete("id < 10")
    return found


def test_every_way_out_gives_the_same_rows(world: World) -> None:
    scan = world.scan(columns=["id", "kind", "amount"], where="amount > 20")
    rows = scan.to_arrow()
    assert rows.num_rows == scan.count() > 100
    assert pa.Table.from_batches(scan.to_batches(), scan.schema).equals(rows)
    assert scan.to_reader().read_all().equals(rows)
    assert pa.table(scan).equals(rows)
    assert scan.to_polars().equals(pl.from_arrow(rows))
    assert pl.DataFrame(scan).equals(pl.from_arrow(rows))
    pd.testing.assert_frame_equal(scan.to_pandas(), rows.to_pandas())
    assert scan.to_duckdb().order("id").fetchall() == [tuple(row.values()) for row in rows.to_pylist()]


def test_a_duckdb_relation_can_be_run_again(world: World) -> None:
    with duckdb.connect() as connection:
        relation = world.scan(columns=["id"]).to_duckdb(connection)
        assert relation.count("*").fetchall() == relation.count("*").fetchall() == [(490,)]
        assert relation.filter("id < 100").sum("id").fetchall() == [(sum(range(10, 100)),)]


def test_parts_of_a_scan_count_and_give_the_rows_of_their_own_files(world: World) -> None:
    whole = world.scan(columns=["id"], where="id < 480")
    parts = [scan_files(whole, [file.file.path]) for file in plan_of(whole).files]
    assert [part.count() for part in parts] == [part.to_arrow().num_rows for part in parts]
    assert len(parts) == 2
    assert sum(part.count() for part in parts) == whole.count() == 470


def test_columns_come_in_the_order_asked_for(world: World) -> None:
    found = world.scan(columns=["payload", "id"], where="kind <> 'view'", limit=5).to_arrow()
    assert found.column_names == ["payload", "id"]
    assert found.num_rows == 5
    assert world.scan(where="id < 0").to_arrow().schema == world.db.table("t").schema


def test_the_result_has_the_schema_of_the_table_without_ids(world: World) -> None:
    schema = world.scan().to_arrow().schema
    assert schema.equals(events(1).schema)
    assert all(field.metadata is None for field in schema)


@pytest.mark.parametrize("columns", [["nope"], ["id", "id"], ["id", "ID"]])
def test_columns_that_are_not_there_are_named(world: World, columns: list[str]) -> None:
    with pytest.raises(SchemaError, match=columns[0]):
        world.scan(columns=columns)


def test_senseless_arguments_are_refused(world: World) -> None:
    for arguments in ({"columns": []}, {"columns": "id"}, {"limit": -1}):
        with pytest.raises(InputError):
            world.scan(**arguments)  # type: ignore[arg-type]
    with pytest.raises(SchemaError):
        world.scan(order_by="nope")
    with pytest.raises(TableNotFoundError):
        world.scan(name="nope")


def test_order_by_sorts_before_the_limit(world: World) -> None:
    assert world.scan(["id"], order_by="-id", limit=3).to_arrow()["id"].to_pylist() == [499, 498, 497]
    found = world.scan(["id"], "id < 20", order_by=["country", "-id"]).to_arrow()
    assert found.column_names == ["id"]
    rows = {row["id"]: row["country"] for row in world.rows("id < 20")}
    assert found["id"].to_pylist() == sorted(rows, key=lambda i: (rows[i], -i))


def test_order_by_puts_nan_and_null_last() -> None:
    world = World()
    nan = float("nan")
    world.create(pa.table({"x": [2.0, None, nan, 1.0], "n": [1, 2, 3, 4]}))
    assert world.scan(["n"], order_by="x").to_arrow()["n"].to_pylist() == [4, 1, 3, 2]
    assert world.scan(["n"], order_by="-x").to_arrow()["n"].to_pylist() == [1, 4, 3, 2]


@pytest.mark.slow
def test_a_stream_that_is_given_up_reads_no_further() -> None:
    world = World()
    world.create(events(40_000), group_rows=500, files=4)
    world.store.reset()
    batches = world.scan().to_batches()
    next(batches)
    batches.close()
    gc.collect()
    assert world.store.gets <= 2 + 4 * world.runtime.threads
    assert world.store.bytes_down < sum(file.size for file in world.entry().files) * 1.1


def test_an_empty_table_is_an_empty_stream() -> None:
    world = World()
    world.db.create_table("t", events(1).schema)
    assert world.scan().to_arrow().equals(events(0))
    assert world.scan().count() == 0
    assert world.scan().to_polars().shape == (0, 7)
    assert "0 of 0" in repr(world.scan().explain())


def test_plans_and_explanations_are_worth_reading(world: World) -> None:
    scan = world.scan(["id"], where="id > 300 and kind = 'view'", limit=7)
    for shown in (repr(plan_of(scan)), repr(scan), repr(scan.explain())):
        for words in ("t, version", "1 of 2", "pruned 1", "id > 300", "limit"):
            assert words in shown
    assert "requests" in repr(scan.explain())
    assert plan_of(scan)._repr_html_().startswith("<table>")
    assert "&gt;" in scan.explain()._repr_html_()


@pytest.mark.slow
def test_a_scan_of_a_large_table_takes_little_memory(tmp_path: Path) -> None:
    """600 MB of rows, through 4 requests and 3 row groups at a time; most of what is taken is kept by allocators."""
    code = f"""
        import msgspec, psutil, pyarrow as pa
        from dolmen.commit.statements.row_changes import Write
        from dolmen.base.runtime import Runtime
        from dolmen.store.cache import ObjectCache
        from dolmen.store.local_store import LocalStore
        from dolmen.transactions.transaction import unit_of
        from support.written import events
        from support.tables import World

        LocalStore.local_path = lambda self, key: None  # as if it were far away
        world = World(LocalStore({str(tmp_path)!r}), Runtime(threads=4))
        world.create(events(400_000), group_rows=1 << 16)
        (file,) = world.entry().files
        body = world.store.get(file.path).body
        with world.db.transaction() as tx:
            unit_of(tx).begin_upload()
            copies = [msgspec.structs.replace(file, path=f"data/t/2026/copy{{n}}.parquet") for n in range(12)]
            for copy in copies:
                world.store.put(copy.path, body)
            unit_of(tx).add(Write("t", world.entry().uuid, files=tuple(copies)))
        del body
        process = psutil.Process()
        pa.default_memory_pool().release_unused()
        before, peak, rows = process.memory_info().rss, 0, 0
        for batch in world.scan(cache=ObjectCache(0)).to_batches():  # by default it keeps 256 MB
            rows += batch.num_rows
            peak = max(peak, process.memory_info().rss - before)
        print(rows, peak, pa.default_memory_pool().max_memory())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    rows, peak, arrow = map(int, done.stdout.split())
    assert rows == 5_200_000
    assert arrow < 250 << 20
    assert peak < 300 << 20

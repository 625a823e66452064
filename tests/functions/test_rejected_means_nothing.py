"""A file that is rejected leaves nothing: neither the table that it would create, nor columns that it would add."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from dolmen.ingest.drops.announce_files import DropSource
from dolmen.ingest.drops.ingest_drops import ingest_with_retries
from support.functions import World

TABLE = pa.table({"wrong": ["x" * 50] * 100})


def _parquet(table: pa.Table = TABLE) -> bytes:
    data = io.BytesIO()
    parquet.write_table(table, data, compression="none", use_dictionary=False, write_page_checksum=True)
    damaged = bytearray(data.getvalue())
    damaged[400] ^= 0xFF
    return bytes(damaged)


def _arrow_stream() -> bytes:
    data = io.BytesIO()
    with ipc.new_stream(data, TABLE.schema) as stream:
        stream.write_table(TABLE)
    return data.getvalue()[:-8]


BAD = {
    "new/1.parquet": _parquet(),
    "new/1.arrows": _arrow_stream(),
    "new/1.csv": b"\0\1wrong\n\2\3\n",
    "new/1.jsonl": '{"wrong": 1}\n{"wrong": \n',
    "new/1.csv.gz": b"\x1f\x8b and no more",
    "new/1.txt": "wrong",
}
"""Files that are rejected; of some, the columns are known before the fault is found."""

Ingest = Callable[..., Any]


def _by_events(world: World, monkeypatch: pytest.MonkeyPatch) -> Ingest:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    return lambda *records: world.ingest(*records)


def _by_listing(world: World, monkeypatch: pytest.MonkeyPatch) -> Ingest:
    url = world.landing.url

    def ingest(*records: Any) -> None:
        source = DropSource.of(f"{url}/landing", database=world.url, rejected_url=f"{url}/rejected")
        for _ in ingest_with_retries(world.database, source.landing, list(source.drops()), auto_create=True):
            pass

    return ingest


@pytest.fixture(params=[_by_events, _by_listing])
def ingest(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> Ingest:
    made: Ingest = request.param(world, monkeypatch)
    return made


@pytest.mark.parametrize("path", BAD)
def test_a_rejected_file_creates_no_table(world: World, ingest: Ingest, path: str) -> None:
    world.create()
    ingest(world.drop(path, BAD[path]))
    assert len(world.rejects()) == 1
    assert world.database.tables() == ["events"]
    ingest(world.drop("new/2.csv", "id\n1\n"))
    assert world.rows("new") == [{"id": 1}]
    assert len(world.rejects()) == 1


def test_of_one_batch_the_first_file_that_can_be_read_creates_the_table(world: World, ingest: Ingest) -> None:
    bodies = {**BAD, "new/2.csv": "id\n1\n", "new/3.csv": "id\n2\n", "new/4.csv": "other\n2\n"}
    ingest(*[world.drop(path, body) for path, body in bodies.items()])
    assert world.rows("new") == [{"id": 1}, {"id": 2}]
    assert len(world.rejects()) == len(BAD) + 1
    assert [commit.operation for commit in world.database.history()][-1] == "ingest"


def test_a_file_without_rows_creates_the_table(world: World, ingest: Ingest) -> None:
    ingest(world.drop("new/1.csv", "id,name\n"))
    assert world.rejects() == {}
    assert world.database.table("new").schema.names == ["id", "name"]


def test_a_rejected_file_adds_no_column(world: World, ingest: Ingest) -> None:
    world.create("new", pa.schema([("id", pa.int64())]), primary_key=None)
    world.database.table("new").set(ingest_new_columns="add")
    table = pa.table({"id": range(100), **TABLE.to_pydict()})
    ingest(world.drop("new/1.parquet", _parquet(table.select(["wrong", "id"]))), world.drop("new/2.csv", "id,n\n1,2\n"))
    assert world.database.table("new").schema.names == ["id", "n"]
    assert world.rows("new") == [{"id": 1, "n": 2}]
    assert len(world.rejects()) == 1

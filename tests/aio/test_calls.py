"""``dolmen.aio``: the names of ``dolmen``, awaited beside an event loop that goes on."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import dolmen
import dolmen.aio
from dolmen import Database, Table
from dolmen.base.runtime import Runtime
from dolmen.errors import ConflictError, TableNotFoundError
from dolmen.store import open_store
from dolmen.store.base import Object
from dolmen_simulator.counting import CountingStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    url = f"memory://aio-{next(_numbers)}"
    dolmen.open(url).create_table("people", SCHEMA, primary_key="id")
    return url


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]})


def test_calls_are_those_of_dolmen(url: str, tmp_path: Any) -> None:
    async def story() -> None:
        db = dolmen.aio.open(url)
        people = db.table("people")
        assert (await people.append(rows(1, 2, 3))).rows == 3
        assert (await people.count("id > 1"), people.columns, db.version) == (2, ["id", "name"], 2)
        assert await db.tables() == ["people"]
        scan = await people.scan(["id"], batch_size=1)
        assert [batch["id"].to_pylist() async for batch in scan] == [[1], [2], [3]]
        assert [batch.num_rows async for batch in await scan.to_batches()] == [1, 1, 1]
        assert (await (await scan.to_reader()).read_all()).num_rows == 3
        result = await db.sql("SELECT id, name FROM people ORDER BY id")
        assert [row async for row in result] == [(1, "n1"), (2, "n2"), (3, "n3")]
        assert await result.fetchone() == (1, "n1")
        other = await db.create_table("other", SCHEMA)
        await other.append(scan)
        assert await other.count() == 3
        old = await db.at(version=2)
        assert await old.table("people").count() == 3
        assert (await old["people"].to_arrow()).num_rows == 3
        changes = await people.changes(1)
        assert sum([batch.num_rows async for batch in changes]) == 3
        await people.delete("id = 1")
        assert (await people.head()).num_rows == 2
        async with db:
            await people.drop()
        with pytest.raises(TableNotFoundError):
            await people.count()

    asyncio.run(story())


def test_handles_may_be_awaited_too_which_raises_their_errors_at_once(url: str) -> None:
    async def run() -> int:
        db = await dolmen.aio.open(url)
        await db.create_table("t", "id BIGINT")
        with pytest.raises(TableNotFoundError, match="nope"):
            await db.table("nope")
        async with await db.transaction() as tx:
            await (await tx.table("t")).append({"id": [1, 2]})
        return int(await (await db.table("t")).count())

    assert asyncio.run(run()) == 2


def test_a_transaction_commits_at_the_end_of_its_block_or_not_at_all(url: str) -> None:
    async def story() -> None:
        db = dolmen.aio.open(url)
        async with db.transaction() as tx:
            await tx.table("people").append(rows(1))
            await tx.sql("INSERT INTO people VALUES (2, 'two')")
            assert await tx.table("people").count() == 2
            assert await db.table("people").count() == 0
        assert await db.table("people").count() == 2
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with db.transaction() as tx:
                await tx.table("people").append(rows(3))
                raise ZeroDivisionError
        assert await db.table("people").count() == 2
        with pytest.raises(ConflictError):  # noqa: PT012
            async with db.transaction() as tx:
                assert await tx.table("people").count() == 2
                await db.table("people").append(rows(4))
                await tx.table("people").append(rows(5))
        assert await db.table("people").count() == 3

    asyncio.run(story())


def test_the_event_loop_goes_on_while_a_call_waits(url: str) -> None:
    released = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(1).to_batches()[0]
        assert released.wait(300)
        yield rows(2).to_batches()[0]

    async def story() -> None:
        people = dolmen.aio.open(url).table("people")
        appending = asyncio.create_task(people.append(batches()))
        while await people.count():  # the other call waits for a row, and this one reads meanwhile
            pytest.fail("nothing was committed yet")
        released.set()
        await appending
        await asyncio.gather(*(people.append(rows(number)) for number in range(10, 30)))
        assert await people.count() == 22

    asyncio.run(story())


def test_no_handle_makes_the_event_loop_wait(url: str) -> None:
    """Whatever a handle asks the store for, it asks for in another thread than the loop's."""
    loop_thread = threading.get_ident()
    store = open_store(url)

    class Watched(CountingStore):
        def get(self, key: str, *arguments: Any, **options: Any) -> Object:
            assert threading.get_ident() != loop_thread, key
            return super().get(key, *arguments, **options)

    def fresh() -> dolmen.aio.AsyncObject:
        return dolmen.aio.AsyncObject(Database(Watched(store), Runtime()))

    async def story() -> None:
        for make in (
            lambda db: db.table("people").count(),
            lambda db: db["people"].append(rows(1)),
            lambda db: db.transaction().table("people").count(),
            lambda db: db.table("people").writer().append(rows(1)),
        ):
            await make(fresh())
        db = fresh()
        await db.tables()
        missing = db.table("nothing")
        with pytest.raises(TableNotFoundError):
            await missing.count()
        async with db.transaction() as tx:
            unknown = tx.table("nothing")
            with pytest.raises(TableNotFoundError):
                await unknown.count()
            handle = tx.table("people")
            await asyncio.gather(*(handle.append(rows(number)) for number in (5, 6)))
            await tx.table("people").append(data=await db.table("people").scan())
        async with fresh().table("people").writer() as writer:
            await writer.append(rows(9))
        old = (await db.at(version=1)).table("people")
        assert await old.count() == 0
        await db.create_table("nothing", SCHEMA)
        assert await missing.count() == 0, "an error is not kept"

    asyncio.run(story())


def test_writers_are_flushed_at_the_end_of_a_block(url: str) -> None:
    async def story() -> None:
        people = dolmen.aio.open(url).table("people")
        async with people.writer() as writer:
            acknowledgement = await writer.append(rows(1, 2))
            await writer.flush()
            assert (await acknowledgement.result()).version == 2
        assert await people.count() == 2

    asyncio.run(story())


def test_all_public_names_are_there(url: str) -> None:
    db, wrapped = dolmen.open(url), dolmen.aio.open(url)
    for sync, awaited in ((db, wrapped), (db.table("people"), wrapped.table("people"))):
        names = [name for name in dir(sync) if not name.startswith("_")]
        assert len(names) > 20
        for name in names:
            is_call = callable(getattr(type(sync), name, None))
            assert callable(getattr(awaited, name)) is is_call, name
        assert set(names) <= set(dir(awaited))
    for name in ("_context", "nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(wrapped, name)
    assert repr(wrapped.table("people")) == f"<dolmen.aio {Table.__name__}>"

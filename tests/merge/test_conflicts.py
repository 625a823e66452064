"""What others commit while an update or a merge runs: it starts again where that may matter, and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database, Delete, Expression, Update
from dolmen.api.database import Table
from dolmen.base.runtime import Runtime
from dolmen.errors import ConflictError, TableNotFoundError, UnknownOutcomeError
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.commit_world import (
    ScriptedStore,
    deny,
    land_late,
    lose_the_request,
    lose_the_response,
    meanwhile,
    retry_below,
)
from support.crashing_store import Countdown, Crash, CrashingStore
from support.writers import context, increments, start
from support.writers import rows as rows_of_a_writer

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
PLUS: dict[str, Any] = {"n": Expression("n + 1")}
SOME = [Delete(when="source.n > 1000"), Update({"n": "target.n + source.n"}, when="source.n > 0")]


@pytest.fixture
def store(bucket: MemoryBucket) -> ScriptedStore:  # type: ignore[override]
    return ScriptedStore(bucket, Runtime())


@pytest.fixture
def table(db: Database, other: Database) -> Table:
    """Ids 0 to 9 in one file."""
    db.create_table("t", SCHEMA, primary_key="id").append({"id": range(10), "n": [0] * 10})
    return db.table("t")


def rows(db: Database) -> dict[int, int]:
    found = db.table("t").scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["n"] for row in found}


def zeros(**but: int) -> dict[int, int]:
    return {**dict.fromkeys(range(10), 0), **{int(id_[1:]): n for id_, n in but.items()}}


def update(table: Table) -> None:
    table.update(PLUS, "id BETWEEN 3 AND 4 OR id > 70 AND id < 80")


def merge(table: Table) -> None:
    source = {"id": [3, 4, *range(71, 80)], "n": [1] * 11}
    table.merge(source, "id", SOME, None)


ACTS = pytest.mark.parametrize("act", [update, merge])


@ACTS
@pytest.mark.parametrize(
    ("change", "expected", "replays"),
    [
        (lambda table: table.append({"id": [77], "n": [40]}), zeros(_3=1, _4=1, _77=41), True),
        (lambda table: table.append({"id": [90], "n": [40]}), zeros(_3=1, _4=1, _90=40), False),
        (lambda table: table.upsert({"id": [3], "n": [10]}), zeros(_3=11, _4=1), True),
        (lambda table: table.update({"n": Expression("n + 10")}, "id = 4"), zeros(_3=1, _4=11), True),
        (lambda table: table.overwrite({"id": [3, 50], "n": [7, 7]}), {3: 8, 50: 7}, True),
        (lambda table: table.delete("id > 3"), {0: 0, 1: 0, 2: 0, 3: 1}, True),
    ],
)
def test_what_others_commit_is_not_lost(
    table: Table,
    store: ScriptedStore,
    other: Database,
    act: Callable[[Table], None],
    change: Callable[[Table], Any],
    expected: dict[int, int],
    replays: bool,
) -> None:
    store.script.append(meanwhile(lambda: change(other.table("t"))))
    act(table)
    assert rows(other) == expected
    assert sum(key.startswith("tombstone/") for key in store.puts) == 1 + replays, "positions are uploaded each time"
    assert other.verify(deep=True).ok


@ACTS
def test_files_that_are_compacted_keep_what_is_changed(
    table: Table, store: ScriptedStore, other: Database, act: Callable[[Table], None]
) -> None:
    for id_ in range(20, 28):
        table.append({"id": [id_], "n": [0]})
    store.script.append(meanwhile(other.compact))
    act(table)
    assert rows(other) == {**zeros(_3=1, _4=1), **dict.fromkeys(range(20, 28), 0)}
    assert other.verify(deep=True).ok


@ACTS
def test_a_table_that_is_dropped_is_not_there(
    table: Table, store: ScriptedStore, other: Database, act: Callable[[Table], None]
) -> None:
    store.script.append(meanwhile(lambda: other.drop_table("t")))
    with pytest.raises(TableNotFoundError):
        act(table)


@ACTS
def test_columns_that_change_meanwhile_are_seen(
    table: Table, store: ScriptedStore, other: Database, act: Callable[[Table], None]
) -> None:
    store.script.append(meanwhile(lambda: other.table("t").add_column("extra", pa.string(), "x")))
    act(table)
    assert rows(other) == zeros(_3=1, _4=1)
    assert set(other.table("t").scan(["extra"]).to_arrow()["extra"].to_pylist()) == {"x"}


@ACTS
@pytest.mark.parametrize("fault", [lose_the_request, lose_the_response, retry_below])
def test_lost_answers_neither_lose_nor_double_a_change(
    table: Table, store: ScriptedStore, other: Database, act: Callable[[Table], None], fault: Any
) -> None:
    store.script.append(fault)
    act(table)
    assert rows(other) == zeros(_3=1, _4=1)
    assert other.verify(deep=True).ok


def test_an_outcome_that_nobody_knows_is_told_and_a_request_may_be_tried_again(
    table: Table, store: ScriptedStore, other: Database
) -> None:
    store.script += [land_late, deny]
    with pytest.raises(UnknownOutcomeError):
        table.update(PLUS, "id = 3", request="u")
    store.land()
    assert table.update(PLUS, "id = 3", request="u").already
    assert rows(other) == zeros(_3=1)


def test_in_a_transaction_a_conflict_is_its_callers(table: Table, db: Database, other: Database) -> None:
    tx = db.transaction()
    tx.table("t").update(PLUS, "id = 3")
    other.table("t").update(PLUS, "id = 3")
    with pytest.raises(ConflictError):
        tx.commit()
    assert rows(other) == zeros(_3=1)
    tries = []

    def increment(transaction: Any) -> None:
        tries.append(1)
        transaction.table("t").update(PLUS, "id = 3")
        if len(tries) == 1:
            other.table("t").update(PLUS, "id = 3")

    db.run(increment)
    assert (rows(other), len(tries)) == (zeros(_3=3), 2)


def test_of_two_updates_of_one_request_one_is_applied(table: Table, store: ScriptedStore, other: Database) -> None:
    store.script.append(meanwhile(lambda: other.table("t").update(PLUS, "id = 3", request="u")))
    assert table.update(PLUS, "id = 3", request="u").already
    assert rows(other) == zeros(_3=1)


@ACTS
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_request_changes_all_rows_or_none(
    bucket: MemoryBucket, table: Table, act: Callable[[Table], None], after: bool
) -> None:
    before = dict(bucket.objects)
    outcomes = set()
    for left in range(1, 20):
        own = MemoryBucket()
        own.objects.update(before)
        crashing: Any = CrashingStore(MemoryStore(own, Runtime()), countdown := Countdown(left, after=after))
        try:
            act(Database(crashing, Runtime(threads=1)).table("t"))
        except Crash:
            pass
        else:
            assert countdown.done < left
            break
        there = Database(MemoryStore(own, Runtime()), Runtime())
        outcomes.add(tuple(sorted(rows(there).items())))
        assert there.verify(deep=True).ok
    else:
        raise AssertionError("it needs more requests than expected")
    everything, nothing = (tuple(sorted(found.items())) for found in (zeros(_3=1, _4=1), zeros()))
    assert outcomes == ({everything, nothing} if after else {nothing})


@pytest.mark.slow
def test_threads_that_increment_a_counter_lose_nothing(bucket: MemoryBucket, table: Table) -> None:
    writers, times = 4, 5
    failures: list[BaseException] = []

    def increment(number: int) -> None:
        own = Database(MemoryStore(bucket, Runtime()), Runtime()).table("t")
        try:
            for step in range(times):
                if (number + step) % 2:
                    own.update(PLUS, "id = 3")
                else:
                    own.merge([{"id": 3, "n": 1}], "id", {"n": "target.n + source.n"}, None)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=increment, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rows(Database(MemoryStore(bucket, Runtime()), Runtime())) == zeros(_3=writers * times)


@pytest.mark.slow
def test_processes_that_increment_a_counter_lose_nothing(tmp_path: Path) -> None:
    url, processes, times = str(tmp_path / "db"), 4, 6
    db = dolmen.open(url)
    counter = rows_of_a_writer(1, 2, writer=0)
    db.create_table("rows", counter.schema, primary_key="id").append(counter)
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]
    running = [start(increments, url, times, sender) for _, sender in pipes]
    for (receiver, _), process in zip(pipes, running, strict=True):
        while not receiver.poll(0.1):
            assert process.exitcode in (None, 0), "a writer died: see its traceback above"
        assert receiver.recv() == times
        process.join(30)
    found = dolmen.open(url).table("rows").scan(["id", "value"], order_by="id").to_arrow().to_pylist()
    assert found == [{"id": 1, "value": processes * times}, {"id": 2, "value": 0}]
    assert db.verify(deep=True).ok

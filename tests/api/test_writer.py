"""Buffered writers: what is acknowledged is committed, in order; nothing is committed twice; memory has a bound."""

from __future__ import annotations

import threading
from concurrent.futures import as_completed

import pyarrow as pa
import pytest

from dolmen import Database, Table
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    InputError,
    LimitError,
    PredicateError,
    SchemaError,
    StoreUnavailableError,
)
from dolmen.store.base import PutOutcome
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
FOREVER = 3_600.0


class FailingStore(MemoryStore):
    """A store whose next puts fail, or wait."""

    failures = 0
    gate: threading.Event | None = None

    def put(self, key: str, body: bytes | bytearray | memoryview, *, if_match: str | None = None) -> PutOutcome:
        if key.startswith("data/") and self.gate is not None:
            self.gate.wait(60)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("no connection")
        return super().put(key, body, if_match=if_match)


@pytest.fixture(params=[1, 4], ids=["inline", "thread"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return replace(Runtime(), threads=request.param)


@pytest.fixture
def store(runtime: Runtime) -> FailingStore:
    return FailingStore(MemoryBucket(runtime.clock_us, "writer"), runtime)


@pytest.fixture
def table(store: FailingStore, runtime: Runtime) -> Table:
    return Database(store, runtime).create_table("t", SCHEMA, primary_key="id")


def rows(*ids: int, v: str = "x") -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=SCHEMA)


def ids(table: Table) -> list[int]:
    return sorted(table.scan(["id"]).to_arrow()["id"].to_pylist())


def test_rows_of_many_calls_become_one_commit_with_one_file(table: Table) -> None:
    with table.writer(max_seconds=FOREVER) as writer:
        told = [writer.append(rows(at)) for at in range(50)]
        assert not any(each.done() for each in told)
    commits = {each.result().version for each in told}
    assert commits == {2}
    assert told[0].result().counts.files_added == 1
    assert told[0].result().counts.rows_added == 50
    assert ids(table) == list(range(50))


def test_a_commit_begins_when_enough_rows_wait(table: Table) -> None:
    with table.writer(max_rows=10, max_seconds=FOREVER) as writer:
        told = [writer.append(rows(at)) for at in range(10)]
        done = next(as_completed(told, timeout=60))
        assert done.result().counts.rows_added == 10


def test_a_commit_begins_when_a_call_has_waited_long_enough(runtime: Runtime, table: Table) -> None:
    with table.writer(max_seconds=0.05) as writer:
        told = writer.append(rows(1))
        if runtime.threads > 1:
            next(as_completed([told], timeout=60))
    assert told.done()


def test_whoever_waits_for_an_acknowledgement_hurries_the_writer(table: Table) -> None:
    with table.writer(max_seconds=FOREVER) as writer:
        assert writer.append(rows(1)).result(60).version == 2
        assert writer.append(rows(2)).exception(60) is None


def test_a_delete_hides_what_was_written_before_it_and_not_what_comes_after(table: Table) -> None:
    table.append(rows(1, 2, 3))
    with table.writer(max_seconds=FOREVER) as writer:
        writer.append(rows(4, 5))
        writer.delete("id IN (1, 4)")
        writer.append(rows(4, v="again"))
        writer.delete(keys=[2])
        writer.delete(keys=[5])
    assert ids(table) == [3, 4]
    assert table.get(4) == {"id": 4, "v": "again"}
    assert table._context.head.refresh().manifest.version == 3


def test_deletes_by_keys_in_a_row_are_one_tombstone(table: Table) -> None:
    table.append(rows(*range(10)))
    with table.writer(max_seconds=FOREVER) as writer:
        told = [writer.delete(keys=[at]) for at in range(5)]
    assert told[0].result().counts.tombstones_added == 1
    assert ids(table) == list(range(5, 10))


def test_rows_that_do_not_fit_are_refused_at_once_and_concern_no_other_call(table: Table) -> None:
    with table.writer(max_seconds=FOREVER) as writer:
        good = writer.append(rows(1))
        with pytest.raises(SchemaError):
            writer.append(pa.table({"nonsense": [1]}))
        with pytest.raises(PredicateError):
            writer.delete("nonsense = 1")
        with pytest.raises(InputError):
            writer.delete()
    assert good.result().version == 2


def test_an_error_of_a_commit_reaches_its_calls_and_no_others(store: FailingStore, table: Table) -> None:
    with table.writer(max_seconds=FOREVER) as writer:
        store.failures = 1_000
        first, second = writer.append(rows(1)), writer.append(rows(2))
        assert isinstance(first.exception(120), StoreUnavailableError)
        assert isinstance(second.exception(120), StoreUnavailableError)
        assert first.exception() is not second.exception()
        store.failures = 0
        assert writer.append(rows(3)).result(60).version == 2
    assert ids(table) == [3]


def test_an_error_that_nobody_asks_for_is_raised_by_close(store: FailingStore, table: Table) -> None:
    writer = table.writer(max_seconds=FOREVER)
    writer.append(rows(1))
    store.failures = 1_000
    with pytest.raises(StoreUnavailableError):
        writer.close()
    writer.close()


def test_an_error_of_the_block_is_not_replaced(store: FailingStore, table: Table) -> None:
    def fail() -> None:
        with table.writer(max_seconds=FOREVER) as writer:
            writer.append(rows(1))
            store.failures = 1_000
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_request_is_applied_once_by_whatever_writer(table: Table) -> None:
    assert table.append(rows(1), request="r1").version == 2
    with table.writer(max_seconds=FOREVER) as writer:
        before, twice, twin, other = (
            writer.append(rows(1), request="r1"),
            writer.append(rows(2), request="r2"),
            writer.append(rows(2), request="r2"),
            writer.append(rows(3), request="r3"),
        )
        with pytest.raises(AppliedIdError):
            writer.append(rows(9), request="r2")
    assert twin is twice
    assert before.result().already == {"r1": 2}
    assert other.result().counts.files_added == 1
    assert table.append(rows(3), request="r3").already == {"r3": 3}
    with table.writer() as writer:
        refused = writer.append(rows(9), request="r3")
        assert isinstance(refused.exception(60), AppliedIdError)
    assert ids(table) == [1, 2, 3]


def test_a_request_that_another_applies_meanwhile_is_left_out(store: FailingStore, table: Table) -> None:
    other = Database(MemoryStore(store.bucket), Runtime()).table("t")
    with table.writer(max_seconds=FOREVER) as writer:
        told = [writer.append(rows(at), request=f"r{at}") for at in range(3)]
        plain = writer.append(rows(7))
        other.append(rows(1), request="r1")
    assert ids(table) == [0, 1, 2, 7]
    assert plain.result().version == told[0].result().version == 3
    assert told[1].result().already == {"r1": 2}


def test_too_much_at_once_is_refused_and_too_much_in_all_waits(table: Table, runtime: Runtime) -> None:
    some = rows(*range(1_000))
    with table.writer(max_seconds=FOREVER, max_bytes=3 * some.nbytes) as writer:
        with pytest.raises(LimitError, match="streams them"):
            writer.append(rows(*range(10_000)))
        for _ in range(20):
            writer.append(some)
            assert writer._buffered_bytes <= 3 * some.nbytes
    assert table.count() == 20_000


def test_calls_wait_for_the_commit_under_way_when_too_many_bytes_are_held(store: FailingStore, table: Table) -> None:
    some = rows(*range(1_000))
    with table.writer(max_seconds=FOREVER, max_bytes=some.nbytes) as writer:
        if not writer._has_thread:
            return  # without threads there is nobody to wait for
        store.gate = threading.Event()
        writer.append(some)
        waiter = threading.Thread(target=writer.append, args=(some,))
        waiter.start()
        waiter.join(0.2)
        assert waiter.is_alive()
        store.gate.set()
        waiter.join(60)
        assert not waiter.is_alive()
    assert table.count() == 2_000


def test_a_closed_writer_takes_nothing(table: Table) -> None:
    writer = table.writer()
    writer.close()
    with pytest.raises(InputError, match="closed"):
        writer.append(rows(1))


def test_a_cancelled_call_is_not_committed(table: Table) -> None:
    with table.writer(max_seconds=FOREVER) as writer:
        first, second = writer.append(rows(1)), writer.append(rows(2))
        assert first.cancel()
    assert second.done()
    assert ids(table) == [2]
    assert writer._buffered_bytes == 0


def test_columns_that_are_added_meanwhile_get_their_defaults(table: Table) -> None:
    with table.writer(max_seconds=FOREVER) as writer:
        writer.append(rows(1))
        table.add_column("more", pa.int64(), 7)
        writer.append(rows(2))
    assert [row["more"] for row in table.scan().to_arrow().to_pylist()] == [7, 7]


@pytest.mark.parametrize("way", ["dropped", "renamed"])
def test_nothing_is_written_to_another_table_that_got_the_name_meanwhile(
    store: FailingStore, runtime: Runtime, table: Table, way: str
) -> None:
    table.append(rows(1))
    writer = table.writer(max_seconds=FOREVER)
    added, deleted = writer.append(rows(2)), writer.delete("id > 0")
    other = Database(store, runtime)
    if way == "dropped":
        other.drop_table("t")
    else:
        other.rename_table("t", "u")
    other.create_table("t", SCHEMA, primary_key="id").append(rows(7))
    for waiting in (added, deleted):
        with pytest.raises(ConflictError, match="open a new writer"):
            waiting.result()
    with pytest.raises(ConflictError, match="open a new writer"):
        writer.append(rows(3))
    writer.close()
    assert ids(other.table("t")) == [7]
    if way == "renamed":
        assert ids(other.table("u")) == [1]


@pytest.mark.parametrize("name", ["v", "d"])
def test_a_column_that_goes_meanwhile_is_a_conflict(
    store: FailingStore, runtime: Runtime, table: Table, name: str
) -> None:
    table.add_column("d", pa.int64(), default=1)
    writer = table.writer(max_seconds=FOREVER)
    waiting = [writer.append(rows(2)), writer.delete("id = 1")]
    other = Database(store, runtime).table("t")
    other.drop_column(name)
    for each in waiting:
        with pytest.raises(ConflictError, match="again"):
            each.result()
    writer.append(pa.table({"id": [3]}))
    writer.close()
    assert ids(table) == [3]


def test_a_column_that_is_renamed_meanwhile_keeps_its_rows(store: FailingStore, runtime: Runtime, table: Table) -> None:
    with table.writer(max_seconds=FOREVER) as writer:
        writer.append(rows(2))
        writer.delete("v = 'y'")
        Database(store, runtime).table("t").rename_column("v", "w")
    assert table.scan().to_arrow().to_pylist() == [{"id": 2, "w": "x"}]


def replace_column(table: Table, name: str, default: int | None = None) -> None:
    table.drop_column(name)
    table.add_column(name, pa.int64(), default)


@pytest.mark.parametrize("hand_over", ["rows", "rows without it", "keys", "predicate"])
def test_rows_of_a_column_do_not_become_those_of_another_that_got_its_name(
    store: FailingStore, runtime: Runtime, table: Table, hand_over: str
) -> None:
    """Seed 96001085 of the simulation, steps 4,000."""
    table.add_column("c", pa.int64(), default=90)
    table.append([{"id": 1, "v": "x", "c": 5}])
    writer = table.writer(max_seconds=FOREVER)
    match hand_over:
        case "rows":
            waiting = writer.append([{"id": 2, "v": "x", "c": 7}])
        case "rows without it":
            waiting = writer.append(rows(2))
        case "keys":
            waiting = writer.delete(keys=[5, 30], on=["c"])
        case _:
            waiting = writer.delete("c IN (5, 30)")
    replace_column(Database(store, runtime).table("t"), "c", default=30)
    table.scan().to_arrow()  # this process knows of it
    with pytest.raises(ConflictError, match="column 'c'"):
        waiting.result()
    writer.close()
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "v": "x", "c": 30}]


def test_rows_follow_their_columns_to_other_names(store: FailingStore, runtime: Runtime, table: Table) -> None:
    table.add_column("c", pa.int64())
    table.append([{"id": 1, "v": "x", "c": 5}, {"id": 2, "v": "x", "c": 6}, {"id": 3, "v": "x", "c": 7}])
    other = Database(store, runtime).table("t")
    with table.writer(max_seconds=FOREVER) as writer:
        writer.delete(keys=[5], on=["c"])
        writer.delete("c = 6")
        writer.append([{"id": 4, "v": "y", "c": 5}])
        other.rename_column("c", "d")
        other.add_column("c", pa.int64(), default=5)
        table.scan().to_arrow()  # this process knows of it
        writer.delete(keys=[9], on=["c"])
        writer.append([{"id": 5, "v": "z", "c": 8, "d": 6}])
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 3, "v": "x", "d": 7, "c": 5},
        {"id": 4, "v": "y", "d": 5, "c": 5},
        {"id": 5, "v": "z", "d": 6, "c": 8},
    ]


def test_a_field_that_gets_the_name_of_another_gets_none_of_its_rows(store: FailingStore, runtime: Runtime) -> None:
    db = Database(store, runtime)
    table = db.create_table(
        "n", pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64()), ("b", pa.int64())]))])
    )
    writer = table.writer(max_seconds=FOREVER)
    waiting = writer.append([{"id": 1, "s": {"a": 1, "b": 2}}])
    replace_column(Database(store, runtime).table("n"), "s.a")
    db.refresh()
    with pytest.raises(ConflictError, match="again"):
        waiting.result()
    writer.close()
    assert table.scan().to_arrow().num_rows == 0


def test_threads_write_in_their_own_order(table: Table) -> None:
    with table.writer(max_rows=50, max_seconds=0.01) as writer:

        def work(number: int) -> None:
            for at in range(20):
                key = number * 100 + at
                writer.append(rows(key))
                if at % 2:
                    writer.delete(keys=[key])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ids(table) == [number * 100 + at for number in range(8) for at in range(0, 20, 2)]


def test_a_flush_of_many_calls_costs_what_one_append_costs(runtime: Runtime) -> None:
    store = CountingStore(MemoryStore(MemoryBucket(runtime.clock_us, "counted"), runtime))
    table = Database(store, runtime).create_table("t", SCHEMA)
    store.reset()
    with table.writer(max_seconds=FOREVER) as writer:
        for at in range(100):
            writer.append(rows(at))
    assert (store.puts, store.gets, store.heads, store.lists) == (3, 0, 0, 0)


@pytest.mark.parametrize("bound", [{"max_rows": 0}, {"max_bytes": 0}, {"max_seconds": -1}, {"max_seconds": "1"}])
def test_bounds_are_positive(table: Table, bound: dict[str, int]) -> None:
    with pytest.raises(InputError):
        table.writer(**bound)

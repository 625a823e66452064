"""``upsert(skip_equal=True)``: rows that the table has already are not written again, whatever others commit."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from api.test_insert import World, rows
from dolmen import Database
from dolmen.errors import ConflictError, InputError

KINDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False), ("f", pa.float64()), ("s", pa.string()), ("b", pa.binary()),
        ("d", pa.date32()), ("t", pa.timestamp("us", tz="UTC")), ("n", pa.decimal128(9, 2)), ("y", pa.bool_()),
        ("l", pa.list_(pa.float32())), ("m", pa.map_(pa.string(), pa.int64())),
        ("r", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    ]
)  # fmt: skip
NAN = float("nan")
FULL: dict[str, Any] = {
    "id": 1, "f": NAN, "s": "x", "b": b"\0", "d": date(2026, 1, 1), "t": datetime(2026, 1, 1, tzinfo=UTC),
    "n": Decimal("1.50"), "y": True, "l": [1.5, None, NAN], "m": [("k", 1)], "r": {"a": None, "b": ["x", None]},
}  # fmt: skip
EMPTY: dict[str, Any] = dict.fromkeys(KINDS.names) | {"id": 2}
OTHERS: dict[str, Any] = {
    "f": 0.0, "s": "", "b": b"", "d": date(2026, 1, 2), "t": datetime(2026, 1, 1, 1, tzinfo=UTC),
    "n": Decimal("1.51"), "y": False, "l": [1.5, 2.5, NAN], "m": [("k", None)], "r": {"a": None, "b": ["x"]},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("index", [False, True])
def test_equal_rows_of_every_kind_are_skipped_and_others_written(db: Database, index: bool) -> None:
    table = db.create_table("t", KINDS, primary_key="id", properties={"index": index})
    table.append(pa.Table.from_pylist([FULL, EMPTY], KINDS))
    again = table.upsert(pa.Table.from_pylist([FULL, EMPTY], KINDS), skip_equal=True)
    assert (again.operation, again.version, again.rows_skipped) == ("nothing", 2, 2)
    assert db.refresh() == 2
    for name, value in OTHERS.items():
        for row in (FULL | {name: value}, EMPTY | {name: value}):
            commit = table.upsert(pa.Table.from_pylist([FULL, EMPTY, row], KINDS), skip_equal=True)
            assert (commit.rows_skipped, commit.counts.rows_added) == (1, 1), name
            table.upsert(pa.Table.from_pylist([FULL, EMPTY], KINDS))
    negative = pa.Table.from_pylist([FULL | {"f": -NAN}, EMPTY], KINDS)
    assert table.upsert(negative, skip_equal=True).rows_skipped == 2, "a NaN is a NaN"
    assert "equal rows skipped 2" in repr(table.upsert(negative, skip_equal=True))


def test_only_the_only_visible_row_of_a_key_counts(db: Database) -> None:
    table = db.create_table("t", KINDS, primary_key="id")
    table.append(pa.Table.from_pylist([FULL, FULL, EMPTY, FULL | {"id": 3}], KINDS))
    table.delete("id = 3")
    given = pa.Table.from_pylist([FULL, EMPTY, FULL | {"id": 3}, FULL | {"id": 4}], KINDS)
    commit = table.upsert(given, skip_equal=True)
    assert (commit.counts.rows_added, commit.rows_skipped) == (3, 1)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
    changes = table.changes(commit.version - 1, commit.version).read_all().select(["_change", "id"]).to_pylist()
    assert {each["id"] for each in changes if each["_change"] == "insert"} == {3, 4}
    assert 2 not in {each["id"] for each in changes}
    table.compact()
    assert table.upsert(given.to_reader(), skip_equal=True).rows_skipped == 4
    assert table.upsert([], skip_equal=True).operation == "nothing"


def test_columns_that_rows_lack_are_compared_with_their_defaults(db: Database) -> None:
    table = db.create_table("t", "id BIGINT NOT NULL, n BIGINT", primary_key="id")
    table.append({"id": [1, 2]})
    table.add_column("city", pa.string(), default="Bern")
    assert table.upsert({"id": [1, 2]}, skip_equal=True).rows_skipped == 2
    table.set_default("city", "Rome")
    assert table.upsert({"id": [1]}, skip_equal=True).rows_skipped == 0
    assert (
        table.upsert({"id": [2], "city": ["Bern"], "x": [None]}, skip_equal=True, new_columns="add").rows_skipped == 1
    )
    done = table.upsert({"id": [2, 9], "city": ["Bern", "Bern"], "x": [None, 7]}, skip_equal=True, new_columns="add")
    assert (done.rows_skipped, table.columns) == (1, ["id", "n", "city", "x"])


def test_keys_are_the_columns_that_the_call_names(db: Database) -> None:
    table = db.create_table("t", "id BIGINT, day DATE, n DOUBLE")
    first = {"id": [1, 1, 2], "day": [date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 1)], "n": [1.0, 2.0, 3.0]}
    table.append(first)
    assert table.upsert(first, ["day", "id"], skip_equal=True).rows_skipped == 3
    commit = table.upsert({"id": [1], "day": [date(2026, 1, 1)], "n": [1.0]}, "id", skip_equal=True)
    assert (commit.rows_skipped, table.count()) == (0, 2), "two rows have the key"
    with pytest.raises(InputError, match="skip_equal"):
        table.upsert(first, "id", skip_equal="yes")  # type: ignore[arg-type]


def test_a_request_may_be_repeated_with_or_without_it(db: Database) -> None:
    table = db.create_table("t", "id BIGINT NOT NULL, n BIGINT", primary_key="id")
    table.append({"id": [1], "n": [1]})
    first = table.upsert({"id": [1], "n": [1]}, skip_equal=True, request="r")
    assert (first.version, first.requests, first.rows_skipped) == (3, ("r",), 1)
    for skip_equal in (True, False):
        assert table.upsert({"id": [1], "n": [1]}, skip_equal=skip_equal, request="r").already == {"r": 3}


def test_a_transaction_compares_with_its_own_statements(db: Database) -> None:
    table = db.create_table("t", "id BIGINT NOT NULL, n BIGINT", primary_key="id")
    table.append({"id": [1, 2], "n": [1, 2]})
    with db.transaction() as tx:
        tx.table("t").upsert({"id": [1], "n": [7]})
        with suppress(ZeroDivisionError), tx.savepoint():
            tx.table("t").upsert({"id": [2], "n": [2]}, skip_equal=True)
            raise ZeroDivisionError
        tx.table("t").upsert({"id": [1, 2], "n": [7, 2]}, skip_equal=True)
        tx.table("t").upsert({"id": [1], "n": [1]}, skip_equal=True)
    assert tx.result is not None
    assert (tx.result.rows_skipped, tx.result.counts.rows_added) == (2, 2)
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]


def test_what_was_compared_must_hold_at_the_commit() -> None:
    world = World()
    world.table.append(rows(1, 2))
    world.meanwhile(lambda: world.others.upsert(rows(1, n=9)), lambda: world.others.append(rows(50)))
    commit = world.table.upsert(rows(1, 2, 3), skip_equal=True)
    assert (commit.rows_skipped, commit.counts.rows_added) == (1, 2)
    assert sorted((row["id"], row["n"]) for row in world.others.to_arrow().to_pylist()) == [
        (1, 0), (2, 0), (3, 0), (50, 0),
    ]  # fmt: skip
    world.meanwhile(lambda: world.others.upsert(rows(1, n=8)))
    with pytest.raises(ConflictError, match="read only once"):
        world.table.upsert(pa.table({"id": [1, 4], "n": [0, 0]}).to_reader(), skip_equal=True)
    assert 4 not in world.ids()
    transaction = world.db.transaction()
    transaction.table("t").upsert(rows(2), skip_equal=True)
    transaction.table("t").append(rows(60))
    world.others.delete("id = 2")
    with pytest.raises(ConflictError):
        transaction.commit()


def test_only_files_that_may_have_the_keys_are_read() -> None:
    world = World()
    for first in range(0, 500, 100):
        world.table.append(rows(*range(first, first + 100)))
    world.table.upsert(rows(7), skip_equal=True)
    world.store.reset()
    assert world.table.upsert(rows(150, 160), skip_equal=True).rows_skipped == 2
    # The pointer, and of the one file the footer is in the manifest: its rows.
    assert (world.store.gets, world.store.puts, world.store.lists, world.store.heads) == (2, 0, 0, 0)
    world.store.reset()
    assert world.table.upsert(rows(1_000, 2_000), skip_equal=True).rows_skipped == 0
    assert (world.store.gets, world.store.puts) == (1, 4)  # no file; rows, tombstone, manifest and pointer

"""Sequences and keys of every type that may be one; what statistics tell of rows that were written otherwise."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen import Database
from dolmen.commit.statements.row_changes import Advance, is_above_all, sequence_to_forget
from dolmen.errors import ConflictError, SchemaError
from dolmen.format.manifest import Mark, Sequences
from dolmen.ingest.drops.drop_outcomes import RowCounts
from dolmen.store.memory import MemoryStore
from dolmen.transactions.transaction import unit_of
from dolmen_simulator.counting import CountingStore
from support.changes import Feed

SEQUENCES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-3, 0, 7, 100],
    pa.uint64(): [1, 2**53 + 1, 2**63 + 1, 2**64 - 1],
    pa.string(): ["", "a", "mysql-bin.000003/00000000000000000099", "mysql-bin.000003/00000000000000000154"],
    pa.decimal128(38, 2): [
        Decimal("-1.5"),
        Decimal("0.25"),
        Decimal("10"),
        Decimal("123456789012345678901234567890.25"),
    ],
    pa.date32(): [date(1, 1, 1), date(1969, 12, 31), date(2026, 1, 5), date(9999, 12, 31)],
    pa.timestamp("us"): [
        datetime(1960, 1, 1),
        datetime(2026, 1, 5),
        datetime(2026, 1, 5, 0, 0, 0, 1),
        datetime(9999, 1, 1),
    ],
    pa.timestamp("us", tz="UTC"): [datetime(2026, 1, 5, second=n, tzinfo=UTC) for n in range(4)],
    pa.binary(): [b"", b"\x00", b"\x7f" * 20, b"\xff" * 20],
}
KEYS: dict[pa.DataType, list[Any]] = {
    **SEQUENCES,
    pa.bool_(): [True, False, True, False],
    pa.binary(4): [b"aaaa", b"bbbb", b"cccc", b"\xff\xff\xff\xff"],
    pa.time64("us"): [datetime(2026, 1, 1, n).time() for n in range(4)],
}  # fmt: skip


def parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    """A file of changes."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema.append(pa.field("Op", pa.string()))), sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("kind", SEQUENCES, ids=str)
def test_sequences_of_a_type_order_its_changes(kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("seq", kind)])
    feed = Feed()
    feed.create(schema)
    steps = [{"id": 1, "v": str(place), "seq": seq, "Op": "U"} for place, seq in enumerate(SEQUENCES[kind])]

    def drop(place: int, **more: Any) -> RowCounts:
        return feed.drop(f"{len(feed.counts)}", parquet([{**steps[place], **more}], schema), "t/a.parquet")

    changed, void = RowCounts(upserted=1), RowCounts(unchanged=1)
    assert [drop(1), drop(0), drop(2), drop(1), drop(2, v="again")] == [changed, void, changed, void, void]
    assert drop(3, Op="D") == RowCounts(deleted=1)
    assert [drop(3), drop(2, v="late")] == [void, void]
    assert feed.place.db.table("t").count() == 0
    memory = feed.place.db.table("t__deleted").to_arrow()
    assert memory["seq"].type == kind
    assert memory.to_pylist() == [{"id": 1, "seq": SEQUENCES[kind][3]}]


@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_keys_of_a_type_are_found_one_by_one_and_beside_others(kind: pa.DataType) -> None:
    for schema, key in (
        (pa.schema([("id", kind), ("v", pa.string()), ("seq", pa.int64())]), ["id"]),
        (pa.schema([("n", pa.int32()), ("id", kind), ("v", pa.string()), ("seq", pa.int64())]), ["n", "id"]),
    ):
        feed = Feed()
        feed.create(schema, key)
        values = list(dict.fromkeys(KEYS[kind]))
        rows = [{"n": n % 2, "id": value, "v": "a", "seq": 10 + n, "Op": "I"} for n, value in enumerate(values)]
        feed.drop("a", parquet(rows, schema), "t/a.parquet")
        assert feed.drop("b", parquet(rows, schema), "t/a.parquet") == RowCounts(unchanged=len(rows))
        gone = [{**row, "Op": "D", "seq": 20} for row in rows[:1]]
        feed.drop("c", parquet(gone, schema), "t/a.parquet")
        newer = [{**row, "v": "b", "seq": 19} for row in rows]
        counts = feed.drop("d", parquet(newer, schema), "t/a.parquet")
        assert counts == RowCounts(upserted=len(rows) - 1, unchanged=1)
        found = feed.place.db.table("t").to_arrow().to_pylist()
        assert {row["id"] for row in found} == set(values[1:])
        assert {row["v"] for row in found} == {"b"}


@pytest.mark.parametrize("kind", [pa.float64(), pa.bool_(), pa.list_(pa.int64())], ids=str)
def test_a_type_that_orders_nothing_is_no_sequence(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="cannot order"):
        Feed().create(pa.schema([("id", pa.int64()), ("v", pa.string()), ("seq", kind)]))


def test_positions_in_a_log_that_statistics_cut_are_applied_without_a_look() -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("seq", pa.string())])
    feed = Feed()
    feed.create(schema)
    store = CountingStore(MemoryStore(feed.place.bucket, feed.place.runtime()))
    database = Database(store, feed.place.runtime())

    def gets(place: int) -> int:
        store.reset()
        rows = [{"id": 1, "v": "a", "seq": f"mysql-bin.000003/{place:020}", "Op": "U"}]
        feed.apply(feed.request(str(place), parquet(rows, schema), "t/a.parquet"), database=database)
        return store.gets

    database.table("t").count()
    assert [gets(place) for place in (10, 11, 12)] == [1, 1, 1]  # the pointer
    assert gets(11 - 10) > 1


def test_what_is_above_all_of_a_table() -> None:
    feed = Feed()
    feed.create()
    table = feed.place.db.table("t")

    def above(least: int) -> bool:
        entry = feed.place.db._context.head.refresh().manifest.table("t")
        return is_above_all(entry, entry.schema.field("seq"), least)

    assert above(-(2**63)), "of an empty table"
    table.append([{"id": 1, "v": "a", "seq": None}])
    assert above(-(2**63)), "rows without a sequence are below all"
    table.append([{"id": 2, "v": "a", "seq": 5}])
    assert [above(5), above(6)] == [False, True]
    table.delete("TRUE")
    assert not above(5), "statistics tell what a file may hold, not what is left of it"


def test_the_sequence_is_checked_again_on_whatever_version_the_changes_are_applied_to() -> None:
    feed = Feed()
    feed.create()
    feed.drop("a", b'{"id": 1, "v": "a", "seq": 10}\n')
    memory = feed.place.db._context.head.refresh().manifest.table("t__deleted").uuid
    for above, conflict in ((11, False), (10, True), (None, False)):
        with feed.place.db.transaction() as transaction:
            entry = unit_of(transaction).entry("t")
            column = entry.schema.field("seq").id
            advance = Advance("t", entry.uuid, column, greatest=10, above=above, memory=memory, memory_us=16)
            if conflict:
                with pytest.raises(ConflictError, match="repeat them"):
                    unit_of(transaction).add(advance)
            else:
                unit_of(transaction).add(advance)


def test_only_what_is_old_enough_may_be_forgotten() -> None:
    sequences = Sequences(9, "m", None, (Mark(100, 3), Mark(200, 5), Mark(300, 9)))
    assert [sequence_to_forget(sequences, before) for before in (99, 100, 250, 1000)] == [None, 3, 5, 9]
    assert sequence_to_forget(None, 1000) is None

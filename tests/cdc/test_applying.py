"""What a file of changes does to its table, to the memory of deleted keys, and what that costs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dolmen import Database, Transaction
from dolmen.errors import InputError, InvalidNameError, RowError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.ingest.batch import BatchRequest, Decision
from dolmen.ingest.cdc import deleted_keys
from dolmen.ingest.drops.drop_outcomes import RowCounts
from dolmen.store.memory import MemoryStore
from dolmen.transactions.transaction import unit_of
from dolmen_simulator.counting import CountingStore
from support.aging import DAY_US
from support.changes import COLUMNS, Change, Feed, File


@pytest.fixture
def feed() -> Feed:
    feed = Feed()
    feed.create()
    return feed


def put(key: int, seq: int) -> Change:
    return Change(key, seq, f"v{seq}")


def gone(key: int, seq: int) -> Change:
    return Change(key, seq, None)


def file(id: str, *changes: Change) -> File:
    return File(id, changes)


def deliver(feed: Feed, id: str, *changes: Change) -> RowCounts:
    feed.deliver(file(id, *changes))
    return feed.counts[id]


def entry(feed: Feed, name: str = "t") -> TableEntry:
    return feed.place.open()._context.head.refresh().manifest.table(name)


def remembered(feed: Feed) -> list[tuple[int, int]]:
    rows = feed.place.db.table("t__deleted").to_arrow().to_pylist()
    return sorted((row["id"], row["seq"]) for row in rows)


def test_inserts_updates_and_deletes_of_a_batch_are_one_commit(feed: Feed) -> None:
    deliver(feed, "a", put(1, 1), put(2, 2), put(3, 3))
    version = feed.place.db.version
    folded = feed.deliver(file("b", put(1, 4), gone(2, 5)), file("c", put(4, 6), gone(3, 7)))
    assert feed.place.db.version == version + 1 == folded.outcomes[0].version == folded.outcomes[1].version
    assert feed.rows() == {1: (4, "v4"), 4: (6, "v6")}
    assert remembered(feed) == [(2, 5), (3, 7)]


def test_of_changes_of_a_key_the_greatest_sequence_holds_and_of_equal_ones_the_last_of_the_file(feed: Feed) -> None:
    counts = deliver(feed, "a", put(1, 9), put(1, 3), gone(2, 5), Change(2, 5, "after"), Change(3, 5, "x"), gone(3, 5))
    assert feed.rows() == {1: (9, "v9"), 2: (5, "after")}
    assert counts == RowCounts(upserted=2, deleted=1, unchanged=3)


def test_equal_sequences_of_a_file_are_in_its_order_across_portions(feed: Feed) -> None:
    feed.portion_rows = 1
    deliver(feed, "a", Change(1, 5, "one"), Change(1, 5, "two"), Change(2, 5, "x"), gone(2, 5), Change(2, 4, "old"))
    assert feed.rows() == {1: (5, "two")}
    deliver(feed, "b", Change(1, 5, "other file"), Change(2, 5, "other file"))
    assert feed.rows() == {1: (5, "two")}, "of equal ones of two files the first applied holds"


def test_a_file_that_overlaps_changes_only_what_is_older(feed: Feed) -> None:
    deliver(feed, "a", put(1, 10), gone(2, 20), put(3, 30))
    counts = deliver(feed, "b", put(1, 11), put(2, 19), gone(3, 29), put(4, 5), gone(5, 6))
    assert counts == RowCounts(upserted=2, deleted=1, unchanged=2)
    assert feed.rows() == {1: (11, "v11"), 3: (30, "v30"), 4: (5, "v5")}
    assert deliver(feed, "c", put(5, 4), put(2, 21)) == RowCounts(upserted=1, unchanged=1)
    assert feed.rows()[2] == (21, "v21")


def test_a_redelivered_file_changes_nothing_under_its_id_and_under_another(feed: Feed) -> None:
    changes = (put(1, 1), gone(2, 2), put(3, 3))
    deliver(feed, "a", *changes)
    before = entry(feed)
    assert feed.deliver(file("a", *changes)).outcomes[0].status == "duplicate"
    assert deliver(feed, "again", *changes) == RowCounts(unchanged=3)
    assert entry(feed) == before
    assert feed.deliver(file("again", *changes)).outcomes[0].status == "duplicate"


def test_rows_written_otherwise_are_compared_too() -> None:
    feed = Feed()
    feed.create()
    rows = [{"id": 1, "v": "loaded", "seq": 100}, {"id": 2, "v": "loaded", "seq": None}, {"id": 3, "v": "l", "seq": 1}]
    feed.place.db.table("t").append(pa.Table.from_pylist(rows, COLUMNS))
    assert deliver(feed, "a", put(1, 50), put(2, 51), put(3, 52)) == RowCounts(upserted=2, unchanged=1)
    assert feed.rows() == {1: (100, "loaded"), 2: (51, "v51"), 3: (52, "v52")}
    feed.place.db.table("t").append(pa.Table.from_pylist([{"id": 4, "v": "by hand", "seq": 200}], COLUMNS))
    deliver(feed, "b", put(4, 150), put(5, 151))
    assert feed.rows()[4] == (200, "by hand")


def test_key_of_several_columns_and_more_keys_than_are_asked_for_one_by_one() -> None:
    feed = Feed()
    schema = pa.schema([("tenant", pa.string()), ("id", pa.int64()), ("v", pa.string()), ("seq", pa.int64())])
    feed.create(schema, ["tenant", "id"])
    lines = [f'{{"Op":"I","tenant":"t{n % 2}","id":{n // 2},"v":"a","seq":{10 + n}}}\n' for n in range(3000)]
    feed.drop("a", "".join(lines).encode())
    assert feed.drop("b", "".join(reversed(lines)).encode()) == RowCounts(unchanged=3000)
    newer = [f'{{"Op":"U","tenant":"t1","id":{n},"v":"b","seq":{n * 2 + 12}}}\n' for n in range(1500)]
    assert feed.drop("c", "".join(newer).encode()) == RowCounts(upserted=1500)
    table = feed.place.db.table("t")
    assert (table.count({"v": "b", "tenant": "t1"}), table.count()) == (1500, 3000)


def test_what_is_older_than_the_memory_is_forgotten_and_stragglers_are_refused(feed: Feed) -> None:
    deliver(feed, "a", put(1, 10), put(2, 11), gone(2, 12), put(3, 13))
    feed.place.now_us += 4 * DAY_US
    deliver(feed, "b", gone(3, 20))
    feed.place.now_us += 4 * DAY_US  # what "a" did is forgotten, what "b" did is not
    deliver(feed, "c", put(4, 30))
    assert remembered(feed) == [(3, 20)]
    sequences = entry(feed).sequences
    assert sequences is not None
    assert (sequences.forgotten_through, sequences.greatest) == (13, 30)
    with pytest.raises(RowError, match="row 2, column 'seq': straggler"):
        deliver(feed, "d", put(1, 9), put(2, 11))
    assert feed.rows() == {1: (10, "v10"), 4: (30, "v30")}
    feed.quarantine = True
    counts = deliver(feed, "e", put(2, 13), gone(2, 12), put(1, 9), put(3, 19), put(5, 14), put(6, 1))
    assert [(bad.row, bad.column) for bad in feed.bad] == [(1, "seq"), (6, "seq")]
    assert counts == RowCounts(upserted=1, unchanged=3)  # the delete of an unknown key is none
    assert feed.rows() == {1: (10, "v10"), 4: (30, "v30"), 5: (14, "v14")}


@pytest.mark.slow
def test_a_steady_stream_keeps_few_marks_and_a_small_memory(feed: Feed) -> None:
    for day in range(40):
        deliver(feed, f"day {day}", put(1, 10 * day), gone(2, 10 * day + 1))
        feed.place.now_us += DAY_US // 2
    sequences = entry(feed).sequences
    assert sequences is not None
    assert len(sequences.marks) <= 17
    kept = [seq for _, seq in remembered(feed)]
    assert max(kept) == 391
    assert min(kept) > int(str(sequences.forgotten_through)) >= 391 - 10 * 16
    assert len(kept) >= 14, "seven days"


def test_without_its_memory_a_table_takes_all_that_is_older_for_stragglers(feed: Feed) -> None:
    deliver(feed, "a", put(1, 10), gone(2, 20))
    feed.place.db.drop_table("t__deleted")
    deliver(feed, "b", put(1, 21), gone(3, 22))
    assert remembered(feed) == [(3, 22)]
    with pytest.raises(RowError, match="straggler"):
        deliver(feed, "c", put(2, 19))
    assert deliver(feed, "d", put(3, 21)) == RowCounts(unchanged=1)


def test_overwriting_keeps_how_far_the_changes_have_come(feed: Feed) -> None:
    deliver(feed, "a", put(1, 10), gone(2, 20))
    feed.place.db.table("t").overwrite(pa.Table.from_pylist([{"id": 7, "v": "new", "seq": 20}], COLUMNS))
    deliver(feed, "b", put(2, 15), put(7, 19), put(1, 10))
    assert feed.rows() == {7: (20, "new"), 1: (10, "v10")}


def test_dropping_the_table_drops_its_memory_in_the_same_commit_and_no_other_table(feed: Feed) -> None:
    deliver(feed, "a", put(1, 10), gone(2, 20))
    version = feed.place.db.version
    feed.place.db.drop_table("t")
    assert (feed.place.db.tables(), feed.place.db.version) == ([], version + 1)
    feed.create()
    feed.place.db.create_table("t__deleted", pa.schema([("x", pa.int64())]))
    with pytest.raises(InputError, match="'t__deleted'"):
        deliver(feed, "b", put(1, 10))
    feed.place.db.drop_table("t")
    assert feed.place.db.tables() == ["t__deleted"]


def test_a_name_that_leaves_no_room_for_the_memorys_is_refused() -> None:
    feed = Feed(table="n" * 56)
    feed.create()
    with pytest.raises(InvalidNameError, match="55 characters"):
        deliver(feed, "a", put(1, 1))
    longest = Feed(table="n" * 55)
    longest.create()
    deliver(longest, "a", put(1, 1))


def test_a_table_that_takes_no_changes_is_told_so() -> None:
    feed = Feed()
    feed.place.db.create_table("t", COLUMNS, primary_key="id")
    with pytest.raises(InputError, match="ingest_mode is append"):
        deliver(feed, "a", put(1, 1))
    feed.place.db.create_table("u", COLUMNS)
    with pytest.raises(SchemaError, match="primary key"):
        feed.place.db.table("u").set(ingest_mode="cdc", cdc_envelope="flat", cdc_sequence="seq")


def test_a_blind_file_costs_what_an_upsert_costs_and_one_object_for_its_deletes() -> None:
    feed = Feed()
    feed.create()
    deliver(feed, "a", *(put(key, key + 1) for key in range(100)))
    feed.place.db.create_table("plain", COLUMNS, primary_key="id")
    store = CountingStore(MemoryStore(feed.place.bucket, feed.place.runtime()))
    database = Database(store, feed.place.runtime())
    database.table("plain").count()

    def cost(*requests: BatchRequest) -> tuple[int, int, int, int]:
        store.reset()
        folded = feed.apply(*requests, database=database)
        assert folded.commit is not None
        assert folded.commit.attempts == 1
        return store.puts, store.gets, store.heads, store.lists

    def changes(*changes: Change) -> tuple[int, int, int, int]:
        return cost(feed.request(f"f{changes[0].seq}", file("", *changes).body))

    def upsert(transaction: Transaction) -> Decision:
        row = {"id": 1, "v": "x", "seq": 1}
        transaction.table("plain").upsert(pa.Table.from_pylist([row], COLUMNS), request="upsert")
        return "apply"

    assert cost(BatchRequest("upsert", "", upsert)) == (4, 1, 0, 0)  # data file, keys, manifest, pointer; the pointer
    assert changes(put(1, 200), put(500, 201)) == (4, 1, 0, 0)
    assert changes(put(1, 210), gone(2, 211)) == (5, 1, 0, 0)  # and the rows of the memory
    assert changes(gone(3, 220)) == (4, 1, 0, 0)
    assert changes(put(1, 205))[1] > 1, "what overlaps is looked up"


def test_a_row_that_is_updated_otherwise_keeps_its_sequence(feed: Feed) -> None:
    deliver(feed, "a", put(1, 5), put(2, 6))
    table = feed.place.db.table("t")
    table.update({"v": "corrected"}, "id IN (1, 2)")
    deliver(feed, "b", put(1, 4), put(2, 7))
    assert feed.rows() == {1: (5, "corrected"), 2: (7, "v7")}
    for setting in ("seq", " seq"):
        table.set(cdc_sequence=setting)
        with pytest.raises(SchemaError, match="column 'seq'"):
            table.update({"seq": 99}, "id = 1")
        for clause in ({"seq": "source.seq"}, {"v": "source.v", "seq": "target.seq + 1"}):
            with pytest.raises(SchemaError, match="column 'seq'"):
                table.merge([{"id": 1, "v": "merged", "seq": 99}], on="id", when_matched=clause)
    table.merge([{"id": 1, "v": "merged"}], on="id", when_matched={"v": "source.v", "seq": "target.seq"})
    assert feed.rows() == {1: (5, "merged"), 2: (7, "v7")}


@pytest.mark.parametrize("index", [False, True])
def test_many_changes_at_both_ends_of_a_table_read_no_more_than_their_rows_if_an_index_knows_them(
    feed: Feed, index: bool
) -> None:
    table = feed.place.db.table("t")
    table.set(index=index)
    for start in range(0, 100_000, 10_000):
        ids = range(start, start + 10_000)
        table.append({"id": ids, "v": [f"value {id_:>40}" for id_ in ids], "seq": [0] * len(ids)})
    feed.place.open().maintain(steps=["index"])
    keys = [*range(700), *range(99_300, 100_000)]
    assert len(keys) > deleted_keys.LIST
    store = CountingStore(MemoryStore(feed.place.bucket, feed.place.runtime()))
    db = Database(store, feed.place.runtime())
    with db.transaction() as transaction:
        wanted = pa.table({str(feed_key(transaction).id): pa.array(keys, pa.int64())})
        store.reset()
        entry_ = unit_of(transaction).entry("t")
        sequence = entry_.schema.field("seq")
        latest = deleted_keys.latest_sequences(transaction, "t", None, wanted, (feed_key(transaction),), sequence)
        assert latest.rows.num_rows == len(keys)
    opened = store.gets
    assert opened <= 8 if index else opened >= 10, "files in between are left out"


def feed_key(transaction: Transaction) -> Field:
    return unit_of(transaction).entry("t").schema.field("id")

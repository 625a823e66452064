"""Indexing as background work: collected like segments, whole after a crash at any request, never in a writer's way."""

from __future__ import annotations

from typing import Any

import pytest

from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import PutIndexParts
from dolmen.entries.index.table_index import IndexReader
from dolmen.errors import CorruptionError
from dolmen.format.manifest import Segment
from dolmen.maintenance.indexing import FAN_IN, index_table, parts_to_merge
from dolmen.maintenance.round import Deadline, measures_of_debt, measures_of_round
from dolmen.store.memory import MemoryObject, MemoryStore
from support.aging import SCHEMA, Place, rows
from support.crashing_store import Countdown, Crash, CrashingStore
from support.erased import SCHEMA as PEOPLE
from support.erased import collect_own, maintain, people


def indexed_place() -> Place:
    place = Place()
    place.db.create_table("t", SCHEMA, primary_key=["k"], properties={"index": True})
    for start in range(0, 8, 2):
        place.db.table("t").append(rows(start, start + 1))
        if start < 6:
            index_table(place.context(), "t")
    return place


def parts(place: Place) -> tuple[Segment, ...]:
    return place.manifest.tables["t"].segments_of("index")


def found(db: Database) -> list[int]:
    return sorted(db.table("t").get_many(range(20))["k"].to_pylist())


def test_replaced_parts_are_collected_and_live_ones_kept() -> None:
    place = indexed_place()
    before = {part.object for part in parts(place)}
    assert before <= place.needed_keys()
    assert index_table(place.context(), "t").finished
    after = {part.object for part in parts(place)}
    assert before - after, "some were merged"
    place.pass_hours(24 * 40)
    place.db = place.open()
    place.db.table("t").append(rows(8))
    place.collect_all()
    assert place.there("segment/index/") == after
    assert found(place.db) == list(range(9))


def test_the_parts_of_a_dropped_table_are_collected() -> None:
    place = indexed_place()
    place.db.drop_table("t")
    assert place.db.verify(all_versions=True).ok, "it looks into what waits for collection"
    place.pass_hours(24 * 40)
    place.db = place.open()
    place.db.create_table("u", SCHEMA)
    place.db.create_table("v", SCHEMA)
    place.collect_all()
    assert place.there("segment/index/") == set()


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_request_leaves_a_right_index(after: bool) -> None:
    begun = indexed_place()
    left = 0
    while True:
        left += 1
        place = begun.copy()
        crashing: Any = CrashingStore(MemoryStore(place.bucket, place.runtime()), Countdown(left, after=after))
        try:
            index_table(place.context(crashing), "t")
        except Crash:
            pass
        else:
            break
        assert found(place.open()) == list(range(8))
        assert index_table(place.context(), "t").finished
        assert found(place.open()) == list(range(8))
        assert sum(part.count for part in parts(place)) == 8
    assert left > 10


def test_a_part_is_not_committed_over_another_index_or_after_an_erasure() -> None:
    place = indexed_place()
    context = place.context()
    manifest = context.head.refresh().manifest
    entry = manifest.tables["t"]
    seen = frozenset(part.object for part in parts(place))

    def put(through: int, seen: frozenset[str]) -> bool:
        new = Segment("index", "segment/index/x", 1, 1, 1, root=(0, 1, 1))
        statement = PutIndexParts("t", entry.uuid, entry.epoch, seen, through, (), (new,))
        return submit(context.head, "index", [statement]).manifest is not None

    assert not put(manifest.commit_ts, frozenset())
    place.open().table("t").erase("k = 1")
    context.head.refresh()
    assert parts(place) == ()
    assert not put(manifest.commit_ts, seen)
    assert not put(manifest.commit_ts, frozenset())


def test_appends_and_deletes_do_not_stop_indexing() -> None:
    place = indexed_place()
    context = place.context()
    manifest = context.head.refresh().manifest
    place.open().table("t").append(rows(50))
    place.open().table("t").delete("k = 3")
    assert context.head.cached is not None
    assert context.head.cached.manifest is manifest
    assert index_table(context, "t").finished
    assert 3 not in found(place.open())


def test_a_deadline_stops_after_the_part_under_way() -> None:
    place = indexed_place()
    answers = iter([False, True])
    done = index_table(place.context(), "t", deadline=lambda: next(answers))
    assert (done.commits, done.finished) == (1, False)
    assert index_table(place.context(), "t").finished
    again = index_table(place.context(), "t")
    assert (again.commits, again.finished) == (0, True)


def test_parts_of_similar_size_are_merged_and_mostly_dead_ones_rewritten() -> None:
    def part(name: str, count: int) -> Segment:
        return Segment("index", name, 1, 1, count, root=(0, 1, 1))

    small = [part(f"s{number}", 10) for number in range(FAN_IN)]
    large = part("large", 10_000)
    live = {each.object: 1.0 for each in (*small, large)}
    assert parts_to_merge([large, *small], live) == [tuple(small)]
    assert parts_to_merge([large, *small[1:]], live) == []
    assert parts_to_merge([large, *small[1:]], {**live, "large": 0.4}) == [(large,)]
    assert parts_to_merge([*small, *small, *small[1:]], live) == [tuple(small), tuple(small)]


def test_erased_keys_leave_the_disk_with_the_index() -> None:
    place = Place()
    place.db.set(erase_within="10d", erasure_memory="1d", orphan_age="1d")
    table = place.db.create_table("t", PEOPLE, primary_key=["who"], properties={"index": True})
    table.append(people("anna", "bert"))
    table.append(people("carl", "anna"))
    index_table(place.context(), "t")
    place.db.tag("then")
    held = {part.object for part in parts(place)}
    done = table.erase("who = 'anna'")
    for _ in range(30):
        place.pass_hours(24)
        maintain(place)
        index_table(place.context(), "t")
        collect_own(place)
        assert table.get("anna") is None
        assert len(table.get_many(["bert", "carl"])) == 20
    assert place.open().receipt(done.id).state == "gone"
    left = place.there("segment/index/")
    assert not left & held
    assert left == {part.object for part in parts(place)}
    context = place.context()
    index = IndexReader(context.store, context.runtime, context.cache)
    keys = {key for part in parts(place) for leaf in index.open(part).tree.leaves() for key in leaf.keys.tolist()}
    assert keys == {b"bert", b"carl"}


@pytest.mark.parametrize("deep", [False, True])
def test_verification_finds_damaged_parts_and_they_are_made_anew(deep: bool) -> None:
    place = Place()
    table = place.db.create_table("t", SCHEMA, primary_key=["k"], properties={"index": True})
    table.append(rows(*(number * 10**9 for number in range(40_000))))
    index_table(place.context(), "t")
    (part,) = parts(place)
    assert place.open().verify(deep=deep).findings == ()
    there = place.bucket.objects[part.object]
    assert part.root is not None
    at = 100 if deep else part.root[0] + 20
    body = bytearray(there.body)
    body[at] ^= 1
    place.bucket.objects[part.object] = MemoryObject(bytes(body), there.etag, there.last_modified_us)
    assert [found.kind for found in place.open().verify(deep=deep).findings] == ["segment-damaged"]
    with pytest.raises(CorruptionError, match="checksum"):
        place.open().table("t").get(0)
    table.set(index=False)
    assert index_table(place.context(), "t").commits == 1
    table.set(index=True)
    assert index_table(place.context(), "t").commits == 1
    assert place.open().table("t").get(0) is not None
    assert place.open().verify(deep=deep).findings == ()


def test_a_reader_of_changes_skips_commits_of_an_index() -> None:
    place = Place()
    table = place.db.create_table("t", SCHEMA, primary_key=["k"], properties={"index": True})
    table.append(rows(1))
    since = place.open().version
    index_table(place.context(), "t")
    place.open().table("t").append(rows(2))
    found = place.open().table("t").changes(since).read_all()
    assert found["k"].to_pylist() == [2]


def test_what_an_index_does_not_know_yet_is_measured() -> None:
    place = indexed_place()
    assert measures_of_debt(place.db.stats())["IndexLagRows"] == ("Count", 2)
    place.db.maintain()
    assert measures_of_debt(place.db.stats())["IndexLagRows"] == ("Count", 0)


def test_an_index_that_a_round_has_not_brought_up_to_date_is_counted() -> None:
    place = indexed_place()

    def behind(**options: Any) -> float:
        _, value = measures_of_round(place.open().maintain(**options))["IndexesBehind"]
        return value

    database = place.open()
    assert behind(deadline=Deadline(context_of(database).runtime, lambda: 0.0)) == 1, "it had no turn"
    assert behind(steps=["merge"]) == 0, "it was not to be made"
    (lost, *_) = parts(place)
    there = place.bucket.objects.pop(lost.object)
    assert behind() == 1, "it failed"
    place.bucket.objects[lost.object] = there
    assert behind() == 0
    assert place.open().table("t").describe()["index"]["lag_rows"] == 0
    place.open().table("t").append(rows(10, 11))
    assert place.open().table("t").describe()["index"]["lag_rows"] == 2

"""Collection keeps what tags name, however old it is, and takes all of it when the tag goes."""

from __future__ import annotations

from itertools import count

import pytest

from dolmen.base.records import replace
from dolmen.commit.loop import submit
from dolmen.commit.statements.catalog import PutCursor
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import ConflictError, CorruptionError, TagNotFoundError, VersionExpiredError
from dolmen.format.layout import Cursor
from dolmen.format.manifest import Manifest
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.gc.mark import KeySet, manifest_keys, mark, tagged_manifests
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryStore
from support.aging import DAY_US, EAGER, HOUR_US, Place, busy, rows
from support.crashing_store import Countdown, Crash, CrashingStore

TAGGED = 8


@pytest.fixture
def place() -> Place:
    """A busy life with a tag in the middle of it, of which only the newest version and the tagged one are left."""
    place = Place()
    busy(place)
    place.db.tag("golden", TAGGED)
    place.db.table("t").overwrite(rows(1000))
    place.pass_hours(30 * 24)
    place.collect_all()
    return place


def kept(place: Place) -> set[str]:
    """The objects that the newest version needs, and those that tags keep."""
    context = place.context()
    manifest = context.head.refresh().manifest
    tagged = {key for tag in tagged_manifests(manifest) for key in manifest_keys(tag, context.segments)}
    return place.needed_keys() | {key for key in tagged if not key.startswith("manifest/")}


def test_only_the_tagged_version_is_left_of_its_time_and_nothing_that_it_does_not_need(place: Place) -> None:
    found = place.read_versions()
    assert [version for version, what in found.items() if what != "VersionExpiredError"] == [
        TAGGED,
        *range(place.manifest.horizon, place.db.refresh() + 1),
    ]
    assert found[TAGGED] == {"t": list(range(5, 50))}
    assert place.there() == kept(place) != place.needed_keys()
    db = place.open()
    assert sorted(db.at(tag="golden").table("t").to_arrow()["k"].to_pylist()) == list(range(5, 50))
    assert verify(place.context(), deep=True, all_versions=True).findings == ()


def test_what_only_a_tag_kept_goes_when_its_readers_had_time_to_end(place: Place) -> None:
    snapshot = place.open().at(tag="golden")
    db = place.open()
    db.drop_tag("golden")
    with pytest.raises(TagNotFoundError, match="tag 'golden'"):
        db.at(tag="golden")
    with pytest.raises(VersionExpiredError):
        db.at(TAGGED)
    place.pass_hours(48)
    place.collect()
    assert snapshot.table("t").count("k < 10") == 5, "a reader that had begun"
    place.collect_all()
    assert place.there() == place.needed_keys()
    assert not [key for key in place.bucket.objects if key.startswith(f"manifest/v{TAGGED:020d}")]
    with pytest.raises(VersionExpiredError):
        snapshot.table("t").to_arrow()
    assert verify(place.context(), deep=True).findings == ()


def test_a_version_with_two_tags_goes_with_the_second(place: Place) -> None:
    db = place.open()
    db.tag("silver", TAGGED)
    db.drop_tag("golden")
    place.collect_all()
    assert place.there() == kept(place) != place.needed_keys()
    db.tag("silver", move=True)
    place.pass_hours(48)
    place.collect_all()
    assert place.there() == place.needed_keys()


def test_a_tag_ends_by_itself(place: Place) -> None:
    db = place.open()
    db.tag("golden", TAGGED, until="2d", move=True)
    place.pass_hours(47)
    place.collect_all(times=2)
    assert "golden" not in place.open().tags(), "the second collection is later than the end"
    place.pass_hours(48)
    place.collect_all()
    assert place.there() == place.needed_keys()


def spilled() -> tuple[Place, str]:
    """A place with a table whose entries are in segments, and the key of a data file."""
    place = Place()
    place.db.set(root_bytes="4KB")
    table = place.db.create_table("t", rows(1).schema)
    for first in range(40):
        table.append(rows(*range(first * 5, first * 5 + 5)))
    assert len(place.manifest.tables["t"].segments_of("files")) > 1
    file = next(iter(LiveFiles.of(place.manifest.tables["t"], place.context().segments)))
    return place, file.path


def rewrite(place: Place, name: str) -> None:
    """Replaces a table's files, deletes what only it needed, and then replaces its segments."""
    compact(place.context(), name)
    place.pass_hours(48)
    place.collect_all()
    merge_segments(place.context())


def data(keys: set[str]) -> set[str]:
    """The keys of data files and of the segments that name them: the history's own may wait for the next round."""
    return {key for key in keys if key.startswith(("data/", "segment/files/"))}


@pytest.mark.slow
def test_data_goes_that_only_a_lost_tag_found_by_a_segment_that_was_merged_since() -> None:
    """The segment was released first (histories of erasures, seed 77060)."""
    place, path = spilled()
    place.db.tag("golden")
    rewrite(place, "t")
    assert path in place.bucket.objects
    place.db.drop_tag("golden")
    place.pass_hours(48)
    place.collect_all()
    assert data(place.there()) == data(place.needed_keys())
    assert verify(place.context(), deep=True).findings == ()


@pytest.mark.slow
def test_data_goes_that_only_a_dropped_table_found_by_a_segment_that_its_clone_merged() -> None:
    place, path = spilled()
    place.db.clone("t", "copy")
    rewrite(place, "copy")
    assert path in place.bucket.objects
    place.db.drop_table("t")
    place.pass_hours(48)
    place.collect_all()
    assert data(place.there()) == data(place.needed_keys())
    assert verify(place.context(), deep=True).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_wherever_a_collection_dies_the_next_one_finds_all_data_of_a_lost_tag(after: bool) -> None:
    place, _ = spilled()
    place.db.tag("golden")
    rewrite(place, "t")
    place.db.drop_tag("golden")
    place.pass_hours(48)
    place.collect()
    place.pass_hours(2)
    objects, now_us = dict(place.bucket.objects), place.now_us
    for calls in count(1):
        place.bucket.objects.clear()
        place.bucket.objects.update(objects)
        place.now_us = now_us
        store = CrashingStore(MemoryStore(place.bucket, place.runtime()), Countdown(calls, after=after))
        try:
            collect(place.context(store), settings=EAGER)  # type: ignore[arg-type]
        except Crash:
            place.collect_all()
            assert data(place.there()) == data(place.needed_keys()), f"died at request {calls}"
            continue
        break
    assert calls > 5


def test_what_was_restored_or_cloned_from_a_tag_stays_when_the_tag_goes(place: Place) -> None:
    db = place.open()
    db.clone("t", "copy", tag="golden")
    db.table("t").restore(tag="golden")
    db.drop_tag("golden")
    place.pass_hours(48)
    place.collect_all()
    for name in ("t", "copy"):
        assert sorted(place.open().table(name).to_arrow()["k"].to_pylist()) == list(range(5, 50))
    db.table("t").overwrite(rows(1))
    place.pass_hours(48)
    place.collect_all()
    assert sorted(place.open().table("copy").to_arrow()["k"].to_pylist()) == list(range(5, 50))
    db.drop_table("copy")
    place.pass_hours(48)
    place.collect_all()
    assert place.there() == place.needed_keys()
    assert verify(place.context(), deep=True).findings == ()


def test_what_has_expired_is_neither_tagged_nor_restored_nor_cloned(place: Place) -> None:
    db = place.open()
    for call in (
        lambda: db.tag("late", TAGGED - 1),
        lambda: db.restore(TAGGED - 1),
        lambda: db.table("t").restore(TAGGED - 1),
        lambda: db.clone("t", "copy", TAGGED - 1),
    ):
        with pytest.raises(VersionExpiredError):
            call()


def test_what_expires_while_it_is_tagged_restored_or_cloned_is_refused() -> None:
    """The version is looked up, then collection lets it expire, then the commit lands."""
    for what in ("tag", "restore", "clone"):
        place = Place()
        busy(place)
        place.pass_hours(30 * 24)
        db = place.open()
        transaction = db.transaction()
        if what == "tag":
            from dolmen.transactions.snapshot import Moment, put_tag
            from dolmen.transactions.transaction import unit_of

            put_tag(unit_of(transaction), "late", Moment(TAGGED), None, move=False, request=None)
        elif what == "restore":
            transaction.table("t").restore(TAGGED)
        else:
            transaction.clone("t", "copy", TAGGED)
        before = place.collect().horizon
        assert before > TAGGED
        with pytest.raises(VersionExpiredError):
            transaction.commit()
        place.collect_all()
        assert verify(place.context(), deep=True).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_collection_that_dies_anywhere_while_a_tag_goes_is_taken_up_by_the_next(after: bool) -> None:
    def dropped() -> Place:
        place = Place()
        busy(place)
        place.db.tag("golden", TAGGED)
        place.db.tag("silver", 5)
        place.db.table("t").overwrite(rows(1000))
        place.pass_hours(30 * 24)
        place.collect_all()
        place.open().drop_tag("golden")
        place.pass_hours(48)
        place.collect()
        place.pass_hours(2)
        return place

    wanted = dropped()
    wanted.collect_all(times=6)
    for verb in count(1):
        place = dropped()
        countdown = Countdown(after=after)
        context = place.context(CrashingStore(MemoryStore(place.bucket, place.runtime()), countdown))  # type: ignore[arg-type]
        countdown.left = verb
        try:
            collect(context, settings=EAGER)
            assert countdown.left > 0, "it ended by itself"
            break
        except Crash:
            pass
        assert place.open().at(tag="silver").table("t").count() == 40
        place.pass_hours(2)
        place.collect_all(times=6)
        assert place.there() == kept(place) == wanted.there()
        assert verify(place.context(), deep=True).findings == ()
    assert verb > 10


def put_cursor(place: Place, seen: Cursor | None, value: Cursor | None) -> None:
    submit(place.context().head, "cursor", [PutCursor("reader", seen, value)])


def test_a_cursor_keeps_what_its_reader_has_not_seen_until_it_ends_by_age() -> None:
    place = Place()
    busy(place)
    at = Cursor(TAGGED, place.now_us, 60 * DAY_US)
    put_cursor(place, None, at)
    place.pass_hours(30 * 24)
    place.collect_all()
    assert place.manifest.horizon == TAGGED
    moved = replace_version(at, TAGGED + 2)
    put_cursor(place, at, moved)
    with pytest.raises(ConflictError, match="reader"):
        put_cursor(place, at, replace_version(at, TAGGED + 1))
    place.collect_all()
    assert place.manifest.horizon == TAGGED + 2
    place.pass_hours(31 * 24)
    place.collect_all()
    assert place.manifest.horizon > TAGGED + 2
    assert place.manifest.cursors == {"reader": moved}, "it stays where it is, and says so"
    with pytest.raises(VersionExpiredError):
        put_cursor(place, moved, replace_version(moved, TAGGED + 3))
    put_cursor(place, moved, None)
    assert place.there() == place.needed_keys()


def test_a_cursor_that_is_made_while_a_collection_plans_holds_the_horizon() -> None:
    place = Place()
    busy(place)
    place.pass_hours(30 * 24)
    context = place.context()
    original = context.head.server_now
    made = []

    def server_now(previous: object) -> int:
        if not made:
            made.append(True)
            put_cursor(place, None, Cursor(TAGGED, place.now_us, HOUR_US))
        return original(previous)  # type: ignore[arg-type]

    context.head.server_now = server_now  # type: ignore[method-assign]
    collect(context, settings=replace(EAGER, keep_versions=1))
    assert made
    assert place.manifest.horizon <= TAGGED


def replace_version(cursor: Cursor, version: int) -> Cursor:
    return Cursor(version, cursor.moved_at, cursor.age_us)


def test_nothing_is_deleted_when_the_manifest_of_a_tag_is_missing(place: Place) -> None:
    """Nobody can tell what the tag keeps, so all of its objects would look like orphans."""
    key = place.manifest.tags["golden"].manifest
    del place.bucket.objects[key]
    place.open().table("t").append(rows(2000))
    there = place.there()
    for full in (False, True):
        place.pass_hours(30 * 24)
        with pytest.raises(CorruptionError, match=f"{key}"):
            place.collect(full=full)
    assert there <= place.there()


def test_a_tag_that_another_collection_has_freed_meanwhile_is_no_damage(place: Place) -> None:
    """A collection is halted before its mark; the tag is dropped, and others delete what it kept."""
    place.open().table("t").append(rows(2000))
    place.pass_hours(48)

    def halted(manifest: Manifest, reader: SegmentReader, after: int) -> KeySet:
        place.open().drop_tag("golden")
        place.collect_all()
        place.pass_hours(48)
        place.collect_all()
        assert manifest.tags["golden"].manifest not in place.there("manifest/")
        return mark(manifest, reader, after)

    with pytest.raises(VersionExpiredError):
        collect(place.context(), settings=EAGER, full=True, marker=halted)
    assert verify(place.context(), deep=True).findings == ()

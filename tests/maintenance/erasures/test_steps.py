"""Each step of an erasure: what is found, what is rewritten, what expires, and what the receipt says."""

from __future__ import annotations

import io
import os
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.commit.head import Context, Head
from dolmen.commit.loop import submit
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import CorruptionError, InputError, NotFoundError
from dolmen.format.manifest import Segment, TableEntry
from dolmen.format.receipts import Outside, Receipt, receipt_key
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.erasures.status import figures_of
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.round import measures_of_collection
from dolmen.maintenance.segment_merging import merge_segments, plan_merges, upload_merge
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.aging import Place
from support.erased import SCHEMA, days, holders, maintain, people

MARKER = "marker-anna"
WHO = f"who = '{MARKER}'"
SOON = {"erase_within": "1s", "erasure_memory": "1s", "orphan_age": "1d"}


def place_with(*drops: tuple[str, ...], **settings: object) -> Place:
    """A place with a table of a file for each drop."""
    place = Place()
    if settings:
        place.db.set(**settings)
    table = place.db.create_table("t", SCHEMA)
    for names in drops:
        table.append(people(*names))
    return place


def entry_of(place: Place) -> TableEntry:
    return place.manifest.tables["t"]


def erasing(place: Place) -> list[int]:
    """``erasing`` of each live file."""
    context = place.context()
    return [file.erasing for file in LiveFiles.of(entry_of(place), context.segments)]


def receipt(place: Place, id_: str) -> Receipt:
    key = receipt_key(id_)
    return Receipt.decode(place.bucket.objects[key].body, key)


@pytest.mark.parametrize("where", [WHO, f"who LIKE '{MARKER}%'"], ids=["keys", "predicate"])
def test_rows_that_were_deleted_before_are_found_too(where: str) -> None:
    """The second file holds them hidden, the third has none, and of the fourth all rows are hidden."""
    place = place_with((MARKER, "bert"), ("carl", MARKER), ("dora", "zoe"), (MARKER,))
    table = place.db.table("t")
    table.delete(f"n >= 10 AND {WHO}")
    resolve(place.context(), "t")
    table.delete("n < 10 AND who = 'marker-anna'", mode="positions")
    assert table.count(WHO) == 0
    erased = table.erase(where)
    ts = place.manifest.commit_ts
    resolve(place.context(), "t")
    assert erasing(place) == [ts, ts, 0, ts]
    assert [file.rows for file in sorted(receipt(place, erased.id).files, key=lambda file: str(file.rows))] == [
        10,
        10,
        None,
    ]
    assert entry_of(place).tombstones == ()
    assert verify(place.context(), deep=True).findings == ()


def test_the_earliest_erasure_counts_and_each_receipt_has_its_own_files() -> None:
    place = place_with((MARKER, "bert"), ("bert", "carl"))
    table = place.db.table("t")
    first = table.erase("who = 'bert' AND n < 15")
    first_ts = place.manifest.commit_ts
    second = table.erase(f"who IN ('{MARKER}', 'carl')")
    resolve(place.context(), "t")
    assert erasing(place) == [first_ts, first_ts]
    assert [file.rows for file in receipt(place, first.id).files] == [5, 10]
    assert [file.rows for file in receipt(place, second.id).files] == [10, 10]


def test_a_file_that_only_seemed_to_hold_rows_may_come_back() -> None:
    """Its bounds spoke when all its rows were deleted, and a restore brings it back (simulation, seed 20281129)."""
    place = place_with(("anna", "zoe"), (MARKER,), **SOON)
    table = place.db.table("t")
    before = place.manifest.version
    table.delete("n >= 0")
    erased = table.erase(WHO)
    resolve(place.context(), "t")
    assert [file.rows for file in receipt(place, erased.id).files] == [None, None]
    table.restore(before)
    days(place, 4)
    assert receipt(place, erased.id).gone_at
    assert (table.count(), holders(place, MARKER)) == (20, [])
    assert place.db.verify_receipt(erased.id).ok


def test_a_table_that_was_cloned_from_keeps_the_files_and_the_receipt_says_so() -> None:
    """An erasure from a clone does not reach the clone's source (simulation, seed 20281232)."""
    place = place_with((MARKER, "bert"), ("carl", "dora"), **SOON)
    place.db.clone("t", "copy")
    erased = place.db.table("copy").erase(WHO)
    days(place, 8)
    assert (place.db.table("copy").count(), place.db.table("t").count()) == (30, 40)
    status = place.db.receipt(erased.id)
    assert (status.state, [file.shared for file in status.receipt.files]) == ("rewritten", [(entry_of(place).uuid,)])
    assert status.next_step == ("1 file with the rows is also a file of 't', where they were not erased: erase there")
    assert collect(place.context()).errors == {}
    assert place.db.verify_receipt(erased.id).ok
    place.db.table("t").erase(WHO)
    days(place, 8)
    assert [each.state for each in place.db.receipts(gone=True)] == ["gone", "gone"]
    assert holders(place, MARKER) == []
    assert [file.shared for file in receipt(place, erased.id).files] == [()]


def test_a_file_that_only_kept_versions_of_the_source_need_holds_the_receipt_up_until_they_expire() -> None:
    place = place_with((MARKER, "bert"), **SOON, retention="20d", keep_versions=1)
    place.db.clone("t", "copy")
    erased = place.db.table("copy").erase(WHO)
    days(place, 4)
    place.db.drop_table("t")
    errors = []
    for _ in range(5):
        days(place, 1)
        errors += list(collect(place.context()).errors)
        assert place.db.receipt(erased.id).state == "rewritten"
    assert errors == []
    days(place, 20)
    assert receipt(place, erased.id).gone_at
    assert holders(place, MARKER) == []


def test_a_receipt_tells_what_lies_in_places_outside(tmp_path: Path) -> None:
    """Only what was there before the erasure left the list: later drops are new rows."""
    landing = tmp_path / "a landing place"
    landing.mkdir()
    for name, modified_s in (("early.csv", 1_000_000_000), ("late.csv", 4_000_000_000)):
        (landing / name).write_text(MARKER)
        os.utime(landing / name, (modified_s, modified_s))
    place = place_with((MARKER, "bert"), **SOON)
    erased = place.db.table("t").erase(WHO)
    empty = (tmp_path / "rejected").as_uri()
    for _ in range(20):
        place.pass_hours(6)
        maintain(place)
        place.db.gc(outside=[landing.as_uri(), empty])
    assert receipt(place, erased.id).gone_at
    assert receipt(place, erased.id).outside == (
        Outside(landing.as_uri(), 1, len(MARKER), 1_000_000_000_000_000),
        Outside(empty, 0),
    )
    assert f"{landing.as_uri()} 1 object, {len(MARKER)} bytes since 2001-09-09 01:46:40 UTC" in repr(
        place.db.receipt(erased.id)
    )
    assert sorted(path.name for path in landing.iterdir()) == ["early.csv", "late.csv"]
    with pytest.raises(InputError, match="ftp://somewhere/x"):
        place.db.gc(outside="ftp://somewhere/x")


def test_a_file_is_rewritten_for_an_erasure_alone_at_its_time_and_not_before() -> None:
    place = place_with((MARKER, *"abcdefghij"), erase_within="20d")
    place.db.table("t").erase(WHO)
    days(place, 4)
    assert erasing(place) != [0]
    days(place, 1)
    assert erasing(place) == [0]
    assert place.db.table("t").count() == 100


@pytest.mark.slow
def test_segments_with_bounds_of_erased_rows_are_rewritten_too() -> None:
    """One of some hundred entries is old: without the erasure no merge would pay."""
    place = place_with(root_bytes="64KB", **SOON)
    table = place.db.table("t")
    for number in range(300):
        table.append(people(f"other-{number:03}", MARKER if number == 3 else "zoe"))
    segment = entry_of(place).segments_of("files")[0]
    assert segment.count > 50
    table.erase(WHO)
    ts = place.manifest.commit_ts
    resolve(place.context(), "t")
    assert entry_of(place).segments_of("files")[0].erasing == ts
    assert sum(map(bool, erasing(place))) == 1
    merge_segments(place.context())
    assert entry_of(place).segments_of("files")[0].object == segment.object
    place.pass_hours(1)
    compact(place.context(), "t", options=CompactionOptions(growth=1_000_000))
    assert not any(erasing(place))
    assert entry_of(place).segments_of("files")[0].erasing == ts, "bounds of the old file"
    merge_segments(place.context())
    assert not any(segment.erasing for segment in entry_of(place).segments_of("files"))
    assert verify(place.context(), deep=True).findings == ()


def test_verify_finds_a_segment_that_hides_that_a_file_holds_erased_rows() -> None:
    place = place_with(root_bytes="4KB")
    table = place.db.table("t")
    for number in range(40):
        table.append(people(f"other-{number:03}", MARKER if number == 3 else "zoe"))
    table.erase(WHO)
    resolve(place.context(), "t")
    manifest = place.manifest
    entry = manifest.tables["t"]
    forged = tuple(msgspec.structs.replace(segment, erasing=0) for segment in entry.segments)
    tables = {"t": msgspec.structs.replace(entry, segments=forged)}
    stored = place.bucket.objects[manifest.key]
    body = msgspec.structs.replace(manifest, tables=tables).encode()
    place.bucket.objects[manifest.key] = type(stored)(body, stored.etag, stored.last_modified_us)
    kinds = {finding.kind for finding in verify(place.context()).findings}
    assert "segment-bounds" in kinds


def test_a_restored_version_that_holds_the_rows_takes_the_note_back() -> None:
    place = place_with((MARKER, "bert"), erase_within="4d", erasure_memory="1d", orphan_age="1d")
    erased = place.db.table("t").erase(WHO)
    before = place.manifest.version
    maintain(place)
    place.pass_hours(24)
    maintain(place)
    collect(place.context())
    assert place.manifest.rewritten
    assert place.open().receipt(erased.id).state == "rewritten"
    place.db.table("t").restore(before)
    assert place.manifest.rewritten == ()
    assert place.open().receipt(erased.id).state == "hidden"
    assert place.open().table("t").count(WHO) == 0
    days(place, 6)
    assert place.open().receipt(erased.id).state == "gone"
    assert holders(place, MARKER) == []


def test_versions_cursors_and_tags_give_way_and_the_receipt_names_the_tags() -> None:
    place = place_with((MARKER, "bert"), retention="365d", erase_within="12d", erasure_memory="1d", orphan_age="1d")
    place.db.tag("golden")
    place.db.cursor("reader", start=1, age="300d")
    erased = place.db.table("t").erase(WHO)
    states = []
    for _ in range(12):
        days(place, 1)
        states.append(place.open().receipt(erased.id).state)
    assert states[-1] == "gone"
    assert sorted(states, key=["hidden", "rewritten", "gone"].index) == states
    told = receipt(place, erased.id)
    assert told.tags == ("golden",)
    assert told.gone_at <= told.due_at
    assert place.manifest.tags == {}
    assert holders(place, MARKER) == []
    assert place.open().verify_receipt(erased.id).ok


def test_a_job_that_is_not_over_holds_the_receipt_back() -> None:
    from dolmen.commit.uploads import Intent

    place = place_with((MARKER, "bert"), **SOON)
    erased = place.db.table("t").erase(WHO)
    intent = Intent.begin(MemoryStore(place.bucket, place.runtime()), place.runtime(), "a job", ["t"])
    for _ in range(24 * 4):
        place.pass_hours(0.9)
        intent._put_heartbeat()
        maintain(place)
        collect(place.context())
    assert place.open().receipt(erased.id).state == "rewritten"
    intent.finish()
    days(place, 1)
    assert place.open().receipt(erased.id).state == "gone"


def test_a_damaged_receipt_is_reported_and_stops_nothing_else() -> None:
    place = place_with((MARKER, "bert"), ("carl", "zoe"), **SOON)
    table = place.db.table("t")
    one, other = table.erase(WHO), table.erase("who = 'carl'")
    resolve(place.context(), "t")
    key = receipt_key(one.id)
    stored = place.bucket.objects[key]
    damaged = type(stored)(stored.body.replace(b'"rows":10', b'"rows":11'), stored.etag, stored.last_modified_us)
    assert damaged.body != stored.body
    place.bucket.objects[key] = damaged
    days(place, 3)
    assert receipt(place, other.id).state == "gone"
    assert place.open().table("t").count() == 20
    with pytest.raises(CorruptionError, match="checksum differs"):
        place.open().receipt(one.id)
    place.pass_hours(6)
    collected = collect(place.context())
    assert collected.errors == {key: "checksum differs"}
    assert measures_of_collection(collected)["ErasuresPending"] == ("Count", 1)
    place.bucket.objects[key] = stored
    days(place, 1)
    assert receipt(place, one.id).state == "gone"


def test_verify_receipt_finds_what_contradicts_it() -> None:
    place = place_with((MARKER, "bert"), **SOON)
    erased = place.db.table("t").erase(WHO)
    days(place, 3)
    told = receipt(place, erased.id)
    assert told.state == "gone"
    MemoryStore(place.bucket).put(told.files[0].path, b"put back by hand")
    check = place.open().verify_receipt(erased.id)
    assert check.findings == (f"{told.files[0].path} is there",)
    assert "put back" not in repr(check)
    with pytest.raises(NotFoundError):
        place.open().receipt("0" * 32)


def test_figures_tell_how_much_time_is_left() -> None:
    place = place_with((MARKER, "bert"), erase_within="16d")
    assert figures_of(place.manifest, place.context().segments, place.now_us).pending == 0
    place.db.table("t").erase(WHO)
    day_us = 24 * 3_600_000_000
    asked = place.now_us
    for passed, deadline, danger in ((1, 15, 0), (15, 1, 0), (15.5, 0.5, 1), (17, -1, 1)):
        figures = figures_of(place.manifest, place.context().segments, asked + round(passed * day_us))
        assert (figures.pending, figures.oldest_age_us, figures.deadline_us, figures.in_danger) == (
            1,
            passed * day_us,
            deadline * day_us,
            danger,
        )


def test_a_database_without_erasures_pays_nothing_and_its_entries_have_no_trace_of_them() -> None:
    place = place_with(("anna", "bert"), ("carl",))
    place.db.table("t").delete("who = 'carl'")
    store = CountingStore(MemoryStore(place.bucket, place.runtime()))
    runtime = place.runtime()
    context = Context(store, runtime, Head(store, runtime))
    resolve(context, "t")
    compact(context, "t")
    place.pass_hours(24)
    collect(context)
    assert not [key for key in place.bucket.objects if key.startswith("receipt/")]
    body = place.bucket.objects[place.manifest.key].body
    for word in (b"erasing", b"erasures", b"rewritten", b"leaving"):
        assert word not in body


def test_bounds_of_released_segments_are_not_kept() -> None:
    place = place_with(root_bytes="4KB")
    for number in range(40):
        place.db.table("t").append(people(f"other-{number:03}", MARKER))
    place.db.drop_table("t")
    trees: list[Segment] = [tree for released in place.manifest.released for tree in released.trees]
    assert trees
    assert all(tree.stats == {} for tree in trees)


def test_a_row_group_all_of_whose_rows_are_hidden_is_tested_too() -> None:
    """No scan reads it any more, but the rows are in the file."""
    place = place_with()
    table = place.db.table("t")
    for start in range(0, 40_000, 10_000):
        random = Random(start)
        who = [f"{random.getrandbits(256):064x}" for _ in range(10_000)]
        if start == 20_000:
            who[7] = who[5_007] = MARKER
        table.append(pa.table({"who": who, "n": range(start, start + 10_000)}))
    compact(place.context(), "t", options=CompactionOptions(growth=2, row_group_bytes=64 * 1024))
    (file,) = LiveFiles.of(entry_of(place), place.context().segments)
    assert pq.ParquetFile(io.BytesIO(place.bucket.objects[file.path].body)).metadata.num_row_groups >= 3
    table.delete("n BETWEEN 10000 AND 37000", mode="positions")
    erased = table.erase(f"who LIKE '{MARKER}%'")
    resolve(place.context(), "t")
    assert [held.rows for held in receipt(place, erased.id).files] == [2]
    assert erasing(place) != [0]


def idle_tables(a: tuple[str, ...], b: tuple[str, ...]) -> Place:
    """A place with two idle tables whose entries, with their bounds, are in one segment."""
    place = Place()
    for name, people_ in (("a", a), ("b", b)):
        place.db.create_table(name, SCHEMA).append(people(*people_))
    busy = place.db.create_table("busy", SCHEMA)
    for number in range(80):
        busy.append(people(f"other-{number}"))
        place.pass_hours(0.01)
    place.db.set(root_bytes="4KB", **SOON)
    for number in range(80):  # so that the manifest has a history that is long enough to tell who is idle
        busy.append(people(f"another-{number}"))
    stubs = place.manifest.tables
    assert stubs["a"].section is not None
    assert stubs["a"].section == stubs["b"].section
    return place


@pytest.mark.slow
def test_an_old_entry_of_a_table_in_a_segment_of_idle_tables_goes_too() -> None:
    place = idle_tables((MARKER, "bert"), (MARKER, "zoe"))
    erased = [place.db.table(name).erase(WHO).id for name in ("a", "b")]
    days(place, 3)
    assert [place.open().receipt(id_).state for id_ in erased] == ["gone", "gone"]
    assert holders(place, MARKER) == []


@pytest.mark.slow
def test_another_idle_table_is_woken_if_it_keeps_such_a_segment() -> None:
    place = idle_tables((MARKER, "bert"), ("carl", "bert"))
    erased = place.db.table("a").erase(WHO).id
    section = place.manifest.tables["b"].section
    assert section is not None
    assert section.object in holders(place, MARKER)
    days(place, 3)
    assert place.open().receipt(erased).state == "gone"
    assert holders(place, MARKER) == []
    assert place.open().table("b").count() == 20
    assert verify(place.context(), deep=True).findings == ()


def test_the_record_of_a_request_goes_though_it_was_released_long_before() -> None:
    """Its tombstone is resolved and its versions expire within days; the list needs the record for weeks."""
    place = place_with((MARKER, "bert"), retention="1d", keep_versions=1)
    erased = place.db.table("t").erase(WHO)
    days(place, 6, hours=12)
    assert [key for key in holders(place, MARKER) if key.startswith("tombstone/")]
    days(place, 23, hours=12)
    assert place.open().receipt(erased.id).state == "gone"
    assert holders(place, MARKER) == []


@pytest.mark.slow
def test_a_merge_keeps_the_mark_of_a_file_that_was_resolved_since_it_was_planned() -> None:
    place = place_with(root_bytes="4KB", **SOON)
    table = place.db.table("t")
    for number in range(60):
        table.append(people(f"other-{number:03}", "zoe"))
    context = place.context()
    merge = next(plan_merges(context, context.head.refresh().manifest, "t"))
    home = merge.statement.inputs[0]
    file = next(LiveFiles.of(entry_of(place), context.segments).of_segment(home))
    table.erase(f"who = '{file.stats[1].min}'")
    ts = place.manifest.commit_ts
    resolve(place.context(), "t")
    place.pass_hours(1)
    compact(place.context(), "t", options=CompactionOptions(growth=1_000_000))
    assert not any(erasing(place))
    assert submit(context.head, "merge", [upload_merge(context, merge)]).manifest is not None
    merged = entry_of(place).segments_of("files")
    assert home not in {segment.object for segment in merged}
    assert [segment.erasing for segment in merged if segment.erasing] == [ts]

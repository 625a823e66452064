"""``verify`` where entries have left the manifest: a database with so small a budget that everything spills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.entries.segments.live import LiveFiles
from dolmen.format.entries import ColumnStats
from dolmen.format.manifest import Segment, TableEntry
from dolmen.format.segments import encode
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.damaged import Damaged, copy_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.float64()), ("s", pa.string())])
KINDS = {"files", "overlays", "tombstones", "applied", "released", "history", "table"}


def rows(start: int, count: int = 10) -> pa.Table:
    ids = list(range(start, start + count))
    return pa.table({"k": ids, "v": [None if i % 3 else i / 2 for i in ids], "s": [f"{i:04}" for i in ids]}, SCHEMA)


@pytest.fixture(scope="module")
def bucket() -> MemoryBucket:
    bucket = MemoryBucket()
    runtime = Runtime()
    db = Database(MemoryStore(bucket, runtime), runtime)
    db.set(root_bytes="8KB")
    idle = db.create_table("idle", SCHEMA)
    for number in range(4):
        idle.append(rows(number * 10))
    table = db.create_table("t", SCHEMA, primary_key="k")
    for number in range(60):
        table.append(rows(number * 10), request=f"request {number}")
    for number in range(40):
        table.delete(f"k = {number * 7} AND v > {number}")
    for number in range(60):
        table.delete(f"k >= {number * 10} AND k < {number * 10 + 2 + number % 3}", mode="positions")
    for number in range(60):
        table.delete(f"k >= {number * 10} AND k < {number * 10 + 5}", mode="positions")
    table.append(rows(1_000))
    return bucket


@pytest.fixture
def db(bucket: MemoryBucket) -> Damaged:
    return copy_of(bucket)


def segments(db: Damaged, kind: str) -> list[Segment]:
    manifest = db.manifest
    found = [segment for segment in manifest.segments if segment.kind == kind]
    for entry in manifest.tables.values():
        found += [segment for segment in entry.segments if segment.kind == kind]
        if entry.section and kind == "table":
            found.append(entry.section)
    return found


def edit_segment(db: Damaged, kind: str, **changes: Any) -> str:
    """The manifest says something else of the oldest segment of a kind; returns its key."""
    wanted = segments(db, kind)[0]

    def edited(held: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(msgspec.structs.replace(s, **changes) if s.object == wanted.object else s for s in held)

    manifest = db.manifest
    tables = {
        name: msgspec.structs.replace(entry, segments=edited(entry.segments)) for name, entry in manifest.tables.items()
    }
    db.edit(tables=tables, segments=edited(manifest.segments))
    return wanted.object


@pytest.mark.slow
def test_everything_has_spilled(db: Damaged) -> None:
    assert {kind for kind in KINDS if segments(db, kind)} == KINDS
    assert db.manifest.tables["idle"].section


@pytest.mark.slow
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("all_versions", [False, True])
def test_nothing_is_found_in_a_healthy_database(db: Damaged, deep: bool, all_versions: bool) -> None:
    report = db.verify(deep=deep, all_versions=all_versions)
    assert report.findings == ()
    assert report.checked["data files"] == 65
    assert report.checked["tombstones"] == 40
    assert report.checked["applied ids"] == 60
    assert report.checked["segments"] >= len(KINDS)
    assert set(report.orphans) <= {"segment/"}


@pytest.mark.slow
def test_nothing_is_found_in_older_versions(db: Damaged) -> None:
    for version in (1, 40, 90, 130, 220):
        assert db.verify(version=version).findings == ()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_lost_segment_is_found(db: Damaged, kind: str) -> None:
    key = db.lose(segments(db, kind)[0].object)
    findings = db.verify().findings
    assert ("segment-missing", key) in {(found.kind, found.object) for found in findings}
    assert {found.object for found in findings if found.kind.startswith("segment")} == {key}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_flipped_bit_in_a_segment_is_found(db: Damaged, kind: str) -> None:
    segment = segments(db, kind)[0]
    key = db.flip(segment.object, segment.size // 2)
    findings = db.verify().findings
    assert ("segment-damaged", key) in {(found.kind, found.object) for found in findings}
    assert [found.object for found in findings if found.kind.startswith("segment")] == [key]


@pytest.mark.parametrize("kind", sorted(KINDS - {"table"}))
def test_a_cut_segment_is_found(db: Damaged, kind: str) -> None:
    key = db.cut(segments(db, kind)[0].object)
    findings = db.verify().findings
    assert {("segment-size", key), ("segment-damaged", key)} <= {(found.kind, found.object) for found in findings}


def narrow(db: Damaged, **changes: Any) -> str:
    stats = segments(db, "files")[0].stats
    return edit_segment(db, "files", stats={**stats, 1: msgspec.structs.replace(stats[1], **changes)})


LIES: dict[str, Callable[[Damaged], str]] = {
    "more rows": lambda db: edit_segment(db, "files", rows=7),
    "fewer bytes": lambda db: edit_segment(db, "files", bytes=7),
    "no deleted rows": lambda db: edit_segment(db, "files", deleted=7),
    "younger rows only": lambda db: edit_segment(db, "files", least=segments(db, "files")[0].greatest),
    "older rows only": lambda db: edit_segment(db, "files", greatest=segments(db, "files")[0].least),
    "more deletes applied": lambda db: edit_segment(db, "files", least_applied_through=db.manifest.commit_ts),
    "resolved in the future": lambda db: edit_segment(db, "files", resolved_through=db.manifest.commit_ts + 1),
    "too great a minimum": lambda db: narrow(db, min=5),
    "too small a maximum": lambda db: narrow(db, max=5),
    "NULL where there is none": lambda db: narrow(db, nulls=1),
    "no NULL where there is": lambda db: edit_segment(
        db, "files", stats={**segments(db, "files")[0].stats, 2: ColumnStats(nulls=0, nans=None)}
    ),
    "younger tombstones only": lambda db: edit_segment(db, "tombstones", least=segments(db, "tombstones")[0].greatest),
    "older overlays only": lambda db: edit_segment(db, "overlays", greatest=1, least=1),
    "other versions of history": lambda db: edit_segment(db, "history", least=3),
    "other versions of applied ids": lambda db: edit_segment(db, "applied", greatest=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_what_the_manifest_says_of_a_segment_must_be_true(db: Damaged, lie: str) -> None:
    key = LIES[lie](db)
    found = db.found()
    assert ("segment-bounds", key) in found
    # Resolution that never was hides tombstones, which is told of each file, too.
    assert {kind for kind, _ in found} <= {"segment-bounds", "file-timestamps"}


def test_another_number_of_entries_is_found(db: Damaged) -> None:
    key = edit_segment(db, "tombstones", count=segments(db, "tombstones")[0].count + 1)
    assert db.found() == {("segment-damaged", key)}


def test_a_file_inline_and_in_a_segment_is_found(db: Damaged) -> None:
    file = encode_back(db)
    db.edit_table(files=(file, *db.table().files))
    assert db.found() == {("file-twice", file.path)}


def test_a_file_in_a_segment_and_again_inline_is_sound_once_it_was_removed(db: Damaged) -> None:
    file = encode_back(db)
    db.edit_table(files=(file, *db.table().files), removed=(file.uuid,))
    assert "file-twice" not in {kind for kind, _ in db.found()}


def encode_back(db: Damaged) -> Any:
    """The effective entry of a file that stands in a segment."""
    context = db.context()
    context.head.refresh()
    return next(iter(LiveFiles.of(db.table(), context.segments)))


def test_a_segment_that_is_referenced_twice_is_found_by_its_files(db: Damaged) -> None:
    entry = db.table()
    db.edit_table(segments=(entry.segments_of("files")[0], *entry.segments))
    assert {kind for kind, _ in db.found()} >= {"file-twice"}


def test_an_overlay_of_no_file_is_a_warning(db: Damaged) -> None:
    key = db.edit_table(removed=("f" * 32,))
    report = db.verify()
    assert report.ok
    assert [(found.kind, found.object) for found in report.findings] == [("overlay-stray", key)]


def test_a_file_that_only_a_segment_names_is_missed(db: Damaged) -> None:
    file = encode_back(db)
    db.lose(file.path)
    assert db.found() == {("file-missing", file.path)}


def test_what_a_dropped_table_had_in_segments_is_no_orphan(db: Damaged) -> None:
    runtime = Runtime()
    Database(MemoryStore(db.bucket, runtime), runtime).drop_table("t")
    report = db.verify()
    assert report.findings == ()
    assert set(report.orphans) <= {"segment/"}
    released = next(iter(db.manifest.released[-1].trees))
    key = db.lose(released.object)
    assert ("released-missing", key) in db.found()


def test_an_idle_tables_section_of_another_table_is_found(db: Damaged) -> None:
    entry = db.manifest.tables["idle"]
    assert entry.section
    held = TableEntry("0" * 32, 1, db.table().schema)
    segment, body = encode("table", [held], entry.section.object)
    db.put(segment.object, body)
    db.edit_table("idle", section=segment)
    assert ("segment-damaged", segment.object) in db.found()

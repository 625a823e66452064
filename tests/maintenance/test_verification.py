"""``verify`` on real databases: nothing is found in a healthy one, and every damage by its kind and its object."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import dolmen
from dolmen.database import Database
from dolmen.errors import DatabaseNotFoundError, VersionNotFoundError
from dolmen.format.entries import ColumnStats, KeysTombstone, WhereTombstone
from dolmen.format.layout import POINTER
from dolmen.format.manifest import AppliedId, Released
from dolmen.format.pointer import Pointer
from dolmen.maintenance.verification_kinds import KINDS
from dolmen.runtime import Runtime
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.damaged import Damaged, copy_of
from support.tables import World, write_file

NAN = float("nan")
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.float64()), ("s", pa.string()), ("l", pa.list_(pa.int32()))]
)


def rows(start: int, count: int = 40) -> pa.Table:
    """Some NULL, some NaN, long and short texts, in no order."""
    ids = [start + (i * 7) % count for i in range(count)]
    return pa.table(
        {
            "id": ids,
            "v": [None if i % 5 == 0 else NAN if i % 7 == 0 else i / 2 for i in ids],
            "s": [None if i % 11 == 0 else f"{i:05}" * (i % 6) for i in ids],
            "l": [None if i % 3 == 0 else [i, i + 1] for i in ids],
        },
        SCHEMA,
    )


@pytest.fixture(scope="module")
def bucket() -> MemoryBucket:
    """Files of several row groups, tombstones of both kinds (inline and not), vectors, an upsert, a dropped table."""
    bucket = MemoryBucket()
    runtime = Runtime()
    world = World(MemoryStore(bucket, runtime), runtime)
    table = world.db.create_table("t", SCHEMA, primary_key="id", sort_key="id")
    for number in range(4):
        world.append(rows(number * 40).sort_by("id"), group_rows=15)
    table.append(rows(200), request="a")
    table.delete("v > 17 AND v < 19")
    table.delete("s IN (" + ", ".join(f"'{n:040}'" for n in range(40)) + ") AND v > 5")
    table.delete(keys=[3, 5, 8], request="b")
    table.delete(keys=list(range(10_000, 10_600)))
    table.delete("id BETWEEN 60 AND 70", mode="positions")
    table.delete("id BETWEEN 100 AND 105", mode="positions")
    table.upsert(rows(10, 5))
    plain = world.db.create_table("other", pa.schema([("k", pa.int32())]))
    plain.append(pa.table({"k": pa.array([1, 2, 3], pa.int32())}))
    gone = world.db.create_table("gone", pa.schema([("k", pa.int32())]))
    gone.append(pa.table({"k": pa.array([1], pa.int32())}))
    world.db.drop_table("gone")
    return bucket


@pytest.fixture
def db(bucket: MemoryBucket) -> Damaged:
    return copy_of(bucket)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("all_versions", [False, True])
def test_nothing_is_found_in_a_healthy_database(db: Damaged, deep: bool, all_versions: bool) -> None:
    report = db.verify(deep=deep, all_versions=all_versions)
    assert report.findings == ()
    assert report.ok
    assert report.orphans == {}
    assert report.checked["data files"] == 7
    assert report.checked["vectors"] == 2
    assert report.checked["tombstones"] == 5
    assert report.checked["manifests"] == report.version
    assert bool(report.checked.get("row groups")) is deep


def test_nothing_is_found_in_any_version(db: Damaged) -> None:
    for version in range(1, db.manifest.version + 1):
        report = db.verify(version=version)
        assert report.findings == ()
        assert report.version == version
        assert report.orphans == {}


def test_an_empty_prefix_is_no_database() -> None:
    with pytest.raises(DatabaseNotFoundError):
        Damaged({}, 0).verify()


def test_a_version_that_never_was_can_not_be_verified(db: Damaged) -> None:
    with pytest.raises(VersionNotFoundError):
        db.verify(version=99)


# ---- damage ----------------------------------------------------------------------------------------------------------

Damage = Callable[[Damaged], str]
DAMAGES: list[Any] = []


def damage(kind: str, **options: Any) -> Callable[[Damage], Damage]:
    """Registers a way to damage a database: returns the object that ``verify`` must name, by this kind alone."""

    def register(function: Damage) -> Damage:
        DAMAGES.append(pytest.param(function, kind, options, id=function.__name__))
        return function

    return register


def vector_file(db: Damaged) -> int:
    return next(place for place, file in enumerate(db.table().files) if file.vector)


def vector_of(db: Damaged) -> Any:
    return db.file(vector_file(db)).vector


def tombstone(db: Damaged, kind: type, inline: bool) -> tuple[int, Any]:
    field = "values" if kind is KeysTombstone else "predicate"
    return next(
        (place, each)
        for place, each in enumerate(db.table().tombstones)
        if isinstance(each, kind) and (getattr(each, field) is not None) is inline
    )


def edit_tombstone(db: Damaged, place: int, **changes: Any) -> str:
    tombstones = list(db.table().tombstones)
    tombstones[place] = msgspec.structs.replace(tombstones[place], **changes)
    return db.edit_table(tombstones=tuple(tombstones))


def edit_stats(db: Damaged, column: int, **changes: Any) -> str:
    file = db.file()
    stats = {**file.stats, column: msgspec.structs.replace(file.stats[column], **changes)}
    return db.edit_file(stats=stats)


def manifests(db: Damaged) -> list[str]:
    return sorted(key for key in db.bucket.objects if key.startswith("manifest/"))


@damage("pointer-damaged")
def the_pointer_is_cut(db: Damaged) -> str:
    return db.cut(POINTER)


@damage("pointer-differs")
def the_pointer_names_another_commit(db: Damaged) -> str:
    pointer = Pointer.decode(db.body(POINTER), POINTER)
    return db.put(POINTER, msgspec.structs.replace(pointer, commit_id="another").encode())


@damage("newer-format")
def the_pointer_is_of_the_future(db: Damaged) -> str:
    pointer = Pointer.decode(db.body(POINTER), POINTER)
    return db.put(POINTER, msgspec.structs.replace(pointer, format_version=99).encode())


@damage("manifest-missing")
def the_newest_manifest_is_lost(db: Damaged) -> str:
    return db.lose(manifests(db)[-1])


@damage("manifest-damaged")
def a_bit_of_the_newest_manifest_is_flipped(db: Damaged) -> str:
    return db.flip(manifests(db)[-1], 100)


@damage("manifest-missing")
def an_older_manifest_is_lost(db: Damaged) -> str:
    return db.lose(manifests(db)[3])


@damage("manifest-damaged")
def an_older_manifest_is_cut(db: Damaged) -> str:
    return db.cut(manifests(db)[3])


@damage("manifest-damaged")
def an_older_manifest_is_another_one(db: Damaged) -> str:
    return db.put(manifests(db)[3], db.body(manifests(db)[4]))


@damage("history-differs")
def an_older_manifest_tells_of_another_operation(db: Damaged) -> str:
    return db.edit(manifests(db)[3], operation="another")


@damage("history-differs")
def an_older_manifest_tells_another_history(db: Damaged) -> str:
    key = manifests(db)[5]
    history = db.manifest_at(key).history
    changed = (*history[:2], msgspec.structs.replace(history[2], commit_id="another"), *history[3:])
    return db.edit(key, history=changed)


@damage("chain-broken")
def an_older_manifest_has_another_predecessor(db: Damaged) -> str:
    return db.edit(manifests(db)[5], previous=manifests(db)[4].replace("-", "-0")[:-6] + ".json")


@damage("chain-broken")
def a_commit_is_missing_in_the_history(db: Damaged) -> str:
    history = db.manifest.history
    db.edit(history=(*history[:4], *history[5:]))
    return history[5].manifest


@damage("history-short")
def the_history_does_not_go_back_far_enough(db: Damaged) -> str:
    return db.edit(history=db.manifest.history[4:])


@damage("fence-order")
def the_fence_is_in_the_future(db: Damaged) -> str:
    return db.edit(orphan_cutoff=db.manifest.created_at + 1)


@damage("applied-twice")
def an_id_is_applied_twice(db: Damaged) -> str:
    return db.edit(applied=(*db.manifest.applied, AppliedId("a", "digest", 7)))


@damage("applied-version")
def an_id_was_applied_in_the_future(db: Damaged) -> str:
    return db.edit(applied=(*db.manifest.applied, AppliedId("c", "digest", 99)))


@damage("file-missing")
def a_data_file_is_lost(db: Damaged) -> str:
    return db.lose(db.file().path)


@damage("file-size")
def a_data_file_is_cut(db: Damaged) -> str:
    return db.cut(db.file().path)


@damage("file-size")
def a_data_file_has_grown(db: Damaged) -> str:
    return db.put(db.file().path, db.body(db.file().path) + b"x")


@damage("delete-missing")
def a_tombstone_is_lost(db: Damaged) -> str:
    return db.lose(db.table().tombstones[0].blob.object)


@damage("delete-missing")
def a_vector_is_lost(db: Damaged) -> str:
    return db.lose(vector_of(db).object)


@damage("released-missing")
def a_file_of_a_dropped_table_is_lost(db: Damaged) -> str:
    return db.lose(next(key for key in db.bucket.objects if key.startswith("data/gone/")))


@damage("file-missing", all_versions=True)
def a_file_that_only_an_older_version_needs_is_lost(db: Damaged) -> str:
    key = next(key for key in db.bucket.objects if key.startswith("data/gone/"))
    return db.lose(key)


@damage("fence-order")
def the_horizon_was_moved_back(db: Damaged) -> str:
    return db.edit(manifests(db)[-2], horizon=3)


@damage("released-untrimmed")
def what_was_freed_is_still_listed(db: Damaged) -> str:
    released = Released(2, (db.file().path,))
    return db.edit(released=(released, *db.manifest.released), freed=2, horizon=2)


@damage("file-twice")
def a_data_file_is_referenced_twice(db: Damaged) -> str:
    db.edit_table(files=(*db.table().files, db.file()))
    return db.file().path


@damage("file-twice")
def a_data_file_is_in_two_directories(db: Damaged) -> str:
    file = db.file()
    other = file.path.replace("data/t/", "data/u/")
    db.put(other, db.body(file.path))
    db.edit_table(files=(*db.table().files, msgspec.structs.replace(file, path=other)))
    return other


@damage("tombstone-twice")
def a_tombstone_is_there_twice(db: Damaged) -> str:
    tombstones = db.table().tombstones
    return db.edit_table(tombstones=(tombstones[0], *tombstones))


@damage("table-uuid")
def two_tables_have_one_uuid(db: Damaged) -> str:
    return db.edit_table("other", uuid=db.table().uuid)


@damage("table-epoch")
def a_table_is_of_the_future(db: Damaged) -> str:
    return db.edit_table(epoch=99)


@damage("delete-timestamps")
def a_delete_is_forgotten(db: Damaged) -> str:
    return db.edit_table(last_delete_ts=1, unseen_delete_ts=0)


@damage("delete-timestamps")
def an_unseen_delete_is_newer_than_any_delete(db: Damaged) -> str:
    return db.edit_table(unseen_delete_ts=db.table().last_delete_ts + 1)


@damage("schema-ids")
def a_column_id_may_be_given_out_again(db: Damaged) -> str:
    return db.edit_table(schema=msgspec.structs.replace(db.table().schema, next_id=3))


@damage("schema-ids")
def the_sort_key_is_no_column(db: Damaged) -> str:
    return db.edit_table(sort_key=(77,))


@damage("tombstone-column")
def a_tombstone_names_no_column(db: Damaged) -> str:
    place, _ = tombstone(db, WhereTombstone, True)
    return edit_tombstone(db, place, columns=(77,))


@damage("tombstone-order")
def tombstones_are_in_disorder(db: Damaged) -> str:
    return db.edit_table(tombstones=db.table().tombstones[::-1])


@damage("tombstone-order")
def a_tombstone_is_of_the_future(db: Damaged) -> str:
    return edit_tombstone(db, len(db.table().tombstones) - 1, ts=db.manifest.commit_ts + 1)


@damage("file-timestamps")
def rows_are_of_the_future(db: Damaged) -> str:
    future = db.manifest.commit_ts + 1
    return db.edit_file(row_ts=future, applied_through=future)


@damage("file-timestamps")
def a_file_is_older_than_its_deletes_are_applied(db: Damaged) -> str:
    return db.edit_file(applied_through=db.file().row_ts - 1)  # type: ignore[operator]


@damage("file-timestamps")
def a_file_was_never_stamped(db: Damaged) -> str:
    return db.edit_file(row_ts=0)


@damage("row-count")
def an_entry_tells_of_more_rows(db: Damaged) -> str:
    return db.edit_file(rows=41)


@damage("file-size")
def an_entry_tells_of_another_size(db: Damaged) -> str:
    size, (offset, length, checksum) = db.file().size, db.file().footer
    return db.edit_file(size=size + 8, footer=(offset + 8, length, checksum))


@damage("file-entry", deep=True)
def an_entry_tells_of_no_rows(db: Damaged) -> str:
    return db.edit_file(rows=0, stats={})


@damage("file-entry")
def a_footer_ends_before_its_file(db: Damaged) -> str:
    offset, length, checksum = db.file().footer
    return db.edit_file(footer=(offset - 8, length, checksum))


@damage("vector-entry")
def a_vector_has_more_positions_than_the_file(db: Damaged) -> str:
    place = vector_file(db)
    return db.edit_file(place, vector=msgspec.structs.replace(vector_of(db), cardinality=1_000))


@damage("stats-entry")
def statistics_are_of_no_column(db: Damaged) -> str:
    return db.edit_file(stats={**db.file().stats, 77: ColumnStats(1, 2, 0)})


@damage("stats-entry")
def statistics_are_of_another_type(db: Damaged) -> str:
    return edit_stats(db, 1, min="a")


@damage("stats-entry")
def the_least_value_is_greater_than_the_greatest(db: Damaged) -> str:
    return edit_stats(db, 1, min=99, max=3)


@damage("stats-entry")
def there_are_more_nulls_than_rows(db: Damaged) -> str:
    return edit_stats(db, 2, nulls=41)


@damage("tombstone-damaged")
def a_bit_of_a_tombstone_is_flipped(db: Damaged) -> str:
    _, found = tombstone(db, WhereTombstone, False)
    return db.flip(found.blob.object, found.blob.offset + 3)


@damage("tombstone-damaged")
def a_bit_of_a_list_of_keys_is_flipped(db: Damaged) -> str:
    _, found = tombstone(db, KeysTombstone, False)
    return db.flip(found.blob.object, found.blob.offset + 30)


@damage("tombstone-damaged")
def other_keys_stand_in_the_manifest(db: Damaged) -> str:
    place, found = tombstone(db, KeysTombstone, True)
    edit_tombstone(db, place, values=((3, 5, 9),))
    return str(found.blob.object)


@damage("tombstone-damaged")
def another_predicate_stands_in_the_manifest(db: Damaged) -> str:
    place, found = tombstone(db, WhereTombstone, True)
    _, other = tombstone(db, WhereTombstone, False)
    recorded = msgspec.json.decode(db.body(other.blob.object)[other.blob.offset :][: other.blob.length])
    edit_tombstone(db, place, predicate=recorded)
    return str(found.blob.object)


@damage("tombstone-damaged")
def the_bounds_of_keys_are_too_narrow(db: Damaged) -> str:
    place, found = tombstone(db, KeysTombstone, False)
    edit_tombstone(db, place, bounds=((10_000, 10_500),))
    return str(found.blob.object)


@damage("vector-damaged")
def a_vector_has_another_cardinality(db: Damaged) -> str:
    place, vector = vector_file(db), vector_of(db)
    db.edit_file(place, vector=msgspec.structs.replace(vector, cardinality=vector.cardinality - 1))
    return str(vector.object)


@damage("vector-damaged")
def a_bit_of_a_vector_is_flipped(db: Damaged) -> str:
    return db.flip(vector_of(db).object, vector_of(db).offset + vector_of(db).length - 1)


@damage("delete-footer")
def a_bit_of_a_footer_of_deletes_is_flipped(db: Damaged) -> str:
    return db.flip(vector_of(db).object, -20)


@damage("delete-short")
def a_blob_reaches_beyond_its_object(db: Damaged) -> str:
    return db.put(vector_of(db).object, db.body(vector_of(db).object)[: vector_of(db).offset + 2])


@damage("footer-damaged")
def a_bit_of_a_data_files_footer_is_flipped(db: Damaged) -> str:
    return db.flip(db.file().path, db.file().footer[0] + 5)


@damage("footer-damaged")
def an_entry_has_another_footer(db: Damaged) -> str:
    offset, length, checksum = db.file().footer
    return db.edit_file(footer=(offset, length, checksum ^ 1))


@damage("file-columns")
def a_file_has_no_commit_timestamps_though_its_entry_says_so(db: Damaged) -> str:
    ts = db.file().row_ts or 0
    return db.edit_file(row_ts=None, row_ts_bounds=(ts, ts))


@damage("file-columns")
def a_file_has_a_column_of_another_type(db: Damaged) -> str:
    schema = db.table("other").schema
    changed = (msgspec.structs.replace(schema.fields[0], type="int8"),)
    db.edit_table("other", schema=msgspec.structs.replace(schema, fields=changed))
    return db.file(0, "other").path


@damage("data-damaged", deep=True)
def a_bit_of_a_page_is_flipped(db: Damaged) -> str:
    return db.flip(db.file().path, 200)


@damage("index-damaged", deep=True)
def a_bit_of_the_page_index_is_flipped(db: Damaged) -> str:
    return db.flip(db.file().path, db.file().footer[0] - 9)


@damage("index-damaged", deep=True)
def a_file_does_not_begin_as_parquet_does(db: Damaged) -> str:
    return db.flip(db.file().path, 1)


@damage("stats-untrue", deep=True)
def the_greatest_value_is_too_small(db: Damaged) -> str:
    return edit_stats(db, 1, max=38)


@damage("stats-untrue", deep=True)
def the_least_text_is_too_great(db: Damaged) -> str:
    return edit_stats(db, 3, min="00002")


@damage("stats-untrue", deep=True)
def nulls_are_not_counted(db: Damaged) -> str:
    return edit_stats(db, 2, nulls=0)


@damage("stats-untrue", deep=True)
def nan_is_not_counted(db: Damaged) -> str:
    return edit_stats(db, 2, nans=0)


@damage("stats-untrue", deep=True)
def nulls_of_a_nested_column_are_not_counted(db: Damaged) -> str:
    return edit_stats(db, 4, nulls=0)


@damage("row-order", deep=True)
def rows_are_not_sorted(db: Damaged) -> str:
    unsorted = Database(MemoryStore(db.bucket), Runtime())
    table = unsorted.create_table("u", SCHEMA, sort_key="id")
    entry = unsorted._context.head.refresh().manifest.table("u")
    with unsorted.transaction() as tx:
        tx.begin_upload()
        file = write_file(MemoryStore(db.bucket), "u", msgspec.structs.replace(entry, sort_key=(3,)), rows(0), 10)
        tx.add(dolmen.commit.statements.Write("u", entry.uuid, files=(file,)))
    assert table.count() == 40
    return file.path


@pytest.mark.parametrize(("harm", "kind", "options"), DAMAGES)
def test_damage_is_found_by_its_kind_and_object(db: Damaged, harm: Damage, kind: str, options: dict[str, Any]) -> None:
    named = harm(db)
    report = db.verify(**options)
    assert {(found.kind, found.object) for found in report.findings} == {(kind, named)}, report
    assert report.ok is (KINDS[kind].severity == "warning")
    assert report.findings[0].repair
    assert KINDS[kind].repair in repr(report)
    assert kind in report._repr_html_()
    assert report.to_dict()["findings"][0]["object"] == named


def test_two_files_that_were_swapped_are_both_found(db: Damaged) -> None:
    one, other = db.file(0), db.file(1)
    db.swap(one.path, other.path)
    found = db.found()
    assert {object for _, object in found} == {one.path, other.path}
    assert {kind for kind, _ in found} <= {"file-size", "footer-damaged"}


def test_two_vectors_that_were_swapped_are_both_found(db: Damaged) -> None:
    places = [place for place, file in enumerate(db.table().files) if file.vector]
    one, other = (db.file(place).vector for place in places)
    assert one is not None
    assert other is not None
    db.edit_file(places[0], vector=other)
    db.edit_file(places[1], vector=one)
    assert db.found() == {("vector-damaged", one.object), ("vector-damaged", other.object)}


def test_a_finding_tells_what_it_costs(db: Damaged) -> None:
    db.lose(db.file(1).path)
    db.lose(next(key for key in db.bucket.objects if key.startswith("data/gone/")))
    missing, released = sorted(db.verify().findings, key=lambda found: found.kind)
    version = db.manifest.version
    assert (missing.table, missing.rows, missing.versions) == ("t", 40, (version, version))
    assert missing.cost == f"40 rows, table t, version {version}"
    assert released.versions == (1, version - 1)


def test_orphans_are_counted_and_no_error(db: Damaged) -> None:
    db.put("data/t/2026/01/01/00/stray.parquet", b"12345")
    db.put("tombstone/t/2026/01/01/00/stray.del", b"123")
    db.put("manifest/v00000000000000000002-00000000.json", b"1")
    report = db.verify()
    assert report.ok
    assert report.findings == ()
    assert {name: (some.objects, some.bytes) for name, some in report.orphans.items()} == {
        "data/": (1, 5),
        "tombstone/": (1, 3),
        "manifest/": (1, 1),
    }
    assert "3 objects, 9 bytes" in repr(report)


def test_findings_beyond_a_thousand_of_a_kind_are_only_counted(db: Damaged) -> None:
    file = db.file()
    many = [msgspec.structs.replace(file, path=f"data/t/2026/01/01/00/{n:032x}.parquet") for n in range(1_100)]
    db.edit_table(files=tuple(many))
    report = db.verify()
    assert report.counts == {"file-missing": 1_100}
    assert len(report.findings) == 1_000


def test_progress_is_told(db: Damaged) -> None:
    told: list[tuple[str, int, int]] = []
    db.verify(deep=True, progress=lambda what, done, total: told.append((what, done, total)))
    assert {what for what, _, _ in told} >= {"manifests", "data files", "objects listed", ".del objects", "footers"}
    assert [(done, total) for what, done, total in told if what == "footers"][-1] == (6, 6)


def test_every_kind_of_finding_stands_in_the_operators_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "maintenance.md").read_text()
    table = page.partition("### What it finds")[2]
    assert set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", table)) == KINDS.keys()

"""The pointer, manifests and whole objects: damaged, lost, or telling what is not so."""

from __future__ import annotations

import msgspec

from dolmen.format.entries import ColumnStats, WhereTombstone
from dolmen.format.layout import POINTER, Pointer
from dolmen.format.manifest import AppliedId, Released
from maintenance.verify.harms import damage, edit_stats, edit_tombstone, manifests, tombstone, vector_file, vector_of
from support.damaged import Damaged


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

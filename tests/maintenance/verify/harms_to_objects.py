"""What is in data files, tombstones and vectors: damaged, or not what their entries say."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.format.entries import KeysTombstone, WhereTombstone
from dolmen.rows.write import runs
from dolmen.rows.write.data_file import write_data_files
from dolmen.store.memory import MemoryStore
from dolmen.transactions.transaction import unit_of
from maintenance.verify.harms import SCHEMA, damage, edit_stats, edit_tombstone, rows, tombstone, vector_file, vector_of
from support.damaged import Damaged
from support.tables import write_file


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
def a_partition_is_another_one(db: Damaged) -> str:
    return db.edit_file(partitions={"bucket[1000](1)": 1})


@damage("file-entry")
def a_partition_is_by_no_column(db: Damaged) -> str:
    return db.edit_file(partitions={"bucket[2](900)": 1})


@damage("file-entry")
def a_partition_is_by_no_transform(db: Damaged) -> str:
    return db.edit_file(partitions={"week(1)": 1})


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


@damage("value-invalid", deep=True)
def a_text_is_not_utf_8(db: Damaged) -> str:
    store = MemoryStore(db.bucket)
    texts = Database(store, Runtime())
    texts.create_table("u", pa.schema([("s", pa.string())]))
    texts_in_bytes = pa.array([b"a", b"b\xff", b"c"])
    bad = pa.Array.from_buffers(pa.string(), 3, texts_in_bytes.buffers())
    with texts.transaction() as tx:
        entry = unit_of(tx).entry("u")
        unit_of(tx).begin_upload()
        files = write_data_files(store, "u", entry, [pa.record_batch([bad], entry.schema.arrow)], Runtime())
        unit_of(tx).add(dolmen.commit.statements.row_changes.Write("u", entry.uuid, files=tuple(files)))
    return files[0].path


@damage("row-order", deep=True)
def rows_are_not_sorted(db: Damaged) -> str:
    unsorted = Database(MemoryStore(db.bucket), Runtime())
    table = unsorted.create_table("u", SCHEMA, sort_key="id")
    entry = unsorted._context.head.refresh().manifest.table("u")
    with unsorted.transaction() as tx, pytest.MonkeyPatch.context() as patch:
        unit_of(tx).begin_upload()
        patch.setattr(runs, "_is_sorted", lambda keys: True)
        file = write_file(MemoryStore(db.bucket), "u", entry, rows(0), 10)
        unit_of(tx).add(dolmen.commit.statements.row_changes.Write("u", entry.uuid, files=(file,)))
    assert table.count() == 40
    return file.path

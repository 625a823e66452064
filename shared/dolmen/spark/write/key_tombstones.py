"""Keys of a DataFrame become tombstones: tasks upload their long lists of keys, the driver uploads the short ones.

An upsert brings the rows of each key together, in order, so a task that holds one batch sees a repeated key. Nothing is
read of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB
from dolmen.commit.uploads import MAX_KEYS, PendingUploads
from dolmen.errors import InputError, RowError
from dolmen.format.delete_object import Keys, TombstoneObject, add_keys, keys_from_arrow
from dolmen.format.entries import KeysTombstone
from dolmen.format.layout import tombstone_key
from dolmen.format.schema import Field
from dolmen.spark.write.task_reports import Reported
from dolmen.store.base import ObjectStore, create

FEW_KEYS = 2_000
"""The most keys and bytes of a partition that the driver uploads: they need no object of their own."""
FEW_BYTES = 64 * 1024
FOLD_BYTES = 64 * MIB
"""Keys are sorted, and duplicates dropped, at this many bytes, or at ``MAX_KEYS``."""


class KeySink:
    """Takes a task's keys, and uploads them in batches, each of which makes one tombstone.

    Args:
        fields: the key's columns.
        txid: of the job's intent; it begins the objects' names.
    """

    def __init__(
        self, store: ObjectStore, runtime: Runtime, table: str, uuid: str, fields: tuple[Field, ...], txid: str
    ) -> None:
        self._store, self._runtime, self._table, self._uuid = store, runtime, table, uuid
        self._fields, self._txid = fields, txid
        self._keys: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._tombstones: list[KeysTombstone] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds the keys of rows in the table's types. Raises RowError: a NULL in a key."""
        keys = pa.table([rows[field.name] for field in self._fields], [field.name for field in self._fields])
        check_not_null(keys, self._fields)
        if self._rows + keys.num_rows > MAX_KEYS or self._bytes + keys.nbytes > FOLD_BYTES:
            self._fold()
        self._keys.append(keys)
        self._rows += keys.num_rows
        self._bytes += keys.nbytes

    def finish(self, report: Reported) -> None:
        """Adds to a report the uploaded tombstones, and the keys that are too few to upload."""
        if self._rows:
            distinct = keys_from_arrow(pa.concat_tables(self._keys), self._fields)
            if not self._tombstones and distinct.num_rows <= FEW_KEYS and distinct.nbytes <= FEW_BYTES:
                report.keys.append(distinct)
            else:
                self._upload(distinct)
        report.tombstones += self._tombstones

    def _fold(self) -> None:
        """Makes room: drops duplicate keys, or uploads the keys if most are distinct."""
        distinct = keys_from_arrow(pa.concat_tables(self._keys), self._fields)
        if distinct.num_rows > self._rows // 2:
            self._upload(distinct)
            self._keys, self._rows, self._bytes = [], 0, 0
            return
        distinct = distinct.rename_columns([field.name for field in sorted(self._fields, key=lambda f: f.id)])
        self._keys, self._rows, self._bytes = [distinct], distinct.num_rows, distinct.nbytes

    def _upload(self, keys: Keys) -> None:
        name = f"{self._txid}-{self._runtime.uuid()}"
        target = TombstoneObject(tombstone_key(self._table, self._store.clock.now_us, name), self._uuid)
        self._tombstones.append(add_keys(target, keys))
        create(self._store, target.key, target.encode(), self._runtime)


def check_not_null(keys: pa.Table, fields: Iterable[Field]) -> None:
    """Raises RowError for a NULL."""
    for field in fields:
        if keys[field.name].null_count:
            raise RowError("NULL in a key: it equals nothing", column=field.name)


def tombstones(
    uploads: PendingUploads, table: str, uuid: str, reported: Reported, fields: tuple[Field, ...]
) -> tuple[KeysTombstone, ...]:
    """The tombstones of all keys that tasks have reported; short lists are uploaded together, with the manifest."""
    made = list(reported.tombstones)
    if reported.keys:
        target = uploads.tombstone_object(table, uuid)
        names = [field.name for field in sorted(fields, key=lambda field: field.id)]
        keys = keys_from_arrow(pa.concat_tables(each.rename_columns(names) for each in reported.keys), fields)
        made += (add_keys(target, keys.slice(start, MAX_KEYS)) for start in range(0, keys.num_rows, MAX_KEYS))
    return tuple(made)


def check_each_once(batches: Iterator[pa.RecordBatch], names: list[str]) -> Iterator[pa.RecordBatch]:
    """The same batches, whose rows are in the order of their keys. Raises InputError: a key occurs twice."""
    last: pa.Table | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys = pa.table(batch.select(names))
        if has_duplicates(keys if last is None else pa.concat_tables([last, keys])):
            raise duplicate_key_error(names)
        last = keys.slice(keys.num_rows - 1)
        yield batch


def has_duplicates(keys: pa.Table) -> bool:
    """Whether a row equals the one before it; NULL equals nothing."""
    same = np.ones(max(keys.num_rows - 1, 0), np.bool_)
    for column in keys.columns:
        whole = column.combine_chunks()
        same &= pc.equal(whole[1:], whole[:-1]).fill_null(False).to_numpy(zero_copy_only=False)
    return bool(same.any())


def duplicate_key_error(names: Iterable[str]) -> InputError:
    """The error for several rows of one key."""
    listed = ", ".join(repr(name) for name in names)
    return InputError(
        f"several rows of the DataFrame have the same key (columns {listed}), and it has no order by which the last "
        f"could win: keep one of each, by dropDuplicates([{listed}]) or row_number() over a window"
    )

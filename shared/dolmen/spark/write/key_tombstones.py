"""Keys of a DataFrame become tombstones: long lists are uploaded by the tasks that have them, short ones by the driver.

An upsert brings the rows of each key together, in order, so that a task sees whether a key stands there twice while it
holds no more than one batch. Nothing is read of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.base.units import MIB
from dolmen.commit.uploads import MAX_KEYS, PendingUploads
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.delete_object import TombstoneObject
from dolmen.format.entries import KeysTombstone
from dolmen.format.keys import Keys, add_keys, keys_from_arrow
from dolmen.format.layout import tombstone_key
from dolmen.format.schema import Field, Schema, own_names, same_names
from dolmen.rows.write.conform import conform
from dolmen.spark.failures import mark_errors
from dolmen.spark.file_tasks import WriteTask, chain_batches, open_to_write
from dolmen.spark.spark_types import quoted, spark_type
from dolmen.spark.write.task_reports import Reported
from dolmen.store.base import ObjectStore, create

FEW_KEYS = 2_000
"""The most keys of a partition, and the most bytes, that are left to the driver: they need no object of their own."""
FEW_BYTES = 64 * 1024
FOLD_BYTES = 64 * MIB
"""Keys are sorted, and duplicates dropped, at this many bytes, or at ``MAX_KEYS``."""


def spell(frame: DataFrame, schema: Schema) -> DataFrame:
    """The DataFrame with the names that its columns have in the table, which differ in case at most.

    Raises:
        SchemaError: two of its columns are one of the table's.
    """
    names = own_names(frame.columns, schema)
    if names == frame.columns:
        return frame
    if len(set(names)) < len(names) and (alike := same_names(frame.columns)):
        raise SchemaError(
            f"columns {alike[0]!r} and {alike[1]!r} of the DataFrame differ in case only: rename one, or drop it"
        )
    return frame.toDF(*names)


def key_columns(frame: DataFrame, fields: Iterable[Field]) -> list[Column]:
    """The key's columns in Spark's types for the table's columns: equal keys are equal in these.

    Raises:
        SchemaError: a column is of another kind than the table's, so that Spark might compare otherwise than dolmen.
    """
    return [_key_column(frame, field) for field in fields]


def _key_column(frame: DataFrame, field: Field) -> Column:
    if field.name not in frame.columns:
        raise SchemaError(f"the DataFrame has no column {field.name!r}, which is part of the key")
    own, wanted = frame.schema[field.name].dataType, spark_type(field.arrow_type)
    numbers = s.IntegralType, s.DecimalType
    alike = type(own) is type(wanted) or (isinstance(own, numbers) and isinstance(wanted, numbers))
    if not alike:
        raise SchemaError(
            f"column {field.name!r}: a key of type {own.simpleString()} for one of {wanted.simpleString()}: cast it"
        )
    column = F.col(quoted(field.name))
    return column if own == wanted else column.try_cast(wanted)  # what does not fit is found when it is written


def as_given(frame: DataFrame, field: Field) -> Column:
    """A key's column in its own type, but for text, of which a collation might take unequal keys for equal."""
    column = F.col(quoted(field.name))
    given = frame.schema[field.name].dataType
    return column.cast("string").alias(field.name) if isinstance(given, s.StringType) else column


class KeySink:
    """Takes a task's keys, and uploads them in portions that each make one tombstone.

    Args:
        table: its name, which stands in the objects' keys.
        fields: the key's columns.
        txid: of the intent that begins the objects' names.
    """

    def __init__(
        self, store: ObjectStore, runtime: Runtime, table: str, uuid: str, fields: tuple[Field, ...], txid: str
    ) -> None:
        self._store, self._runtime, self._table, self._uuid = store, runtime, table, uuid
        self._fields, self._txid = fields, txid
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._tombstones: list[KeysTombstone] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds the keys of rows in the table's types.

        Raises:
            RowError: a NULL in a key.
        """
        keys = pa.table([rows[field.name] for field in self._fields], [field.name for field in self._fields])
        check_not_null(keys, self._fields)
        if self._rows + keys.num_rows > MAX_KEYS or self._bytes + keys.nbytes > FOLD_BYTES:
            self._fold()
        self._held.append(keys)
        self._rows += keys.num_rows
        self._bytes += keys.nbytes

    def finish(self, report: Reported) -> None:
        """Adds to a report what was uploaded, and what is too little for that."""
        if self._rows:
            distinct = keys_from_arrow(pa.concat_tables(self._held), self._fields)
            if not self._tombstones and distinct.num_rows <= FEW_KEYS and distinct.nbytes <= FEW_BYTES:
                report.keys.append(distinct)
            else:
                self._upload(distinct)
        report.tombstones += self._tombstones

    def _fold(self) -> None:
        """Makes room: drops keys that stand there more than once, or else uploads what there is."""
        distinct = keys_from_arrow(pa.concat_tables(self._held), self._fields)
        if distinct.num_rows > self._rows // 2:
            self._upload(distinct)
            self._held, self._rows, self._bytes = [], 0, 0
            return
        distinct = distinct.rename_columns([field.name for field in sorted(self._fields, key=lambda f: f.id)])
        self._held, self._rows, self._bytes = [distinct], distinct.num_rows, distinct.nbytes

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
    """All keys that tasks have reported, as few tombstones as can be; short lists are uploaded with the manifest."""
    made = list(reported.tombstones)
    if reported.keys:
        target = uploads.tombstone_object(table, uuid)
        names = [field.name for field in sorted(fields, key=lambda field: field.id)]
        keys = keys_from_arrow(pa.concat_tables(each.rename_columns(names) for each in reported.keys), fields)
        made += (add_keys(target, keys.slice(start, MAX_KEYS)) for start in range(0, keys.num_rows, MAX_KEYS))
    return tuple(made)


@dataclass(frozen=True)
class KeysTask(WriteTask):
    """A task that may hide rows by their keys.

    Args:
        key: ids of the key's columns.
    """

    key: tuple[int, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The key's columns."""
        return tuple(self.decoded.schema.by_id[id_] for id_ in self.key)

    def sink(self, store: ObjectStore) -> KeySink:
        """Takes the keys of one partition."""
        return KeySink(store, shared_runtime(), self.table, self.decoded.uuid, self.fields, self.txid)


@dataclass(frozen=True)
class KeyedTask(KeysTask):
    """A task that writes rows and their keys, or keys alone.

    Args:
        rows: whether the batches are rows of the table, in the order of their keys; else they are keys.
        with_sums: also sum them, for the digest of a request.
        only_sum: and write nothing.
    """

    rows: bool
    with_sums: bool = False
    only_sum: bool = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> Reported:
        """Writes one partition, in bounded memory.

        Raises:
            InputError: two rows have the same key, or one has none.
            RowError: a value does not fit.
        """
        report = Reported()
        first = next(batches, None)
        if first is None:
            return report
        source = pa.RecordBatchReader.from_batches(first.schema, chain_batches(first, batches))
        given = conform(source, self.decoded.schema if self.rows else only(self.fields))
        if self.with_sums:
            given = report.sums.passing(given)
        if self.only_sum:
            for _ in given:
                pass
            return report
        store = open_to_write(self.url, shared_runtime())
        sink = self.sink(store)
        if self.rows:
            report.files += self.put(store, self._keyed(given, sink))
        else:
            for batch in given:
                sink.add(batch)
        sink.finish(report)
        return report

    def _keyed(self, batches: Iterator[pa.RecordBatch], sink: KeySink) -> Iterator[pa.RecordBatch]:
        for batch in once_each(batches, [field.name for field in self.fields]):
            sink.add(batch)
            yield batch


def write_keyed(task: KeyedTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: rows or keys become what was written of them (``REPORT``)."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task.run(batches).to_batches()

    return mark_errors(write)


def once_each(batches: Iterator[pa.RecordBatch], names: list[str]) -> Iterator[pa.RecordBatch]:
    """The same batches, in which equal keys stand beside each other.

    Raises:
        InputError: a key stands there twice.
    """
    last: pa.Table | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys = pa.table(batch.select(names))
        if repeated(keys if last is None else pa.concat_tables([last, keys])):
            raise twice(names)
        last = keys.slice(keys.num_rows - 1)
        yield batch


def repeated(keys: pa.Table) -> bool:
    """Whether a row equals the one before it; NULL equals nothing."""
    same = np.ones(max(keys.num_rows - 1, 0), np.bool_)
    for column in keys.columns:
        whole = column.combine_chunks()
        same &= pc.equal(whole[1:], whole[:-1]).fill_null(False).to_numpy(zero_copy_only=False)
    return bool(same.any())


def twice(names: Iterable[str]) -> InputError:
    """The error for rows of one key, of which none can be the last: a DataFrame has no order."""
    listed = ", ".join(repr(name) for name in names)
    return InputError(
        f"several rows of the DataFrame have the same key (columns {listed}), and it has no order by which the last "
        f"could win: keep one of each, by dropDuplicates([{listed}]) or row_number() over a window"
    )


def only(fields: Iterable[Field]) -> Schema:
    """A schema of some columns of a table."""
    fields = tuple(fields)
    return Schema(fields=fields, next_id=max(field.id for field in fields) + 1)

"""The tasks of writes: they write data files and upload keys, sum their rows for a request's digest, and report to the
driver, which makes one commit of all reports.

Spark gives the driver one report for each partition: files of repeated, speculative or killed tasks are in none.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, Row

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.runtime import cached_property, shared_runtime
from dolmen.base.units import MIB
from dolmen.commit.uploads import BEAT_SECONDS, MAX_KEYS
from dolmen.errors import InputError
from dolmen.format.del_object import Keys, TombstoneObject, add_keys, check_not_null, distinct_keys, key_tuples
from dolmen.format.entries import DataFile, KeysTombstone
from dolmen.format.layout import tombstone_key
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field, Schema, own_names
from dolmen.format.types import to_mask
from dolmen.predicate.ast import Predicate
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.row_digest import mix, row_hashes
from dolmen.rows.write.runs import DEFAULT, WriteOptions
from dolmen.spark.tasks import (
    FAILURES,
    collect_objects,
    collect_rows,
    conform_batches,
    open_to_write,
    raising_dolmen_errors,
)
from dolmen.store import portable_url
from dolmen.store.base import ObjectStore, create
from dolmen.transactions.row_arguments import only_matching
from dolmen.transactions.transaction import Transaction, unit_of

FEW_KEYS = 2_000  # the most keys and bytes of a partition that the driver uploads: they need no object of their own
FEW_BYTES = 64 * 1024
FOLD_BYTES = 64 * MIB  # keys are sorted, and duplicates dropped, at this many bytes, or at ``MAX_KEYS``
_MASK = (1 << 64) - 1
_SECOND = 0xD6E8FEB86659FD93


class DigestMode(Enum):
    """Whether a write sums its rows, for the digest by which a request differs from another with the same id."""

    NONE = "no digest"
    WITH_FILES = "a digest, and files"
    ALONE = "a digest and no file: the request was applied before"

    @classmethod
    def of(cls, request: str | None) -> DigestMode:
        return cls.NONE if request is None else cls.WITH_FILES


@dataclass
class RowSums:
    """The number of some rows, and two sums of their hashes, modulo 2^64 (docs/protocol.md)."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        each = row_hashes(batch)
        second = mix(each ^ np.uint64(_SECOND))
        self.add_sums(RowSums(batch.num_rows, int(each.sum(dtype=np.uint64)), int(second.sum(dtype=np.uint64))))

    def add_sums(self, other: RowSums) -> None:
        self.rows += other.rows
        self.first = (self.first + other.first) & _MASK
        self.second = (self.second + other.second) & _MASK

    def add_each(self, batches: Iterable[pa.RecordBatch], without: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Passes rows on, and adds them without some columns."""
        for batch in batches:
            self.add(batch.drop_columns(without) if without else batch)
            yield batch

    def content(self) -> list[Any]:
        """For a request's digest (``content_digest``)."""
        return ["rows in any order", self.rows, f"{self.first:016x}", f"{self.second:016x}"]


@dataclass
class WriteReport:
    """The report of a task, or of all tasks of a job."""

    files: list[DataFile] = field(default_factory=list)
    tombstones: list[KeysTombstone] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)  # lists of keys that are too short to upload
    # deleted rows by the name of their data file; with ``has_repeats``, one of them more than once
    positions: dict[str, BitMap] = field(default_factory=dict)
    inserted: list[pa.Table] = field(default_factory=list)  # primary keys of rows that must be new to the table
    has_repeats: bool = False
    sums: RowSums = field(default_factory=RowSums)

    @classmethod
    def of(cls, reports: Iterable[WriteReport]) -> WriteReport:
        total = cls()
        for report in reports:
            total.files += report.files
            total.tombstones += report.tombstones
            total.keys += report.keys
            total.inserted += report.inserted
            total.sums.add_sums(report.sums)
            for name, positions in report.positions.items():
                total.add_positions(name, positions)
        return total

    def add_positions(self, name: str, positions: BitMap) -> None:
        """Adds deleted rows of a file, and records whether one of them is a duplicate."""
        deleted = self.positions.setdefault(name, BitMap())
        self.has_repeats |= deleted.intersect(positions)
        deleted |= positions


def encode_entry(entry: TableEntry, schema: Schema | None = None) -> bytes:
    """A table's entry for tasks, without its files and deletes, which may be many; and with other columns if given."""
    schema = schema or entry.schema
    return msgspec.json.encode(
        msgspec.structs.replace(entry, schema=schema, files=(), tombstones=(), segments=(), overlays=(), removed=())
    )


def decode_entry(body: bytes) -> TableEntry:
    return msgspec.json.decode(body, type=TableEntry)


@dataclass(frozen=True)
class WriteTask:
    """A task that writes files of the table ``entry`` (by ``encode_entry``), whose names begin with ``txid``.

    ``key`` has the ids of the columns by whose values rows are hidden.
    """

    url: str
    table: str
    entry: bytes
    txid: str
    key: tuple[int, ...] = ()

    def name(self) -> str:
        """A new object's name, by which collection finds the objects of a dead job."""
        return f"{self.txid}-{shared_runtime().uuid()}"

    @cached_property
    def table_entry(self) -> TableEntry:
        return decode_entry(self.entry)

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(self.table_entry.schema.by_id[id_] for id_ in self.key)

    def put(
        self, store: ObjectStore, rows: Iterable[pa.RecordBatch], options: WriteOptions = DEFAULT
    ) -> list[DataFile]:
        """Writes rows of the table's own types into as many data files as they need, in bounded memory."""
        return write_data_files(store, self.table, self.table_entry, rows, shared_runtime(), options, self.name)


class KeySink:
    """Takes the keys of one partition, and uploads them in batches, each of which makes one tombstone."""

    def __init__(self, task: WriteTask, store: ObjectStore) -> None:
        self._task, self._fields, self._store = task, task.fields, store
        self._keys: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._tombstones: list[KeysTombstone] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds the keys of rows in the table's types. Raises RowError: a NULL in a key."""
        check_not_null(rows, self._fields, None)
        keys = key_tuples(pa.table(rows), self._fields)
        if self._rows + keys.num_rows > MAX_KEYS or self._bytes + keys.nbytes > FOLD_BYTES:
            self._fold()
        self._keys.append(keys)
        self._rows += keys.num_rows
        self._bytes += keys.nbytes

    def add_each(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.add(batch)
            yield batch

    def finish(self, report: WriteReport) -> None:
        """Adds to a report the uploaded tombstones, and the keys that are too few to upload."""
        if self._rows:
            distinct = combine_keys(self._keys)
            if not self._tombstones and distinct.num_rows <= FEW_KEYS and distinct.nbytes <= FEW_BYTES:
                report.keys.append(distinct)
            else:
                self._upload(distinct)
        report.tombstones += self._tombstones

    def _fold(self) -> None:
        """Makes room: drops duplicate keys, or uploads the keys if most are distinct."""
        distinct = combine_keys(self._keys)
        if distinct.num_rows > self._rows // 2:
            self._upload(distinct)
            self._keys, self._rows, self._bytes = [], 0, 0
        else:
            self._keys, self._rows, self._bytes = [distinct], distinct.num_rows, distinct.nbytes

    def _upload(self, keys: Keys) -> None:
        key = tombstone_key(self._task.table, self._store.clock.now_us, self._task.name())
        target = TombstoneObject(key, self._task.table_entry.uuid)
        self._tombstones.append(add_keys(target, keys))
        create(self._store, target.key, target.encode(), shared_runtime())


@dataclass(frozen=True)
class RowsTask(WriteTask):
    """A task that appends rows, replaces rows by key (its rows are in key order), or (no ``has_rows``) deletes keys.

    ``only`` must be TRUE for each row; with ``divides_all`` no file has rows of several partitions.
    """

    has_rows: bool = True
    digest: DigestMode = DigestMode.NONE
    only: Predicate | None = None
    divides_all: bool = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> WriteReport:
        """Writes one partition, in bounded memory. Raises InputError for a key that occurs twice, RowError."""
        report = WriteReport()
        if (first := next(batches, None)) is None:
            return report
        schema = self.table_entry.schema if self.has_rows else schema_of(self.fields)
        rows = conform_batches(chain([first], batches), schema)
        assert rows is not None, "there is a batch"
        if self.only is not None:
            rows = only_matching(rows, self.only, schema)
        if self.digest is not DigestMode.NONE:
            own = own_names(first.schema.names, schema)
            computed = [field.name for field in schema.fields if field.write_function and field.name not in own]
            rows = report.sums.add_each(rows, computed)  # they differ when the rows come again
        if self.digest is DigestMode.ALONE:
            deque(rows, maxlen=0)
            return report
        store = open_to_write(self.url, shared_runtime())
        sink = KeySink(self, store)
        if self.key:
            names = [field.name for field in self.fields]
            rows = sink.add_each(check_each_once(rows, names) if self.has_rows else rows)
        if self.has_rows:
            options = replace(DEFAULT, partition_files=sys.maxsize) if self.divides_all else DEFAULT
            report.files += self.put(store, rows, options)
        else:
            deque(rows, maxlen=0)
        sink.finish(report)
        return report


def begin_uploads(transaction: Transaction, table: str) -> tuple[str, str, bytes, str]:
    """Begins the uploads of workers, and returns the arguments of a ``WriteTask``. Raises InputError."""
    unit = unit_of(transaction)
    url = portable_url(unit.context.store)
    unit.begin_upload()
    entry = unit.entry(table)
    schema = entry.schema.at(lambda: unit.context.store.clock.current_us)
    return url, table, encode_entry(entry, schema), unit.intent().txid


def collect_report(
    transaction: Transaction | None, frame: DataFrame, run: Callable[[Iterator[pa.RecordBatch]], WriteReport]
) -> WriteReport:
    """Runs a task over each partition, and combines the reports. Without a transaction, tasks upload nothing."""
    collect = collect_rows if transaction is None else partial(collect_with_heartbeats, transaction)
    return WriteReport.of(collect_objects(frame, lambda batches: [run(batches)], WriteReport, collect))


def collect_with_heartbeats(transaction: Transaction, job: DataFrame) -> list[Row]:
    """Runs a job of tasks that upload objects, while it keeps the intent alive. Otherwise as ``collect_rows``."""
    unit = unit_of(transaction)
    spark, intent = job.sparkSession.sparkContext, unit.intent()
    tag = f"dolmen-{intent.txid}"

    def collect() -> Any:
        spark.addJobTag(tag)
        try:
            return job.collect()
        finally:
            spark.removeJobTag(tag)

    with raising_dolmen_errors():
        try:
            run = inheritable_thread_target(job.sparkSession)(collect)
            rows: list[Row] = unit.context.runtime.attend(run, BEAT_SECONDS / 10, intent.beat)
        except BaseException as error:
            if not isinstance(error, FAILURES):  # interrupted, or no heartbeat: nothing will commit the objects
                spark.cancelJobsWithTag(tag)
            raise
    return rows


def tombstones(transaction: Transaction, table: str, uuid: str, report: WriteReport) -> tuple[KeysTombstone, ...]:
    """The tombstones of all keys that tasks have reported; short lists are uploaded together, with the manifest."""
    key_tombstones = list(report.tombstones)
    if report.keys:
        target = unit_of(transaction).uploads.tombstone_object(table, uuid)
        keys = combine_keys(report.keys)
        key_tombstones += (add_keys(target, keys.slice(start, MAX_KEYS)) for start in range(0, keys.num_rows, MAX_KEYS))
    return tuple(key_tombstones)


def combine_keys(parts: Iterable[pa.Table]) -> Keys:
    return distinct_keys(pa.concat_tables(parts))[0]


def schema_of(fields: Iterable[Field]) -> Schema:
    fields = tuple(fields)
    return Schema(fields=fields, next_id=max(field.id for field in fields) + 1)


def check_each_once(batches: Iterator[pa.RecordBatch], names: list[str]) -> Iterator[pa.RecordBatch]:
    """Passes on batches whose rows are in key order. Raises InputError if a key occurs twice."""
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
        same &= to_mask(pc.equal(whole[1:], whole[:-1]).fill_null(False))
    return bool(same.any())


def duplicate_key_error(names: Iterable[str]) -> InputError:
    listed = ", ".join(repr(name) for name in names)
    return InputError(
        f"several rows of the DataFrame have the same key (columns {listed}), and it has no order by which the last "
        f"could win: keep one of each, by dropDuplicates([{listed}]) or row_number() over a window"
    )

"""The source of a merge: evaluated once, kept while the merge is tried, and summarized by its keys.

The tasks of a merge: they write rows, and report which older rows these replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa

from dolmen.base.runtime import shared_runtime
from dolmen.errors import InputError
from dolmen.format.keys import Keys, keys_from_arrow
from dolmen.format.schema import Field
from dolmen.predicate import Constant, Predicate
from dolmen.rows.write.casts import FindCast
from dolmen.rows.write.conform import conform
from dolmen.spark.failures import mark_errors, raising_dolmen_errors
from dolmen.spark.file_tasks import FILE, ROW, chain_batches, map_in_tasks, open_to_write
from dolmen.spark.spark_types import quoted
from dolmen.spark.write.key_tombstones import KeySink, KeysTask, key_columns, only, repeated
from dolmen.spark.write.task_reports import Reported, RowSums
from dolmen.transactions.merge.merge_source import keys_predicate
from dolmen.transactions.merge.row_template import NO_LITERALS, casts_of

LISTED = 100
"""The most keys that are listed one by one; of more, only the range is known."""


SUMMARY = "rows BIGINT, nulls BIGINT, repeated BOOLEAN, listed BOOLEAN, keys BINARY"


@dataclass(frozen=True)
class SourceSummary:
    """A summary of the keys of a source.

    Args:
        rows: of the source.
        nulls: how many of them have a NULL in their key, and so match nothing.
        repeated: whether a key stands there more than once.
        keys: all of them, if they are listed; else some of them with the ends of each column.
    """

    rows: int
    nulls: int
    repeated: bool
    listed: bool
    keys: Keys | None

    @classmethod
    def of(cls, parts: Iterable[SourceSummary], fields: tuple[Field, ...]) -> SourceSummary:
        """Combines the summaries of partitions, which have no key in common."""
        parts = list(parts)
        tables = [part.keys for part in parts if part.keys is not None]
        keys = None
        if tables:
            names = [field.name for field in _by_id(fields)]
            keys = keys_from_arrow(pa.concat_tables(table.rename_columns(names) for table in tables), fields)
        return cls(
            sum(part.rows for part in parts),
            sum(part.nulls for part in parts),
            any(part.repeated for part in parts),
            all(part.listed for part in parts) and (keys is None or keys.num_rows <= LISTED),
            keys,
        )

    def predicate(self, fields: tuple[Field, ...]) -> Predicate:
        """A short predicate that is TRUE for every row with one of the keys, and for few others."""
        return Constant(False) if self.keys is None else keys_predicate(self.keys, fields, listed=self.listed)


class Source:
    """A DataFrame whose rows are to be merged. ``close`` frees the memory and disk that it is kept in.

    Args:
        fields: the columns it is joined on.
    """

    HERE = "__source"
    """A column that is NULL where there is no source row."""

    def __init__(self, frame: DataFrame, fields: tuple[Field, ...]) -> None:
        self._fields, self._columns = fields, key_columns(frame, fields)
        keys = [column.alias(name) for column, name in zip(self._columns, self.keys, strict=True)]
        self._kept = frame.select("*", F.lit(True).alias(self.HERE), *keys)
        self._kept = self._kept.repartition(*self.keys).sortWithinPartitions(*self.keys)
        self._is_kept = False
        self._summary: SourceSummary | None = None
        self._given = frame.columns
        self._sums: RowSums | None = None

    @property
    def keys(self) -> list[str]:
        """Names of the key columns in the table's own types."""
        return [f"__key_{place}" for place in range(len(self._fields))]

    @property
    def frame(self) -> DataFrame:
        """Its rows with ``keys`` and ``HERE``; evaluated once."""
        if not self._is_kept:
            self._kept = self._kept.persist(StorageLevel.MEMORY_AND_DISK)
            self._is_kept = True
        return self._kept

    def summarize(self) -> SourceSummary:
        """Summarizes its keys; the first call runs a job, which evaluates the frame.

        Raises:
            RowError: a key does not fit the table's type.
        """
        if self._summary is None:
            own = [F.col(quoted(field.name)) for field in self._fields]
            job = map_in_tasks(self.frame.select(*own), mark_errors(summarize_keys(self._fields)), SUMMARY)
            with raising_dolmen_errors():
                rows = job.collect()
            self._summary = SourceSummary.of(map(_decoded, rows), self._fields)
        return self._summary

    def sums(self) -> RowSums:
        """The sums of its rows, for the digest of a request; the first call runs a job.

        Raises:
            InputError: a column has a type of which no digest is made.
        """
        if self._sums is None:
            given = self.frame.select(*(F.col(quoted(name)) for name in self._given))
            with raising_dolmen_errors():
                rows = map_in_tasks(given, mark_errors(sum_rows), "sums BINARY").collect()
            self._sums = RowSums.of(row.sums for row in rows)
        return self._sums

    def matches(self, target: list[Column], keys: list[Column]) -> Column:
        """The condition that a target row has the keys of a source row."""
        condition = F.lit(True)
        for one, other in zip(target, keys, strict=True):
            condition &= one == other
        return condition

    def close(self) -> None:
        """Frees the rows."""
        if self._is_kept:
            self._kept.unpersist()


def sum_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For ``mapInArrow``: the rows of a partition become one row with their sums."""
    sums = RowSums()
    for batch in batches:
        sums.add(batch)
    yield pa.record_batch([pa.array([sums.encode()], pa.binary())], ["sums"])


def summarize_keys(fields: tuple[Field, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: the keys of a partition, in order, become one row with their summary."""

    def summarize(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        source = pa.RecordBatchReader.from_batches(first.schema, chain_batches(first, batches))
        yield _encoded(_summary(conform(source, only(fields)), fields))

    return summarize


def _summary(batches: Iterator[pa.RecordBatch], fields: tuple[Field, ...]) -> SourceSummary:
    rows = nulls = 0
    twice, listed = False, True
    keys = last = None
    for batch in batches:
        own = pa.table(batch)
        known = own.drop_null()
        rows += own.num_rows
        nulls += own.num_rows - known.num_rows
        if known.num_rows == 0:
            continue
        twice = twice or repeated(known if last is None else pa.concat_tables([last, known]))
        last = known.slice(known.num_rows - 1)
        some = keys_from_arrow(known.select([field.name for field in fields]), fields)
        keys = some if keys is None else pa.concat_tables([keys, some])
        if keys.num_rows > LISTED:
            names = [field.name for field in _by_id(fields)]
            keys = keys_from_arrow(keys.rename_columns(names), fields)
        if keys.num_rows > LISTED:
            listed, keys = False, _ends(keys)
    return SourceSummary(rows, nulls, twice, listed, keys)


def _ends(keys: Keys) -> Keys:
    """The least and the greatest value of each column, as two tuples."""
    ends = [pc.min_max(column) for column in keys.columns]
    columns = [pa.array([end["min"], end["max"]], column.type) for end, column in zip(ends, keys.columns, strict=True)]
    return pa.table(columns, names=keys.column_names)


def _by_id(fields: tuple[Field, ...]) -> list[Field]:
    return sorted(fields, key=lambda field: field.id)


def _encoded(part: SourceSummary) -> pa.RecordBatch:
    body = None
    if part.keys is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.keys.schema) as writer:
            writer.write_table(part.keys)
        body = bytes(sink.getvalue())
    columns = {"rows": [part.rows], "nulls": [part.nulls], "repeated": [part.repeated], "listed": [part.listed]}
    return pa.record_batch({**columns, "keys": pa.array([body], pa.binary())})


def _decoded(row: Row) -> SourceSummary:
    keys = None if row["keys"] is None else pa.ipc.open_stream(bytes(row["keys"])).read_all()
    return SourceSummary(row.rows, row.nulls, row.repeated, row.listed, keys)


ACTION = "__action"
"""The column with the number of a row's action."""


@dataclass(frozen=True)
class Action:
    """The action on a row.

    Args:
        hides: whether the target row goes.
        columns: the row written instead, or in addition: columns of the table with the place of their value; None
            writes none.
        computed: those of the columns whose values are computed, so that their types are Spark's guess.
    """

    hides: bool
    columns: tuple[tuple[str, int], ...] | None
    computed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MergeTask(KeysTask):
    """A task that writes what a merge adds, and hides what it replaces; the key is what it joins on.

    Args:
        actions: by number.
        keys: whether target rows are hidden by their keys, ``__key_0`` and on.
        positions: whether they are told by their positions, to be hidden by them or to see that each goes once.
        once: whether it is an error when one goes twice.
        new: whether the primary keys of rows that replace none are reported, to be compared with the table's.
    """

    actions: tuple[Action, ...]
    keys: bool
    positions: bool
    once: bool
    new: bool = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> Reported:
        """Applies the actions to the rows of one partition, in bounded memory.

        Raises:
            InputError: a target row is matched by several source rows.
            RowError: a value does not fit.
        """
        report = Reported()
        first = next(batches, None)
        if first is None:
            return report
        store = open_to_write(self.url, shared_runtime())
        sink = self.sink(store)
        report.files += self.put(store, self._merged(chain_batches(first, batches), sink, report))
        sink.finish(report)
        return report

    def _merged(self, batches: Iterator[pa.RecordBatch], sink: KeySink, report: Reported) -> Iterator[pa.RecordBatch]:
        """Yields the rows to write, and notes which rows they replace."""
        fields, schema = self.fields, self.decoded.schema
        primary = [schema.by_id[id_].name for id_ in self.decoded.primary_key]
        hiding = pa.array([place for place, action in enumerate(self.actions) if action.hides], pa.int32())
        for batch in batches:
            actions = batch[ACTION].cast(pa.int32())
            hidden = batch.filter(pc.is_in(actions, hiding))
            if hidden.num_rows and self.positions:
                self._note(hidden, report)
            if hidden.num_rows and self.keys:
                names = [field.name for field in fields]
                keys = pa.record_batch([hidden[f"__key_{place}"] for place in range(len(fields))], names)
                for part in conform(pa.RecordBatchReader.from_batches(keys.schema, [keys]), only(fields)):
                    sink.add(part)
            for number, action in enumerate(self.actions):
                chosen = batch.filter(pc.equal(actions, number))
                if chosen.num_rows and action.columns is not None:
                    names = [name for name, _ in action.columns]
                    rows = pa.record_batch([chosen[f"__value_{place}"] for _, place in action.columns], names)
                    finds = computed_casts(action.computed)
                    for part in conform(pa.RecordBatchReader.from_batches(rows.schema, [rows]), schema, finds=finds):
                        if self.new and not action.hides:
                            report.inserted.append(pa.table(part.select(primary)))
                        yield part

    def _note(self, hidden: pa.RecordBatch, report: Reported) -> None:
        files = hidden[FILE].dictionary_encode()
        places, rows = files.indices.to_numpy(), hidden[ROW].to_numpy()
        for place, name in enumerate(files.dictionary.to_pylist()):
            own = rows[places == place].astype(np.uint32)
            positions = BitMap(own)
            report.add_positions(name, positions)
            if self.once and (report.again or len(positions) < len(own)):
                raise matched_twice()


def computed_casts(names: Iterable[str]) -> dict[str, FindCast]:
    """How computed values of some columns are cast."""
    return dict.fromkeys(names, casts_of(NO_LITERALS))


def write_merged(task: MergeTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: rows with their actions become reports (``REPORT``)."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task.run(batches).to_batches()

    return mark_errors(write)


def matched_twice() -> InputError:
    """The error about several source rows that match one target row."""
    return InputError(
        "several source rows match one row of the table, and would each update or delete it: keep one source row of "
        "each key, by dropDuplicates([...]) or row_number() over a window, or tell them apart by conditions"
    )

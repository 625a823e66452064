"""The source of a merge: evaluated once, kept while the merge is tried, and summarized by its keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.format.delete_object import Keys, keys_from_arrow
from dolmen.format.schema import Field
from dolmen.predicate import Constant, Predicate
from dolmen.spark.failures import mark_errors, raising_dolmen_errors
from dolmen.spark.file_tasks import MapBatches, conform_batches, map_in_tasks
from dolmen.spark.spark_types import quote
from dolmen.spark.write.frame_columns import key_columns, schema_of
from dolmen.spark.write.key_tombstones import has_duplicates
from dolmen.spark.write.task_reports import RowSums, ipc_bytes
from dolmen.transactions.merge.merge_source import keys_predicate

LISTED = 100
"""The most keys that are listed one by one; a longer list becomes its range."""
SUMMARY = "rows BIGINT, nulls BIGINT, repeated BOOLEAN, listed BOOLEAN, keys BINARY"


@dataclass(frozen=True)
class SourceSummary:
    """A summary of the keys of a source.

    Args:
        nulls: how many rows have a NULL in their key, and so match nothing.
        repeated: a key occurs more than once.
        keys: all of them, if they are ``listed``; else some of them, with the ends of each column.
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
    """A DataFrame whose rows are merged, joined on ``fields``. ``close`` frees the memory and disk that keep it."""

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
        return [f"__key_{index}" for index in range(len(self._fields))]

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
            own = [F.col(quote(field.name)) for field in self._fields]
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
            given = self.frame.select(*(F.col(quote(name)) for name in self._given))
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


def summarize_keys(fields: tuple[Field, ...]) -> MapBatches:
    """For ``mapInArrow``: the keys of a partition, in order, become one row with their summary."""

    def summarize(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if (keys := conform_batches(batches, schema_of(fields))) is not None:
            yield _encoded(_summary(keys, fields))

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
        twice = twice or has_duplicates(known if last is None else pa.concat_tables([last, known]))
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
        body = ipc_bytes(part.keys)
    columns = {"rows": [part.rows], "nulls": [part.nulls], "repeated": [part.repeated], "listed": [part.listed]}
    return pa.record_batch({**columns, "keys": pa.array([body], pa.binary())})


def _decoded(row: Row) -> SourceSummary:
    keys = None if row["keys"] is None else pa.ipc.open_stream(bytes(row["keys"])).read_all()
    return SourceSummary(row.rows, row.nulls, row.repeated, row.listed, keys)

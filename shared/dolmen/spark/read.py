"""Reading a table into Spark: native scans over the surviving files, from which deleted rows are filtered by position.

Python only plans. What Spark runs is its own vectorised Parquet reader; files without deletes are read as any Parquet
is. Files with deletes are read some dozens at a time, with three things looked up by a file's place among them: its
deleted positions as bits, its ``applied_through`` and its commit timestamp. What Spark can't express is read by
dolmen itself, in tasks (``tasks``); both give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.errors import SchemaError
from dolmen.format.entries import WhereTombstone
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.predicate import columns
from dolmen.reading import ReadableTable, Where
from dolmen.scan.deletes import Deletes
from dolmen.scan.keys_lookup import KeysLookup
from dolmen.scan.plan import FilePlan, Plan
from dolmen.scan.scan import Scan
from dolmen.segments.tombstones import Suspects
from dolmen.spark.paths import spark_paths
from dolmen.spark.predicates import Unsupported, to_column
from dolmen.spark.tasks import ReadTask, read_files
from dolmen.spark.types import carried, spark_schema

T = TypeVar("T")

FILES_TOGETHER = 48
"""So many files with deletes are read by one scan: more make its filter slow, fewer make more scans."""
MOST_PREDICATES = 64
"""Files that more unresolved predicates than this may match are read by dolmen: resolve them (``maintain``)."""
MOST_KEYS = 1_000_000
"""More deleted keys than this are not sent to all executors."""
MOST_BITS = 1 << 30
"""Nor are more positions than this, 128 MB of them, with one scan."""

_FILE, _ROW, _PLACE, _THROUGH, _TS = "__file", "__row", "__place", "__applied_through", "__ts"


def to_spark(
    table: ReadableTable,
    columns: Sequence[str] | None = None,
    where: Where = None,
    *,
    with_commit_ts: bool = False,
    native: bool = True,
    spark: SparkSession | None = None,
) -> DataFrame:
    """The rows of one version of a table, the same that ``table.scan`` gives.

    Args:
        table: of a database, of ``at(...)``; a DataFrame shows the version that was the newest when it was made.
        columns: names, in order; all by default.
        where: only rows for which this is TRUE.
        with_commit_ts: add the column ``_commit_ts``.
        native: False = read everything by dolmen itself, in Python workers.
        spark: the session; the active one by default.

    Raises:
        PredicateError, SchemaError: as ``scan`` does; also for a column of a type that Spark does not have.
    """
    spark = spark or SparkSession.active()
    scan = table.scan(columns, where, with_commit_ts=with_commit_ts)
    plan = scan.plan
    schema = spark_schema(plan.output)
    paths = spark_paths(spark, table.context.store) if native else None
    frames, rest = ([], list(plan.files)) if paths is None else _Native(spark, scan, paths).frames()
    if rest:
        frames.append(_by_dolmen(spark, table.context.store.url, plan, rest, schema, with_commit_ts))
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.unionAll, frames)


def _by_dolmen(
    spark: SparkSession, url: str, plan: Plan, files: Sequence[FilePlan], schema: s.StructType, with_commit_ts: bool
) -> DataFrame:
    names = tuple(field.name for field in plan.output if field.name != COMMIT_TS or not with_commit_ts)
    task = ReadTask(url, plan.version, plan.table, names, plan.where, with_commit_ts)
    paths = pa.table({"path": [file.file.path for file in files]})
    few = min(len(files), 4 * spark.sparkContext.defaultParallelism)
    return spark.createDataFrame(paths).repartition(few, "path").mapInArrow(read_files(task), schema)


class _Native:
    """The frames of one scan that Spark reads by itself."""

    def __init__(self, spark: SparkSession, scan: Scan, paths: str) -> None:
        self._spark, self._root = spark, paths
        self._plan, self._reader = scan.plan, scan.reader()
        self._by_id = {field.id: field for field in (*self._plan.entry.schema.fields, *self._plan.output)}
        self._ids = frozenset(self._plan.output_ids | (columns(self._plan.where) if self._plan.where else set()))
        self._deletes: Deletes | None = None

    def frames(self) -> tuple[list[DataFrame], list[FilePlan]]:
        """Frames over the files that Spark can read, and the other files."""
        plan, frames, rest = self._plan, list[DataFrame](), list[FilePlan]()
        plain, looked_up = list[FilePlan](), list[FilePlan]()
        with_ts = any(field.name == COMMIT_TS for field in plan.output)
        for file in plan.files:
            (looked_up if file.tombstones or file.file.vector or with_ts else plain).append(file)
        try:
            where = None if plan.where is None else to_column(plan.where, self._column)
            if plain:
                frames.append(self._finish(self._read(plain, self._ids), where, with_ts=False))
        except Unsupported:
            return [], list(plan.files)
        for some in _together(looked_up):
            try:
                frame = self._without_deleted(some)
            except Unsupported:
                rest += some
            else:
                frames.append(self._finish(frame, where, with_ts=with_ts))
        return frames, rest

    def _column(self, id_: int) -> Column:
        return F.col(f"`{_quoted(self._by_id[id_].name)}`")

    def _read(self, files: Sequence[FilePlan], ids: frozenset[int]) -> DataFrame:
        fields = [field for id_, field in self._by_id.items() if id_ in ids and field.name != COMMIT_TS]
        if any(file.file.row_ts is None for file in files) and COMMIT_TS in self._names:
            fields.append(Field(id=0, name=COMMIT_TS, type="int64"))
        try:
            schema = spark_schema(fields)
        except SchemaError as error:  # a column that only predicates name
            raise Unsupported(str(error)) from None
        return self._spark.read.schema(schema).parquet(*(f"{self._root}/{file.file.path}" for file in files))

    @property
    def _names(self) -> set[str]:
        return {field.name for field in self._plan.output}

    def _finish(self, frame: DataFrame, where: Column | None, *, with_ts: bool) -> DataFrame:
        if where is not None:
            frame = frame.where(where)
        return frame.select(
            *(
                F.col(_TS).alias(COMMIT_TS) if with_ts and field.name == COMMIT_TS else self._column(field.id)
                for field in self._plan.output
            )
        )

    def _without_deleted(self, files: Sequence[FilePlan]) -> DataFrame:
        if self._deletes is None:
            self._deletes = self._reader.deletes()
        deletes = self._deletes
        tombstones = {t.blob: t for file in files for t in _where(file)}
        lookups = {lookup.columns: lookup for file in files for lookup in deletes.lookups_of(file.tombstones)}
        if len(tombstones) > MOST_PREDICATES:
            raise Unsupported("too many unresolved predicates")
        needed = self._ids.union(*(t.columns for t in tombstones.values()), *lookups)
        conditions = [(to_column(deletes.predicates[blob], self._column), t.ts) for blob, t in tombstones.items()]
        bitmaps = self._reader.vectors(files)
        one = self._lookups(files, bitmaps)
        frame = self._placed(self._read(files, needed), files)

        def looked_up(name: str) -> Column:
            return F.get(one.select(name).scalar(), F.col(_PLACE))

        frame = frame.withColumn(_THROUGH, looked_up("through"))
        if COMMIT_TS in self._names:
            own = looked_up("ts")
            frame = frame.withColumn(_TS, F.coalesce(own, F.col(COMMIT_TS)) if COMMIT_TS in frame.columns else own)
        if bitmaps:
            words = F.get(looked_up("words"), F.shiftright(_ROW, 6).cast("int"))
            place = F.col(_ROW).bitwiseAND(63).cast("int")
            bit = F.call_function("shiftright", words, place).bitwiseAND(1)
            frame = frame.where(F.coalesce(bit, F.lit(0)) == 0)
        for condition, ts in conditions:
            frame = frame.where(~(F.coalesce(condition, F.lit(False)) & (F.col(_THROUGH) < ts)))
        for lookup in lookups.values():
            frame = self._without_keys(frame, lookup)
        return frame

    def _placed(self, frame: DataFrame, files: Sequence[FilePlan]) -> DataFrame:
        """With each row's position in its file, and the place of its file among these."""
        place = F.raise_error(F.lit("a file was read that the manifest does not name"))
        for at, file in reversed(list(enumerate(files))):
            place = F.when(F.col(_FILE) == file.file.path.rpartition("/")[2], F.lit(at)).otherwise(place)
        return frame.select(
            "*", F.col("_metadata.file_name").alias(_FILE), F.col("_metadata.row_index").alias(_ROW)
        ).withColumn(_PLACE, place)

    def _lookups(self, files: Sequence[FilePlan], bitmaps: dict[str, BitMap]) -> DataFrame:
        """One row: by place of a file its deleted positions, its ``applied_through``, its commit timestamp."""
        words = [_words(bitmaps.get(file.file.path)) for file in files]
        values = {
            "words": (words, pa.list_(pa.int64())),
            "through": ([file.file.applied_through for file in files], pa.int64()),
            "ts": ([file.file.row_ts for file in files], pa.int64()),
        }
        one = {name: pa.array([listed], pa.list_(kind)) for name, (listed, kind) in values.items()}
        return self._spark.createDataFrame(pa.table(one))

    def _without_keys(self, frame: DataFrame, lookup: KeysLookup) -> DataFrame:
        ids = lookup.columns
        arrays, ts = lookup.keys()
        if len(ts) > MOST_KEYS:
            raise Unsupported("too many unresolved keys")
        names = [f"__key_{place}" for place in range(len(ids))]
        arrays = [array.cast(carried(array.type)) for array in arrays]
        keys = self._spark.createDataFrame(pa.table([*arrays, pa.array(ts)], [*names, _TS + "_key"]))
        same = reduce(Column.__and__, (self._column(id_) == F.col(name) for id_, name in zip(ids, names, strict=True)))
        return frame.join(F.broadcast(keys), same & (F.col(_TS + "_key") > F.col(_THROUGH)), "left_anti")


def _where(file: FilePlan) -> list[WhereTombstone]:
    """The predicates among its tombstones; of the keys, of which there may be thousands, no list is made."""
    if isinstance(file.tombstones, Suspects):
        return file.tombstones.where
    return [t for t in file.tombstones if isinstance(t, WhereTombstone)]


def _together(files: Sequence[FilePlan]) -> Iterator[list[FilePlan]]:
    some: list[FilePlan] = []
    bits = 0
    for file in files:
        more = file.file.rows if file.file.vector else 0
        if some and (len(some) == FILES_TOGETHER or bits + more > MOST_BITS):
            yield some
            some, bits = [], 0
        some.append(file)
        bits += more
    if some:
        yield some


def _words(positions: BitMap | None) -> npt.NDArray[np.int64] | None:
    """A bitmap as 64-bit words, up to the last one that has a bit."""
    if not positions:
        return None
    bits = np.zeros((positions.max() // 64 + 1) * 64, np.uint8)
    bits[np.array(positions.to_array(), np.int64)] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


def _quoted(name: str) -> str:
    return name.replace("`", "``")

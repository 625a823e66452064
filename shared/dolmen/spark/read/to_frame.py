"""Reads a table into Spark: natively where possible, else by dolmen itself in Python workers, with the same rows.

Spark's own vectorised reader is several times faster, but lacks types and conditions, and S3 without hadoop-aws. Both
read the files that one plan selected.

Natively, Python only plans. Files with deletes are read together, some dozens at a time, if the same tombstones apply
to them, which is known for whole files (``applied_through``). Their deleted positions are ONE array of bits, in which a
row is looked up by its position in its file. Files that may lack columns, or have them under other names, are read by
field ids; columns that they lack are NULL.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.api.database import open as open_database
from dolmen.base import arguments
from dolmen.base.runtime import cached_property
from dolmen.base.units import KIB, cut_by_size
from dolmen.commit.head import context_of
from dolmen.errors import PredicateError, SchemaError, short_repr
from dolmen.format.entries import KeysTombstone
from dolmen.format.layout import is_adopted
from dolmen.format.schema import COMMIT_TS, COMMIT_TS_ID, Field, child_fields
from dolmen.predicate.ast import Column as ColumnOf
from dolmen.predicate.ast import columns as columns_of
from dolmen.predicate.parse import Where
from dolmen.predicate.text import to_sql
from dolmen.rows.scan.plan import ScanPlan
from dolmen.rows.scan.row_groups import Deletes, FilePlan
from dolmen.rows.scan.scan import Scan, plan_of, reader_of, rows_with_positions, scan_files
from dolmen.spark.frame_types import Origin, is_own, quote, spark_schema, to_frame, worker_schema, worker_type
from dolmen.spark.read.native_parquet import (
    FIELD_ID,
    SOURCES,
    FileValues,
    RowIndex,
    Unsupported,
    check_sizes,
    is_deleted,
    read_parquet,
    spark_root,
    to_column,
)
from dolmen.spark.sessions import active_session, check_any_session, check_readable, check_session
from dolmen.spark.tasks import FILE, ROW, MapBatches, is_remote, map_in_tasks
from dolmen.store import portable_url
from dolmen.transactions.readable_table import ReadableTable

FILES_TOGETHER = 48  # files with deletes in one scan: more make its filter slow, fewer make more scans
SMALL_FILE_BYTES = 256 * KIB
MOST_SMALL_FILES = 200  # if there are more, dolmen reads them: Spark takes 10 to 20 ms of a processor to open a file
MOST_STAGES = 8  # the most groups of files, by the tombstones that apply to them, that are read separately
MOST_PREDICATES = 64
"""dolmen itself reads files that more unresolved predicates than this may match: resolve them (``maintain``)."""
MOST_KEYS = 1_000_000  # more deleted keys than this are not sent to all executors
MOST_BITS = 1 << 30  # the most positions, 128 MB of them, that are sent with one scan
_NOTHING = "__nothing"
"""A column that no file has and no frame shows. Spark builds ``_metadata`` row by row. It leaves out unused fields only
if it also leaves out a column of the file: this one."""


def to_spark(
    table: ReadableTable,
    columns: Sequence[str] | None = None,
    where: Where = None,
    *,
    with_commit_ts: bool = False,
    with_positions: bool = False,
    native: bool = True,
    spark: SparkSession | None = None,
) -> DataFrame:
    """The rows of one version of a table, the same as those of ``table.scan``.

    Args:
        table: of a database, of ``at(...)``; a DataFrame shows the version that was the newest when it was made.
        columns: names, in order; all by default.
        where: only rows for which this is TRUE.
        with_commit_ts: add the column ``_commit_ts``.
        with_positions: add the columns ``__file`` and ``__row``: the name of each row's file, and its position there.
        native: False = dolmen itself reads everything, in Python workers, as it always does in Spark Connect.
        spark: the session; the active one by default.

    Raises:
        PredicateError, SchemaError: as ``scan`` does; also if Spark lacks the type of a column.
    """
    check_readable(table)
    native = arguments.flag("native", native)
    with_positions = arguments.flag("with_positions", with_positions)
    spark = check_any_session(active_session(spark))
    if is_remote(spark):
        if with_positions:
            check_session(spark)
        return _read_remotely(spark, table, columns, where, with_commit_ts)
    scan = table.scan(columns, where, with_commit_ts=with_commit_ts)
    plan = _check_plan(plan_of(scan))
    origin = Origin(plan.entry.uuid, plan.version)
    schema = origin.mark(spark_schema(plan.output))
    if with_positions:
        if reserved := [name for name in schema.names if is_own(name)]:
            raise SchemaError(f"column {reserved[0]!r} has a name that rows' positions need: leave it out")
        schema = schema.add(FILE, s.StringType()).add(ROW, s.LongType())
    root = spark_root(spark, context_of(table).store) if native else None
    frames, worker_files = list[DataFrame](), list(plan.files)
    if root is not None:
        frames, worker_files = native_frames(spark, scan, root, with_positions=with_positions)
    if worker_files:
        names = [field.name for field in plan.output if field.name != COMMIT_TS or not with_commit_ts]
        work = _read_files(context_of(table).store.url, scan, names, with_commit_ts, with_positions)
        paths = to_frame(spark, pa.table({"path": [file.file.path for file in worker_files]}), origin.mark)
        tasks = min(len(worker_files), 4 * max(1, spark.sparkContext.defaultParallelism))
        frames.append(map_in_tasks(paths.repartition(tasks, "path"), work, schema))
    return reduce(DataFrame.unionAll, frames) if frames else spark.createDataFrame([], schema)


def _check_plan(plan: ScanPlan) -> ScanPlan:
    if plan.condition is not None:
        raise PredicateError(
            f"{short_repr(plan.condition.text)} is not a predicate, so workers can't evaluate it: filter the frame"
        )
    return plan


def _read_files(url: str, scan: Scan, columns: Sequence[str], with_commit_ts: bool, with_positions: bool) -> MapBatches:
    """For ``map_in_tasks``: paths of data files become their rows. Each task plans the scan again."""
    plan = plan_of(scan)
    version, table_name, where = plan.version, plan.table, plan.where  # not the plan, which has all files
    schema = worker_schema(spark_schema(plan.output))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        paths = {path for batch in batches for path in batch.column(0).to_pylist()}
        if not paths:
            return
        table = open_database(url).at(version=version).table(table_name)
        part = scan_files(table.scan(columns, where, with_commit_ts=with_commit_ts), paths)
        if with_positions:
            for batch, path, rows in rows_with_positions(part):
                names = pa.repeat(pa.scalar(path.rpartition("/")[2], pa.string()), batch.num_rows)
                yield batch.cast(schema).append_column(FILE, names).append_column(ROW, pa.array(rows))
        else:
            yield from (batch.cast(schema) for batch in part.to_batches())

    return read


def _read_remotely(
    spark: SparkSession, table: ReadableTable, columns: Sequence[str] | None, where: Where, with_commit_ts: bool
) -> DataFrame:
    """Reads in a session of Spark Connect by ``format("dolmen")``, because this process has no JVM."""
    plan = _check_plan(plan_of(table.scan(columns, where, with_commit_ts=with_commit_ts)))
    names = spark_schema(plan.output).names
    options = {"table": plan.table, "version": str(plan.version)}
    if with_commit_ts:
        options["with_commit_ts"] = "true"
    listed = [name for name in names if name != COMMIT_TS]
    if all(name == name.strip() and "," not in name for name in listed):  # else all are read, and some dropped below
        options["columns"] = ",".join(listed)
    if plan.where is not None:
        options["where"] = to_sql(plan.where, plan.entry.schema)
    frame = spark.read.format("dolmen").options(**options).load(portable_url(context_of(table).store))
    return frame.select(*map(quote, names))


def native_frames(
    spark: SparkSession, scan: Scan, root: str, *, with_positions: bool = False
) -> tuple[list[DataFrame], list[FilePlan]]:
    """Makes frames over files below ``root`` that Spark can read; also returns the others. Raises CorruptionError."""
    return _Native(spark, scan, root, with_positions).frames()


class _Native:
    """The frames of one scan that Spark reads by itself."""

    def __init__(self, spark: SparkSession, scan: Scan, root: str, with_positions: bool) -> None:
        self._spark, self._root, self._with_positions = spark, root, with_positions
        self._plan, self._reader = plan_of(scan), reader_of(scan)
        self._by_id = {field.id: field for field in (*self._plan.entry.schema.fields, *self._plan.output)}
        self._ids = frozenset(self._plan.output_ids | (columns_of(self._plan.where) if self._plan.where else set()))
        self._with_ts = any(field.name == COMMIT_TS for field in self._plan.output)
        self._row = RowIndex.of(spark)
        self._origin = Origin(self._plan.entry.uuid, self._plan.version)

    def frames(self) -> tuple[list[DataFrame], list[FilePlan]]:
        plan, frames = self._plan, list[DataFrame]()
        has_many = sum(file.file.size < SMALL_FILE_BYTES for file in plan.files) > MOST_SMALL_FILES
        worker_files, own_files = list[FilePlan](), list[FilePlan]()
        for file in plan.files:
            # Others wrote adopted files: Spark may understand their types and names differently.
            is_for_workers = is_adopted(file.file.path) or (has_many and file.file.size < SMALL_FILE_BYTES)
            (worker_files if is_for_workers else own_files).append(file)
        check_sizes(self._root, (file.file for file in own_files))
        plain, others = list[FilePlan](), list[FilePlan]()
        for file in own_files:
            (others if file.tombstones or file.file.vector or self._with_ts else plain).append(file)
        # If Spark cannot evaluate the scan's predicate, or lacks a type in it, none of the files becomes a frame.
        try:
            where = None if plan.where is None else to_column(plan.where, self._term)
            for group in self._by_age(plain):
                if self._is_older(group[0]) and not self._has_values(group, self._ids):
                    worker_files += group
                else:
                    frames.append(self._frame(group, [] if where is None else [where]))
        except (Unsupported, SchemaError):
            return [], list(plan.files)
        # Where Spark cannot evaluate the deletes of some files, or lacks a type in them, dolmen reads just these.
        for together in (some for age in self._by_age(others) for some in self._groups_read_together(age)):
            try:
                frame = self._live_frame(together, where)
            except (Unsupported, SchemaError):
                worker_files += together
            else:
                frames.append(frame)
        return frames, worker_files

    @cached_property
    def _deletes(self) -> Deletes:
        return self._reader.deletes()

    def _by_age(self, files: Sequence[FilePlan]) -> Iterator[list[FilePlan]]:
        """The files that are older than a change of columns, and the others."""
        for older in (False, True):
            if some := [file for file in files if self._is_older(file) is older]:
                yield some

    def _is_older(self, file: FilePlan) -> bool:
        """Whether a file may lack columns, or have them under other names, or of other types."""
        return file.file.least_row_ts <= self._plan.entry.schema.altered_ts

    def _has_values(self, files: Sequence[FilePlan], ids: Iterable[int]) -> bool:
        """Whether Spark, reading by ids, gets the right values of these columns from older files, NULL included."""
        fields = [self._field(id_) for id_ in ids if id_ != COMMIT_TS_ID]
        return all(
            not field.widened_ts
            and (field.initial_default is None or all(field.id in file.file.stats for file in files))
            for field in fields
        )

    def _groups_read_together(self, files: Collection[FilePlan]) -> Iterator[Sequence[FilePlan]]:
        """Groups files with deletes, so that one scan reads each group.

        Any number of files are read together if no row looks up a value of its file: a bit, a commit timestamp, or the
        deletes that apply to it.
        """
        ts = sorted({t.ts for file in files for t in file.where_tombstones})
        keys = [t.ts for t in self._plan.tombstones if isinstance(t, KeysTombstone)]
        kinds: dict[tuple[bool, int], list[FilePlan]] = defaultdict(list)
        for file in files:
            kinds[file.file.vector is not None, bisect_right(ts, file.file.applied_through)].append(file)
        for alike in kinds.values() if len(kinds) <= MOST_STAGES else [files]:
            through = max(file.file.applied_through for file in alike)
            has_later_keys = all(ts > through for ts in keys) or not any(file.key_columns for file in alike)
            looks_up = (
                self._with_ts or len(kinds) > MOST_STAGES or not has_later_keys or any(f.file.vector for f in alike)
            )
            most_files = FILES_TOGETHER if looks_up else len(alike)
            yield from cut_by_size(alike, lambda plan: plan.file.rows if plan.file.vector else 0, MOST_BITS, most_files)

    def _live_frame(self, files: Sequence[FilePlan], where: Column | None) -> DataFrame:
        deletes, values = self._deletes, FileValues(files)
        tombstones = {t.blob: t for file in files for t in file.where_tombstones}
        lookups = list(dict.fromkeys(lookup for file in files for lookup in deletes.tests_of(file).lookups))
        if len(tombstones) > MOST_PREDICATES:
            raise Unsupported("too many unresolved predicates")
        conditions = [] if where is None else [where]
        # Deleted positions come first: a bit of one array costs less than a predicate.
        if positions := self._reader.vectors(files):
            conditions.append(~is_deleted(self._spark, positions, values, self._row.name))
            if self._with_positions:
                # A caller that asked for positions may drop them again. Spark prunes ``_metadata`` only by the fields
                # that are read, and refuses to read a row's index next to a ``_metadata`` of which nothing is read.
                conditions.append(F.col(FILE) != "")
        applied_through = [file.file.applied_through for file in files]
        # A predicate is evaluated in all rows, unless it was already applied to some of the files.
        for blob, tombstone in tombstones.items():
            is_match = F.coalesce(to_column(deletes.predicates[blob], self._term), F.lit(False))
            if max(applied_through) >= tombstone.ts:
                is_match &= F.expr(values.sql([ts < tombstone.ts for ts in applied_through], "boolean"))
            conditions.append(~is_match)
        # Keys are anti joins with broadcast frames, one for each set of columns.
        joins, free_keys = [], MOST_KEYS
        for lookup in lookups:
            arrays, ts = lookup.keys(min(applied_through))
            free_keys -= len(ts)
            if free_keys < 0:
                raise Unsupported("too many unresolved keys")
            joins.append(self._keys(lookup.columns, arrays, ts, values))
        # An erasure may name columns of later versions, which these files lack.
        ids = self._ids.union(*(t.columns for t in tombstones.values()), *(lookup.columns for lookup in lookups))
        may_lack = self._is_older(files[0]) or not ids <= self._by_id.keys()
        if may_lack and not self._has_values(files, ids):
            raise Unsupported("columns with other values than the files have")
        return self._frame(files, conditions, joins, ids, values, with_row=bool(positions))

    def _keys(
        self, ids: tuple[int, ...], arrays: Sequence[pa.Array], ts: npt.NDArray[np.int64], values: FileValues
    ) -> tuple[DataFrame, Column]:
        """The deleted keys, with the condition of their join."""
        applied_through = [file.file.applied_through for file in values.files]
        names = [f"__key_{index}" for index in range(len(arrays))]
        keys = dict(zip(names, (array.cast(worker_type(array.type)) for array in arrays), strict=True))
        same = reduce(Column.__and__, (self._column(id_) == F.col(name) for id_, name in zip(ids, names, strict=True)))
        if len(ts) and ts.min() <= max(applied_through):
            keys["__key_ts"] = pa.array(ts)
            same &= F.expr(f"__key_ts > {values.sql(applied_through, 'bigint')}")
        return F.broadcast(to_frame(self._spark, pa.table(keys))), same

    def _frame(
        self,
        files: Sequence[FilePlan],
        conditions: Sequence[Column],
        joins: Sequence[tuple[DataFrame, Column]] = (),
        ids: Iterable[int] = (),
        values: FileValues | None = None,
        *,
        with_row: bool = False,
    ) -> DataFrame:
        """The rows that meet all conditions and match none of the joins, which need ``ids`` and ``values``."""
        values = values or FileValues(files)
        selected = [
            F.expr(_commit_ts(values)).alias(COMMIT_TS) if field.name == COMMIT_TS else F.col(quote(field.name))
            for field in self._plan.output
        ]
        if self._with_positions:
            selected += [F.col(FILE), F.col(self._row.name).alias(ROW)]
            values.used.add(FILE)
        metadata = [f"{SOURCES[name]} AS {name}" for name in sorted(values.used)]
        frame = self._read(files, self._ids.union(ids), metadata, with_row=with_row or self._with_positions)
        # Conditions before joins: Spark moves them to the scan, and the joins get fewer rows.
        if conditions:
            frame = frame.where(reduce(Column.__and__, conditions))
        for keys, same in joins:
            frame = frame.join(keys, same, "left_anti")
        return frame.select(*selected)

    def _read(
        self, files: Sequence[FilePlan], ids: Collection[int], metadata: list[str], *, with_row: bool
    ) -> DataFrame:
        fields = [field for id_, field in self._by_id.items() if id_ in ids and field.name != COMMIT_TS]
        if reserved := [field.name for field in fields if is_own(field.name)]:
            raise Unsupported(f"a column has the name {reserved[0]}")
        # Dropped columns, which only deletes name, are found by their ids.
        dropped_fields = [self._field(id_) for id_ in ids if id_ not in self._by_id]
        by_id = bool(dropped_fields) or self._is_older(files[0])
        fields += [msgspec.structs.replace(field, name=self._name(field.id)) for field in dropped_fields]
        # Files of many commits have the timestamp of each row; a file of one commit has it in its entry.
        if self._with_ts and any(file.file.row_ts is None for file in files):
            fields.append(Field(id=COMMIT_TS_ID, name=COMMIT_TS, type="int64"))
        marked_schema = self._origin.mark(spark_schema(fields))
        schema = _with_ids(marked_schema, fields) if by_id else s.StructType(list(marked_schema.fields))
        # The position is a column of the file if Spark's reader can fill it, and else part of the metadata.
        if with_row and self._row.is_stored:
            schema.add(self._row.name, "long")
        elif with_row:
            metadata = [*metadata, f"_metadata.row_index AS {self._row.name}"]
        # Spark prunes ``_metadata`` only if it prunes a column of the file: see _NOTHING.
        if metadata:
            schema.add(_NOTHING, "long")
        all_files = len(self._plan.files) + sum(self._plan.pruned.values())
        name = f"{len(files)} of {all_files} files of {self._plan.table}"
        frame = read_parquet(self._spark, schema, self._root, [file.file for file in files], name, by_id=by_id)
        metadata_columns = [F.expr(each) for each in metadata]
        if not by_id:
            return frame.select("*", *metadata_columns) if metadata_columns else frame
        # Columns that were found by id get their names and the marks of their origin.
        columns = [
            _whole_column(stored).alias(field.name, metadata=field.metadata)
            for stored, field in zip(schema.fields, marked_schema.fields, strict=False)
        ]
        return frame.select(*columns, *(F.col(name) for name in schema.names[len(columns) :]), *metadata_columns)

    def _field(self, id_: int) -> Field:
        """A column by its id, also a dropped one that only deletes name."""
        return self._by_id.get(id_) or self._plan.entry.schema.by_id[id_]

    def _name(self, id_: int) -> str:
        return self._by_id[id_].name if id_ in self._by_id else f"__dropped_{id_}"

    def _column(self, id_: int) -> Column:
        return F.col(quote(self._name(id_)))

    def _term(self, term: ColumnOf) -> Column:
        field, found = self._field(term.column_id), self._column(term.column_id)
        for id_ in term.path:
            inner = next((each for each in child_fields(field.type) if each.id == id_), None)
            if inner is None:
                raise Unsupported(f"column {field.name} has no field {id_} in this version")
            field, found = inner, found.getField(inner.name)
        return found


def _commit_ts(values: FileValues) -> str:
    """SQL for a row's commit timestamp: from its file's entry, or from the column in the file."""
    timestamps = [file.file.row_ts for file in values.files]
    sql = values.sql(timestamps, "bigint")
    return f"coalesce({sql}, {COMMIT_TS})" if None in timestamps else sql


def _whole_column(stored: s.StructField) -> Column:
    """A column that is found by its id, in a form of which Spark reads all fields: it loses the id of a part of it."""
    is_nested = isinstance(stored.dataType, (s.StructType, s.ArrayType, s.MapType))
    return F.expr(f"element_at(array({stored.name}), 1)") if is_nested else F.col(stored.name)


def _with_ids(schema: s.StructType, fields: Sequence[Field]) -> s.StructType:
    """The columns under names that no file has, so that they are found by id alone.

    Spark skips row groups by the statistics of the file's column of the same name, which may be another column.
    """
    return s.StructType(
        [
            s.StructField(f"__column_{field.id}", col.dataType, col.nullable, {**col.metadata, FIELD_ID: field.id})
            for col, field in zip(schema.fields, fields, strict=True)
        ]
    )

"""Rows with actions: tasks write new rows and hide the rows that these replace, and the driver makes the changes.

MERGE by keys (``merge_frame``) and the UPDATE, DELETE and MERGE of SQL (``sql.dml``) each plan a job whose rows
have the number of an action, the position of a target row, and new values. From there they are the same. Both summarize
the keys of a merge's ``Source``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyroaring import BitMap
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.base import pc
from dolmen.base.runtime import cached_property, shared_runtime
from dolmen.commit.statements.row_changes import DeletePositions, Write
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import InputError
from dolmen.format.del_object import Keys, keys_from_arrow
from dolmen.format.entries import KeysTombstone
from dolmen.format.layout import uuid_of
from dolmen.format.schema import Field
from dolmen.predicate.ast import Constant, Predicate
from dolmen.rows.scan.rows_by_key import where_key_in
from dolmen.rows.write.casts import FindCast
from dolmen.spark.frame_types import quote
from dolmen.spark.tasks import FILE, ROW, collect_objects, conform_batches, open_to_write
from dolmen.spark.write.frame_columns import key_columns
from dolmen.spark.write.write_tasks import (
    KeySink,
    RowSums,
    WriteReport,
    WriteTask,
    begin_uploads,
    collect_report,
    combine_keys,
    has_duplicates,
    schema_of,
    tombstones,
)
from dolmen.transactions.merge.clauses import NO_LITERALS, casts_of
from dolmen.transactions.row_statements import add_inserts
from dolmen.transactions.transaction import Transaction, unit_of

Conditions: TypeAlias = Sequence[Sequence[str | None]]
"""The conditions of the clauses for matched rows, for source rows alone, and for target rows alone."""
ACTION = "__action"  # the column with the number of a row's action
MOST_LISTED_KEYS = 100  # the most keys that are listed one by one; a longer list becomes its range


class SourceSummary(Struct, frozen=True):
    """A summary of the keys of a source. Rows with ``nulls`` in their key match nothing.

    ``keys`` has all of them if ``lists_all``; otherwise some values, with the least and the greatest of each column.
    """

    rows: int
    nulls: int
    has_repeats: bool
    lists_all: bool
    keys: Keys | None

    @classmethod
    def of(cls, parts: Sequence[SourceSummary]) -> SourceSummary:
        tables = [part.keys for part in parts if part.keys is not None]
        keys = combine_keys(tables) if tables else None
        return cls(
            sum(part.rows for part in parts),
            sum(part.nulls for part in parts),
            any(part.has_repeats for part in parts),
            all(part.lists_all for part in parts) and (keys is None or keys.num_rows <= MOST_LISTED_KEYS),
            keys,
        )

    def predicate(self, fields: tuple[Field, ...]) -> Predicate:
        """A short predicate that is TRUE for every row with one of the keys, and for few others."""
        if self.keys is None:
            return Constant(False)
        return where_key_in({field.id: self.keys[str(field.id)] for field in fields}, None if self.lists_all else 0)


class Source:
    """A DataFrame whose rows are merged, joined on ``fields``: evaluated once, and kept until ``close``.

    Its ``frame`` has the columns ``keys`` in the table's own types, and ``IN_SOURCE``.
    """

    IN_SOURCE = "__source"  # a column that is NULL where there is no source row

    def __init__(self, frame: DataFrame, fields: tuple[Field, ...]) -> None:
        self._fields, self._columns = fields, frame.columns
        self.keys = [f"__key_{index}" for index in range(len(fields))]
        keys = [column.alias(name) for column, name in zip(key_columns(frame, fields), self.keys, strict=True)]
        rows = frame.select("*", F.lit(True).alias(self.IN_SOURCE), *keys)
        grouped = rows.repartition(*self.keys).sortWithinPartitions(*self.keys)
        self.frame = grouped.persist(StorageLevel.MEMORY_AND_DISK)

    @cached_property
    def summary(self) -> SourceSummary:
        keys = self.frame.select(*(F.col(quote(field.name)) for field in self._fields))
        work = partial(summarize_keys, fields=self._fields)
        return SourceSummary.of(collect_objects(keys, work, SourceSummary))

    @cached_property
    def sums(self) -> RowSums:
        total = RowSums()
        rows = self.frame.select(*(F.col(quote(name)) for name in self._columns))
        for sums in collect_objects(rows, sum_rows, RowSums):
            total.add_sums(sums)
        return total

    def close(self) -> None:
        self.frame.unpersist()


def are_equal(left: Iterable[Column], right: Iterable[Column]) -> Column:
    return reduce(Column.__and__, (one == other for one, other in zip(left, right, strict=True)))


def sum_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[RowSums]:
    sums = RowSums()
    for batch in batches:
        sums.add(batch)
    yield sums


def summarize_keys(batches: Iterator[pa.RecordBatch], fields: tuple[Field, ...]) -> Iterator[SourceSummary]:
    """The summary of the keys of a partition, which are in order."""
    rows = nulls = 0
    has_repeats, lists_all = False, True
    keys = last = None
    for batch in conform_batches(batches, schema_of(fields)) or ():
        whole = pa.table(batch).drop_null()
        rows += batch.num_rows
        nulls += batch.num_rows - whole.num_rows
        if whole.num_rows == 0:
            continue
        has_repeats = has_repeats or has_duplicates(whole if last is None else pa.concat_tables([last, whole]))
        last = whole.slice(whole.num_rows - 1)
        some = keys_from_arrow(whole, fields)
        keys = some if keys is None else combine_keys([keys, some])
        if keys.num_rows > MOST_LISTED_KEYS:
            lists_all = False
            ends = [pc.min_max(column) for column in keys.columns]
            arrays = [pa.array([end["min"], end["max"]], key.type) for end, key in zip(ends, keys.columns, strict=True)]
            keys = pa.table(arrays, names=keys.column_names)
    yield SourceSummary(rows, nulls, has_repeats, lists_all, keys)


def action_sql(in_source: str, in_target: str, kinds: Conditions) -> str:
    """SQL for the number of the clause that applies to a joined row, by its sides; NULL if none does."""
    sides = f"{in_target} AND {in_source}", f"{in_source} AND NOT ({in_target})", f"{in_target} AND NOT ({in_source})"
    cases, number = [], 0
    for side, conditions in zip(sides, kinds, strict=True):
        clauses = [f"WHEN (\n{condition or 'TRUE'}\n) THEN {n}" for n, condition in enumerate(conditions, number)]
        if clauses:
            cases.append(f"WHEN {side} THEN CASE {' '.join(clauses)} END")
        number += len(clauses)
    return f"CAST(CASE {' '.join(cases)} END AS INT)"


def join_kind(kinds: Conditions) -> str:
    """How target and source are joined for clauses of these kinds, as ``DataFrame.join`` names it."""
    matched, not_matched, by_source = kinds
    if by_source:
        return "full" if not_matched else "left"
    if matched:
        return "right" if not_matched else "inner"
    return "left_anti"


class Action(Struct, frozen=True):
    """The action on a row: whether it ``hides`` the target row, and the columns of the row that it writes, if any.

    Columns have the numbers of their values; the types of ``computed`` ones are Spark's guess.
    """

    hides: bool
    columns: tuple[tuple[str, int], ...] | None
    computed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MergeTask(WriteTask):
    """A task that writes what a merge adds, and hides what it replaces; the key is what it joins on.

    With a key, target rows are hidden by their keys, ``__key_0`` and on; without one by their positions.
    """

    actions: tuple[Action, ...] = ()  # by number
    checks_repeats: bool = False  # it is an error when a target row is hidden twice
    # the primary keys of rows that replace none are reported, to be compared with the table's
    checks_keys: bool = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> WriteReport:
        """Applies the actions to the rows of one partition, in bounded memory. Raises InputError, RowError."""
        report = WriteReport()
        first = next(batches, None)
        if first is None:
            return report
        store = open_to_write(self.url, shared_runtime())
        sink = KeySink(self, store)
        report.files += self.put(store, self._new_rows(chain([first], batches), sink, report))
        sink.finish(report)
        return report

    def _new_rows(
        self, batches: Iterator[pa.RecordBatch], sink: KeySink, report: WriteReport
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows to write, and records which rows they replace."""
        fields, schema = self.fields, self.table_entry.schema
        primary = [schema.by_id[id_].name for id_ in self.table_entry.primary_key]
        hiding = pa.array([number for number, action in enumerate(self.actions) if action.hides], pa.int32())
        for batch in batches:
            actions = batch[ACTION].cast(pa.int32())
            hidden_rows = batch.filter(pc.is_in(actions, hiding))
            if hidden_rows.num_rows and (self.checks_repeats or not self.key):
                self._record(hidden_rows, report)
            if hidden_rows.num_rows and self.key:
                names = [field.name for field in fields]
                keys = pa.record_batch([hidden_rows[f"__key_{index}"] for index in range(len(fields))], names)
                for part in conform_batches(iter([keys]), schema_of(fields)) or ():
                    sink.add(part)
            for number, action in enumerate(self.actions):
                written_rows = batch.filter(pc.equal(actions, number))
                if written_rows.num_rows and action.columns is not None:
                    names = [name for name, _ in action.columns]
                    rows = pa.record_batch([written_rows[f"__value_{index}"] for _, index in action.columns], names)
                    find_casts = casts_of_computed(action.computed)
                    for part in conform_batches(iter([rows]), schema, find_casts) or ():
                        if self.checks_keys and not action.hides:
                            report.inserted.append(pa.table(part.select(primary)))
                        yield part

    def _record(self, hidden_rows: pa.RecordBatch, report: WriteReport) -> None:
        files = hidden_rows[FILE].dictionary_encode()
        indexes, rows = files.indices.to_numpy(), hidden_rows[ROW].to_numpy()
        for index, name in enumerate(files.dictionary.to_pylist()):
            file_rows = rows[indexes == index].astype(np.uint32)
            positions = BitMap(file_rows)
            report.add_positions(name, positions)
            if self.checks_repeats and (report.has_repeats or len(positions) < len(file_rows)):
                raise matched_twice_error()


def casts_of_computed(names: Iterable[str]) -> dict[str, FindCast]:
    return dict.fromkeys(names, casts_of(NO_LITERALS))


def apply_actions(
    transaction: Transaction,
    table: str,
    rows: DataFrame,
    actions: Sequence[Action],
    *,
    key: tuple[Field, ...] = (),
    checks_repeats: bool = False,
    checks_keys: bool = False,
    request: str | None,
) -> None:
    """Runs the job of the actions, and adds the changes to the transaction. Raises InputError, DuplicateKeyError.

    Without a ``key``, target rows are hidden by their positions. See ``MergeTask`` for the checks.
    """
    unit = unit_of(transaction)
    entry = unit.entry(table)
    ids = tuple(field.id for field in key)
    task = MergeTask(*begin_uploads(transaction, table), ids, tuple(actions), checks_repeats, checks_keys)
    report = collect_report(transaction, rows, task.run)
    if checks_repeats and report.has_repeats:
        raise matched_twice_error()
    key_tombstones: tuple[KeysTombstone, ...] = ()
    if key:
        key_tombstones = tombstones(transaction, table, entry.uuid, report)
    elif report.positions:
        uuids = {name: uuid_of(name) for name in report.positions}  # Spark knows only the end of a file's path
        live = LiveFiles.of(entry, unit.context.segments).find(list(uuids.values()))
        positions = {live[uuids[name]].path: bits for name, bits in report.positions.items()}
        unit.add(DeletePositions(table, entry.uuid, positions, request))
    if key_tombstones and checks_keys:
        # In a statement of its own: inserts are compared with the keys that remain once replaced rows are hidden.
        unit.add(Write(table, entry.uuid, (), key_tombstones, request, schema=entry.schema))
        key_tombstones = ()
    if not (report.files or key_tombstones):
        return
    write = Write(table, entry.uuid, tuple(report.files), key_tombstones, request, schema=entry.schema)
    if checks_keys:
        add_inserts(unit, entry, write, (batch for keys in report.inserted for batch in keys.to_batches()))
    else:
        unit.add(write)


def matched_twice_error() -> InputError:
    return InputError(
        "several source rows match one row of the table, and would each update or delete it: keep one source row of "
        "each key, by dropDuplicates([...]) or row_number() over a window, or tell them apart by conditions"
    )

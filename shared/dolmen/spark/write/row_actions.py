"""Rows with actions: tasks write new rows and hide the rows that these replace, and the driver states the changes.

MERGE by keys (``spark_merge``) and the UPDATE, DELETE and MERGE of SQL (``sql.change_rows``) each plan a job whose rows
have the number of an action, the position of a target row, and new values. From there all of them go this way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap
from pyspark.sql import DataFrame

from dolmen.base.runtime import shared_runtime
from dolmen.commit.statements.row_changes import DeletePositions, Write
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import InputError
from dolmen.format.entries import KeysTombstone
from dolmen.format.layout import uuid_of
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.rows.write.casts import FindCast
from dolmen.spark.file_tasks import FILE, ROW, KeysTask, conform_batches, open_to_write, report_task
from dolmen.spark.write.frame_columns import schema_of
from dolmen.spark.write.from_frame import begin_uploads, collect_keeping_alive, without_files
from dolmen.spark.write.key_tombstones import KeySink, tombstones
from dolmen.spark.write.task_reports import REPORT, Reported
from dolmen.transactions.merge.clauses import NO_LITERALS, casts_of
from dolmen.transactions.row_statements import add_inserts
from dolmen.transactions.transaction import Transaction, unit_of

ACTION = "__action"
"""The column with the number of a row's action."""


def action_sql(in_source: str, in_target: str, *kinds: Sequence[str | None]) -> str:
    """SQL for the number of the clause that applies to a row; NULL if none does.

    Args:
        in_source, in_target: conditions that a joined row has a source row, or a target row.
        kinds: the conditions of the clauses for matched rows, for source rows alone, and for target rows alone.
    """
    sides = (
        f"{in_target} AND {in_source}",
        f"{in_source} AND NOT ({in_target})",
        f"{in_target} AND NOT ({in_source})",
    )
    cases, number = [], 0
    for side, conditions in zip(sides, kinds, strict=True):
        clauses = [f"WHEN (\n{condition or 'TRUE'}\n) THEN {n}" for n, condition in enumerate(conditions, number)]
        if clauses:
            cases.append(f"WHEN {side} THEN CASE {' '.join(clauses)} END")
        number += len(clauses)
    return f"CAST(CASE {' '.join(cases)} END AS INT)"


def join_kind(*, matched: bool, not_matched: bool, by_source: bool) -> str:
    """How target and source are joined for clauses of these kinds, as ``DataFrame.join`` names it."""
    if by_source:
        return "full" if not_matched else "left"
    if matched:
        return "right" if not_matched else "inner"
    return "left_anti"


@dataclass(frozen=True)
class Action:
    """The action on a row.

    Args:
        hides: the target row is hidden.
        columns: the row that is written: columns of the table with the number of their value; None writes none.
        computed: the columns whose values are computed, so that their types are Spark's guess.
    """

    hides: bool
    columns: tuple[tuple[str, int], ...] | None
    computed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MergeTask(KeysTask):
    """A task that writes what a merge adds, and hides what it replaces; the key is what it joins on.

    With a key, target rows are hidden by their keys, ``__key_0`` and on; without one by their positions.

    Args:
        actions: by number.
        once: it is an error when a target row is hidden twice.
        new: the primary keys of rows that replace none are reported, to be compared with the table's.
    """

    actions: tuple[Action, ...] = ()
    once: bool = False
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
        report.files += self.put(store, self._merged(chain([first], batches), sink, report))
        sink.finish(report)
        return report

    def _merged(self, batches: Iterator[pa.RecordBatch], sink: KeySink, report: Reported) -> Iterator[pa.RecordBatch]:
        """Yields the rows to write, and records which rows they replace."""
        fields, schema = self.fields, self.decoded.schema
        primary = [schema.by_id[id_].name for id_ in self.decoded.primary_key]
        hiding = pa.array([number for number, action in enumerate(self.actions) if action.hides], pa.int32())
        for batch in batches:
            actions = batch[ACTION].cast(pa.int32())
            hidden = batch.filter(pc.is_in(actions, hiding))
            if hidden.num_rows and (self.once or not self.key):
                self._record(hidden, report)
            if hidden.num_rows and self.key:
                names = [field.name for field in fields]
                keys = pa.record_batch([hidden[f"__key_{index}"] for index in range(len(fields))], names)
                for part in conform_batches(iter([keys]), schema_of(fields)) or ():
                    sink.add(part)
            for number, action in enumerate(self.actions):
                chosen = batch.filter(pc.equal(actions, number))
                if chosen.num_rows and action.columns is not None:
                    names = [name for name, _ in action.columns]
                    rows = pa.record_batch([chosen[f"__value_{index}"] for _, index in action.columns], names)
                    finds = casts_of_computed(action.computed)
                    for part in conform_batches(iter([rows]), schema, finds) or ():
                        if self.new and not action.hides:
                            report.inserted.append(pa.table(part.select(primary)))
                        yield part

    def _record(self, hidden: pa.RecordBatch, report: Reported) -> None:
        files = hidden[FILE].dictionary_encode()
        indexes, rows = files.indices.to_numpy(), hidden[ROW].to_numpy()
        for index, name in enumerate(files.dictionary.to_pylist()):
            own = rows[indexes == index].astype(np.uint32)
            positions = BitMap(own)
            report.add_positions(name, positions)
            if self.once and (report.again or len(positions) < len(own)):
                raise matched_twice_error()


def casts_of_computed(names: Iterable[str]) -> dict[str, FindCast]:
    """How computed values of some columns are cast."""
    return dict.fromkeys(names, casts_of(NO_LITERALS))


def apply_actions(
    transaction: Transaction,
    table: str,
    rows: DataFrame,
    actions: Sequence[Action],
    *,
    key: tuple[Field, ...] = (),
    once: bool,
    new: bool,
    request: str | None,
) -> None:
    """Runs the job of the actions, and adds the changes to the transaction.

    Args:
        rows: with their actions, positions and values; and with their keys, if there is a ``key``.
        key: the columns by whose values target rows are hidden; by default they are hidden by their positions.
        once: it is an error when a target row is hidden twice.
        new: rows that replace none must have primary keys that no other row has.

    Raises:
        InputError: a target row is matched by several source rows.
        DuplicateKeyError: a row that replaces none has a primary key that another row has.
    """
    entry = unit_of(transaction).entry(table)
    url, txid = begin_uploads(transaction)
    encoded, ids = msgspec.json.encode(without_files(entry)), tuple(field.id for field in key)
    task = MergeTask(url, table, encoded, txid, ids, tuple(actions), once, new)
    reported = Reported.of(collect_keeping_alive(transaction, rows.mapInArrow(report_task(task), REPORT)))
    if once and reported.again:
        raise matched_twice_error()
    hidden: tuple[KeysTombstone, ...] = ()
    if key:
        hidden = tombstones(unit_of(transaction).uploads, table, entry.uuid, reported, key)
    elif reported.positions:
        positions = _positions_by_path(transaction, entry, reported.positions)
        unit_of(transaction).add(DeletePositions.of(table, entry.uuid, positions, request))
    if hidden and new:
        # Apart from the rows: inserts are compared with the keys that are left when the replaced rows are hidden.
        unit_of(transaction).add(Write(table, entry.uuid, (), hidden, request, schema=entry.schema))
        hidden = ()
    if not (reported.files or hidden):
        return
    written = Write(table, entry.uuid, tuple(reported.files), hidden, request, schema=entry.schema)
    if new:
        batches = (batch for keys in reported.inserted for batch in keys.to_batches())
        add_inserts(unit_of(transaction), entry, written, batches)
    else:
        unit_of(transaction).add(written)


def _positions_by_path(
    transaction: Transaction, entry: TableEntry, positions: Mapping[str, BitMap]
) -> dict[str, BitMap]:
    """Positions by the path of their file; Spark gives only the end of its name."""
    uuids = {name: uuid_of(name) for name in positions}
    live = LiveFiles.of(entry, unit_of(transaction).context.segments).find(list(uuids.values()))
    return {live[uuids[name]].path: bits for name, bits in positions.items()}


def matched_twice_error() -> InputError:
    """The error about several source rows that match one target row."""
    return InputError(
        "several source rows match one row of the table, and would each update or delete it: keep one source row of "
        "each key, by dropDuplicates([...]) or row_number() over a window, or tell them apart by conditions"
    )

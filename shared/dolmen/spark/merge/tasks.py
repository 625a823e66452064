"""The tasks of a merge: they write rows, and report which older rows these replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from dolmen.base.runtime import shared_runtime
from dolmen.errors import InputError
from dolmen.rows.write.conform import conform
from dolmen.rows.write.lossless import FindCast
from dolmen.spark.failures import mark_errors
from dolmen.spark.tasks import FILE, ROW, chain_batches, open_to_write
from dolmen.spark.write.keys import KeySink, KeysTask, only
from dolmen.spark.write.reports import Reported
from dolmen.transactions.merge.computed_casts import NO_LITERALS, casts_of

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

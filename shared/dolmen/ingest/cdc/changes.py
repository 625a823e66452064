"""Turns the changes in a file into tables of one shape for all envelopes; rows without a change are bad rows.

A table of changes has the columns of its table, named by their ids, and ``delete`` and ``row``, the number of the row
in the file. If the source left values out, it also has ``unavailable``, the ids of their columns, and ``created``,
whether the change created its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.units import MIB
from dolmen.errors import RowError
from dolmen.format.schema import Field
from dolmen.format.types import to_mask
from dolmen.ingest.cdc.envelopes import DELETE, SKIP, UNKNOWN, UPSERT, ChangeBatch, Envelope
from dolmen.ingest.formats.source_file import BadRow, OnBadRow, RowNumbers
from dolmen.rows.write.conform import RowCheck

DELETED, ROW, UNAVAILABLE, CREATED = "delete", "row", "unavailable", "created"
PORTION_ROWS = 500_000
PORTION_BYTES = 128 * MIB  # the most bytes that are applied at once; they are in memory, briefly twice

_NOT_NAMED = "the placeholder of an unavailable value (cdc_unavailable_value) cannot identify a row"


@dataclass
class BadChanges:
    """Reports bad rows (None: the first one is an error), counts them, and numbers the good ones between them."""

    name: str
    on_bad_row: OnBadRow | None
    count: int = 0
    _numbers: RowNumbers = field(init=False)

    def __post_init__(self) -> None:
        self._numbers = RowNumbers(self.report)

    def add_unread(self, bad: BadRow) -> None:
        self._numbers.add(bad)

    def add(self, reason: str, row: int, column: str | None = None) -> None:
        """Adds a bad row that was parsed. Raises RowError if bad rows are errors."""
        self.report(BadRow(reason, row, None, column, None))

    def report(self, bad: BadRow) -> None:
        """Counts and reports a bad row. Raises RowError if bad rows are errors."""
        if self.on_bad_row is None:
            raise RowError(bad.reason, file=self.name, line=bad.line, row=bad.row, column=bad.column)
        self.count += 1
        self.on_bad_row(bad)

    def next_numbers(self, count: int) -> pa.Array:
        """The numbers in the file of the next ``count`` rows that could be parsed."""
        return pa.array(self._numbers.next(count), pa.int64())


@dataclass(frozen=True, slots=True)
class ChangeTables:
    """Makes tables of changes from batches of a file; ``ddl`` counts messages about the source's columns in each."""

    fields: tuple[Field, ...]
    keys: tuple[Field, ...]
    sequence: Field
    envelope: Envelope
    bad: BadChanges
    ddl: list[int] = field(default_factory=list)
    checks: tuple[RowCheck, ...] = ()

    def tables(self, batches: Iterator[pa.RecordBatch] | pa.RecordBatchReader) -> Iterator[pa.Table]:
        """A table of changes for each batch that has any."""
        for rows in batches:
            batch = self.envelope.open(rows)
            self.ddl.append(batch.ddl)
            changes = self._changes(batch, self.bad.next_numbers(rows.num_rows))
            if changes.num_rows:
                yield changes

    def _changes(self, batch: ChangeBatch, numbers: pa.Array) -> pa.Table:
        good = self._select_good(batch, numbers)
        columns = {str(field.id): batch.images[field.id] for field in self.fields if field != self.sequence}
        columns[str(self.sequence.id)] = batch.sequences
        deletes = pc.equal(batch.kinds, DELETE)
        rows = pa.table({**columns, DELETED: deletes, ROW: numbers})
        rows = rows.select([*(str(field.id) for field in self.fields), DELETED, ROW])
        if batch.unavailable:
            rows = rows.append_column(UNAVAILABLE, _ids_by_row(batch.unavailable))
            rows = rows.append_column(CREATED, batch.created)
        has_moved = self._select_moved(batch, good)
        if has_moved is None:
            return rows.filter(good)
        changed = pa.concat_tables([rows.filter(good), self._delete_old_keys(rows, batch, has_moved)])
        return changed.sort_by(ROW)  # a portion never splits the two changes of one row

    def _select_good(self, batch: ChangeBatch, numbers: pa.Array) -> pa.Array:
        """Selects the rows that hold a change; reports bad ones."""
        upserts = pc.equal(batch.kinds, UPSERT)
        problems: list[tuple[pa.Array, str, str | None]] = [
            (pc.equal(batch.kinds, UNKNOWN), "its operation is missing, unknown, or lacks the row it needs", None),
            (pc.is_null(batch.sequences), "no sequence: nothing tells when this change was made", self.sequence.name),
        ]
        for column in self.fields:
            unavailable = batch.unavailable.get(column.id)
            if unavailable is not None and (column in self.keys or column == self.sequence):
                problems.append((unavailable, _NOT_NAMED, column.name))
            if column in self.keys:
                nulls = pc.is_null(batch.images[column.id])
                problems.append((nulls, "NULL in a key: it equals nothing", column.name))
            elif not column.nullable and column != self.sequence:
                nulls = pc.and_(upserts, pc.is_null(batch.images[column.id]))
                nulls = nulls if unavailable is None else pc.and_not(nulls, unavailable)
                problems.append((nulls, "NULL in a column that is not nullable", column.name))
        images = {**batch.images, self.sequence.id: batch.sequences}
        for check in self.checks:
            refused = pc.and_(upserts, pa.array(check.refused(images, len(upserts))))
            for id_ in check.columns.keys() & batch.unavailable.keys():
                refused = pc.and_not(refused, batch.unavailable[id_])  # compared when the value is known
            if pc.any(refused).as_py():
                problems.append((refused, f"the check {check.name!r} is FALSE: {check.text}", None))
        is_change = pc.not_equal(batch.kinds, SKIP)
        bad = pa.array(np.zeros(len(is_change), bool))
        for mask, _, _ in problems:
            bad = pc.or_(bad, mask)
        bad = pc.and_(bad, is_change)
        if pc.any(bad).as_py():
            for index in np.flatnonzero(to_mask(bad)):
                reason, name = next((why, name) for mask, why, name in problems if mask[index].as_py())
                self.bad.add(reason, numbers[index].as_py(), name)
        return pc.and_not(is_change, bad)

    def _select_moved(self, batch: ChangeBatch, good: pa.Array) -> pa.Array | None:
        """Selects the upserts that have changed their key; None if none has."""
        if batch.old_keys is None:
            return None
        has_old_key, differs = good, pa.array(np.zeros(len(good), bool))
        for key in self.keys:
            old = batch.old_keys[key.id]
            has_old_key = pc.and_(has_old_key, pc.is_valid(old))
            differs = pc.or_(differs, pc.fill_null(pc.not_equal(old, batch.images[key.id]), False))
        has_moved = pc.and_(pc.and_(has_old_key, differs), pc.equal(batch.kinds, UPSERT))
        return has_moved if pc.any(has_moved).as_py() else None

    def _delete_old_keys(self, rows: pa.Table, batch: ChangeBatch, has_moved: pa.Array) -> pa.Table:
        """Makes deletes of the old keys of rows that have changed their key."""
        assert batch.old_keys is not None
        columns = {name: pa.nulls(rows.num_rows, rows[name].type) for name in rows.column_names}
        columns |= {str(key.id): batch.old_keys[key.id] for key in self.keys}
        columns[str(self.sequence.id)] = batch.sequences
        columns[DELETED], columns[ROW] = pa.array(np.ones(rows.num_rows, bool)), rows[ROW]
        return pa.table(columns, schema=rows.schema).filter(has_moved)


def _ids_by_row(masks: Mapping[int, pa.BooleanArray]) -> pa.Array:
    """The ids of the columns whose mask selects a row, as a list for each row; NULL for none."""
    selected = np.stack([to_mask(mask) for mask in masks.values()], axis=1)
    counts = selected.sum(axis=1)
    ids = np.array(list(masks), np.int32)[np.nonzero(selected)[1]]
    bounds = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    return pa.ListArray.from_arrays(bounds, pa.array(ids), mask=pa.array(counts == 0))


def is_unavailable(changes: pa.Table, column: int) -> npt.NDArray[np.bool_]:
    """Selects the changes in which the source left out the value of a column."""
    mask = np.zeros(changes.num_rows, bool)
    if UNAVAILABLE in changes.column_names:
        lists = changes[UNAVAILABLE].combine_chunks()
        mask[pc.list_parent_indices(lists).filter(pc.equal(lists.flatten(), column)).to_numpy()] = True
    return mask


def unavailable_columns(changes: pa.Table) -> list[int]:
    """The ids of the columns with values that the source left out; usually none."""
    if UNAVAILABLE not in changes.column_names:
        return []
    ids: list[int] = pc.unique(changes[UNAVAILABLE].combine_chunks().flatten()).to_pylist()
    return ids


def cut_portions(tables: Iterator[pa.Table], sequence: str, max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Cuts changes into portions to apply at once, but never between the delete of an old key and its new row."""
    buffered: list[pa.Table] = []
    rows = size = 0
    for changes in tables:
        for part in _parts(changes, sequence, max_rows):
            if buffered and (rows + part.num_rows > max_rows or size + part.nbytes > max_bytes):
                *whole, last = buffered
                border = pa.concat_tables([last.slice(last.num_rows - 1), part.slice(0, 1)], promote_options="default")
                buffered, rows, size = [], 0, 0
                if _continues(border, sequence)[0]:
                    buffered, last = [border.slice(0, 1)], last.slice(0, last.num_rows - 1)
                if whole or last.num_rows:
                    yield pa.concat_tables([*whole, last], promote_options="default")
            buffered.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
    if buffered:
        yield pa.concat_tables(buffered, promote_options="default")


def _parts(changes: pa.Table, sequence: str, max_rows: int) -> Iterator[pa.Table]:
    if changes.num_rows <= max_rows:
        yield changes
        return
    start, continues = 0, _continues(changes, sequence)
    while start < changes.num_rows:
        stop = start + max_rows
        while stop < changes.num_rows and continues[stop - 1]:
            stop += 1
        yield changes.slice(start, stop - start)
        start = stop


def _continues(changes: pa.Table, sequence: str) -> npt.NDArray[np.bool_]:
    """Selects changes (but the last) that may delete the old key of a row, before the next gives it another key."""
    rows, deletes = changes[ROW].to_numpy(), changes[DELETED].to_numpy()
    same: npt.NDArray[np.bool_] = np.diff(rows) == 0
    if CREATED in changes.column_names:
        created = pc.fill_null(changes[CREATED], False).to_numpy()
        equal = pc.equal(changes[sequence][1:], changes[sequence][:-1])
        same |= deletes[:-1] & created[1:] & equal.to_numpy()
    return same

"""Plans from metadata which files the changes between two versions are in, and reads the changed rows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from msgspec import Struct

from dolmen.base.records import field_names, replace
from dolmen.base.units import cut_by_size
from dolmen.commit.head import Context
from dolmen.entries.segments.erasures_in_force import with_erasures
from dolmen.format.column_history import nested_values
from dolmen.format.entries import DataFile, KeysTombstone, Tombstone
from dolmen.format.manifest import Erasure, Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS_FIELD, COMMIT_TS_ID, Field
from dolmen.format.types import Mask, to_mask
from dolmen.predicate.ast import Predicate
from dolmen.predicate.evaluate import matches
from dolmen.rows.changes.row_matching import Changed, RowMatcher
from dolmen.rows.changes.table_state import (
    AffectedFile,
    FeedColumns,
    FilePlanner,
    TableState,
    differing_files,
    files_affected_between,
    files_affected_by_commit,
    files_affected_by_deletes,
    younger_files,
)
from dolmen.rows.scan.load_deletes import VECTOR_BYTES, vector_bytes
from dolmen.rows.scan.plan import ScanPlan
from dolmen.rows.scan.plan_reader import PlanReader, RowGroupColumns
from dolmen.rows.scan.row_groups import (
    FilePlan,
    OpenFile,
    RowGroup,
    column_of,
    kept_rows,
    live_mask,
    row_groups,
    row_mask,
)

LosingFile: TypeAlias = AffectedFile | FilePlan
ReadLost: TypeAlias = Callable[[FeedColumns, Sequence[LosingFile]], Iterator[pa.RecordBatch]]
ReadNew: TypeAlias = Callable[[FeedColumns, Sequence[FilePlan]], Iterator[pa.RecordBatch]]


class ChangedFiles(Struct, frozen=True):
    """Files that may have lost rows by a change, and files with new rows.

    If ``is_difference``, the change is a difference of two versions: a row that is equal on both sides did not change.
    """

    columns: FeedColumns
    lost: tuple[LosingFile, ...]
    new: tuple[FilePlan, ...]
    read_lost: ReadLost
    read_new: ReadNew
    is_difference: bool = False

    @property
    def is_paired(self) -> bool:
        """True if all files are read together, because rows of one file may pair with rows of another."""
        return bool(self.lost and self.new and (self.columns.key or self.is_difference))

    @property
    def sizes(self) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Paths and sizes, in bytes, of the files that may have lost rows, and of those that may have new ones."""
        lost_files = [_earlier_file(plan) for plan in self.lost]
        return [(file.path, file.size) for file in lost_files], [(plan.file.path, plan.file.size) for plan in self.new]

    def only(self, lost: AbstractSet[str], new: AbstractSet[str]) -> ChangedFiles:
        """The same change with only some of its files, by their paths, when ``is_paired`` is False."""
        return replace(
            self,
            columns=replace(self.columns, key=()),
            lost=tuple(plan for plan in self.lost if _earlier_file(plan).path in lost),
            new=tuple(plan for plan in self.new if plan.file.path in new),
            is_difference=False,
        )

    def read_deleted(self) -> Iterator[pa.RecordBatch]:
        return self.read_lost(self.columns, self.lost)

    def read_inserted(self) -> Iterator[pa.RecordBatch]:
        return self.read_new(self.columns, self.new)

    def match(self) -> Iterator[Changed]:
        """Streams the changes, and distinguishes rows that replace others from new ones."""
        if not self.is_paired:
            yield from (("delete", batch) for batch in self.read_deleted())
            yield from (("insert", batch) for batch in self.read_inserted())
            return
        rows = self.read_deleted(), self.read_inserted()
        yield from matcher(self.columns, is_difference=self.is_difference).match(*rows)


def matcher(columns: FeedColumns, *, is_difference: bool) -> RowMatcher:
    return RowMatcher(columns.arrow, [field.name for field in columns.key], drop_equal=is_difference)


class ChangePlanner:
    """Plans changes of the table ``entry``, to which ``where`` is bound, without rows that ``erasures`` erased."""

    def __init__(
        self,
        context: Context,
        entry: TableEntry,
        output: tuple[Field, ...],
        where: Predicate | None,
        erasures: tuple[Erasure, ...] = (),
    ) -> None:
        self._context, self._entry, self._erasures = context, entry, erasures
        self._columns = FeedColumns(entry.schema, output, (), where)

    @property
    def key_columns(self) -> FeedColumns:
        return self._with_key(self._entry.primary_key)

    def of_commit(self, first: Manifest, last: Manifest, columns: FeedColumns | None = None) -> ChangedFiles:
        """The rows that one commit deleted and added, by default with the columns of the result and of the key."""
        before, after = self._state(first), self._state(last)
        if before is None or after is None or not self._is_in_epoch(before, after):
            return self._difference(before, after)
        deletes = after.tombstones_since(before.commit_ts)
        new = list(younger_files(after, self._columns, before.commit_ts))
        affected = tuple(files_affected_by_commit(before, after, self._columns))
        if columns is None:
            ids = self._entry.primary_key or _upsert_key(deletes, new) if new and affected else ()
            columns = self._with_key(ids)
        planner = FilePlanner(after, columns, deletes)
        return _in_epoch(columns, before, after, affected, tuple(planner.plans(new)), deletes)

    def net(self, first: Manifest, last: Manifest) -> ChangedFiles | None:
        """The difference of two versions; None if compaction replaced files, so that only single commits show it."""
        before, after = self._state(first), self._state(last)
        if before is None or after is None or not self._is_in_epoch(before, after):
            return self._difference(before, after)
        columns = self.key_columns
        planner = FilePlanner(after, columns)
        has_deletes = after.entry.last_delete_ts > before.commit_ts
        affected = files_affected_between(before, after, columns, planner) if has_deletes else iter(())
        if affected is None:
            return None
        new = tuple(planner.plans(younger_files(after, columns, before.commit_ts)))
        return _in_epoch(columns, before, after, tuple(affected), new, planner.tombstones, is_net=True)

    def of_erased_rows(self, first: Manifest, last: Manifest, *, net: bool = False) -> ChangedFiles | None:
        """The rows that a commit deleted and a later commit erased, as deletes for consumers that have them.

        They have values only in the columns of the primary key, or without one in the columns that the erasures name.
        Some may be rows that only the later commit deleted. With ``net``, commits may lie between the two versions.
        """
        erasures = [erasure for erasure in self._erasures if erasure.ts > first.commit_ts]
        state = self._stored_state(first) if erasures else None
        if state is None:
            return None
        with_deletes = with_erasures(state.entry, erasures, self._context.segments)
        deletes = with_deletes.tombstones[len(state.entry.tombstones) :]
        key_ids = self._entry.primary_key or {id_ for delete in deletes for id_ in delete.columns}
        key = tuple(field for field in self._entry.schema.fields if field.id in key_ids)
        if not deletes or not key:
            return None
        output = tuple(field for field in self._columns.output if field.id in key_ids)
        columns = FeedColumns(self._entry.schema, output, key, self._columns.where)
        affected = files_affected_by_deletes(state, deletes, with_deletes.schema, columns)
        next_state = None if net else self._stored_state(last)
        if next_state is not None and next_state.entry.epoch == state.entry.epoch:
            paths = {each.after.path for each in files_affected_by_commit(state, next_state, columns)}
            affected = (each for each in affected if each.after.path in paths)

        def read_lost(_: FeedColumns, files: Sequence[LosingFile]) -> Iterator[pa.RecordBatch]:
            for batch in lost_rows(state, state.with_entry(with_deletes), columns, files, deletes):
                arrays = [
                    batch.column(field.name) if field in output else pa.nulls(batch.num_rows, field.arrow_type)
                    for field in self._columns.output
                ]
                yield pa.RecordBatch.from_arrays(arrays, [field.name for field in self._columns.output])

        return ChangedFiles(columns, tuple(affected), (), read_lost, lambda columns, files: iter(()))

    def _difference(self, before: TableState | None, after: TableState | None) -> ChangedFiles:
        """The rows that only one of two versions has, whatever happened in between."""
        both = before is not None and after is not None
        columns = self.key_columns if both else self._columns

        def read(state: TableState | None) -> ReadLost:
            def rows(columns: FeedColumns, files: Sequence[LosingFile]) -> Iterator[pa.RecordBatch]:
                plans = [plan for plan in files if isinstance(plan, FilePlan)]
                return iter(()) if state is None else visible_rows(state, columns, plans, state.tombstones)

            return rows

        are_alike = before is not None and after is not None and before.shows_same(after, columns)
        lost = () if before is None else tuple(differing_files(before, after if are_alike else None, columns))
        new = () if after is None else tuple(differing_files(after, before if are_alike else None, columns))
        return ChangedFiles(columns, lost, new, read(before), read(after), is_difference=both)

    def _is_in_epoch(self, before: TableState, after: TableState) -> bool:
        """True if the table was not overwritten or restored in between, and lost none of the feed's columns."""
        return before.entry.epoch == after.entry.epoch and before.shows_same(after, self.key_columns)

    def _state(self, manifest: Manifest) -> TableState | None:
        """The table in a version, without the rows that were erased since."""
        return TableState.of(self._context, manifest, self._entry.uuid, self._entry.schema, self._erasures)

    def _stored_state(self, manifest: Manifest) -> TableState | None:
        """The table in a version, with the rows that were erased since."""
        return TableState.of(self._context, manifest, self._entry.uuid, self._entry.schema, hides_absent=False)

    def _with_key(self, ids: Sequence[int]) -> FeedColumns:
        """The columns, with key columns if the table still has all of them."""
        fields_by_id = {field.id: field for field in self._entry.schema.fields}
        key = tuple(fields_by_id[id_] for id_ in ids) if fields_by_id.keys() >= set(ids) else ()
        return replace(self._columns, key=key)


def _in_epoch(
    columns: FeedColumns,
    before: TableState,
    after: TableState,
    affected: tuple[AffectedFile, ...],
    new: tuple[FilePlan, ...],
    deletes: tuple[Tombstone, ...],
    *,
    is_net: bool = False,
) -> ChangedFiles:
    def read_lost(columns: FeedColumns, files: Sequence[LosingFile]) -> Iterator[pa.RecordBatch]:
        return lost_rows(before, after, columns, files, deletes)

    def read_new(columns: FeedColumns, files: Sequence[FilePlan]) -> Iterator[pa.RecordBatch]:
        return visible_rows(after, columns, files, deletes, since=before.commit_ts if is_net else 0)

    return ChangedFiles(columns, affected, new, read_lost, read_new, is_difference=is_net)


def _earlier_file(plan: LosingFile) -> DataFile:
    return plan.before.file if isinstance(plan, AffectedFile) else plan.file


def _upsert_key(deletes: Iterable[Tombstone], files: Iterable[DataFile]) -> tuple[int, ...]:
    """The columns by which a commit replaced rows; empty if it replaced no rows, or used several sets of columns."""
    added = {file.row_ts for file in files}
    found = {each.columns for each in deletes if isinstance(each, KeysTombstone) and each.ts in added}
    return found.pop() if len(found) == 1 else ()


@dataclass(frozen=True)
class AffectedRowGroup(RowGroup):
    """A row group that may have lost rows; ``after`` has the later deletes, and is None if these hide all rows."""

    after: RowGroup | None


def visible_rows(
    state: TableState,
    columns: FeedColumns,
    files: Iterable[FilePlan],
    unresolved: tuple[Tombstone, ...],
    *,
    since: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Streams the requested rows of some files, of commits after ``since``, that no delete hides."""
    plans = tuple(files)
    reader = _reader(state, columns, plans, unresolved)
    is_mixed = any(plan.file.least_row_ts <= since for plan in plans)
    ids = columns.ids | _late_filter_ids(state, columns) | ({COMMIT_TS_ID} if is_mixed else frozenset())

    def decode(group: RowGroup, read: RowGroupColumns) -> pa.RecordBatch | None:
        keep = row_mask(group, read.read(group.tested_ids))
        if group.file.file.least_row_ts <= since:
            ts = column_of(group, COMMIT_TS_FIELD, read.read(frozenset((COMMIT_TS_ID,)))).to_numpy()
            keep = ts > since if keep is None else keep & (ts > since)
        return _take(state, group, read, keep, columns)

    yield from (batch for batch in reader.read(decode, reader.groups(), ids) if batch is not None)


def lost_rows(
    before: TableState,
    after: TableState,
    columns: FeedColumns,
    files: Iterable[LosingFile],
    deletes: tuple[Tombstone, ...],
) -> Iterator[pa.RecordBatch]:
    """Streams the requested rows of affected files that were visible in ``before`` and are hidden in ``after``."""
    by_path = {each.before.file.path: each for each in files if isinstance(each, AffectedFile)}
    if not by_path:
        return
    older = _reader(before, columns, tuple(each.before for each in by_path.values()), before.tombstones)
    plans = (FilePlan(each.after, False, each.tombstones) for each in by_path.values() if each.tombstones)
    newer = _reader(after, columns, tuple(plans), deletes)
    tested_ids = frozenset(id_ for tombstone in newer.plan.tombstones for id_ in tombstone.columns)

    def decode(group: RowGroup, read: RowGroupColumns) -> pa.RecordBatch | None:
        assert isinstance(group, AffectedRowGroup)
        keep = row_mask(group, read.read(group.tested_ids))
        if group.after is not None:
            live = live_mask(group.after, read.read(group.after.tested_ids))
            if live is None:
                return None
            keep = ~live if keep is None else keep & ~live
        return _take(before, group, read, keep, columns)

    ids = columns.ids | tested_ids | _late_filter_ids(before, columns)
    batches = older.read(decode, _affected_groups(older, newer, by_path), ids)
    yield from (batch for batch in batches if batch is not None)


def _affected_groups(
    older: PlanReader, newer: PlanReader, by_path: dict[str, AffectedFile]
) -> Iterator[AffectedRowGroup]:
    """The row groups that had visible rows and may have lost some."""
    older_deletes, newer_deletes = older.deletes(), newer.deletes()
    schema = older.plan.entry.schema
    for some in cut_by_size(older.plan.files, vector_bytes, VECTOR_BYTES):
        affected = [by_path[plan.file.path] for plan in some]
        with_new_vectors = [each.after for each in affected if each.after.vector != each.before.file.vector]
        bitmaps = newer.vectors([FilePlan(file, False, ()) for file in with_new_vectors])
        for file in older.open_files(some):
            each = by_path[file.file.path]
            later_groups: dict[int, RowGroup] = {}
            if each.tombstones is not None:
                later_file = OpenFile(
                    FilePlan(each.after, False, each.tombstones), file.footer, bitmaps.get(each.after.path), file.source
                )
                later_groups = {group.index: group for group in row_groups(later_file, None, newer_deletes, schema)}
            for group in row_groups(file, older.plan.where, older_deletes, schema):
                after = later_groups.get(group.index)
                if after is None or after.tested_ids or after.deleted:
                    attributes = {name: getattr(group, name) for name in field_names(group)}
                    yield AffectedRowGroup(**attributes, after=after)


def _reader(
    state: TableState, columns: FeedColumns, files: tuple[FilePlan, ...], unresolved: tuple[Tombstone, ...]
) -> PlanReader:
    plan = ScanPlan(
        table=state.name,
        version=state.manifest.version,
        entry=state.entry,
        output=columns.fields,
        where=state.where(columns),
        limit=None,
        files=files,
        pruned={},
        all_tombstones=unresolved,
    )
    return PlanReader(state.context, plan)


def _late_filter_ids(state: TableState, columns: FeedColumns) -> frozenset[int]:
    """Ids of the predicate's columns if files can't be judged by it: see ``TableState.where``."""
    return frozenset() if state.where(columns) is columns.where else columns.filter_ids


def _take(
    state: TableState, group: RowGroup, read: RowGroupColumns, keep: Mask | None, columns: FeedColumns
) -> pa.RecordBatch | None:
    if keep is not None and not keep.any():
        return None
    tested_ids = _late_filter_ids(state, columns)
    arrays = read.read(columns.ids | tested_ids)
    if tested_ids and columns.where is not None:
        shown = {field.id: _column(state, group, field, arrays) for field in columns.inputs if field.id in tested_ids}
        is_match = to_mask(matches(columns.where, shown, group.rows))
        keep = is_match if keep is None else keep & is_match
        if not keep.any():
            return None
    return kept_rows([_column(state, group, field, arrays) for field in columns.fields], keep, columns.arrow)


def _column(state: TableState, group: RowGroup, field: Field, arrays: Mapping[int, pa.Array]) -> pa.Array:
    """A column of all rows of a row group as a version shows it, in the feed's type."""
    absent = state.absent.get(field.id)
    if absent is None:
        return column_of(group, field, arrays)
    if field.id in absent:
        is_older = field.added_ts <= state.commit_ts
        return pa.nulls(group.rows, field.arrow_type) if is_older else field.initial_values(group.rows)
    own_field = state.own.by_id[field.id]
    return nested_values(column_of(group, own_field, arrays), own_field.arrow_type, field.arrow_type)

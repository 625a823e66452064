"""The change feed of one table: a stream of the rows that each commit added and took away, or of the net change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from dolmen.changes.commits import CommitStep, changing_commits
from dolmen.changes.hits import (
    FilePlanner,
    hits_between,
    hits_of_commit,
    hits_of_deletes,
    unlike_files,
    younger_files,
)
from dolmen.changes.matching import Changed, RowMatcher
from dolmen.changes.rows import read_schema, taken_rows, visible_rows
from dolmen.changes.state import FeedColumns, TableState
from dolmen.context import Context
from dolmen.errors import SchemaError
from dolmen.format.entries import DataFile, KeysTombstone, Tombstone
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.predicate import Predicate
from dolmen.scan.plan import FilePlan, output_fields
from dolmen.segments.erasures import erasures_of, reaches, with_erasures

CHANGE, VERSION = "_change", "_version"
FEED_FIELDS = (
    pa.field(CHANGE, pa.string(), nullable=False),
    pa.field(VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TS, pa.int64(), nullable=False),
)
"""The columns that the feed adds behind those of the table."""


@dataclass(frozen=True)
class ChangedRows:
    """The rows that a change took away, and those that it added. Each side can be read once.

    Args:
        columns: those of the rows.
        is_difference: whether a row on both sides is no change.
    """

    columns: FeedColumns
    deleted: Iterator[pa.RecordBatch]
    inserted: Iterator[pa.RecordBatch]
    is_difference: bool = False

    def match(self) -> Iterator[Changed]:
        """Tells rows that replace others from rows that are new."""
        return matcher(self.columns, is_difference=self.is_difference).match(self.deleted, self.inserted)


def matcher(columns: FeedColumns, *, is_difference: bool) -> RowMatcher:
    """A matcher of rows with these columns."""
    key = [field.name for field in columns.key]
    return RowMatcher(read_schema(columns), key, drop_equal=is_difference)


class ChangeFeed:
    """The changes of one table's rows after one version and up to another. Nothing is read before it is asked for.

    Args:
        newest: a version that knows the history of ``until``.
        since: the version after which the changes begin.
        until: the version with which they end; the table has its name, and its columns, there.
        columns: names of the table's columns to return, in order; all by default.
        where: bound to the table's columns in ``until``: the feed of the rows for which it is TRUE.
        net: the difference of the two versions, in place of every commit's changes.

    Raises:
        TableNotFoundError: ``until`` has no such table.
        SchemaError: there is no such column, or a column has the name of one that the feed adds.
    """

    def __init__(
        self,
        context: Context,
        newest: Manifest,
        since: Manifest,
        until: Manifest,
        table: str,
        columns: Sequence[str] | None = None,
        where: Predicate | None = None,
        *,
        net: bool = False,
    ) -> None:
        self._context, self._newest, self._since, self._until, self._net = context, newest, since, until, net
        with context.reading(until.version):
            self._entry: TableEntry = context.segments.whole(until.table(table))
            younger = erasures_of(newest, context.segments, after=since.commit_ts)
        self._erasures = tuple(erasure for erasure in younger if reaches(erasure, self._entry))
        _check_names(table, output := output_fields(self._entry, columns, with_commit_ts=False))
        self._columns = FeedColumns(self._entry.schema, output, (), where)
        own = [pa.field(field.name, field.arrow_type, field.nullable or bool(self._erasures)) for field in output]
        self.schema: pa.Schema = pa.schema([*own, *FEED_FIELDS])

    def to_reader(self) -> pa.RecordBatchReader:
        """The changes as a stream, in bounded memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Streams the changes, each batch of one commit and one kind.

        Raises:
            VersionExpiredError: a version that is needed expired while this was read.
        """
        with self._context.reading(max(self._since.version, 1)):
            if self._net:
                for change in chain(self._erased_rows(self._since, self._until), self._net_changes()):
                    yield self._tag(change, self._until)
                return
            for step in self._steps():
                for change in chain(self._erased_rows(step.before, step.after), self._rows_of(step).match()):
                    yield self._tag(change, step.after)

    def _steps(self) -> Iterator[CommitStep]:
        steps = changing_commits(self._context, self._newest, self._since, self._until, self._entry.uuid)
        return (step for step in steps if step.after.data_change)

    def _state(self, manifest: Manifest) -> TableState | None:
        """The table in a version, as whoever reads it now sees it."""
        return TableState.of(self._context, manifest, self._entry.uuid, self._entry.schema, self._erasures)

    def _stored(self, manifest: Manifest) -> TableState | None:
        """The table in a version, as it was read before anything was erased."""
        return TableState.of(self._context, manifest, self._entry.uuid, self._entry.schema)

    def _erased_rows(self, before: Manifest, after: Manifest) -> Iterator[Changed]:
        """The rows that a commit took away and that nobody sees any more, as deletes for whoever has them from before.

        They have values in the columns of the primary key alone; without one, in those that the erasures name.
        They come before the other changes: a row of the same key that is added later is another one. Some may be of
        rows that are erased by a later commit, in a file of which this one took others.
        """
        erasures = [erasure for erasure in self._erasures if erasure.ts > before.commit_ts]
        state = self._stored(before) if erasures else None
        if state is None:
            return
        marked = with_erasures(state.entry, erasures, self._context.segments)
        deletes = marked.tombstones[len(state.entry.tombstones) :]
        named = self._entry.primary_key or {id_ for delete in deletes for id_ in delete.columns}
        kept = tuple(field for field in self._entry.schema.fields if field.id in named)
        if not deletes or not kept:
            return
        told = tuple(field for field in self._columns.output if field.id in named)
        columns = FeedColumns(self._entry.schema, told, kept, self._columns.where)
        hits = hits_of_deletes(state, deletes, marked.schema, columns)
        now = None if self._net else self._stored(after)
        if now is not None and now.entry.epoch == state.entry.epoch:
            touched = {hit.after.path for hit in hits_of_commit(state, now, columns)}
            hits = (hit for hit in hits if hit.after.path in touched)
        for batch in taken_rows(state, state.with_entry(marked), columns, hits, deletes):
            arrays = [
                batch.column(field.name) if field in told else pa.nulls(batch.num_rows, field.arrow_type)
                for field in self._columns.output
            ]
            yield "delete", pa.RecordBatch.from_arrays(arrays, [field.name for field in self._columns.output])

    def _tag(self, change: Changed, manifest: Manifest) -> pa.RecordBatch:
        what, rows = change
        told = (what, manifest.version, manifest.commit_ts)
        return pa.RecordBatch.from_arrays(
            [
                *(rows.column(field.name) for field in self._columns.output),
                *(
                    pa.repeat(pa.scalar(value, field.type), rows.num_rows)
                    for value, field in zip(told, FEED_FIELDS, strict=True)
                ),
            ],
            schema=self.schema,
        )

    def _keyed_by(self, ids: Sequence[int]) -> FeedColumns:
        """The columns with those of a key; without, if the table no longer has one of them."""
        there = {field.id: field for field in self._entry.schema.fields}
        key = tuple(there[id_] for id_ in ids) if there.keys() >= set(ids) else ()
        return replace(self._columns, key=key)

    def _rows_of(self, step: CommitStep, columns: FeedColumns | None = None) -> ChangedRows:
        """The rows that one commit took away and added.

        Args:
            columns: to be read; by default those of the result, and of the key by which rows are to be paired.
        """
        before, after = self._state(step.before), self._state(step.after)
        if before is None or after is None or before.entry.epoch != after.entry.epoch:
            return self._difference(before, after)
        deletes = after.tombstones_since(before.commit_ts)
        new = list(younger_files(after, self._columns, before.commit_ts))
        hits = list(hits_of_commit(before, after, self._columns))
        if columns is None:
            ids = self._entry.primary_key or _upserted_by(deletes, new) if new and hits else ()
            columns = self._keyed_by(ids)
        planner = FilePlanner(after, columns, deletes)
        return ChangedRows(
            columns,
            taken_rows(before, after, columns, hits, deletes),
            visible_rows(after, columns, _plans(planner, new), deletes),
        )

    def _difference(self, before: TableState | None, after: TableState | None) -> ChangedRows:
        """The rows that only one of two versions shows, whatever happened in between."""
        both = before is not None and after is not None
        columns = self._keyed_by(self._entry.primary_key) if both else self._columns

        def shown(state: TableState | None, other: TableState | None) -> Iterator[pa.RecordBatch]:
            if state is None:
                return iter(())
            return visible_rows(state, columns, unlike_files(state, other, columns), state.tombstones)

        return ChangedRows(columns, shown(before, after), shown(after, before), is_difference=both)

    def _net_changes(self) -> Iterator[Changed]:
        before, after = self._state(self._since), self._state(self._until)
        if before is None or after is None or before.entry.epoch != after.entry.epoch:
            yield from self._difference(before, after).match()
            return
        columns = self._keyed_by(self._entry.primary_key)
        planner = FilePlanner(after, columns)
        has_deletes = after.entry.last_delete_ts > before.commit_ts
        hits = hits_between(before, after, columns, planner) if has_deletes else iter(())
        if hits is None:  # compaction has moved rows: what the commits did tells which of them are gone
            yield from matcher(columns, is_difference=True).match_mixed(self._all_changes(columns))
            return
        plans = _plans(planner, younger_files(after, columns, before.commit_ts))
        yield from ChangedRows(
            columns,
            taken_rows(before, after, columns, hits, planner.tombstones),
            visible_rows(after, columns, plans, planner.tombstones, since=before.commit_ts),
            is_difference=True,
        ).match()

    def _all_changes(self, columns: FeedColumns) -> Iterator[Changed]:
        """The rows that each commit took away and added, not matched."""
        for step in self._steps():
            rows = self._rows_of(step, columns)
            yield from (("delete", batch) for batch in rows.deleted)
            yield from (("insert", batch) for batch in rows.inserted)


def _plans(planner: FilePlanner, files: Iterable[DataFile]) -> Iterator[FilePlan]:
    return (plan for file in files if (plan := planner.plan(file)) is not None)


def _upserted_by(deletes: Iterable[Tombstone], files: Iterable[DataFile]) -> tuple[int, ...]:
    """The columns by which a commit replaced rows; none if it replaced none, or by different columns."""
    added = {file.row_ts for file in files}
    found = {each.columns for each in deletes if isinstance(each, KeysTombstone) and each.ts in added}
    return found.pop() if len(found) == 1 else ()


def _check_names(table: str, output: Iterable[Field]) -> None:
    for field in output:
        if field.name.lower() in (added.name for added in FEED_FIELDS):
            raise SchemaError(
                f"column {field.name!r} of table {table!r} has the name of a column that the feed adds: rename it, or "
                "leave it out with columns=[...]"
            )

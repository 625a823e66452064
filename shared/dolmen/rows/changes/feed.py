"""The change feed of one table: a stream of the rows that each commit added and took away, or of the net change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa

from dolmen.commit.context import Context
from dolmen.entries.segments.erasures import erasures_of, reaches, with_erasures
from dolmen.errors import SchemaError
from dolmen.format.erasures import Erasure
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.predicate import Predicate
from dolmen.rows.changes.changed_files import ChangedFiles, ChangePlanner, matcher
from dolmen.rows.changes.commits import CommitStep, changing_commits
from dolmen.rows.changes.matching import Changed
from dolmen.rows.scan.plan import output_fields

CHANGE, VERSION = "_change", "_version"
FEED_FIELDS = (
    pa.field(CHANGE, pa.string(), nullable=False),
    pa.field(VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TS, pa.int64(), nullable=False),
)
"""The columns that the feed adds behind those of the table."""


class ChangeFeed:
    """The changes of one table's rows after one version and up to another. Nothing is read before it is asked for.

    Args:
        newest: the newest version: it knows the history of ``until``, and what was erased since.
        since: the version after which the changes begin.
        until: the version with which they end.
        table: the table's name, for errors.
        entry: the table with the columns of the feed: as it is in ``until``, or in another version.
        columns: names of the table's columns to return, in order; all by default.
        where: bound to the columns of ``entry``: the feed of the rows for which it is TRUE.
        net: the difference of the two versions, in place of every commit's changes.

    Raises:
        SchemaError: there is no such column, or a column has the name of one that the feed adds.
    """

    def __init__(
        self,
        context: Context,
        newest: Manifest,
        since: Manifest,
        until: Manifest,
        table: str,
        entry: TableEntry,
        columns: Sequence[str] | None = None,
        where: Predicate | None = None,
        *,
        net: bool = False,
    ) -> None:
        self._context, self._newest, self._since, self._until, self._net = context, newest, since, until, net
        with context.reading(until.version):
            erasures = erasures_reaching(context, newest, entry, after=since)
        self._entry = entry = with_erasures(entry, erasures, context.segments)  # its columns have the deletes' types
        self._output = output_fields(entry, columns, with_commit_ts=False)
        check_names(table, self._output)
        self._planner = ChangePlanner(context, entry, self._output, where, erasures)
        is_remade = entry.epoch > since.version  # by a restore, maybe, that brought back a column
        shown = entry.primary_key if is_remade else [field.id for field in entry.schema.fields]
        self.schema = feed_schema(self._output, () if erasures else shown)

    def to_reader(self) -> pa.RecordBatchReader:
        """The changes as a stream, in bounded memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Streams the changes, each batch of one commit and one kind.

        Raises:
            VersionExpiredError: a version that is needed expired while this was read.
        """
        with self._context.reading(max(self._since.version, 1), self._until.version):
            for step, files, _ in self.plan():
                changes = self.net_of_commits() if files is None else files.match()
                yield from (tag(change, step.after, self._output, self.schema) for change in changes)

    def plan(self) -> Iterator[tuple[CommitStep, ChangedFiles | None, bool]]:
        """Yields each change of the feed with its files; None in place of files that only the commits tell.

        Reads manifests and segments, and no data.

        Yields:
            The change, its files, and whether they are read for the rows that were erased since. Deletes of these come
            before the other changes of a commit: a row of the same key that is added later is another one.
        """
        steps = [CommitStep(self._since, self._until)] if self._net else self._steps()
        for step in steps:
            if erased := self._planner.erased(step.before, step.after, net=self._net):
                yield step, erased, True
            if self._net:
                yield step, self._planner.net(step.before, step.after), False
            else:
                yield step, self._planner.of_commit(step.before, step.after), False

    def _steps(self) -> Iterator[CommitStep]:
        steps = changing_commits(
            self._context,
            self._newest,
            self._since,
            self._until,
            self._entry.uuid,
            self._planner.key_columns.needed,
        )
        return (step for step in steps if step.after.data_change)

    def net_of_commits(self) -> Iterator[Changed]:
        """The net change by what each commit did, as compaction has moved rows in between."""
        columns = self._planner.key_columns

        def all_changes() -> Iterator[Changed]:
            for step in self._steps():
                files = self._planner.of_commit(step.before, step.after, columns)
                yield from (("delete", batch) for batch in files.deleted())
                yield from (("insert", batch) for batch in files.inserted())

        return matcher(columns, is_difference=True).match_mixed(all_changes())


def erasures_reaching(context: Context, newest: Manifest, entry: TableEntry, *, after: Manifest) -> tuple[Erasure, ...]:
    """The erasures that are younger than a version, and may reach a table as any version has it, oldest first.

    An earlier version may have a subject where ``entry`` has none.
    """
    younger = erasures_of(newest, context.segments, after=after.commit_ts)
    return tuple(erasure for erasure in younger if erasure.subject or reaches(erasure, entry))


def feed_schema(output: Iterable[Field], shown: Collection[int]) -> pa.Schema:
    """The Arrow schema of a feed with these columns of the table.

    Args:
        shown: ids of those that have a value wherever the table has one; others may be NULL. Of an erased row the feed
            tells the key alone, and of a version that does not show a column, NULL.
    """
    own = [pa.field(field.name, field.arrow_type, field.nullable or field.id not in shown) for field in output]
    return pa.schema([*own, *FEED_FIELDS])


def tag(change: Changed, manifest: Manifest, output: Iterable[Field], schema: pa.Schema) -> pa.RecordBatch:
    """Changed rows with the columns that say what happened to them, and in which version."""
    what, rows = change
    added = (what, manifest.version, manifest.commit_ts)
    return pa.RecordBatch.from_arrays(
        [
            *(rows.column(field.name) for field in output),
            *(
                pa.repeat(pa.scalar(value, field.type), rows.num_rows)
                for value, field in zip(added, FEED_FIELDS, strict=True)
            ),
        ],
        schema=schema,
    )


def check_names(table: str, output: Iterable[Field]) -> None:
    """Raises SchemaError if a column of the table has the name of one that the feed adds."""
    for field in output:
        if field.name.lower() in (added.name for added in FEED_FIELDS):
            raise SchemaError(
                f"column {field.name!r} of table {table!r} has the name of a column that the feed adds: rename it, or "
                "leave it out with columns=[...]"
            )

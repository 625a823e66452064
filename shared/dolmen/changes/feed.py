"""The change feed of one table: a stream of the rows that each commit added and took away, or of the net change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from dolmen.changes.changed_files import ChangedFiles, ChangePlanner, matcher
from dolmen.changes.commits import CommitStep, changing_commits
from dolmen.changes.matching import Changed
from dolmen.context import Context
from dolmen.errors import SchemaError
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.predicate import Predicate
from dolmen.scan.plan import output_fields

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
        newest: a version that knows the history of ``until``.
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
        self._entry = entry
        self._output = output_fields(entry, columns, with_commit_ts=False)
        check_names(table, self._output)
        self._planner = ChangePlanner(context, entry, self._output, where)
        self.schema = feed_schema(self._output)

    def to_reader(self) -> pa.RecordBatchReader:
        """The changes as a stream, in bounded memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Streams the changes, each batch of one commit and one kind.

        Raises:
            VersionExpiredError: a version that is needed expired while this was read.
        """
        with self._context.reading(max(self._since.version, 1)):
            for step, files in self.plan():
                changes = self._net_of_commits() if files is None else files.match()
                yield from (tag(change, step.after, self._output, self.schema) for change in changes)

    def plan(self) -> Iterator[tuple[CommitStep, ChangedFiles | None]]:
        """Yields each change of the feed with its files; None in place of files that only the commits tell.

        Reads manifests and segments, and no data.
        """
        if self._net:
            yield CommitStep(self._since, self._until), self._planner.net(self._since, self._until)
            return
        for step in self._steps():
            yield step, self._planner.of_commit(step.before, step.after)

    def _steps(self) -> Iterator[CommitStep]:
        steps = changing_commits(self._context, self._newest, self._since, self._until, self._entry.uuid)
        return (step for step in steps if step.after.data_change)

    def _net_of_commits(self) -> Iterator[Changed]:
        """The net change by what each commit did, as compaction has moved rows in between."""
        columns = self._planner.key_columns

        def all_changes() -> Iterator[Changed]:
            for step in self._steps():
                files = self._planner.of_commit(step.before, step.after, columns)
                yield from (("delete", batch) for batch in files.deleted())
                yield from (("insert", batch) for batch in files.inserted())

        return matcher(columns, is_difference=True).match_mixed(all_changes())


def feed_schema(output: Iterable[Field]) -> pa.Schema:
    """The Arrow schema of a feed with these columns of the table."""
    return pa.schema([*(pa.field(f.name, f.arrow_type, f.nullable) for f in output), *FEED_FIELDS])


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

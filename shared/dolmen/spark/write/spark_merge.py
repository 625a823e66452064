"""MERGE: joins the rows of a DataFrame with those of a table, and changes the table in one commit.

Target rows that change are hidden and written again; all others stay in their files. The commit depends on the rows
that were read, so a commit that may have changed these makes the merge start again on the newest version.

SQL's MERGE (``sql.merge_statement``) is planned apart: its conditions are pieces of SQL over any source. How a clause
is chosen, the job and the changes are the same (``row_actions``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.api.table import Table
from dolmen.commit.context import context_of
from dolmen.errors import RowError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.rows.write.row_digest import content_digest
from dolmen.spark import checks
from dolmen.spark.origin import Reliance
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.spark_types import is_own, quote
from dolmen.spark.write.frame_columns import match_names
from dolmen.spark.write.frame_source import Source
from dolmen.spark.write.from_frame import bind_request, check_frame, delete, upsert
from dolmen.spark.write.join_plan import MergePlan
from dolmen.spark.write.key_tombstones import duplicate_key_error
from dolmen.spark.write.row_actions import apply_actions
from dolmen.transactions.merge.clauses import Clauses, WhenMatched, WhenNotMatched, WhenNotMatchedBySource
from dolmen.transactions.reading import key_fields
from dolmen.transactions.transaction import Transaction, replay, unit_of
from dolmen.transactions.unit_of_work import Commit


def merge(
    table: Table,
    frame: DataFrame,
    on: str | Sequence[str],
    when_matched: WhenMatched = "update",
    when_not_matched: WhenNotMatched = "insert",
    when_not_matched_by_source: WhenNotMatchedBySource = None,
    *,
    since: int | None = None,
    force: bool = False,
    request: str | None = None,
) -> Commit:
    """Updates, deletes and inserts rows of a table by those of a DataFrame, in one commit (SQL's MERGE).

    A row of the table (``target``) and one of the DataFrame (``source``) match when the columns ``on`` are equal in
    both; NULL equals nothing. The first clause whose condition is TRUE applies to a row. Expressions are Spark's SQL
    over ``target.<column>`` and ``source.<column>``.

    It reads the columns it needs, of rows whose keys are within the source's, and repeats itself when others delete
    rows of the table, or add rows that may match. ``on`` the primary key, with all columns updated and inserted, it is
    an ``upsert``, which reads nothing. A primary key is one row: where ``append`` has made several, the one that was
    committed last counts, and if it changes the others are deleted.

    Args:
        frame: evaluated once. It may have columns that the table lacks, for expressions.
        on: columns of both.
        when_matched: "update" gives the target row all values that the source has; a mapping of columns to expressions
            changes just these; "delete"; ``Update(values, when=...)`` and ``Delete(when=...)`` have conditions; a list
            of several; None leaves it.
        when_not_matched: for source rows without a target row: "insert", a mapping, ``Insert(values, when=...)``, a
            list, or None.
        when_not_matched_by_source: for target rows without a source row: "delete", a mapping, ``Update``, ``Delete``, a
            list, or None. Anything but None reads the whole table.
        since, force: as for ``upsert``: the source is evaluated once, and so can't be made again for a newer version.
        request: an id under which this is applied once, however often it is tried.

    Raises:
        InputError: several source rows match one target row; no clause; an expression that Spark refuses.
        SchemaError: columns or types do not match the table's, or an update sets a column of the primary key that is
            not among ``on``; raised before a task begins.
        RowError: a value does not fit; or ``on`` is the primary key, and has a NULL.
        DuplicateKeyError: a row that it inserts would have a primary key that another row has.
        ConflictError: others have added or deleted rows after the oldest version that the DataFrame reads of this
            table; or they changed what the merge itself read, a hundred times in a row.
        PySparkException: a task failed for a reason outside dolmen.
    """
    checks.table(table)
    check_frame(frame)
    reliance = Reliance.of(since, force)
    clauses = Clauses.of(when_matched, when_not_matched, when_not_matched_by_source)
    entry = context_of(table).segments.whole(context_of(table).head.refresh().manifest.table(table.name))
    fields, clauses = key_fields(entry, on), clauses.named_as(entry.schema)
    frame = match_names(frame, entry.schema)
    names = [field.name for field in fields]
    if missing := [name for name in names if name not in frame.columns]:
        raise SchemaError(f"the DataFrame has no column {missing[0]!r}, which the merge goes by")
    is_whole = set(frame.columns) == {field.name for field in entry.schema.fields}
    if clauses.is_upsert and is_whole and _is_primary(fields, entry):
        return upsert(table, frame, names, since=since, force=force, request=request)
    if clauses.is_delete:
        return delete(table, _without_nulls(frame, names), names, since=since, force=force, request=request)
    if own := [name for name in (*frame.columns, *(field.name for field in entry.schema.fields)) if is_own(name)]:
        raise SchemaError(
            f"column {own[0]!r}: merges have columns of that name themselves; rename it (withColumnRenamed)"
        )
    source = Source(frame, fields)
    try:
        merging = _Merging(table.name, frame, source, clauses, names, request, reliance)
        return replay(context_of(table), merging.run, "merge").commit
    finally:
        source.close()


@dataclass(frozen=True)
class _Merging:
    """A merge, to be run on one version or on several, one after the other."""

    table: str
    frame: DataFrame
    source: Source
    clauses: Clauses
    on: Sequence[str]
    request: str | None
    reliance: Reliance

    def run(self, transaction: Transaction) -> None:
        """Does everything but the commit."""
        entry = unit_of(transaction).entry(self.table)
        fields = key_fields(entry, self.on)
        plan = MergePlan(self.clauses, entry, fields, self.frame.columns)
        if not transaction.has_applied(self.request):
            plan.check(self.frame)
            self.reliance.add_to(transaction, self.table, self.frame)
        if bind_request(transaction, self.request, self._digest):
            return
        summary = self.source.summarize()
        if self.clauses.not_matched and _is_primary(fields, entry):
            if summary.nulls:
                raise RowError("NULL in the primary key: it equals nothing", column=self.on[0])
            if summary.repeated:
                raise duplicate_key_error(self.on)
        if summary.rows == 0 and not self.clauses.by_source:
            return
        where = None if self.clauses.by_source else summary.predicate(fields)
        target = to_spark(
            transaction.table(self.table),
            plan.needed(),
            where,
            with_commit_ts=plan.keeps_one,
            with_positions=True,
            spark=self.frame.sparkSession,
        )
        rows = plan.rows(target, self.source, summary)
        apply_actions(
            transaction,
            self.table,
            rows,
            plan.actions(),
            key=fields if self.clauses.takes_all_matched else (),
            once=summary.repeated and not self.clauses.deletes_only,
            new=self.clauses.may_insert_twice(entry, self.on),
            request=self.request,
        )

    def _digest(self) -> str:
        """The digest of the request's content: the source's rows, and the clauses."""
        sums = self.source.sums().content()
        return content_digest("merge", self.table, sorted(self.on), *self.clauses.content(), sums)


def _without_nulls(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The rows whose keys can match."""
    columns = [F.col(quote(name)) for name in names]
    return frame.select(*columns).where(reduce(Column.__and__, (column.isNotNull() for column in columns)))


def _is_primary(fields: Sequence[Field], entry: TableEntry) -> bool:
    return {field.id for field in fields} == set(entry.primary_key)

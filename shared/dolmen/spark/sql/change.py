"""The common parts of DELETE, UPDATE and MERGE: target, columns, claims of what is read, and the job that writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from dolmen.base.cached import cached_property
from dolmen.commit.statements.rows import DeletePositions, Write
from dolmen.errors import InputError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.predicate import Predicate
from dolmen.spark.merge.merge import add_written, positions_by_path
from dolmen.spark.merge.tasks import Action, MergeTask, matched_twice, write_merged
from dolmen.spark.origin import origins_read
from dolmen.spark.read.frame import to_spark
from dolmen.spark.sql.attachment import Attachment
from dolmen.spark.sql.statement import SqlStatement, Target
from dolmen.spark.sql.views import Views
from dolmen.spark.tasks import FILE, ROW
from dolmen.spark.types import is_own, quoted, spark_schema
from dolmen.spark.write.frame import begin_uploads, collect_keeping_alive, without_files
from dolmen.spark.write.reports import REPORT, Reported
from dolmen.transactions.transaction import Transaction

_PLAIN = {"Project", "Filter", "SubqueryAlias", "View", "Join"}
"""Nodes of a plan under which each row of the target stays one row."""


@dataclass(frozen=True)
class RowChange:
    """A change of rows on one version of a table.

    Args:
        table: its name in the database.
        views: of the statement.
        statement: read, with views in place of older versions.
    """

    transaction: Transaction
    attachment: Attachment
    table: str
    target: Target
    views: Views
    statement: SqlStatement
    case_sensitive: bool
    request: str | None

    @cached_property
    def entry(self) -> TableEntry:
        """The table's entry."""
        return self.transaction.entry(self.table)

    @cached_property
    def fields(self) -> list[Field]:
        """The columns that Spark has types for."""
        found = []
        for field in self.entry.schema.fields:
            try:
                spark_schema([field])
            except SchemaError:
                continue
            found.append(field)
        return found

    def field(self, name: str) -> Field:
        """The column of this name, by the session's case sensitivity. Raises SchemaError."""
        return find_field(self.entry.schema.fields, name, self.table, case_sensitive=self.case_sensitive)

    def empty(self) -> str:
        """A view of the target's columns without a row, for what is only analysed."""
        schema = spark_schema(self.fields).add(FILE, "string").add(ROW, "long")
        return self.views.make(self.views.spark.createDataFrame([], schema))

    def rows(self, where: Predicate | None, *, whole: bool) -> str:
        """A view of the target's rows with their positions. What is read is claimed.

        Args:
            where: TRUE for all rows that may change.
            whole: all columns are needed, as rows are written anew.

        Raises:
            SchemaError: a column that Spark does not have, or has for its own.
        """
        fields = self.entry.schema.fields if whole else self.fields
        columns = [field.name for field in fields if not is_own(field.name)]
        own = next((field.name for field in self.entry.schema.fields if is_own(field.name)), None)
        if whole and own is not None:
            raise SchemaError(f"column {own!r} has a name that rows' positions need: rename it")
        table = self.transaction.table(self.table)
        frame = to_spark(table, columns, where, with_positions=True, spark=self.views.spark)
        return self.views.make(frame)

    def from_target(self, view: str) -> str:
        """The view under the name by which expressions know the target."""
        return f"`{view}` AS {quoted(self.target.alias)}"

    def own(self, name: str) -> str:
        """A column of the target in SQL."""
        return f"{quoted(self.target.alias)}.{quoted(name)}"

    def select(self, shown: str, source: str, what: str, where: str | None = None) -> DataFrame:
        """Analyses a query of one of these, with the statement's WITH before it.

        Args:
            shown: expressions.
            source: what stands behind FROM.
            what: the piece of the user's SQL that it is made for.
            where: a condition.

        Raises:
            InputError: Spark refuses it.
        """
        lines = [self.statement.ctes, "SELECT", shown, "FROM", source]
        if where is not None:
            lines += ["WHERE (", where, ")"]
        return self.views.run("\n".join(lines), what)

    def check(self, analysed: DataFrame, what: str) -> None:
        """Claims the tables that a frame reads, and checks that it gives each row of the target once.

        Args:
            analysed: over ``empty``, so that the target itself is not among what it reads, unless in a subquery.

        Raises:
            InputError: an aggregate, a window or a generator.
        """
        node: Any = analysed._jdf.queryExecution().analyzed()
        kind = str(node.getClass().getSimpleName())
        while kind in ("WithCTE", "Project", "Filter"):
            node = node.plan() if kind == "WithCTE" else node.child()
            kind = str(node.getClass().getSimpleName())
        if kind not in _PLAIN:
            raise InputError(f"{what}: {kind.lower()}s are not for single rows: put them into a subquery")
        self.claim(analysed)

    def claim(self, frame: DataFrame) -> None:
        """Makes the commit valid only if the tables that a frame reads in the newest version have not changed."""
        current = self.attachment.origins()
        for origin in origins_read(frame):
            if origin in current:
                self.transaction.claim(current[origin], None)

    def write(self, rows: DataFrame, actions: Sequence[Action], *, once: bool, new: bool = False) -> None:
        """Runs the job, and adds what it did to the transaction.

        Args:
            rows: with their actions, positions and values.
            once: it is an error when one row of the target goes twice.
            new: rows that replace none must have primary keys that no other row has.

        Raises:
            DuplicateKeyError: one has not.
        """
        transaction, entry = self.transaction, self.entry
        url, txid = begin_uploads(transaction)
        encoded = msgspec.json.encode(without_files(entry))
        task = MergeTask(
            url, self.table, encoded, txid, (), tuple(actions), keys=False, positions=True, once=once, new=new
        )
        reported = Reported.of(collect_keeping_alive(transaction, rows.mapInArrow(write_merged(task), REPORT)))
        if once and reported.again:
            raise matched_twice()
        if reported.positions:
            positions = positions_by_path(transaction, entry, reported.positions)
            transaction.add(DeletePositions.of(self.table, entry.uuid, positions, self.request))
        if reported.files:
            files = tuple(reported.files)
            written = Write(self.table, entry.uuid, files, (), self.request, schema=entry.schema)
            add_written(transaction, entry, written, reported, new=new)


def find_field(fields: Sequence[Field], name: str, table: str, *, case_sensitive: bool) -> Field:
    """The column of a name, as Spark finds it. Raises SchemaError."""
    found = [
        field for field in fields if field.name == name or (not case_sensitive and field.name.lower() == name.lower())
    ]
    if len(found) != 1:
        there = ", ".join(field.name for field in fields)
        raise SchemaError(f"{'no' if not found else 'more than one'} column {name!r} in table {table!r}: {there}")
    return found[0]

"""Runs a statement of SQL: a query becomes a DataFrame of Spark's, any other one commit of dolmen's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dolmen.base import arguments
from dolmen.base.arguments import short_repr
from dolmen.commit.context import context_of
from dolmen.errors import InputError, SchemaError
from dolmen.format.schema import Field
from dolmen.rows.scan.plan import stored_schema_of
from dolmen.rows.write.row_digest import content_digest
from dolmen.spark import checks
from dolmen.spark.checks import is_remote
from dolmen.spark.read.to_frame import active_session
from dolmen.spark.sessions import write_remotely
from dolmen.spark.sql.attachment import VIEW, Args, Attachment, Attachments, Views, attachments_of
from dolmen.spark.sql.change_rows import RowChange, StoreCasts, delete_rows, find_field, update_rows
from dolmen.spark.sql.merge_statement import merge_matching
from dolmen.spark.sql.sql_tokens import with_versions
from dolmen.spark.sql.statement import (
    DeleteStatement,
    InsertStatement,
    MergeStatement,
    UpdateStatement,
    kind_of,
    read_statement,
)
from dolmen.spark.write.from_frame import append, bind_request, overwrite
from dolmen.transactions.transaction import Transaction, replay, unit_of
from dolmen.transactions.unit_of_work import Commit


def sql(
    query: str, args: Args = None, *, spark: SparkSession | None = None, request: str | None = None
) -> DataFrame | Commit:
    """Runs one statement over the tables that are attached to a session (``attach``).

    SELECT, or any other query, is Spark's own SQL over one version of each database; ``VERSION AS OF`` and ``TIMESTAMP
    AS OF`` after a table show another one. INSERT, DELETE, UPDATE and MERGE are one commit each. Spark evaluates their
    expressions, with the session's settings; a DELETE whose condition means the same to dolmen is three small PUTs.

    Args:
        args: values of the parameters ``:name`` or ``?``, as ``spark.sql`` takes them.
        spark: the session; the active one by default.
        request: an id under which a change is applied once, however often it is tried.

    Returns:
        The DataFrame of a query, or the ``Commit`` of a change.

    Raises:
        InputError: dolmen does not understand the statement, or Spark refuses it: the error names the piece of SQL.
        SchemaError, RowError: a column does not exist; a value does not fit.
        VersionNotFoundError, VersionExpiredError, TagNotFoundError: a version does not exist.
        ConflictError: INSERT OVERWRITE: others have changed the table. The other statements start again by themselves.
        PySparkException: Spark's own error, of a query or of an expression in a task.
    """
    text = arguments.text("query", query)
    session = checks.any_session(active_session() if spark is None else spark)
    if args is not None and not isinstance(args, (Mapping, list, tuple)):
        raise InputError(f"args={short_repr(args)}: give a mapping of names to values, or a list")
    attached = attachments_of(session)
    if not attached.all:
        raise InputError("no database is attached to this session: attach(spark, db) before")
    kind, target = kind_of(text)
    run = _Run(session, attached, text, args, request)
    if kind == "QUERY":
        if request is not None:
            raise InputError("request= is for statements that change a table: a query changes nothing")
        return run.query()
    return run.insert(target) if kind == "INSERT" else run.change(target, kind.lower())


class _Run:
    """One statement in one session."""

    def __init__(self, spark: SparkSession, attached: Attachments, text: str, args: Args, request: str | None) -> None:
        self._spark, self._attached, self._text = spark, attached, text
        self._args, self._request = args, request
        self._case_sensitive = str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"

    def query(self) -> DataFrame:
        with self._attached.lock, self._views() as views:
            self._refresh()
            text = self._with_versions(views)
            return self._spark.sql(text, self._args) if self._args else self._spark.sql(text)

    def insert(self, target: str) -> Commit:
        attachment, table = self._find(target)
        with self._attached.lock, self._views() as views:
            self._refresh()
            statement = read_statement(self._with_versions(views))
            does = statement.does
            assert isinstance(does, InsertStatement)
            frame = views.run(f"{statement.ctes}\n{does.query}", does.query)
        frame = self._for_table(frame, stored_schema_of(attachment.database.table(table)).fields, table, does)
        if is_remote(self._spark):
            database, overwrites = attachment.database, does.overwrites
            since = database.version if overwrites else None  # the version that the views show
            return write_remotely(context_of(database), table, frame, self._request, overwrites=overwrites, since=since)
        write = overwrite if does.overwrites else append
        return write(attachment.database.table(table), frame, request=self._request)

    def change(self, target: str, operation: str) -> Commit:
        attachment, table = self._find(target)
        if is_remote(self._spark):
            raise InputError(
                "DELETE, UPDATE and MERGE need a session of this process's own JVM, and this is one of Spark Connect: "
                "use table.delete, table.update or table.merge, which need no Spark"
            )
        context = context_of(attachment.database)
        return replay(context, lambda transaction: self._change(transaction, attachment, table), operation).commit

    def _change(self, transaction: Transaction, attachment: Attachment, table: str) -> None:
        if bind_request(transaction, self._request, self._digest):
            return
        with self._attached.lock, self._views() as views:
            self._refresh(attachment)
            attachment.show(unit_of(transaction).base)
            statement = read_statement(self._with_versions(views))
            does = statement.does
            assert isinstance(does, (DeleteStatement, UpdateStatement, MergeStatement))
            if does.target.name.startswith(VIEW):
                raise InputError("an older version can't be changed: leave out VERSION AS OF, or restore it")
            change = RowChange(
                transaction, attachment, table, does.target, views, statement, self._case_sensitive, self._request
            )
            if isinstance(does, DeleteStatement):
                delete_rows(change, does)
            elif isinstance(does, UpdateStatement):
                update_rows(change, does)
            else:
                merge_matching(change, does)

    def _for_table(self, frame: DataFrame, fields: Sequence[Field], table: str, does: InsertStatement) -> DataFrame:
        """The rows of an INSERT under the names of the table's columns, and in their types."""
        if does.by_name:
            names = list(frame.columns)
        else:
            names = [field.name for field in fields] if does.columns is None else list(does.columns)
            if len(names) != len(frame.columns):
                raise SchemaError(
                    f"table {table!r}: {len(frame.columns)} values for {len(names)} columns: {', '.join(names)}"
                )
        found = [find_field(fields, name, table, case_sensitive=self._case_sensitive) for name in names]
        if repeated := [field.name for field in found if found.count(field) > 1]:
            raise SchemaError(f"INSERT names column {repeated[0]!r} twice")
        own = [f"__value_{index}" for index in range(len(found))]
        numbered, casts = frame.toDF(*own), StoreCasts(self._spark)
        columns = zip(own, found, strict=True)
        return numbered.select(
            *(casts.column(numbered, name, field, "INSERT").alias(field.name) for name, field in columns)
        )

    def _find(self, target: str) -> tuple[Attachment, str]:
        """The table that a statement changes. Raises InputError."""
        for _ in range(2):  # the table may be new
            if found := self._attached.find(target, case_sensitive=self._case_sensitive):
                return found
            self._refresh()
        raise InputError(f"{short_repr(target)} is no table of a database that is attached to this session")

    def _refresh(self, but: Attachment | None = None) -> None:
        for attachment in self._attached.all:
            if attachment is not but:
                attachment.refresh()

    def _views(self) -> Views:
        return Views(self._spark, self._args)

    def _with_versions(self, views: Views) -> str:
        return with_versions(self._text, self._attached, views, case_sensitive=self._case_sensitive)

    def _digest(self) -> str:
        """The digest of the request's content: the statement's text and its parameters."""
        if isinstance(self._args, Mapping):
            given: list[Any] = [[name, repr(value)] for name, value in sorted(self._args.items())]
        else:
            given = [repr(value) for value in self._args or ()]
        return content_digest("sql", self._text, given)

"""Runs a statement of SQL: a query becomes a DataFrame of Spark's, any other one commit of dolmen's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from dolmen.base import arguments
from dolmen.commit.head import context_of
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.schema import Field
from dolmen.rows.scan.plan import stored_schema_of
from dolmen.rows.write.row_digest import content_digest
from dolmen.spark.frame_types import quote
from dolmen.spark.sessions import active_session, check_any_session
from dolmen.spark.sql.attachment import VIEW, Args, Attachment, Attachments, CatalogAttachment, Views, attachments_of
from dolmen.spark.sql.catalog.catalog import Catalog
from dolmen.spark.sql.catalog.table_relations import table_frame
from dolmen.spark.sql.dml import RowChange, cast_values, delete_rows, find_field, merge_rows, update_rows
from dolmen.spark.tasks import is_remote
from dolmen.spark.write.from_frame import UnchangedSince, append, bind_request, overwrite, write_remotely
from dolmen.sql.statements import (
    DeleteStatement,
    InsertStatement,
    MergeStatement,
    UpdateStatement,
    kind_of,
    read_statement,
)
from dolmen.sql.tokens import SPARK, SqlReader, Token, replace_spans, tokenize
from dolmen.transactions.snapshot import Snapshot
from dolmen.transactions.transaction import Transaction, replay, unit_of
from dolmen.transactions.unit_of_work import Commit

_VERSION, _TIME = ("VERSION", "SYSTEM_VERSION"), ("TIMESTAMP", "SYSTEM_TIME")
_OPERATORS = {"+", "-", "*", "/", "%", "||", "|", "&", "^", "::", ".", "[", "(", "AT"}
_NO_ALIAS = {
    "ANTI", "CLUSTER", "CROSS", "DISTRIBUTE", "EXCEPT", "FULL", "GROUP", "HAVING", "INNER", "INTERSECT", "JOIN",
    "LATERAL", "LEFT", "LIMIT", "MINUS", "NATURAL", "OFFSET", "ON", "ORDER", "PIVOT", "RIGHT", "SELECT", "SEMI", "SET",
    "SORT", "TABLESAMPLE", "UNION", "UNPIVOT", "USING", "WHEN", "WHERE", "WINDOW",
}  # fmt: skip
_BEFORE_TABLE = ("FROM", "INTO", "JOIN", "OVERWRITE", "TABLE", "UPDATE", "USING")


def sql(
    query: str, args: Args = None, *, spark: SparkSession | None = None, request: str | None = None
) -> DataFrame | Commit:
    """Runs one statement over the tables that are attached to a session (``attach``).

    SELECT, or any other query, is Spark's own SQL over one version of each database; ``VERSION AS OF`` and ``TIMESTAMP
    AS OF`` after a table show another one. INSERT, DELETE, UPDATE and MERGE are one commit each. Spark evaluates their
    expressions, with the session's settings; a DELETE whose condition means the same to dolmen is three small PUTs.

    Args:
        args: values of the parameters ``:name`` or ``?``, as ``spark.sql`` takes them.
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
    session = check_any_session(active_session(spark))
    if args is not None and not isinstance(args, (Mapping, list, tuple)):
        raise InputError(f"args={short_repr(args)}: give a mapping of names to values, or a list")
    attached = attachments_of(session)
    if not attached.all:
        raise InputError("no database is attached to this session: call attach(spark, db) first")
    case_sensitive = str(session.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    catalogs = [each for each in attached.all if isinstance(each, CatalogAttachment)]
    if catalogs and text.split(maxsplit=1)[:1] in (["CALL"], ["call"]):
        return session.sql(text, args) if args else session.sql(text)
    with_views = _with_views(session, text, catalogs, case_sensitive=case_sensitive) if catalogs else text
    kind, target = kind_of(with_views)
    run = _Run(session, attached, text if kind == "QUERY" else with_views, args, request, case_sensitive)
    if kind == "QUERY":
        if request is not None:
            raise InputError("request= is for statements that change a table: a query changes nothing")
        return run.query()
    return run.insert(target) if kind == "INSERT" else run.change(target, kind.lower())


class _Run:
    def __init__(
        self,
        spark: SparkSession,
        attached: Attachments,
        text: str,
        args: Args,
        request: str | None,
        case_sensitive: bool,
    ) -> None:
        self._spark, self._attached, self._text = spark, attached, text
        self._args, self._request, self._case_sensitive = args, request, case_sensitive

    def query(self) -> DataFrame:
        with self._attached.lock, Views(self._spark, self._args) as views:
            self._refresh()
            text = self._with_versions(views)
            return self._spark.sql(text, self._args) if self._args else self._spark.sql(text)

    def insert(self, target: str) -> Commit:
        attachment, table = self._find(target)
        with self._attached.lock, Views(self._spark, self._args) as views:
            self._refresh()
            statement = read_statement(self._with_versions(views))
            does = statement.change
            assert isinstance(does, InsertStatement)
            frame = views.run(f"{statement.ctes}\n{does.query}", does.query)
        target_table = attachment.database.table(table)
        frame = self._for_table(frame, stored_schema_of(target_table).fields, table, does)
        if is_remote(self._spark):
            # An overwrite depends on the version that the views show.
            shown = UnchangedSince(attachment.database.version, force=False) if does.overwrites else None
            return write_remotely(target_table, frame, self._request, overwrites=shown)
        write = overwrite if does.overwrites else append
        return write(target_table, frame, request=self._request)

    def change(self, target: str, operation: str) -> Commit:
        attachment, table = self._find(target)
        if is_remote(self._spark):
            raise InputError(
                "DELETE, UPDATE and MERGE need a session of this process's own JVM, and this is one of Spark Connect: "
                "use table.delete, table.update or table.merge, which need no Spark"
            )
        context = context_of(attachment.database)
        return replay(context, lambda transaction: self._change(transaction, attachment, table), operation)[1]

    def _change(self, transaction: Transaction, attachment: Attachment, table: str) -> None:
        if bind_request(transaction, self._request, self._digest):
            return
        with self._attached.lock, Views(self._spark, self._args) as views:
            self._refresh(attachment)
            attachment.show(unit_of(transaction).base)
            statement = read_statement(self._with_versions(views))
            does = statement.change
            assert isinstance(does, DeleteStatement | UpdateStatement | MergeStatement)
            if does.target.name.startswith(VIEW):
                raise InputError("an older version can't be changed: leave out VERSION AS OF, or restore it")
            case_sensitive, request = self._case_sensitive, self._request
            change = RowChange(
                transaction, attachment, table, does.target, views, statement.ctes, case_sensitive, request
            )
            match does:
                case DeleteStatement():
                    delete_rows(change, does)
                case UpdateStatement():
                    update_rows(change, does)
                case MergeStatement():
                    merge_rows(change, does)

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
        numbered = frame.toDF(*(f"__value_{index}" for index in range(len(found))))
        values = cast_values(self._spark, numbered, [(field, "INSERT") for field in found])
        return numbered.select(*(value.alias(field.name) for value, field in zip(values, found, strict=True)))

    def _find(self, target: str) -> tuple[Attachment, str]:
        for _ in range(2):  # the table may be new
            if found := self._attached.find(target, case_sensitive=self._case_sensitive):
                return found
            self._refresh()
        names = [f"{each.catalog}.{target}" for each in self._attached.all if isinstance(each, CatalogAttachment)]
        also = f": write {' or '.join(names)}" if names else ""
        raise InputError(f"{short_repr(target)} is not a table of a database that is attached to this session{also}")

    def _refresh(self, but: Attachment | None = None) -> None:
        for attachment in self._attached.all:
            if attachment is not but:
                attachment.refresh()

    def _with_versions(self, views: Views) -> str:
        return with_versions(self._text, self._attached, views, case_sensitive=self._case_sensitive)

    def _digest(self) -> str:
        """The digest of the request's content: the statement's text and its parameters."""
        if isinstance(self._args, Mapping):
            values: list[Any] = [[name, repr(value)] for name, value in sorted(self._args.items())]
        else:
            values = [repr(value) for value in self._args or ()]
        return content_digest("sql", self._text, values)


def _with_views(spark: SparkSession, sql: str, catalogs: Sequence[CatalogAttachment], *, case_sensitive: bool) -> str:
    """The text of a change with views in place of tables of catalogs: ``dolmen.events`` becomes a view's name.

    So does ``events`` after ``USE dolmen``, where a table's name is expected.
    """
    tokens, replaced = tokenize(sql, SPARK), list[tuple[int, int, str]]()
    by_name = {each.catalog if case_sensitive else each.catalog.lower(): each for each in catalogs}
    in_use = "" if is_remote(spark) else str(spark.catalog.currentCatalog())
    current = by_name.get(in_use if case_sensitive else in_use.lower())
    for index, token in enumerate(tokens):
        name = (token.name or "") if case_sensitive else (token.name or "").lower()
        before = tokens[index - 1].text if index else ""
        if before == ".":
            continue
        if (
            name in by_name
            and [each.text for each in tokens[index + 1 : index + 2]] == ["."]
            and index + 2 < len(tokens)
        ):
            attachment, table, end = by_name[name], tokens[index + 2], index + 3
        elif current is not None and _names_table(spark, current, tokens, index):
            attachment, table, end = current, token, index + 1
        else:
            continue
        if table.name is None:
            continue
        following = tokens[end] if end < len(tokens) else None
        if not attachment.has_views:
            attachment.has_views = True
            attachment.refresh()
        if following is not None and following.text == ".":  # a column's
            text = quote(table.name)
        else:
            has_alias = following is not None and following.name is not None and following.upper not in _NO_ALIAS
            is_insert = before.upper() in ("INTO", "OVERWRITE", "TABLE") and "INSERT" in (
                each.upper for each in tokens[max(0, index - 3) : index]
            )
            alias = "" if is_insert or has_alias else f" AS {quote(table.name)}"
            text = quote(attachment.view(table.name.lower())) + alias
        replaced.append((token.start, table.end, text))
    return replace_spans(sql, replaced)


def _names_table(spark: SparkSession, current: CatalogAttachment, tokens: Sequence[Token], index: int) -> bool:
    """Whether a token is the name of a table of the current catalog, without the catalog's own."""
    name, before = tokens[index].name, [each.upper for each in tokens[max(0, index - 2) : index]]
    if name is None or before[-1:] not in [[word] for word in _BEFORE_TABLE] or before == ["DISTINCT", "FROM"]:
        return False
    if index + 1 < len(tokens) and tokens[index + 1].text in (".", "("):
        return False
    if _find_cte(tokens, name) is not None:
        return False
    is_view = spark._jsparkSession.sessionState().catalog().getTempView(name).isDefined()
    return not is_view and name.lower() in current.database.tables()


def with_versions(sql: str, attached: Attachments, views: Views, *, case_sensitive: bool) -> str:
    """The text with views in place of tables that have a version. Raises InputError, NotFoundError."""
    tokens = tokenize(sql, SPARK)
    reader = SqlReader(sql, tokens)
    replaced: list[tuple[int, int, str]] = []  # first character, end, and the new text
    before = ""
    while not reader.is_done:
        token, is_part = reader.next(), before.endswith(".")
        before = token.text
        if token.name is None or is_part or not _names_version(reader):
            continue
        found = attached.find(token.name, case_sensitive=case_sensitive)
        if found is None:
            continue
        _check_no_cte(sql, tokens, token.name)
        attachment, table = found
        reader.take("FOR")
        by_version = reader.next().upper in _VERSION
        reader.expect("AS", "OF")
        first = reader.peek()
        snapshot = _at_version(reader, attachment) if by_version else _at_time(reader, attachment, views)
        if reader.peek() is first:
            raise reader.error("a version is expected")
        following = reader.peek()
        if not by_version and following is not None and following.upper in _OPERATORS:
            raise reader.error("put the time in parentheses")
        has_alias = following is not None and following.name is not None and following.upper not in _NO_ALIAS
        view = views.make(table_frame(views.spark, snapshot.table(table)))
        alias = "" if has_alias else f" AS {quote(token.name)}"
        before = reader.since(first)
        assert first is not None
        replaced.append((token.start, first.start + len(before), f"`{view}`{alias}"))
    return replace_spans(sql, replaced)


def _names_version(reader: SqlReader) -> bool:
    """Whether the next tokens name a version, and not a column as in ``SELECT version AS of``."""
    ahead = 1 if reader.word() == "FOR" else 0
    if reader.word(ahead) not in _VERSION + _TIME or (reader.word(ahead + 1), reader.word(ahead + 2)) != ("AS", "OF"):
        return False
    value = reader.peek(ahead + 3)
    return value is not None and value.upper not in {",", ")", ";", "FROM"}


def _at_version(reader: SqlReader, attachment: Attachment) -> Snapshot:
    token = reader.next()
    text = token.text
    if text == ":":
        name = reader.name()
        raise reader.error(f"VERSION AS OF :{name}: write the number or the tag itself, Spark takes no parameter there")
    if token.kind == "number" and text.isdecimal():
        return attachment.database.at(version=int(text))
    if token.kind != "text" or text[0] not in "'\"" or "\\" in text:
        raise reader.error("VERSION AS OF takes a number, or a tag in quotes")
    text = text[1:-1].replace(text[0] * 2, text[0])
    if not text.isdecimal():
        return attachment.database.at(tag=text)
    if text in attachment.database.tags():
        raise reader.error(f"{text!r} is a tag, and may be a version: write the number without quotes, or another tag")
    return attachment.database.at(version=int(text))


def _at_time(reader: SqlReader, attachment: Attachment, views: Views) -> Snapshot:
    """The version at a time that Spark evaluates, in the session's zone: a text, a call, or what is in parentheses."""
    first = reader.peek()
    _go_past_time(reader)
    while reader.word() in ("+", "-") and reader.word(1) == "INTERVAL":
        for _ in range(4):  # the sign, INTERVAL, number and unit
            reader.next()
    text = reader.since(first)
    args = views.args if isinstance(views.args, Mapping) else None  # a list does not say which
    if args is None and "?" in text:
        raise reader.error("a time takes only named parameters (:name)")
    query = f"SELECT unix_micros(CAST((\n{text}\n) AS TIMESTAMP)) AS at"
    row: Row | None = Views(views.spark, args).run(query, text).first()
    if row is None or row["at"] is None:
        raise InputError(f"TIMESTAMP AS OF {short_repr(text)} is not a time")
    return attachment.database.at(timestamp=int(row["at"]))


def _go_past_time(reader: SqlReader) -> None:
    if reader.take(":"):
        reader.name()
        return
    if reader.word() != "(":
        token, following = reader.next(), reader.peek()
        is_literal = following is not None and following.kind == "text"
        if token.kind == "text":
            return
        if token.upper in ("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "DATE") and is_literal:
            reader.next()
            return
        if token.kind != "word" or reader.word() != "(":
            if token.upper not in ("CURRENT_TIMESTAMP", "CURRENT_DATE"):
                raise reader.error("TIMESTAMP AS OF takes a text, a function, or an expression in parentheses")
            return
    reader.group()


def _check_no_cte(sql: str, tokens: list[Token], name: str) -> None:
    """Raises InputError if a WITH may give this name to one of its queries."""
    if found := _find_cte(tokens, name):
        raise InputError(f"{short_repr(sql[found.start :])}: WITH takes the name of a table; take another one")


def _find_cte(tokens: Sequence[Token], name: str) -> Token | None:
    """The place where a WITH may give this name to one of its queries."""
    for token, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_same = token.name is not None and token.name.lower() == name.lower()
        if is_same and second.upper == "AS" and third.text == "(":
            return token
    return None


Catalog.run_statement = staticmethod(sql)

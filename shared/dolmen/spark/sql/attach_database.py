"""Attaches a database to a session, as views of its tables or as a catalog, and detaches it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.commit.head import context_of
from dolmen.errors import InputError, TableNotFoundError, short_repr
from dolmen.spark.frame_types import items
from dolmen.spark.sessions import check_any_session, check_database, check_session
from dolmen.spark.sql.attachment import Attachment, CatalogAttachment, attachments_of
from dolmen.spark.sql.catalog.catalog import install, uninstall
from dolmen.spark.sql.catalog.jvm_objects import add_table_function
from dolmen.spark.sql.catalog.table_relations import table_frame
from dolmen.spark.tasks import is_remote
from dolmen.store import portable_url
from dolmen.transactions.readable_table import ReadableTable

_PREFIX = re.compile(r"[A-Za-z0-9_]{0,64}")
_CATALOG = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def _view_frame(spark: SparkSession, table: ReadableTable) -> DataFrame:
    return table_frame(spark, table, follows=True)


def attach(
    spark: SparkSession,
    database: Database,
    prefix: str = "",
    *,
    tables: str | Iterable[str] | None = None,
    catalog: str | None = None,
) -> Attachment:
    """Makes a temporary view of each table of a database, for SQL; or makes the database a catalog of the session.

    ``dolmen.spark.sql`` makes the views show the newest version before each statement. In ``spark.sql`` itself, a view
    shows the version of the last refresh, or of a later commit by ``database`` in this process: call ``refresh()`` to
    see those of others. A catalog always shows the newest version.

    Args:
        prefix: begins the names of the views, if several databases are attached, or Spark has tables of these names.
        tables: the tables to show; by default all, also those that are created later.
        catalog: the catalog's name, in place of views: ``spark.sql("SELECT * FROM dolmen.events")``.

    Raises:
        InputError: Spark has a table, view or catalog of such a name; or the database is already attached with this
            prefix.
        TableNotFoundError: a table does not exist.
    """
    check_any_session(spark)
    check_database(database)
    if catalog is not None:
        if prefix or tables is not None:
            raise InputError("catalog= shows all tables under their own names: leave out prefix= and tables=")
        return _attach_catalog(spark, database, catalog)
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InputError(f"prefix={short_repr(prefix)}: up to 64 letters, digits and _")
    names = None if tables is None else arguments.names("tables", tables)
    attached = attachments_of(spark)
    with attached.lock:
        if any(each.prefix == prefix and each.database.url == database.url for each in attached.all):
            raise InputError(f"{database.url} is attached to this session with prefix {prefix!r}: detach() it first")
        attachment = Attachment(spark, database, prefix, names, _view_frame)
        try:
            attachment.refresh()
            if missing := sorted(set(names or ()).difference(database.tables())):
                raise TableNotFoundError(f"no table {missing[0]!r} in version {database.version}")
        except BaseException:
            attachment.detach()
            raise
        attached.all.append(attachment)
        if not is_remote(spark):
            _add_table_changes(spark)
    return attachment


def detach(spark: SparkSession, database: Database | None = None) -> None:
    """Drops the views or the catalog of a database, or of all that are attached to a session."""
    for each in list(attachments_of(check_any_session(spark)).all):
        if database is None or each.database.url == database.url:
            each.detach()


def _attach_catalog(spark: SparkSession, database: Database, catalog: str) -> Attachment:
    if not isinstance(catalog, str) or not _CATALOG.fullmatch(catalog):
        raise InputError(
            f"catalog={short_repr(catalog)}: up to 64 letters, digits and _, of which the first is a letter"
        )
    install(check_session(spark), database, catalog)
    return add_catalog(spark, database, catalog)


def add_catalog(spark: SparkSession, database: Database, catalog: str) -> Attachment:
    """Makes the tables of a session's catalog known to ``table_changes`` and ``dolmen.spark.sql``."""
    _add_table_changes(spark)
    attachment = CatalogAttachment(spark, database, catalog, _view_frame, uninstall)
    attachments_of(spark).all.append(attachment)
    return attachment


def _add_table_changes(spark: SparkSession) -> None:
    """Makes ``table_changes('events', 3, 7)`` a function of a session: the change feed, both versions included."""

    def changes(expressions: Any) -> Any:
        values = [each.eval(None) if each.foldable() else None for each in items(expressions)]
        plain = [value if value is None or isinstance(value, int) else value.toString() for value in values]
        if not 2 <= len(plain) <= 3 or None in plain or not isinstance(plain[0], str):
            raise InputError("table_changes takes a table's name, and the first and perhaps the last version, or times")
        attachment, table = _find_table(spark, plain[0])
        first, *last = plain[1:]
        options = {"table": table, "changes": "true", "since": str(first - 1 if isinstance(first, int) else first)}
        if last:
            options["until"] = str(last[0])
        frame = spark.read.format("dolmen").options(**options).load(portable_url(context_of(attachment.database).store))
        return frame._jdf.queryExecution().analyzed()

    add_table_function(spark, "table_changes", changes)


def _find_table(spark: SparkSession, name: str) -> tuple[Attachment, str]:
    attached = attachments_of(spark)
    catalog, _, table = name.rpartition(".")
    for each in attached.all:
        if isinstance(each, CatalogAttachment) and each.catalog.lower() == catalog.lower():
            return each, table.lower()
    if found := attached.find(name, case_sensitive=False):
        return found
    raise InputError(f"table_changes: {short_repr(name)} is not a table of a database that is attached to this session")

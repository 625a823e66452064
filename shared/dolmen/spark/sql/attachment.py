"""Shows the tables of a database as temporary views of a Spark session, and makes views for single statements."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import RLock
from typing import Any, TypeAlias

from msgspec import Struct
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from dolmen.api.database import Database
from dolmen.commit.head import context_of
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.spark.frame_types import Origin, origins_of, quote
from dolmen.spark.tasks import is_remote, raising_dolmen_errors, reason_of
from dolmen.transactions.readable_table import ReadableTable
from dolmen.transactions.snapshot import Snapshot

_log = logging.getLogger("dolmen")


FrameOf: TypeAlias = Callable[[SparkSession, ReadableTable], DataFrame]


@dataclass
class Attachments:
    """The databases of one session. Views are made and statements analysed under its lock: each sees one version."""

    lock: RLock = field(default_factory=RLock)
    all: list[Attachment] = field(default_factory=list)

    def find(self, view: str, *, case_sensitive: bool) -> tuple[Attachment, str] | None:
        for attachment in self.all:
            for table in attachment.tables():
                if is_same_name(attachment.view(table), view, case_sensitive=case_sensitive):
                    return attachment, table
        return None


def is_same_name(one: str, other: str, *, case_sensitive: bool) -> bool:
    return one == other or (not case_sensitive and one.lower() == other.lower())


ATTACHED: dict[str, Attachments] = {}
"""By the id of the session, as long as the process runs."""


def session_id(spark: SparkSession) -> str:
    return str(spark.session_id if is_remote(spark) else spark._jsparkSession.sessionUUID())


def attachments_of(spark: SparkSession) -> Attachments:
    return ATTACHED.setdefault(session_id(spark), Attachments())


class _ShownTable(Struct, frozen=True):
    """The content of a view: a table's entry, in a version. Without an origin there is no view: Spark lacks a type."""

    entry: TableEntry
    origin: Origin | None


class Attachment:
    """The views of a database's tables in a session; see ``attach``. ``frame_of`` makes the frame of a view."""

    def __init__(
        self, spark: SparkSession, database: Database, prefix: str, tables: Sequence[str] | None, frame_of: FrameOf
    ) -> None:
        self.spark, self.database, self.prefix, self._frame_of = spark, database, prefix, frame_of
        self._selected = None if tables is None else frozenset(tables)
        self._shown_tables: dict[str, _ShownTable] = {}
        self._is_attached = True

    def tables(self) -> list[str]:
        return sorted(self.origins().values())

    def view(self, table: str) -> str:
        return self.prefix + table

    def origins(self) -> dict[Origin, str]:
        """The names of the tables, by the versions that their views show."""
        return {shown.origin: table for table, shown in self._shown_tables.items() if shown.origin is not None}

    def refresh(self) -> int:
        """Makes the views show the newest version, and returns it. Views of unchanged tables stay as they are.

        Sends one GET, and another one if there is a newer version.

        Raises:
            InputError: Spark has a table or view with the name of a new table; or the attachment was detached.
        """
        with attachments_of(self.spark).lock:
            if not self._is_attached:
                raise InputError("this attachment was detached: attach(spark, db) makes another")
            manifest = context_of(self.database).head.refresh().manifest
            self.show(manifest)
        return manifest.version

    def show(self, manifest: Manifest) -> None:
        """Makes the views show a version, under the session's lock."""
        snapshot = Snapshot(context_of(self.database), manifest)
        names = [name for name in snapshot.tables() if self._selected is None or name in self._selected]
        for name in [name for name in self._shown_tables if name not in names]:
            self._drop(name)
        for name in names:
            shown = self._shown_tables.get(name)
            is_same = shown is not None and shown.entry == manifest.tables[name]
            has_expired = shown is not None and shown.origin is not None and shown.origin.version < manifest.horizon
            if not is_same or has_expired:
                self._make(name, manifest.tables[name], snapshot)

    def detach(self) -> None:
        """Drops the views. Frames that were made of them stay. Calling this twice does no harm."""
        attachments = attachments_of(self.spark)
        with attachments.lock:
            for name in self.tables():
                self._drop(name)
            attachments.all = [each for each in attachments.all if each is not self]
            self._is_attached = False

    def _make(self, name: str, entry: TableEntry, snapshot: Snapshot) -> None:
        view = self.view(name)
        if not self._has_own_view(name):
            raise InputError(f"the view {view!r} no longer shows table {name!r}: drop it, and attach again")
        if name not in self._shown_tables and self.spark.catalog.tableExists(quote(view)):
            raise InputError(f"Spark has a table or view {view!r} already: attach with another prefix=, or drop it")
        try:
            frame = self._frame_of(self.spark, snapshot.table(name))
        except SchemaError as error:  # Spark lacks the type of a column
            self._drop(name)
            self._shown_tables[name] = _ShownTable(entry, None)
            _log.warning("table %s has no view: %s", name, error)
            return
        frame.createOrReplaceTempView(quote(view))
        self._shown_tables[name] = _ShownTable(entry, Origin(entry.uuid, snapshot.version))

    def _has_own_view(self, name: str) -> bool:
        """True unless another program has replaced the table's view since it was made here."""
        shown = self._shown_tables.get(name)
        if shown is None or shown.origin is None:
            return True
        try:
            return origins_of(self.spark.table(quote(self.view(name))).schema) == {shown.origin}
        except AnalysisException:  # it was dropped
            return True

    def _drop(self, name: str) -> None:
        if name in self.tables() and self._has_own_view(name):
            self.spark.catalog.dropTempView(self.view(name))
        self._shown_tables.pop(name, None)

    def __repr__(self) -> str:
        views = ", ".join(self.view(name) for name in self.tables()) or "no tables"
        return f"<Attachment of {self.database.url}: {views}>"


class CatalogAttachment(Attachment):
    """A database that is a catalog of a session. It has views only for the statements that Spark does not run itself,
    from the first of them on."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        catalog: str,
        frame_of: FrameOf,
        uninstall: Callable[[SparkSession, str], None],
    ) -> None:
        super().__init__(spark, database, f"__catalog_{catalog}_", None, frame_of)
        self.catalog, self._uninstall = catalog, uninstall
        self.has_views = False

    def show(self, manifest: Manifest) -> None:
        """Makes the views show a version, if there are views."""
        if self.has_views:
            super().show(manifest)

    def detach(self) -> None:
        """Takes the catalog out of the session, and drops the views."""
        if self._is_attached:
            self._uninstall(self.spark, self.catalog)
        super().detach()

    def __repr__(self) -> str:
        return f"<Attachment of {self.database.url}: catalog {self.catalog}>"


Args: TypeAlias = Mapping[str, Any] | Sequence[Any] | None
"""The values of a statement's parameters, as ``spark.sql`` takes them."""
VIEW = "__dolmen_view_"  # begins the names of the views of statements
_numbers = count()


class Views:
    """Makes views, runs SQL over them with ``args`` as parameters, and drops them at the end of the block."""

    def __init__(self, spark: SparkSession, args: Args) -> None:
        self.spark, self.args = spark, args
        self._names: list[str] = []

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *_: object) -> None:
        if is_remote(self.spark):  # it analyses a frame when it is used: views stay as long as the session
            return
        for name in self._names:
            self.spark.catalog.dropTempView(name)

    def make(self, frame: DataFrame) -> str:
        name = f"{VIEW}{next(_numbers)}"
        frame.createOrReplaceTempView(name)
        self._names.append(name)
        return name

    def run(self, sql: str, what: str) -> DataFrame:
        """Analyses a query that was made for a piece of the user's SQL. Raises InputError: Spark refuses it."""
        try:
            with raising_dolmen_errors():
                return self.spark.sql(sql, self.args) if self.args else self.spark.sql(sql)
        except (AnalysisException, ParseException) as error:
            raise InputError(f"Spark refuses {short_repr(what)}: {reason_of(error)}") from error

"""Databases: open one, find its tables, and commit to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from dolmen.api.cursor import ChangeCursor, open_cursor
from dolmen.api.maintenance import MaintainableDatabase
from dolmen.api.table import ErasureResult, Table
from dolmen.base import arguments
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.commit.change import About, Metadata, Note, read_about, request_ids_by_version, with_full_signatures
from dolmen.commit.head import Context, Head
from dolmen.commit.versions import commits
from dolmen.errors import InputError, short_repr
from dolmen.format.properties import DATABASE_PROPERTIES, effective_values
from dolmen.store import open_store, portable_url
from dolmen.store.base import ObjectStore
from dolmen.store.cache import CacheMemory
from dolmen.transactions.erase import ListedErasure, listed_erasure, listed_erasures
from dolmen.transactions.row_arguments import NewColumns
from dolmen.transactions.snapshot import Moment, Snapshot, TaggedVersion, drop_tag, pin, put_tag, restore_tables
from dolmen.transactions.transaction import CatalogVerbs, Transaction, replay
from dolmen.transactions.unit_of_work import Commit, UnitOfWork

if TYPE_CHECKING:  # imported only when needed
    from dolmen.adopt.adoption import Adoption, AdoptionProgress
    from dolmen.maintenance.verify.findings import Progress, VerifyReport
    from dolmen.rows.scan.engines.sql import AllowedFiles, Parameters, SqlResult

T = TypeVar("T")


def open(
    url: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    cache_bytes: int | None = None,
    runtime: Runtime | None = None,
    trust_clock: bool = False,
) -> Database:
    """Opens a database: sends no request before its first use, and creates nothing before the first commit.

    Args:
        url: ``s3://bucket/prefix``, a path or ``file:///path``, or ``memory://name``. S3 takes endpoint, region and
            credentials from the ordinary AWS configuration.
        storage_options: for S3, settings of this handle instead: ``aws_access_key_id``, ``aws_secret_access_key``,
            ``aws_session_token``, ``aws_region``, ``aws_endpoint_url``, ``aws_profile``. They are never stored, shown
            or handed to another process.
        cache_bytes: the most memory for cached objects, for all databases of the process; 0 caches nothing. By default
            it stays as it is: initially ``DOLMEN_CACHE_MEMORY``, or 256 MB, or a tenth of a Lambda function's memory.
        runtime: clock, randomness, sleep and threads, for tests.
        trust_clock: accept a store's clock that is a day away from all other clocks.

    Examples:
        >>> dolmen.open("memory://new").tables()
        []
    """
    runtime = runtime or shared_runtime()
    store = open_store(url, runtime, storage_options)
    if cache_bytes is not None:
        CacheMemory.of_runtime(runtime).resize(arguments.number("cache_bytes", cache_bytes, 0))
    return Database(store, runtime, trust_clock=trust_clock)


def verify(
    url: str,
    *,
    version: int | None = None,
    deep: bool = False,
    all_versions: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, str] | None = None,
    runtime: Runtime | None = None,
) -> VerifyReport:
    """Like ``Database.verify``, for a database that may not open because its manifest is damaged.

    For ``storage_options`` see ``open``.

    Examples:
        >>> dolmen.verify(db.url).findings
        ()
    """
    db = open(url, storage_options=storage_options, runtime=runtime)
    return db.verify(version=version, deep=deep, all_versions=all_versions, progress=progress)


@with_full_signatures
class Database(CatalogVerbs[Commit, ErasureResult, Table, Commit], MaintainableDatabase):
    """Tables under one pointer: they commit together, and readers always see whole commits.

    Args:
        store: the object store of the database.
        runtime: clock, randomness, sleep and threads.
        trust_clock: see ``open``.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, *, trust_clock: bool = False) -> None:
        arguments.flag("trust_clock", trust_clock)
        self._context = Context(store, runtime, Head(store, runtime, trust_clock=trust_clock))

    def _apply(
        self, operation: str, statement: Callable[[UnitOfWork], None], about: About, *, needs_newest: bool = False
    ) -> Commit:
        unit = UnitOfWork(self._context, operation, note=read_about(**about)[0], newest=needs_newest)
        statement(unit)
        return unit.commit()

    def _erasure_result(self, id_: str, done: Commit) -> ErasureResult:
        return ErasureResult.of(id_, done, self._context)

    def _handle(self, name: str) -> Table:
        return Table(self._context, name)

    def _rename_result(self, name: str, done: Commit) -> Commit:
        return done

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the database as its URL, by which another process opens it."""
        return _reopen, (portable_url(self._context.store), self._context.head.trust_clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: connections and threads belong to the process, for all databases that it opens."""

    def __getitem__(self, name: str) -> Table:
        """Short for ``table(name)``."""
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        """True if the newest version has a table of this name."""
        return isinstance(name, str) and name in self._context.head.refresh().manifest.tables

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the tables."""
        return iter(self.tables())

    @property
    def url(self) -> str:
        """The database's URL."""
        return self._context.store.url

    @property
    def version(self) -> int:
        """The newest version seen so far; 0 before the first commit. ``refresh`` looks for a newer one."""
        return self._context.head.newest().manifest.version

    def refresh(self) -> int:
        """Looks for the newest version, with one request, or two if there is a new version. Returns its number.

        Examples:
            >>> db.refresh()
            2
        """
        return self._context.head.refresh().manifest.version

    def tables(self) -> list[str]:
        """Names of the tables of the newest version, sorted.

        Examples:
            >>> db.tables()
            ['people']
        """
        return sorted(self._context.head.refresh().manifest.tables)

    def table(self, name: str) -> Table:
        """The table with this name, which follows the newest version.

        Raises:
            TableNotFoundError: there is no such table. Before the first read of the database, the table's first use
                raises it instead, which saves a request.

        Examples:
            >>> db.table("people").count()
            3
        """
        arguments.text("table", name)
        cached = self._context.head.cached
        if cached is not None and name not in cached.manifest.tables:
            self._context.head.refresh().manifest.table(name)
        return Table(self._context, name)

    def adopt(
        self,
        name: str,
        source: str | Sequence[str],
        primary_key: str | Sequence[str] | None = None,
        sort_key: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        *,
        into: bool = False,
        new_columns: NewColumns = "refuse",
        again: bool = False,
        hive: bool | None = None,
        dry_run: bool = False,
        progress: AdoptionProgress | None = None,
        request: str | None = None,
        message: str | None = None,
        metadata: Metadata | None = None,
    ) -> Adoption:
        """Makes a table of Parquet files that are already there, or of an Iceberg table, without copying data.

        The files stay where they are, and dolmen never changes or deletes them. It reads their footers, and no rows.

        Args:
            name: the new table's name; see ``create_table``.
            source: a folder, files, or the folder or metadata of an Iceberg table, whose current snapshot is taken; as
                a URL, or relative to the database.
            primary_key, sort_key, properties: see ``create_table``.
            into: add the files to the table of this name, which must have no primary key and no checks. Columns are
                matched by name. Files that it has, or had within ``applied_retention`` (35 days), are skipped.
            new_columns: with ``into``, for columns that the table lacks: as for ``Table.append``.
            again: with ``into``, add files again that the table had and no longer has.
            hive: whether names of folders like ``day=2026-11-27`` are values of columns; None = if there are any.
            dry_run: look at everything, and commit nothing.
            progress: called with the number of footers read so far, and the number of all files.
            request, message, metadata: as for ``Table.append``. A retry does not adopt files that arrived since.

        Raises:
            AdoptionError: the files cannot be adopted; it lists all reasons.
            TableExistsError: the name is taken, and ``into`` is False.
            InputError: the source is in a store of another kind than the database, or with ``into`` the table has a
                primary key or checks.
        """
        from dolmen.adopt.adoption import adopt  # imports what reads Iceberg's metadata

        dry_run = arguments.flag("dry_run", dry_run)
        hive = None if hive is None else arguments.flag("hive", hive)
        if arguments.flag("into", into):
            if not (primary_key is None and sort_key is None and properties is None):
                raise InputError(f"table {name!r} exists: primary_key, sort_key and properties are for a new table")
            from dolmen.adopt.into_table import adopt_into

            common = new_columns, request, Note.of(message, metadata), progress
            return adopt_into(self._context, name, source, *common, again=again, hive=hive, dry_run=dry_run)
        if again or new_columns != "refuse":
            raise InputError("new_columns and again are for files that are added to a table: give into=True")
        transaction = Transaction(UnitOfWork(self._context, "adopt", note=Note.of(message, metadata)))
        settings = primary_key, sort_key, properties
        return adopt(transaction, name, source, *settings, request, progress, hive=hive, dry_run=dry_run)

    def settings(self) -> dict[str, Any]:
        """All settings of this database with their values, as they were given, or their defaults.

        Examples:
            >>> db.set(retention="14d").version
            3
            >>> db.settings()["retention"]
            '14d'
        """
        return effective_values(self._context.head.refresh().manifest.properties, DATABASE_PROPERTIES)

    def at(
        self,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        tag: str | None = None,
        settled: bool = False,
    ) -> Snapshot:
        """The database as it was at a version or a time, or at the version that a tag names.

        Args:
            version: the number of the version.
            timestamp: a time: a datetime (naive means UTC), an ISO 8601 text, or microseconds since the epoch. For 20
                minutes, unless there is a later commit, a commit in progress may still be dated before it: until then
                ``Snapshot.settled`` is False.
            tag: the name of the version (see ``tag``).
            settled: refuse a time that is not settled.

        Raises:
            InputError: none of version, timestamp and tag is given, or several are.
            VersionNotFoundError, VersionExpiredError, TagNotFoundError: there is no such version, or no longer.
            UnsettledTimestampError: the time is in the future, or not settled although ``settled`` is True.

        Examples:
            >>> db.at(version=1).table("people").count()
            0
        """
        return pin(self._context, version, timestamp, tag, settled=settled)

    def tag(
        self,
        name: str,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        until: datetime | int | str | None = None,
        move: bool = False,
        **about: Unpack[About],
    ) -> Commit:
        """Gives a name to a version, which is kept with all that it needs as long as it has a tag.

        Args:
            name: 1 to 64 characters of ``A-Z``, ``a-z``, ``0-9``, ``_``, ``.`` and ``-``, with no ``.`` or ``-``
                first. Names that begin with ``iceberg.`` are dolmen's own.
            version, timestamp: the version; the newest if none is given.
            until: the end of the tag, as a time up to the year 9999, or as a duration from now (``"90d"``). The next
                collection after it removes the tag.
            move: move the name if another version has it.
            request, message, metadata: as for ``Table.append``.

        Raises:
            TagExistsError: the name is taken, and ``move`` is False.
            VersionNotFoundError, VersionExpiredError: the version does not exist, or has expired.
            LimitError: there are 1,000 tags.

        Examples:
            >>> db.tag("before", version=1).version
            3
            >>> db.at(tag="before").version
            1
        """
        request = about.get("request")
        moment = Moment(version, timestamp)
        statement = partial(put_tag, name=name, moment=moment, until=until, move=move, request=request)
        return self._apply("tag", statement, about, needs_newest=True)

    def drop_tag(self, name: str, **about: Unpack[About]) -> Commit:
        """Removes a tag; its version may expire from now on. Raises TagNotFoundError.

        Examples:
            >>> commit = db.tag("before", version=1)
            >>> db.drop_tag("before").operation
            'drop_tag'
        """
        request = about.get("request")
        return self._apply("drop_tag", partial(drop_tag, name=name, request=request), about, needs_newest=True)

    def tags(self) -> dict[str, TaggedVersion]:
        """The versions that have names, by name.

        Examples:
            >>> commit = db.tag("before", version=1)
            >>> list(db.tags())
            ['before']
        """
        tags = self._context.head.refresh().manifest.tags
        return {name: TaggedVersion.of(tag) for name, tag in sorted(tags.items())}

    def erasures(self) -> list[ListedErasure]:
        """The erasures that still apply to older versions, late drops or the disk, oldest first.

        Examples:
            >>> erased = people.erase("id = 2")
            >>> [erasure.id == erased.id for erasure in db.erasures()]
            [True]
        """
        return listed_erasures(self._context)

    def erasure(self, id: str) -> ListedErasure:
        """The erasure with this id. Raises ErasureNotFoundError.

        Examples:
            >>> erased = people.erase("id = 2")
            >>> db.erasure(erased.id).version
            3
        """
        return listed_erasure(self._context, id)

    def cursor(
        self, name: str, *, start: int | datetime | str | None = None, age: str | None = None, create: bool = True
    ) -> ChangeCursor:
        """Opens the cursor of this name: a stored position in the change feed. It is made if there is none.

        No version from its position on expires, so its reader finds all changes, however late it comes, up to ``age``.
        After a cursor has ended, its reader gets VersionExpiredError instead of changes with a gap.

        Args:
            name: as for ``tag``.
            start: of a new cursor: the version after which changes begin, or a time (see ``Table.changes``); the newest
                by default.
            age: of a new cursor: it ends when it has not moved for this long; 30 days by default.
            create: whether a new cursor may be made.

        Raises:
            TagNotFoundError: there is no such cursor, and ``create`` is False.
            VersionNotFoundError, VersionExpiredError: version ``start`` does not exist, or has expired.
            LimitError: there are 1,000 cursors.

        Examples:
            >>> cursor = db.cursor("copy", start=1)
            >>> cursor.changes("people").read_all().num_rows
            3
        """
        return open_cursor(self._context, name, start, age, create=arguments.flag("create", create))

    def cursors(self) -> list[str]:
        """Names of the cursors, sorted.

        Examples:
            >>> cursor = db.cursor("copy")
            >>> db.cursors()
            ['copy']
        """
        return sorted(self._context.head.refresh().manifest.cursors)

    def restore(
        self,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        tag: str | None = None,
        settled: bool = True,
        tables: str | Sequence[str] | None = None,
        **about: Unpack[About],
    ) -> Commit:
        """Makes tables what they were in an earlier version, in one commit that copies and deletes nothing.

        Rows, columns, names and settings become those of that version. Tables that were dropped since come back.
        Settings of the database, tags, and the memory of applied requests stay.

        Args:
            version, timestamp, tag: the version; see ``at``.
            settled: refuse a time before which a commit in progress may still be dated. If False, restore the newest
                version before it so far.
            tables: names of tables in that version. By default all: then tables that were created since are dropped.
            request, message, metadata: as for ``Table.append``.

        Raises:
            UnsettledTimestampError: the time is in the future, or not settled although ``settled`` is True.
            VersionNotFoundError, VersionExpiredError, TagNotFoundError: the version does not exist, or has expired.
            TableNotFoundError: that version has no such table.
            TableExistsError: another table has the name of a table to restore.

        Examples:
            >>> commit = people.delete("TRUE")
            >>> db.restore(version=2, settled=False).version
            4
            >>> people.count()
            3
        """
        request = about.get("request")
        moment = Moment(version, timestamp, tag, settled)
        statement = partial(restore_tables, moment=moment, names=tables, request=request)
        return self._apply("restore", statement, about, needs_newest=True)

    def history(self, limit: int | None = None) -> list[Commit]:
        """Commits, newest first, with what each did to which tables, its requests, message and metadata.

        Costs one request per 64 commits beyond the newest 65, and one for each segment with ids of their requests.

        Args:
            limit: the most commits to return; all kept ones by default.

        Examples:
            >>> [commit.operation for commit in db.history()]
            ['append', 'create_table']
        """
        if limit is not None:
            arguments.number("limit", limit, 0)
        newest = self._context.head.refresh().manifest
        entries: Iterator[Any] = commits(self._context.head, newest)
        with self._context.reading(newest.version):
            listed = list(islice(entries, limit))
            versions = range(listed[-1].version, listed[0].version + 1) if listed else range(0)
            requests = request_ids_by_version(newest, versions, self._context.segments)
        return [Commit.of(entry, requests.get(entry.version, ())) for entry in listed]

    def transaction(
        self, operation: str = "transaction", *, message: str | None = None, metadata: Metadata | None = None
    ) -> Transaction:
        """Begins a transaction over any tables, which becomes one version: ``with db.transaction() as tx: ...``.

        Args:
            operation: a word for ``history``.
            message: a message for ``history``, of at most 256 bytes. It stays when rows are deleted: no personal data.
            metadata: text by key for ``history``, such as ``{"job": "nightly"}``: up to 100 entries, with keys of up to
                100 characters (letters, digits, ``_``, ``.`` and ``-``), and values of up to 1,000. They stay, too.

        Raises:
            ConflictError: at its end, if something that it read has changed; ``run`` would repeat it.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.table("people").delete("age < 30")
            ...     tx.table("people").append([{"id": 4, "name": "Dan", "age": 61}])
            >>> tx.result.version
            3
        """
        return Transaction(UnitOfWork(self._context, operation, note=Note.of(message, metadata), newest=True))

    def run(
        self, function: Callable[[Transaction], T], *, message: str | None = None, metadata: Metadata | None = None
    ) -> T:
        """Calls ``function`` with a transaction and commits. On a conflict it does both again, on the newest version.

        Returns the result of ``function`` in the run that was committed. For the other arguments see ``transaction``.

        Examples:
            >>> def birthday(tx):
            ...     person = tx.table("people").get(1)
            ...     tx.table("people").upsert([{**person, "age": person["age"] + 1}])
            ...     return person["age"] + 1
            >>> db.run(birthday)
            37
        """
        if not callable(function):
            raise InputError(f"function={short_repr(function)} is not callable: give a function of a transaction")
        return replay(self._context, function, note=Note.of(message, metadata))[0]

    def sql(
        self,
        query: str,
        parameters: Parameters = None,
        *,
        request: str | None = None,
        message: str | None = None,
        metadata: Metadata | None = None,
        files: AllowedFiles = None,
    ) -> SqlResult | Any:  # a type checker cannot know which text has rows
        """Runs SQL over the tables: a query on DuckDB, or statements that change tables, in one commit (docs/sql.md).

        All tables are read in the same version. Columns and conditions that DuckDB's planner pushes down are applied by
        the scans.

        Args:
            query: a text in DuckDB's dialect: one query (SELECT, ``DESCRIBE table``, ``SHOW TABLES``, or one of these
                after EXPLAIN, which shows what each scan reads and skips), or statements separated by semicolons:
                INSERT, UPDATE, DELETE, MERGE, CREATE TABLE, ALTER TABLE, DROP TABLE, TRUNCATE, COMMENT, COPY.
            parameters: values for ``?``, in order, or for ``$name``, by name.
            request, message, metadata: as for ``Table.append``, of statements that change tables. The text and the
                parameters are the content of the request.
            files: the files, directories and URL prefixes that COPY may read and write. Objects
                are read and written with the settings of the database, or with ``{"s3://theirs/in": {...}}``.

        Returns:
            The rows of a query, or of the text's last statement if it is a query or has RETURNING; else the ``Commit``.

        Raises:
            InputError: it is another kind of statement, or does not fit the tables or the parameters.
            TableNotFoundError: it names a table that does not exist.
            SchemaError, RowError, DuplicateKeyError, ConflictError: as for the methods.

        Examples:
            >>> db.sql("UPDATE people SET age = age + 1 WHERE name = ?", ["Grace"]).rows
            1
            >>> db.sql("SELECT max(age) FROM people").fetchall()
            [(46,)]
        """
        from dolmen.sql.text import run_on_database

        return run_on_database(self._context, query, parameters, request, Note.of(message, metadata), files)

    def __repr__(self) -> str:
        cached = self._context.head.cached
        if cached is None:
            return f"<Database {self.url}>"
        tables = ", ".join(sorted(cached.manifest.tables)) or "none"
        return f"<Database {self.url}: version {cached.manifest.version}, tables {tables}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<code>{escape(repr(self))}</code>"


def _reopen(url: str, trust_clock: bool) -> Database:
    return open(url, trust_clock=trust_clock)

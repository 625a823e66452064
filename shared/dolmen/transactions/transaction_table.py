"""The verbs that change a table's rows, for a table's handle and for a table inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar, Unpack, get_args

from dolmen.base import arguments
from dolmen.commit.change import About, read_about, with_full_signatures
from dolmen.commit.statements.catalog import DropTable
from dolmen.errors import Error, InputError, PredicateError, TableNotFoundError
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import own_names
from dolmen.predicate.ast import Predicate
from dolmen.predicate.parse import Parameters, Where, with_parameters
from dolmen.rows.scan.conditions import read_predicate
from dolmen.rows.scan.plan import View
from dolmen.transactions.erase import erase_rows
from dolmen.transactions.merge.clauses import Clauses, WhenMatched, WhenNotMatched, WhenNotMatchedBySource
from dolmen.transactions.merge.merge import NewValues, changed_rows, merge_rows, update_rows
from dolmen.transactions.merge.merge_source import SourceRows
from dolmen.transactions.row_arguments import NewColumns
from dolmen.transactions.row_statements import Mode, TableChange
from dolmen.transactions.schema_verbs import CommitT, How, SchemaVerbs
from dolmen.transactions.snapshot import Moment, restore_table
from dolmen.transactions.unit_of_work import UnitOfWork

ErasedT = TypeVar("ErasedT")


@with_full_signatures
class TableVerbs(SchemaVerbs[CommitT], Generic[CommitT, ErasedT]):
    """A table that can be changed. A subclass decides whether a call is a commit, or a part of a transaction.

    ``request``, ``message`` and ``metadata`` are the same in all calls: see ``append``.
    """

    def _erasure_result(self, id_: str, done: CommitT) -> ErasedT:
        """The result of an erasure with this id."""
        raise NotImplementedError

    def append(
        self,
        data: Any,
        *,
        cast: bool = False,
        leave_out_erased: bool | None = None,
        new_columns: NewColumns = "refuse",
        **about: Unpack[About],
    ) -> CommitT:
        """Adds rows. Keys are not checked: appending a key twice gives two rows (see ``upsert``).

        Args:
            data: an Arrow table, batch or reader, a pandas or Polars frame, a list of dicts, or anything with an Arrow
                stream. Columns are matched by name, in any order. Rows are streamed in bounded memory.
            cast: round, parse or cut values that do not fit (see ``dolmen.rows.write.casts``), instead of refusing
                them. Casts without a loss are always made, for a pandas frame also of floats that are all integers or
                NaN, and of midnights to dates (``dolmen.rows.write.row_input``; NaN of pandas is NULL).
            request: an id under which this is applied once, however often it is tried: text of 1 to 4,096 bytes.
            message, metadata: a message and values by key for ``history``: see ``Database.transaction``. In a
                transaction, give them to that: here they are an InputError.
            leave_out_erased: leave out rows that match an erasure in force, also one that lands meanwhile; None = as
                the table's setting says. ``Commit.erased_rows_left_out`` counts them, and
                ``Commit.erased_rows_written`` those that are written.
            new_columns: for columns that the table lacks: "refuse" them; "add" them to the table in the same commit,
                with NULL in older rows; "ignore" their values. Columns without a value are never added.

        Raises:
            SchemaError, RowError: the data does not fit the table; nothing was added.
            ConflictError: rows were erased meanwhile, and the data can be read only once.
            AppliedIdError: other rows were added under this id, or the id was used for something else.

        Examples:
            >>> people.append([{"id": 4, "name": "Dan", "age": 61}]).rows
            1
        """

        def statement(change: TableChange) -> None:
            change.append(change.take_columns(data, new_columns), cast, leave_out_erased)

        return self._apply("append", statement, about, data, "may_delay_files")

    def insert(
        self,
        data: Any,
        *,
        cast: bool = False,
        leave_out_erased: bool | None = None,
        new_columns: NewColumns = "refuse",
        **about: Unpack[About],
    ) -> CommitT:
        """Adds rows, provided that the table has none of their primary keys, and that no two of them have the same.

        If two insert the same key at the same time, one gets DuplicateKeyError. Files that may have one of the keys, by
        statistics, filters and the index, are searched for it. Up to 64 MB of rows are compared before anything is
        written. Rows and keys are streamed in bounded memory; keys of more than 32 MB wait in temporary files.

        Args:
            data, cast, request, leave_out_erased, new_columns: as for ``append``. A request that was applied before is
                not compared again.

        Raises:
            DuplicateKeyError: the table has keys of these rows, or several rows have one; nothing was added.
            RowError: a key is NULL, or a row does not fit.
            InputError: the table has no primary key.

        Examples:
            >>> people.insert([{"id": 1, "name": "Eve", "age": 20}])
            Traceback (most recent call last):
            dolmen.errors.DuplicateKeyError: ...
        """

        def statement(change: TableChange) -> None:
            change.insert(change.take_columns(data, new_columns), cast, leave_out_erased)

        return self._apply("insert", statement, about, data)

    def upsert(
        self,
        data: Any,
        on: str | Sequence[str] | None = None,
        *,
        skip_equal: bool = False,
        cast: bool = False,
        leave_out_erased: bool | None = None,
        new_columns: NewColumns = "refuse",
        **about: Unpack[About],
    ) -> CommitT:
        """Adds rows in place of all older rows with their keys, without reading any. Among equal keys the last wins.

        Rows are streamed in bounded memory: a million keys, or 128 MB, at once, all of them in one commit.

        Args:
            on: the key columns; the primary key by default.
            skip_equal: do not write rows that the table has already, equal in all columns (NULL equals NULL, NaN equals
                NaN). ``Commit.rows_skipped`` counts them. It reads the rows that may have one of the keys, and if these
                change before the commit, it starts again on the newest version. A retry of a request may change it.
            data, cast, leave_out_erased, new_columns: as for ``append``.

        Raises:
            RowError: a key is NULL, or a row does not fit.

        Examples:
            >>> commit = people.upsert([{"id": 3, "name": "Linus", "age": 29}])
            >>> people.get(3)["age"]
            29
        """

        def statement(change: TableChange) -> None:
            choose = partial(changed_rows, change) if arguments.flag("skip_equal", skip_equal) else None
            change.upsert(change.take_columns(data, new_columns), on, cast, leave_out_erased, choose)

        how: How = "reads_rows" if skip_equal else "may_delay_files"
        return self._apply("upsert", statement, about, data, how)

    def overwrite(
        self,
        data: Any,
        *,
        where: Where = None,
        parameters: Parameters | None = None,
        check: bool = True,
        force: bool = False,
        cast: bool = False,
        leave_out_erased: bool | None = None,
        new_columns: NewColumns = "refuse",
        **about: Unpack[About],
    ) -> CommitT:
        """Replaces all rows, or those of a predicate, in one commit. Older versions still show the old rows.

        Args:
            data: see ``append``; without rows the old ones are only deleted.
            where, parameters: replace only rows for which it is TRUE, a predicate. Nothing is read for that.
            check: refuse rows for which ``where`` is not TRUE.
            force: also replace rows that others have added or deleted since this began.
            cast, request, leave_out_erased, new_columns: as for ``append``. A retry of a request may change ``force``.

        Raises:
            ConflictError: others added or deleted such rows meanwhile (unless forced), or overwrote the table too.
            SchemaError, RowError: the data does not fit the table, or ``where``; nothing was changed.

        Examples:
            >>> commit = people.overwrite([{"id": 9, "name": "Zoe", "age": 33}])
            >>> people.count()
            1
            >>> commit = people.overwrite([{"id": 9, "name": "Zoe", "age": 34}], where="id = 9")
        """
        where = with_parameters(where, parameters)

        def statement(change: TableChange) -> None:
            if where is None:
                change.overwrite(change.take_columns(data, new_columns), force, cast, leave_out_erased)
            else:
                rows = change.take_columns(data, new_columns)
                change.overwrite_where(rows, where, force, check, cast, leave_out_erased)

        needs_newest = where is not None and not force
        return self._apply("overwrite", statement, about, data, "needs_newest" if needs_newest else "")

    def delete(
        self,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
        mode: Mode = "auto",
        **about: Unpack[About],
    ) -> CommitT:
        """Deletes the present rows for which a condition is TRUE, or that have one of the keys.

        A tombstone holds a predicate or keys. It costs three small PUTs and reads nothing, whatever the table's size.
        For any other condition DuckDB finds the rows now, and their positions are stored. If rows for which it may be
        TRUE change before the commit, this starts again on the newest version. ``Commit.mode`` says which was done.

        Args:
            where: SQL text, a mapping, or an expression of pyarrow or Polars; ``"TRUE"`` deletes all rows. A predicate
                (docs/predicates.md), or any other SQL over the columns of a row, for which DuckDB is needed.
            parameters: values for ``?`` in the text of ``where``, in order, or for ``:name``, by name.
            keys: values (tuples for several columns) of the primary key or of the columns ``on``.
            mode: "auto"; "tombstone" refuses a condition that is not a predicate; "positions" finds the rows of a
                predicate now, too: later scans are faster, and ``Commit.rows`` is exact.
            request: as for ``append``. A retry may change the order of keys, and ``mode``.

        Raises:
            PredicateError: ``where`` is not a condition, or with "tombstone" not a predicate.
            InputError: DuckDB cannot evaluate it for a row.
            ConflictError: others changed the rows that it had read, a hundred times in a row.

        Examples:
            >>> commit = people.delete("age < ?", parameters=[30])
            >>> people.delete("reverse(name) = 'adA'").mode
            'positions'
            >>> people.to_arrow()["name"].to_pylist()
            ['Grace']
            >>> people.delete(keys=[2]).mode
            'tombstone'
        """
        arguments.one_of("mode", mode, get_args(Mode))

        def statement(change: TableChange) -> None:
            change.delete(where, parameters, keys, on, mode)

        # A file may be replaced before the commit: then the rows are looked up again.
        reads_rows = mode == "positions" or (mode == "auto" and self._is_sql(where, parameters))
        return self._apply("delete", statement, about, keys, "reads_rows" if reads_rows else "")

    def _is_sql(self, where: Where, parameters: Parameters | None) -> bool:
        """True if a condition is not a predicate for the columns that this process knows."""
        if not isinstance(where, (str, tuple)):
            return False
        try:
            read_predicate(with_parameters(where, parameters), self._entry.schema, now_us=0)
        except PredicateError as error:
            return not error.is_mistake
        except Error:  # raised again by the statement
            return False
        return False

    def erase(
        self,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
        within: str | None = None,
        **about: Unpack[About],
    ) -> ErasedT:
        """Deletes rows from all versions at once: no version, tag or clone shows them any more.

        They leave the disk within ``erase_within``. Files that were dropped before, and are ingested later, do not
        bring them back. Rows that are written afterwards are new rows. It costs three small PUTs, as ``delete``
        does, and a GET for the server's clock.

        Args:
            where, parameters, keys, on: as for ``delete``, but ``where`` is a predicate: every later reader must find
                the rows again, in old versions and in files that come late.
            within: a time, such as "2d", within which the rows leave the disk; by default that of the setting
                ``erase_within``. A retry of a request may change it.
            request: as for ``append``. A retry returns the same erasure.

        Raises:
            PredicateError, SchemaError: the predicate or the keys do not fit the table.

        Examples:
            >>> erased = people.erase(keys=[2])
            >>> people.at(version=2).count()
            2
        """
        ids: list[str] = []

        def statement(change: TableChange) -> None:
            ids.append(erase_rows(change, where, parameters, keys, on, within))

        done = self._apply("erase", statement, about, keys)
        return self._erasure_result(ids[-1], done)

    def update(
        self, set: NewValues, where: Where = None, *, parameters: Parameters | None = None, **about: Unpack[About]
    ) -> CommitT:
        """Gives rows new values, in one commit. Other rows stay as they are in their files.

        If rows that it reads change before the commit, it starts again on the newest version: concurrent updates lose
        nothing.

        Args:
            set: new values by column: Python values, or ``dolmen.Expression("price * 1.1")``, SQL in DuckDB's dialect
                over the row's columns.
            where: only rows for which it is TRUE; all rows by default. Any condition, as for ``delete``.
            parameters: as for ``delete``.

        Raises:
            InputError: DuckDB refuses an expression, or is not installed and there is one.
            SchemaError: there is no such column, it is part of the primary key, or values are of another kind.
            RowError: a value does not fit its column; nothing is rounded.
            ConflictError: others changed the rows that it had read, a hundred times in a row.

        Examples:
            >>> commit = people.update({"age": dolmen.Expression("age + 1")}, where="name = 'Ada'")
            >>> people.get(1)["age"]
            37
        """
        where = with_parameters(where, parameters)
        return self._apply("update", lambda change: update_rows(change, set, where), about, how="reads_rows")

    def merge(
        self,
        source: Any,
        on: str | Sequence[str],
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
        when_not_matched_by_source: WhenNotMatchedBySource = None,
        *,
        new_columns: NewColumns = "refuse",
        **about: Unpack[About],
    ) -> CommitT:
        """Updates, deletes and inserts rows by the rows of a source, in one commit (SQL's MERGE).

        A row of the table (``target``) and one of the source match when the columns ``on`` are equal in both; NULL
        equals nothing. For each row, the first clause whose condition is TRUE is applied. Expressions are DuckDB's SQL
        over ``target.<column>`` and ``source.<column>``.

        The source is in memory. Of the table, the merge reads the columns that it needs, and only rows that may have
        keys of the source. If these rows change before the commit, it starts again on the newest version. A merge on
        the primary key that updates and inserts all columns is an ``upsert``, which reads nothing.

        Args:
            source: rows, as for ``append``. It may have columns that the table lacks, for expressions to use.
            on: columns of both.
            when_matched: "update" gives the target row all values that the source has; a mapping of columns to
                expressions changes just these; "delete"; ``dolmen.Update(values, when=...)`` and
                ``dolmen.Delete(when=...)`` have conditions; a list of several; None leaves it unchanged.
            when_not_matched: for source rows without a target row: "insert", a mapping, ``dolmen.Insert(values,
                when=...)``, a list, or None.
            when_not_matched_by_source: for target rows without a source row: "delete", a mapping, ``Update``,
                ``Delete``, a list, or None. Anything but None reads the whole table.
            new_columns: as for ``append``, for columns of the source that a clause would write with all others. Those
                that an expression names are for that expression, and neither refused nor added.

        Raises:
            InputError: several source rows match one target row; no clause; an expression that DuckDB refuses.
            SchemaError: columns or types do not match the table's, or an update sets a column of the primary key that
                is not among ``on``.
            RowError: a value does not fit; or a NULL in ``on`` where that is the primary key.
            LimitError: the source has more than 256 MB.
            ConflictError: others changed the rows that it had read, a hundred times in a row.

        Examples:
            >>> source = pa.table({"id": [3, 4], "name": ["Linus T.", "Dan"], "age": [28, 61]})
            >>> commit = people.merge(source, on="id", when_matched={"name": "source.name"})
            >>> people.get(3)["name"], people.count()
            ('Linus T.', 4)
        """
        arguments.one_of("new_columns", new_columns, get_args(NewColumns))
        entry = self._entry
        rows = SourceRows.of(source, entry.schema)
        clauses = Clauses.of(when_matched, when_not_matched, when_not_matched_by_source)
        keys = own_names(arguments.names("on", on), entry.schema)
        is_upsert = clauses.is_upsert(entry, keys, rows.rows.schema.names)
        operation = "delete" if clauses.is_delete else "upsert" if is_upsert else "merge"
        return self._apply(
            operation, lambda change: merge_rows(change, rows, on, clauses, new_columns), about, how="reads_rows"
        )

    def restore(
        self,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        tag: str | None = None,
        settled: bool = True,
        **about: Unpack[About],
    ) -> CommitT:
        """Makes this table what it was in an earlier version; its name stays. See ``Database.restore``.

        Raises:
            UnsettledTimestampError, VersionNotFoundError, VersionExpiredError, TagNotFoundError: as for
                ``Database.restore``.
            TableNotFoundError: this table did not exist in that version.

        Examples:
            >>> commit = people.delete("TRUE")
            >>> people.restore(version=2, settled=False).version
            4
            >>> people.count()
            3
        """
        request = about.get("request")
        moment = Moment(version, timestamp, tag, settled)

        def statement(change: TableChange) -> None:
            restore_table(change.unit, change.name, moment, request)

        return self._apply("restore", statement, about, how="needs_newest")


class TransactionTable(TableVerbs[None, str]):
    """A table inside a transaction: reads see the statements so far, and writes add statements.

    ``message`` and ``metadata`` belong to the whole transaction (``Database.transaction``): its tables refuse them.
    """

    def __init__(self, unit: UnitOfWork, name: str, pinned: Manifest | None = None) -> None:
        super().__init__(unit.context, name)
        self._unit, self._pinned = unit, pinned

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("a transaction belongs to one process: hand over db.at(version).table(name), or rows")

    def _snapshot(self) -> Manifest:
        if self._pinned is not None:
            return self._pinned
        return self._unit.manifest

    @property
    def _entry(self) -> TableEntry:
        return super()._entry if self._pinned else self._unit.entry(self.name)

    def _view(self) -> View:
        return View(self._context, self._snapshot(), self.name, self._read_upload)

    def _read_upload(self, key: str, offset: int, length: int) -> bytes | None:
        # A method of this object, so that a scan which holds it stays in this process, too.
        return self._unit.uploads.read(key, offset, length)

    def _note_read(self, predicate: Predicate | None) -> None:
        self._unit.depend_on_rows(self.name, predicate, self._pinned)

    def _apply(
        self, operation: str, statement: Callable[[TableChange], None], about: About, data: Any = None, how: How = ""
    ) -> None:
        request = read_request(about)
        self._unit.operations.append(operation)
        with self._unit.savepoint():  # a call may add several statements: all of them, or none
            statement(TableChange(self._unit, self.name, request))

    def _erasure_result(self, id_: str, done: None) -> str:
        return id_

    def replace(self, data: Any, keys: Any, *, request: str | None = None) -> None:
        """Adds rows and deletes older ones with ``keys``, in one statement: an upsert with given keys.

        Args:
            keys: values of the primary key, tuples for several columns, or Arrow data with columns of their names.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.table("people").replace([{"id": 4, "name": "Dan", "age": 61}], keys=[1, 2])
            >>> people.count()
            2
        """
        TableChange(self._unit, self.name, request).replace(data, keys)

    def drop(self, *, request: str | None = None) -> None:
        """Drops the table. See ``Database.drop_table``.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.table("people").drop()
            >>> db.tables()
            []
        """
        self._unit.operations.append("drop_table")
        drop_table(self._unit, self.name, request)


def drop_table(unit: UnitOfWork, name: str, request: str | None) -> None:
    """Adds the statement of ``Database.drop_table``."""
    if (entry := entry_unless_applied(unit, name, request)) is not None:
        unit.add(DropTable(name, entry.uuid, request))
    unit.add_content(request, "drop_table", name)


def entry_unless_applied(unit: UnitOfWork, name: str, request: str | None) -> TableEntry | None:
    """The entry of a table that this request drops or renames; None if the request was applied before."""
    arguments.text("table", name)
    if unit.has_applied(request):
        return None
    try:
        return unit.entry(name)
    except TableNotFoundError:  # the unit looked at a newer version, which may have applied it
        if unit.has_applied(request):
            return None
        raise


def pin_table(table: TransactionTable) -> TransactionTable:
    """The table as it is now: statements that come later don't change what it reads."""
    return TransactionTable(table._unit, table.name, table._unit.manifest)


def read_request(about: About) -> str | None:
    """The request of a statement of a transaction. Raises InputError if it has a message or metadata."""
    note, request = read_about(**about)
    for name in ("message", "metadata"):
        if getattr(note, name):
            raise InputError(f"{name}= belongs to the whole transaction: give it to db.transaction({name}=...)")
    return request

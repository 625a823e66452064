"""The verbs that change a table, for a table's handle and for a table inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, Unpack, get_args

import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.change import About, Metadata, read_about, with_full_signatures
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import AlterTable, DropTable
from dolmen.errors import (
    Error,
    InputError,
    PredicateError,
    RowError,
    SchemaError,
    TableNotFoundError,
    short_repr,
)
from dolmen.format import evolution
from dolmen.format.ingest_properties import TABLE_PROPERTIES, check_table_properties
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import check_one_order, check_properties
from dolmen.format.schema import Default, DefaultFunction, Schema, is_nested, own_names, stored_type
from dolmen.format.types import Json, short_type, to_plain
from dolmen.format.types import to_json as to_json_value
from dolmen.predicate.ast import Predicate
from dolmen.predicate.domains import Domain, domain_of
from dolmen.predicate.parse import Parameters, Where, with_parameters
from dolmen.rows.scan.conditions import read_predicate
from dolmen.rows.scan.plan import View
from dolmen.rows.write.casts import lossless_cast
from dolmen.rows.write.conform import conform
from dolmen.rows.write.row_input import as_batches
from dolmen.transactions.constraints import add_check, add_primary_key, set_not_null
from dolmen.transactions.erase import erase_rows
from dolmen.transactions.merge.clauses import (
    Clauses,
    Expression,
    WhenMatched,
    WhenNotMatched,
    WhenNotMatchedBySource,
)
from dolmen.transactions.merge.merge import NewValues, changed_rows, merge_rows, update_rows
from dolmen.transactions.merge.merge_source import SourceRows
from dolmen.transactions.reading import ReadableTable
from dolmen.transactions.row_statements import Mode, NewColumns, TableChange
from dolmen.transactions.snapshot import Moment, restore_table
from dolmen.transactions.unit_of_work import UnitOfWork

CommitT = TypeVar("CommitT")
ErasedT = TypeVar("ErasedT")
ColumnChange: TypeAlias = evolution.SchemaChange | Callable[[Schema], evolution.SchemaChange]
"""A change of columns, or a function that makes it for the table's present columns."""


@with_full_signatures
class TableVerbs(ReadableTable, Generic[CommitT, ErasedT]):
    """A table that can be changed. A subclass decides whether a call is a commit, or a part of a transaction.

    ``request``, ``message`` and ``metadata`` are the same in all calls: see ``append``.
    """

    def _apply(
        self,
        operation: str,
        statement: Callable[[TableChange], None],
        about: About,
        *,
        data: Any = None,
        may_delay_files: bool = False,
        reads_rows: bool = False,
        needs_newest: bool = False,
    ) -> CommitT:
        """Runs one statement.

        Args:
            data: what the statement reads, and reads again when it is repeated.
            may_delay_files: small data files may wait for the commit, because the statement reads none of them.
            reads_rows: it depends on rows of the table, and is repeated when these have changed.
            needs_newest: it is for the newest version, and is not repeated.
        """
        raise NotImplementedError

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
                stream. Columns go by name, in any order. Rows are streamed in bounded memory.
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

        return self._apply("append", statement, about, data=data, may_delay_files=True)

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

        Of two that insert a key at the same time, one gets DuplicateKeyError. Files that may have one of the keys, by
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
        return self._apply(
            "insert",
            lambda change: change.insert(change.take_columns(data, new_columns), cast, leave_out_erased),
            about,
            data=data,
        )

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
            skip_equal: write no row that the table has already, equal in all columns (NULL equals NULL, and NaN equals
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

        how = {"reads_rows": True} if skip_equal else {"may_delay_files": True}
        return self._apply("upsert", statement, about, data=data, **how)

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
        return self._apply("overwrite", statement, about, data=data, needs_newest=needs_newest)

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
            mode: "auto"; "tombstone" refuses a condition that is no predicate; "positions" finds the rows of a
                predicate now, too: later scans are faster, and ``Commit.rows`` is exact.
            request: as for ``append``. A retry may change the order of keys, and ``mode``.

        Raises:
            PredicateError: ``where`` is no condition, or with "tombstone" no predicate.
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
        return self._apply("delete", statement, about, data=keys, reads_rows=reads_rows)

    def _is_sql(self, where: Where, parameters: Parameters | None) -> bool:
        """True if a condition is no predicate for the columns that this process knows."""
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

        done = self._apply("erase", statement, about, data=keys)
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
        return self._apply(
            "update",
            lambda change: update_rows(change, set, where),
            about,
            reads_rows=True,
        )

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
        """Updates, deletes and inserts rows as the rows of a source say, in one commit (SQL's MERGE).

        A row of the table (``target``) and one of the source match when the columns ``on`` are equal in both; NULL
        equals nothing. For each row, the first clause whose condition is TRUE is applied. Expressions are DuckDB's SQL
        over ``target.<column>`` and ``source.<column>``.

        The source is in memory. Of the table, the merge reads the columns that it needs, and only rows that may have
        keys of the source. If these rows change before the commit, it starts again on the newest version. A merge on
        the primary key that updates and inserts all columns is an ``upsert``, which reads nothing.

        Args:
            source: rows, as for ``append``. Columns that the table does not have may be there for expressions to use.
            on: columns of both.
            when_matched: "update" gives the target row all values that the source has; a mapping of columns to
                expressions changes just these; "delete"; ``dolmen.Update(values, when=...)`` and
                ``dolmen.Delete(when=...)`` have conditions; a list of several; None leaves it.
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
            operation,
            lambda change: merge_rows(change, rows, on, clauses, new_columns),
            about,
            reads_rows=True,
        )

    def add_column(
        self,
        name: str,
        type: pa.DataType,
        default: Any = None,
        *,
        nullable: bool = True,
        comment: str = "",
        **about: Unpack[About],
    ) -> CommitT:
        """Adds a column, in one commit that touches no file. Existing rows get ``default``.

        Args:
            name: any, but not that of another column; or the path of a field inside a column, such as
                ``address.country``, which is NULL in existing rows. All calls that change columns take such paths,
                except ``set_default``, ``reorder``, ``comment`` and ``set_sort_key``.
            type: see ``Database.create_table``.
            default: a value of the type, also for rows to come that are written without the column; None is NULL.
                ``dolmen.Expression("now()")`` is the time at which a statement adds its rows, and that of this commit
                in existing rows; ``Expression("uuid()")`` a random UUID in each new row, and NULL in existing ones.
            nullable: whether rows may have NULL in it; without it, ``default`` is needed.
            comment: what the column is, for people.

        Raises:
            SchemaError: the name is taken or not allowed, the type can't be stored, or a default is missing.
            InputError: the default is no value of the type.
            ConflictError: the columns were changed meanwhile; all calls that change columns raise it.

        Examples:
            >>> commit = people.add_column("city", pa.string(), default="Paris")
            >>> people.get(1)["city"]
            'Paris'
        """
        name, comment = arguments.text("name", name), arguments.text("comment", comment)
        arguments.flag("nullable", nullable)
        change = evolution.AddColumn(name, _arrow_type(type), nullable, column_default(name, type, default), comment)
        return self._alter(change, about)

    def drop_column(self, name: str, **about: Unpack[About]) -> CommitT:
        """Drops a column, in one commit that touches no file. Older versions still show it until they expire.

        Its values leave the disk when the files that hold them are compacted, and those versions expire. A new column
        of the same name is another column.

        Raises:
            SchemaError: there is no such column; or it is the only one, part of the primary or sort key, or named by a
                setting.

        Examples:
            >>> commit = people.drop_column("age")
            >>> people.schema.names
            ['id', 'name']
        """
        return self._alter(evolution.DropColumn(arguments.text("name", name)), about)

    def rename_column(self, old: str, new: str, **about: Unpack[About]) -> CommitT:
        """Renames a column, in one commit that touches no file. Settings that name it follow.

        Args:
            old: a column, or the path of a field inside of one.
            new: the column's or the field's own name.

        Raises:
            SchemaError: there is no such column; the new name is taken or not allowed; or the column identifies or
                orders changes (CDC), whose deletes are stored by its name.
            InputError: the new name is the old one.

        Examples:
            >>> commit = people.rename_column("name", "first_name")
            >>> people.schema.names
            ['id', 'first_name', 'age']
        """
        change = evolution.RenameColumn(arguments.text("old", old), arguments.text("new", new))
        return self._alter(change, about)

    def make_nullable(self, name: str, **about: Unpack[About]) -> CommitT:
        """Allows NULL in a column from now on.

        Raises:
            SchemaError: there is no such column, or it is part of the primary key.

        Examples:
            >>> commit = people.make_nullable("age")
            >>> people.schema.field("age").nullable
            True
        """
        return self._alter(evolution.MakeNullable(arguments.text("name", name)), about)

    def set_not_null(self, column: str, **about: Unpack[About]) -> CommitT:
        """Forbids NULL in a column from now on. Does nothing if it does so already.

        Where statistics do not prove that no row has NULL there, rows are read. Concurrent writes that may add NULL are
        compared, or repeated.

        Raises:
            SchemaError: there is no such column, or rows have NULL in it; the error says how many.

        Examples:
            >>> commit = people.set_not_null("age")
            >>> people.schema.field("age").nullable
            False
        """
        column = arguments.text("column", column)
        return self._apply("alter", lambda change: set_not_null(change, column), about, reads_rows=True)

    def add_primary_key(self, columns: str | Sequence[str], **about: Unpack[About]) -> CommitT:
        """Gives a table without a primary key one. Reads its columns, in bounded memory; none may be NULL any more.

        Args:
            columns: one column, or several.

        Raises:
            SchemaError: keys are NULL or have several rows: the error says how many, and how to see them; or a column
                can't be part of a key; or there is a primary key.
            ConflictError: others changed rows while it was read, a hundred times in a row.

        Examples:
            >>> logins = db.create_table("logins", [{"user": 1, "day": 3}, {"user": 1, "day": 4}])
            >>> commit = logins.add_primary_key(["user", "day"])
            >>> logins.primary_key
            ('user', 'day')
        """
        names = arguments.names("columns", columns)
        return self._apply("alter", lambda change: add_primary_key(change, names), about, reads_rows=True)

    def add_check(self, name: str, predicate: Where, **about: Unpack[About]) -> CommitT:
        """Adds a check: a predicate that is FALSE for no row. Every write compares its rows; NULL passes.

        Where statistics do not prove it for existing rows, these are read. Concurrent writes are compared, or repeated.

        Args:
            name: a name of this table's checks, whatever its case.
            predicate: as for ``scan``, but it can't depend on the time.

        Raises:
            SchemaError: it is FALSE for existing rows: the error says for how many, and how to see them; or there is a
                check of this name.
            PredicateError: the predicate can't be read, or does not fit the table.
            LimitError: the table has 100 checks, or the predicate is too long.

        Examples:
            >>> commit = people.add_check("adult", "age >= 18")
            >>> people.append([{"id": 4, "name": "Tim", "age": 3}])
            Traceback (most recent call last):
            dolmen.errors.ConstraintError: row 1: the check 'adult' is FALSE: age >= 18, and age is 3
        """
        name = arguments.text("name", name)
        return self._apply(
            "alter",
            lambda change: add_check(change, name, predicate),
            about,
            reads_rows=True,
        )

    def drop_check(self, name: str, **about: Unpack[About]) -> CommitT:
        """Drops a check.

        Raises:
            SchemaError: there is no such check.

        Examples:
            >>> commit = people.add_check("adult", "age >= 18")
            >>> commit = people.drop_check("adult")
            >>> people.checks
            {}
        """
        return self._alter(evolution.DropCheck(arguments.text("name", name)), about)

    def widen_column(self, name: str, type: pa.DataType, **about: Unpack[About]) -> CommitT:
        """Gives a column a type that has all values of its own, in one commit that touches no file.

        Args:
            type: a longer integer of the same sign, double for float, a decimal of more digits and the same scale, or
                a timestamp without zone for date. Older versions keep their type.

        Raises:
            SchemaError: there is no such column; it may not change to this type; a date is beyond all timestamps; or
                the column identifies or orders changes (CDC), whose deletes are stored by its values.

        Examples:
            >>> commit = people.add_column("visits", pa.int32())
            >>> commit = people.widen_column("visits", pa.int64())
            >>> people.schema.field("visits").type
            DataType(int64)
        """
        change = evolution.WidenColumn(arguments.text("name", name), _arrow_type(type))
        return self._alter(change, about)

    def set_default(self, name: str, default: Any, **about: Unpack[About]) -> CommitT:
        """Changes the value of future rows that are written without a column; existing rows keep theirs.

        Args:
            default: a value of the column's type; None is NULL; or a function, as for ``add_column``.

        Raises:
            SchemaError: there is no such column.
            InputError: the default is no value of the column's type.

        Examples:
            >>> commit = people.set_default("age", 18)
            >>> commit = people.append([{"id": 4, "name": "Dan"}])
            >>> people.get(4)["age"]
            18
        """

        def change(schema: Schema) -> evolution.SetDefault:
            column = schema.field(arguments.text("name", name))
            return evolution.SetDefault(name, column_default(name, column.arrow_type, default))

        return self._alter(change, about)

    def reorder(self, columns: Sequence[str], **about: Unpack[About]) -> CommitT:
        """Changes the order in which scans return columns: these come first, and the others as they were.

        Raises:
            SchemaError: there is no such column, or one is named twice.

        Examples:
            >>> commit = people.reorder(["name"])
            >>> people.schema.names
            ['name', 'id', 'age']
        """
        return self._alter(evolution.Reorder(tuple(arguments.names("columns", columns))), about)

    def comment(self, name: str, comment: str, **about: Unpack[About]) -> CommitT:
        """Says what a column is, for people; an empty text takes that away.

        Args:
            comment: at most 1,000 characters.

        Examples:
            >>> commit = people.comment("age", "in years")
            >>> people.describe()["comments"]
            {'age': 'in years'}
        """
        change = evolution.SetComment(arguments.text("name", name), arguments.text("comment", comment))
        return self._alter(change, about)

    def set_sort_key(self, columns: str | Sequence[str] | None, **about: Unpack[About]) -> CommitT:
        """Sorts new files by other columns. Existing files are sorted when they are compacted.

        Args:
            columns: names, or terms such as ``"day(at) DESC NULLS FIRST"`` (docs/sorting.md); None sorts by nothing.

        Raises:
            SchemaError: there is no such column, or rows can't be sorted by it.

        Examples:
            >>> commit = people.set_sort_key("age")
            >>> people.sort_key
            ('age',)
        """
        names = [] if columns is None else arguments.names("columns", columns)
        return self._alter(evolution.SetSortKey(tuple(names)), about)

    def set(
        self,
        *,
        request: str | None = None,
        message: str | None = None,
        metadata: Metadata | None = None,
        **changes: Any,
    ) -> CommitT:
        """Changes settings of this table, in one commit: ``set(ttl="event_time 90d", target_file_bytes="256MB")``.

        Args:
            changes: values by name (``settings`` lists them); None unsets a setting, so that its default holds.
            request: as for ``append``. A retry does not undo later changes of these settings.

        Raises:
            InputError, SchemaError: a setting is unknown, or its value is not allowed.
            AppliedIdError: other settings were changed under this id, or the id was used for something else.

        Examples:
            >>> commit = people.set(target_file_bytes="256MB")
            >>> people.settings()["target_file_bytes"]
            '256MB'
        """

        def statement(change: TableChange) -> None:
            unit, entry = change.unit, change.entry
            if unit.has_applied(request):  # later changes of settings may contradict it
                checked = check_properties(changes, TABLE_PROPERTIES, "a table")
            else:
                checked = check_table_properties(changes, entry.schema, entry.primary_key, entry.properties)
                check_one_order(entry.sort_key, checked)
                if checked:
                    unit.add(SetProperties(change.name, entry.uuid, checked, request, seen=entry))
            unit.add_content(request, "set", change.name, checked)

        return self._apply("set", statement, About(request=request, message=message, metadata=metadata))

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

        return self._apply("restore", statement, about, needs_newest=True)

    def _alter(self, column_change: ColumnChange, about: About) -> CommitT:
        request = about.get("request")

        def statement(change: TableChange) -> None:
            unit, entry = change.unit, change.entry
            altered = column_change(entry.schema) if callable(column_change) else column_change
            if isinstance(altered, evolution.SetSortKey) and altered.columns:
                check_one_order((1,), entry.properties)
            if not unit.has_applied(request):
                unit.add(AlterTable(change.name, entry.uuid, entry.schema, entry.sort_key, (altered,), request))
            unit.add_content(request, "alter", change.name, repr(altered))

        return self._apply("alter", statement, about)


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
        self,
        operation: str,
        statement: Callable[[TableChange], None],
        about: About,
        **how: Any,
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


def column_default(name: str, arrow_type: pa.DataType, value: Any) -> Default:
    """A default as callers give it: ``default_json``, or a function. Raises InputError if it does not fit."""
    if not isinstance(value, Expression):
        return default_json(name, arrow_type, value)
    function = DefaultFunction("".join(arguments.text("default", value.sql).split()).lower().removesuffix("()"))
    if function.name not in ("now", "uuid"):
        raise InputError(f"default {value.sql!r} of column {name!r}: a default is a value, now() or uuid()")
    stored = stored_type(arrow_type)
    if not function.fits(stored):
        kinds = "TIMESTAMPTZ, TIMESTAMP and DATE" if function.name == "now" else "VARCHAR, or binaries of 16 bytes"
        raise InputError(f"default {function} of column {name!r}: it is for {kinds}, not {short_type(stored)}")
    return function


def default_json(name: str, arrow_type: pa.DataType, value: Any) -> Json:
    """A default as callers give it, in JSON form. Raises InputError if it does not fit the column."""
    if value is None:
        return None
    stored = stored_type(arrow_type)
    if is_nested(stored):
        raise InputError(f"column {name!r} of type {short_type(stored)} can have no default except NULL")
    schema = pa.schema([pa.field(name, stored)])
    try:
        [batch] = conform(as_batches([{name: value}], schema), schema, lossless_cast)
        [plain] = to_plain(batch.column(0))
        return to_json_value(plain)
    except (SchemaError, RowError, InputError) as error:
        may_be_sql = hasattr(value, "sql") or (isinstance(value, str) and domain_of(stored) is not Domain.TEXT)
        hint = '; a default is a value, Expression("now()") or Expression("uuid()")' if may_be_sql else ""
        raise InputError(f"default {short_repr(value)} of column {name!r}: {error}{hint}") from error


def _arrow_type(type: pa.DataType) -> pa.DataType:
    if not isinstance(type, pa.DataType):
        raise InputError(f"type={short_repr(type)} is no pyarrow type: give one, as in pa.int64()")
    return type

"""The verbs that change what a table is: its columns, checks, keys, order and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar, Unpack

import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.change import About, Metadata, with_full_signatures
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import AlterTable
from dolmen.errors import InputError, RowError, SchemaError, short_repr
from dolmen.format import evolution
from dolmen.format.ingest_properties import TABLE_PROPERTIES, check_table_properties
from dolmen.format.properties import check_one_order, check_properties
from dolmen.format.schema import Default, DefaultFunction, Schema, is_nested, stored_type
from dolmen.format.types import Json, short_type, to_plain
from dolmen.format.types import to_json as to_json_value
from dolmen.predicate.domains import Domain, domain_of
from dolmen.predicate.parse import Where
from dolmen.rows.write.casts import lossless_cast
from dolmen.rows.write.conform import conform
from dolmen.rows.write.row_input import as_batches
from dolmen.transactions.constraints import add_check, add_primary_key, set_not_null
from dolmen.transactions.merge.clauses import Expression
from dolmen.transactions.readable_table import ReadableTable
from dolmen.transactions.row_statements import TableChange

CommitT = TypeVar("CommitT")
ColumnChange: TypeAlias = evolution.SchemaChange | Callable[[Schema], evolution.SchemaChange]
"""A change of columns, or a function that makes it for the table's present columns."""
How: TypeAlias = Literal["", "may_delay_files", "reads_rows", "needs_newest"]
"""What a statement allows or needs: small data files may wait for the commit, because it reads none of them; it depends
on rows of the table, and is repeated when these have changed; it is for the newest version, and is not repeated."""


@with_full_signatures
class SchemaVerbs(ReadableTable, Generic[CommitT]):
    """A table whose schema and settings can be changed. A subclass decides what a call becomes: see ``_apply``."""

    def _apply(
        self, operation: str, statement: Callable[[TableChange], None], about: About, data: Any = None, how: How = ""
    ) -> CommitT:
        """Runs one statement. ``data`` is what it reads, and reads again when it is repeated."""
        raise NotImplementedError

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
            default: a value of the type, for existing rows and for new rows that lack the column; None is NULL.
                ``dolmen.Expression("now()")`` is the time at which a statement adds its rows, and that of this commit
                in existing rows; ``Expression("uuid()")`` a random UUID in each new row, and NULL in existing ones.
            nullable: whether rows may have NULL in it; without it, ``default`` is needed.
            comment: what the column is, for people.

        Raises:
            SchemaError: the name is taken or not allowed, the type can't be stored, or a default is missing.
            InputError: the default is not a value of the type.
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
        return self._constrain(about, set_not_null, column)

    def add_primary_key(self, columns: str | Sequence[str], **about: Unpack[About]) -> CommitT:
        """Gives a table without a primary key one. Reads its columns, in bounded memory; from then on none may be NULL.

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
        return self._constrain(about, add_primary_key, names)

    def add_check(self, name: str, predicate: Where, **about: Unpack[About]) -> CommitT:
        """Adds a check: a predicate that is FALSE for no row. Every write compares its rows; NULL passes.

        Where statistics do not prove it for existing rows, these are read. Concurrent writes are compared, or repeated.

        Args:
            name: the check's name, unique in the table in any case.
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
        return self._constrain(about, add_check, name, predicate)

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
            InputError: the default is not a value of the column's type.

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
        """Changes the order in which scans return columns: these come first, and the others follow in their order.

        Raises:
            SchemaError: there is no such column, or one is named twice.

        Examples:
            >>> commit = people.reorder(["name"])
            >>> people.schema.names
            ['name', 'id', 'age']
        """
        return self._alter(evolution.Reorder(tuple(arguments.names("columns", columns))), about)

    def comment(self, name: str, comment: str, **about: Unpack[About]) -> CommitT:
        """Describes a column, for people; an empty text removes the description.

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
            columns: names, or terms such as ``"day(at) DESC NULLS FIRST"`` (docs/sorting.md); None for no order.

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

    def _constrain(self, about: About, add: Callable[..., None], *constraint: Any) -> CommitT:
        def statement(change: TableChange) -> None:
            add(change.unit, change.name, change.request, *constraint)

        return self._apply("alter", statement, about, how="reads_rows")

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
        raise InputError(f"type={short_repr(type)} is not a pyarrow type: give one, such as pa.int64()")
    return type

"""Plans the changes that make a database match a declaration, and applies them in one commit or not at all.

Each planned change is applied to the table's entry first, without I/O: an impossible one is reported before anything is
changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any, Literal

import msgspec
import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.commit.change import Expect
from dolmen.commit.statements.catalog import AlterTable
from dolmen.declaration.declaration_file import Declaration, DeclaredColumn, DeclaredTable
from dolmen.errors import ConflictError, InputError, SchemaError, TableExistsError, TableNotFoundError
from dolmen.format.column_history import NestedPath, nested_widening_problem, widening_problem
from dolmen.format.column_terms import parse_sort_key, sort_texts
from dolmen.format.evolution import (
    AddColumn,
    AddPrimaryKey,
    DropCheck,
    DropColumn,
    MakeNullable,
    RenameColumn,
    Reorder,
    SchemaChange,
    SetComment,
    SetDefault,
    SetNotNull,
    SetSortKey,
    WidenColumn,
)
from dolmen.format.ingest_properties import TABLE_PROPERTIES
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import DATABASE_PROPERTIES, Property, named_columns, value_of, with_renamed_column
from dolmen.format.schema import Field, Schema, own_names
from dolmen.format.types import column_text, type_text
from dolmen.predicate.text import checks_in_sql, to_sql
from dolmen.transactions.column_types import default_text
from dolmen.transactions.constraints import parse_check
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable
from dolmen.transactions.unit_of_work import Commit

_What = Literal[
    "table", "column", "rename", "default", "comment", "order", "check", "primary_key", "sort_key", "property"
]  # fmt: skip


@dataclass(frozen=True)
class DeclaredChange:
    """One difference between a database and a declaration."""

    kind: Literal["add", "change", "remove"]  # ``add``, ``change`` or ``remove``
    table: str | None  # the table's name; None for properties of the database
    # ``table`` (a new one), ``column``, ``rename``, ``default``, ``comment``, ``order`` (of columns), ``check``,
    # ``primary_key``, ``sort_key`` or ``property``
    what: _What
    name: str  # name of the column, check or property, otherwise of the table
    # before, after: texts or lists of texts; None for nothing
    before: Any = None
    after: Any = None


@dataclass
class TableAlteration:
    """The changes of a table's columns and keys."""

    file: str  # the name of the declaration's file, for errors
    # before, entry: the table before and after the changes
    before: TableEntry
    entry: TableEntry
    first: list[SchemaChange] = field(default_factory=list)  # changes before the properties are set
    # changes after that: columns that properties no longer name can be dropped
    last: list[SchemaChange] = field(default_factory=list)
    # functions that add constraints after that, and read the rows that may contradict them
    constraints: list[Callable[[TransactionTable], object]] = field(default_factory=list)
    differences: list[DeclaredChange] = field(default_factory=list)  # the differences that these changes remove
    # columns that the declaration lacks, and that stay because dropping was not asked for
    undropped: list[DeclaredChange] = field(default_factory=list)
    # the table's current properties, with the new names of columns
    properties: Mapping[str, Any] = field(default_factory=dict)

    def add(
        self,
        change: SchemaChange,
        difference: DeclaredChange,
        *,
        is_last: bool = False,
        constraint: Callable[[TransactionTable], object] | None = None,
    ) -> None:
        """Adds a change, or the constraint that makes it. Raises SchemaError if the table does not allow it."""
        try:
            self.entry = change.apply(self.entry, 0)
        except InputError as error:
            raise SchemaError(f"{self.file}: table {difference.table!r} exists: {error}") from error
        if constraint is not None:
            self.constraints.append(constraint)
        else:
            (self.last if is_last else self.first).append(change)
        if difference not in self.differences:
            self.differences.append(difference)


def find_alteration(file: str, table: DeclaredTable, entry: TableEntry, *, drop: bool) -> TableAlteration:
    """Finds the changes that make a table match its declaration, except for its properties. Raises SchemaError."""
    alteration = TableAlteration(file, entry, entry)
    _rename_columns(alteration, table)
    table = _spell(table, alteration.entry.schema)
    _drop_checks(alteration, table)
    declared = Schema.from_arrow(table.schema)
    names = [column.name for column in declared.fields]
    for column in declared.fields:
        _make_column(alteration, table.name, column, table.columns.get(column.name, DeclaredColumn()), drop=drop)
    _set_order(alteration, table.name, names)
    _set_primary_key(alteration, table)
    _set_sort_key(alteration, table)
    _add_checks(alteration, table)
    alteration.properties = alteration.entry.properties
    alteration.entry = msgspec.structs.replace(alteration.entry, properties=dict(table.properties))
    for existing in alteration.entry.schema.fields:
        if existing.name not in names:
            change = DeclaredChange("remove", table.name, "column", existing.name, column_text(existing.to_arrow()))
            if drop:
                alteration.add(DropColumn(existing.name), change, is_last=True)
            else:
                alteration.undropped.append(change)
    return alteration


def _describe_new(table: DeclaredTable) -> list[SchemaChange]:
    """The changes that give the columns of a new table their defaults and comments."""
    columns = table.columns.items()
    defaults = [SetDefault(name, column.default) for name, column in columns if column.default is not None]
    return [*defaults, *(SetComment(name, column.comment) for name, column in columns if column.comment)]


def _spell(table: DeclaredTable, existing: Schema) -> DeclaredTable:
    """A declared table with its columns spelled as in the existing table, which ignores case."""
    names, properties = own_names(table.schema.names, existing), dict(table.properties)
    for column, own in zip(table.schema.names, names, strict=True):
        for used in named_columns(properties):
            if used.lower() == column.lower():
                properties = with_renamed_column(properties, used, own)
    spelled = pa.schema([field.with_name(name) for field, name in zip(table.schema, names, strict=True)])
    before, after = Schema.from_arrow(table.schema), Schema.from_arrow(spelled)  # with the same ids
    checks = table.checks and {name: to_sql(parse_check(text, before), after) for name, text in table.checks.items()}
    return replace(
        table,
        schema=spelled,
        checks=checks,
        primary_key=tuple(own_names(table.primary_key, names)),
        sort_key=tuple(sort_texts(parse_sort_key(table.sort_key, before), after)),
        properties=properties,
        columns=dict(zip(own_names(table.columns, names), table.columns.values(), strict=True)),
    )


def _rename_columns(alteration: TableAlteration, table: DeclaredTable) -> None:
    """Renames columns from ``renamed_from``. A column that already has the new name was renamed before."""
    for name, column in table.columns.items():
        if column.renamed_from is None:
            continue
        existing = [field.name for field in alteration.entry.schema.fields]
        (old,) = own_names([column.renamed_from], existing)
        if old == name or old not in existing:
            continue
        if any(each.lower() == name.lower() != old.lower() for each in existing):
            raise SchemaError(
                f"{alteration.file}: table {table.name!r} has both column {name!r} and column {old!r}, of which the "
                "first is declared as renamed_from the second: remove renamed_from, and drop one of the two"
            )
        alteration.add(RenameColumn(old, name), DeclaredChange("change", table.name, "rename", name, old, name))


def _make_column(
    alteration: TableAlteration, table: str, declared: Field, column: DeclaredColumn, *, drop: bool
) -> None:
    """Adds a column, or changes it to match its declaration."""
    existing = next((field for field in alteration.entry.schema.fields if field.name == declared.name), None)
    text = column_text(declared.to_arrow())
    if existing is None:
        attributes = declared.arrow_type, declared.nullable, column.default, column.comment
        change = DeclaredChange("add", table, "column", declared.name, after=text)
        alteration.add(AddColumn(declared.name, *attributes, is_path=False), change)
        return
    _make_type(alteration, table, declared.name, existing.to_arrow(), declared.to_arrow(), drop=drop)
    difference = DeclaredChange("change", table, "column", declared.name, column_text(existing.to_arrow()), text)
    if existing.nullable != declared.nullable:
        if existing.nullable:
            required = methodcaller("set_not_null", declared.name)
            alteration.add(SetNotNull(declared.name), difference, constraint=required)
        else:
            alteration.add(MakeNullable(declared.name), difference)
    field = alteration.entry.schema.field(declared.name)
    default = alteration.entry.schema.write_defaults.get(declared.name)
    if default != column.default:
        sides = (default_text(value, declared) for value in (default, column.default))
        change = _change(table, "default", declared.name, *sides)
        alteration.add(SetDefault(declared.name, column.default), change)
    if field.comment != column.comment:
        change = _change(table, "comment", declared.name, field.comment or None, column.comment or None)
        alteration.add(SetComment(declared.name, column.comment), change)


def _make_type(
    alteration: TableAlteration, table: str, path: str, existing: pa.Field, declared: pa.Field, *, drop: bool
) -> None:
    """Gives a column, or a field inside of one, the declared type: widens it, or adds, widens and drops its fields."""
    t, old, new = pa.types, existing.type, declared.type
    inner = partial(_make_type, alteration, table, drop=drop)
    if t.is_struct(old) and t.is_struct(new):
        before, after = ({field.name.lower(): field for field in each} for each in (old, new))
        for name, field in after.items():
            if name in before:
                inner(f"{path}.{before[name].name}", before[name], field)
            else:
                added = AddColumn(f"{path}.{field.name}", field.type, field.nullable)
                change = DeclaredChange("add", table, "column", added.name, after=column_text(field))
                _alter_inside(alteration, added, change)
        for field in (before[name] for name in before if name not in after):
            dropped = DropColumn(f"{path}.{field.name}")
            change = DeclaredChange("remove", table, "column", dropped.name, column_text(field))
            if drop:
                _alter_inside(alteration, dropped, change)
            else:
                alteration.undropped.append(change)
    elif t.is_map(old) and t.is_map(new) and old.key_type == new.key_type:
        inner(f"{path}.value", old.item_field, new.item_field)
    elif t.is_list(old) and t.is_list(new):
        inner(f"{path}.element", old.value_field, new.value_field)
    elif old != new:
        is_column = path == existing.name
        if reason := (widening_problem if is_column else nested_widening_problem)(old, new):
            types = f"is {type_text(old)}, not {type_text(new)}"
            raise _error(alteration, table, path, f"{types}, and cannot be changed: {reason}")
        change = DeclaredChange("change", table, "column", path, column_text(existing), column_text(declared))
        if is_column:
            alteration.add(WidenColumn(path, new), change)
        else:
            _alter_inside(alteration, WidenColumn(path, new), change)
    if path != existing.name and existing.nullable != declared.nullable:
        raise _error(alteration, table, path, "is inside another column, so whether it may be NULL cannot be changed")


def _alter_inside(
    alteration: TableAlteration, change: AddColumn | DropColumn | WidenColumn, difference: DeclaredChange
) -> None:
    """Changes a field inside of a column. Raises SchemaError if its path is the name of another column."""
    if NestedPath.of(alteration.entry.schema, change.name) is None:
        reason = "has the name of the path to a field inside another column: rename one of the two first"
        raise _error(alteration, str(difference.table), change.name, reason)
    alteration.add(change, difference)


def _set_order(alteration: TableAlteration, table: str, declared: list[str]) -> None:
    """Puts the columns into the declared order, before columns that are not declared and stay."""
    names = [field.name for field in alteration.entry.schema.fields]
    if [name for name in names if name in declared] != declared:
        added = [change.name for change in alteration.differences if change.kind == "add" and change.what == "column"]
        old_order = [name for name in names if name not in added]
        alteration.add(Reorder(tuple(declared)), DeclaredChange("change", table, "order", table, old_order, declared))


def _drop_checks(alteration: TableAlteration, table: DeclaredTable) -> None:
    """Drops checks that are not declared, or have another condition. Without ``checks`` in the file, all stay."""
    if table.checks is None:
        return
    declared = {name.lower(): text for name, text in table.checks.items()}
    for name, text in checks_in_sql(alteration.entry.schema).items():
        if declared.get(name.lower()) != text:
            after = declared.get(name.lower())
            alteration.add(DropCheck(name), _change(table.name, "check", name, text, after))


def _add_checks(alteration: TableAlteration, table: DeclaredTable) -> None:
    remaining = {check.name.lower() for check in alteration.entry.schema.checks}
    changed = {change.name.lower() for change in alteration.differences if change.what == "check"}
    for name, text in (table.checks or {}).items():
        if name.lower() not in remaining:
            alteration.constraints.append(methodcaller("add_check", name, text))
            if name.lower() not in changed:
                alteration.differences.append(_change(table.name, "check", name, None, text))


def _set_primary_key(alteration: TableAlteration, table: DeclaredTable) -> None:
    existing, key = tuple(alteration.entry.schema.names_of(alteration.entry.primary_key)), table.primary_key
    if key and not existing:
        change = _change(table.name, "primary_key", table.name, None, list(key))
        alteration.add(AddPrimaryKey(key), change, constraint=methodcaller("add_primary_key", key))
    elif existing != key:
        has, declares = (
            f"primary key {', '.join(names)}" if names else "no primary key" for names in (existing, table.primary_key)
        )
        raise SchemaError(
            f"{alteration.file}: table {table.name!r} exists with {has}, and {declares} is declared; a primary key "
            "cannot be changed or removed: declare the existing one, or the table under another name"
        )


def _set_sort_key(alteration: TableAlteration, table: DeclaredTable) -> None:
    existing = tuple(sort_texts(alteration.entry.sort_key, alteration.entry.schema))
    if existing != table.sort_key:
        change = _change(table.name, "sort_key", table.name, list(existing) or None, list(table.sort_key) or None)
        alteration.add(SetSortKey(table.sort_key), change)


def _change(table: str | None, what: _What, name: str, before: Any, after: Any) -> DeclaredChange:
    kind: Literal["add", "change", "remove"] = "add" if before is None else "remove" if after is None else "change"
    return DeclaredChange(kind, table, what, name, before, after)


def _error(alteration: TableAlteration, table: str, column: str, reason: str) -> SchemaError:
    return SchemaError(f"{alteration.file}: table {table!r} exists, and its column {column!r} {reason}")


ROUNDS = 5  # the most attempts of ``apply``, which plans again after a conflict


@dataclass(frozen=True)
class DeclarationPlan:
    """The differences between one version of a database and a declaration."""

    database: Database
    declaration: Declaration
    changes: tuple[DeclaredChange, ...]
    version: int  # the version that was compared
    undropped: tuple[DeclaredChange, ...]  # columns that the declaration lacks. They stay, because ``drop`` is False.
    _expectations: tuple[Expect, ...]
    _alterations: Mapping[str, TableAlteration]

    def commit(self) -> Commit:
        """Makes exactly these changes, as one version; an empty plan makes no version.

        Raises:
            ConflictError: a table or a property of the database that the declaration names was changed in the meantime.
                Nothing was changed: plan again.
        """
        with self.database.transaction("apply") as transaction:
            if not self.changes:
                return transaction.commit()
            try:
                self._state(transaction)
                return transaction.commit()
            except (TableExistsError, TableNotFoundError) as error:
                raise ConflictError(f"{error}: another commit changed it in the meantime; plan again") from error

    def _state(self, transaction: Transaction) -> None:
        unit = unit_of(transaction)
        for expectation in self._expectations:
            unit.add(expectation)
        database_properties = {change.name: change.after for change in self.changes if change.table is None}
        transaction.set(**database_properties)
        for table in self.declaration.tables.values():
            changes = [change for change in self.changes if change.table == table.name]
            if any(change.what == "table" for change in changes):
                transaction.create_table(
                    table.name, table.schema, table.primary_key, table.sort_key, dict(table.properties)
                )
                _alter(transaction, table.name, unit.entry(table.name), _describe_new(table))
                for name, text in (table.checks or {}).items():
                    transaction.table(table.name).add_check(name, text)
            elif changes:
                alteration = self._alterations[table.name]
                _alter(transaction, table.name, alteration.before, alteration.first)
                properties = {change.name: change.after for change in changes if change.what == "property"}
                transaction.table(table.name).set(**properties)
                expected = unit.entry(table.name) if alteration.first else alteration.before
                _alter(transaction, table.name, expected, alteration.last)
                for constraint in alteration.constraints:
                    constraint(transaction.table(table.name))


def _alter(transaction: Transaction, table: str, expected: TableEntry, changes: Sequence[SchemaChange]) -> None:
    """Changes columns or the sort key of a table, provided that it is still the expected one."""
    if changes:
        unit_of(transaction).add(AlterTable(table, expected.uuid, expected.schema, expected.sort_key, tuple(changes)))


def plan(database: Database, declaration: Declaration, *, drop: bool = False) -> DeclarationPlan:
    """Compares a declaration with the newest version.

    A declaration is complete for the tables that it names: a property that is set but not declared is unset.
    The same holds for the database's properties, if the declaration has the member ``database``. Other tables stay as
    they are.

    Raises SchemaError if a table exists, and its columns or keys cannot be changed to match. ``drop``: see ``apply``.
    """
    transaction = database.transaction()
    unit = unit_of(transaction)
    unit.refresh()
    changes: list[DeclaredChange] = []
    expectations: list[Expect] = []
    alterations: dict[str, TableAlteration] = {}
    if declaration.database is not None:
        properties = unit.base.properties
        changes += _properties(None, properties, declaration.database, DATABASE_PROPERTIES)
        expectations.append(Expect(None, "", properties))
    for name, table in declaration.tables.items():
        if name not in unit.base.tables:
            changes += _creation(table)
            continue
        entry = unit.entry(name)
        alteration = alterations[name] = find_alteration(declaration.file, table, entry, drop=drop)
        changes += alteration.differences
        changes += _properties(name, alteration.properties, alteration.entry.properties, TABLE_PROPERTIES)
        expectations.append(Expect(name, entry.uuid, entry.properties, columns=entry.schema))
    undropped = tuple(change for alteration in alterations.values() for change in alteration.undropped)
    version = unit.base.version
    return DeclarationPlan(database, declaration, tuple(changes), version, undropped, tuple(expectations), alterations)


def apply(database: Database, declaration: Declaration | str | os.PathLike[str], *, drop: bool = False) -> Commit:
    """Makes a database match a declaration: tables, their columns and their properties, in one commit.

    Args:
        declaration: the declaration, or the path of its file.
        drop: drop columns that are not declared; otherwise they stay.

    Returns:
        the commit; its operation is "nothing" if there was nothing to do.

    Raises:
        InputError: the file is not a declaration, or a table cannot be changed to match. Nothing was changed.
        ConflictError: other commits kept changing the same tables or properties.
    """
    declared = declaration if isinstance(declaration, Declaration) else Declaration.read(declaration)
    for _ in range(ROUNDS - 1):  # a plan commits itself, so ``replay`` is not used
        with suppress(ConflictError):
            return plan(database, declared, drop=drop).commit()
    return plan(database, declared, drop=drop).commit()


def _creation(table: DeclaredTable) -> Iterator[DeclaredChange]:
    add = partial(DeclaredChange, "add", table.name)
    yield add("table", table.name)
    for each in Schema.from_arrow(table.schema).fields:
        yield add("column", each.name, after=column_text(each.to_arrow()))
        column = table.columns.get(each.name, DeclaredColumn())
        if column.default is not None:
            yield add("default", each.name, after=default_text(column.default, each))
        if column.comment:
            yield add("comment", each.name, after=column.comment)
    if table.primary_key:
        yield add("primary_key", table.name, after=list(table.primary_key))
    if table.sort_key:
        yield add("sort_key", table.name, after=list(table.sort_key))
    for name, text in (table.checks or {}).items():
        yield add("check", name, after=text)
    for name, value in table.properties.items():
        yield add("property", name, after=value)


def _properties(
    table: str | None, current: Mapping[str, Any], declared: Mapping[str, Any], kinds: Mapping[str, Property]
) -> Iterator[DeclaredChange]:
    """Changes in the order of the known properties. Unknown properties, of a newer version of dolmen, stay."""
    for name, property_ in kinds.items():
        before, after = current.get(name), declared.get(name)
        if not _is_same(property_, before, after):
            yield _change(table, "property", name, before, after)


def _is_same(property_: Property, before: Any, after: Any) -> bool:
    """Whether two values are equal or mean the same, such as 256MB and 268435456."""
    if before == after or before is None or after is None:
        return bool(before == after)
    try:
        return bool(value_of(property_, {property_.name: before}) == value_of(property_, {property_.name: after}))
    except InputError:  # the current value is invalid, so it differs
        return False

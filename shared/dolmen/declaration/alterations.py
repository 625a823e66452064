"""Finds the changes that make the columns and keys of an existing table those that are declared. Pure.

Each change is tried on the table's entry, so that what the plan shows can be done, and a reason why not is told before
anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
import pyarrow as pa

from dolmen.declaration.columns import column_text, type_text
from dolmen.declaration.defaults import default_text
from dolmen.declaration.reading import DeclaredColumn, DeclaredTable
from dolmen.errors import InputError, SchemaError
from dolmen.format.evolution import (
    AddColumn,
    DropColumn,
    MakeNullable,
    RenameColumn,
    Reorder,
    SchemaChange,
    SetComment,
    SetDefault,
    SetSortKey,
    WidenColumn,
)
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import columns_named, with_renamed_column
from dolmen.format.schema import Field, Schema, own_names
from dolmen.format.widening import narrowing


@dataclass(frozen=True)
class DeclaredChange:
    """One difference between a database and a declaration.

    Args:
        kind: ``add``, ``change`` or ``remove``.
        table: its name; None = the database's own properties.
        what: ``table`` (made anew), ``column``, ``rename``, ``default``, ``comment``, ``order`` (of columns),
            ``primary_key``, ``sort_key`` or ``property``.
        name: of the column or property, else of the table.
        before, after: as texts or lists of them; None where there is nothing.
    """

    kind: Literal["add", "change", "remove"]
    table: str | None
    what: Literal["table", "column", "rename", "default", "comment", "order", "primary_key", "sort_key", "property"]
    name: str
    before: Any = None
    after: Any = None


@dataclass
class TableAlteration:
    """The changes of a table's columns and keys.

    Args:
        before: the table as it was seen.
        entry: the table as it will be.
        first: changes before its properties are set.
        last: changes after that: columns that properties name no more can be dropped then.
        shown: the differences, for people.
        undropped: columns that are not declared and stay, as dropping was not asked for.
        properties: the table's own properties, under the new names of columns.
    """

    file: str
    before: TableEntry
    entry: TableEntry
    first: list[SchemaChange] = field(default_factory=list)
    last: list[SchemaChange] = field(default_factory=list)
    shown: list[DeclaredChange] = field(default_factory=list)
    undropped: list[DeclaredChange] = field(default_factory=list)
    properties: Mapping[str, Any] = field(default_factory=dict)

    def make(self, change: SchemaChange, shown: DeclaredChange, *, last: bool = False) -> None:
        """Adds a change. Raises SchemaError if the table does not allow it."""
        try:
            self.entry = change.apply(self.entry, 0)
        except InputError as error:
            raise SchemaError(f"{self.file}: table {shown.table!r} is there: {error}") from error
        (self.last if last else self.first).append(change)
        self.shown.append(shown)


def find_alteration(file: str, table: DeclaredTable, entry: TableEntry, *, drop: bool) -> TableAlteration:
    """Finds the changes that make a table what is declared, without its properties.

    Args:
        file: the name of the declaration, for messages.
        drop: whether columns that are not declared are dropped.

    Raises:
        SchemaError: the table can't become that; the message says why.
    """
    alteration = TableAlteration(file, entry, entry)
    _rename_columns(alteration, table)
    table = _spell(table, alteration.entry.schema)
    declared = Schema.from_arrow(table.schema)
    for wanted in declared.fields:
        _make_column(alteration, table.name, wanted, table.columns.get(wanted.name, DeclaredColumn()))
    _set_order(alteration, table.name, [wanted.name for wanted in declared.fields])
    _check_primary_key(alteration, table)
    _set_sort_key(alteration, table)
    alteration.properties = alteration.entry.properties
    alteration.entry = msgspec.structs.replace(alteration.entry, properties=dict(table.properties))
    kept = {wanted.name for wanted in declared.fields}
    for there in alteration.entry.schema.fields:
        if there.name not in kept:
            change = DeclaredChange("remove", table.name, "column", there.name, column_text(there.to_arrow()))
            if drop:
                alteration.make(DropColumn(there.name), change, last=True)
            else:
                alteration.undropped.append(change)
    return alteration


def describe_new(table: DeclaredTable) -> list[SchemaChange]:
    """The changes that give the columns of a table that is made anew their defaults and comments."""
    changes: list[SchemaChange] = []
    for name, column in table.columns.items():
        if column.default is not None:
            changes.append(SetDefault(name, column.default))
        if column.comment:
            changes.append(SetComment(name, column.comment))
    return changes


def _spell(table: DeclaredTable, there: Schema) -> DeclaredTable:
    """A declared table with the names that its columns have in the existing one, which differ in case at most."""
    names, properties = own_names(table.schema.names, there), dict(table.properties)
    for column, own in zip(table.schema.names, names, strict=True):
        for used in columns_named(properties):
            if used.lower() == column.lower():
                properties = with_renamed_column(properties, used, own)
    return replace(
        table,
        schema=pa.schema([field.with_name(name) for field, name in zip(table.schema, names, strict=True)]),
        primary_key=tuple(own_names(table.primary_key, names)),
        sort_key=tuple(own_names(table.sort_key, names)),
        properties=properties,
        columns=dict(zip(own_names(table.columns, names), table.columns.values(), strict=True)),
    )


def _rename_columns(alteration: TableAlteration, table: DeclaredTable) -> None:
    """Renames columns whose new name is declared; a column that has it already was renamed before."""
    for name, column in table.columns.items():
        if column.renamed_from is None:
            continue
        there = [known.name for known in alteration.entry.schema.fields]
        (old,) = own_names([column.renamed_from], there)
        if old == name or old not in there:
            continue
        if any(known.lower() == name.lower() != old.lower() for known in there):
            raise SchemaError(
                f"{alteration.file}: table {table.name!r} has column {name!r} and column {old!r}, from which it is "
                "declared to be renamed: leave renamed_from away, and drop one of the two"
            )
        change = DeclaredChange("change", table.name, "rename", name, old, name)
        alteration.make(RenameColumn(old, name), change)


def _make_column(alteration: TableAlteration, table: str, wanted: Field, column: DeclaredColumn) -> None:
    """Adds a column, or makes it what is declared."""
    there = next((known for known in alteration.entry.schema.fields if known.name == wanted.name), None)
    text = column_text(wanted.to_arrow())
    if there is None:
        new = AddColumn(wanted.name, wanted.arrow_type, wanted.nullable, column.default, column.comment, is_path=False)
        alteration.make(new, DeclaredChange("add", table, "column", wanted.name, after=text))
        return
    shown = DeclaredChange("change", table, "column", wanted.name, column_text(there.to_arrow()), text)
    if not there.arrow_type.equals(wanted.arrow_type):
        _check_widening(alteration, table, there, wanted)
        alteration.make(WidenColumn(wanted.name, wanted.arrow_type), shown)
    if there.nullable != wanted.nullable:
        if there.nullable:
            reason = "may be NULL, and NOT NULL is declared: rows of now may have no value in it"
            raise _error(alteration, table, wanted.name, reason)
        alteration.make(MakeNullable(wanted.name), shown)
        if alteration.shown[-2:] == [shown, shown]:
            alteration.shown.pop()
    now = alteration.entry.schema.field(wanted.name)
    if now.write_default != column.default:
        before, after = (default_text(value, wanted) for value in (now.write_default, column.default))
        kind = _kind(before, after)
        change = DeclaredChange(kind, table, "default", wanted.name, before, after)
        alteration.make(SetDefault(wanted.name, column.default), change)
    if now.comment != column.comment:
        kind = _kind(now.comment or None, column.comment or None)
        change = DeclaredChange(kind, table, "comment", wanted.name, now.comment or None, column.comment or None)
        alteration.make(SetComment(wanted.name, column.comment), change)


def _check_widening(alteration: TableAlteration, table: str, there: Field, wanted: Field) -> None:
    if reason := narrowing(there.arrow_type, wanted.arrow_type):
        types = f"is {type_text(there.arrow_type)}, not {type_text(wanted.arrow_type)}"
        raise _error(alteration, table, wanted.name, f"{types}, and can't become that: {reason}")


def _set_order(alteration: TableAlteration, table: str, wanted: list[str]) -> None:
    """Puts the columns into the declared order; others, which stay, come behind them then."""
    now = [known.name for known in alteration.entry.schema.fields]
    if [name for name in now if name in wanted] != wanted:
        added = [change.name for change in alteration.shown if change.kind == "add" and change.what == "column"]
        before = [name for name in now if name not in added]
        alteration.make(Reorder(tuple(wanted)), DeclaredChange("change", table, "order", table, before, wanted))


def _check_primary_key(alteration: TableAlteration, table: DeclaredTable) -> None:
    now = _names(alteration.entry, alteration.entry.primary_key)
    if now != table.primary_key:
        has, declares = (
            f"primary key {', '.join(names)}" if names else "no primary key" for names in (now, table.primary_key)
        )
        raise SchemaError(
            f"{alteration.file}: table {table.name!r} is there with {has}, and {declares} is declared; a primary key "
            "can't be changed: declare it as it is, or the table under another name"
        )


def _set_sort_key(alteration: TableAlteration, table: DeclaredTable) -> None:
    now = _names(alteration.entry, alteration.entry.sort_key)
    if now != table.sort_key:
        before, after = (list(key) or None for key in (now, table.sort_key))
        change = DeclaredChange(_kind(before, after), table.name, "sort_key", table.name, before, after)
        alteration.make(SetSortKey(table.sort_key), change)


def _names(entry: TableEntry, ids: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(entry.schema.by_id[id_].name for id_ in ids)


def _kind(before: Any, after: Any) -> Literal["add", "change", "remove"]:
    if before is None:
        return "add"
    return "remove" if after is None else "change"


def _error(alteration: TableAlteration, table: str, column: str, reason: str) -> SchemaError:
    return SchemaError(f"{alteration.file}: table {table!r} is there, and column {column!r} {reason}")

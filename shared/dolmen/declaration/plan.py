"""Plans the changes that make a database match a declaration, and applies them in one commit or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dolmen.commit.statements.expect import Expect
from dolmen.database import Database
from dolmen.declaration.columns import column_text, type_text
from dolmen.declaration.reading import Declaration, DeclaredTable
from dolmen.errors import ConflictError, InputError, SchemaError, TableExistsError, TableNotFoundError
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import DATABASE_PROPERTIES, TABLE_PROPERTIES
from dolmen.format.property import Property, value_of
from dolmen.format.schema import Schema
from dolmen.results import Commit
from dolmen.transaction import Transaction

ROUNDS = 5
"""How often ``apply`` looks again because somebody else has changed what it goes by."""


@dataclass(frozen=True)
class DeclaredChange:
    """One difference between a database and a declaration.

    Args:
        kind: ``add``, ``change`` or ``remove``.
        table: its name; None = the database's own properties.
        what: ``table`` (made anew), ``column``, ``primary_key``, ``sort_key`` or ``property``.
        name: of the column or property, else of the table.
        before, after: as texts or lists of them; None where there is nothing.
    """

    kind: Literal["add", "change", "remove"]
    table: str | None
    what: Literal["table", "column", "primary_key", "sort_key", "property"]
    name: str
    before: Any = None
    after: Any = None


@dataclass(frozen=True)
class DeclarationPlan:
    """The differences between one version of a database and a declaration.

    Args:
        changes: none when there is nothing to do.
        version: the version that was looked at.
    """

    database: Database
    declaration: Declaration
    changes: tuple[DeclaredChange, ...]
    version: int
    _seen: tuple[Expect, ...]

    def commit(self) -> Commit:
        """Makes exactly these changes, as one version; a plan without any makes none.

        Raises:
            ConflictError: a table that the declaration names, or a property of the database that it speaks of, was
                changed since: nothing was done, plan again.
        """
        with self.database.transaction("apply") as transaction:
            if not self.changes:
                return transaction.commit()
            try:
                self._state(transaction)
                return transaction.commit()
            except (TableExistsError, TableNotFoundError) as error:
                raise ConflictError(f"{error}: somebody was here meanwhile; look at the differences again") from error

    def _state(self, transaction: Transaction) -> None:
        for seen in self._seen:
            transaction.add(seen)
        own = {change.name: change.after for change in self.changes if change.table is None}
        transaction.set(**own)
        for table in self.declaration.tables.values():
            changes = [change for change in self.changes if change.table == table.name]
            if any(change.what == "table" for change in changes):
                transaction.create_table(
                    table.name, table.schema, table.primary_key, table.sort_key, dict(table.properties)
                )
            elif changes:
                transaction.table(table.name).set(**{change.name: change.after for change in changes})


def plan(database: Database, declaration: Declaration) -> DeclarationPlan:
    """Compares a declaration with the newest version.

    The declaration is the whole truth about the properties of what it names: one that is set and does not stand there
    is unset. Tables that it does not name stay as they are, and so does the database where it does not speak of that.

    Raises:
        SchemaError: a table is there with other columns or another key.
    """
    transaction = database.transaction()
    changes: list[DeclaredChange] = []
    seen: list[Expect] = []
    if declaration.database is not None:
        properties = transaction.base.properties
        changes += _properties(None, properties, declaration.database, DATABASE_PROPERTIES)
        seen.append(Expect(None, "", properties))
    for name, table in declaration.tables.items():
        if name not in transaction.base.tables:
            changes += _creation(table)
            continue
        entry = transaction.entry(name)
        _check_same(declaration.file, table, entry)
        changes += _properties(name, entry.properties, table.properties, TABLE_PROPERTIES)
        seen.append(Expect(name, entry.uuid, entry.properties))
    return DeclarationPlan(database, declaration, tuple(changes), transaction.base.version, tuple(seen))


def apply(database: Database, declaration: Declaration | str | os.PathLike[str]) -> Commit:
    """Makes a database what a declaration says: creates tables, sets and unsets properties, in one commit.

    Args:
        declaration: it, or the path of its file.

    Returns:
        the commit; its operation is "nothing" when there was nothing to do.

    Raises:
        InputError: the file is no declaration, or a table is there with other columns or another key. Nothing was
            changed.
        ConflictError: others go on changing the same.
    """
    wanted = declaration if isinstance(declaration, Declaration) else Declaration.read(declaration)
    for left in reversed(range(ROUNDS)):
        try:
            return plan(database, wanted).commit()
        except ConflictError:
            if not left:
                raise
    raise AssertionError("the last round returns or raises")


def _creation(table: DeclaredTable) -> Iterator[DeclaredChange]:
    yield DeclaredChange("add", table.name, "table", table.name)
    for field in Schema.from_arrow(table.schema).arrow:
        yield DeclaredChange("add", table.name, "column", field.name, after=column_text(field))
    if table.primary_key:
        yield DeclaredChange("add", table.name, "primary_key", table.name, after=list(table.primary_key))
    if table.sort_key:
        yield DeclaredChange("add", table.name, "sort_key", table.name, after=list(table.sort_key))
    for name, value in table.properties.items():
        yield DeclaredChange("add", table.name, "property", name, after=value)


def _properties(
    table: str | None, now: Mapping[str, Any], wanted: Mapping[str, Any], known: Mapping[str, Property]
) -> Iterator[DeclaredChange]:
    """In the order of the settings' list. What a newer version of dolmen has set, and this one does not know, stays."""
    for name, property_ in known.items():
        before, after = now.get(name), wanted.get(name)
        if before is None and after is not None:
            yield DeclaredChange("add", table, "property", name, after=after)
        elif before is not None and after is None:
            yield DeclaredChange("remove", table, "property", name, before)
        elif before is not None and not _same(property_, before, after):
            yield DeclaredChange("change", table, "property", name, before, after)


def _same(known: Property, before: Any, after: Any) -> bool:
    """Whether two values mean the same: 256MB is 268435456."""
    if before == after:
        return True
    try:
        return bool(value_of(known, {known.name: before}) == value_of(known, {known.name: after}))
    except InputError:  # what is set cannot be read, so it is not what is declared
        return False


def _check_same(file: str, table: DeclaredTable, entry: TableEntry) -> None:
    """Raises SchemaError if the table has other columns or keys than are declared."""
    there, declared = entry.schema, Schema.from_arrow(table.schema)
    about = f"{file}: table {table.name!r} is there"
    end = "columns and keys of a table that is there can't be changed: declare it as it is, or under another name"
    names, wanted = [field.name for field in there.fields], [field.name for field in declared.fields]
    for field in declared.fields:
        if field.name not in names:
            raise SchemaError(f"{about} without column {field.name!r}, which is declared; {end}")
        if difference := _difference(there.field(field.name).to_arrow(), field.to_arrow()):
            raise SchemaError(f"{about}, and column {field.name!r} {difference}; {end}")
    if missing := [name for name in names if name not in wanted]:
        raise SchemaError(f"{about} with column {missing[0]!r}, which is not declared; {end}")
    for at, (name, other) in enumerate(zip(names, wanted, strict=True), 1):
        if name != other:
            raise SchemaError(f"{about}: its column {at} is {name!r}, where {other!r} is declared; {end}")
    for what, ids, key in (
        ("primary key", entry.primary_key, table.primary_key),
        ("sort key", entry.sort_key, table.sort_key),
    ):
        if (now := tuple(there.by_id[id_].name for id_ in ids)) != key:
            has, declares = (f"{what} {', '.join(names)}" if names else f"no {what}" for names in (now, key))
            raise SchemaError(f"{about} with {has}, and {declares} is declared; {end}")


def _difference(there: pa.Field, declared: pa.Field) -> str:
    if not there.type.equals(declared.type):
        return f"is {type_text(there.type)}, not {type_text(declared.type)}"
    if there.nullable != declared.nullable:
        return "may be NULL" if there.nullable else "is NOT NULL"
    return ""

"""Plans the changes that make a database match a declaration, and applies them in one commit or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dolmen.api.database import Database
from dolmen.commit.statements.expect import Expect
from dolmen.commit.statements.schema import AlterTable
from dolmen.declaration.alterations import (
    DeclaredChange,
    TableAlteration,
    describe_new,
    find_alteration,
)
from dolmen.declaration.columns import column_text
from dolmen.declaration.defaults import default_text
from dolmen.declaration.reading import Declaration, DeclaredColumn, DeclaredTable
from dolmen.errors import ConflictError, InputError, TableExistsError, TableNotFoundError
from dolmen.format.evolution import SchemaChange
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import DATABASE_PROPERTIES, TABLE_PROPERTIES
from dolmen.format.property import Property, value_of
from dolmen.format.schema import Schema
from dolmen.transactions.results import Commit
from dolmen.transactions.transaction import Transaction

ROUNDS = 5
"""How often ``apply`` looks again because somebody else has changed what it goes by."""


@dataclass(frozen=True)
class DeclarationPlan:
    """The differences between one version of a database and a declaration.

    Args:
        changes: none when there is nothing to do.
        version: the version that was looked at.
        undropped: columns of tables that the declaration lacks. They stay, as dropping was not asked for.
    """

    database: Database
    declaration: Declaration
    changes: tuple[DeclaredChange, ...]
    version: int
    undropped: tuple[DeclaredChange, ...]
    _seen: tuple[Expect, ...]
    _alterations: Mapping[str, TableAlteration]

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
                _alter(transaction, table.name, transaction.entry(table.name), describe_new(table))
            elif changes:
                alteration = self._alterations[table.name]
                _alter(transaction, table.name, alteration.before, alteration.first)
                properties = {change.name: change.after for change in changes if change.what == "property"}
                transaction.table(table.name).set(**properties)
                known = transaction.entry(table.name) if alteration.first else alteration.before
                _alter(transaction, table.name, known, alteration.last)


def _alter(transaction: Transaction, table: str, seen: TableEntry, changes: Sequence[SchemaChange]) -> None:
    """Changes columns or the sort key of a table as it was seen."""
    if changes:
        transaction.add(AlterTable(table, seen.uuid, seen.schema, seen.sort_key, tuple(changes)))


def plan(database: Database, declaration: Declaration, *, drop: bool = False) -> DeclarationPlan:
    """Compares a declaration with the newest version.

    The declaration is the whole truth about the columns and properties of what it names: a property that is set and
    does not stand there is unset. Tables that it does not name stay as they are, and so does the database where it
    does not speak of that.

    Args:
        drop: drop columns that are not declared; otherwise they stay.

    Raises:
        SchemaError: a table is there, and its columns or keys can't become those that are declared.
    """
    transaction = database.transaction()
    transaction.refresh()
    changes: list[DeclaredChange] = []
    seen: list[Expect] = []
    alterations: dict[str, TableAlteration] = {}
    if declaration.database is not None:
        properties = transaction.base.properties
        changes += _properties(None, properties, declaration.database, DATABASE_PROPERTIES)
        seen.append(Expect(None, "", properties))
    for name, table in declaration.tables.items():
        if name not in transaction.base.tables:
            changes += _creation(table)
            continue
        entry = transaction.entry(name)
        alteration = alterations[name] = find_alteration(declaration.file, table, entry, drop=drop)
        changes += alteration.shown
        changes += _properties(name, alteration.properties, alteration.entry.properties, TABLE_PROPERTIES)
        seen.append(Expect(name, entry.uuid, entry.properties, columns=entry.schema))
    undropped = tuple(change for alteration in alterations.values() for change in alteration.undropped)
    version = transaction.base.version
    return DeclarationPlan(database, declaration, tuple(changes), version, undropped, tuple(seen), alterations)


def apply(database: Database, declaration: Declaration | str | os.PathLike[str], *, drop: bool = False) -> Commit:
    """Makes a database what a declaration says: tables, their columns and their properties, in one commit.

    Args:
        declaration: it, or the path of its file.
        drop: drop columns that are not declared; otherwise they stay.

    Returns:
        the commit; its operation is "nothing" when there was nothing to do.

    Raises:
        InputError: the file is no declaration, or a table can't become what is declared. Nothing was changed.
        ConflictError: others go on changing the same.
    """
    wanted = declaration if isinstance(declaration, Declaration) else Declaration.read(declaration)
    for left in reversed(range(ROUNDS)):
        try:
            return plan(database, wanted, drop=drop).commit()
        except ConflictError:
            if not left:
                raise
    raise AssertionError("the last round returns or raises")


def _creation(table: DeclaredTable) -> Iterator[DeclaredChange]:
    yield DeclaredChange("add", table.name, "table", table.name)
    for field in Schema.from_arrow(table.schema).fields:
        yield DeclaredChange("add", table.name, "column", field.name, after=column_text(field.to_arrow()))
        column = table.columns.get(field.name, DeclaredColumn())
        if column.default is not None:
            yield DeclaredChange("add", table.name, "default", field.name, after=default_text(column.default, field))
        if column.comment:
            yield DeclaredChange("add", table.name, "comment", field.name, after=column.comment)
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

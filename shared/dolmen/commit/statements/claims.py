"""Claims about the names of tables, and of columns, that a transaction has seen.

A statement that changes nothing: it makes the commit depend on settings and columns that its writer has seen.

A statement that changes nothing: it makes a commit of late rows depend on the erasures that were known to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dolmen.commit.draft import Draft
from dolmen.entries.segments.erasures_in_force import reaches
from dolmen.errors import ConflictError
from dolmen.format.schema import Schema, is_nested


@dataclass(frozen=True)
class NamesClaim:
    """A look at the names of tables: the commit is valid only if nobody has created, dropped or renamed one since.

    Args:
        seen: those of the names that there were.
        among: the names that were looked for; None for all.
    """

    seen: frozenset[str]
    among: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The names that were looked for, as people read them."""
        return "*" if self.among is None else ", ".join(sorted(self.among))

    @property
    def uuid(self) -> str:
        """That of no table."""
        return "*"

    def check(self, draft: Draft) -> None:
        """Raises ConflictError if the answer differs in this base."""
        names = frozenset(draft.base.tables)
        now = names if self.among is None else names & self.among
        if other := sorted(now ^ self.seen):
            raise ConflictError(
                f"table {other[0]!r} was created, dropped or renamed by version {draft.base.version} or one before it, "
                "after the transaction had looked for it: repeat the transaction"
            )


class ColumnsMovedError(ConflictError):
    """A name of a column no longer means what it meant when the call used it: whoever made the call makes it again."""


@dataclass(frozen=True)
class ColumnsClaim:
    """The names of a table's columns, as a call used them: it is valid only if they still name the same columns.

    Args:
        base_ts: ``commit_ts`` of the version in which they were looked up.
        schema: the table's columns in that version.
    """

    name: str
    uuid: str
    base_ts: int
    schema: Schema

    def check(self, draft: Draft) -> None:
        """Raises ColumnsMovedError if one was dropped or renamed, also inside of a column. New ones do not matter."""
        if draft.base.commit_ts == self.base_ts:
            return
        now = {(field.name, field.id): field for field in draft.table(self.name, self.uuid).schema.fields}
        for field in self.schema.fields:
            there = now.get((field.name, field.id))
            if there is None or (there.type != field.type and is_nested(there.arrow_type)):
                raise ColumnsMovedError(
                    f"column {field.name!r} of table {self.name!r} was dropped, renamed or replaced by version "
                    f"{draft.base.version} or one before it: repeat the call"
                )


@dataclass(frozen=True)
class Expect:
    """Requires that settings, and perhaps columns, are unchanged. Otherwise the whole commit fails.

    Args:
        name: the table's name; None for the database.
        uuid: the table's uuid.
        properties: the settings as the writer saw them.
        names: the settings to compare; all by default.
        request: the request that this belongs to; if it was applied before, nothing is compared.
        columns: the table's columns as the writer saw them, if it depends on them; None = they do not matter.
    """

    name: str | None
    uuid: str
    properties: Mapping[str, Any]
    names: Collection[str] | None = None
    request: str | None = None
    columns: Schema | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ConflictError if something has changed, TableNotFoundError if the table is gone."""
        if self.name is None:
            now = draft.properties
        else:
            entry = draft.table(self.name, self.uuid)
            now = entry.properties
            if self.columns is not None and _read_files_by(self.columns) != _read_files_by(entry.schema):
                raise ConflictError(
                    f"somebody changed columns of table {self.name!r} meanwhile, in version {draft.base.version} or "
                    "one before it: look at them again"
                )
        names = {*now, *self.properties} if self.names is None else self.names
        if changed := sorted(name for name in names if now.get(name) != self.properties.get(name)):
            what = "the database" if self.name is None else f"table {self.name!r}"
            raise ConflictError(
                f"somebody changed {', '.join(changed)} of {what} meanwhile, in version {draft.base.version} or one "
                "before it: look at the differences again"
            )


def _read_files_by(schema: Schema) -> list[tuple[Any, ...]]:
    """The facts about columns that decide how a file is read into them, and whether it fits."""
    return [(field.id, field.name, field.type, field.nullable, field.write_default) for field in schema.fields]


class ErasedMeanwhileError(ConflictError):
    """Rows were erased after those of a commit were compared with erasures. Made again, the commit leaves them out."""


@dataclass(frozen=True)
class ExpectErasures:
    """Requires that nothing was erased since that rows must be held against. Otherwise the commit fails.

    Args:
        name: the table's name.
        uuid: the table's uuid.
        seen_ts: commit timestamp of the version whose erasures the rows were held against.
        dropped_us: when the rows were dropped, the first of them, by the server's clock; None if that is not known.
        request: the request that this belongs to; if it was applied before, nothing is compared.
    """

    name: str
    uuid: str
    seen_ts: int
    dropped_us: int | None
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ErasedMeanwhileError if there is such an erasure, TableNotFoundError if the table is gone."""
        entry = draft.table(self.name, self.uuid)
        for erasure in draft.erasures_after(self.seen_ts):
            if erasure.is_later_than(self.dropped_us) and reaches(erasure, entry):
                raise ErasedMeanwhileError(
                    f"table {self.name!r}: version {erasure.version} erased rows meanwhile, which these may be: read "
                    "them again, and leave out what was erased"
                )

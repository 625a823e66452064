"""Claims about the names of tables, and of columns, that a transaction has seen."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.commit.draft import Draft
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

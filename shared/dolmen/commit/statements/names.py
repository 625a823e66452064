"""Claims about the names of tables that a transaction has seen."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.commit.draft import Draft
from dolmen.errors import ConflictError


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

"""The Protocols of statements: each can be applied to a draft of the next version."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from dolmen.commit.draft import Draft
from dolmen.commit.uploads import PendingUploads


class Statement(Protocol):
    """One step of a change. ``request`` is the applied id it is bound to, if any."""

    @property
    def name(self) -> str | None:
        """The table it is about, as it is called at this point of the change; None for the database."""

    @property
    def uuid(self) -> str:
        """The uuid of that table; "" for the database."""

    @property
    def request(self) -> str | None:
        """The applied id that this statement belongs to."""

    def apply(self, draft: Draft, ts: int) -> None:
        """Changes the draft. Raises ConflictError and what the statement documents; pure."""


class Prepared(Statement, Protocol):
    """A statement that has to be fitted to each base before it is applied to that."""

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Statement:
        """The statement as this base needs it; reads what that takes."""


def is_prepared(statement: Statement) -> TypeGuard[Prepared]:
    """Whether a statement has to be fitted (isinstance would look through the whole protocol each time)."""
    return hasattr(statement, "prepare")

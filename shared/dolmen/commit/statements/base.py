"""The protocols of statements: each can be applied to a draft of the next version."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from dolmen.commit.draft import Draft
from dolmen.commit.uploads import PendingUploads


class Statement(Protocol):
    """One step of a change."""

    @property
    def name(self) -> str | None:
        """The table's name at this point of the change; None for the database."""

    @property
    def uuid(self) -> str:
        """The table's uuid; "" for the database."""

    @property
    def request(self) -> str | None:
        """The request that this statement belongs to, if any."""

    def apply(self, draft: Draft, ts: int) -> None:
        """Changes the draft. Pure. Raises ConflictError, and the errors that the statement documents."""


class Prepared(Statement, Protocol):
    """A statement that must be fitted to a base version before it is applied to it."""

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Statement:
        """Returns the statement fitted to the draft's base. Reads what it needs for that."""


def is_prepared(statement: Statement) -> TypeGuard[Prepared]:
    """Whether a statement must be fitted. ``isinstance`` would check the whole protocol each time."""
    return hasattr(statement, "prepare")

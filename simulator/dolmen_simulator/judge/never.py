"""Names what must never happen. Every check says which of these promises a failure would break."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from dolmen.errors import UnknownOutcomeError


class Never(Enum):
    """The kinds of violations."""

    LOST = "a committed row disappears, or is there twice"
    DOUBLED = "an insert adds a key that the version that it lands on has already"
    REVIVED = "a deleted row comes back"
    UNCHECKED = "a check of a version is FALSE for one of its rows"
    MISPLACED = "a row is of another partition than its file says"
    HALF = "a reader sees half a commit"
    UNREADABLE = "a version within retention cannot be read"
    COLLECTED = "an object is removed that a kept version or a commit that may still land needs"
    TWICE = "an event is applied twice, or one of a batch not at all"
    STRAYED = "what was meant for one table is done to another, whatever tables are called meanwhile"
    MISREPORTED = "an error hides a committed change, or reports success for a lost one"
    MISDATED = "a commit is dated before it was asked for"
    MISFED = "the change feed replayed gives other rows than the version"
    KEPT = "a receipt says that an erasure is gone while an object of the database still holds its rows"
    MISPUBLISHED = (
        "a published snapshot shows other rows than the version it names, or loses an object while it is published"
    )
    SEEN = "an erased row is seen by a reader that opened the database after the erasure, in whichever version"


class ViolationError(AssertionError):
    """Something happened that must never happen.

    Args:
        never: the kind. A structural check names the violation that its finding would lead to.
        what: description of what happened.
    """

    def __init__(self, never: Never, what: str) -> None:
        super().__init__(never, what)  # both of them, so that it can be sent between processes
        self.never, self.what = never, what

    def __str__(self) -> str:
        return f"{self.never.name.lower()}: {self.what}"


def violated_promise(error: BaseException) -> Never | None:
    """The kind of the violation that an error is, or was raised from; None if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ViolationError):
            return cause.never
        cause = cause.__cause__
    return None


@contextmanager
def raising_unreadable(what: str) -> Iterator[None]:
    """Raises any error of the block as UNREADABLE: the block reads kept data, without any faults.

    Args:
        what: name of the data, for the message.

    Raises:
        ViolationError: UNREADABLE, from the error of the block.
    """
    try:
        yield
    except ViolationError:
        raise
    except Exception as error:
        raise ViolationError(Never.UNREADABLE, f"{what}: {type(error).__name__}: {error}") from error


def unexpected_error(what: str, error: Exception) -> ViolationError:
    """The violation of a call that raised an error without a reason.

    An unknown outcome without any fault hides an outcome that could be known: MISREPORTED. Any other error keeps users
    from reading or writing, as damage does: UNREADABLE.
    """
    never = Never.MISREPORTED if isinstance(error, UnknownOutcomeError) else Never.UNREADABLE
    return ViolationError(never, f"{what}: {type(error).__name__}: {error}")

"""What must never happen, by name. Whoever checks anything says which of these it would be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from dolmen.errors import UnknownOutcomeError


class Never(Enum):
    """The eight things that no database may do to its users."""

    LOST = "a committed row disappears, or is there twice"
    REVIVED = "a deleted row comes back"
    HALF = "a reader sees half a commit"
    UNREADABLE = "a version within retention cannot be read"
    COLLECTED = "an object is removed that a kept version or a commit that may still land needs"
    TWICE = "an event is applied twice, or one of a batch not at all"
    STRAYED = "what was meant for one table is done to another, whatever tables are called meanwhile"
    MISREPORTED = "an error hides a committed change, or reports success for a lost one"


class ViolationError(AssertionError):
    """Something happened that must never happen.

    Args:
        never: which of the eight. A structural check names what would come of what it found.
        what: what happened.
    """

    def __init__(self, never: Never, what: str) -> None:
        super().__init__(never, what)  # both of them, so that it can be sent between processes
        self.never, self.what = never, what

    def __str__(self) -> str:
        return f"{self.never.name.lower()}: {self.what}"


def violated_promise(error: BaseException) -> Never | None:
    """Which of the eight an error is, or was raised from; None if it is something else that went wrong."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ViolationError):
            return cause.never
        cause = cause.__cause__
    return None


@contextmanager
def raising_unreadable(what: str) -> Iterator[None]:
    """What is done in here reads what is kept, and nothing disturbs it: any error is one that users would see.

    Args:
        what: what is read, for the message.

    Raises:
        ViolationError: UNREADABLE, from whatever was raised instead of an answer.
    """
    try:
        yield
    except ViolationError:
        raise
    except Exception as error:
        raise ViolationError(Never.UNREADABLE, f"{what}: {type(error).__name__}: {error}") from error


def unexpected_error(what: str, error: Exception) -> ViolationError:
    """What it means that a call raised an error that nothing explains.

    An outcome that is unknown though nothing went wrong hides one that could be known. Anything else keeps users from
    reading or writing what is there, as damage does.
    """
    never = Never.MISREPORTED if isinstance(error, UnknownOutcomeError) else Never.UNREADABLE
    return ViolationError(never, f"{what}: {type(error).__name__}: {error}")

"""What a log may say of an error: kinds, places and numbers, never a value of the data or of a request.

Errors are written for whoever sent the data, and quote it: a reject's report lies beside the data and may. A log is
read by others, kept elsewhere and for other times, and an erased person's name must not live on in it.
"""

from __future__ import annotations

from pathlib import PurePath
from traceback import extract_tb
from typing import Any

from dolmen.errors import AppliedIdError, Error, InputError, LimitError, NotFoundError, PredicateError, RowError

HIDDEN = "…"
"""Stands where an error quotes something."""
_UNFORESEEN = "an error that nobody foresaw; 'at' says where"
_MOST_SHOWN = 120
_MOST_FRAMES = 12


class MessageError(InputError):
    """A message that cannot be understood.

    Args:
        template: what is wrong, with ``{}`` where something of the message is quoted.
        quoted: what stands there, shown as Python writes it, shortened.
    """

    def __init__(self, template: str, *quoted: object) -> None:
        self.template, self.quoted = template, quoted
        super().__init__(template.format(*map(_shown, quoted)))

    @property
    def logged(self) -> str:
        """The message without what it quotes."""
        return self.template.format(*[HIDDEN] * len(self.quoted))

    def at(self, place: str) -> MessageError:
        """The same, said of a part of the message."""
        return MessageError(f"{place}: {self.template}", *self.quoted)


class UnforeseenError(InputError):
    """A file that cannot be ingested, whenever it is tried, by an error that nobody foresaw.

    Args:
        file: its name.
        cause: the error, whose text may hold anything.
    """

    def __init__(self, file: str, cause: Exception) -> None:
        super().__init__(
            f"file {file!r} cannot be ingested: {type(cause).__name__}: {cause} (nobody foresaw this: please report it)"
        )
        self.__cause__ = cause


def logged_reason(error: BaseException) -> str:
    """One line about an error without any value in it."""
    match error:
        case MessageError():
            return error.logged
        case UnforeseenError():
            return _UNFORESEEN
        case RowError():
            return "a row is malformed, or a value does not fit its column"
        case PredicateError():
            place = "" if error.position is None else f"at character {error.position}: "
            return f"{place}the predicate cannot be read, or does not fit the table"
        case LimitError() | AppliedIdError() | NotFoundError():
            return str(error)  # counts, ids and names
        case InputError():
            return (type(error).__doc__ or "").partition("\n")[0]
        case Error():
            return str(error)  # about objects and versions: no caller's data
    return _UNFORESEEN


def logged_facts(error: BaseException) -> dict[str, Any]:
    """The named facts of a log record about an error: its kind, reason and place; of a bug the calls that led there,
    innermost last, for its text may hold anything."""
    facts: dict[str, Any] = {"error": type(error).__name__, "reason": logged_reason(error)}
    if isinstance(error, RowError):
        facts |= {"line": error.line, "row": error.row}
    bug = error.__cause__ if isinstance(error, UnforeseenError) else error
    if bug is not None and not isinstance(bug, Error):
        frames = extract_tb(bug.__traceback__)[-_MOST_FRAMES:]
        facts["at"] = [f"{'/'.join(PurePath(one.filename).parts[-2:])}:{one.lineno} {one.name}" for one in frames]
    return {name: value for name, value in facts.items() if value is not None}


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # too deep, or an integer with thousands of digits
        return type(value).__name__
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."

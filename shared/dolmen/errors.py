"""Every exception of dolmen, grouped by what the caller should do about it.

::

    Error
    ├── InputError (ValueError)      correct the request or the data; nothing was changed
    │   ├── SchemaError              a schema that cannot be stored, or data that does not match it
    │   ├── RowError                 one row of the input is invalid: names file, row and column
    │   ├── DuplicateKeyError        keys to insert that are in the table already, or in several of the rows
    │   ├── PredicateError           a predicate that cannot be parsed or bound: names the position
    │   ├── InvalidNameError         not allowed as the name of a table, tag or cursor
    │   ├── TableExistsError         a table has this name already
    │   ├── TagExistsError           the tag names another version
    │   ├── AdoptionError            files that cannot be adopted: lists all reasons
    │   ├── LimitError               a request larger than the documented limits
    │   └── AppliedIdError           the id was applied before, with other content
    ├── NotFoundError (LookupError)  correct the name, or create the object first
    │   ├── DatabaseNotFoundError    no pointer under this URL
    │   ├── TableNotFoundError       no such table in this version
    │   ├── RowNotFoundError         no row with this key (``dolmen get``)
    │   ├── VersionNotFoundError     no such version, or none at that time
    │   ├── VersionExpiredError      the version is before the horizon, and no tag keeps it
    │   ├── TagNotFoundError         no such tag or cursor
    │   ├── ErasureNotFoundError     no erasure with this id
    │   └── ObjectNotFoundError      no object under this key
    ├── RetryableError               the same call may succeed later; nothing was changed
    │   ├── ConflictError            another commit changed what this one depends on: repeat on the newest version
    │   ├── StaleWriterError         the commit's objects may have been deleted as orphans: write them again
    │   ├── UnsettledTimestampError  ``at(timestamp=...)`` is too close to now
    │   ├── ClockError               the store's clock is a day away from every other clock
    │   ├── ObjectChangedError       the object was overwritten while it was read
    │   └── StoreUnavailableError    the store cannot be reached, or refuses requests for the moment
    ├── UnknownOutcomeError          the commit may or may not have landed: check before you repeat it
    ├── AccessDeniedError            get the permission
    ├── CorruptionError              restore the object from a copy; names the object and the damage
    └── UnsupportedFormatError       upgrade dolmen: the object was written by a newer version
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from typing import Any, Literal

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"`]+@")

MAX_SHOWN = 60  # the most characters of an invalid value that an error shows


def without_credentials(text: str) -> str:
    """Removes user names and passwords from the URLs in a text, because errors are logged, sent and shown."""
    return _CREDENTIALS.sub("***@", text) if "@" in text else text


def short_repr(value: Any) -> str:
    """A short text for an invalid value of any kind, for errors."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * MAX_SHOWN:
        return f"<a number of {value.bit_length():,} bits>"  # Python cannot print more than 4,300 digits
    try:
        shown = repr(value) if isinstance(value, str) else reprlib.repr(value)  # reads only the part it shows
    except Exception:  # noqa: BLE001 - an object's own repr may raise anything
        return f"<{type(value).__name__}>"
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 3]}..."


class Error(Exception):
    """Base of all exceptions of dolmen. Their texts contain no user names or passwords of URLs."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_credentials(each) if isinstance(each, str) else each for each in args))


class InputError(Error, ValueError):
    """The request or the data must be corrected. Nothing was changed."""


class SchemaError(InputError):
    """A schema that cannot be stored, or data that does not match the table's schema.

    Args:
        column: name of the column that is unknown, missing, duplicate, or of another type; None for other errors.
    """

    def __init__(self, *args: object, column: str | None = None) -> None:
        super().__init__(*args)
        self.column = column


RowProblem = Literal["few fields", "not UTF-8", "no name"]
"""A record lacks fields at its end; its text is not UTF-8; it has a value in a column without a name."""


class RowError(InputError):
    """One row of the input is invalid.

    Args:
        reason: what is wrong, without file, row and column.
        file: name of the file, if the input is a file.
        line: 1-based line in the file (text formats), if known.
        row: 1-based data row of the input (without the header), if known.
        column: name of the column, if one is wrong.
        problem: the kind of problem, if reading the file in another way may solve it; otherwise None.
    """

    def __init__(
        self,
        reason: str,
        *,
        file: str | None = None,
        line: int | None = None,
        row: int | None = None,
        column: str | None = None,
        problem: RowProblem | None = None,
    ) -> None:
        self.reason, self.file, self.line, self.row, self.column = reason, file, line, row, column
        self.problem = problem
        where = [
            f"{word} {value!r}" if isinstance(value, str) else f"{word} {value}"
            for word, value in (("file", file), ("line", line), ("row", row), ("column", column))
            if value is not None
        ]
        super().__init__(f"{', '.join(where)}: {reason}" if where else reason)


class ConstraintError(RowError):
    """A row has NULL in a column that is NOT NULL, or one of the table's checks is FALSE for it."""


class DuplicateKeyError(InputError):
    """Rows to insert have primary keys that the table already has, or that several of them share. Nothing was added.

    Args:
        table: name of the table.
        columns: names of the primary key's columns.
        keys: the first duplicate keys, each with a value for each column.
        count: number of duplicate keys.
        in_rows: True if several rows to insert share the keys; False if the table has them.
    """

    def __init__(
        self,
        table: str,
        columns: Sequence[str],
        keys: Sequence[tuple[object, ...]],
        count: int,
        *,
        in_rows: bool = False,
    ) -> None:
        self.table, self.columns, self.keys, self.count = table, tuple(columns), tuple(keys), count
        self.in_rows = in_rows
        texts = [", ".join(map(_short_value, key)) for key in self.keys]
        listed = ", ".join(text if len(self.columns) == 1 else f"({text})" for text in texts)
        more = f" and {count - len(texts):,} more" if count > len(texts) else ""
        duplicates = f"{count:,} key{'s' if count != 1 else ''} ({', '.join(self.columns)}): {listed}{more}"
        super().__init__(
            f"table {table!r}: several rows to insert share {duplicates}. "
            "Keep one row per key, or use upsert, where the last row wins"
            if in_rows
            else f"table {table!r} already has rows with {duplicates}. "
            "Leave them out, or use upsert, which replaces existing rows"
        )


def _short_value(value: object) -> str:
    text = repr(value) if isinstance(value, (str, bytes)) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class PredicateError(InputError):
    """A predicate that cannot be parsed, or does not match the table.

    Args:
        reason: what is wrong and what to do.
        position: 0-based character offset in the predicate's text; None if the predicate is not text.
        is_mistake: False if dolmen's predicates cannot express this, but DuckDB may be able to evaluate it.
    """

    def __init__(self, reason: str, *, position: int | None = None, is_mistake: bool = True) -> None:
        self.reason, self.position, self.is_mistake = reason, position, is_mistake
        super().__init__(reason if position is None else f"at character {position}: {reason}")


class InvalidNameError(InputError):
    """A name that is not allowed for a table, tag or cursor."""


class TableExistsError(InputError):
    """A table of this name exists already."""


class TagExistsError(InputError):
    """A tag of this name exists already."""


class AdoptionError(InputError):
    """Files cannot become a table without being copied. Nothing was changed.

    Args:
        source: the file, the folder, or the Iceberg table.
        reasons: all reasons, by file and column.
        advice: what to do instead.
    """

    def __init__(
        self,
        source: str,
        reasons: Sequence[str],
        advice: str = "Append the files, which copies and converts their rows: dolmen append TABLE FILE... --create",
    ) -> None:
        self.source, self.reasons, self.advice = source, tuple(reasons), advice
        listed = "".join(f"\n  {reason}" for reason in reasons)
        super().__init__(f"{source} cannot be adopted:{listed}\n{advice}")


class LimitError(InputError):
    """The request is larger than a documented limit."""


class AppliedIdError(InputError):
    """This id was applied before, by a request with other content."""


class NotFoundError(Error, LookupError):
    """The requested object does not exist."""


class DatabaseNotFoundError(NotFoundError):
    """There is no database under this URL."""


class TableNotFoundError(NotFoundError):
    """The version has no table of this name."""


class RowNotFoundError(NotFoundError):
    """The version has no row with this primary key."""


class VersionNotFoundError(NotFoundError):
    """The database has no such version."""


class VersionExpiredError(NotFoundError):
    """The version is before the horizon: its objects may be deleted."""


class TagNotFoundError(NotFoundError):
    """The database has no tag or cursor of this name."""


class ErasureNotFoundError(NotFoundError):
    """The database has no erasure with this id."""


class ObjectNotFoundError(NotFoundError):
    """The store has no object under this key."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"no object {key!r}")


class RetryableError(Error):
    """The same call may succeed later. Nothing was changed."""


class ConflictError(RetryableError):
    """Another commit changed something that this one depends on. Repeat it on the newest version."""


class StaleWriterError(RetryableError):
    """This writer's first upload is before the fence: its objects may have been deleted. Write them again."""


class UnsettledTimestampError(RetryableError):
    """A commit in progress may still get a timestamp before the requested one."""


class ClockError(RetryableError):
    """The store's clock is a day away from both the local clock and the previous commit."""


class ObjectChangedError(RetryableError):
    """The object was overwritten after its ETag was read."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"object {key!r} was overwritten after its ETag was read")


class StoreUnavailableError(RetryableError):
    """The store cannot be reached, times out, or refuses requests for the moment."""


class UnknownOutcomeError(Error):
    """The commit was sent and got no response, so it may have landed.

    Args:
        commit_id: the commit's id; ``Database.history()`` lists it if it landed.
        reason: why there was no response.
    """

    def __init__(self, commit_id: str, reason: str) -> None:
        self.commit_id, self.reason = commit_id, reason
        super().__init__(
            f"commit {commit_id} may or may not have landed ({reason}); "
            "look for its id in history() before repeating it"
        )


class AccessDeniedError(Error):
    """The store refuses this caller."""


class CorruptionError(Error):
    """An object does not match its checksum or its format.

    Args:
        key: the damaged object.
        reason: how it is damaged.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key, self.reason = key, reason
        super().__init__(f"object {key!r} is damaged: {reason}")

    @property
    def is_missing(self) -> bool:
        """Whether the object does not exist, which is not damage if nothing needs it anymore."""
        return isinstance(self.__cause__, (ObjectNotFoundError, FileNotFoundError))


class UnsupportedFormatError(Error):
    """The object was written by a newer version of dolmen, or not by dolmen."""

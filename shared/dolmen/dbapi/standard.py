"""The names that PEP 249 fixes: exceptions, type objects, and constructors of values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from typing import TypeAlias

from dolmen import errors
from dolmen.errors import Error

__all__ = ["Error"]


class Warning(Exception):  # noqa: N818 - PEP 249's name
    """PEP 249's warning, which dolmen never raises."""


class InterfaceError(Error):
    """A call that the connection or cursor does not allow in its present state."""


class DatabaseError(Error):
    """An error of the database. ``__cause__`` is dolmen's own error, with all details."""

    retryable = False  # true if the transaction may succeed when it is repeated from its beginning


class DataError(DatabaseError):
    """Correct the values: they do not fit the columns."""


class OperationalError(DatabaseError):
    """Nothing is wrong with the statement. Repeat the transaction if ``retryable``; otherwise check the store."""


class IntegrityError(DatabaseError):
    """A row with this primary key exists already."""


class InternalError(DatabaseError):
    """Data of the database is damaged."""


class ProgrammingError(DatabaseError):
    """Correct the statement, its parameters, or the order of calls."""


class NotSupportedError(DatabaseError):
    """This version of dolmen cannot do it."""


_CLASSES: tuple[tuple[tuple[type[Error], ...], type[DatabaseError]], ...] = (
    ((errors.DuplicateKeyError, errors.ConstraintError), IntegrityError),
    ((errors.RowError, errors.SchemaError), DataError),
    ((errors.RetryableError, errors.VersionExpiredError), OperationalError),
    ((errors.UnknownOutcomeError, errors.AccessDeniedError), OperationalError),
    ((errors.CorruptionError, errors.ObjectNotFoundError), InternalError),
    ((errors.UnsupportedFormatError,), NotSupportedError),
)
"""By dolmen's errors; all others are ProgrammingError."""


@contextmanager
def raising_database_errors() -> Iterator[None]:
    """Raises dolmen's errors as those of PEP 249."""
    try:
        yield
    except (InterfaceError, DatabaseError):
        raise
    except Error as error:
        raised = next((mapped for kinds, mapped in _CLASSES if isinstance(error, kinds)), ProgrammingError)(str(error))
        raised.retryable = isinstance(error, (errors.RetryableError, errors.VersionExpiredError))
        raise raised from error


class TypeObject:
    """Equals the type codes of some kinds of columns, which are DuckDB's names of types."""

    def __init__(self, name: str, *codes: str) -> None:
        self._name, self._codes = name, frozenset(codes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return self is other
        return other.partition("(")[0] in self._codes

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


STRING = TypeObject("STRING", "VARCHAR", "UUID", "JSON", "ENUM", "BIT")
BINARY = TypeObject("BINARY", "BLOB")
NUMBER = TypeObject(
    "NUMBER",
    *(f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG", "HUGE")),
    *("INTEGER", "UINTEGER", "BIGNUM", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN"),
)  # fmt: skip
DATETIME = TypeObject(
    "DATETIME", "DATE", "TIME", "TIME WITH TIME ZONE", "TIME_NS", "INTERVAL", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS",
)  # fmt: skip
ROWID = TypeObject("ROWID")

Date: TypeAlias = date
Time: TypeAlias = time
Timestamp: TypeAlias = datetime
Binary: TypeAlias = bytes


def DateFromTicks(ticks: float) -> date:  # noqa: N802 - PEP 249's name
    """The date of a time in seconds since the epoch, in UTC, as dolmen's clocks are."""
    return TimestampFromTicks(ticks).date()


def TimeFromTicks(ticks: float) -> time:  # noqa: N802 - PEP 249's name
    """The time of day of a time in seconds since the epoch, in UTC."""
    return TimestampFromTicks(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:  # noqa: N802 - PEP 249's name
    """The timestamp of a time in seconds since the epoch, in UTC, without a zone."""
    return datetime.fromtimestamp(ticks, UTC).replace(tzinfo=None)

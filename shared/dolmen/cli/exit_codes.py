"""Exit codes of the ``dolmen`` command: one per branch of the exception tree, by what the caller would do.

====  =======================================================================
0     done
1     a fault of dolmen itself: please report it
2     the command line, the request or the data must be corrected
3     what was asked for is not there
4     try the same again later; nothing was changed
5     the commit may or may not have landed: look at ``dolmen history`` first
6     the store denies access
7     an object is damaged or missing: also when ``dolmen verify`` finds one
8     written by a newer dolmen: upgrade
9     work was done in part: call it again (``gc`` says what it could not delete); with ``apply --dry-run
      --exit-code``: there is something to do
130   interrupted by Ctrl-C: what was committed by then is committed (``dolmen history``)
141   whatever reads the output has gone away: ``dolmen scan events | head`` is complete
====  =======================================================================
"""

from __future__ import annotations

from dolmen.errors import (
    AccessDeniedError,
    CorruptionError,
    Error,
    InputError,
    NotFoundError,
    RetryableError,
    UnknownOutcomeError,
    UnsupportedFormatError,
)

DAMAGED = 7
"""What ``dolmen verify`` ends with when it has found an error; warnings end with 0."""

INCOMPLETE = 9
"""What background work ends with when it left something undone."""

DECLINED = 4
"""Exit code of a command whose question was answered with no: nothing was changed."""

INTERRUPTED, BROKEN_PIPE = 130, 141
"""As shells count what SIGINT and SIGPIPE end."""

_CODES: tuple[tuple[type[Error], int], ...] = (
    (InputError, 2),
    (NotFoundError, 3),
    (RetryableError, 4),
    (UnknownOutcomeError, 5),
    (AccessDeniedError, 6),
    (CorruptionError, DAMAGED),
    (UnsupportedFormatError, 8),
)


def exit_code(error: Error) -> int:
    """The exit code that tells a script what to do about an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)

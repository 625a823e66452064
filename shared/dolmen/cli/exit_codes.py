"""Exit codes of the ``dolmen`` command and of the jobs: one for each branch of the exception tree.

====  =======================================================================
0     done
1     a bug in dolmen: please report it
2     the command line, the request or the data must be corrected
3     the table, version, row or object does not exist
4     try again later, or a question was answered with no; nothing was changed
5     the commit may or may not have landed: look at ``dolmen history`` first
6     the store denies access
7     an object is damaged or missing; also when ``dolmen verify`` finds an error
8     the database was written by a newer dolmen: upgrade
9     the work is not finished: call it again (``gc`` says what it could not delete); with ``apply --dry-run
      --exit-code``: there is something to do
10    done, but bad rows were put aside (``append --on-bad-row quarantine``): the commit holds the others
130   interrupted by Ctrl-C; earlier commits stay (``dolmen history``)
141   the reader of the output has gone away, as in ``dolmen scan events | head``
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

DAMAGED = 7  # exit code of ``dolmen verify`` when it has found an error. Warnings end with 0.
INCOMPLETE = 9  # exit code of background work that is not finished
ROWS_PUT_ASIDE = 10
"""Exit code of a command whose commit lacks the bad rows of its files, which are in files of their own."""
DECLINED = 4  # exit code of a command whose question was answered with no. Nothing was changed.
SPARK_FAILED = 4
"""Exit code when Spark failed, for instance because a machine was lost. Earlier commits stay; try again."""
INTERRUPTED, BROKEN_PIPE = 130, 141  # exit codes that shells use for SIGINT and SIGPIPE

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
    """The exit code that shows a script how to react to an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)

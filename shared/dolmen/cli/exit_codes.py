"""Exit codes of the ``dolmen`` command: one for each branch of the exception tree, by what the caller should do.

====  =======================================================================
0     done
1     a fault of dolmen itself: please report it
2     the command line, the request or the data must be corrected
3     the table, version, row or object does not exist
4     try again later; nothing was changed
5     the commit may or may not have landed: look at ``dolmen history`` first
6     the store denies access
7     an object is damaged or missing; also when ``dolmen verify`` finds an error
8     the database was written by a newer dolmen: upgrade
9     the work is not finished: call it again (``gc`` says what it could not delete); with ``apply --dry-run
      --exit-code``: there is something to do
130   interrupted by Ctrl-C; commits made before stay (``dolmen history``)
141   the reader of the output has gone away, as in ``dolmen scan events | head``
====  =======================================================================

Shared by the jobs that ``spark-submit`` runs: errors in one line, and the command's exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer
from rich.markup import escape
from rich.status import Status

from dolmen.cli.output import errors, print_json
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
"""Exit code of ``dolmen verify`` when it has found an error. Warnings end with 0."""


INCOMPLETE = 9
"""Exit code of background work that is not finished."""


DECLINED = 4
"""Exit code of a command whose question was answered with no. Nothing was changed."""


INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit codes that shells use for SIGINT and SIGPIPE."""


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
    """The exit code that tells a script how to react to an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)


SPARK_FAILED = 4
"""Exit code when Spark failed, for instance by a lost machine. Commits made before stay; try it again."""


def run_job(command: Callable[..., None]) -> None:
    """Runs a job's command line and ends the process with its exit code.

    Args:
        command: a function; typer makes options of its parameters.
    """
    try:
        typer.run(command)
    except Error as error:
        _say(type(error).__name__, error, exit_code(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except OSError as error:
        _say("error", error, 2)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        _say(type(error).__name__, error, SPARK_FAILED)


def _say(kind: str, error: BaseException, code: int) -> None:
    if "--json" in sys.argv:
        print_json({"error": {"type": kind, "message": str(error), "exit_code": code}})
    else:
        errors.print(f"[bold red]{kind}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
    raise SystemExit(code) from None


class StatusLine:
    """Shows the state of a job on standard error: one changing line on a terminal, otherwise lines with seconds."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._status: Status | None = errors.status("") if errors.is_terminal and not quiet else None

    def show(self, seconds: float, text: str) -> None:
        """Shows a state, with the seconds since the job began."""
        if self._status is not None:
            self._status.update(escape(text))
        elif not self._quiet:
            errors.print(f"{seconds:8.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> StatusLine:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._status is not None:
            self._status.stop()

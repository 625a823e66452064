"""Shared by the jobs that ``spark-submit`` runs: errors in one line, and the command's exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer
from rich.markup import escape
from rich.status import Status

from dolmen.cli.exit_codes import exit_code
from dolmen.cli.output import errors, print_json
from dolmen.errors import Error

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

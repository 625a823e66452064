"""Runs the commands. Only the module of the called command is imported, so that it starts sooner."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import typer
from rich.markup import escape

from dolmen.cli.exit_codes import INTERRUPTED, SPARK_FAILED, exit_code
from dolmen.cli.options import add_examples, app
from dolmen.cli.output import errors, print_json
from dolmen.cli.overview import COMMANDS
from dolmen.errors import Error


@cache
def command_line(name: str | None = None) -> Any:
    """The application with the module that has the command ``name``; with all modules if none has it."""
    module = next((module for module, names in COMMANDS.items() if name in names), None)
    for each in COMMANDS if module is None else (module,):
        import_module(f"dolmen.cli.{each}")
    add_examples(app)
    return typer.main.get_command(app)


def main() -> None:
    """Runs the command. Errors of dolmen become one line and an exit code (cli/exit_codes.py)."""
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), None)

    def call() -> None:
        application = command_line(name)
        gc.freeze()  # the collector can ignore what is imported, while a command runs and when it ends
        gc.enable()
        application(prog_name="dolmen")  # otherwise Click names it after the program that runs it

    _run(call)


def run_job(command: Callable[..., None]) -> None:
    """Runs the command line of a job for ``spark-submit``: a function, whose parameters become options."""
    _run(lambda: typer.run(command))


def _run(call: Callable[[], object]) -> None:
    """Ends the process with the exit code of an error, which is printed in one line."""
    try:
        call()
    except Error as error:
        _fail(type(error).__name__, error, exit_code(error))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except OSError as error:
        _fail("error", OSError(f"{error.filename}: {error.strerror}") if error.filename else error, 2)
    except Exception as error:
        # Up to Python 3.11, Ctrl-C becomes a RuntimeError while a class is made, for instance during an import.
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, KeyboardInterrupt):
            raise SystemExit(INTERRUPTED) from None
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        _fail(type(error).__name__, error, SPARK_FAILED)


def _fail(kind: str, error: BaseException, code: int) -> NoReturn:
    if "--json" in sys.argv:
        print_json({"error": {"type": kind, "message": str(error), "exit_code": code}})
    else:
        errors.print(f"[bold red]{kind}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
    raise SystemExit(code) from None

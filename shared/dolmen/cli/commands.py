"""The commands by name. Only the module of the command that is called is imported, so that it starts sooner."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any

import typer
from rich.markup import escape

from dolmen.cli.exit_codes import exit_code
from dolmen.cli.options import add_examples, app
from dolmen.cli.output import errors, print_json
from dolmen.errors import Error

COMMANDS = {
    "adopt_and_publish": ("adopt", "publish-iceberg"),
    "declare": ("alter", "apply"),
    "backfill": ("backfill",),
    "feed": ("changes",),
    "erase": ("erase", "forget", "erasures"),
    "show": ("history", "tables", "show"),
    "past_versions": ("tag", "tags", "restore", "clone"),
    "programs": ("local", "simulate", "check-store"),
    "rejected": ("rejected",),
    "report": ("report",),
    "requests": ("request-delete", "request-status"),
    "upkeep": ("set", "settings", "resolve", "compact", "maintain", "gc", "verify", "stats"),
    "app": ("create", "append", "delete", "drop", "rename", "scan", "get", "sql", "update", "merge"),
}
"""The commands of each module of ``dolmen.cli``, in the order of ``dolmen --help``."""


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
    try:
        name = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
        command_line(name)(prog_name="dolmen")  # otherwise Click names it after the program that runs it
    except Error as error:
        if "--json" in sys.argv:
            print_json({"error": {"type": type(error).__name__, "message": str(error), "exit_code": exit_code(error)}})
        else:
            errors.print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        raise SystemExit(exit_code(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except RuntimeError as error:
        # Up to Python 3.11 a Ctrl-C becomes this while a class is made, which is what imports do.
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise SystemExit(130) from None
        raise
    except OSError as error:
        errors.print(f"[bold red]error[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        raise SystemExit(2) from None

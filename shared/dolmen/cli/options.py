"""The application, and the options that commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

import dolmen
from dolmen.api.database import Database
from dolmen.cli.exit_codes import BROKEN_PIPE, INTERRUPTED
from dolmen.errors import DatabaseNotFoundError, Error
from dolmen.format.file_formats import WRITTEN, listed


class Commands(TyperGroup):
    """The group of all commands. It ends quietly when the user, or the next command of a pipe, stops reading."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
            raise typer.Exit(BROKEN_PIPE) from None
        except typer.Abort:  # Ctrl-C or end of input at a question
            raise typer.Exit(INTERRUPTED) from None
        return result


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"dolmen {version('dolmen')}\n")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    help="dolmen: columnar tables on S3 with constant-time deletes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def open_existing(url: str) -> Database:
    """Opens a database that a command needs: it must be there. Raises DatabaseNotFoundError."""
    database = dolmen.open(url)
    if database.version == 0:
        raise DatabaseNotFoundError(f"there is no database at {database.url}")
    return database


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version of dolmen.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


DatabaseUrl = Annotated[
    str,
    typer.Option("--database", "-d", envvar="DOLMEN_DATABASE", help="s3://bucket/prefix or a directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def complete(context: typer.Context, incomplete: str, names: Callable[[dolmen.Database], Iterable[str]]) -> list[str]:
    """Names for a shell's completion; none if the database cannot be read.

    Args:
        names: gives all names of a database.
    """
    database = context.params.get("database") or os.environ.get("DOLMEN_DATABASE")
    try:
        known = names(dolmen.open(database)) if database else ()
    except Error:
        return []
    return sorted(name for name in known if name.startswith(incomplete))


def _complete_table(context: typer.Context, incomplete: str) -> list[str]:
    return complete(context, incomplete, lambda db: db.tables())


TableName = Annotated[str, typer.Argument(help="Name of the table.", autocompletion=_complete_table)]
Request = Annotated[
    Optional[str], typer.Option("--request-id", help="Apply this only once under this id, however often it is tried.")  # noqa: UP045
]
Message = Annotated[Optional[str], typer.Option("--message", help="A message for the history.")]  # noqa: UP045
Output = Annotated[Optional[Path], typer.Option("--output", "-o", help="Write to this file.")]  # noqa: UP045
Form = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--format",
        help=f"{', '.join(WRITTEN)}; table for the first and last rows. By default the file's name decides; "
        "without a file table on a terminal, and csv elsewhere.",
    ),
]
InputForm = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--format", help=f"{listed()}; by default the name decides."),
]
Delimiter = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--delimiter", help="The delimiter of CSV, if not a comma: ';', '|'."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")]

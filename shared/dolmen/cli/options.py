"""What all commands share: the application and its options."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

import dolmen
from dolmen.cli.exit_codes import BROKEN_PIPE, INTERRUPTED
from dolmen.errors import Error
from dolmen.format.file_formats import WRITTEN, listed


class Commands(TyperGroup):
    """The group of all commands: ends quietly where a person or the next command of a pipe has seen enough."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
            raise typer.Exit(BROKEN_PIPE) from None
        except typer.Abort:  # Ctrl-C, or the end of input, where a question was asked
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


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show which dolmen this is.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


DatabaseUrl = Annotated[
    str,
    typer.Option("--database", "-d", envvar="DOLMEN_DATABASE", help="s3://bucket/prefix or a directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _complete_table(context: typer.Context, incomplete: str) -> list[str]:
    """The tables of the database, for shells that ask on Tab; none, if that cannot be told."""
    database = context.params.get("database") or os.environ.get("DOLMEN_DATABASE")
    try:
        names = dolmen.open(database).tables() if database else []
    except Error:
        return []
    return [name for name in names if name.startswith(incomplete)]


TableName = Annotated[str, typer.Argument(help="Name of the table.", autocompletion=_complete_table)]
Version = Annotated[Optional[int], typer.Option("--version", help="Read this version.")]  # noqa: UP045 (typer)
At = Annotated[Optional[str], typer.Option("--at", help="Read the version of this time (ISO 8601, UTC).")]  # noqa: UP045
Request = Annotated[Optional[str], typer.Option("--request-id", help="Apply once, however often tried.")]  # noqa: UP045
Message = Annotated[Optional[str], typer.Option("--message", help="What to say of it in the history.")]  # noqa: UP045
Output = Annotated[Optional[Path], typer.Option("--output", "-o", help="Write to this file.")]  # noqa: UP045
Form = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--format",
        help=f"{', '.join(WRITTEN)}; table: the first and last rows. By default what the file's name says, "
        "without a file table on a terminal, and csv elsewhere.",
    ),
]
InputForm = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--format", help=f"{listed()}, whatever the name says."),
]
Delimiter = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--delimiter", help="What separates the fields of CSV, if not a comma: ';', '|'."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask; needed where nobody can answer.")]

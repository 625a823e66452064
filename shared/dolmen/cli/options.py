"""What all commands share: the application and its options."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

app = typer.Typer(
    help="dolmen: columnar tables on S3 with constant-time deletes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DatabaseUrl = Annotated[
    str,
    typer.Option("--database", "-d", envvar="DOLMEN_DATABASE", help="s3://bucket/prefix or a directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
TableName = Annotated[str, typer.Argument(help="Name of the table.")]
Version = Annotated[Optional[int], typer.Option("--version", help="Read this version.")]  # noqa: UP045 (typer)
At = Annotated[Optional[str], typer.Option("--at", help="Read the version of this time (ISO 8601, UTC).")]  # noqa: UP045
Request = Annotated[Optional[str], typer.Option("--request-id", help="Apply once, however often tried.")]  # noqa: UP045

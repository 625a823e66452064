"""``dolmen report``: one HTML page about the health of a database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.markup import escape

from dolmen.cli.options import DatabaseUrl, Json, app, open_existing
from dolmen.cli.output import console, print_json, printable
from dolmen.commit.context import context_of
from dolmen.errors import InputError
from dolmen.ingest.formats.export import open_whole
from dolmen.ingest.pipeline_health import look_at_pipeline
from dolmen.maintenance.health.health import Level
from dolmen.maintenance.health.page import draw_page

DEFAULT_PAGE = Path("report.html")

_COLOURS: dict[Level, str] = {"danger": "bold red", "warning": "yellow", "notice": "blue"}


@app.command()
def report(
    database: DatabaseUrl,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", help="The file of the page; report.html by default.", show_default=False),
    ] = None,
    rejected: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--rejected",
            "-r",
            envvar="DOLMEN_REJECTED_URL",
            help="The place of rejected files, to count them. By default below DOLMEN_LANDING_URL, if that is set.",
        ),
    ] = None,
    queue: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--queue", "-q", envvar="DOLMEN_DELETE_QUEUE", help="The delete queue, to count its messages."),
    ] = None,
    ingest_queue: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(envvar="DOLMEN_INGEST_QUEUE", help="The ingest queue, to count its messages."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about the health of the database: what needs attention, and the figures behind it.

    The page needs no other file, and holds no value of a row. With --json its figures are printed, and a page is
    written only if --output names a file. Reads metadata only.
    """
    page = DEFAULT_PAGE if output is None and not as_json else output
    if page is not None and ":/" in str(page):  # a path has one slash where a URL has two
        raise InputError(f"--output {str(page)!r}: give a local file, and copy it there")
    if rejected is None and (landing := os.environ.get("DOLMEN_LANDING_URL")):
        rejected = f"{landing.rstrip('/')}/rejected"
    db = open_existing(database)
    health = db.health(look_at_pipeline(rejected, ingest_queue, queue, context_of(db).runtime))
    if page is not None:
        with open_whole(page) as file:
            file.write(draw_page(health).encode())
    if as_json:
        print_json(health.to_dict())
        return
    for concern in health.concerns:
        told = f"[{_COLOURS[concern.level]}]{concern.level}[/] {escape(printable(concern.title))}"
        console.print(told, highlight=False, soft_wrap=True)
        for command in concern.commands:
            console.print(f"  [dim]{escape(printable(command))}[/]", highlight=False, soft_wrap=True)
    said = f"{len(health.concerns):,} to look at" if health.concerns else "nothing needs attention"
    console.print(f"{page}: version {health.versions.newest:,}, {said}", markup=False, highlight=False, soft_wrap=True)

"""Command that makes tables of files that are already there.

Command that publishes tables for readers of Apache Iceberg.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import dolmen
from dolmen.adopt.adoption import Adoption
from dolmen.cli.options import DatabaseUrl, Json, Message, Request, app, open_existing
from dolmen.cli.output import console, errors, print_json
from dolmen.iceberg.publication import IcebergPublication


@app.command()
def adopt(
    table: Annotated[str, typer.Argument(help="Name of the new table.")],
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A folder of Parquet files, files, or the folder or metadata of an Iceberg table: URLs, paths of this "
            "machine, or names in the database.",
        ),
    ],
    database: DatabaseUrl,
    primary_key: Annotated[str | None, typer.Option("--primary-key", help="Columns of the key: id,day.")] = None,
    sort_key: Annotated[
        str | None, typer.Option("--sort-key", help="Columns by which compaction sorts rows: day,id.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look at everything, and commit nothing.")] = False,
    request: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Make a table of Parquet files, or of an Iceberg table, without copying data; see docs/adopt.md."""
    places = [os.path.abspath(each) if os.path.exists(each) else each for each in sources]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=errors, disable=not errors.is_terminal, transient=True) as bar:
        task = bar.add_task("footers", total=None)
        found = dolmen.open(database).adopt(
            table,
            places[0] if len(places) == 1 else places,
            _names(primary_key),
            _names(sort_key),
            dry_run=dry_run,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            request=request,
            message=message,
        )
    if as_json:
        print_json(_adoption_to_dict(found))
        return
    if found.commit is not None and found.commit.already:
        console.print(f"[bold]{table}[/] was adopted under this id before", highlight=False)
        return
    console.print(f"[bold]{table}[/] {'would be' if dry_run else 'was'} adopted", highlight=False)
    for about, told in found.facts():
        console.print(f"  {about}: {escape(told)}", highlight=False, soft_wrap=True)


def _names(columns: str | None) -> list[str] | None:
    return None if columns is None else columns.split(",")


def _adoption_to_dict(found: Adoption) -> dict[str, Any]:
    return {
        "table": found.table,
        "source": found.source,
        "files": found.files,
        "rows": found.rows,
        "bytes": found.bytes,
        "deleted_rows": found.deleted_rows,
        "columns": list(found.columns),
        "snapshot": found.snapshot,
        "version": found.commit.version if found.commit else None,
    }


@app.command("publish-iceberg")
def publish_iceberg(
    database: DatabaseUrl,
    table: Annotated[
        str | None, typer.Option("--table", "-t", help="One table; all whose setting iceberg is set by default.")
    ] = None,
    glue: Annotated[
        str | None,
        typer.Option(
            "--glue",
            metavar="DATABASE",
            help="Database of the AWS Glue Data Catalog that shows them; DOLMEN_GLUE_DATABASE by default.",
        ),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Publish also what is published, and carry nothing over.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be published, and write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Publish tables as Apache Iceberg snapshots, without copying data; see docs/iceberg.md."""
    found = open_existing(database).publish_iceberg(table, glue=glue, anew=anew, dry_run=dry_run)
    if as_json:
        print_json({name: _publication_to_dict(one) for name, one in found.items()})
        return
    for name, one in found.items():
        console.print(f"[bold]{name}[/]: {_outcome(one, dry_run)}", highlight=False)
        for about, told in one.facts():
            console.print(f"  {about}: {escape(told)}", highlight=False, soft_wrap=True)
    if not found:
        console.print("no table has the setting iceberg; name one with --table")


def _outcome(one: IcebergPublication, dry_run: bool) -> str:
    if not one.is_new:
        return "shows the newest rows"
    return "would be published" if dry_run else "published"


def _publication_to_dict(one: IcebergPublication) -> dict[str, Any]:
    return {
        "version": one.version,
        "metadata_location": one.metadata_location,
        "format_version": one.format_version,
        "is_new": one.is_new,
        "is_repaired": one.is_repaired,
        "files": one.files,
        "rows": one.rows,
        "delete_files": one.delete_files,
        "deleted_rows": one.deleted_rows,
        "snapshots": one.snapshots,
        "left_out": one.left_out or {},
        "objects": one.objects,
        "bytes": one.bytes,
        "glue": one.glue,
    }

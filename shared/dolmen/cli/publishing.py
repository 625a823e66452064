"""Command that publishes tables for readers of Apache Iceberg."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from dolmen.cli.options import DatabaseUrl, Json, app, open_existing
from dolmen.cli.output import console, print_json
from dolmen.iceberg.publication import IcebergPublication


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
        print_json({name: _to_dict(one) for name, one in found.items()})
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


def _to_dict(one: IcebergPublication) -> dict[str, Any]:
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

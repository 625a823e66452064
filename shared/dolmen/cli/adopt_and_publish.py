"""Commands between dolmen and other formats: ``adopt`` existing files and tables, ``publish-iceberg``."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Annotated, Any, cast

from rich.progress import BarColumn, MofNCompleteColumn
from typer import Argument, Option

import dolmen
from dolmen.cli.options import DatabaseUrl, DryRun, Json, command, names_of, open_existing
from dolmen.cli.output import print_json, progress_bar, say, warn
from dolmen.iceberg.publication import IcebergPublication
from dolmen.transactions.row_arguments import NewColumns


@command()
def adopt(
    table: Annotated[str, Argument(help="Name of the new table, or with --into of the table to add files to.")],
    sources: Annotated[
        list[str],
        Argument(
            metavar="SOURCE...",
            help="A folder of Parquet files, files, or the folder or metadata of an Iceberg table: URLs, paths of this "
            "machine, or keys in the database.",
        ),
    ],
    database: DatabaseUrl,
    primary_key: Annotated[str, Option(help="Columns of the key: id,day.")] = "",
    sort_key: Annotated[str, Option(help="Columns by which compaction sorts rows: day,id.")] = "",
    into: Annotated[
        bool, Option("--into", help="Add the files to a table that exists; those that it has or had are skipped.")
    ] = False,
    new_columns: Annotated[
        str, Option(help="With --into, for columns that the table lacks: refuse, add or ignore.")
    ] = "refuse",
    again: Annotated[bool, Option("--again", help="With --into, also add files that the table had once.")] = False,
    hive: Annotated[
        bool | None,
        Option(
            "--hive/--no-hive",
            help="Whether names of folders like day=2026-11-27 are values of columns; by default if there are any.",
        ),
    ] = None,
    dry_run: DryRun = False,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Make a table of Parquet files, or of an Iceberg table, without copying data; see docs/adopt.md."""
    urls = [os.path.abspath(each) if os.path.exists(each) else each for each in sources]
    with progress_bar("{task.description}", BarColumn(), MofNCompleteColumn(), quiet=False) as bar:
        task = bar.add_task("footers", total=None)
        adoption = dolmen.open(database).adopt(
            table,
            urls[0] if len(urls) == 1 else urls,
            names_of(primary_key),
            sort_key or None,
            into=into,
            new_columns=cast(NewColumns, new_columns),
            again=again,
            hive=hive,
            dry_run=dry_run,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            **about,
        )
    if adoption.from_folders and hive is None:
        warn(f"values in names of folders: {', '.join(adoption.from_folders)} (--no-hive leaves them out)")
    if as_json:
        facts = {field.name: getattr(adoption, field.name) for field in fields(adoption) if field.name != "commit"}
        print_json({**facts, "version": adoption.commit.version if adoption.commit else None})
        return
    if adoption.commit is not None and adoption.commit.already:
        say(f"[bold]{table}[/] was adopted under this id before", markup=True)
        return
    verb = "would be" if dry_run else ("were" if into else "was")
    say(f"files {verb} added to [bold]{table}[/]" if into else f"[bold]{table}[/] {verb} adopted", markup=True)
    for name, value in adoption.facts():
        say(f"  {name}: {value}")


@command("publish-iceberg")
def publish_iceberg(
    database: DatabaseUrl,
    table: Annotated[
        str | None, Option("--table", "-t", help="One table; by default all with the setting iceberg.")
    ] = None,
    glue: Annotated[
        str | None,
        Option(
            "--glue",
            metavar="DATABASE",
            help="Database of the AWS Glue Data Catalog that shows them; DOLMEN_GLUE_DATABASE by default.",
        ),
    ] = None,
    anew: Annotated[bool, Option("--anew", help="Also publish tables that are up to date, from scratch.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Publish tables as Apache Iceberg snapshots, without copying data; see docs/iceberg.md."""
    publications = open_existing(database).publish_iceberg(table, glue=glue, anew=anew, dry_run=dry_run)
    if as_json:
        members = [field.name for field in fields(IcebergPublication) if field.name not in ("table", "files_read")]
        shown = {name: {each: getattr(one, each) for each in members} for name, one in publications.items()}
        print_json({name: facts | {"left_out": facts["left_out"] or {}} for name, facts in shown.items()})
        return
    for name, publication in publications.items():
        outcome = "would be published" if dry_run else "published"
        say(f"[bold]{name}[/]: {outcome if publication.is_new else 'shows the newest rows'}", markup=True)
        for label, value in publication.facts():
            say(f"  {label}: {value}")
    if not publications:
        say("no table has the setting iceberg; name one with --table")

"""Loads landing files of any format, and whole prefixes of them, into tables. See docs/jobs.md.

spark-submit jobs/load.py --database s3://bucket/database --landing s3://bucket/landing [--table events ...]
spark-submit jobs/load.py --database s3://bucket/database --handed s3://bucket/handed
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Optional

import typer

import dolmen
from dolmen.base.units import count_text, parse_size
from dolmen.cli.exit_codes import INCOMPLETE
from dolmen.cli.options import DatabaseUrl, Json
from dolmen.cli.output import console, errors, job_status, print_json, print_rows
from dolmen.cli.run import run_job
from dolmen.commit.head import context_of
from dolmen.errors import InputError
from dolmen.ingest.drops.announce_files import DropSource
from dolmen.service.functions.function_settings import FunctionSettings
from dolmen.service.handover.handover_records import HandoverRecords
from dolmen.spark.load.load import MAX_FILES, Loaded, load
from dolmen.spark.sessions import job_session
from dolmen.store import open_store


def main(
    database: DatabaseUrl,
    landing: Annotated[str, typer.Option(help="s3://bucket/folder, or a directory with one for each table.")] = "",
    table: Annotated[Optional[list[str]], typer.Option("--table", "-t", help="Only of this table; may repeat.")] = None,  # noqa: UP045
    handed: Annotated[str, typer.Option(help="Where functions hand over drops; records are removed once done.")] = "",
    landing_prefix: Annotated[
        str, typer.Option(envvar="DOLMEN_LANDING_PREFIX", help="What the keys of dropped files start with.")
    ] = "landing/",
    auto_create: Annotated[
        bool, typer.Option("--auto-create", envvar="DOLMEN_AUTO_CREATE", help="Create tables that do not exist.")
    ] = False,
    max_files: Annotated[int, typer.Option(help="Files of one commit, at most.", min=1)] = MAX_FILES,
    max_bytes: Annotated[str, typer.Option(help="Bytes of the files of one commit, about.")] = "8GB",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the files, and load nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Load landing files into tables: each file once, even if others ingest it too.

    Exit codes: 0 done; 2 some files were rejected (with --handed that is 0: they are done, and a second run would not
    help); 9 some failed temporarily, call it again; others as of `dolmen`.
    """
    environment = {**os.environ, "DOLMEN_DATABASE": database, "DOLMEN_LANDING_PREFIX": landing_prefix}
    settings = FunctionSettings.of(environment)
    if bool(landing) == bool(handed):
        raise InputError("give --landing or --handed, one of them")
    if handed and table:
        raise InputError("--table goes with --landing: records that were handed over are of any tables")
    opened, place = settings.open()
    source: DropSource | HandoverRecords
    if handed:
        source = HandoverRecords(open_store(handed))
    else:
        source = DropSource.of(
            landing,
            database=opened.url,
            tables=table or (),
            landing_prefix=landing_prefix,
            rejected_url=settings.rejected_url,
            runtime=context_of(opened).runtime,
        )
        place = source.landing
    with job_status(quiet=as_json) as show:
        done = load(
            job_session(f"dolmen load {opened.url}"),
            opened,
            source,
            landing=place,
            auto_create=auto_create,
            max_file_bytes=settings.max_file_bytes,
            max_files=max_files,
            max_bytes=parse_size(max_bytes),
            dry_run=dry_run,
            on_progress=lambda done, what: show(done.seconds, f"{_told(done)}; {what}"),
        )
    _report(done, dry_run=dry_run, as_json=as_json)
    if done.outcomes["failed"]:
        raise typer.Exit(INCOMPLETE)
    if done.outcomes["rejected"] and not handed:
        raise typer.Exit(2)


def _told(done: Loaded) -> str:
    outcomes = ", ".join(f"{count:,} {status}" for status, count in done.outcomes.items() if count)
    return f"{count_text(done.files, 'file')}{': ' + outcomes if outcomes else ''}; {count_text(done.rows, 'row')}"


def _report(done: Loaded, *, dry_run: bool, as_json: bool) -> None:
    for problem in done.problems:
        reason = problem.error or problem.landing_error or "rejected before"
        what = problem.status if not problem.landing_error else f"{problem.status}, but neither tagged nor removed"
        if not as_json:
            errors.print(f"{what}: {problem.drop.key}: {reason}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        facts: dict[str, Any] = {"dry_run": True} if dry_run else {}
        facts |= {"files": done.files, "bytes": done.bytes, "skipped": done.skipped, **done.outcomes}
        facts |= {"rows": done.rows, "commits": done.commits, "seconds": round(done.seconds, 1)}
        print_json(facts | {"tables": done.tables, "version": dolmen.__version__})
        return
    if done.tables:
        print_rows(["table", "files"], ((name, f"{files:,}") for name, files in done.tables.items()))
    skipped = f"; {done.skipped:,} skipped (temporary names, folders, outside of a table's)" if done.skipped else ""
    console.print(
        f"{_told(done)}, {count_text(done.commits, 'commit')}, {done.seconds:,.1f} s{skipped}", highlight=False
    )


if __name__ == "__main__":
    run_job(main)

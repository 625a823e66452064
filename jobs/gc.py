"""Expires old versions and deletes the objects that no kept version needs, with the mark on Spark. See docs/jobs.md.

spark-submit jobs/gc.py --database s3://bucket/database [--dry-run] [--full]
"""

from __future__ import annotations

from typing import Annotated

import typer

import dolmen
from dolmen.cli.exit_codes import INCOMPLETE
from dolmen.cli.options import DatabaseUrl, Json
from dolmen.cli.output import console, job_status, print_json
from dolmen.cli.run import run_job
from dolmen.commit.head import context_of
from dolmen.maintenance.gc.collection import Collected
from dolmen.maintenance.round import facts_of
from dolmen.spark.gc_and_index import gc
from dolmen.spark.sessions import job_session


def main(
    database: DatabaseUrl,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Look for orphans among all objects, however old.")] = False,
    as_json: Json = False,
) -> None:
    """Expire old versions, and delete the objects that no kept version needs.

    Exit codes: 0 done; 4 Spark failed: call it again; 9 something could not be deleted; others as of `dolmen`.
    """
    opened = dolmen.open(database)
    began = context_of(opened).runtime.monotonic()
    with job_status(quiet=as_json) as show:
        spark = job_session(f"dolmen gc {opened.url}")
        show(context_of(opened).runtime.monotonic() - began, "looking" if dry_run else "collecting")
        done = gc(spark, opened, dry_run=dry_run, full=full)
    _report(done, as_json=as_json)
    if not done.finished or done.errors:
        raise typer.Exit(INCOMPLETE)


def _report(done: Collected, *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": done.dry_run, **facts_of(done), "errors": done.errors})
        return
    for name, value in done.facts():
        console.print(f"{name}: {value}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    run_job(main)

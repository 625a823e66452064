"""Compacts tables: what the compact function does, for tables that are too large for it. See docs/jobs.md.

spark-submit jobs/compact.py --database s3://bucket/database [--table events ...] [--recluster]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Optional

import typer
from pyspark.sql import SparkSession

import dolmen
from dolmen.api.database import Database
from dolmen.base.units import GIB, count_text, named_count_text
from dolmen.cli.exit_codes import INCOMPLETE
from dolmen.cli.options import DatabaseUrl, Json
from dolmen.cli.output import console, errors, job_status, print_json, print_rows
from dolmen.cli.run import run_job
from dolmen.commit.head import context_of
from dolmen.errors import Error, InputError
from dolmen.maintenance.compact.compaction import Compacted
from dolmen.maintenance.indexing import Indexed
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.round import facts_of
from dolmen.spark.compaction_jobs import compact
from dolmen.spark.gc_and_index import index
from dolmen.spark.sessions import job_session
from dolmen.spark.tasks import FAILURES

STEPS = "resolve", "compact", "index", "merge"
RESOLVE_BYTES = 4 * GIB
"""The most bytes of a table that the driver reads to resolve deletes; the rest is for the schedules."""


def main(
    database: DatabaseUrl,
    table: Annotated[Optional[list[str]], typer.Option("--table", "-t", help="Only this table; may repeat.")] = None,  # noqa: UP045
    recluster: Annotated[
        bool, typer.Option("--recluster", help="Sort tables that have a sort key as a whole, in one commit each.")
    ] = False,
    steps: Annotated[
        str, typer.Option(help="Of resolve, compact, index, merge: in this order, with commas.")
    ] = ",".join(STEPS),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Rewrite small and mostly deleted files of tables into full ones, if that pays, and build their indexes.

    Exit codes: 0 done; 4 Spark failed, what was committed stays; 9 something is left to do; others as of `dolmen`.
    """
    chosen = [step.strip() for step in steps.split(",") if step.strip()]
    if not chosen or not set(chosen) <= set(STEPS):
        raise InputError(f"--steps {steps}: give some of {','.join(STEPS)}")
    opened = dolmen.open(database)
    with job_status(quiet=as_json) as show:
        spark = job_session(f"dolmen compact {opened.url}")
        job = _Job(spark, opened, show, recluster=recluster, dry_run=dry_run)
        job.tables(table or opened.tables(), ["compact"] if dry_run else chosen)
        if "merge" in chosen and not dry_run and table is None:
            job.step("merge", "", opened.merge)
    _report(job, dry_run=dry_run, as_json=as_json)
    for failure in job.failures[1:]:
        errors.print(f"failed: {failure}", markup=False, highlight=False, soft_wrap=True)
    if job.failures:
        raise job.failures[0]
    if not all(result.finished for step, _, result in job.done if step != "resolve"):  # which is the schedules' work
        raise typer.Exit(INCOMPLETE)


class _Job:
    """Compacts one table after another. If one fails, the others continue."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        show: Callable[[float, str], None],
        *,
        recluster: bool,
        dry_run: bool,
    ) -> None:
        self._spark, self._database, self._show = spark, database, show
        self._recluster, self._dry_run = recluster, dry_run
        self._began = context_of(database).runtime.monotonic()
        self.done: list[tuple[str, str, Any]] = []
        self.failures: list[Exception] = []

    def tables(self, names: list[str], steps: list[str]) -> None:
        """Resolves, as far as that is cheap, compacts, and makes indexes."""
        context = context_of(self._database)
        for name in names:
            if "resolve" in steps:
                self.step("resolve", name, partial(resolve, context, name, budget_bytes=RESOLVE_BYTES))
            if "compact" in steps:
                self.step("compact", name, partial(self._compact, name))
            if "index" in steps:
                self.step("index", name, partial(self._index, name))

    def step(self, step: str, table: str, run: Callable[[], Any]) -> None:
        """Runs one step, and keeps its result or its error."""
        self._say(f"{step} {table}".strip())
        try:
            self.done.append((step, table, run()))
        except (Error, *FAILURES) as error:
            self.failures.append(error)

    def _compact(self, name: str) -> Compacted:
        return compact(
            self._spark,
            self._database,
            name,
            recluster=self._recluster,
            dry_run=self._dry_run,
            progress=lambda table, done: self._say(
                f"compact {table}: {count_text(done.groups, 'group')} of {len(done.plan.groups):,}, "
                f"{done.bytes_in:,} bytes"
            ),
        )[name]

    def _index(self, name: str) -> Indexed:
        return index(
            self._spark,
            self._database,
            name,
            progress=lambda done: self._say(f"index {name}: {count_text(done.entries, 'entry', 'entries')}"),
        )[name]

    def _say(self, text: str) -> None:
        self._show(context_of(self._database).runtime.monotonic() - self._began, text)


def _report(job: _Job, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        done = [{"step": step, "table": table or None, **facts_of(result)} for step, table, result in job.done]
        print_json({"dry_run": dry_run, "done": done, "failures": [str(failure) for failure in job.failures]})
    elif dry_run:
        for _, _, result in job.done:
            console.print(result.plan, markup=False, highlight=False, soft_wrap=True)
    else:
        rows = ((step, table or "(segments)", _facts_text(facts_of(result))) for step, table, result in job.done)
        print_rows(["step", "table", "what"], rows)


def _facts_text(facts: dict[str, Any]) -> str:
    words = (named_count_text(value, name) for name, value in facts.items() if value and name != "finished")
    return ", ".join(words) or "nothing to do"


if __name__ == "__main__":
    run_job(main)

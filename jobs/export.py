"""Exports the rows of a version of a table as Parquet, CSV or JSON. See docs/jobs.md.

spark-submit jobs/export.py --database s3://bucket/database --table events --to s3://bucket/export
"""

from __future__ import annotations

from typing import Annotated, Optional, cast

import typer

import dolmen
from dolmen.base.units import count_text
from dolmen.cli.options import At, DatabaseUrl, Json, Tag, Version, moment_of, snapshot_of
from dolmen.cli.output import console, print_json
from dolmen.cli.run import run_job
from dolmen.spark.file_export import Format, export
from dolmen.spark.sessions import job_session


def main(
    database: DatabaseUrl,
    table: Annotated[str, typer.Option("--table", "-t", help="Name of the table.")],
    to: Annotated[str, typer.Option(help="s3://bucket/prefix or a directory; must be empty.")],
    format: Annotated[str, typer.Option(help="parquet, csv or json.")] = "parquet",
    columns: Annotated[str, typer.Option(help="Names with commas; all by default.")] = "",
    where: Annotated[Optional[str], typer.Option(help="Only rows for which this is TRUE.")] = None,  # noqa: UP045
    version: Version = None,
    at: At = None,
    tag: Tag = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write the rows of one version into plain files below a location."""
    opened = dolmen.open(database)
    pinned = snapshot_of(opened, moment_of(version, at, tag))
    done = export(
        pinned.table(table),
        to,
        format=cast(Format, format),
        columns=[name.strip() for name in columns.split(",")] if columns else None,
        where=where,
        overwrite=overwrite,
        spark=job_session(f"dolmen export {opened.url} {table}"),
    )
    if as_json:
        print_json({"table": table, "version": pinned.version, "rows": done.rows, "url": done.url})
    else:
        told = f"{count_text(done.rows, 'row')} of {table}, version {pinned.version}, in {done.url}"
        console.print(told, highlight=False, soft_wrap=True, markup=False)


if __name__ == "__main__":
    run_job(main)

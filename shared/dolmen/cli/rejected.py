"""``dolmen rejected``: lists and shows what could not be ingested, and tries it again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.markup import escape

from dolmen.base.runtime import shared_runtime
from dolmen.base.units import count_text, utc
from dolmen.cli.options import Json, app
from dolmen.cli.output import console, print_json, print_rows, print_text, printable
from dolmen.errors import InputError, ObjectChangedError, ObjectNotFoundError
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect
from dolmen.ingest.reject_listing import (
    RejectEntry,
    find_reject_key,
    list_rejects,
    open_reject,
    read_bad_rows,
    read_report,
    read_reports,
)
from dolmen.ingest.reject_listing import earlier_retries as retries
from dolmen.ingest.reject_listing import retry as put_back
from dolmen.ingest.rejects import ROWS_SUFFIX
from dolmen.store import open_store
from dolmen.store.base import ObjectStore

rejected = typer.Typer(help="Files and rows that could not be ingested: list, show, try again.", no_args_is_help=True)
app.add_typer(rejected, name="rejected")

LOCAL = Path(".local/rejected")
_SHOWN = 300
_HEAD_BYTES = 1 << 16

Place = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--rejected",
        "-r",
        envvar="DOLMEN_REJECTED_URL",
        help="The place of rejects, e.g. s3://landing-bucket/rejected. By default below DOLMEN_LANDING_URL, or .local.",
    ),
]
Key = Annotated[str, typer.Argument(help="A key that ls shows, its 8 digits, or a name of it in logs.")]


@rejected.command()
def ls(
    table: Annotated[Optional[str], typer.Argument(help="List only rejects of this table.")] = None,  # noqa: UP045
    place: Place = None,
    limit: Annotated[int, typer.Option(help="The most rejects to list.", min=1)] = 50,
    all_: Annotated[bool, typer.Option("--all", help="List rejects that were put back, too.")] = False,
    as_json: Json = False,
) -> None:
    """List rejects, newest first."""
    store = _store(place)
    found = list_rejects(store, table, retried=all_)
    shown = found[:limit]
    reports = read_reports(store, [one.key for one in shown], shared_runtime())
    if as_json:
        for one, report in zip(shown, reports, strict=True):
            print_json({"key": one.key, "table": one.table, "size": one.size, "retried": one.retried, "report": report})
        return
    for one, report in zip(shown, reports, strict=True):
        print_text(_line(one, report))  # not cut off, since keys are copied from here
    more = f", {len(found) - limit:,} more with a larger --limit" if len(found) > limit else ""
    console.print(f"{len(found):,} in {store.url}{more}", highlight=False, soft_wrap=True)


@rejected.command()
def show(
    key: Key,
    place: Place = None,
    lines: Annotated[int, typer.Option(help="The most lines or rows to show.", min=0)] = 10,
    as_json: Json = False,
) -> None:
    """Show why something was rejected, and its first lines."""
    store = _store(place)
    found = find_reject_key(store, key)
    report = read_report(store, found)
    head = list(islice(_head(store, found, report), lines))
    if as_json:
        print_json({"key": found, "report": report, "retried": retries(store, found), "head": head})
        return
    facts = {"key": found, **{name: value for name, value in report.items() if value not in (None, {}, [])}}
    facts |= {f"retried {again.get('at')}": again.get("as") for again in retries(store, found)}
    print_rows(["", ""], ((name.replace("_", " "), str(value)) for name, value in facts.items()))
    for line in head:
        print_text(line)


@rejected.command()
def retry(
    keys: Annotated[Optional[list[str]], typer.Argument(help="Names as for show.")] = None,  # noqa: UP045
    place: Place = None,
    table: Annotated[Optional[str], typer.Option(help="Put back all rejects of this table.")] = None,  # noqa: UP045
    landing: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The URL below which to put it; by default where it was dropped."),
    ] = None,
    to_table: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Put it back for this table instead of its own."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Put back again what was put back before.")] = False,
    as_json: Json = False,
) -> None:
    """Put rejects back into the landing place under new names, where the pipeline ingests them."""
    if bool(keys) == (table is not None):
        raise InputError("give either keys, or --table for all rejects of a table")
    store, runtime = _store(place), shared_runtime()
    if table is None:
        chosen = [find_reject_key(store, key) for key in keys or ()]
    else:
        chosen = [one.key for one in list_rejects(store, table, retried=force)]
    for key in chosen:
        done = put_back(store, key, runtime, landing=landing, table=to_table, force=force)
        if as_json:
            print_json({"key": done.key, "as": done.url, "rows": done.rows, "left": done.left})
            continue
        rows = "" if done.rows is None else f" ({count_text(done.rows, 'row')})"
        console.print(escape(f"{done.key} is dropped again as {done.url}{rows}"), highlight=False, soft_wrap=True)
        if done.left:
            left = (
                f"  {count_text(done.left, 'row')} of it cannot be put back unchanged: dolmen rejected show {done.key}"
            )
            console.print(escape(left), highlight=False, soft_wrap=True)


def _store(place: str | None) -> ObjectStore:
    """The store of rejects, as the ingest function finds it, or that of ``make up``."""
    if place:
        return open_store(place)
    if landing := os.environ.get("DOLMEN_LANDING_URL"):
        return open_store(f"{landing.rstrip('/')}/rejected")
    if LOCAL.is_dir():
        return open_store(str(LOCAL))
    raise InputError("no place of rejects is named: give --rejected, e.g. s3://landing-bucket/rejected")


def _line(one: RejectEntry, report: dict[str, Any]) -> str:
    """Two lines about a reject, for people."""
    at = utc(one.rejected_us)
    place = ", ".join(f"{name} {report[name]}" for name in ("line", "column") if report.get(name) is not None)
    reason = str(report.get("reason", "its report cannot be read")).partition("\n")[0]
    size = one.size if one.size is not None else report.get("bytes")
    what = f"{size:,} bytes" if isinstance(size, int) else "not copied"
    if isinstance(report.get("rows"), int):
        what = f"{count_text(report.get('rows', 0), 'row')} of a file"
    elif one.size is None:
        what += ", where it was dropped"
    mark = ", put back" if one.retried else ""
    shown = (f"{place}: {reason}" if place else reason)[:_SHOWN]
    return f"{at:%Y-%m-%d %H:%M:%S}  {printable(one.key)}  ({what}{mark})\n    {shown}"


def _head(store: ObjectStore, key: str, report: dict[str, Any]) -> Iterator[str]:
    """The first lines of a text file, or the rows that were kept."""
    if key.endswith(ROWS_SUFFIX):
        for row in read_bad_rows(store, key):
            place = ", ".join(f"{name} {row[name]}" for name in ("line", "row") if row.get(name) is not None)
            yield f"{place}: {_line_text(row['text'] or b'')}"
        return
    try:
        format = detect(key)
        if not format.known.is_text:
            return
        open_it = partial(open_reject, store, key, report, shared_runtime())
        with SourceFile(open_it, format, key, ReadOptions(max_bytes=_HEAD_BYTES)).text() as stream:
            yield from (_line_text(line) for line in stream.read(_HEAD_BYTES).splitlines())
    except (InputError, ObjectNotFoundError, ObjectChangedError) as error:
        yield f"... {error}"  # this may be why it was rejected


def _line_text(line: bytes) -> str:
    return line[: 10 * _SHOWN].decode(errors="replace")

"""``dolmen check-store``: checks whether a store is fit for dolmen. The checks are imported only when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from dolmen.cli.options import Json, app
from dolmen.cli.output import console, errors, print_json

if TYPE_CHECKING:
    from dolmen.service.check_store.run import CheckResult, StoreReport

_COLOURS = {"ok": "green", "FAILED": "bold red", "DENIED": "bold red", "differs": "yellow", "lacks": "yellow"}


@app.command("check-store")
def check_store(
    url: Annotated[str, typer.Argument(help="s3://bucket/prefix or a directory, below which it works.")],
    writers: Annotated[int, typer.Option(min=2, help="Clients that increment one object at once.")] = 8,
    commits: Annotated[
        int, typer.Option(min=1, help="Increments by each of them, and commits by each writer of a database.")
    ] = 10,
    as_json: Json = False,
) -> None:
    """Check whether a store does what dolmen relies on: conditions, consistency, listings. Exit code 1 if not.

    It writes under a fresh prefix below the URL, and removes its objects, also after Ctrl-C.
    """
    from dolmen.service.check_store.contract import Load
    from dolmen.service.check_store.run import check_store as run

    with _showing_progress(as_json) as progress:
        report = run(url, load=Load(writers=writers, increments=commits, commits=commits), progress=progress)
    if as_json:
        print_json(_document(report))
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(1)


def _document(report: StoreReport) -> dict[str, object]:
    return {
        "url": report.url,
        "ok": report.ok,
        "checks": [
            {
                "check": result.name,
                "holds": result.holds,
                "outcome": result.outcome.value.lower(),
                "seconds": round(result.seconds, 3),
                "found": result.found,
                "means": result.means,
            }
            for result in report.results
        ],
        "left": list(report.left),
    }


def _print(report: StoreReport) -> None:
    told = any(result.found for result in report.results)
    table = RichTable("check", "result", "seconds", *(["what that means, and what was found"] if told else []))
    for result in report.results:
        table.add_row(
            Text(result.name),
            Text(result.outcome.value, _COLOURS.get(result.outcome.value, "dim")),
            Text(f"{result.seconds:.2f}", justify="right"),
            *([_describe(result)] if told else []),
        )
    console.print(table)
    bad = [result for result in report.results if not result.good]
    if bad:
        console.print(f"[bold red]{len(bad)} of {len(report.results)} checks failed[/]: {report.url}", highlight=False)
    else:
        console.print(f"[bold green]dolmen can be used here[/]: {len(report.results)} checks", highlight=False)
    if report.left:
        console.print(f"[bold yellow]{len(report.left)} objects could not be removed[/], such as", highlight=False)
        console.print(Text(report.left[0]), soft_wrap=True)


def _describe(result: CheckResult) -> Text:
    return Text(f"{result.means}\n" if result.means else "", "bold").append(result.found, "not bold")


@contextmanager
def _showing_progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Shows on standard error which check runs, if that is a terminal."""
    if quiet or not errors.is_terminal:
        yield lambda name, number, total: None
        return
    with errors.status("checking ...") as status:
        yield lambda name, number, total: status.update(f"{number} of {total}: {name}")

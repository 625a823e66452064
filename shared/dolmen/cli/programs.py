"""Commands that run a whole program: the local pipeline, the simulator, and the checks of a store."""

from __future__ import annotations

import shlex
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text
from typer import Argument, Option

from dolmen.base.units import count_text
from dolmen.cli.options import Json, app
from dolmen.cli.output import changing_line, console, print_json, say
from dolmen.errors import InputError

if TYPE_CHECKING:
    from dolmen.service.check_store.check_run import CheckResult, StoreReport


@app.command()
def local(
    root: Annotated[Path, Option(help="The folder of landing/, queue/ and the rest.")] = Path(".local"),
    database: Annotated[
        str | None, Option("--database", "-d", envvar="DOLMEN_DATABASE", help="The database; ROOT/database by default.")
    ] = None,
    functions: Annotated[Path | None, Option(help="A folder of your own functions, in place of dolmen's.")] = None,
    once: Annotated[bool, Option("--once", help="End when everything is handled.")] = False,
    auto_create: Annotated[
        bool, Option("--auto-create/--no-auto-create", help="Create missing tables from dropped files.")
    ] = True,
    compact_every: Annotated[float, Option(help="Seconds between rounds of compaction; 0 for none.")] = 60,
    gc_every: Annotated[float, Option(help="Seconds between collections of garbage; 0 for none.")] = 3600,
    report: Annotated[
        bool, Option("--report/--no-report", help="Serve the page of dolmen report on this machine.")
    ] = True,
    report_port: Annotated[
        int, Option(help="The port of that page on 127.0.0.1; 0 for any free one.", min=0, max=65_535)
    ] = 0,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline on this machine: ingest files in landing/<table>/, and apply deletes in queue/*.json."""
    from dolmen.service.local import LocalEvent, LocalLayout, run_local

    layout = LocalLayout.under(root, database)

    def show(event: LocalEvent) -> None:
        facts = {name: value for name, value in event.facts.items() if name != "exc_info"}
        if as_json:
            print_json({"function": event.function, "event": event.text, **facts})
        elif event.function == "report":
            say(f"the health of the database: {facts['address']}")
        else:
            fields = escape(" ".join(f"{name}={value}" for name, value in facts.items()))
            say(f"[bold]{event.function}[/] {event.text} [dim]{fields}[/]", markup=True)
            if copy := facts.get("rejected_to"):
                key = str(copy).removeprefix(f"{layout.rejected.as_uri()}/")
                command = f"dolmen rejected show --rejected {shlex.quote(str(layout.rejected))} {shlex.quote(key)}"
                say(f"  why, and what the file says there: {command}")
            if letter := facts.get("dead_letter"):
                then = f"put it into {layout.queue}/" if event.function == "delete" else "drop the file"
                say(f"  correct it, and {then} again: {letter}")

    if not as_json:
        say(f"drop files into {layout.landing}/<table>/, and delete requests as .json into {layout.queue}/")
        say(f"read with: dolmen scan <table> --database {shlex.quote(layout.database)}    (stop with Ctrl-C)")
    run_local(
        layout.database,
        layout.landing,
        layout.queue,
        functions,
        once=once,
        auto_create=auto_create,
        compact_seconds=None if once else compact_every,
        gc_seconds=None if once else gc_every,
        page_port=report_port if report and not once else None,
        on_event=show,
    )


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
def simulate(context: typer.Context) -> None:
    """Run databases in a simulated world of faults, and check that they stay correct. Needs dolmen-simulator."""
    if find_spec("dolmen_simulator") is None:
        raise InputError("dolmen simulate needs the simulator: pip install dolmen-simulator")
    raise typer.Exit(import_module("dolmen_simulator.command").run(context.args))


_COLOURS = {"ok": "green", "FAILED": "bold red", "DENIED": "bold red", "differs": "yellow", "lacks": "yellow"}


@app.command("check-store")
def check_store(
    url: Annotated[str, Argument(help="s3://bucket/prefix or a directory, below which it works.")],
    writers: Annotated[int, Option(min=2, help="Clients that increment one object at once.")] = 8,
    commits: Annotated[int, Option(min=1, help="Increments by each, and commits by each writer of a database.")] = 10,
    as_json: Json = False,
) -> None:
    """Check whether a store does what dolmen relies on: conditions, consistency, listings. Exit code 1 if not.

    It writes under a fresh prefix below the URL, and removes its objects, also after Ctrl-C.
    """
    from dolmen.service.check_store.check_run import check_store as run
    from dolmen.service.check_store.contract import Load

    load = Load(writers=writers, increments=commits, commits=commits)
    with changing_line("checking ...", quiet=as_json) as show:
        report = run(url, load=load, progress=lambda name, number, total: show(f"{number} of {total}: {name}"))
    if as_json:
        checks = [
            {
                "check": result.name,
                "holds": result.promise,
                "outcome": result.outcome.value.lower(),
                "seconds": round(result.seconds, 3),
                "found": result.problem,
                "means": result.means,
            }
            for result in report.results
        ]
        print_json({"url": report.url, "ok": report.ok, "checks": checks, "left": list(report.remaining)})
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: StoreReport) -> None:
    has_findings = any(result.problem for result in report.results)
    table = RichTable("check", "result", "seconds", *(["what that means, and what was found"] if has_findings else []))
    for result in report.results:
        table.add_row(
            Text(result.name),
            Text(result.outcome.value, _COLOURS.get(result.outcome.value, "dim")),
            Text(f"{result.seconds:.2f}", justify="right"),
            *([_describe(result)] if has_findings else []),
        )
    console.print(table)
    checks, failed = count_text(len(report.results), "check"), sum(not result.is_good for result in report.results)
    if failed:
        say(f"[bold red]{failed} of {checks} failed[/]: {escape(report.url)}", markup=True)
    else:
        say(f"[bold green]dolmen can be used here[/]: {checks}", markup=True)
    if report.remaining:
        say(f"[bold yellow]{count_text(len(report.remaining), 'object')} could not be removed[/], such as", markup=True)
        say(report.remaining[0])


def _describe(result: CheckResult) -> Text:
    return Text(f"{result.means}\n" if result.means else "", "bold").append(result.problem, "not bold")

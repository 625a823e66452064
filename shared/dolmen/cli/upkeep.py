"""Commands of upkeep: settings, background work, collection, verification, and debts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Optional

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table as RichTable
from rich.text import Text

import dolmen
from dolmen.base.units import count_text, named_count_text
from dolmen.cli.exit_codes import DAMAGED, INCOMPLETE
from dolmen.cli.options import DatabaseUrl, Json, Message, Request, app, open_existing
from dolmen.cli.output import console, errors, print_commit, print_json, print_rows
from dolmen.cli.versions import check_one, complete_tag
from dolmen.cli.watch import print_debts
from dolmen.errors import InputError, TagNotFoundError
from dolmen.format.ingest_properties import TABLE_PROPERTIES
from dolmen.format.properties import DATABASE_PROPERTIES
from dolmen.maintenance.compact.compaction import Compacted
from dolmen.maintenance.round import WorkDone, facts_of

SomeTable = Annotated[Optional[str], typer.Argument(help="One table; all by default.")]  # noqa: UP045
DryRun = Annotated[bool, typer.Option("--dry-run", help="Report what would be done, and do nothing.")]


@app.command("set")
def set_(
    settings: Annotated[
        list[str], typer.Argument(help="[TABLE] NAME=VALUE ...; settings of the database without a table.")
    ],
    database: DatabaseUrl,
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Change settings in one commit: dolmen set events "ttl=event_time 90d"; dolmen set retention=7d; NAME= unsets."""
    table = None if "=" in settings[0] else settings[0]
    changes: dict[str, str | None] = {}
    for setting in settings[table is not None :]:
        name, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"{setting!r} is not a setting: write NAME=VALUE, or NAME= to unset one")
        changes[name.strip()] = value.strip() or None
    if not changes:
        raise InputError("no setting is named: give NAME=VALUE; dolmen settings lists them")
    about = {"request": request_id, "message": message}
    if taken := changes.keys() & about:
        raise InputError(f"{min(taken)!r} is not a setting: give --request-id and --message as options")
    db = dolmen.open(database) if table is None else open_existing(database)
    change = db.set if table is None else db.table(table).set
    print_commit(change(**about, **changes), as_json)


@app.command()
def settings(database: DatabaseUrl, table: SomeTable = None, as_json: Json = False) -> None:
    """Show the settings of a table or of the database: their values, defaults and meanings."""
    db = open_existing(database)
    holds = db.settings() if table is None else db.table(table).settings()
    if as_json:
        print_json(holds)
        return
    known = DATABASE_PROPERTIES if table is None else TABLE_PROPERTIES
    print_rows(
        ["setting", "value", "default", "meaning"],
        ((name, value, known[name].default, known[name].help) for name, value in holds.items()),
    )


@app.command()
def resolve(database: DatabaseUrl, table: SomeTable = None, as_json: Json = False) -> None:
    """Turn unresolved deletes into deletion vectors, which makes scans fast again."""
    db = open_existing(database)
    with _waiting("resolving", as_json):
        done = db.resolve(table)
    _print_work(done, as_json)
    _exit_unless(one.finished for one in done.values())


@app.command()
def compact(database: DatabaseUrl, table: SomeTable = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Rewrite small and mostly deleted files into full ones, where that pays; then merge segments."""
    db = open_existing(database)
    with _waiting("planning" if dry_run else "compacting", as_json):
        done: dict[str, Any] = dict(db.compact(table, dry_run=dry_run))
        merged = None if dry_run or table is not None else db.merge()
    if as_json and dry_run:
        print_json({name: _plan(one) for name, one in done.items()})
    elif dry_run:
        for one in done.values():
            _print_facts(one.plan.facts())
    else:
        _print_work(done | ({"(segments)": merged} if merged else {}), as_json)
        _exit_unless(one.finished for one in done.values())


@app.command()
def maintain(database: DatabaseUrl, table: SomeTable = None, as_json: Json = False) -> None:
    """Run one round of all background work, as the compact function does.

    The steps are expire, resolve, compact, index, merge and publish.
    """
    db = open_existing(database)
    with _waiting("maintaining", as_json):
        done = db.maintain(None if table is None else [table])
    if as_json:
        print_json(
            {
                "finished": done.finished,
                "done": [{"step": one.step, "table": one.table, **facts_of(one.result)} for one in done.done],
                "failures": [str(failure) for failure in done.failures],
            }
        )
    else:
        print_rows(
            ["step", "table", "seconds", "what"],
            ((one.step, one.table, f"{one.seconds:.1f}", _plain(facts_of(one.result))) for one in done.done),
        )
    if done.failures:
        for failure in done.failures[1:]:
            errors.print(f"[bold red]failed[/] {escape(str(failure))}", highlight=False)
        raise done.failures[0].error
    _exit_unless([done.finished])


@app.command()
def gc(
    database: DatabaseUrl,
    dry_run: DryRun = False,
    full: Annotated[
        bool, typer.Option("--full", help="Look for orphans among all objects, whatever their age.")
    ] = False,
    outside: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="URL", help="A place whose objects receipts of erasures tell, e.g. of dropped files."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Let old versions expire, and delete what no kept version needs. Exit code 9 if something could not be deleted."""
    db = open_existing(database)
    with _waiting("looking" if dry_run else "collecting", as_json):
        collected = db.gc(dry_run=dry_run, full=full, outside=outside or ())
    if as_json:
        print_json({"dry_run": dry_run, **facts_of(collected), "errors": collected.errors})
    else:
        objects, size = collected.objects, collected.bytes
        told = count_text(objects, "object") + (f", at least {size:,} bytes" if size else "")
        console.print(f"{'would delete' if dry_run else 'deleted'} [bold]{told}[/]", highlight=False)
        _print_facts(collected.facts)
    _exit_unless([collected.finished and not collected.errors])


@app.command()
def verify(
    database: DatabaseUrl,
    deep: Annotated[bool, typer.Option("--deep", help="Read all data, and compare it with the metadata.")] = False,
    version: Annotated[int | None, typer.Option(help="Check this version; the newest by default.")] = None,
    tag: Annotated[
        str | None, typer.Option(help="Check the version with this tag.", autocompletion=complete_tag)
    ] = None,
    all_versions: Annotated[
        bool, typer.Option("--all-versions", help="Check the objects of every kept version.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that all objects exist and are correct. Exit code 7 if something is damaged or missing."""
    if tag is not None:
        check_one(version, None, tag)
        version = _version_with_tag(database, tag)
    with _bars(as_json) as progress:
        report = dolmen.verify(database, version=version, deep=deep, all_versions=all_versions, progress=progress)
    if as_json:
        print_json(report.to_dict())
    else:
        _print_facts(report.facts())
        for finding in report.findings:
            colour = "red" if finding.what.severity == "error" else "yellow"
            console.print(f"[bold {colour}]{finding.what.severity}[/] {finding.kind} ({escape(finding.cost)})")
            console.print(f"  {escape(finding.object)}: {escape(finding.reason)}", highlight=False, soft_wrap=True)
            console.print(f"  [dim]{escape(finding.repair)}[/]", highlight=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(DAMAGED)


@app.command()
def stats(
    database: DatabaseUrl,
    exact: Annotated[bool, typer.Option("--exact", help="Read segments too, for exact figures.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again until Ctrl-C, and show changes.")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Show the background work that is left: unresolved deletes, small files, dead rows, the manifest's size."""
    if watch:
        from dolmen.cli.watch import watch_debts

        watch_debts(dolmen.open(database), interval, exact=exact, as_json=as_json)
        return
    found = open_existing(database).stats(exact=exact)
    print_json(found.to_dict()) if as_json else print_debts(found)


def _version_with_tag(database: str, tag: str) -> int:
    """The number of the version that a tag names. Its manifest is not read, as that may be what is damaged."""
    found = open_existing(database).tags()
    if tag not in found:
        raise TagNotFoundError(f"no tag {tag!r}; tags: {', '.join(found) or 'none'}")
    return found[tag].version


def _print_work(done: Mapping[str, WorkDone], as_json: bool) -> None:
    """Prints the results by table."""
    if as_json:
        print_json({name: facts_of(one) for name, one in done.items()})
    else:
        print_rows(["table", "done"], ((name, _plain(facts_of(one))) for name, one in done.items()))


def _plan(one: Compacted) -> dict[str, Any]:
    plan = one.plan
    groups = [
        {
            "reason": group.reason,
            "files": len(group.inputs),
            "bytes": group.bytes_in,
            "files_out": group.files_out,
            "bytes_out": group.bytes_out,
            "requests_saved": group.requests_saved,
            "deleted_bytes": group.deleted_bytes,
            "overlap": group.overlap,
        }
        for group in plan.groups
    ]
    return {"files": plan.files, "bytes": plan.bytes, "groups": groups, "left": plan.left}


def _print_facts(facts: Iterable[tuple[str, str]]) -> None:
    lines = RichTable(show_header=False, box=None)
    for name, told in facts:
        lines.add_row(Text(name, "bold"), Text(told))
    console.print(lines)


def _plain(facts: dict[str, Any]) -> str:
    told = [
        named_count_text(value, name)
        for name, value in facts.items()
        if isinstance(value, int) and not isinstance(value, bool) and value and name != "version"
    ]
    if tables := facts.get("tables"):
        told.append(", ".join(tables))
    return ", ".join(told) or "nothing to do"


def _exit_unless(finished: Iterable[bool]) -> None:
    if not all(finished):
        raise typer.Exit(INCOMPLETE)


@contextmanager
def _waiting(doing: str, quiet: bool) -> Iterator[None]:
    """Shows on standard error what takes time, if that is a terminal."""
    if quiet or not errors.is_terminal:
        yield
        return
    with errors.status(f"{doing} ..."):
        yield


@contextmanager
def _bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Shows a progress bar for each kind of thing on standard error, if that is a terminal."""
    bars = RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        disable=quiet or not errors.is_terminal,
        transient=True,
    )
    tasks: dict[str, TaskID] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total or None)
        bars.update(tasks[what], completed=done, total=total or None)

    with bars:
        yield progress

"""Commands of maintenance: settings, background work, collection and verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text
from typer import Argument, Option

import dolmen
from dolmen.base.units import named_count_text
from dolmen.cli.exit_codes import DAMAGED, INCOMPLETE
from dolmen.cli.options import DatabaseUrl, DryRun, Json, command, complete_tag, moment_of, open_existing, parse_pairs
from dolmen.cli.output import changing_line, console, print_commit, print_json, print_rows, progress_bar, say, warn
from dolmen.errors import InputError, TagNotFoundError
from dolmen.format.ingest_properties import TABLE_PROPERTIES
from dolmen.format.properties import DATABASE_PROPERTIES
from dolmen.maintenance.compact.compaction import Compacted
from dolmen.maintenance.round import facts_of

SomeTable = Annotated[str | None, Argument(help="One table; all by default.")]


@command("set")
def set_(
    settings: Annotated[list[str], Argument(help="[TABLE] NAME=VALUE ...; settings of the database without a table.")],
    database: DatabaseUrl,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Change settings in one commit: dolmen set events "ttl=event_time 90d"; dolmen set retention=7d; NAME= unsets."""
    table = None if "=" in settings[0] else settings[0]
    pairs = parse_pairs("setting ", settings[table is not None :], "NAME=VALUE, or NAME= to unset one")
    changes: dict[str, Any] = {name: value or None for name, value in pairs}
    if not changes:
        raise InputError("no setting is named: give NAME=VALUE; dolmen settings lists them")
    if reserved := changes.keys() & about:
        raise InputError(f"{min(reserved)!r} is not a setting: give --request-id, --message and --metadata as options")
    db = dolmen.open(database) if table is None else open_existing(database)
    change = db.set if table is None else db.table(table).set
    print_commit(change(**about, **changes), as_json)


@command()
def settings(database: DatabaseUrl, table: SomeTable = None, as_json: Json = False) -> None:
    """Show the settings of a table or of the database: their values, defaults and meanings."""
    db = open_existing(database)
    values = db.settings() if table is None else db.table(table).settings()
    if as_json:
        print_json(values)
        return
    properties = DATABASE_PROPERTIES if table is None else TABLE_PROPERTIES
    meanings = {name: (each.default, each.help) for name, each in properties.items()}
    print_rows(
        ["setting", "value", "default", "meaning"],
        ((name, value, *meanings.get(name, (None, "your own"))) for name, value in values.items()),
    )


@command()
def resolve(database: DatabaseUrl, table: SomeTable = None, as_json: Json = False) -> None:
    """Turn unresolved deletes into deletion vectors, which makes scans fast again."""
    db = open_existing(database)
    with changing_line("resolving ...", quiet=as_json):
        done = db.resolve(table)
    _print_work(done, as_json)
    _exit_unless(one.finished for one in done.values())


@command()
def compact(
    database: DatabaseUrl,
    table: SomeTable = None,
    repartition: Annotated[
        bool, Option("--repartition", help="Also divide full files with rows of several partitions.")
    ] = False,
    recluster: Annotated[bool, Option("--recluster", help="Rewrite all files of a table with cluster_by.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Rewrite small and mostly deleted files into full ones, where that pays; then merge segments."""
    db = open_existing(database)
    with changing_line("planning ..." if dry_run else "compacting ...", quiet=as_json):
        done: dict[str, Any] = dict(db.compact(table, repartition=repartition, recluster=recluster, dry_run=dry_run))
        merged = None if dry_run or table is not None else db.merge()
    if as_json and dry_run:
        print_json({name: _plan(one) for name, one in done.items()})
    elif dry_run:
        for one in done.values():
            _print_facts(one.plan.facts())
    else:
        _print_work(done | ({"(segments)": merged} if merged else {}), as_json)
        _exit_unless(one.finished for one in done.values())


@command()
def maintain(database: DatabaseUrl, table: SomeTable = None, as_json: Json = False) -> None:
    """Run one round of all background work, as the compact function does.

    The steps are expire, resolve, compact, index, merge and publish.
    """
    db = open_existing(database)
    with changing_line("maintaining ...", quiet=as_json):
        done = db.maintain(None if table is None else [table])
    if as_json:
        steps = [{"step": one.step, "table": one.table, **facts_of(one.result)} for one in done.done]
        print_json({"finished": done.finished, "done": steps, "failures": list(map(str, done.failures))})
    else:
        print_rows(
            ["step", "table", "seconds", "what"],
            ((one.step, one.table, f"{one.seconds:.1f}", _plain(facts_of(one.result))) for one in done.done),
        )
    if done.failures:
        for failure in done.failures[1:]:
            warn(f"[bold red]failed[/] {escape(str(failure))}", markup=True)
        raise done.failures[0].error
    _exit_unless([done.finished])


@command()
def gc(
    database: DatabaseUrl,
    dry_run: DryRun = False,
    full: Annotated[bool, Option("--full", help="Look for orphans of any age.")] = False,
    outside: Annotated[
        list[str] | None,
        Option(metavar="URL", help="A folder, e.g. of dropped files, whose objects erasure receipts should list."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Let old versions expire, and delete what no kept version needs. Exit code 9 if an object could not be deleted."""
    db = open_existing(database)
    with changing_line("looking ..." if dry_run else "collecting ...", quiet=as_json):
        collected = db.gc(dry_run=dry_run, full=full, outside=outside or ())
    if as_json:
        print_json({"dry_run": dry_run, **facts_of(collected), "errors": collected.errors})
    else:
        _print_facts(collected.facts())
    _exit_unless([collected.finished and not collected.errors])


@command()
def verify(
    database: DatabaseUrl,
    deep: Annotated[bool, Option("--deep", help="Read all data, and compare it with the metadata.")] = False,
    version: Annotated[int | None, Option(help="Check this version; the newest by default.")] = None,
    tag: Annotated[str | None, Option(help="Check the version with this tag.", autocompletion=complete_tag)] = None,
    all_versions: Annotated[bool, Option("--all-versions", help="Check the objects of every kept version.")] = False,
    as_json: Json = False,
) -> None:
    """Check that all objects exist and are correct. Exit code 7 if something is damaged or missing."""
    if tag is not None:
        moment_of(version, None, tag)
        tags = open_existing(database).tags()
        if tag not in tags:
            raise TagNotFoundError(f"no tag {tag!r}; tags: {', '.join(tags) or 'none'}")
        version = tags[tag].version  # its manifest, which may be damaged, is not read here
    with _bars(as_json) as progress:
        report = dolmen.verify(database, version=version, deep=deep, all_versions=all_versions, progress=progress)
    if as_json:
        print_json(report.to_dict())
    else:
        _print_facts(report.facts())
        for finding in report.findings:
            colour = "red" if finding.what.severity == "error" else "yellow"
            say(f"[bold {colour}]{finding.what.severity}[/] {finding.kind} ({escape(finding.cost)})", markup=True)
            say(f"  {finding.object}: {finding.reason}")
            say(f"  [dim]{escape(finding.repair)}[/]", markup=True)
    if not report.ok:
        raise typer.Exit(DAMAGED)


def _print_work(done: Mapping[str, Any], as_json: bool) -> None:
    """Prints the results by table."""
    if as_json:
        print_json({name: facts_of(result) for name, result in done.items()})
    else:
        print_rows(["table", "done"], ((name, _plain(facts_of(result))) for name, result in done.items()))


def _plan(result: Compacted) -> dict[str, Any]:
    plan = result.plan
    names = ("files_out", "bytes_out", "requests_saved", "deleted_bytes", "overlap")
    groups = [
        {"reason": group.reason, "files": len(group.inputs), "bytes": group.bytes_in}
        | {name: getattr(group, name) for name in names}
        for group in plan.groups
    ]
    return {"files": plan.files, "bytes": plan.bytes, "groups": groups, "left": plan.left}


def _print_facts(facts: Iterable[tuple[str, str]]) -> None:
    lines = RichTable(show_header=False, box=None)
    for name, value in facts:
        lines.add_row(Text(name, "bold"), Text(value))
    console.print(lines)


def _plain(facts: dict[str, Any]) -> str:
    parts = [
        named_count_text(value, name)
        for name, value in facts.items()
        if isinstance(value, int) and not isinstance(value, bool) and value and name != "version"
    ]
    if tables := facts.get("tables"):
        parts.append(", ".join(tables))
    return ", ".join(parts) or "nothing to do"


def _exit_unless(finished: Iterable[bool]) -> None:
    if not all(finished):
        raise typer.Exit(INCOMPLETE)


@contextmanager
def _bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Shows a progress bar for each step on standard error, if that is a terminal."""
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bars = progress_bar(SpinnerColumn(), "{task.description}", *columns, quiet=quiet)
    tasks: dict[str, TaskID] = {}

    def progress(step: str, done: int, total: int) -> None:
        if step not in tasks:
            tasks[step] = bars.add_task(step, total=total or None)
        bars.update(tasks[step], completed=done, total=total or None)

    with bars:
        yield progress

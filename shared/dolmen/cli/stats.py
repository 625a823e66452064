"""Commands on the state of a database: ``stats`` shows the work that is left, and ``report`` writes a page.

With ``--watch``, each check costs one request while nothing is committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text
from typer import Option

import dolmen
from dolmen.base.units import count_text, duration_text, named_count_text, utc
from dolmen.cli.options import DatabaseUrl, Json, app, open_existing
from dolmen.cli.output import check_interval, console, print_json, print_rows, printable, say, stopping_at_interrupt
from dolmen.commit.head import context_of
from dolmen.errors import InputError
from dolmen.maintenance.debt import MANY_DELETES, OLD_DELETE_US, Debts, TableDebt, debts_of

_BAR_WIDTH = 24


@app.command()
def stats(
    database: DatabaseUrl,
    exact: Annotated[bool, Option("--exact", help="Read segments too, for exact figures.")] = False,
    watch: Annotated[bool, Option("--watch", help="Look repeatedly until Ctrl-C, and show changes.")] = False,
    interval: Annotated[float, Option(help="Seconds between two looks.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Show the remaining background work: unresolved deletes, small files, dead rows, the manifest's size."""
    if watch:
        watch_debts(dolmen.open(database), interval, exact=exact, as_json=as_json)
        return
    debts = open_existing(database).stats(exact=exact)
    print_json(debts.to_dict()) if as_json else print_debts(debts)


def print_debts(debts: Debts) -> None:
    """Prints the work that is left to do: for the database first, then by table."""
    lines = RichTable(show_header=False, box=None)
    for name, part, text in debt_lines(debts):
        lines.add_row(name, debt_bar(part), Text(text))
    console.print(f"version [bold]{debts.version}[/], {count_text(debts.versions, 'version')} kept", highlight=False)
    console.print(lines)
    if debts.tables:
        print_rows(
            ["table", "files", "rows", "unresolved\ndeletes", "oldest", "small\nfiles", "dead\nrows", "segments"],
            map(_table, debts.tables.values()),
        )


def debt_lines(debts: Debts) -> Iterator[tuple[str, float | None, str]]:
    """Yields the name, the part of the bar that is full (None for no bar), and the text of each line."""
    tombstones, oldest = debts.total("tombstones"), debts.oldest_unresolved_age_us
    yield "unresolved deletes", tombstones / MANY_DELETES, f"{tombstones:,}"
    yield "oldest unresolved", oldest / OLD_DELETE_US, duration_text(oldest) if tombstones else "none"
    files, saved = debts.total("files"), debts.total("files_saved")
    yield "small files", saved / max(files, 1), f"{saved:,} of {count_text(files, 'file')} fewer if compacted"
    rows, dead = debts.total("rows"), debts.total("dead_rows")
    yield "dead rows", dead / max(rows, 1), f"{dead:,} of {rows:,}"
    size, budget = debts.manifest_bytes, debts.manifest_budget
    yield "manifest", size / budget, f"{size:,} of {budget:,} bytes"
    own = list(debts.segments.values()) + [one for table in debts.tables.values() for one in table.segments.values()]
    segments = sum(one.segments for one in own)
    yield "segments", None, f"{segments:,} with {count_text(sum(one.entries for one in own), 'entry', 'entries')}"
    waiting = count_text(debts.released_objects, "object")
    if debts.released_trees:
        waiting += f", {count_text(debts.released_trees, 'dropped tree')} of {debts.released_bytes:,} bytes"
    yield "waiting for gc", None, waiting
    with_index = [table for table in debts.tables.values() if table.index_entries is not None]
    if with_index:
        entries, rows = sum(table.index_entries or 0 for table in with_index), sum(table.rows for table in with_index)
        lag = sum(table.index_lag_rows for table in with_index)
        of_tables = f"{count_text(rows, 'row')} of {count_text(len(with_index), 'table')}"
        more = f", {lag:,} to come" if lag else ""
        yield "index", None, f"{count_text(entries, 'entry', 'entries')} for {of_tables}{more}"
    published = [table for table in debts.tables.values() if table.published_version is not None]
    if published:
        lag = debts.publication_lag_us
        state = f"{duration_text(lag)} behind" if lag else "none behind"
        yield "published as Iceberg", None, f"{count_text(len(published), 'table')}, {state}"
    if debts.orphan_cutoff_age_us is not None:
        yield "orphans", None, f"collected up to {duration_text(debts.orphan_cutoff_age_us)} ago"


def _table(debt: TableDebt) -> tuple[object, ...]:
    about = "" if debt.exact else "~"
    return (
        debt.name,
        f"{debt.files:,}",
        f"{about}{debt.rows:,}",
        f"{debt.tombstones:,}" if debt.tombstones else "",
        duration_text(debt.oldest_unresolved_age_us) if debt.oldest_unresolved_age_us is not None else "",
        f"{about}{debt.small_files:,}" if debt.small_files else "",
        f"{about}{debt.dead_rows:,}" if debt.dead_rows else "",
        sum(one.segments for one in debt.segments.values()) or "",
    )


def debt_bar(part: float | None) -> ProgressBar | Text:
    """A bar that is full to this part, green, yellow or red; nothing for None."""
    if part is None:
        return Text()
    colour = "green" if part < 0.5 else "yellow" if part < 0.9 else "red"
    return ProgressBar(1.0, min(part, 1.0), width=_BAR_WIDTH, complete_style=colour, finished_style=colour)


_WIDE = 72  # columns of a terminal that has room for bars and for the list of tables
_OTHER_LINES = 19  # the most lines of a terminal that the list of tables leaves to everything else
_FIGURES = ("files", "rows", "dead_rows", "tombstones", "files_saved", "index_lag_rows")
_DEBTS = frozenset(("dead_rows", "tombstones", "files_saved", "index_lag_rows", "manifest_bytes", "released_objects"))
_WORDS = {
    "tombstones": "unresolved deletes",
    "files_saved": "files to save",
    "index_lag_rows": "rows without index",
    "manifest_bytes": "bytes of manifest",
    "released_objects": "objects for gc",
    "dead_rows": "dead rows",
}


class WatchedState(Struct, frozen=True):
    """The state of a database at one check; ``before`` is that of the previous check, ``seconds`` earlier."""

    at_us: int
    debts: Debts
    before: Debts | None
    seconds: float

    @property
    def commits(self) -> int:
        """Number of commits since the previous look."""
        return self.debts.version - self.before.version if self.before else 0

    @property
    def commits_per_second(self) -> float:
        """The rate of these commits."""
        return self.commits / self.seconds if self.seconds > 0 else 0.0

    @property
    def changes(self) -> dict[str, int]:
        """The differences of figures, by name; those that are 0 are left out."""
        if self.before is None or self.before is self.debts:
            return {}
        now, then = _figures(self.debts), _figures(self.before)
        return {name: value - then[name] for name, value in now.items() if value != then[name]}

    def to_dict(self) -> dict[str, Any]:
        since = {"seconds": round(self.seconds, 3), "commits": self.commits, "changes": self.changes}
        return {"at": utc(self.at_us).isoformat(), "since": since, **self.debts.to_dict()}


class DebtsWatcher:
    """Looks at the debts of a database repeatedly; for ``exact`` see ``Database.stats``."""

    def __init__(self, db: dolmen.Database, *, exact: bool) -> None:
        self._db, self._exact = db, exact
        self._last: Debts | None = None
        self._looked_at = 0.0

    def look(self) -> WatchedState:
        """Looks at the newest version: one request if it is not new, otherwise as many as ``Database.stats``."""
        context, before = context_of(self._db), self._last
        manifest, now = context.head.refresh().manifest, context.runtime.monotonic()
        is_new = before is None or before.version != manifest.version
        self._last = debts = debts_of(context, manifest, exact=self._exact) if is_new or before is None else before
        seconds, self._looked_at = (0.0 if before is None else now - self._looked_at), now
        return WatchedState(context.runtime.clock_us(), debts, before, seconds)


def watch_debts(db: dolmen.Database, interval: float, *, exact: bool, as_json: bool) -> None:
    """Shows the debts until Ctrl-C: in place on a terminal, elsewhere as a line for each look."""
    check_interval(interval)
    watcher = DebtsWatcher(db, exact=exact)
    with stopping_at_interrupt() as stop:

        def looks() -> Iterator[WatchedState]:
            while not stop.is_set():
                yield watcher.look()
                stop.wait(interval)

        if console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                for state in looks():
                    live.update(screen_of(state, console.width, console.height), refresh=True)
            return
        for state in looks():
            print_json(state.to_dict()) if as_json else say(line_of(state))
            console.file.flush()


def line_of(state: WatchedState) -> str:
    """The state on one line."""
    debts = state.debts
    parts = [f"{utc(state.at_us):%Y-%m-%d %H:%M:%S}Z version {debts.version:,}"]
    if state.before is not None:
        parts.append(f"{count_text(state.commits, 'commit')} ({state.commits_per_second:.2g}/s)")
    changes = state.changes
    parts += [
        f"{named_count_text(value, _WORDS.get(name, name))}{_change_text(changes.get(name))}"
        for name, value in _figures(debts).items()
        if value or name in changes
    ]
    return ", ".join(parts)


def screen_of(state: WatchedState, width: int, height: int) -> RenderableType:
    """The state for a terminal of this size: tables that have changed, or have most work left, come first."""
    debts, wide, rate = state.debts, width >= _WIDE, ""
    if state.before:
        rate = f"  {count_text(state.commits, 'commit')} in {state.seconds:.0f} s, {state.commits_per_second:.2g}/s"
    head = Text.assemble(("version ", ""), (f"{debts.version:,}", "bold"), (rate, "dim"))
    lines = RichTable(show_header=False, box=None, pad_edge=False)
    for name, part, text in debt_lines(debts):
        lines.add_row(*([name, debt_bar(part), Text(text)] if wide else [name, Text(text)]))
    parts: list[RenderableType] = [head, lines]
    if changes := state.changes:
        parts.append(Text.assemble("changed: ", *_changes(changes)))
    elif state.before is not None:
        parts.append(Text("nothing has changed since the last look", style="dim"))
    if wide and debts.tables:
        parts.append(_tables(state, max(1, height - _OTHER_LINES)))
    parts.append(Text(f"{utc(state.at_us):%H:%M:%S} UTC; stop with Ctrl-C", style="dim"))
    return Group(*parts)


def _changes(changes: dict[str, int]) -> Iterator[tuple[str, str]]:
    for index, (name, change) in enumerate(changes.items()):
        style = ("red" if change > 0 else "green") if name in _DEBTS else ""
        yield ("; " if index else "") + _WORDS.get(name, name) + " ", ""
        yield _change_text(change, ""), style


def _tables(state: WatchedState, most: int) -> Group:
    headers = ("table", "files", "rows", "unresolved deletes", "files to save")
    grid = RichTable(*(Column(header, justify="right" if index else "left") for index, header in enumerate(headers)))
    before = state.before.tables if state.before else {}

    def rank(item: tuple[str, TableDebt]) -> tuple[bool, int, str]:
        name, debt = item
        return debt == before.get(name), -(debt.tombstones + debt.files_saved), name

    tables = sorted(state.debts.tables.items(), key=rank)
    for name, table in tables[:most]:
        grid.add_row(Text(name), *_cells(table, before.get(name)))
    more = f"{count_text(len(tables) - most, 'more table')}: dolmen stats shows all"
    return Group(grid, Text(more, style="dim")) if len(tables) > most else Group(grid)


def _cells(debt: TableDebt, before: TableDebt | None) -> Iterator[Text]:
    for figure in ("files", "rows", "tombstones", "files_saved"):
        value = getattr(debt, figure)
        change = value - getattr(before, figure) if before else 0
        style = ("red" if change > 0 else "green") if figure in _DEBTS else "bold"
        yield Text.assemble(f"{value:,}", (_change_text(change), style if change else ""))


def _figures(debts: Debts) -> dict[str, int]:
    sizes = {"manifest_bytes": debts.manifest_bytes, "released_objects": debts.released_objects}
    return {name: debts.total(name) for name in _FIGURES} | sizes


def _change_text(change: int | None, prefix: str = " ") -> str:
    return f"{prefix}{change:+,}" if change else ""


DEFAULT_PAGE = Path("report.html")

_COLOURS = {"danger": "bold red", "warning": "yellow", "notice": "blue"}


@app.command()
def report(
    database: DatabaseUrl,
    output: Annotated[
        Path | None, Option("--output", "-o", help="The file of the page; report.html by default.", show_default=False)
    ] = None,
    rejected: Annotated[
        str | None,
        Option(
            "--rejected",
            "-r",
            envvar="DOLMEN_REJECTED_URL",
            help="The URL of rejected files, to count them. By default below DOLMEN_LANDING_URL, if that is set.",
        ),
    ] = None,
    queue: Annotated[
        str | None,
        Option("--queue", "-q", envvar="DOLMEN_DELETE_QUEUE", help="The delete queue, to count its messages."),
    ] = None,
    ingest_queue: Annotated[
        str | None, Option(envvar="DOLMEN_INGEST_QUEUE", help="The ingest queue, to count its messages.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about the health of the database: what needs attention, and the figures behind it.

    The page needs no other file, and has no values of rows. With --json its figures are printed, and a page is written
    only if --output names a file. Reads metadata only.
    """
    from dolmen.ingest.formats.export import open_for_replacement
    from dolmen.ingest.landing import rejects_url
    from dolmen.ingest.pipeline_health import look_at_pipeline

    page = DEFAULT_PAGE if output is None and not as_json else output
    if page is not None and ":/" in str(page):  # a path has one slash where a URL has two
        raise InputError(f"--output {str(page)!r}: give a local file, and copy it there")
    if rejected is None and (landing := os.environ.get("DOLMEN_LANDING_URL")):
        rejected = rejects_url(landing)
    db = open_existing(database)
    health = db.health(look_at_pipeline(rejected, ingest_queue, queue, context_of(db).runtime))
    if page is not None:
        from dolmen.maintenance.health.page import draw_page

        with open_for_replacement(page) as file:
            file.write(draw_page(health).encode())
    if as_json:
        print_json(health.to_dict())
        return
    for concern in health.concerns:
        say(f"[{_COLOURS[concern.level]}]{concern.level}[/] {escape(printable(concern.title))}", markup=True)
        for command in concern.commands:
            say(f"  [dim]{escape(printable(command))}[/]", markup=True)
    summary = f"{len(health.concerns):,} to look at" if health.concerns else "nothing needs attention"
    say(f"{page}: version {health.versions.newest:,}, {summary}")

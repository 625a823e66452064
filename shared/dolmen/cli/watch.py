"""``dolmen stats --watch``: the work that is left, again and again, and what has changed between two looks.

A look costs one request while nothing is committed.

Prints the debt of a database, with bars.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

import dolmen
from dolmen.base.units import DAY_US, count_text, duration_text, named_count_text, utc
from dolmen.cli.output import check_interval, console, print_json, print_rows, stopping_at_interrupt
from dolmen.commit.context import context_of
from dolmen.maintenance.debt import Debts, TableDebt, debts_of

_BAR_WIDTH = 24


_SLOW_TOMBSTONES = 1_000
"""Number of unresolved deletes at which the bar is full; scans get slower long before."""


_LATE_US = DAY_US


def print_debts(debts: Debts) -> None:
    """Prints the work that is left to do: for the database first, then by table."""
    lines = RichTable(show_header=False, box=None)
    for name, part, told in debt_lines(debts):
        lines.add_row(name, debt_bar(part), Text(told))
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
    yield "unresolved deletes", tombstones / _SLOW_TOMBSTONES, f"{tombstones:,}"
    yield "oldest unresolved", oldest / _LATE_US, duration_text(oldest) if tombstones else "none"
    files, saved = debts.total("files"), debts.total("files_saved")
    yield "small files", _part(saved, files), f"{saved:,} of {count_text(files, 'file')} fewer if compacted"
    rows, dead = debts.total("rows"), debts.total("dead_rows")
    yield "dead rows", _part(dead, rows), f"{dead:,} of {rows:,}"
    size, budget = debts.manifest_bytes, debts.manifest_budget
    yield "manifest", _part(size, budget), f"{size:,} of {budget:,} bytes"
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
        told = f"{count_text(entries, 'entry', 'entries')} for {of_tables}"
        yield "index", None, told + (f", {lag:,} to come" if lag else "")
    published = [table for table in debts.tables.values() if table.published_version is not None]
    if published:
        lag = debts.publication_lag_us
        told = f"{count_text(len(published), 'table')}, " + (f"{duration_text(lag)} behind" if lag else "none behind")
        yield "published as Iceberg", None, told
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


def _part(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def debt_bar(part: float | None) -> ProgressBar | Text:
    """A bar that is full to this part, green, yellow or red; nothing for None."""
    if part is None:
        return Text()
    colour = "green" if part < 0.5 else "yellow" if part < 0.9 else "red"
    return ProgressBar(1.0, min(part, 1.0), width=_BAR_WIDTH, complete_style=colour, finished_style=colour)


_WIDE = 72
"""Columns of a terminal that has room for bars and for the list of tables."""


_OTHER_LINES = 19
"""Lines of a terminal that the list of tables leaves to everything else, at the most."""


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


@dataclass(frozen=True)
class WatchedState:
    """The state of a database at one look, and since the look before.

    Args:
        at_us: when it was looked at, by this machine's clock.
        debts: the work that is left.
        before: the same at the look before; None at the first.
        seconds: the time between the two.
    """

    at_us: int
    debts: Debts
    before: Debts | None
    seconds: float

    @property
    def commits(self) -> int:
        """Number of commits since the look before."""
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
        """The state for JSON."""
        since = {"seconds": round(self.seconds, 3), "commits": self.commits, "changes": self.changes}
        return {"at": utc(self.at_us).isoformat(), "since": since, **self.debts.to_dict()}


class DebtsWatcher:
    """Looks at the debts of a database again and again.

    Args:
        exact: see ``Database.stats``.
    """

    def __init__(self, db: dolmen.Database, *, exact: bool) -> None:
        self._db, self._exact = db, exact
        self._last: Debts | None = None
        self._looked_at = 0.0

    def look(self) -> WatchedState:
        """Looks at the newest version: one request if there is no new one, and else as many as ``Database.stats``."""
        context, runtime, before = context_of(self._db), context_of(self._db).runtime, self._last
        manifest = context.head.refresh().manifest
        now, seconds = runtime.monotonic(), 0.0
        if before is not None:
            seconds = now - self._looked_at
        if before is None or before.version != manifest.version:
            self._last = debts_of(context, manifest, exact=self._exact)
        assert self._last is not None
        self._looked_at = now
        return WatchedState(runtime.clock_us(), self._last, before, seconds)


def watch_debts(db: dolmen.Database, interval: float, *, exact: bool, as_json: bool) -> None:
    """Shows the debts until Ctrl-C: in place on a terminal, elsewhere as a line for each look.

    Args:
        interval: seconds between two looks.
    """
    check_interval(interval)
    watcher = DebtsWatcher(db, exact=exact)
    with stopping_at_interrupt() as stop:

        def looks() -> Iterator[WatchedState]:
            while not stop.is_set():
                yield watcher.look()
                stop.wait(interval)

        if as_json:
            for state in looks():
                print_json(state.to_dict())
                console.file.flush()
        elif console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for state in looks():
                    live.update(screen_of(state, console.width, console.height), refresh=True)
        else:
            for state in looks():
                console.print(line_of(state), highlight=False, markup=False, soft_wrap=True)
                console.file.flush()


def line_of(state: WatchedState) -> str:
    """The state on one line."""
    debts = state.debts
    told = [f"{utc(state.at_us):%Y-%m-%d %H:%M:%S}Z version {debts.version:,}"]
    if state.before is not None:
        told.append(f"{count_text(state.commits, 'commit')} ({state.commits_per_second:.2g}/s)")
    changes = state.changes
    told += [
        f"{named_count_text(value, _words(name))}{_signed(changes.get(name))}"
        for name, value in _figures(debts).items()
        if value or name in changes
    ]
    return ", ".join(told)


def screen_of(state: WatchedState, width: int, height: int) -> RenderableType:
    """The state as a terminal of a width and height shows it: tables that have changed, or owe most, before others."""
    debts, wide = state.debts, width >= _WIDE
    rate = (
        f"  {count_text(state.commits, 'commit')} in {state.seconds:.0f} s, {state.commits_per_second:.2g}/s"
        if state.before
        else ""
    )
    head = Text.assemble(("version ", ""), (f"{debts.version:,}", "bold"), (rate, "dim"))
    lines = RichTable(show_header=False, box=None, pad_edge=False)
    for name, part, told in debt_lines(debts):
        lines.add_row(*([name, debt_bar(part), Text(told)] if wide else [name, Text(told)]))
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
    for place, (name, change) in enumerate(changes.items()):
        style = ("red" if change > 0 else "green") if name in _DEBTS else ""
        yield ("; " if place else "") + _words(name) + " ", ""
        yield _signed(change, ""), style


def _tables(state: WatchedState, most: int) -> Group:
    headers = ("table", "files", "rows", "unresolved deletes", "files to save")
    listed = RichTable(
        *(Column(header, justify="left" if place == 0 else "right") for place, header in enumerate(headers))
    )
    then = state.before.tables if state.before else {}
    tables = sorted(state.debts.tables.items(), key=lambda item: _rank(item[1], then.get(item[0])))
    for name, table in tables[:most]:
        listed.add_row(Text(name), *_cells(table, then.get(name)))
    more = f"{count_text(len(tables) - most, 'more table')}: dolmen stats shows all" if len(tables) > most else ""
    return Group(listed, Text(more, style="dim")) if more else Group(listed)


def _rank(now: TableDebt, then: TableDebt | None) -> tuple[bool, int, str]:
    """The order of tables: first those that have changed, then those that owe most."""
    return then is not None and now == then, -(now.tombstones + now.files_saved), now.name


def _cells(now: TableDebt, then: TableDebt | None) -> Iterator[Text]:
    for figure in ("files", "rows", "tombstones", "files_saved"):
        value = getattr(now, figure)
        change = value - getattr(then, figure) if then else 0
        style = ("red" if change > 0 else "green") if figure in _DEBTS else "bold"
        yield Text.assemble(f"{value:,}", (_signed(change), style if change else ""))


def _figures(debts: Debts) -> dict[str, int]:
    own = {"manifest_bytes": debts.manifest_bytes, "released_objects": debts.released_objects}
    return {name: debts.total(name) for name in _FIGURES} | own


def _words(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " "))


def _signed(change: int | None, before: str = " ") -> str:
    return f"{before}{change:+,}" if change else ""

"""Prints the debt of a database, with bars."""

from __future__ import annotations

from collections.abc import Iterator

from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from dolmen.base.units import DAY_US, duration_text
from dolmen.cli.output import console, print_rows
from dolmen.maintenance.debt import Debts, TableDebt

_BAR_WIDTH = 24
_SLOW_TOMBSTONES = 1_000
"""Number of unresolved deletes at which the bar is full; scans get slower long before."""
_LATE_US = DAY_US


def print_debts(debts: Debts) -> None:
    """Prints the work that is left to do: for the database first, then by table."""
    lines = RichTable(show_header=False, box=None)
    for name, part, told in debt_lines(debts):
        lines.add_row(name, debt_bar(part), Text(told))
    console.print(f"version [bold]{debts.version}[/], {debts.versions:,} versions kept", highlight=False)
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
    yield "small files", _part(saved, files), f"{saved:,} of {files:,} files fewer if compacted"
    rows, dead = debts.total("rows"), debts.total("dead_rows")
    yield "dead rows", _part(dead, rows), f"{dead:,} of {rows:,}"
    size, budget = debts.manifest_bytes, debts.manifest_budget
    yield "manifest", _part(size, budget), f"{size:,} of {budget:,} bytes"
    own = list(debts.segments.values()) + [one for table in debts.tables.values() for one in table.segments.values()]
    segments = sum(one.segments for one in own)
    yield "segments", None, f"{segments:,} with {sum(one.entries for one in own):,} entries"
    waiting = f"{debts.released_objects:,} objects"
    if debts.released_trees:
        waiting += f", {debts.released_trees:,} dropped trees of {debts.released_bytes:,} bytes"
    yield "waiting for gc", None, waiting
    with_index = [table for table in debts.tables.values() if table.index_entries is not None]
    if with_index:
        entries, rows = sum(table.index_entries or 0 for table in with_index), sum(table.rows for table in with_index)
        lag = sum(table.index_lag_rows for table in with_index)
        told = f"{entries:,} entries for {rows:,} rows of {len(with_index):,} tables"
        yield "index", None, told + (f", {lag:,} to come" if lag else "")
    published = [table for table in debts.tables.values() if table.published_version is not None]
    if published:
        lag = debts.publication_lag_us
        told = f"{len(published):,} tables, " + (f"{duration_text(lag)} behind" if lag else "none behind")
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

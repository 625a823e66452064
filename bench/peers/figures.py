"""The lines of the page's tables: which step of which work each one shows, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.peers.results import Outcome, Results
from bench.peers.servers import FIRST_BYTE_SECONDS

Value = Callable[[dict[str, Any]], float | None]


def seconds(step: dict[str, Any]) -> float | None:
    """The median of what was done several times, or the time of what was done once."""
    return step.get("median", step.get("seconds"))


def per_second(step: dict[str, Any]) -> float | None:
    """How often it was done in a second."""
    return step["done"] / step["seconds"] if step.get("done") else None


def downloaded(step: dict[str, Any]) -> float | None:
    """The bytes that were read through the proxy."""
    found: float | None = step.get("requests", {}).get("bytes_down")
    return found


def member(name: str) -> Value:
    """A member of the step."""
    return lambda step: step.get(name)


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Args:
        text: what was measured.
        work, step: where it is in the results.
        value: takes the figure from the step.
        unit: ``s``, ``/s``, ``kB`` and ``MB`` (of bytes), ``mb`` (of megabytes), ``.1`` for one decimal, or
            nothing for a whole one.
        more: more is better.
        compared: whether peers are compared by it.
        kind: the line of ``PRICES`` that says why a peer may be faster.
    """

    text: str
    work: str
    step: str
    value: Value = seconds
    unit: str = "s"
    more: bool = False
    compared: bool = True
    kind: str = ""


NAMES = {
    "dolmen": "dolmen",
    "pyarrow": "plain Parquet",
    "delta": "Delta (delta-rs)",
    "iceberg": "Iceberg (pyiceberg)",
    "lance": "Lance",
    "ducklake": "DuckLake",
}
PLACES = {
    "folder": "In a folder",
    "s3": "On S3 over HTTP, on this machine",
    "s3 slow": f"On S3 with {FIRST_BYTE_SECONDS * 1000:.0f} ms to the first byte",
}
PRICES = {
    "append": ("one large append", "files are synced before a commit, and each column chunk has a checksum"),
    "scan": ("sums of a table without deletes", "each column chunk is compared with its checksum"),
    "clustered": ("a filter on one of two clustered columns", "rows are clustered by both columns alike"),
    "deleted": (
        "sums after deletes",
        "a delete reads and writes no rows, so scans compare keys until `resolve` has run",
    ),
    "resolved": ("sums after deletes, resolved", "rows are hidden, not rewritten, so scans copy the others"),
    "delete": ("a delete", "no catalog server: three PUTs in two round trips"),
    "upsert": ("an upsert", "keys are sorted and stored, so that no row is read"),
    "commit": ("small commits", "three PUTs in two round trips; in a folder, each file is synced with its directory"),
    "together": ("commits of four processes", "no catalog server, files are synced, and no commit fails"),
    "adopt": ("files become a table", "each footer is read, and its statistics and checksum are kept"),
    "open": ("a table is opened", "the pointer is read, so that the newest version is seen"),
    "small files": ("sums of many small files", "each file has a footer and checksums, which Python compares"),
    "look-up": (
        "a row by its key, without an index",
        "the pointer is read, and row groups are compared with their checksums",
    ),
    "index": (
        "a row by its key, with an index",
        "each look-up reads the pointer, and pages are compared with checksums",
    ),
}
"""By kind: what is compared, and the promise that costs the time."""

COMMITS = ("commit", "adopt", "open")
"""Kinds in which plain Parquet is not compared, because it has no commits."""

LINES = {
    "One large append": [
        Line("append", "table", "append", kind="append"),
        Line("stored", "table", "stored", member("bytes"), "MB"),
        Line("memory of the append", "table", "append", member("peak_mb"), "mb"),
        Line("open, and sums of two columns", "table", "sums", kind="scan"),
        Line("open, and sums of 1 % of the ids", "table", "range of 1 %", kind="scan"),
        Line("look-up of a row by id", "table", "look-ups", kind="look-up"),
    ],
    "Deletes from it": [
        Line("delete of 1 row", "table", "delete: 1 row", kind="delete"),
        Line("delete of a range", "table", "delete: a range", kind="delete"),
        Line("delete of random ids", "table", "delete: random ids", kind="delete"),
        Line("delete of users", "table", "delete: users", kind="delete"),
        Line("open, and sums after all of these", "table", "sums after: users", kind="deleted"),
        Line("resolution", "table", "resolve", compared=False),
        Line("open, and sums, resolved", "table", "sums after: resolve", kind="resolved"),
        Line("compaction", "table", "compact", compared=False),
        Line("open, and sums, compacted", "table", "sums after: compact", kind="scan"),
        Line("stored, cleaned up", "table", "stored in the end", member("bytes"), "MB"),
    ],
    "Small commits of 100 rows": [
        Line("commits a second", "commits", "commits", per_second, "/s", more=True, kind="commit"),
        Line("a commit, the first", "commits", "commits", member("first"), kind="commit"),
        Line("a commit, the last", "commits", "commits", member("last"), kind="commit"),
        Line("commits made", "commits", "commits", member("done"), "", compared=False),
        Line("objects left by a commit", "commits", "stored", lambda s: s["objects"] / s["commits"], ".1"),
        Line("stored by a commit", "commits", "stored", lambda s: s["bytes"] / s["commits"], "kB"),
        Line("open, and sums", "commits", "sums", kind="small files"),
        Line("compaction", "commits", "compact", compared=False),
        Line("open, and sums, compacted", "commits", "sums after: compact", kind="scan"),
        Line("objects, compacted and cleaned up", "commits", "stored in the end", member("objects"), ""),
    ],
    "100 deletes of one row": [
        Line("open, and sums before", "trickle", "sums before", kind="scan"),
        Line("a delete", "trickle", "deletes", kind="delete"),
        Line("open, and sums after", "trickle", "sums after", kind="deleted"),
        Line("open, and sums, resolved", "trickle", "sums after: resolve", kind="resolved"),
        Line("open, and sums, compacted", "trickle", "sums after: compact", kind="scan"),
    ],
    "Two appenders and two deleters at once": [
        Line(
            "appends a second",
            "together",
            "together",
            lambda s: s["appends"] / s["seconds"],
            "/s",
            more=True,
            kind="together",
        ),
        Line(
            "deletes a second",
            "together",
            "together",
            lambda s: s["deletes"] / s["seconds"],
            "/s",
            more=True,
            kind="together",
        ),
        Line("errors", "together", "together", lambda s: float(sum(s["errors"].values())), "", compared=False),
        Line("rows lost", "together", "together", member("lost"), "", compared=False),
        Line("rows that came back", "together", "together", member("revived"), "", compared=False),
    ],
    "Ten thousand files of 100 rows": [
        Line("the files become a table", "files", "register", kind="adopt"),
        Line("a new process: open", "files", "open and sum", member("open_seconds"), kind="open"),
        Line("open, and sums", "files", "open and sum", kind="small files"),
        Line("memory of that", "files", "open and sum", member("own_peak_mb"), "mb"),
        Line("open, and sums of 0.1 %", "files", "open and sum a range", kind="small files"),
        Line("open, and one row", "files", "open and look up a row", kind="small files"),
    ],
    "Visits, clustered by user and time": [
        Line("loaded in no order: bytes for one user of 100,000", "clusters", "one user: loaded", downloaded, "MB"),
        Line("for one hour of 720", "clusters", "one hour: loaded", downloaded, "MB"),
        Line("clustering", "clusters", "cluster", compared=False),
        Line("clustered: bytes for one user", "clusters", "one user: clustered", downloaded, "MB"),
        Line("for one hour", "clusters", "one hour: clustered", downloaded, "MB"),
        Line("open, and sums of one user", "clusters", "one user: clustered", kind="clustered"),
        Line("open, and sums of one hour", "clusters", "one hour: clustered", kind="clustered"),
    ],
    "UUID keys": [
        Line("ten appends", "keys", "load", kind="append"),
        Line("look-up of a row", "keys", "gets", kind="look-up"),
        Line("upsert", "keys", "upsert", kind="upsert"),
        Line("memory of the upsert", "keys", "upsert", member("own_peak_mb"), "mb"),
        Line("open, and sums after it", "keys", "sums after: upsert", kind="deleted"),
        Line("resolution", "keys", "resolve", compared=False),
        Line("memory of the resolution", "keys", "resolve", member("own_peak_mb"), "mb"),
        Line("open, and sums, resolved", "keys", "sums after: resolve", kind="resolved"),
        Line("compaction", "keys", "compact", compared=False),
        Line("an index is built", "keys", "index", kind="index"),
        Line("look-up of a row by it", "keys", "gets by the index", kind="index"),
    ],
    "Published as Iceberg": [
        Line(f"sums of two columns{then}, by {reader}", "publication", f"sums, {state}: {name}")
        for state, then in (("whole", ""), ("1 % deleted", " with 1 % of the rows deleted"))
        for name, reader in (
            ("dolmen", "dolmen"),
            ("DuckDB", "DuckDB's reader"),
            ("Polars", "Polars' reader"),
        )
    ],
}
"""The tables, by their titles."""


def show(value: float, unit: str) -> str:
    """A figure with its unit."""
    if unit == "MB":
        return f"{value / 1e6:,.1f} MB"
    if unit == "kB":
        return f"{value / 1e3:,.1f} kB"
    if unit == ".1":
        return f"{value:,.1f}"
    if unit == "mb":
        return f"{value:,.0f} MB"
    if unit == "/s":
        return f"{value:,.1f}"
    if unit == "":
        return f"{value:,.0f}"
    if value < 0.1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s"


def outcome_of(results: Results, place: str, line: Line, peer: str) -> Outcome | None:
    """The result of a peer in the work of a line; None if it was not measured."""
    return results.outcomes.get((place, line.work, peer))


def figure(line: Line, outcome: Outcome | None) -> float | None:
    """The figure; None if nothing was measured, or the answer was wrong."""
    if outcome is None or line.step in outcome.wrong:
        return None
    step = outcome.step(line.step)
    if not step or "over" in step or step.get("unsupported") or _passed_over(line, outcome):
        return None
    return line.value(step)


def comparable(line: Line, outcome: Outcome | None) -> float | None:
    """The figure, if it may be compared with those of others: not what comes after a loop that ran out of time."""
    for loop in ("commits", "deletes"):
        step = outcome.step(loop) if outcome else {}
        if line.step != loop and line.unit in ("s", "") and step.get("done", 0) < step.get("wanted", 0):
            return None
    return figure(line, outcome) if line.compared else None


def cell(line: Line, outcome: Outcome | None) -> str:
    """A figure in a table, or why there is none."""
    if outcome is None or outcome.ended == "absent":
        return ""
    step = outcome.step(line.step)
    if line.step in outcome.wrong:
        return "**wrong**"
    if step.get("unsupported") or _passed_over(line, outcome):
        return "—"
    if step.get("over") == "limit":
        return f"> {step['limit']:.0f} s"
    if step.get("over") == "memory":
        return f"> {step['limit']:.0f} GB"
    if not step:
        return "error" if outcome.ended == "error" and outcome.said.startswith(f"in {line.step}:") else ""
    value = line.value(step)
    if value is None:
        return ""
    requests = sum(count for kind, count in step.get("requests", {}).items() if not kind.startswith("bytes")) / max(
        1, step.get("done", 1)
    )
    shown = show(value, line.unit)
    return f"{shown} ({requests:,.0f})" if requests and line.unit in ("s", "/s") else shown


def _passed_over(line: Line, outcome: Outcome) -> bool:
    """Whether the figure comes after a step that the peer lacks."""
    before = "clean" if line.step == "stored in the end" else line.step.removeprefix("sums after: ")
    return before != line.step and any(outcome.step(name).get("unsupported") for name in (before, f"delete: {before}"))

"""``python -m bench``: measures, prints, and writes docs/benchmarks.md.

Times are compared only as ratios within one run; requests and bytes are counted exactly.
"""

from __future__ import annotations

import argparse
import os
import platform
from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from bench import scans
from bench.append import compare_append, create
from bench.dataset import events
from bench.deletes import cost, deletes
from bench.measure import Comparison, compare
from bench.places import Local, Ministack, place

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
console = Console()


# What is to be reached, as ratios (less is better).
APPEND = 1.15
SCAN = 1.10
SCAN_AFTER = {"100,000 random ids by key": 2.5, "1 % random ids by position": 1.4}


def main() -> None:
    """Runs what the command line asks for."""
    options = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    options.add_argument("--rows", type=int, default=12_000_000)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--places", nargs="+", default=["local", "ministack"])
    options.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    chosen = options.parse_args()
    console.print(f"{chosen.rows:,} rows")
    table = events(chosen.rows)
    sections = []
    for name in chosen.places:
        with place(name) as where:
            sections.append(measure(where, table, chosen.rounds))
    page = header(chosen.rows, table, chosen.rounds) + "\n".join(sections)
    if chosen.write:
        PAGE.write_text(page)


def measure(where: Local | Ministack, table: pa.Table, rounds: int) -> str:
    """One place's tables, in Markdown."""
    appends = min(rounds, where.append_rounds)
    title = f"## {where.name}" + (f", {appends} rounds for the append" if appends < rounds else "")
    lines = [title, "", "| what | dolmen | pyarrow | ratio | target |", "|---|---|---|---|---|"]

    def row(text: str) -> None:
        lines.append(text)
        console.print(text, highlight=False, soft_wrap=True)

    def ratio(what: str, found: Comparison, target: float | None) -> None:
        verdict = (
            "" if target is None else f"<= {target:.2f}: " + ("reached" if found.ratio <= target else "**missed**")
        )
        row(f"| {what} | {found.ours:.3f} s | {found.theirs:.3f} s | {found.ratio:.2f} | {verdict} |")

    ratio("append, input sorted by the sort key", compare_append(where, table, appends), APPEND)
    url = where.fresh()
    create(url).append(table)
    clean = where.pointer(url)
    wanted = scans.plain(where, url)
    found = scans.ours(url)
    assert found[1] == wanted[1], (found, wanted)
    assert abs(found[0] - wanted[0]) < 1e-6 * abs(wanted[0]), (found, wanted)
    ratio(
        "scan: sum of 2 columns",
        compare(partial(scans.ours, url), partial(scans.plain, where, url), rounds),
        SCAN,
    )
    costs = []
    for delete in deletes(table):
        where.pointer(url, clean)
        costs.append(cost(url, delete))
        dirty = where.pointer(url)

        def after(dirty: bytes = dirty) -> None:
            where.pointer(url, dirty)
            scans.ours(url)

        def before() -> None:
            where.pointer(url, clean)
            scans.ours(url)

        ratio(
            f"the same scan after a delete of {delete.name} (beside: before it)",
            compare(after, before, rounds),
            SCAN_AFTER.get(delete.name),
        )
    lines += ["", "| delete | PUTs | GETs after open | bytes uploaded | seconds |", "|---|---|---|---|---|"]
    for paid in costs:
        row(f"| {paid.name} | {paid.puts} | {paid.gets} | {paid.bytes_up:,} | {paid.seconds:.3f} |")
    where.remove(url)
    return "\n".join(lines) + "\n"


def header(rows: int, table: pa.Table, rounds: int) -> str:
    """What was measured, and on what."""
    return f"""# Benchmarks

Made by `make bench` (`python -m bench --write`). {rows:,} rows, {table.nbytes / 1e9:.2f} GB as Arrow: sequential `id`,
log-uniform int64 `user_id`, increasing `event_time`, two low-cardinality strings, float `amount`, a 60-character
random payload. Both sides run in turns in one process, {rounds} times, after one warm-up; the ratio is the median of
the ratios pair by pair. Absolute seconds are of one machine ({os.cpu_count()} cores, {platform.machine()}, Python
{platform.python_version()}, pyarrow {pa.__version__}) and mean little; the ratios are what counts. A scan is timed
from `open()` to the last batch. For the scans after a delete the column "pyarrow" holds dolmen's own scan before it.

What is known of the misses: an append waits for the disk (`fsync` of the file and its directory, about 8 % of it;
pyarrow's file is not synced) and tries encodings on the first run (about 5 %). Over HTTP, boto3 spends about 1 ms of
processor time on a request, several times what pyarrow's client does, and a scan of two columns of wide rows makes one
request for each row group.

"""


if __name__ == "__main__":
    main()

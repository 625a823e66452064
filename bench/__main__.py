"""``python -m bench``: measures, prints, and writes docs/benchmarks.md.

Times are compared only as ratios within one run; requests and bytes are counted exactly.
"""

from __future__ import annotations

import argparse
import os
import platform
from functools import partial

import pyarrow as pa
from rich.console import Console

from bench import growth, keys, scans
from bench import ingest as ingesting
from bench.append import compare_append, create
from bench.dataset import events
from bench.delete_messages import BATCH, TARGET, delete_messages
from bench.deletes import cost, deletes
from bench.maintenance import maintenance
from bench.measure import Comparison, compare
from bench.page import PAGE, updated
from bench.places import Local, Ministack, place
from bench.spark import part as spark

PARTS = ("main", "keys", "maintenance", "growth", "ingest", "messages", "spark")
console = Console()


# Targets, as ratios (less is better).
APPEND = 1.15
SCAN = 1.10
SCAN_AFTER = {"100,000 random ids by key": 1.5, "1 % random ids by position": 1.15}


def main() -> None:
    """Runs what the command line asks for."""
    options = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    options.add_argument("named", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    options.add_argument("--rows", type=int, default=12_000_000)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--places", nargs="+", default=["local", "ministack"])
    options.add_argument("--parts", nargs="+", default=[], choices=PARTS, help="like the arguments")
    options.add_argument("--commits", type=int, default=10_000, help="for the part growth")
    options.add_argument("--spark-rows", type=int, default=10_000_000, help="for the part spark")
    options.add_argument("--spark-rounds", type=int, default=5)
    options.add_argument("--only", nargs="+", default=list(spark.ONLY), choices=spark.ONLY, help="for the part spark")
    options.add_argument("--peers", nargs="*", default=list(spark.PEERS), choices=spark.PEERS, help="to compare with")
    options.add_argument("--write", action="store_true", help="write these parts into docs/benchmarks.md")
    chosen = options.parse_args()
    if unknown := set(chosen.named) - set(PARTS):
        options.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    chosen.parts = [*chosen.named, *chosen.parts] or list(PARTS)
    table = events(chosen.rows) if set(chosen.parts) - {"growth", "keys", "messages", "spark"} else None
    sections = []
    if table is not None:
        console.print(f"{chosen.rows:,} rows")
    for name in chosen.places if set(chosen.parts) != {"spark"} else ():
        with place(name) as where:
            if "main" in chosen.parts:
                sections.append(measure(where, table, chosen.rounds))
            if "keys" in chosen.parts and name == "local":
                sections.append(measure_keys(where, chosen.rounds))
            if "maintenance" in chosen.parts and name == "local":
                sections.append(measure_maintenance(where, table, chosen.rounds))
            if "growth" in chosen.parts:
                sections.append(measure_growth(where, chosen.commits, name == "local"))
            if "ingest" in chosen.parts and name == "local":
                sections.append(measure_ingest(where, table, chosen.rounds))
            if "messages" in chosen.parts:
                sections.append(measure_messages(where, chosen.rounds))
    if "spark" in chosen.parts:
        tell = partial(console.print, highlight=False, soft_wrap=True)
        sections += spark.measure_spark(chosen.spark_rows, chosen.spark_rounds, chosen.only, chosen.peers, tell)
    if chosen.write:
        PAGE.write_text(updated(PAGE.read_text(), header(chosen.rows, table, chosen.rounds) if table else "", sections))


def verdict(found: float, target: float | None) -> str:
    """How a figure compares with its target."""
    return "" if target is None else f"<= {target:.2f}: " + ("reached" if found <= target else "**missed**")


def measure_keys(where: Local, rounds: int) -> str:
    """Unresolved deletes by key, in Markdown."""
    lines = [
        f"## Unresolved keys, {where.name}",
        "",
        f"{keys.ROWS:,} rows of {keys.TENANTS} tenants, one of which is deleted; {rounds} alternating rounds. Memory "
        "is the peak of a process, including the interpreter.",
        "",
        "| what | dolmen | compared with | ratio | target |",
        "|---|---|---|---|---|",
    ]
    for name, found in keys.tenants(where, rounds):
        lines.append(
            f'| count after `delete({{"tenant": 1}})`, {name} (compared with: count of `tenant <> 1` before) | '
            f"{found.ours:.4f} s | {found.theirs:.4f} s | {found.ratio:.2f} | {verdict(found.ratio, keys.COUNT)} |"
        )
        console.print(lines[-1], highlight=False, soft_wrap=True)
    lines += ["", "| unresolved keys | memory of a count | memory of `resolve` | target |", "|---|---|---|---|"]
    for kind, count, counting, resolving in keys.memory(where):
        reached = "reached" if max(counting, resolving) <= keys.MEMORY_MB else "**missed**"
        lines.append(f"| {count:,} of {kind} | {counting} MB | {resolving} MB | <= {keys.MEMORY_MB} MB: {reached} |")
        console.print(lines[-1], highlight=False, soft_wrap=True)
    return "\n".join(lines) + "\n"


def measure_maintenance(where: Local | Ministack, table: pa.Table, rounds: int) -> str:
    """Background work, in Markdown."""
    lines = [
        f"## Background work, {where.name}",
        "",
        "| what | dolmen | compared with | ratio | target |",
        "|---|---|---|---|---|",
    ]
    for result in maintenance(where, table, rounds):
        found = result.found
        lines.append(
            f"| {result.name} | {found.ours:.3f} s | {found.theirs:.3f} s | {found.ratio:.2f} | "
            f"{verdict(found.ratio, result.target)} |"
        )
        console.print(lines[-1], highlight=False, soft_wrap=True)
    return "\n".join(lines) + "\n"


def measure_growth(where: Local | Ministack, commits: int, million: bool) -> str:
    """The cost of a table after years of use, in Markdown."""
    lines = [f"## Growth, {where.name}", ""]

    def tell(text: str) -> None:
        lines.append(text)
        console.print(text, highlight=False, soft_wrap=True)

    found = growth.latencies(where, commits)
    tell(
        f"* {commits:,} commits of 1,000 rows each: {found.spills} of them spilled "
        f"({found.spills / commits:.4f} additional PUTs per commit). "
        f"Median latency between the last two spills: {found.ratio:.2f} of that between the first two "
        f"({found.last * 1000:.1f} and {found.first * 1000:.1f} ms); {verdict(found.ratio, 1.2)}."
    )
    if million:
        small, large = growth.database(100), growth.database(growth.FILES)
        few, many = growth.commit_cost(*small), growth.commit_cost(*large)
        ratio = many.seconds / few.seconds
        tell(
            f"* A delete from a table of {growth.FILES:,} files (in memory): {many.puts} PUTs, a root of "
            f"{many.root_bytes:,} bytes, {ratio:.2f} of the processor time with 100 files; "
            f"{verdict(ratio, 1.5)}."
        )
        for what, clause in growth.CLAUSES.items():
            plan = growth.plan_cost(large[1], clause)
            tell(
                f"* Planning a scan of {what} in this table: {plan.files:,} files to read; {plan.gets} GETs and "
                f"{plan.cold:.3f} s with an empty cache, {plan.warm:.3f} s again ({verdict(plan.warm, 0.5)})."
            )
    return "\n".join(lines) + "\n"


def measure_ingest(where: Local, table: pa.Table, rounds: int) -> str:
    """Ingest of a file of each format, in Markdown."""
    rows, rounds = min(table.num_rows, ingesting.ROWS), min(rounds, ingesting.ROUNDS)
    lines = [
        f"## Ingest, {where.name}",
        "",
        f"One file of {rows:,} rows: read, checked, written as Parquet and committed; {rounds} rounds. Shares are of "
        "pyarrow's rows per second (more is better). Ingest / read compares the whole ingest with pyarrow's reading, "
        "and pyarrow's own is the share that pyarrow reaches when it also writes Parquet. Read / read compares only "
        "the reading, and ingest / read + write compares the ingest with pyarrow's reading and writing.",
        "",
        "| file | bytes a row | rows a second | ingest / read | target | pyarrow's own | read / read "
        "| ingest / read + write |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for found in ingesting.ingest(where, table, rounds):
        size, shares = found.bytes / rows, found.shares
        compared = "pyarrow cannot read it | | | | |"
        if shares is not None:
            reached = "reached" if shares.ingest >= ingesting.TARGET else "**missed**"
            target = f">= {ingesting.TARGET}: {reached}"
            own = shares.ingest / shares.both
            compared = f"{shares.ingest:.2f} | {target} | {own:.2f} | {shares.reading:.2f} | {shares.both:.2f} |"
        lines.append(f"| {found.name} | {size:.0f} | {found.rows_per_second:,.0f} | {compared}")
        console.print(lines[-1], highlight=False, soft_wrap=True)
    return "\n".join(lines) + "\n"


def measure_messages(where: Local | Ministack, rounds: int) -> str:
    """Delete messages folded into commits, in Markdown."""
    lines = [
        f"## Delete messages, {where.name}",
        "",
        f"Batches of {BATCH:,} messages through the delete function, one commit each.",
        "",
        "| delete by | messages a second | target |",
        "|---|---|---|",
    ]
    for found in delete_messages(where, rounds):
        reached = "reached" if found.per_second >= TARGET else "**missed**"
        lines.append(f"| {found.name} | {found.per_second:,.0f} | >= {TARGET:,}: {reached} |")
        console.print(lines[-1], highlight=False, soft_wrap=True)
    return "\n".join(lines) + "\n"


def measure(where: Local | Ministack, table: pa.Table, rounds: int) -> str:
    """The tables of one place, in Markdown."""
    appends = min(rounds, where.append_rounds)
    title = f"## {where.name}" + (f", {appends} rounds for the append" if appends < rounds else "")
    lines = [title, "", "| what | dolmen | pyarrow | ratio | target |", "|---|---|---|---|---|"]

    def row(text: str) -> None:
        lines.append(text)
        console.print(text, highlight=False, soft_wrap=True)

    def ratio(what: str, found: Comparison, target: float | None) -> None:
        reached = verdict(found.ratio, target)
        row(f"| {what} | {found.ours:.3f} s | {found.theirs:.3f} s | {found.ratio:.2f} | {reached} |")

    ratio("append, input sorted by the sort key", compare_append(where, table, appends), APPEND)
    url = where.fresh()
    create(url).append(table)
    clean = where.pointer(url)
    expected = scans.plain(where, url)
    found = scans.ours(url)
    assert found[1] == expected[1], (found, expected)
    assert abs(found[0] - expected[0]) < 1e-6 * abs(expected[0]), (found, expected)
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
            f"the same scan after a delete of {delete.name} (compared with: before it)",
            compare(after, before, rounds),
            SCAN_AFTER.get(delete.name),
        )
    lines += ["", "| delete | PUTs | GETs after open | bytes uploaded | seconds |", "|---|---|---|---|---|"]
    for paid in costs:
        row(f"| {paid.name} | {paid.puts} | {paid.gets} | {paid.bytes_up:,} | {paid.seconds:.3f} |")
    where.remove(url)
    return "\n".join(lines) + "\n"


def header(rows: int, table: pa.Table, rounds: int) -> str:
    """The head of the page: what was measured, and on which machine."""
    return f"""# Benchmarks

This page is written by `make bench` (`python -m bench --write`).

The data: {rows:,} rows, {table.nbytes / 1e9:.2f} GB as Arrow: sequential `id`, log-uniform int64 `user_id`,
increasing `event_time`, two low-cardinality strings, float `amount`, a random text of 60 characters. Both sides run in
turns in one process, {rounds} times (unless a section says otherwise), after one warm-up; the ratio is the median of
the ratios of the pairs. The ratios matter, not the seconds of one machine ({os.cpu_count()} cores,
{platform.machine()}, Python {platform.python_version()}, pyarrow {pa.__version__}). A scan is timed from `open()` to
the last batch. For scans after a delete, the column "pyarrow" is dolmen's own scan before it. Sections may be from
different runs.
[performance.md](performance.md) explains missed targets.

"""


if __name__ == "__main__":
    main()

"""Writes the section of docs/benchmarks.md, and draws its charts, from recorded results."""

from __future__ import annotations

import argparse
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.page import PAGE, updated
from bench.peers.charts import charts
from bench.peers.figures import COMMITS, LINES, NAMES, PLACES, PRICES, cell, comparable, figure, outcome_of, show
from bench.peers.results import Results
from bench.peers.servers import BYTES_PER_SECOND, FIRST_BYTE_SECONDS

TITLE = "Compared with other table formats"
ASSETS = PAGE.parent / "assets"
PUBLISHED = ASSETS / "peers.jsonl"
"""The results that the page is drawn from."""

UPSERT_TIMES = 20
UPSERT_MB = 700
"""Targets for an upsert on UUID keys: times as fast as the merge of others, and megabytes of memory."""

COMPARED_ROUNDS = 10
ROUNDS_TIMES = 1.2
"""Target with background work: the time of a query in the last rounds, relative to the first rounds."""

SHOWN = ("folder", "s3 slow")
"""The places with tables on the page; the others count where peers are compared."""

FASTER = 0.95
"""A peer is faster if it takes less than this share of dolmen's time."""

_METHOD = f"""\
`make bench-peers` writes this section (`BENCH_FLAGS="--scale 0.05"` for a small run; an interrupted run continues,
unless it gets `--fresh`). dolmen and five others get the same seeded rows on the same machine, one after another, each
task in its own process, with the default settings of each library: [delta-rs](https://delta-io.github.io/delta-rs/),
[pyiceberg](https://py.iceberg.apache.org) with its SQL catalog on SQLite, [Lance](https://lance.org),
[DuckLake](https://ducklake.select) with its catalog on PostgreSQL, and plain Parquet files written by pyarrow, which
have no commits. `locks/peers.txt` has the versions.

* **Stores**: a folder; MinIO on this machine, behind a proxy that counts requests; and the same with
  {FIRST_BYTE_SECONDS * 1000:.0f} ms to the first byte and {BYTES_PER_SECOND / 1e6:.0f} MB a second on each connection,
  like S3. Requests are in brackets. Catalogs are on this machine: their requests take no network time and are not
  counted.
* **Correctness**: the sums of each step are compared with numpy's for the same rows. `make bench-peers` fails if they
  differ.
* **Limits**: a peer that exceeds the time or memory limit of a step is stopped. A loop that runs out of time is
  measured by the work it did; later steps are shown but not compared.
* **Time** is wall-clock time, with libraries loaded beforehand. Queries include opening the table. Memory is the peak
  of a process, with the interpreter and the rows that it returns.
* **Disk**: dolmen syncs each file and its directory before it commits: ten small appends are 66 calls of `fsync`.
  delta-rs and Lance make none, and pyiceberg and DuckLake 40 for their catalogs. Data that is not synced may be lost in
  a power failure.
* **Background work** is each peer's own (pyiceberg has no compaction). It is not compared, because peers leave
  different amounts of work to it.
* **Concurrent commits**: four processes, one table. Failed commits are retried only by the library itself.
"""


def section(results: Results | None) -> str:
    """The section in Markdown; without results, it says how to make them."""
    if results is None:
        return f"## {TITLE}\n\n{_METHOD}\nNo results are recorded yet: run `make bench-peers`.\n"
    head = results.head
    assert head is not None
    versions = ", ".join(f"{name} {version}" for name, version in head.versions.items())
    loads = [outcome.load for outcome in results.outcomes.values()]
    parts = [
        f"## {TITLE}",
        "",
        _METHOD,
        f"Measured on {head.machine}, from {head.started}; {versions}; {head.s3 or 'no S3'}; DuckLake's catalog on "
        f"{'PostgreSQL' if head.postgres else 'SQLite'}. Scale {head.scale:g}, seed {head.seed}; "
        f"{head.seconds:g} s for a loop, {head.long_seconds:g} s for an upsert by key; the load of the machine was "
        f"{min(loads, default=0):.1f} to {max(loads, default=0):.1f}. All figures: "
        "[peers.jsonl](assets/peers.jsonl).",
        "",
        "### Where a peer is faster",
        "",
        *_faster(results),
        "",
        *_targets(results),
        *_wrong(results),
        *(f"![{title}](assets/{name})\n" for name, title, _ in charts(results)),
    ]
    for place, title in PLACES.items():
        tables = list(_tables(results, place)) if place in SHOWN else []
        if tables:
            parts += [f"### {title}", "", *tables]
    return "\n".join(parts).rstrip("\n") + "\n"


def _tables(results: Results, place: str) -> Iterator[str]:
    for title, rows in LINES.items():
        peers = [peer for peer in NAMES if any(outcome_of(results, place, line, peer) for line in rows)]
        if not peers:
            continue
        yield f"| {title} | {' | '.join(NAMES[peer] for peer in peers)} |"
        yield "|---" * (len(peers) + 1) + "|"
        for line in rows:
            cells = [cell(line, outcome_of(results, place, line, peer)) for peer in peers]
            found = {
                number: value
                for number, peer in enumerate(peers)
                if (value := comparable(line, outcome_of(results, place, line, peer))) is not None
            }
            if len(found) > 1:
                best = (max if line.more else min)(found, key=lambda number: found[number])
                cells[best] = f"**{cells[best]}**"
            yield f"| {line.text} | {' | '.join(cells)} |"
        yield ""


def _faster(results: Results) -> Iterator[str]:
    """A table of what the fastest peer does faster than dolmen: a line for each kind, with its worst case."""
    compared = Counter[str]()
    worse: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for place, where in PLACES.items():
        for title, lines_of in LINES.items():
            for line in (each for each in lines_of if each.kind):
                ours = comparable(line, outcome_of(results, place, line, "dolmen"))
                peers = [peer for peer in list(NAMES)[1:] if peer != "pyarrow" or line.kind not in COMMITS]
                found = {
                    peer: (value / ours if line.more else ours / value)
                    for peer in peers
                    if ours and (value := comparable(line, outcome_of(results, place, line, peer)))
                }
                if not ours or not found:
                    continue
                compared[line.kind] += 1
                best = max(found, key=lambda peer: found[peer])
                if found[best] > 1 / FASTER:
                    case = f"{title}: {line.text}, {where[0].lower()}{where[1:]}"
                    worse[line.kind].append(
                        (found[best], f"{case}: {show(ours, line.unit)} | {NAMES[best]}, {found[best]:.1f} x")
                    )
    if not worse:
        yield "Nowhere in this run."
        return
    yield "| what | slower in | worst case | fastest | what it pays for |"
    yield "|---|---|---|---|---|"
    for kind, (what, price) in PRICES.items():
        if cases := worse.get(kind):
            yield f"| {what} | {len(cases)} of {compared[kind]} | {max(cases)[1]} | {price} |"


def _targets(results: Results) -> Iterator[str]:
    """Yields a line for each target: the figures, and whether they reach it."""
    yield from _upsert_target(results)
    yield from _rounds_target(results)


def _upsert_target(results: Results) -> Iterator[str]:
    upsert, memory = (line for line in LINES["UUID keys"] if line.step == "upsert")
    ours = figure(upsert, outcome_of(results, "folder", upsert, "dolmen"))
    used = figure(memory, outcome_of(results, "folder", memory, "dolmen"))
    if ours is None or used is None:
        return
    texts = [f"{used:,.0f} MB (<= {UPSERT_MB}): {_verdict(used <= UPSERT_MB)}"]
    for peer in ("delta", "iceberg"):
        found = outcome_of(results, "folder", upsert, peer)
        theirs, least = figure(upsert, found), ""
        if theirs is None and found is not None and found.step("upsert").get("over") == "limit":
            theirs, least = found.step("upsert")["limit"], "more than "
        if theirs is not None:
            reached = _verdict(theirs / ours >= UPSERT_TIMES)
            texts.append(f"{least}{theirs / ours:.1f} x as fast as {NAMES[peer]} (>= {UPSERT_TIMES}): {reached}")
    yield f"The upsert of {results.sizes.upserts:,} UUID keys into {results.sizes.keys:,} rows: {'; '.join(texts)}."
    yield ""


def _rounds_target(results: Results) -> Iterator[str]:
    """Compares whole cycles of background work, because queries get slower until the next one."""
    outcome, rounds = results.of("s3", "upkept rounds").get("dolmen"), results.sizes.rounds
    queries = [step["median"] for step in outcome.steps if step["step"].startswith("query ")] if outcome else []
    if len(queries) != 1 + rounds or rounds < 2 * COMPARED_ROUNDS:  # the first query comes before all rounds
        return
    growth = median(queries[-COMPARED_ROUNDS:]) / median(queries[1 : 1 + COMPARED_ROUNDS])
    yield (
        f"{rounds} rounds with background work: a query of the last {COMPARED_ROUNDS} takes {growth:.2f} times as long "
        f"as one of the first {COMPARED_ROUNDS} (<= {ROUNDS_TIMES}): {_verdict(growth <= ROUNDS_TIMES)}."
    )
    yield ""


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def _wrong(results: Results) -> Iterator[str]:
    found = [outcome for outcome in results.outcomes.values() if outcome.wrong or outcome.ended == "error"]
    for outcome in found:
        said = f"wrong answers: {', '.join(outcome.wrong)}" if outcome.wrong else f"an error {outcome.said}"
        where = PLACES[outcome.place].lower()
        yield f"* {NAMES[outcome.peer]}, {outcome.work}, {where}: {said}."
    if found:
        yield ""


def publish(path: Path) -> None:
    """Writes the page, its charts, and a copy of the results next to them."""
    ASSETS.mkdir(exist_ok=True)
    if path != PUBLISHED:
        shutil.copyfile(path, PUBLISHED)
    draw(published())


def draw(results: Results | None) -> None:
    """Writes the page and its charts."""
    for name, _, drawn in charts(results) if results else ():
        (ASSETS / name).write_text(drawn)
    PAGE.write_text(updated(PAGE.read_text(), "", [section(results)]))


def published() -> Results | None:
    """The results that the page is drawn from; None if there are none."""
    return Results(PUBLISHED) if PUBLISHED.exists() else None


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m bench.peers.page", description=__doc__)
    options.add_argument("results", type=Path, nargs="?", help="a file to publish; by default the published one")
    chosen = options.parse_args().results
    draw(published()) if chosen is None else publish(chosen)

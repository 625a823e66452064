"""Draws the section of docs/benchmarks.md, and its charts, from what was measured."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from bench.page import PAGE, updated
from bench.peers.chart import Bar, Panel, bars, lines
from bench.peers.figures import LINES, Line, cell, figure, show
from bench.peers.results import Outcome, Results
from bench.peers.servers import BYTES_PER_SECOND, FIRST_BYTE_SECONDS

TITLE = "Beside other table formats"
ASSETS = PAGE.parent / "assets"
PUBLISHED = ASSETS / "peers.jsonl"
"""The results that the page is drawn from."""

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
FASTER = 0.95
"""A peer is faster if it takes less than this share of dolmen's time."""

_METHOD = f"""\
`make bench-peers` writes this section (`python -m bench.peers`). dolmen and five others get the same seeded rows on the
same machine, one after the other, each work in a process of its own, with the settings that each library has by
default: [delta-rs](https://delta-io.github.io/delta-rs/), [pyiceberg](https://py.iceberg.apache.org) with its SQL
catalog on SQLite, [Lance](https://lance.org), [DuckLake](https://ducklake.select) with its catalog on PostgreSQL
(SQLite where that is not installed), and plain Parquet files by pyarrow, which are the floor: they have no commits.
Versions are pinned in `locks/peers.txt`. `make bench-peers BENCH_FLAGS="--scale 0.05"` makes a small run. A run that
was broken off goes on where it stopped, and `BENCH_FLAGS=--fresh` begins anew.

* **Places**: a folder; an S3 server on this machine (MinIO, or ministack where that is not installed), behind a proxy
  that counts requests; and the same with {FIRST_BYTE_SECONDS * 1000:.0f} ms to the first byte of each answer and
  {BYTES_PER_SECOND / 1e6:.0f} MB a second on each connection, which is what S3 is like. Requests of a step, or of one
  of its repetitions, are in brackets. The catalogs of Iceberg and DuckLake are on this machine in all places: what is
  asked of them takes no time on the wire, and is not counted.
* **Right answers**: after each step the sums that a peer finds are compared with those that numpy makes of the same
  rows. The tables say what is wrong, and `make bench-peers` fails.
* **Limits**: a peer that takes longer than the limit of a step, or more memory, is ended, and the tables say so. A loop
  that runs out of time is measured by what it did.
* **Time** is that of the clock. Queries begin with the opening of the table; deletes, commits and upserts have it open.
  Memory is the most that a process had during the step, the interpreter and the rows that it gives included.
* **Disk**: in a folder, dolmen syncs each file and its directory before it commits; ten small appends are 66 calls of
  `fsync`. delta-rs and Lance make none, pyiceberg and DuckLake (on SQLite) 40, all of them for their catalogs. What
  is not synced may be lost when the power fails, although it was committed.
* **Background work** is each peer's own: `maintain` and `gc` of dolmen; `optimize.compact` and `vacuum` of delta-rs;
  `compact_files` and `cleanup_old_versions` of Lance; rewriting, merging and expiry of DuckLake; expiry of pyiceberg,
  which has no compaction. Only dolmen resolves. dolmen keeps for a second what is no longer needed, and the others
  nothing.
* **At once**: four processes commit to one table. No commit that failed is tried again but by the library itself.
* **Rounds** are those of [LST-Bench](https://arxiv.org/abs/2305.01120) in small: append 1 %, delete 1 %, upsert 1 %,
  query; left alone, or with background work after each fifth round.
* A dash is work that a peer does not have. The best figure of a line is bold; compactions and resolutions are not
  compared, as peers leave more or less to them.
"""


def section(results: Results | None) -> str:
    """The section in Markdown; without results it says how they are made."""
    if results is None:
        return f"## {TITLE}\n\n{_METHOD}\nNo run on a quiet machine is written down yet: `make bench-peers`.\n"
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
        *_wrong(results),
        *(f"![{title}](assets/{name})\n" for name, title, _ in charts(results)),
    ]
    for place, title in PLACES.items():
        tables = list(_tables(results, place))
        if tables:
            parts += [f"### {title}", "", *tables]
    return "\n".join(parts).rstrip("\n") + "\n"


def _tables(results: Results, place: str) -> Iterator[str]:
    for title, rows in LINES.items():
        peers = [peer for peer in NAMES if any(_outcome(results, place, line, peer) for line in rows)]
        if not peers:
            continue
        yield f"| {title} | {' | '.join(NAMES[peer] for peer in peers)} |"
        yield "|---" * (len(peers) + 1) + "|"
        for line in rows:
            cells = [cell(line, _outcome(results, place, line, peer)) for peer in peers]
            found = {
                number: value
                for number, peer in enumerate(peers)
                if (value := figure(line, _outcome(results, place, line, peer))) is not None
            }
            if line.compared and len(found) > 1:
                best = (max if line.more else min)(found, key=lambda number: found[number])
                cells[best] = f"**{cells[best]}**"
            yield f"| {line.text} | {' | '.join(cells)} |"
        yield ""


def _outcome(results: Results, place: str, line: Line, peer: str) -> Outcome | None:
    return results.outcomes.get((place, line.work, peer))


def _faster(results: Results) -> Iterator[str]:
    """A table of what the fastest peer does in less than dolmen's time."""
    rows = []
    for place, where in PLACES.items():
        for title, lines_of in LINES.items():
            for line in (each for each in lines_of if each.compared and each.unit in ("s", "/s")):
                ours = figure(line, _outcome(results, place, line, "dolmen"))
                found = {
                    peer: (value / ours if line.more else ours / value)
                    for peer in list(NAMES)[1:]
                    if ours and (value := figure(line, _outcome(results, place, line, peer)))
                }
                if ours and found and max(found.values()) > 1 / FASTER:
                    best = max(found, key=lambda peer: found[peer])
                    rows.append(
                        f"| {where} | {title}: {line.text} | {show(ours, line.unit)} | {NAMES[best]} "
                        f"| {found[best]:.1f} |"
                    )
    if not rows:
        yield "Nowhere in this run."
        return
    yield "| where | what | dolmen | fastest | times as fast as dolmen |"
    yield "|---|---|---|---|---|"
    yield from rows


def _wrong(results: Results) -> Iterator[str]:
    found = [outcome for outcome in results.outcomes.values() if outcome.wrong or outcome.ended == "error"]
    for outcome in found:
        said = f"wrong answers: {', '.join(outcome.wrong)}" if outcome.wrong else f"an error {outcome.said}"
        where = PLACES[outcome.place].lower()
        yield f"* {NAMES[outcome.peer]}, {outcome.work}, {where}: {said}."
    if found:
        yield ""


def charts(results: Results) -> list[tuple[str, str, str]]:
    """File name, title and SVG of each chart for which there are figures."""
    found = []
    deletes = LINES["Deletes from it"][:4]
    for place, where in PLACES.items():
        if results.of(place, "table"):
            title = f"Seconds of a delete. {where}; less is better"
            groups = {line.text: _bars(results, place, line) for line in deletes}
            found.append(
                (
                    f"peers-deletes-{place.replace(' ', '-')}.svg",
                    title,
                    bars(title, groups, _named({bar.peer for bar in group} for group in groups.values())),
                )
            )
    commits = LINES["Small commits of 100 rows"][0]
    if any(results.of(place, "commits") for place in PLACES):
        title = "Small commits a second, one after the other; more is better"
        groups = {_short(where): _bars(results, place, commits) for place, where in PLACES.items()}
        groups = {label: group for label, group in groups.items() if group}
        found.append(
            (
                "peers-commits.svg",
                title,
                bars(title, groups, _named({bar.peer for bar in group} for group in groups.values())),
            )
        )
    if results.of("folder", "keys"):
        title = "An upsert on UUID keys, and its resolution: seconds; less is better"
        chosen = [line for line in LINES["UUID keys"] if line.step in ("upsert", "resolve") and line.unit == "s"]
        groups = {line.text: _bars(results, "folder", line) for line in chosen}
        found.append(
            (
                "peers-upsert.svg",
                title,
                bars(title, groups, _named({bar.peer for bar in group} for group in groups.values())),
            )
        )
    if results.of("s3", "rounds"):
        panels = list(_panels(results))
        title = "Rounds of append, delete 1 %, upsert 1 %, query; on S3 without latency"
        found.append(("peers-rounds.svg", title, lines(title, panels, _named(panel.lines for panel in panels))))
    return found


def _named(groups: Iterable[Collection[str]]) -> dict[str, str]:
    """The names of the peers that are in any of these groups."""
    found = {peer for group in groups for peer in group}
    return {peer: name for peer, name in NAMES.items() if peer in found}


def _short(where: str) -> str:
    return where.replace("On S3 over HTTP, on this machine", "On S3").replace(" to the first byte", "")


def _bars(results: Results, place: str, line: Line) -> list[Bar]:
    found = []
    for peer in NAMES:
        outcome = _outcome(results, place, line, peer)
        value = figure(line, outcome)
        if outcome is None or outcome.step(line.step).get("unsupported"):
            continue
        found.append(Bar(peer, value, show(value, line.unit) if value is not None else cell(line, outcome)))
    return found


def _panels(results: Results) -> Iterator[Panel]:
    whats = {"seconds of a query": "query", "requests of a query": "query", "megabytes stored": "stored"}
    for what, step in whats.items():
        for work, how in (("rounds", "left alone"), ("upkept rounds", "with background work")):
            drawn = {}
            for peer, outcome in results.of("s3", work).items():
                points = []
                for found in outcome.steps:
                    kind, _, turn = found.get("step", "").partition(" ")
                    if kind == step and turn.isdigit() and found.get("right", True):
                        points.append((float(turn), _of_round(what, found)))
                if len(points) > 1:
                    drawn[peer] = points
            yield Panel(f"{what}, {how}", drawn)


def _of_round(what: str, step: dict[str, float]) -> float:
    if what.startswith("megabytes"):
        return step["bytes"] / 1e6
    if what.startswith("seconds"):
        return step["median"]
    requests: dict[str, int] = step.get("requests", {})  # type: ignore[assignment]
    return float(sum(count for kind, count in requests.items() if not kind.startswith("bytes")))


def publish(path: Path) -> None:
    """Writes the page, its charts, and a copy of the results beside them."""
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
    """The results that the page is drawn from; None if none are."""
    return Results(PUBLISHED) if PUBLISHED.exists() else None


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m bench.peers.page", description=__doc__)
    options.add_argument("results", type=Path, nargs="?", help="a file to publish; by default the published one")
    chosen = options.parse_args().results
    draw(published()) if chosen is None else publish(chosen)

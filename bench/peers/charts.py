"""The charts of the page: which figures each of them shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from bench.peers.chart import Bar, Panel, bars, lines
from bench.peers.figures import LINES, NAMES, PLACES, Line, cell, figure, outcome_of, show
from bench.peers.results import Results


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
        outcome = outcome_of(results, place, line, peer)
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

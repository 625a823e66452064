"""The generated part of docs/mutations.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mutations.harmless import HARMLESS
from mutations.runner import Outcome

START = "<!-- mutations: written by make mutations -->\n"
END = "<!-- end of mutations -->\n"
_LONGEST = 150


def section(unmutated: Outcome, outcomes: Sequence[Outcome]) -> str:
    """The table, with a summary of the runs."""
    histories = [run for run in unmutated.runs if run.is_history]
    pairs = [run for run in unmutated.runs if not run.is_history]
    caught = sum(outcome.caught is not None for outcome in outcomes)
    lines = [
        f"Of {len(outcomes)} mutations {caught} are caught. The unchanged code passes each run that caught one: "
        f"{len(histories)} histories of {sum(run.steps for run in histories):,} steps, and "
        f"{sum(run.steps for run in pairs):,} executions of {len(pairs)} pairs.",
        "",
        "| what the code does | which rule it breaks | what is seen | where |",
        "| --- | --- | --- | --- |",
        *(_row(outcome) for outcome in outcomes),
        "",
        "Changes that look like mutations, and break no promise:",
        "",
        *(f"- *{harmless.mutation.name}*: {harmless.because}" for harmless in HARMLESS),
    ]
    return "\n".join(lines) + "\n"


def written(page: str, text: str) -> str:
    """The page with ``text`` between its markers. Raises ValueError if it has none."""
    start, end = page.find(START), page.find(END)
    if start < 0 or end < start:
        raise ValueError(f"the page has no place for the table: it begins with {START!r} and ends with {END!r}")
    return page[: start + len(START)] + "\n" + text + "\n" + page[end:]


def seen_before(page: str) -> dict[str, str]:
    """The seeds and pairs by which mutations were caught, according to the page, by the names of mutations."""
    table = page[page.find(START) : page.find(END)]
    rows = [row.split(" | ") for row in re.findall(r"^\| (.+) \|$", table, re.MULTILINE)]
    caught = [row for row in rows[2:] if len(row) == 4 and row[3]]
    return {name: _first(where) for name, _, _, where in caught}


def _first(where: str) -> str:
    """The seed, or the pair, whose name may contain a comma."""
    seed = re.match(r"seed (\d+)", where)
    return seed[1] if seed else where


def _row(outcome: Outcome) -> str:
    mutation, caught = outcome.mutation, outcome.caught
    assert mutation is not None
    if caught is None:
        return f"| {mutation.name} | {mutation.rule} | **nothing** in {outcome.steps:,} steps and all pairs | |"
    where = f"seed {caught.what}, step {caught.steps:,}" if caught.is_history else caught.what
    return f"| {mutation.name} | {mutation.rule} | {caught.never}: {_short(caught.said)} | {where} |"


def _short(said: str) -> str:
    """One line that fits into a table."""
    text = re.sub(r"\s+", " ", said)
    text = text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(" ", 1)[0] + " ..."
    return "`" + text.replace("|", "/").replace("`", "'") + "`"

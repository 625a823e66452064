"""The results of a run: a line of JSON for each task of each peer. An interrupted run continues after the last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.rows import Sizes

WORKS_VERSION = 2
"""Add one when what works do or write down changes: results of other versions are not continued."""


class OtherRunError(Exception):
    """A file of results is of a run with other settings."""


@dataclass(frozen=True)
class Head:
    """The first line: what was measured with which versions, and on which machine."""

    scale: float
    seed: int
    seconds: float
    long_seconds: float
    machine: str
    versions: dict[str, str]
    s3: str
    postgres: bool
    started: str
    works_version: int = WORKS_VERSION


@dataclass(frozen=True)
class Outcome:
    """One work of one peer.

    Args:
        steps: each with ``step``, and what was measured of it.
        ended: ``done``, ``limit`` (a step took too long), ``memory`` (it took too much), ``error``, or ``absent``
            (its libraries are not installed).
        said: for ``limit``, ``memory`` and ``error``: the step that it ended in, and the error.
        load: the other work of the machine, as the load average before the task began.
    """

    place: str
    work: str
    peer: str
    ended: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    said: str = ""
    load: float = 0.0

    @property
    def name(self) -> tuple[str, str, str]:
        """Place, work and peer."""
        return self.place, self.work, self.peer

    def step(self, name: str) -> dict[str, Any]:
        """The figures of a step; empty if it was not reached."""
        return next((step for step in self.steps if step.get("step") == name), {})

    @property
    def wrong(self) -> list[str]:
        """Steps with an answer that is not what numpy makes of the same rows."""
        return [step.get("step") or step["check"] for step in self.steps if step.get("right") is False]


class Results:
    """A file of them.

    Raises:
        OtherRunError: the file is of a run with other settings than the head.
    """

    def __init__(self, path: Path, head: Head | None = None) -> None:
        self._path = path
        self.outcomes: dict[tuple[str, str, str], Outcome] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        if lines:
            found = Head(**json.loads(lines[0]))
            if head is not None and _settings(found) != _settings(head):
                raise OtherRunError(
                    f"{path} is of a run with {_settings(found)}, this one has {_settings(head)}: "
                    "begin anew with --fresh, or name another file with --results"
                )
            head = found
            for line in lines[1:]:
                self._keep(Outcome(**json.loads(line)))
        elif head is None:
            raise FileNotFoundError(f"{path}: nothing has been measured; run make bench-peers")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(head)) + "\n")
        self.head: Head = head

    @property
    def sizes(self) -> Sizes:
        """The results in a folder."""
        head = self.head
        return Sizes.of(head.scale, remote=False, seconds=head.seconds, long_seconds=head.long_seconds)

    def add(self, outcome: Outcome) -> None:
        """Writes an outcome down."""
        self._keep(outcome)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

    def _keep(self, outcome: Outcome) -> None:
        self.outcomes[outcome.name] = outcome

    def of(self, place: str, work: str) -> dict[str, Outcome]:
        """The outcomes of a work, by peer."""
        return {name[2]: outcome for name, outcome in self.outcomes.items() if name[:2] == (place, work)}


def _settings(head: Head) -> dict[str, Any]:
    return {name: value for name, value in asdict(head).items() if name != "started"}

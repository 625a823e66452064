"""Runs what mutated code has to pass, and the same with the code as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mutations.mutation import Mutation
from mutations.trial import HISTORIES, Ran

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "shared" / "dolmen"
TESTS = ROOT / "tests"


@dataclass(frozen=True)
class Plan:
    """What is run.

    Args:
        histories: so many, up to the first that shows what must never happen.
        pairs: then, if none has, the exhaustive mode.
        seconds: after these a process is ended: a mutation may make code run for ever.
        first: the seed or the pair to begin with, by the names of mutations: where they were caught before.
    """

    histories: int = HISTORIES
    pairs: bool = True
    seconds: float = 3_600
    first: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What the suite made of a mutation.

    Args:
        mutation: None for the code as it is.
        runs: of a mutation in order; the last one has caught it, if it was caught.
        trouble: what went wrong beside: a crash of the process, time over.
    """

    mutation: Mutation | None
    runs: tuple[Ran, ...]
    trouble: str = ""

    @property
    def caught(self) -> Ran | None:
        """The run that showed what must never happen."""
        return next((run for run in self.runs if run.never), None)

    @property
    def steps(self) -> int:
        """Steps of all histories together."""
        return sum(run.steps for run in self.runs if run.is_history)

    @property
    def sound(self) -> bool:
        """Nothing at all was found."""
        return bool(self.runs) and not self.trouble and all(run.sound for run in self.runs)


@contextmanager
def copied(mutation: Mutation | None, package: Path = PACKAGE) -> Iterator[Path]:
    """A copy of the package with a mutation, in a directory that can stand on the path."""
    with tempfile.TemporaryDirectory(prefix="dolmen-mutation-") as directory:
        copy = Path(directory) / "dolmen"
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutation is not None:
            mutation.apply(copy)
        yield copy


def tried(mutation: Mutation, plan: Plan, package: Path = PACKAGE) -> Outcome:
    """Runs mutated code in a process of its own, up to what catches it."""
    with copied(mutation, package) as copy:
        options = [f"--histories={plan.histories}", "--first", plan.first.get(mutation.name, "")]
        options += ["--pairs"] if plan.pairs else []
        return Outcome(mutation, *_run_trial(copy, options, plan.seconds))


def tried_unmutated(runs: Sequence[str], plan: Plan, jobs: int, package: Path = PACKAGE) -> Outcome:
    """Runs the code as it is.

    Args:
        runs: seeds and names of pairs.
        jobs: processes that share them.
    """
    shares = [share for share in (runs[job::jobs] for job in range(jobs)) if share]
    with copied(None, package) as copy, ThreadPoolExecutor(jobs) as pool:
        ended = list(pool.map(lambda share: _run_trial(copy, ["--only", *share], plan.seconds), shares))
    return Outcome(None, tuple(run for found, _ in ended for run in found), "".join(trouble for _, trouble in ended))


def _run_trial(copy: Path, options: Sequence[str], seconds: float) -> tuple[tuple[Ran, ...], str]:
    """Runs a copy of the package in a process of its own. Returns its runs, and why the process failed, if it did."""
    environment = {**os.environ, "PYTHONPATH": f"{copy.parent}{os.pathsep}{TESTS}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "mutations.trial", str(copy), *options]
    trouble = ""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run(
                command, env=environment, cwd=copy.parent, stdout=output, stderr=errors, timeout=seconds
            )
            errors.seek(0)
            trouble = errors.read()[-2_000:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            trouble = f"it ran for more than {seconds:.0f} s"
        output.seek(0)
        return tuple(msgspec.json.decode(line, type=Ran) for line in output if line.endswith("\n")), trouble


def all_tried(mutations: Sequence[Mutation], plan: Plan, jobs: int) -> Iterator[Outcome]:
    """The outcomes in order, the last of the code as it is; all of one state of it, which is copied once.

    A mutation counts as caught only if the code as it is passes the run that has caught it.
    """
    caught: dict[str, None] = {}
    with copied(None) as package:
        with ThreadPoolExecutor(jobs) as pool:
            for outcome in pool.map(lambda mutation: tried(mutation, plan, package), mutations):
                if outcome.caught is not None:
                    caught[outcome.caught.what] = None
                yield outcome
        yield tried_unmutated(sorted(caught), plan, jobs, package)

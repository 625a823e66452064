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
        seconds: after these it is ended: a mutation may make code run for ever.
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
        runs: in order; the last one has caught it, if it was caught.
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


def tried(mutation: Mutation | None, plan: Plan, package: Path = PACKAGE) -> Outcome:
    """Runs it in a process of its own."""
    with copied(mutation, package) as copy:
        environment = {**os.environ, "PYTHONPATH": f"{copy.parent}{os.pathsep}{TESTS}", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "mutations.trial", str(copy), f"--histories={plan.histories}"]
        command += ["--pairs"] if plan.pairs else []
        command += ["--first", plan.first.get(mutation.name, "")] if mutation else []
        trouble = ""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            try:
                done = subprocess.run(
                    command, env=environment, cwd=copy.parent, stdout=output, stderr=errors, timeout=plan.seconds
                )
                errors.seek(0)
                trouble = errors.read()[-2_000:] if done.returncode else ""
            except subprocess.TimeoutExpired:
                trouble = f"it ran for more than {plan.seconds:.0f} s"
            output.seek(0)
            runs = tuple(msgspec.json.decode(line, type=Ran) for line in output if line.endswith("\n"))
    return Outcome(mutation, runs, trouble)


def all_tried(mutations: Sequence[Mutation], plan: Plan, jobs: int) -> Iterator[Outcome]:
    """The outcomes in order, the first of the code as it is; all of one state of it, which is copied once."""
    with copied(None) as package, ThreadPoolExecutor(jobs) as pool:
        outcomes = pool.map(lambda mutation: tried(mutation, plan, package), [None, *mutations])
        for outcome in outcomes:
            yield outcome
            if outcome.mutation is None and not outcome.sound:
                pool.shutdown(cancel_futures=True)
                return

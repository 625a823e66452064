"""Runs pairs in several processes, and records finished work, so that a stopped run can continue."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

import dolmen
from dolmen_simulator.interleavings.enumeration import Enumeration, FaultTally, PairCount
from dolmen_simulator.interleavings.registry import PAIRS
from dolmen_simulator.interleavings.steps import Fault

Share: TypeAlias = tuple[str, Fault | None]
"""The unit of work of a process: a pair with one fault, or without any."""

Draw: TypeAlias = Callable[[str, Sequence[Fault]], Sequence[Fault]]
"""Called with a pair's name and all faults that may strike it; returns the faults to try."""

ProgressCallback: TypeAlias = Callable[[int, int], object]
"""Called with the number of finished shares and the number of all shares."""


class Journal:
    """Tallies in a file, one line of JSON each. Lines of other code, and incomplete lines, are ignored.

    Args:
        path: the file; None keeps nothing.
        quick: whether the tallies are of quick mode.
    """

    def __init__(self, path: Path | None, *, quick: bool) -> None:
        self._path, self._code = path, _code_digest(quick)
        self.done: dict[Share, FaultTally] = {}
        for line in path.read_bytes().splitlines() if path is not None and path.exists() else ():
            try:
                entry = msgspec.json.decode(line, type=_Entry)
            except msgspec.DecodeError:
                continue
            if entry.code == self._code:
                self.done[entry.tally.pair, entry.tally.fault] = entry.tally

    def add(self, tally: FaultTally) -> None:
        """Appends a tally."""
        self.done[tally.pair, tally.fault] = tally
        if self._path is not None:
            with self._path.open("ab") as file:  # the newline ends an incomplete line
                file.write(b"\n" + msgspec.json.encode(_Entry(self._code, tally)))


class _Entry(msgspec.Struct, frozen=True):
    """A line of the journal.

    Args:
        code: digest of the code that ran, and of its mode.
    """

    code: str
    tally: FaultTally


def run_pairs(
    names: Sequence[str],
    *,
    quick: bool,
    jobs: int,
    journal: Path | None = None,
    draw: Draw = lambda name, faults: faults,
    progress: ProgressCallback = lambda done, total: None,
) -> Iterator[PairCount]:
    """Runs and judges all executions of pairs.

    Args:
        names: names of the pairs, best with the slowest first.
        quick: see Enumeration.
        jobs: number of processes.
        journal: a file; shares with a tally there, by the same code, are not run again.
        draw: chooses the faults to try; by default all.
        progress: called after each share.

    Yields:
        Each pair's count once its last fault is done.

    Raises:
        ExecutionError: the first violation.
    """
    kept = Journal(journal, quick=quick)
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        undisturbed: list[Share] = [(name, None) for name in names]
        for done in _run(pool, undisturbed, kept, quick):
            progress(done, len(undisturbed))
        drawn = {name: draw(name, kept.done[name, None].faults) for name in names}
        left = {name: [(name, None), *((name, fault) for fault in drawn[name])] for name in names}
        every = [share for shares in left.values() for share in shares]
        for done in _run(pool, every, kept, quick):
            progress(done, len(every))
            for name in [name for name, shares in left.items() if all(share in kept.done for share in shares)]:
                yield PairCount.of(PAIRS[name], [kept.done[share] for share in left.pop(name)], quick=quick)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an error is reported without waiting for the rest


def _run(pool: ProcessPoolExecutor, shares: Sequence[Share], kept: Journal, quick: bool) -> Iterator[int]:
    """Runs the shares without a tally in the journal. Yields the number of finished shares, at first and after each."""
    missing = [share for share in shares if share not in kept.done]
    yield len(shares) - len(missing)
    running = [pool.submit(_tally, *share, quick) for share in missing]
    for done, future in enumerate(as_completed(running), len(shares) - len(missing) + 1):
        kept.add(future.result())
        yield done


def _tally(name: str, fault: Fault | None, quick: bool) -> FaultTally:
    return _enumeration(name, quick).tally(fault)


@cache
def _enumeration(name: str, quick: bool) -> Enumeration:
    """Keeps one enumeration of each pair, so that a process judges equal ends once."""
    return Enumeration(PAIRS[name], quick=quick)


def _code_digest(quick: bool) -> str:
    """A digest of all code, and of the mode."""
    digest = hashlib.blake2b(str(quick).encode(), digest_size=16)
    for package in Path(dolmen.__file__).parent, Path(__file__).parents[1]:
        for file in sorted(package.rglob("*.py")):
            digest.update(f"\n{file.relative_to(package.parent)}\n".encode() + file.read_bytes())
    return digest.hexdigest()

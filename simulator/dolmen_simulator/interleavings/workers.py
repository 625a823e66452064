"""Shares the faults of pairs out over processes, and writes down what is done, so that a stopped run can go on."""

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
from dolmen_simulator.interleavings.enumeration import Count, Enumeration, Tally
from dolmen_simulator.interleavings.registry import PAIRS
from dolmen_simulator.interleavings.steps import Fault

Share: TypeAlias = tuple[str, Fault | None]
"""What one process runs at a time: a pair with one fault, or without any."""

Told: TypeAlias = Callable[[int, int], object]
"""Called with how many shares are done, of how many."""


class Journal:
    """Tallies in a file, a line of JSON each; those that other code has written, or that were cut off, don't count.

    Args:
        path: the file; None: nothing is kept.
        quick: which faults the tallies are of.
    """

    def __init__(self, path: Path | None, *, quick: bool) -> None:
        self._path, self._code = path, _code(quick)
        self.done: dict[Share, Tally] = {}
        for line in path.read_bytes().splitlines() if path is not None and path.exists() else ():
            try:
                entry = msgspec.json.decode(line, type=_Entry)
            except msgspec.DecodeError:
                continue
            if entry.code == self._code:
                self.done[entry.tally.pair, entry.tally.fault] = entry.tally

    def add(self, tally: Tally) -> None:
        """Writes one down."""
        self.done[tally.pair, tally.fault] = tally
        if self._path is not None:
            with self._path.open("ab") as file:  # a line that was cut off ends before the next
                file.write(b"\n" + msgspec.json.encode(_Entry(self._code, tally)))


class _Entry(msgspec.Struct, frozen=True):
    """A line of the journal.

    Args:
        code: a digest of the code that has run, and of its mode.
    """

    code: str
    tally: Tally


def run_pairs(
    names: Sequence[str],
    *,
    quick: bool,
    jobs: int,
    journal: Path | None = None,
    told: Told = lambda done, of: None,
) -> Iterator[Count]:
    """Runs and judges all executions of pairs.

    Args:
        names: of the pairs; those that take longest are best first.
        quick: see Enumeration.
        jobs: processes.
        journal: a file; what it has tallies of, by this very code, is not run again.
        told: of progress.

    Yields:
        Each pair's count once its last fault is done.

    Raises:
        ExecutionError: the first that must never be.
    """
    kept = Journal(journal, quick=quick)
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        undisturbed: list[Share] = [(name, None) for name in names]
        for done in _run(pool, undisturbed, kept, quick):
            told(done, len(undisturbed))
        left = {name: [(name, None), *((name, fault) for fault in kept.done[name, None].faults)] for name in names}
        every = [share for shares in left.values() for share in shares]
        for done in _run(pool, every, kept, quick):
            told(done, len(every))
            for name in [name for name, shares in left.items() if all(share in kept.done for share in shares)]:
                yield Count.of(PAIRS[name], [kept.done[share] for share in left.pop(name)], quick=quick)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # who is told of an error need not wait for what still runs


def _run(pool: ProcessPoolExecutor, shares: Sequence[Share], kept: Journal, quick: bool) -> Iterator[int]:
    """Runs those that the journal has no tally of. Yields how many are done, at first and after each."""
    missing = [share for share in shares if share not in kept.done]
    yield len(shares) - len(missing)
    running = [pool.submit(_tally, *share, quick) for share in missing]
    for done, future in enumerate(as_completed(running), len(shares) - len(missing) + 1):
        kept.add(future.result())
        yield done


def _tally(name: str, fault: Fault | None, quick: bool) -> Tally:
    return _enumeration(name, quick).tally(fault)


@cache
def _enumeration(name: str, quick: bool) -> Enumeration:
    """A process keeps what it has found right, so that what ends alike is judged once in each."""
    return Enumeration(PAIRS[name], quick=quick)


def _code(quick: bool) -> str:
    """A digest of all code there is, and of the mode."""
    digest = hashlib.blake2b(str(quick).encode(), digest_size=16)
    for package in Path(dolmen.__file__).parent, Path(__file__).parents[1]:
        for file in sorted(package.rglob("*.py")):
            digest.update(f"\n{file.relative_to(package.parent)}\n".encode() + file.read_bytes())
    return digest.hexdigest()

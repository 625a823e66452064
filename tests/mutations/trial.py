"""``python -m mutations.trial``: what mutated code has to pass, in a process that imports that code.

First histories of the simulation by fixed seeds, then every interleaving of the exhaustive mode's pairs, up to the
first that shows what must never happen. The code under test is whatever ``dolmen`` is first on the path. Tells of
each history and each pair in a line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from dolmen_simulator.judge.never import ViolationError

FIRST_SEED = 20_270_101
STEPS = 4_000
HISTORIES = 40


@dataclass(frozen=True)
class Ran:
    """What became of one history, or of one pair.

    Args:
        what: the history's seed, or the pair's name.
        steps: of the history; of a pair, the executions of it.
        sound: it went to its end, and nothing was wrong.
        never: which of the things that must never happen has happened; "" for none.
        said: what the check said of it, or what else ended it.
    """

    what: str
    steps: int
    sound: bool
    never: str = ""
    said: str = ""

    @property
    def is_history(self) -> bool:
        """Whether it is one of the simulation."""
        return self.what.isdigit()


def history(seed: int, steps: int = STEPS) -> Ran:
    """Runs one history."""
    from dolmen_simulator.simulation import HistoryError, simulate

    gc.disable()  # what a history makes lives until its end
    try:
        summary = simulate(seed, steps, keep=1)
    except HistoryError as error:
        return _judged(str(seed), error.failure.step, error, error.failure.reason)
    finally:
        gc.collect()
        gc.enable()
    return Ran(str(seed), summary.steps, True)


def pair(name: str) -> Ran:
    """Runs all interleavings of one pair."""
    from dolmen_simulator.interleavings.enumeration import Enumeration, ExecutionError
    from dolmen_simulator.interleavings.registry import PAIRS

    try:
        count = Enumeration(PAIRS[name], quick=True).run()
    except ExecutionError as error:
        return _judged(name, 0, error.violation, str(error.violation))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is not what counts
        return Ran(name, 0, False, "", f"{type(error).__name__}: {error} ({_place(error)})")
    return Ran(name, count.executions, True)


def _all(first: str, histories: int, and_pairs: bool) -> Iterator[Ran]:
    from dolmen_simulator.interleavings.registry import PAIRS

    seeds = [str(seed) for seed in range(FIRST_SEED, FIRST_SEED + histories)]
    every = [*seeds, *(PAIRS if and_pairs else ())]
    for what in [first] * (first in every) + [each for each in every if each != first]:
        yield _run(what)


def _run(what: str) -> Ran:
    return history(int(what)) if what.isdigit() else pair(what)


def _judged(what: str, steps: int, error: BaseException, reason: str) -> Ran:
    violation = _violation(error)
    if violation is None:
        return Ran(what, steps, False, "", f"{reason} ({_place(error)})")
    return Ran(what, steps, False, violation.never.name, violation.what)


def _violation(error: BaseException) -> ViolationError | None:
    """The violation that ended a run. None if it was something else: a mutation must not be caught by crashing.

    A violation may say that users get an error: then it must be one that they may get, and no bug of the mutated line.
    It may also say that what is stored can't be read: by the checks themselves, that is, and not by mutated code.
    """
    from dolmen.errors import Error
    from dolmen_simulator.judge.never import ViolationError

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ViolationError):
        cause = cause.__cause__
    if cause is None:
        return None
    origin = cause.__cause__
    return cause if origin is None or isinstance(origin, Error) or not _in_production(origin) else None


def _in_production(error: BaseException) -> bool:
    """Whether an exception came through the code under test."""
    import dolmen

    package = Path(dolmen.__file__).parent
    files = (Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__))
    return any(file.is_relative_to(package) for file in files)


def _place(error: BaseException) -> str:
    """Where an exception was raised first."""
    while error.__cause__ is not None:
        error = error.__cause__
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def main() -> None:
    """Runs one after the other until one shows what must never happen."""
    parser = argparse.ArgumentParser(prog="python -m mutations.trial")
    parser.add_argument("package", type=Path, help="the copy of shared/dolmen that has to be run")
    parser.add_argument("--histories", type=int, default=HISTORIES)
    parser.add_argument("--pairs", action="store_true", help="then the exhaustive mode's")
    parser.add_argument("--first", default="", help="the seed or the pair to begin with")
    parser.add_argument("--only", nargs="+", help="these seeds and pairs alone")
    arguments = parser.parse_args()
    import dolmen

    assert Path(dolmen.__file__).parent == arguments.package.resolve(), f"{dolmen.__file__} is run instead"
    runs = _all(arguments.first, arguments.histories, arguments.pairs)
    for found in runs if arguments.only is None else map(_run, arguments.only):
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        sys.stdout.flush()
        if found.never:
            break
    os._exit(0)  # what libraries do when an interpreter ends is not what is tried


if __name__ == "__main__":
    main()

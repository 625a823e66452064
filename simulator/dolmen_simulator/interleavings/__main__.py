"""``python -m dolmen_simulator.interleavings``: every interleaving of two calls, with one fault at every point.

::

    python -m dolmen_simulator.interleavings --list
    python -m dolmen_simulator.interleavings --all --quick
    python -m dolmen_simulator.interleavings --all --jobs 8 --journal done.jsonl
    python -m dolmen_simulator.interleavings append/delete
    python -m dolmen_simulator.interleavings append/delete --choices 0,0,1,1,0 --fault 0:3:response_lost
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dolmen_simulator.interleavings.enumeration import Enumeration, ExecutionError, story
from dolmen_simulator.interleavings.registry import PAIRS
from dolmen_simulator.interleavings.steps import Fault
from dolmen_simulator.interleavings.workers import run_pairs


def main() -> int:
    """Runs the pairs that the arguments name. The exit status is 1 if something happened that must never happen."""
    parser = argparse.ArgumentParser(
        prog="python -m dolmen_simulator.interleavings",
        description="Runs every interleaving of two calls on one database, with one fault at every point.",
    )
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="such as append/delete; see --list")
    parser.add_argument("--all", action="store_true", help="all pairs")
    parser.add_argument("--list", action="store_true", help="names of the pairs")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out faults that cannot lead to a new end, and the faults of a second call of the same kind; "
        "for most collections and merges, try only faults of pointer puts, or none (the output says what is left out)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes run them")
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="record finished work in this file, and skip work recorded in it"
    )
    parser.add_argument("--choices", help="run one execution: the number that is chosen at each step")
    parser.add_argument(
        "--fault", type=Fault.parse, help="the fault of that execution: TASK:REQUEST:FATE[+REQUESTS THAT GET 503]"
    )
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(PAIRS))
        return 0
    names = list(PAIRS) if arguments.all else arguments.pairs
    if unknown := [name for name in names if name not in PAIRS]:
        parser.error(f"there is no pair {', '.join(unknown)}: see --list")
    try:
        if arguments.choices is None and arguments.fault is None:
            _run(names, arguments.quick, arguments.jobs, arguments.journal)
            return 0
        choices = tuple(int(choice) for choice in (arguments.choices or "").split(",") if choice)
        for name in names:
            execution = Enumeration(PAIRS[name]).replay(choices, arguments.fault)
            print("\n".join([*story(PAIRS[name], execution), "nothing is wrong"]))
    except ExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = f": {arguments.journal} records the finished work" if arguments.journal else ""
        print(f"stopped{kept}", file=sys.stderr)
        return 130
    return 0


def _run(names: list[str], quick: bool, jobs: int, journal: Path | None) -> None:
    columns = SpinnerColumn(), TextColumn("faults"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("")
        counts = run_pairs(
            names,
            quick=quick,
            jobs=jobs,
            journal=journal,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
        for count in counts:
            print(count, flush=True)


if __name__ == "__main__":
    sys.exit(main())

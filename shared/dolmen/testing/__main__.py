"""``python -m dolmen.testing --seed N --steps M``: one history by hand."""

from __future__ import annotations

import argparse
import sys
import time

from dolmen.testing.replay import HistoryError
from dolmen.testing.simulation import simulate


def main() -> int:
    """Runs it; the exit status is 1 if anything happened that must never happen."""
    parser = argparse.ArgumentParser(prog="python -m dolmen.testing", description="Runs a simulated history.")
    parser.add_argument("--seed", type=int, default=None, help="decides everything; by default the clock chooses")
    parser.add_argument("--steps", type=int, default=2_000, help="store verbs in each history (default 2000)")
    parser.add_argument("--histories", type=int, default=1, help="how many, with consecutive seeds (default 1)")
    parser.add_argument("--trace", type=int, default=60, help="lines of trace an error shows (default 60)")
    arguments = parser.parse_args()
    first = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000_000
    for seed in range(first, first + arguments.histories):
        try:
            summary = simulate(seed, arguments.steps, keep=arguments.trace)
        except HistoryError as error:
            print(error, file=sys.stderr)
            return 1
        counts = ", ".join(f"{name} {number}" for name, number in sorted(summary.counts.items()))
        print(f"seed {seed}: {summary.steps} steps, {summary.weather}, digest {summary.digest}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

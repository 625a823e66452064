"""``python -m mutations``: breaks the code on purpose, in many ways, and shows that the suite notices each of them.

Each mutation first runs what caught it before, by docs/mutations.md. Finally the unchanged code has to pass each run
that caught a mutation. ``--write`` writes the outcome to that page.
"""

from __future__ import annotations

import argparse
import sys
import time

from mutations.catalogue import MUTATIONS
from mutations.page import section, seen_before, written
from mutations.runner import ROOT, Outcome, Plan, all_tried

PAGE = ROOT / "docs" / "mutations.md"


def main() -> int:
    """The exit status is 1 if the code as it is fails, or a mutation is not caught."""
    parser = argparse.ArgumentParser(prog="python -m mutations", description=__doc__)
    parser.add_argument("--only", action="append", help="only mutations whose names contain this; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default 2)")
    parser.add_argument("--histories", type=int, default=Plan.histories, help="of each, if nothing is seen before")
    parser.add_argument("--without-pairs", action="store_true", help="leave the exhaustive mode out")
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="for one mutation at most")
    parser.add_argument("--write", action="store_true", help="write docs/mutations.md")
    options = parser.parse_args()
    if options.write and (options.only or options.without_pairs):
        parser.error("--write needs all mutations and all runs: leave out --only and --without-pairs")
    plan = Plan(options.histories, not options.without_pairs, options.seconds, seen_before(PAGE.read_text()))
    wanted = options.only or [""]
    chosen = [mutation for mutation in MUTATIONS if any(part in mutation.name for part in wanted)]
    began, outcomes = time.monotonic(), list[Outcome]()
    for outcome in all_tried(chosen, plan, options.jobs):
        print(f"{time.monotonic() - began:7.0f} s  {_told(outcome)}", flush=True)
        outcomes.append(outcome)
    *mutated, unmutated = outcomes
    missed = [outcome for outcome in mutated if outcome.caught is None]
    if len(missed) < len(mutated) and not unmutated.sound:
        return 1
    text = section(unmutated, mutated)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), text))
    print(f"{len(mutated) - len(missed)} of {len(mutated)} mutations are caught")
    return 1 if missed else 0


def _told(outcome: Outcome) -> str:
    """A line or some more for people."""
    others = [f"           {run.what}: {run.said[:300]}" for run in outcome.runs if not run.sound and not run.never][:3]
    trouble = [f"           {outcome.trouble}"] if outcome.trouble else []
    if outcome.mutation is None:
        bad = [f"           {run.what}: {run.never} {run.said}" for run in outcome.runs if run.never]
        line = f"{'passes ' if outcome.sound else 'FAILS  '} the code as it is: {outcome.steps:,} steps"
        return "\n".join([line, *bad, *others, *trouble])
    caught = outcome.caught
    if caught is None:
        return "\n".join([f"MISSED  {outcome.mutation.name}: {outcome.steps:,} steps", *others, *trouble])
    line = (
        f"caught  {outcome.mutation.name}: {caught.never} in {caught.what}, step {caught.steps:,}: {caught.said[:200]}"
    )
    return "\n".join([line, *others, *trouble])


if __name__ == "__main__":
    sys.exit(main())

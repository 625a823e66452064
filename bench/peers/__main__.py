"""``python -m bench.peers``: compares dolmen with other table formats, and writes the results into docs/benchmarks.md.

What was measured before is kept in the file of results and not measured again, so that a run can be broken off.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.peers.actors import ROOT
from bench.peers.child import PEERS, WORKS
from bench.peers.page import publish
from bench.peers.peer import S3
from bench.peers.results import Head, OtherRunError, Results
from bench.peers.run import Run, versions
from bench.peers.servers import REMOTE, postgres, s3_server

PLACES = ("folder", *REMOTE)
console = Console()


def main() -> int:
    """Does what the command line asks for; returns 1 if an answer was wrong."""
    options = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    options.add_argument("--scale", type=float, default=1.0, help="1: 4,000,000 rows, 10,000,000 with UUID keys")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--seconds", type=float, default=15.0, help="a limit for each loop; steps get twice that")
    options.add_argument("--long-seconds", type=float, default=90.0, help="the same for upserts by key")
    options.add_argument("--memory-gb", type=float, default=8.0, help="a peer that takes more is ended")
    options.add_argument("--places", nargs="+", default=list(PLACES), choices=PLACES)
    options.add_argument("--works", nargs="+", default=list(WORKS), choices=WORKS)
    options.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS)
    options.add_argument("--python", type=Path, default=ROOT / ".venv-peers" / "bin" / "python", help="of the peers")
    options.add_argument("--results", type=Path, default=ROOT / "build" / "peers.jsonl", help="JSON lines")
    options.add_argument("--fresh", action="store_true", help="forget what was measured before")
    options.add_argument("--write", action="store_true", help="draw docs/benchmarks.md from the results")
    chosen = options.parse_args()
    if chosen.fresh:
        chosen.results.unlink(missing_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dolmen-peers-servers-")))
        directory.chmod(0o755)  # PostgreSQL may run as another user
        upstream: S3 | None = None
        server = ""
        if set(chosen.places) & set(REMOTE):
            upstream, server = stack.enter_context(s3_server(directory / "s3"))
        address = stack.enter_context(postgres(directory / "postgres")) if "ducklake" in chosen.peers else None
        head = Head(
            scale=chosen.scale,
            seed=chosen.seed,
            seconds=chosen.seconds,
            long_seconds=chosen.long_seconds,
            machine=f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            versions=versions(chosen.peers, chosen.python),
            s3=server,
            postgres=address is not None,
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        try:
            results = Results(chosen.results, head)
        except OtherRunError as error:
            print(error, file=sys.stderr)
            return 2
        tell = partial(console.print, highlight=False, soft_wrap=True, markup=False)
        Run(results, chosen.python, chosen.memory_gb, upstream, address, tell).measure(
            chosen.places, chosen.works, chosen.peers
        )
    if chosen.write:
        publish(chosen.results)
    return 1 if any(outcome.wrong for outcome in results.outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m bench.competition``: processes that commit to one database without a pause, in virtual time.

Each process runs production code; only the latency of requests moves the clock. So the figures follow from the order of
requests and the seed alone, on any machine.
"""

from __future__ import annotations

import argparse
import itertools
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from bench.distant_store import DistantStore
from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.world.scheduler import Scheduler

SCHEMA = pa.schema({"id": pa.int64()})


@dataclass
class Worker:
    """One process, and how long each of its commits took, in seconds."""

    deletes: bool
    waits: list[float] = field(default_factory=list)


def compete(
    appenders: int,
    deleters: int,
    *,
    seconds: float,
    latency: float,
    spread: float = 0.3,
    seed: int = 1,
    think: float = 0,
) -> list[Worker]:
    """Lets processes commit for some virtual seconds.

    Args:
        latency: seconds of a request.
        spread: how much the latency varies.
        think: seconds between two commits of a process.
    """
    scheduler = Scheduler()
    bucket = MemoryBucket(lambda: scheduler.now_us, "distant")

    def runtime(number: int) -> Runtime:
        return Runtime(
            clock_us=lambda: scheduler.now_us,
            monotonic=lambda: scheduler.now_us / 1e6,
            sleep=lambda pause: scheduler.pause(round(pause * 1e6)),
            random=random.Random(f"{seed} {number}"),
            threads=1,
            signal=threading.Event,
        )

    def database(number: int) -> Database:
        own = runtime(number)

        def pause() -> None:
            scheduler.pause(round(latency * own.random.uniform(1 - spread, 1 + spread) / 2 * 1e6))

        return Database(DistantStore(bucket, own, pause), own)

    workers = [Worker(number >= appenders) for number in range(appenders + deleters)]
    left = len(workers)

    def work(number: int, worker: Worker) -> None:
        nonlocal left
        table = database(number + 1).table("t")
        table.count()
        end_us = began_us + round(seconds * 1e6)
        for turn in itertools.count():
            start_us = scheduler.now_us
            if start_us >= end_us:
                break
            if worker.deletes:
                table.delete(keys=pa.table({"id": [turn]}), on=["id"])
            else:
                table.append(pa.table({"id": [number * 1_000_000 + turn]}, schema=SCHEMA))
            worker.waits.append((scheduler.now_us - start_us) / 1e6)
            if think:
                scheduler.pause(round(think * 1e6))
        left -= 1
        if not left:
            scheduler.stop()

    began_us = 0

    def begin() -> None:
        nonlocal began_us
        database(0).create_table("t", SCHEMA, primary_key="id")
        began_us = scheduler.now_us + 1_000_000
        for number, worker in enumerate(workers):
            scheduler.spawn(f"worker-{number}", lambda number=number, worker=worker: work(number, worker), 1_000_000)  # type: ignore[misc]

    scheduler.spawn("founder", begin)
    scheduler.run()
    return workers


def figures(workers: Sequence[Worker], seconds: float) -> str:
    """Cells of a table: commits, appends and deletes a second; the fewest and the most of a process; waits."""
    counts = [len(worker.waits) for worker in workers]
    waits = sorted(wait for worker in workers for wait in worker.waits)
    appends = sum(len(worker.waits) for worker in workers if not worker.deletes) / seconds
    deletes = sum(len(worker.waits) for worker in workers if worker.deletes) / seconds
    rates = f"{sum(counts) / seconds:.1f} | {appends:.1f} | {deletes:.1f}"
    return f"{rates} | {min(counts)} | {max(counts)} | {waits[len(waits) * 99 // 100]:.2f} | {waits[-1]:.2f}"


def main() -> None:
    """Prints a table of Markdown."""
    options = argparse.ArgumentParser(prog="python -m bench.competition", description=__doc__)
    options.add_argument("--seconds", type=float, default=20.0, help="virtual")
    options.add_argument("--seeds", type=int, default=1)
    chosen = options.parse_args()
    print(
        "| appenders | deleters | request (s) | commits/s | appends/s | deletes/s | fewest | most | p99 | longest (s) |"
    )
    print("|" + "---|" * 10)
    for appenders, deleters in ((1, 0), (2, 0), (2, 2), (8, 0), (4, 4), (16, 0)):
        for latency, spread in ((0.02, 0.5), (0.03, 0.0)):
            for seed in range(1, chosen.seeds + 1):
                done = compete(appenders, deleters, seconds=chosen.seconds, latency=latency, spread=spread, seed=seed)
                cells = figures(done, chosen.seconds)
                print(f"| {appenders} | {deleters} | {latency} +- {spread:.0%} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

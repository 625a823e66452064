"""``python -m bench.writers``: threads that append to one table, with S3's latency added to each request.

The store is in memory, so that only requests and their latency count; the machine's cores bound many threads.
"""

from __future__ import annotations

import argparse
import threading
import time

import pyarrow as pa

from bench.distant_store import DistantStore
from dolmen.api.database import Database
from dolmen.api.table import Table
from dolmen.base.runtime import Runtime
from dolmen.store.memory import MemoryBucket

ROWS = 1_000
SCHEMA = pa.schema({"id": pa.int64(), "value": pa.float64()})


def _distant_store(runtime: Runtime, latency: float) -> DistantStore:
    return DistantStore(MemoryBucket(runtime.clock_us, "distant"), runtime, lambda: time.sleep(latency / 2))


def measure(threads: int, seconds: float, latency: float, *, buffered: bool) -> str:
    """Lets threads append for some seconds. Returns a row of a table: rows per second, the longest wait, errors."""
    runtime = Runtime()
    table = Database(_distant_store(runtime, latency), runtime).create_table("rows", SCHEMA)
    data = pa.table({"id": range(ROWS), "value": [float(at) for at in range(ROWS)]}, schema=SCHEMA)
    waits, errors, began = list[float](), list[BaseException](), time.monotonic()

    def work(table: Table) -> None:
        while time.monotonic() - began < seconds:
            start = time.monotonic()
            try:
                if buffered:
                    writer.append(data).result()
                else:
                    table.append(data)
            except Exception as error:  # noqa: BLE001 - counted
                errors.append(error)
            waits.append(time.monotonic() - start)

    with table.writer() as writer:
        workers = [threading.Thread(target=work, args=(table,)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    took = time.monotonic() - began
    assert table.count() == ROWS * (len(waits) - len(errors)), "every append that returned is there, once"
    how = "a writer" if buffered else "Table.append"
    return f"| {threads} | {how} | {table.count() / took:,.0f} | {max(waits):.2f} | {len(errors)} |"


def main() -> None:
    """Prints a table of Markdown."""
    options = argparse.ArgumentParser(prog="python -m bench.writers", description=__doc__)
    options.add_argument("--threads", type=int, nargs="+", default=[1, 8, 64])
    options.add_argument("--seconds", type=float, default=6.0)
    options.add_argument("--latency", type=float, default=0.02, help="seconds added to each request")
    chosen = options.parse_args()
    print("| threads | by | rows/s | longest wait (s) | errors |\n|---|---|---|---|---|")
    for threads in chosen.threads:
        for buffered in (False, True):
            print(measure(threads, chosen.seconds, chosen.latency, buffered=buffered), flush=True)


if __name__ == "__main__":
    main()

"""``python -m bench.gets``: the cost of a GET of a range, by boto3's client and by dolmen's.

Both read the same object of the same server (MinIO, or ministack where that is not installed) in turns, in one process.
Processor time is that of the process, which a busy machine changes little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.peers.servers import BUCKET, s3_server
from dolmen.base.units import KIB, MIB
from dolmen.store.s3.bucket_store import S3Store

OBJECT_BYTES = 64 * MIB
_KEY = "data/0123456789abcdef.parquet"

Get = Callable[[int], int]


def getters(store: S3Store, size: int) -> dict[str, Get]:
    """By name, functions that read ``size`` bytes at an offset and return the number of bytes."""
    etag, client = store.head(_KEY).etag, store.connection.client

    def by_boto3(start: int) -> int:
        answer = client.get_object(Bucket=BUCKET, Key=_KEY, Range=f"bytes={start}-{start + size - 1}", IfMatch=etag)
        return len(answer["Body"].read())

    return {"boto3": by_boto3, "dolmen": lambda start: len(store.get(_KEY, (start, start + size), etag=etag).body)}


def measure(get: Get, size: int, count: int, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """Seconds of processor time and of the clock for 1,000 GETs."""
    starts = [number * size % (OBJECT_BYTES - size) for number in range(count)]
    processor, clock = time.process_time(), time.monotonic()
    assert sum(pool.map(get, starts)) == count * size
    return (time.process_time() - processor) / count * 1_000, (time.monotonic() - clock) / count * 1_000


def main() -> None:
    """Prints a table of Markdown."""
    options = argparse.ArgumentParser(prog="python -m bench.gets", description=__doc__)
    options.add_argument("--count", type=int, default=1_000, help="GETs of a round")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--sizes", type=int, nargs="+", default=[64, 1024], help="KB of a GET")
    options.add_argument("--in-flight", type=int, nargs="+", default=[1, 32])
    chosen = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="dolmen-bench-") as folder,
        s3_server(Path(folder) / "s3") as (server, name),
    ):
        os.environ |= {
            "AWS_ENDPOINT_URL_S3": server.endpoint,
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        store = S3Store(BUCKET)
        store.put(_KEY, os.urandom(OBJECT_BYTES))
        print(f"{name}. Seconds for 1,000 GETs: of processor time, and in brackets by the clock; medians.\n")
        print("| KB | in flight | boto3 | dolmen | dolmen / boto3 |\n|---|---|---|---|---|")
        for size in chosen.sizes:
            for threads in chosen.in_flight:
                with ThreadPoolExecutor(threads) as pool:
                    ways = {
                        way: partial(measure, get, size * KIB, chosen.count, pool)
                        for way, get in getters(store, size * KIB).items()
                    }
                    for warm_up in ways.values():
                        warm_up()
                    found = [{way: run() for way, run in ways.items()} for _ in range(chosen.rounds)]
                told = [
                    f"{statistics.median(each[way][0] for each in found):.2f} "
                    f"({statistics.median(each[way][1] for each in found):.2f})"
                    for way in ways
                ]
                ratio = statistics.median(each["dolmen"][0] / each["boto3"][0] for each in found)
                print(f"| {size:,} | {threads} | {' | '.join(told)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""``python -m bench.lookups``: rows by key in files with overlapping random keys, compared with Lance's BTREE index.

Both read the same rows over HTTP from one S3 server. Lance needs an environment of its own (``pip install pylance``),
whose Python ``--lance`` names; without it dolmen is measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.servers import BUCKET, BYTES_PER_SECOND, proxy, s3_server
from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.store import open_store
from dolmen_simulator.counting import CountingStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64()), ("note", pa.string())])
FILES = 20
GETS = 100

_LANCE = """
import json, sys, time
import lance, pyarrow.parquet as pq
url, files, options, keys = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
for number, file in enumerate(files):
    lance.write_dataset(pq.read_table(file), url, mode="append" if number else "create", storage_options=options)
data = lance.dataset(url, storage_options=options)
data.create_scalar_index("id", "BTREE")
def seconds(work):
    start, processor = time.perf_counter(), time.process_time()
    assert work() is not None
    return time.perf_counter() - start, time.process_time() - processor
def get(data, key):
    found = data.to_table(filter=f"id = {key}").to_pylist()
    assert len(found) == 1
    return found[0]
opened = [lance.dataset(url, storage_options=options) for _ in range(5)]
cold = sorted(seconds(lambda: get(data, key)) for data, key in zip(opened, keys))[2]
warm = sorted(seconds(lambda: get(opened[0], keys[0])) for _ in range(5))[2]
fresh = lance.dataset(url, storage_options=options)
fresh.io_stats_incremental()
get(fresh, keys[7])
first = fresh.io_stats_incremental()
many = lance.dataset(url, storage_options=options)
get(many, keys[-1])
many.io_stats_incremental()
random = seconds(lambda: [get(many, key) for key in keys[:100]])
listed = ", ".join(str(key) for key in keys[:100])
together = seconds(lambda: opened[1].to_table(filter=f"id IN ({listed})"))
counts = [[each.read_iops, each.read_bytes] for each in (first, many.io_stats_incremental())]
times = {"cold": cold, "warm": warm, "random": random, "together": together}
print(json.dumps({**times, "requests, bytes: cold, random": counts}))
"""


def batches(rows: int) -> Iterator[pa.Table]:
    """The rows, file by file: each file has keys of the whole range."""
    source = np.random.default_rng(3)
    ids = source.permutation(rows) * np.int64(1_000_003)
    for part in np.split(ids, FILES):
        notes = pa.array(source.integers(0, 1 << 62, len(part))).cast(pa.string())
        yield pa.table([part, source.random(len(part)), notes], schema=SCHEMA)


def ours(url: str, rows: int, keys: list[int]) -> dict[str, Any]:
    """Seconds by the clock and of processors, and requests and bytes, of dolmen."""
    runtime = Runtime()
    table = Database(open_store(url, runtime), runtime).create_table(
        "t", SCHEMA, primary_key=["id"], properties={"index": True}
    )
    for part in batches(rows):
        table.append(part)
    Database(open_store(url, runtime), runtime).maintain(steps=["index"])

    def opened() -> tuple[Any, CountingStore]:
        runtime = Runtime()  # which has a cache of its own
        store = CountingStore(open_store(url, runtime))
        db = Database(store, runtime)
        pinned = db.at(db.version).table("t")
        store.reset()
        return pinned, store

    def timed(work: Callable[[], object]) -> tuple[float, float]:
        start, processor = time.perf_counter(), time.process_time()
        assert work() is not None
        return time.perf_counter() - start, time.process_time() - processor

    cold, counts = [], []
    for key in keys[:5]:
        pinned, store = opened()
        cold.append(timed(lambda pinned=pinned, key=key: pinned.get(key)))  # type: ignore[misc]
        counts.append((store.gets, store.bytes_down))
    warm = []
    for _ in range(5):
        store.reset()
        warm.append(timed(lambda: pinned.get(keys[4])))
    counts.append((store.gets, store.bytes_down))
    pinned, store = opened()
    pinned.get(keys[-1])
    store.reset()
    random = timed(lambda: [pinned.get(key) for key in keys[:GETS]])
    counts.append((store.gets, store.bytes_down))
    pinned, store = opened()
    pinned.get(keys[1])
    store.reset()
    together = timed(lambda: pinned.get_many(keys[:GETS]))
    return {
        "cold": sorted(cold)[2],
        "warm": sorted(warm)[2],
        "random": random,
        "together": together,
        "requests, bytes: cold, warm, random, together": [*counts[-3:], (store.gets, store.bytes_down)],
    }


def lance(python: str, url: str, rows: int, keys: list[int]) -> dict[str, Any]:
    """Seconds by the clock and of processors, and requests and bytes as it counts them, of Lance."""
    options = {
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "allow_http": "true",
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "aws_region": "us-east-1",
    }
    with tempfile.TemporaryDirectory(prefix="dolmen-bench-") as root:
        files = [str(Path(root) / f"{number}.parquet") for number in range(FILES)]
        for file, rows_of_it in zip(files, batches(rows), strict=True):
            pq.write_table(rows_of_it, file)
        command = [python, "-c", _LANCE, url, json.dumps(files), json.dumps(options), json.dumps(keys)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measures, and prints one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--lance", help="the Python that has Lance")
    parser.add_argument("--delay-ms", type=float, default=0, help="before each response")
    arguments = parser.parse_args()
    ids = np.concatenate([table["id"].to_numpy() for table in batches(arguments.rows)])
    keys = np.random.default_rng(4).choice(ids, GETS + 1, replace=False).tolist()
    with ExitStack() as opened:
        root = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="dolmen-bench-")))
        server, name = opened.enter_context(s3_server(root / "s3"))
        if arguments.delay_ms:
            server = opened.enter_context(proxy(server, arguments.delay_ms / 1000, BYTES_PER_SECOND))
        os.environ |= {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_DEFAULT_REGION": server.region,
        }
        print(f"{arguments.rows:,} rows on {name}, {arguments.delay_ms:g} ms before each response", flush=True)
        print("dolmen", json.dumps(ours(f"s3://{BUCKET}/ours", arguments.rows, keys)), flush=True)
        if arguments.lance:
            found = lance(arguments.lance, f"s3://{BUCKET}/theirs.lance", arguments.rows, keys)
            print("Lance", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

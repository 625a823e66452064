"""An upsert on UUID keys, most of them all over the table, what it leaves to do, and random look-ups by key."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.actors import Actors
from bench.peers.meter import Meter, forget_peak, peak_mb
from bench.peers.peer import Ids, Peer, Sums, UnsupportedError
from bench.peers.rows import KEYED, Sizes, keyed_rows, uuids
from bench.peers.works.table import open_and_sum

PIECES = 10
GETS = 100


def keys(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """Rows are loaded in ten commits in random order; half of the keys that are upserted are there."""
    if not sizes.keys:
        return
    rng = np.random.default_rng((seed, 5))
    order = rng.permutation(sizes.keys)
    users, amounts = np.zeros(2 * sizes.keys, np.int64), np.zeros(2 * sizes.keys)
    there = np.zeros(2 * sizes.keys, bool)

    def expect(numbers: Ids, rows: pa.Table) -> None:
        users[numbers], amounts[numbers] = rows["user_id"].to_numpy(), rows["amount"].to_numpy()
        there[numbers] = True

    def expected() -> Sums:
        return Sums(int(there.sum()), int(users[there].sum()), float(amounts[there].sum()))

    peer.create(KEYED, "key")
    with meter.step("load", rows=sizes.keys) as notes:
        notes["median"] = 0.0
        for number, piece in enumerate(np.array_split(order, PIECES)):
            rows = keyed_rows(piece, seed + number)
            expect(piece, rows)
            began = time.perf_counter()
            peer.append(rows)
            notes["median"] += time.perf_counter() - began
    meter.size("stored", peer.files)
    some = rng.choice(sizes.keys, GETS, replace=False)
    _get(peer, meter, "gets", some, users)
    half = sizes.upserts // 2
    numbers = np.concatenate([rng.choice(sizes.keys, half, replace=False), sizes.keys + np.arange(half)])
    numbers = rng.permutation(numbers)
    batch = keyed_rows(numbers, seed + PIECES)
    given = str(peer.place.catalog.with_name("upsert.parquet"))
    pq.write_table(batch, given)
    actors = Actors(peer, __name__)
    with meter.step("upsert", sizes.long_seconds, rows=len(numbers)) as notes:
        notes |= _told(actors.run("upsert", file=given))
        expect(numbers, batch)
    meter.scan("sums after: upsert", lambda: open_and_sum(peer), expected())
    for name in ("resolve", "compact"):
        with meter.step(name, sizes.long_seconds) as notes:
            notes |= _told(actors.run("clear", name=name))
        meter.scan(f"sums after: {name}", lambda: open_and_sum(peer), expected())
    indexed = False
    with meter.step("index", sizes.long_seconds):
        peer.index("key")
        indexed = True
    if indexed:
        _get(peer, meter, "gets by the index", some, users)
    meter.size("stored in the end", peer.files)


def _get(peer: Peer, meter: Meter, name: str, numbers: Ids, users: Ids) -> None:
    texts = uuids(numbers).to_pylist()
    wrong = []
    peer.open()

    def get(turn: int) -> None:
        if [row["user_id"] for row in peer.get("key", texts[turn])] != [users[numbers[turn]]]:
            wrong.append(turn)

    meter.repeat(name, len(texts), get)
    meter.tell(check=name, right=not wrong)


def _told(found: dict[str, Any]) -> dict[str, Any]:
    if found.get("unsupported"):
        raise UnsupportedError
    return found


def upsert(peer: Peer, file: str) -> dict[str, Any]:
    """Upserts the rows of a file, in a process of its own."""
    rows = pq.read_table(file)
    peer.open()
    return _measured(lambda: peer.upsert(rows, "key"))


def clear(peer: Peer, name: str) -> dict[str, Any]:
    """Resolves or compacts, in a process of its own."""
    peer.open()
    return _measured(peer.resolve if name == "resolve" else peer.compact)


def _measured(work: Any) -> dict[str, Any]:
    forget_peak()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        work()
    except UnsupportedError:
        return {"unsupported": True}
    took = time.perf_counter() - began
    return {"median": took, "own_cpu": time.process_time() - cpu, "own_peak_mb": peak_mb()}

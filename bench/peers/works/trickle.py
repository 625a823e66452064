"""Deletes of one row each, one after the other, and scans before, after, resolved and compacted."""

from __future__ import annotations

import numpy as np

from bench.dataset import SCHEMA
from bench.peers.meter import Meter
from bench.peers.peer import Peer
from bench.peers.rows import Oracle, Sizes, event_rows
from bench.peers.works.table import scan

FILES = 4


def trickle(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """A quarter of the large table, in a few files."""
    rows = event_rows(0, sizes.rows // 4, seed)
    oracle = Oracle(rows)
    peer.create(SCHEMA, "id")
    step = -(-rows.num_rows // FILES)
    for first in range(0, rows.num_rows, step):
        peer.append(rows.slice(first, step))
    ids = np.random.default_rng((seed, 4)).choice(rows.num_rows, sizes.one_row_deletes, replace=False)
    del rows
    scan(peer, meter, oracle, "sums before")
    peer.open()
    deleted = 0

    def delete(number: int) -> None:
        nonlocal deleted
        peer.delete_values("id", ids[number : number + 1])
        deleted += 1

    meter.repeat("deletes", sizes.one_row_deletes, delete)
    if not deleted:
        return
    oracle.delete(ids[:deleted])
    scan(peer, meter, oracle, "sums after")
    for name, work in (("resolve", peer.resolve), ("compact", peer.compact)):
        with meter.step(name):
            work()
        scan(peer, meter, oracle, f"sums after: {name}")
    meter.size("stored in the end", peer.files)

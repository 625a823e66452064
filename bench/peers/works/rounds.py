"""Rounds of append, delete, upsert and query, as in LST-Bench, and the cost of a query after each.

LST-Bench: Camacho-Rodriguez and others, SIGMOD 2024, https://arxiv.org/abs/2305.01120
"""

from __future__ import annotations

import time

import numpy as np

from bench.dataset import SCHEMA
from bench.peers.meter import Meter
from bench.peers.peer import Peer, UnsupportedError
from bench.peers.rows import Oracle, Sizes, event_rows
from bench.peers.works.table import open_and_sum

UPKEEP_EVERY = 5
ROUNDS_TIMES = 1.5
"""All rounds together may take the time of this number of loops."""


def rounds(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """Without background work."""
    _wear_out(peer, sizes, meter, seed, upkeep=False)


def upkept_rounds(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """With background work after every fifth round."""
    _wear_out(peer, sizes, meter, seed, upkeep=True)


def _wear_out(peer: Peer, sizes: Sizes, meter: Meter, seed: int, *, upkeep: bool) -> None:
    rows = event_rows(0, sizes.round_rows, seed)
    oracle = Oracle(rows)
    peer.create(SCHEMA, "id")
    peer.open()
    peer.append(rows)
    rng = np.random.default_rng((seed, 6))
    percent = sizes.round_rows // 100
    _query(peer, meter, oracle, 0)
    until = time.perf_counter() + ROUNDS_TIMES * sizes.seconds
    for number in range(1, sizes.rounds + 1):
        new = event_rows(len(oracle.alive), percent, seed + 2 * number)
        gone = rng.choice(np.flatnonzero(oracle.alive), percent, replace=False)
        changed = rng.choice(np.flatnonzero(oracle.alive), percent, replace=False)
        changed = np.setdiff1d(changed, gone)
        other = event_rows(0, len(changed), seed + 2 * number + 1)
        other = other.set_column(0, other.schema.field("id"), [changed])
        changes = 0
        with meter.step(f"change {number}"):
            peer.append(new)
            peer.delete_values("id", gone)
            peer.upsert(other, "id")
            changes = 3
        if not changes:
            return
        oracle.append(new)
        oracle.delete(gone)
        oracle.upsert(other)
        if upkeep and number % UPKEEP_EVERY == 0:
            with meter.step(f"upkeep {number}"):
                for work in (peer.compact, peer.clean):
                    try:
                        work()
                    except UnsupportedError:
                        continue
        _query(peer, meter, oracle, number)
        if time.perf_counter() > until:
            return


def _query(peer: Peer, meter: Meter, oracle: Oracle, number: int) -> None:
    meter.scan(f"query {number}", lambda: open_and_sum(peer), oracle.sums(), times=1)
    meter.size(f"stored {number}")

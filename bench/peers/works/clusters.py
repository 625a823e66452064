"""Bytes that filters on each of two columns read, before and after both cluster the rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from bench.peers.actors import Actors
from bench.peers.meter import Meter
from bench.peers.peer import Peer, Sums
from bench.peers.rows import Sizes
from bench.peers.works.table import open_and_sum

USERS, HOURS, HOUR_US = 100_000, 720, 3_600_000_000
PARTS = 20
VISITS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("user_id", pa.int64()),
        ("at", pa.int64()),
        ("page", pa.int64()),
        ("amount", pa.float64()),
    ]
)


def clusters(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """Visits of 100,000 users in 30 days are loaded in the order of no column."""
    rng = np.random.default_rng((seed, 6))
    count = sizes.visits // PARTS
    user, at = rng.integers(0, USERS, sizes.visits), rng.integers(0, HOURS * HOUR_US, sizes.visits)
    amount = np.round(rng.exponential(50, sizes.visits), 2)
    peer.create(VISITS, "id")
    with meter.step("load", sizes.long_seconds, rows=sizes.visits):
        for start in range(0, sizes.visits, count):
            part = slice(start, start + count)
            ids, page = np.arange(sizes.visits)[part], rng.integers(0, 5_000, len(user[part]))
            peer.append(pa.table([ids, user[part], at[part], page, amount[part]], schema=VISITS))

    def ask(name: str) -> None:
        meter.size(f"stored: {name}", peer.files)
        for label, by, column, low, width in (
            ("one user", "user_id", user, USERS // 3, 1),
            ("one hour", "at", at, HOURS // 3 * HOUR_US, HOUR_US),
        ):
            rows = (column >= low) & (column < low + width)
            expected = Sums(int(rows.sum()), int(user[rows].sum()), float(amount[rows].sum()))
            with meter.step(f"{label}: {name}") as notes:
                notes |= Actors(peer, __name__).run("sums", low=low, high=low + width, by=by)
                notes["right"] = Sums(*notes.pop("answer")).agrees_with(expected)

    ask("loaded")
    with meter.step("cluster", sizes.long_seconds):
        peer.cluster(["user_id", "at"])
    ask("clustered")


def sums(peer: Peer, low: int, high: int, by: str) -> dict[str, Any]:
    """Opens the table and sums a range of a column, in a process of its own, which has cached nothing."""
    began = time.perf_counter()
    found = open_and_sum(peer, low, high, by)
    return {"median": time.perf_counter() - began, "answer": [found.rows, found.users, found.amount]}

"""One large append; sums, ranges and look-ups; deletes of four kinds; and what background work makes of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bench.dataset import SCHEMA
from bench.peers.meter import Meter
from bench.peers.peer import Peer, Sums
from bench.peers.rows import Oracle, Sizes, event_rows

KEPT_SECONDS = 2.2
"""Longer than dolmen is set to keep versions here, and what expired ones need: the clock of S3 tells whole seconds."""


def table(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """The whole life of a table that is loaded at once."""
    rows = event_rows(0, sizes.rows, seed)
    oracle = Oracle(rows)
    peer.create(SCHEMA, "id")
    with meter.step("append", rows=sizes.rows, arrow_bytes=rows.nbytes):
        peer.append(rows)
    meter.size("stored", peer.files)
    del rows
    _read(peer, sizes, meter, oracle, seed)
    _delete(peer, sizes, meter, oracle, seed)
    _clear(peer, meter, oracle)


def _read(peer: Peer, sizes: Sizes, meter: Meter, oracle: Oracle, seed: int) -> None:
    rng = np.random.default_rng((seed, 2))
    scan(peer, meter, oracle, "sums")
    low = sizes.rows // 2
    high = low + sizes.rows // 100
    meter.scan("range of 1 %", lambda: open_and_sum(peer, low, high), oracle.sums(low, high))
    ids = rng.choice(sizes.rows, sizes.gets, replace=False).tolist()
    peer.open()
    wrong = []

    def get(number: int) -> None:
        found = peer.get("id", ids[number])
        if [row["user_id"] for row in found] != [oracle.users[ids[number]]]:
            wrong.append(number)

    meter.repeat("look-ups", sizes.gets, get)
    meter.tell(check="look-ups", right=not wrong)


def _delete(peer: Peer, sizes: Sizes, meter: Meter, oracle: Oracle, seed: int) -> None:
    rng = np.random.default_rng((seed, 3))
    one = np.array([sizes.rows // 3])
    low, many = sizes.rows // 4, min(100_000, sizes.rows // 10)
    ids = rng.choice(sizes.rows, many, replace=False)
    users = np.unique(oracle.users)
    users = rng.choice(users, min(14_000, len(users) // 4), replace=False)
    kinds: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
        ("1 row", lambda: peer.delete_values("id", one), lambda: oracle.delete(one)),
        ("a range", lambda: peer.delete_range(low, low + many), lambda: oracle.delete(slice(low, low + many))),
        ("random ids", lambda: peer.delete_values("id", ids), lambda: oracle.delete(ids)),
        ("users", lambda: peer.delete_values("user_id", users), lambda: oracle.delete_users(users)),
    ]
    for name, delete, expect in kinds:  # each finds the table open: the scan before has opened it
        deleted = False
        with meter.step(f"delete: {name}", asked={"1 row": 1, "users": len(users)}.get(name, many)):
            delete()
            deleted = True
        if deleted:
            expect()
        scan(peer, meter, oracle, f"sums after: {name}")


def _clear(peer: Peer, meter: Meter, oracle: Oracle) -> None:
    for name, work in (("resolve", peer.resolve), ("compact", peer.compact)):
        with meter.step(name):
            work()
        scan(peer, meter, oracle, f"sums after: {name}")
    clean_up(peer, meter)
    meter.size("stored in the end", peer.files)


def clean_up(peer: Peer, meter: Meter) -> None:
    """Deletes what older versions need, twice: dolmen lets them expire first, and keeps what they need for a while."""
    for name in ("clean", "clean again"):
        time.sleep(KEPT_SECONDS)
        with meter.step(name):
            peer.clean()


def scan(peer: Peer, meter: Meter, oracle: Oracle, name: str) -> None:
    """Sums of the whole table, each time from its opening to the last batch."""
    meter.scan(name, lambda: open_and_sum(peer), oracle.sums())


def open_and_sum(peer: Peer, low: int | None = None, high: int | None = None, by: str = "id") -> Sums:
    """Opens a table again, and sums it, or a range of a column."""
    peer.open()
    return peer.sums(low, high, by)

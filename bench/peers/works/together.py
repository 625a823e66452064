"""Appenders and deleters at once, each a process of its own: how much they commit, and whether a row is lost."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.dataset import SCHEMA
from bench.peers.actors import Actors, await_ready, let_go, tell_ready
from bench.peers.meter import Meter
from bench.peers.peer import Peer
from bench.peers.rows import Sizes, event_rows

APPENDERS = 2
DELETERS = 2
BLOCK = 100
START_SECONDS = 120.0
"""A limit for what actors take to begin and to end."""

_FAR = 1_000_000_000
"""Ids of an appender's rows begin with its number times this."""


def together(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """Only the library itself retries a failed commit: failures are counted, and the next commit starts.

    A row is lost if its append was acknowledged and it is not there; a delete if it was acknowledged and its row is.
    """
    there = max(4_000, sizes.rows // 20)
    seconds = min(10.0, meter.seconds / 4)
    peer.create(SCHEMA, "id")
    peer.append(event_rows(0, there, seed))
    able = False
    with meter.step("delete once"):
        peer.delete_values("id", np.array([there - 1]))
        able = True
    if able:  # who cannot delete takes no part
        meter.tell(begin="together", limit=seconds + START_SECONDS)
        _race(peer, meter, there - 1, seconds, seed)


def _race(peer: Peer, meter: Meter, there: int, seconds: float, seed: int) -> None:
    actors = Actors(peer, __name__)
    share = there // DELETERS
    begun = [actors.begin("append_blocks", number=1 + n, seconds=seconds, seed=seed) for n in range(APPENDERS)]
    begun += [actors.begin("delete_rows", first=n * share, count=share, seconds=seconds) for n in range(DELETERS)]
    for actor in begun:  # all have opened the table before the first begins
        await_ready(actor)
    for actor in begun:
        let_go(actor)
    found = [json.loads(actor.communicate()[0]) for actor in begun]
    peer.open()
    ids = Counter(peer.ids().tolist())
    lost, revived, twice = 0, 0, sum(1 for count in ids.values() if count > 1)
    for answer in found[:APPENDERS]:
        lost += sum(1 for block in answer["done"] for id_ in range(block, block + BLOCK) if id_ not in ids)
    for answer in found[APPENDERS:]:
        revived += sum(1 for id_ in answer["done"] if id_ in ids)
    kept = sum(1 for id_ in range(there) if id_ in ids)
    asked = sum(len(answer["done"]) + len(answer["failed"]) for answer in found[APPENDERS:])
    errors = sum((Counter(answer["errors"]) for answer in found), Counter[str]())
    meter.tell(
        step="together",
        seconds=seconds,
        appends=sum(len(answer["done"]) for answer in found[:APPENDERS]),
        deletes=sum(len(answer["done"]) for answer in found[APPENDERS:]),
        errors=dict(errors),
        lost=lost,
        revived=revived,
        twice=twice,
        right=lost == revived == twice == 0 and kept >= there - asked,
    )


def append_blocks(peer: Peer, number: int, seconds: float, seed: int) -> dict[str, Any]:
    """Appends blocks of rows until time is up."""
    rows = event_rows(0, BLOCK, seed)
    place = rows.schema.get_field_index("id")

    def append(turn: int) -> int:
        first = number * _FAR + turn * BLOCK
        ids = np.arange(first, first + BLOCK, dtype=np.int64)
        peer.append(rows.set_column(place, rows.schema.field("id"), [ids]))
        return first

    return _until(peer, seconds, lambda turn: number * _FAR + turn * BLOCK, append, 1 << 30)


def delete_rows(peer: Peer, first: int, count: int, seconds: float) -> dict[str, Any]:
    """Deletes one row after the other until time is up."""

    def delete(turn: int) -> None:
        peer.delete_values("id", np.array([first + turn]))

    return _until(peer, seconds, lambda turn: first + turn, delete, count)


def _until(
    peer: Peer, seconds: float, id_of: Callable[[int], int], work: Callable[[int], object], most: int
) -> dict[str, Any]:
    peer.open()
    tell_ready()
    done: list[int] = []
    failed: list[int] = []
    errors: Counter[str] = Counter()
    until = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until and turn < most:
        try:
            work(turn)
            done.append(id_of(turn))
        except Exception as error:  # noqa: BLE001 - every library has its own errors, and they are counted
            errors[type(error).__name__] += 1
            failed.append(id_of(turn))
            peer.open()
        turn += 1
    return {"done": done, "failed": failed, "errors": errors}

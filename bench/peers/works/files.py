"""Ten thousand Parquet files become a table; processes then open it from nothing and ask it a little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.peers.actors import Actors
from bench.peers.meter import Meter, forget_peak, peak_mb
from bench.peers.peer import Peer, Sums
from bench.peers.rows import Oracle, Sizes, event_rows


def files(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """Each file has as many rows as a small commit."""
    if not sizes.files:
        return
    count = sizes.commit_rows
    rows = event_rows(0, sizes.files * count, seed)
    oracle = Oracle(rows)
    folder = Path(peer.place.url).parent / "files"
    folder.mkdir()
    paths = [str(folder / f"{number:06}.parquet") for number in range(sizes.files)]
    for number, path in enumerate(paths):
        pq.write_table(rows.slice(number * count, count), path)
    del rows
    with meter.step("register", files=sizes.files):
        peer.register(paths, "id")
    actors = Actors(peer, __name__)
    middle = sizes.files // 2 * count
    questions = {
        "open and sum": (None, None),
        "open and sum a range": (middle, middle + 10 * count),
        "open and look up a row": (middle, None),
    }
    for name, (low, high) in questions.items():
        with meter.step(name) as notes:
            notes |= actors.run("ask", low=low, high=high)
            expected = oracle.sums(low, high) if high is not None or low is None else oracle.sums(middle, middle + 1)
            notes["right"] = Sums(*notes.pop("answer")).agrees_with(expected)


def ask(peer: Peer, low: int | None, high: int | None) -> dict[str, Any]:
    """Opens the table and asks one thing: sums, those of a range, or one row."""
    forget_peak()
    began = time.perf_counter()
    peer.open()
    opened = time.perf_counter() - began
    if low is not None and high is None:
        [row] = peer.get("id", low)
        found = Sums(1, row["user_id"], row["amount"])
    else:
        found = peer.sums(low, high)
    asked = time.perf_counter() - began
    return {
        "open_seconds": opened,
        "median": asked,
        "own_peak_mb": peak_mb(),
        "answer": [found.rows, found.users, found.amount],
    }

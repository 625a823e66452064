"""Many small appends, one after the other, and what they leave."""

from __future__ import annotations

from bench.dataset import SCHEMA
from bench.peers.meter import Meter
from bench.peers.peer import Peer
from bench.peers.rows import Oracle, Sizes, event_rows
from bench.peers.works.table import clean_up, scan


def commits(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """As many commits as time allows; the table is then opened and summed, compacted, and summed again."""
    rows = event_rows(0, sizes.commits * sizes.commit_rows, seed)
    peer.create(SCHEMA, "id")
    peer.open()
    count = sizes.commit_rows
    done = meter.repeat("commits", sizes.commits, lambda number: peer.append(rows.slice(number * count, count)))
    oracle = Oracle(rows.slice(0, done * count))
    meter.size("stored", peer.files, commits=done)
    with meter.step("open"):
        peer.open()
    scan(peer, meter, oracle, "sums")
    with meter.step("compact"):
        peer.compact()
    clean_up(peer, meter)
    scan(peer, meter, oracle, "sums after: compact")
    meter.size("stored in the end", peer.files)

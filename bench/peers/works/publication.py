"""A table that dolmen publishes as Iceberg, read by dolmen and by the Iceberg readers of other engines."""

from __future__ import annotations

import json
import subprocess
from statistics import median

import numpy as np

from bench.dataset import SCHEMA
from bench.peers.actors import ROOT
from bench.peers.iceberg_reader import READERS
from bench.peers.meter import Meter
from bench.peers.peer import Peer, Sums
from bench.peers.rows import Oracle, Sizes, event_rows
from bench.peers.works.table import scan

PYTHON = ROOT / ".venv-iceberg" / "bin" / "python"


def publication(peer: Peer, sizes: Sizes, meter: Meter, seed: int) -> None:
    """One large append; 1 % of the rows are deleted and resolved; then it is published."""
    rows = event_rows(0, sizes.rows, seed)
    oracle = Oracle(rows)
    peer.create(SCHEMA, "id")
    peer.append(rows)
    del rows
    ids = np.random.default_rng((seed, 7)).choice(sizes.rows, max(1, sizes.rows // 100), replace=False)
    for name in ("whole", "1 % deleted"):
        if name != "whole":
            peer.delete_values("id", ids)
            oracle.delete(ids)
            peer.resolve()
        scan(peer, meter, oracle, f"sums, {name}: dolmen")
        with meter.step(f"publish, {name}"):
            location = peer.publish()
        for reader in READERS:
            with meter.step(f"sums, {name}: {reader}") as notes:
                command = [str(PYTHON), "-W", "ignore", "-m", "bench.peers.iceberg_reader", reader, location]
                done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
                found = json.loads(done.stdout)
                notes["median"] = median(found["seconds"])
                notes["right"] = Sums(*found["answer"]).agrees_with(oracle.sums())

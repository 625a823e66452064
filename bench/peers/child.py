"""The process of one peer: ``python -m bench.peers.child TASK`` does one work, and tells each step as a line of JSON.

With ``actor`` in the task, it is one of several processes that a work begins, and its one line is what the actor found.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.abc import MetaPathFinder

from bench.peers.actors import begin_answering, place_of
from bench.peers.meter import Meter
from bench.peers.peer import Peer
from bench.peers.rows import Sizes

PEERS = {
    "dolmen": ("bench.peers.ours", "Ours"),
    "pyarrow": ("bench.peers.plain", "Plain"),
    "delta": ("bench.peers.delta", "Delta"),
    "iceberg": ("bench.peers.iceberg", "Iceberg"),
    "lance": ("bench.peers.lance", "Lance"),
    "ducklake": ("bench.peers.ducklake", "DuckLake"),
}
"""Where each peer is; its module is imported in its own process only."""

WORKS = {
    "table": ("bench.peers.works.table", "table"),
    "commits": ("bench.peers.works.commits", "commits"),
    "trickle": ("bench.peers.works.trickle", "trickle"),
    "together": ("bench.peers.works.together", "together"),
    "files": ("bench.peers.works.files", "files"),
    "keys": ("bench.peers.works.keys", "keys"),
    "clusters": ("bench.peers.works.clusters", "clusters"),
    "rounds": ("bench.peers.works.rounds", "rounds"),
    "upkept rounds": ("bench.peers.works.rounds", "upkept_rounds"),
    "publication": ("bench.peers.works.publication", "publication"),
}
"""Where each work is."""


def peer_class(name: str) -> type[Peer]:
    """The class of a peer."""
    module, attribute = PEERS[name]
    found: type[Peer] = getattr(importlib.import_module(module), attribute)
    return found


class NoPandas(MetaPathFinder):
    """Hides pandas from this process, because the environment of the peers lacks it.

    pyarrow imports it, where it is installed, as soon as it makes an array: 0.2 to 0.3 s that no peer is to blame for.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("no pandas here", name=fullname)


def main() -> None:
    """Does what the task says."""
    sys.meta_path.insert(0, NoPandas())
    task = json.loads(sys.argv[1])
    sink = begin_answering()
    if task.get("versions"):
        sink.write(json.dumps({name: peer_class(name).versions() for name in task["versions"]}) + "\n")
        sink.flush()
        return
    place = place_of(task["place"])
    peer = peer_class(task["peer"])(place)
    if "actor" in task:
        module, function = task["actor"]
        found = getattr(importlib.import_module(module), function)(peer, **task["arguments"])
        sink.write(json.dumps(found) + "\n")
        sink.flush()
        return
    sizes = Sizes(**task["sizes"])
    meter = Meter(place, sink, sizes.seconds)
    module, function = WORKS[task["work"]]
    getattr(importlib.import_module(module), function)(peer, sizes, meter, task["seed"])
    meter.tell(end="done")


if __name__ == "__main__":
    main()

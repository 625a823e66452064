"""Processes that do a part of a work on the same table: what begins them, and what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from bench.peers.peer import S3, Peer, Place

ROOT = Path(__file__).parents[2]
_sink: TextIO


def place_of(described: dict[str, Any]) -> Place:
    """A place, from JSON."""
    s3 = described["s3"]
    return Place(described["url"], Path(described["catalog"]), s3 and S3(**s3), described["postgres"])


def describe(place: Place) -> dict[str, Any]:
    """A place, as JSON."""
    return asdict(place) | {"catalog": str(place.catalog)}


class Actors:
    """Begins processes that do a part of a work on the same table.

    Args:
        peer: what they open it with.
        module: has the functions that they run: each takes the opened peer and arguments, and returns JSON.
    """

    def __init__(self, peer: Peer, module: str) -> None:
        self._peer, self._module = peer, module

    def begin(self, function: str, **arguments: Any) -> subprocess.Popen[str]:
        """Starts one; its standard input and output are pipes."""
        task = {
            "peer": self._peer.name,
            "place": describe(self._peer.place),
            "actor": [self._module, function],
            "arguments": arguments,
        }
        command = [sys.executable, "-W", "ignore", "-m", "bench.peers.child", json.dumps(task)]
        return subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
        )

    def run(self, function: str, **arguments: Any) -> Any:
        """Runs one to its end; returns what it found.

        Raises:
            RuntimeError: it ended with an error, which it has printed.
        """
        actor = self.begin(function, **arguments)
        answer, _ = actor.communicate()
        if actor.returncode:
            raise RuntimeError(f"{function} of {self._peer.title} ended with {actor.returncode}")
        return json.loads(answer)


def begin_answering() -> TextIO:
    """Keeps standard output for answers; what libraries print there goes to standard error."""
    global _sink
    _sink = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return _sink


def tell_ready() -> None:
    """Tells in an actor that it could begin, and waits until it may."""
    _sink.write("ready\n")
    _sink.flush()
    sys.stdin.readline()


def await_ready(actor: subprocess.Popen[str]) -> None:
    """Waits until an actor could begin.

    Raises:
        RuntimeError: it has ended.
    """
    assert actor.stdout is not None
    if actor.stdout.readline() != "ready\n":
        raise RuntimeError("an actor ended before it began")


def let_go(actor: subprocess.Popen[str]) -> None:
    """Lets a ready actor begin."""
    assert actor.stdin is not None
    actor.stdin.write("go\n")
    actor.stdin.flush()

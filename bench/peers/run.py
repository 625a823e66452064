"""Runs each work of each peer in its own process, stops it at its limits, and records its output."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import psutil

from bench.peers.actors import ROOT, describe
from bench.peers.peer import S3, Place
from bench.peers.results import Outcome, Results
from bench.peers.rows import Sizes
from bench.peers.servers import BUCKET, REMOTE, make_database, proxy
from bench.peers.storage import s3_filesystem

HERE = ("dolmen", "pyarrow")
"""Peers that run on the project's own environment; the others need the one of ``locks/peers.in``."""

START_SECONDS = 60.0


def python_of(peer: str, peers_python: Path) -> Path:
    """The interpreter that a peer runs on."""
    return Path(sys.executable) if peer in HERE else peers_python


def versions(peers: Sequence[str], peers_python: Path) -> dict[str, str]:
    """Versions of all libraries that are there."""
    found: dict[str, str] = {}
    for chosen in ([peer for peer in peers if peer in HERE], [peer for peer in peers if peer not in HERE]):
        if not chosen or not (python := python_of(chosen[0], peers_python)).exists():
            continue
        command = [str(python), "-W", "ignore", "-m", "bench.peers.child", json.dumps({"versions": chosen})]
        told = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        for each in told.values():
            found |= each
    return dict(sorted(found.items()))


class Run:
    """One run over places, works and peers.

    Args:
        results: where outcomes go; what is in there is not done again.
        peers_python: the interpreter of the peers' environment; where it is missing, that is their outcome.
        memory_gb: a process, with those that it began, that takes more is ended.
        upstream: the S3 server, None if no place needs it.
        postgres: address of the server with the catalogs of DuckLake, None for SQLite.
        tell: called with a line for each outcome.
    """

    def __init__(
        self,
        results: Results,
        peers_python: Path,
        memory_gb: float,
        upstream: S3 | None,
        postgres: str | None,
        tell: Callable[[str], None],
    ) -> None:
        self._results, self._python, self._memory_gb = results, peers_python, memory_gb
        self._upstream, self._postgres, self._tell = upstream, postgres, tell
        self._databases = 0

    def measure(self, places: Sequence[str], works: Sequence[str], peers: Sequence[str]) -> None:
        """Measures missing results: all peers of a work one after another."""
        for place in places:
            with ExitStack() as stack:
                s3 = None
                if place in REMOTE:
                    assert self._upstream is not None
                    s3 = stack.enter_context(proxy(self._upstream, *REMOTE[place]))
                for work in works:
                    for peer in peers:
                        if wanted(place, work, peer) and (place, work, peer) not in self._results.outcomes:
                            self._one(place, work, peer, s3)

    def _one(self, place: str, work: str, peer: str, s3: S3 | None) -> None:
        python = python_of(peer, self._python)
        if not python.exists():
            self._add(Outcome(place, work, peer, "absent", said=f"{python} is missing: make bench-peers installs it"))
            return
        head = self._results.head
        sizes = Sizes.of(head.scale, remote=s3 is not None, seconds=head.seconds, long_seconds=head.long_seconds)
        with tempfile.TemporaryDirectory(prefix="dolmen-peers-") as directory:
            name = Path(directory).name
            url = f"{directory}/table" if s3 is None else f"s3://{BUCKET}/{name}/table"
            catalog = None
            if peer == "ducklake" and self._postgres is not None:
                self._databases += 1
                catalog = make_database(self._postgres, f"lake_{os.getpid()}_{self._databases}")
            where = Place(url, Path(directory) / "catalog", s3, catalog)
            task = {"peer": peer, "work": work, "place": describe(where), "sizes": asdict(sizes), "seed": head.seed}
            load = os.getloadavg()[0]
            with (Path(directory) / "stderr").open("w+") as errors:
                steps, ended, said = self._watch(python, task, errors)
                if ended == "error":
                    errors.seek(0)
                    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
                    said = f"{said}: {lines[-1][:300] if lines else 'no word'}"
                    self._tell("\n".join(lines[-15:]))
            self._add(Outcome(place, work, peer, ended, steps, said, round(load, 2)))
            if s3 is not None and self._upstream is not None:
                self._remove(name)

    def _add(self, outcome: Outcome) -> None:
        self._results.add(outcome)
        wrong = f"; WRONG: {', '.join(outcome.wrong)}" if outcome.wrong else ""
        self._tell(f"{outcome.place} | {outcome.work} | {outcome.peer}: {outcome.ended} {outcome.said}{wrong}")

    def _remove(self, name: str) -> None:
        assert self._upstream is not None
        with suppress(FileNotFoundError):  # a peer that failed at once has left nothing
            s3_filesystem(self._upstream).delete_dir(f"{BUCKET}/{name}")

    def _watch(self, python: Path, task: dict[str, Any], errors: TextIO) -> tuple[list[dict[str, Any]], str, str]:
        """Runs a task; returns its steps, how it ended, and in which step if it did not end well."""
        environment = os.environ | {"RUST_BACKTRACE": "0"}
        if self._upstream is not None:
            s3 = self._upstream
            environment |= {"BENCH_UPSTREAM": s3.endpoint, "AWS_ACCESS_KEY_ID": s3.access_key}
            environment |= {"AWS_SECRET_ACCESS_KEY": s3.secret_key, "AWS_DEFAULT_REGION": s3.region}
        if (seen := task["place"]["s3"]) is not None:
            environment |= {"AWS_ENDPOINT_URL": seen["endpoint"]}
        command = [str(python), "-W", "ignore", "-m", "bench.peers.child", json.dumps(task)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        steps: list[dict[str, Any]] = []
        step, ended = "begin", "error"
        try:
            for line in self._lines(process):
                if "over" in line:
                    steps.append({"step": step, **line})
                    return steps, line["over"], f"in {step}"
                if "begin" in line:
                    step = line["begin"]
                elif "end" in line:
                    ended = "done"
                else:
                    steps.append(line)
            process.wait()
        finally:
            _end(process)
        return steps, ended, "" if ended == "done" else f"in {step}"

    def _lines(self, process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
        """The messages of the process; in the end ``over``, if a step takes too long or all of it too much memory."""
        assert process.stdout is not None
        told: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read(stream: Any = process.stdout) -> None:
            for line in stream:
                told.put(line)
            told.put(None)

        threading.Thread(target=read, daemon=True).start()
        limit = START_SECONDS
        until = time.monotonic() + limit
        while True:
            try:
                line = told.get(timeout=0.5)
            except queue.Empty:
                if time.monotonic() > until:
                    yield {"over": "limit", "limit": limit}
                    return
                if memory_bytes(process.pid) > self._memory_gb * 1e9:
                    yield {"over": "memory", "limit": self._memory_gb}
                    return
                continue
            if line is None:
                return
            found = json.loads(line)
            limit = found.get("limit", limit)
            until = time.monotonic() + limit
            yield found


def wanted(place: str, work: str, peer: str) -> bool:
    """Whether a work is measured there: what wears tables out where requests count, large tables in a folder."""
    if work == "publication":
        return (place, peer) == ("folder", "dolmen")
    only: dict[str, tuple[str, ...]] = {
        "files": ("folder",),
        "keys": ("folder",),
        "clusters": ("s3",),
        "rounds": ("s3",),
        "upkept rounds": ("s3",),
        "trickle": ("folder", "s3 slow"),
        "together": ("folder", "s3 slow"),
    }
    return place in only.get(work, (place,))


def memory_bytes(pid: int) -> int:
    """The memory of a process and of those that it began."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for each in family:
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process with all of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

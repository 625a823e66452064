"""The costs of a step: seconds, processor time, memory, and requests where they go through the proxy."""

from __future__ import annotations

import json
import os
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from bench.peers.peer import Place, Sums, UnsupportedError
from bench.peers.storage import stored

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def forget_peak() -> None:
    """Makes the present memory of this process its peak (Linux; see proc(5), clear_refs)."""
    if _CLEAR.exists():
        _CLEAR.write_text("5")


def peak_mb() -> int | None:
    """The most memory that this process had since then, the interpreter included; None where Linux is not there."""
    if not _STATUS.exists():
        return None
    return next(int(line.split()[1]) >> 10 for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))


class Meter:
    """Writes a line of JSON when a step begins, and when it ends.

    Args:
        sink: where the lines go; their reader ends the process if a step takes longer than its limit.
        seconds: a limit for each loop; other steps get twice that.
    """

    def __init__(self, place: Place, sink: TextIO, seconds: float) -> None:
        self._place, self._sink, self.seconds = place, sink, seconds

    def tell(self, **line: Any) -> None:
        """Writes a line."""
        self._sink.write(json.dumps(line) + "\n")
        self._sink.flush()

    @contextmanager
    def step(self, name: str, limit: float | None = None, **notes: Any) -> Iterator[dict[str, Any]]:
        """Measures the block. A step that the peer lacks is recorded as such.

        Args:
            limit: seconds, in place of twice the usual ones.
            notes: further members; what is yielded takes more of them.
        """
        self.tell(begin=name, limit=limit or 2 * self.seconds)
        before = self._requests()
        forget_peak()
        began, cpu = time.perf_counter(), time.process_time()
        try:
            yield notes
        except UnsupportedError:
            self.tell(step=name, unsupported=True)
            return
        took, worked = time.perf_counter() - began, time.process_time() - cpu
        found = {"seconds": took, "cpu": worked, "peak_mb": peak_mb(), **notes}
        if before is not None and (after := self._requests()) is not None:
            found["requests"] = {method: count for method in after if (count := after[method] - before.get(method, 0))}
        self.tell(step=name, **found)

    def repeat(self, name: str, count: int, work: Callable[[int], object], limit: float | None = None) -> int:
        """Does something ``count`` times, or until time is up, as one step; returns how often it was done.

        Notes ``done``, ``wanted``, and the medians of the first and last tenth in seconds.
        """
        took: list[float] = []
        most = limit or self.seconds
        with self.step(name, 2 * most) as notes:
            until = time.perf_counter() + most
            while len(took) < count and (not took or time.perf_counter() < until):
                began = time.perf_counter()
                work(len(took))
                took.append(time.perf_counter() - began)
            tenth = max(1, len(took) // 10)
            notes |= {"done": len(took), "wanted": count, "median": statistics.median(took)}
            notes |= {"first": statistics.median(took[:tenth]), "last": statistics.median(took[-tenth:])}
        return len(took)

    def scan(self, name: str, work: Callable[[], Sums], expected: Sums, times: int = 3) -> None:
        """Measures a scan some times, takes the median, and notes whether the answer is right."""
        took: list[float] = []
        with self.step(name) as notes:
            for _ in range(times):
                began = time.perf_counter()
                found = work()
                took.append(time.perf_counter() - began)
            notes |= {"done": times, "median": statistics.median(took)}
            notes |= {"answer": asdict(found), "right": found.agrees_with(expected)}
            if not notes["right"]:
                notes["expected"] = asdict(expected)

    def size(self, name: str, files: Callable[[], int] | None = None, **notes: Any) -> None:
        """Lists the objects below the store's root, not through the proxy; notes are further members."""
        found = asdict(stored(upstream(self._place)))
        catalog = sum(path.stat().st_size for path in self._place.catalog.rglob("*") if path.is_file())
        try:
            found["files"] = None if files is None else files()
        except UnsupportedError:
            found["files"] = None
        self.tell(step=name, catalog_bytes=catalog, **found, **notes)

    def _requests(self) -> dict[str, int] | None:
        if self._place.s3 is None:
            return None
        with urllib.request.urlopen(f"{self._place.s3.endpoint}/.meter", timeout=30) as answer:
            counts: dict[str, int] = json.loads(answer.read())
            return counts


def upstream(place: Place) -> Place:
    """The same place past the proxy."""
    behind = os.environ.get("BENCH_UPSTREAM")
    if place.s3 is None or behind is None:
        return place
    return replace(place, s3=replace(place.s3, endpoint=behind))

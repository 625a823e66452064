"""A pytest plugin: with ``--cpu-seconds=FILE`` it notes what each test costs in processor time.

A machine's load makes a test take longer, but hardly more processor time. Load it with
``PYTHONPATH=tests pytest -p support.cpu_seconds --cpu-seconds=FILE``; ``python tests/support/cpu_seconds.py FILE``
prints the sums by folder, and the dearest modules and tests.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEAREST = 150
_TICKS = os.sysconf("SC_CLK_TCK")


class Costs:
    """Appends a line for each phase of a test: the processor time of this process and of all that it started."""

    def __init__(self, path: str, worker: str) -> None:
        self._path = path
        self._worker = worker
        self._note("start", "start", 0.0, used())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        yield from self._measured(item, "setup")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        yield from self._measured(item, "call")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield from self._measured(item, "teardown")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._note("total", "total", time.monotonic(), used())

    def _measured(self, item: pytest.Item, phase: str) -> Iterator[None]:
        before, began = used(), time.monotonic()
        try:
            return (yield)
        finally:
            self._note(item.nodeid, phase, began, used() - before)

    def _note(self, test: str, phase: str, began: float, seconds: float) -> None:
        line = [test, phase, self._worker, began, time.monotonic(), round(seconds, 3)]
        with Path(self._path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def used() -> float:
    """Processor time of this process, of what it started, and of all that these started, in seconds."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system + sum(map(_used_by, _children(os.getpid())))


def _used_by(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has just ended
    return sum(map(int, fields[11:15])) / _TICKS + sum(map(_used_by, _children(process)))


def _children(process: int) -> Iterator[int]:
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            yield from map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    except OSError:
        return


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="note there what each test costs in processor time")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--cpu-seconds")
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if path and (worker or not getattr(config.option, "numprocesses", None)):
        config.pluginmanager.register(Costs(path, worker.get("workerid", "alone")), "cpu-seconds")


def main(*paths: str) -> None:
    """Prints the sums of what was noted."""
    by: dict[str, dict[str, float]] = {
        "folder": defaultdict(float),
        "module": defaultdict(float),
        "test": defaultdict(float),
    }
    totals = 0.0
    for path in paths:
        for line in Path(path).read_text().splitlines():
            test, phase, _, _, _, seconds = json.loads(line)
            if phase == "total":
                totals += seconds
            if phase in ("total", "start"):
                continue
            module = test.partition("::")[0]
            by["folder"]["/".join(module.split("/")[:2])] += seconds
            by["module"][module] += seconds
            by["test"][f"{test} {phase if phase != 'call' else ''}"] += seconds
    for kind, costs in by.items():
        print(f"\n{sum(costs.values()):8.1f} CPU s in all tests, by {kind}; {totals:.1f} with all else")
        for name, seconds in sorted(costs.items(), key=lambda each: -each[1])[:DEAREST]:
            print(f"{seconds:8.1f}  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Processes with one engine and its JVM each, which work alternately."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.spark.cpu import Spent
from bench.spark.engine import Engine
from bench.spark.source import Source

Call = Callable[[], Spent]


class Worker:
    """An engine in a process of its own."""

    def __init__(self, kind: type[Engine], pool: ProcessPoolExecutor) -> None:
        self.name, self._pool = kind.name, pool

    def begin(self, method: str, *arguments: Any) -> Future[Any]:
        """Has a method of the engine called, and waits for nothing."""
        return self._pool.submit(_call, method, arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the engine returns."""
        return self.begin(method, *arguments).result()

    def spend_on(self, method: str, *arguments: Any) -> Spent:
        """What calling a method costs."""
        spent: Spent = self.call("spend_on", method, *arguments)
        return spent


@contextmanager
def workers(kinds: Sequence[type[Engine]], directory: Path, source: Source) -> Iterator[list[Worker]]:
    """One worker of each kind, with its table. All tables are made concurrently, because this is not measured."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        started = []
        for kind in kinds:
            pool = ProcessPoolExecutor(1, spawn, _begin, (kind, directory, source))
            stack.enter_context(pool)
            stack.callback(pool.submit, _call, "stop", ())
            started.append(Worker(kind, pool))
        for made in [worker.begin("prepare") for worker in started]:
            made.result()
        yield started


def in_turns(calls: Sequence[Call], rounds: int, warm_ups: int) -> list[list[Spent]]:
    """What each call costs in each round: A B C A B C ..., after warm-ups."""
    spent: list[list[Spent]] = [[] for _ in calls]
    for number in range(warm_ups + rounds):
        for place, call in enumerate(calls):
            found = call()
            if number >= warm_ups:
                spent[place].append(found)
    return spent


_engine: Engine


def _begin(kind: type[Engine], directory: Path, source: Source) -> None:
    global _engine
    _engine = kind(directory, source)


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(_engine, method)(*arguments)
    except Exception as error:  # noqa: BLE001 - sent as text: not every exception of Spark can be pickled
        raise RuntimeError(f"{type(_engine).__name__}.{method}: {error}\n{traceback.format_exc()}") from None

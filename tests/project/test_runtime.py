"""Work in the background: in order, errors where their turn comes, nothing left running; and forked processes."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator

import pytest

from dolmen.base.runtime import PerProcess, Runtime, shared_runtime

THREADS = [1, 4]


@PerProcess
def _of_this_process(name: str) -> list[str]:
    return [name]


def test_a_forked_process_makes_objects_of_its_own_and_leaves_those_of_its_parent() -> None:
    ours, reading, writing = _of_this_process("a"), *os.pipe()
    assert _of_this_process("a") is ours
    assert _of_this_process("b") == ["b"]
    if not (child := os.fork()):
        theirs = _of_this_process("a")
        theirs.append("child")
        is_own = theirs is not ours and _of_this_process("a") is theirs and shared_runtime() is shared_runtime()
        os.write(writing, b"own" if is_own else b"old")
        os._exit(0)
    assert os.read(reading, 3) == b"own"
    os.waitpid(child, 0)
    assert _of_this_process("a") is ours
    assert ours == ["a"]
    assert pickle.loads(pickle.dumps(shared_runtime)) is shared_runtime


@pytest.mark.parametrize("threads", THREADS)
def test_items_made_ahead_come_in_order_and_end_with_their_error(threads: int) -> None:
    def items() -> Iterator[int]:
        yield from range(100)
        raise ValueError("the hundredth")

    taken: list[int] = []
    with pytest.raises(ValueError, match="hundredth"):
        taken.extend(Runtime(threads=threads).ahead(items()))
    assert taken == list(range(100))
    assert list(Runtime(threads=threads).ahead(iter(range(1000)))) == list(range(1000))
    assert list(Runtime(threads=threads).ahead(())) == []


def test_the_next_item_is_made_while_the_last_one_is_used() -> None:
    made = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        made.set()
        yield 2

    ahead = Runtime(threads=4).ahead(items())
    assert next(ahead) == 1
    assert made.wait(60)  # though nobody has asked for it
    assert list(ahead) == [2]


def test_who_stops_early_leaves_nothing_running() -> None:
    running = threading.Semaphore(0)
    go_on = threading.Event()
    left: list[str] = []

    def items() -> Iterator[int]:
        yield 1
        running.release()
        go_on.wait(60)
        left.append("second")
        yield 2

    ahead = Runtime(threads=4).ahead(items())
    assert next(ahead) == 1
    assert running.acquire(timeout=60)
    go_on.set()
    ahead.close()  # type: ignore[attr-defined]
    assert left == ["second"]


def test_an_attended_function_returns_or_raises_and_is_attended_meanwhile() -> None:
    runtime = Runtime(threads=4)
    seen = threading.Event()

    def waits_for_it() -> str:
        assert seen.wait(60)
        return "done"

    assert runtime.attend(waits_for_it, 0.001, seen.set) == "done"

    def times_out() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        runtime.attend(times_out, 60, lambda: None)
    assert Runtime(threads=1).attend(lambda: 7, 60, lambda: None) == 7

"""A property that is made once: its making stops nobody but those who wait for the same object."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from dolmen.base.runtime import cached_property


class Slow:
    def __init__(self, made: threading.Event | None = None) -> None:
        self.made, self.calls = made, 0

    @cached_property
    def value(self) -> list[int]:
        """Waits for ``made``."""
        self.calls += 1
        if self.made:
            assert self.made.wait(30)
        return [self.calls]


def test_it_is_made_once_for_each_object() -> None:
    one, other = Slow(), Slow()
    assert one.value is one.value
    assert one.value is not other.value
    assert (one.calls, other.calls) == (1, 1)
    assert isinstance(Slow.value, cached_property)
    assert Slow.value.__doc__ == "Waits for ``made``."


def test_another_object_of_the_class_does_not_wait_seed_90000242() -> None:
    """An indexer that fetched stopped another one in the same process up to Python 3.11."""
    made = threading.Event()
    slow = Slow(made)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(lambda: slow.value)
        try:
            assert pool.submit(lambda: Slow().value).result(120) == [1]
            assert not waiting.done()
        finally:
            made.set()
        assert waiting.result(120) == [1]


def test_all_threads_get_the_value_that_is_kept() -> None:
    made, begun = threading.Event(), threading.Barrier(5)
    slow = Slow(made)

    def ask() -> list[int]:
        begun.wait(30)
        return slow.value

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        begun.wait(30)
        made.set()
        assert len({id(each.result(30)) for each in asked}) == 1

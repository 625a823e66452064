"""Which thread opens files and decodes row groups."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.rows.scan.plan_reader import RowGroupColumns
from dolmen.rows.scan.row_groups import RowGroup
from dolmen.rows.scan.scan import plan_of, reader_of
from dolmen.store.base import Object
from dolmen.store.local_store import LocalStore

FILES = 100


def runtime_at(seconds: float) -> Runtime:
    """A runtime whose clock says that so many seconds pass with each look at it."""
    looks = count()
    return Runtime(threads=4, cores=2, monotonic=lambda: next(looks) * seconds)


def thread_of(item: int) -> tuple[int, int]:
    return item, threading.get_ident()


def test_what_is_near_is_done_here() -> None:
    runtime, items = runtime_at(0.001), iter(range(20))
    found = list(chain(runtime.near(thread_of, items), runtime.map(thread_of, items)))
    assert found == [(item, threading.get_ident()) for item in range(20)]


def test_what_is_far_is_left_to_threads() -> None:
    runtime, items = runtime_at(0.01), iter(range(20))
    found = list(chain(runtime.near(thread_of, items), runtime.map(thread_of, items)))
    assert [item for item, _ in found] == list(range(20))
    assert [item for item, thread in found if thread == threading.get_ident()] == [0]


def test_an_item_of_several_files_may_take_longer() -> None:
    runtime, items = runtime_at(0.01), iter(range(20))
    assert [item for item, _ in runtime.near(thread_of, items, count=lambda _: 16)] == list(range(20))


def test_short_work_between_long_work_is_done_here_in_its_turn() -> None:
    runtime = Runtime(threads=4, cores=2)
    found = list(runtime.compute(thread_of, range(20), here=lambda item: item % 2 == 1))
    assert [item for item, _ in found] == list(range(20))
    assert {item for item, thread in found if thread == threading.get_ident()} == set(range(1, 20, 2))


def test_an_error_of_short_work_is_raised_in_its_turn() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError(item)
        return item

    found: Iterator[int] = Runtime(threads=4, cores=2).compute(work, range(9), here=lambda _: True)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(found)


@pytest.fixture
def small_files(tmp_path: Path) -> str:
    table = dolmen.open(str(tmp_path / "db")).create_table("t", pa.schema([("id", pa.int64()), ("s", pa.string())]))
    for number in range(FILES):
        table.append(pa.table({"id": [number], "s": [str(number)]}))
    return str(tmp_path / "db")


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 0.01])
def test_files_of_a_near_disk_are_read_by_one_thread_and_of_a_far_one_by_several(
    small_files: str, monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    threads: set[int] = set()
    plain = LocalStore.get

    def get(self: LocalStore, key: str, *args: Any, **options: Any) -> Object:
        if key.startswith("data/"):
            threads.add(threading.get_ident())
            time.sleep(wait)
        return plain(self, key, *args, **options)

    monkeypatch.setattr(LocalStore, "get", get)
    runtime = Runtime() if wait else Runtime(monotonic=lambda: 0.0)  # a busy machine would be taken for a far disk
    rows = dolmen.open(small_files, runtime=runtime).table("t").scan().to_arrow()
    assert rows.sort_by("id").to_pydict() == {"id": [*range(FILES)], "s": [str(number) for number in range(FILES)]}
    assert threads == {threading.get_ident()} if not wait else len(threads) > 4


def test_row_groups_of_few_large_values_are_not_held_together(tmp_path: Path) -> None:
    table = dolmen.open(str(tmp_path)).create_table("t", pa.schema([("b", pa.binary())]))
    for number in range(20):
        table.append(pa.table({"b": [random.Random(number).randbytes(600_000)]}))
    scan = dolmen.open(str(tmp_path), runtime=Runtime(threads=4, cores=2)).table("t").scan()
    begun: list[int] = []

    def work(group: RowGroup, columns: RowGroupColumns) -> int:
        begun.append(group.rows)
        return group.rows

    with scan._view.reading():
        reader = reader_of(scan)
        found = reader.read(work, reader.groups(), plan_of(scan).output_ids)
        assert next(found) == 1
        assert len(begun) <= 7
        assert sum(found) == 19

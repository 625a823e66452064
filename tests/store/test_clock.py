"""The server's time, as its answers show it."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.base.units import SECOND_US, utc
from dolmen.store import open_store
from dolmen.store.base import ServerClock
from dolmen.store.local_store import LocalStore
from support.proxy import Proxy

START_US = 1_760_000_000_600_000
SCHEMA = pa.schema([("a", pa.int64())])


class Machine:
    """A process whose clocks a test sets.

    Args:
        off_us: how much its wall clock is ahead of the server's.
    """

    def __init__(self, off_us: int = 0) -> None:
        self.now_us, self.off_us, self.frozen_us = START_US, off_us, 0
        self.runtime = Runtime(
            clock_us=lambda: self.now_us + self.off_us, monotonic=lambda: (self.now_us - self.frozen_us) / SECOND_US
        )
        self.clock = ServerClock(self.runtime)

    def ask(self, way_us: int = 0, back_us: int = 0) -> None:
        """Gets an answer whose Date has whole seconds."""
        sent = self.runtime.instant()
        self.now_us += way_us
        date_us = self.now_us // SECOND_US * SECOND_US
        self.now_us += back_us
        self.clock.observe(date_us, uncertainty_us=SECOND_US, sent=sent)


@pytest.mark.parametrize("off_us", [-3_600 * SECOND_US, -SECOND_US // 2, 0, SECOND_US // 3, 3_600 * SECOND_US])
@pytest.mark.parametrize("way", [(0, 0), (2 * SECOND_US, 0), (0, 2 * SECOND_US)])
def test_the_time_is_right_to_a_second_and_the_way_of_an_answer_whatever_the_local_clock_says(
    off_us: int, way: tuple[int, int]
) -> None:
    machine = Machine(off_us)
    machine.ask(*way)
    machine.now_us += 200 * SECOND_US
    estimate_us = machine.clock.estimate()
    assert estimate_us is not None
    assert abs(estimate_us - machine.now_us) <= min(abs(off_us), SECOND_US + sum(way))
    assert machine.clock.least_us is not None
    assert machine.clock.least_us <= min(machine.now_us, estimate_us)


def test_the_time_is_not_known_after_a_freeze_and_before_the_first_answer() -> None:
    machine = Machine()
    assert (machine.clock.estimate(), machine.clock.current_us, machine.clock.age_seconds) == (None, 0, math.inf)
    machine.ask()
    machine.frozen_us = 60 * SECOND_US
    machine.now_us += machine.frozen_us
    assert (machine.clock.estimate(), machine.clock.age_seconds) == (None, math.inf)
    assert machine.clock.current_us == machine.clock.now_us
    machine.ask()
    assert machine.clock.estimate() == machine.now_us


def test_an_answer_that_came_during_a_freeze_shows_no_time() -> None:
    machine = Machine()
    sent = machine.runtime.instant()
    machine.frozen_us = 60 * SECOND_US
    machine.now_us += machine.frozen_us
    machine.clock.observe(START_US, uncertainty_us=SECOND_US, sent=sent)
    assert (machine.clock.now_us, machine.clock.estimate()) == (START_US, None)


@pytest.mark.parametrize(
    ("rest_us", "set_us"), [(200_000, 0), (200 * SECOND_US, 0), (0, 700_000), (0, 3_600 * SECOND_US)]
)
def test_a_directory_has_the_clock_of_this_machine_also_when_that_is_set(
    tmp_path: Path, rest_us: int, set_us: int
) -> None:
    machine = Machine()
    db = Database(LocalStore(tmp_path, machine.runtime), machine.runtime)
    table = db.create_table("t", SCHEMA)
    machine.now_us += rest_us
    machine.off_us = set_us
    asked = utc(machine.runtime.clock_us())
    assert table.append([{"a": 1}]).created_at == asked


def test_now_in_a_predicate_is_the_present_also_in_a_process_that_was_idle(tmp_path: Path) -> None:
    machine = Machine()
    table = Database(LocalStore(tmp_path, machine.runtime), machine.runtime).create_table(
        "t", pa.schema([("t", pa.timestamp("us", tz="UTC"))])
    )
    table.append([{"t": utc(START_US + seconds * SECOND_US)} for seconds in (100, 300)])
    machine.now_us += 200 * SECOND_US
    table.delete("t <= now()")
    assert table.count() == 1


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_process_that_was_idle_dates_a_commit_with_the_time_of_s3(s3_url: str, proxy: Proxy, is_frozen: bool) -> None:
    """Its clocks jump by 200 seconds. If its monotonic clock does not, the server is asked."""
    skipped_seconds = 0

    def clock_us() -> int:
        return time.time_ns() // 1_000 + skipped_seconds * SECOND_US

    def monotonic() -> float:
        return time.monotonic() + (0 if is_frozen else skipped_seconds)

    runtime = Runtime(clock_us=clock_us, monotonic=monotonic)
    table = Database(open_store(s3_url, runtime), runtime).create_table("t", SCHEMA)
    proxy.forget_requests()
    skipped_seconds = 200
    asked = utc(time.time_ns() // 1_000 if is_frozen else clock_us())
    done = table.delete("a = 1")
    assert asked <= done.created_at <= asked + timedelta(minutes=1)
    assert [request.method for request in proxy.requests()] == ["GET"] * is_frozen + ["PUT"] * 3

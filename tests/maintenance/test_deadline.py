"""Deadlines: work stops in time for the step that is under way, and those who wait get their share."""

from __future__ import annotations

import math

from dolmen.base.runtime import Runtime
from dolmen.maintenance.round import MARGIN_SECONDS, SLOWDOWN, Deadline


class Clock:
    """Time that passes only when told; ``deadline`` ends ``seconds`` after the beginning."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.now = 0.0
        self.deadline = Deadline(Runtime(monotonic=lambda: self.now, threads=1), lambda: seconds - self.now)

    def steps(self, seconds: float, stop: object = None) -> int:
        """Does steps of that many seconds until it is time to stop; returns how many, at most 1,000."""
        asked = stop or self.deadline
        assert callable(asked)
        for step in range(1000):
            if asked():
                return step
            self.now += seconds
        return 1000


def test_without_an_end_nobody_ever_stops() -> None:
    clock = Clock()
    assert clock.steps(1e6) == 1000
    assert clock.steps(1e6, clock.deadline.share(math.inf)) == 1000
    assert not clock.deadline.reached


def test_short_steps_go_on_until_the_margin() -> None:
    clock = Clock(900)
    clock.steps(1)
    assert 900 - clock.now >= MARGIN_SECONDS
    assert 900 - clock.now <= MARGIN_SECONDS + SLOWDOWN + 1


def test_long_steps_stop_while_another_one_of_twice_that_length_would_still_fit() -> None:
    clock = Clock(900)
    assert clock.steps(200) > 0
    assert 900 - clock.now >= MARGIN_SECONDS
    assert clock.now + SLOWDOWN * 200 + MARGIN_SECONDS > 900 - 200


def test_once_it_is_over_it_stays_over() -> None:
    clock = Clock(100)
    clock.now = 95
    assert clock.deadline()
    clock.now = 0
    assert clock.deadline()
    assert clock.deadline.reached


def test_a_share_ends_before_the_whole_and_says_so() -> None:
    clock = Clock(1000)
    share = clock.deadline.share(100)
    clock.steps(1, share)
    assert 95 <= clock.now <= 101
    assert share.reached
    assert not clock.deadline.reached


def test_at_least_one_step_fits_into_any_share() -> None:
    clock = Clock(1000)
    assert clock.steps(1, clock.deadline.share(0)) == 1


def test_a_share_ends_with_the_whole() -> None:
    clock = Clock(100)
    share = clock.deadline.share(1000)
    clock.steps(1, share)
    assert clock.now < 100
    assert share.reached
    assert clock.deadline.reached


def test_a_pause_between_two_pieces_of_work_is_no_step() -> None:
    clock = Clock(1000)
    clock.deadline()
    clock.now = 500
    clock.deadline.share(10)
    assert not clock.deadline()
    assert clock.deadline.left_seconds == 500 - MARGIN_SECONDS

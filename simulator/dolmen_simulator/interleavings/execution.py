"""Runs two tasks against one bucket, where every request waits until it is chosen.

A choice is a number: 0 and 1 are the tasks, greater numbers are requests that are still on their way, in the order in
which they were sent. Time advances only when a task waits, and each task has its own randomness. So an execution
follows from the choices and the fault, and from nothing else.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context, context_of
from dolmen.errors import UnknownOutcomeError
from dolmen.store.base import DatedResponse, ServerClock
from dolmen.store.memory import MemoryBucket, MemoryObject
from dolmen.store.s3.connection import Connection
from dolmen_simulator.interleavings.steps import (
    EVERYTHING,
    NOTHING,
    TIME,
    Fault,
    PendingStep,
    Step,
    TaskOutcome,
    fates,
    fates_in_outages,
    footprint,
)
from dolmen_simulator.world.fates import Answer, Crash, Fate, Refusal, StoreRequest, Wire
from dolmen_simulator.world.scheduler import START_US
from dolmen_simulator.world.server import Server
from dolmen_simulator.world.wire import SimulatedStore

HOUR_US = 3_600_000_000
SIGNED_US = 15 * 60_000_000
"""S3 refuses requests that arrive later than this after they were signed."""

_MAX_STEPS = 2_000
"""Steps of one execution. An execution with more steps is taken to be endless."""

WAITING = "waits"
MEANWHILE = "meanwhile"


def _baton() -> threading.Lock:
    """Makes a lock that is taken: its next taker waits until it is released."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class _Stopped(BaseException):
    """Unwinds a task's thread when its execution is over."""


class _ConstantRandom(random.Random):
    """A random source with constant waiting times, so that retries draw nothing."""

    def uniform(self, a: float, b: float) -> float:
        return a


class _WatchedClock(ServerClock):
    """A client's clock that reports when it is read.

    Args:
        inner: the clock that answers set.
        on_read: called at each reading.
    """

    def __init__(self, inner: ServerClock, on_read: Callable[[], object]) -> None:
        super().__init__(inner.runtime)
        self._inner, self._on_read = inner, on_read

    @property
    def last(self) -> DatedResponse:
        """See ServerClock."""
        self._on_read()
        return self._inner.last


class Peer:
    """The process of one task, with its own client and database.

    Args:
        back_off_hours: hours of sleep between two attempts: none, unless the process is one that gets frozen.
    """

    def __init__(self, execution: Execution, number: int) -> None:
        self._execution, self._number = execution, number
        self.back_off_hours = 0.0
        self._frozen_us = self._behind_us = 0
        self.runtime = Runtime(
            clock_us=lambda: execution.time_us() - self._behind_us,
            monotonic=lambda: (execution.time_us() - self._frozen_us) / 1e6,
            sleep=lambda seconds: self._back_off(),
            random=_ConstantRandom(f"task {number}"),
            threads=1,
        )
        self.store = SimulatedStore(execution.server, str(number), self.runtime)
        client, clock = self.store.connection.client, self.store.connection.clock
        clock.runtime = replace(
            self.runtime,
            clock_us=lambda: execution.note_us() - self._behind_us,
            monotonic=lambda: (execution.note_us() - self._frozen_us) / 1e6,
        )
        self.store.connection = Connection(client, _WatchedClock(clock, execution.time_us))
        self._database: Database | None = None

    @property
    def db(self) -> Database:
        """The database, opened at first use, which takes one or two requests."""
        if self._database is None:
            self._database = Database(self.store, self.runtime)
        return self._database

    @property
    def context(self) -> Context:
        """The context that background work takes."""
        return context_of(self.db)

    def wait(self, hours: float) -> None:
        """Advances the time for all processes, in its own step."""
        self._execution.wait(self._number, round(hours * HOUR_US))

    def freeze(self, hours: float, *, clock_is_set: bool) -> None:
        """Advances the time for all processes but this one, whose clocks stop, in its own step.

        Args:
            clock_is_set: whether its wall clock is set when it continues.
        """
        self.wait(hours)
        self._frozen_us += round(hours * HOUR_US)
        if not clock_is_set:
            self._behind_us += round(hours * HOUR_US)

    @property
    def true_us(self) -> int:
        """The time, whatever the clocks of this process show."""
        return self._execution.time_us()

    def meanwhile(self, what: str, hours: float, *calls: Callable[[MemoryBucket], object]) -> None:
        """Runs calls of other processes one after another, in one step.

        Args:
            what: description of the calls.
            hours: hours that pass after each call.
            calls: the calls.
        """
        self._execution.meanwhile(self._number, what, round(hours * HOUR_US), calls)

    def _back_off(self) -> None:
        if self.back_off_hours:
            self.wait(self.back_off_hours)


Task = Callable[[Peer], Any]


class Execution(Wire):
    """Runs two tasks one request at a time.

    Args:
        objects: the bucket's content, which is not changed.
        tasks: the tasks.
        now_us: the time of the beginning.
        fault: the fault; None for none.
        stall_us: length of a stall.
    """

    def __init__(
        self,
        objects: Mapping[str, MemoryObject],
        tasks: tuple[Task, ...],
        now_us: int = START_US,
        fault: Fault | None = None,
        stall_us: int = 3 * HOUR_US,
    ) -> None:
        self.now_us, self.fault, self._stall_us = now_us, fault, stall_us
        self.bucket = MemoryBucket(self._server_time_us, "simulation")
        self.bucket.objects.update(objects)
        self.server = Server(self.bucket, self)
        self.outcomes = [TaskOutcome() for _ in tasks]
        self.waiting: dict[int, PendingStep] = {}
        self.steps: list[Step] = []
        self.requests: list[list[StoreRequest]] = [[] for _ in tasks]
        self.struck = False
        self._processes = len(tasks)
        self._dead: set[int] = set()
        self._answering = False
        self._answered: dict[int, Step] = {}
        self._stopping = False
        self._current = 0
        self._main = _baton()
        self._batons = [_baton() for _ in tasks]
        self._threads = [
            threading.Thread(target=self._live, args=(number, task), daemon=True) for number, task in enumerate(tasks)
        ]
        for number, thread in enumerate(self._threads):
            self._current = number
            thread.start()
            self._main.acquire()

    # ---- choices -----------------------------------------------------------------------------------------------------

    def advance(self, who: int) -> Step:
        """Runs the pending step of one task or request, up to the task's next request."""
        waiting = self.waiting.pop(who)
        step = Step(who, waiting, len(self.steps), waiting.footprint)
        self.steps.append(step)
        if len(self.steps) > _MAX_STEPS:
            raise AssertionError(f"the execution is not over after {_MAX_STEPS} steps")
        if who < len(self._threads):
            self.outcomes[who].last = step.at
        if waiting.arrive is not None:
            waiting.arrive()
        else:
            self._current = who
            self._answering = False
            if not (step.footprint.writes or step.footprint.passes_time):
                step.footprint = step.footprint._replace(depends_on_time=False)
            self._batons[who].release()
            self._main.acquire()
        return step

    def stop(self) -> None:
        """Ends the tasks that still run."""
        self._stopping = True
        for number, thread in enumerate(self._threads):
            if thread.is_alive():
                self._batons[number].release()
                thread.join()

    @property
    def choices(self) -> tuple[int, ...]:
        """The number that was chosen at each step."""
        return tuple(step.who for step in self.steps)

    def may_come_first(self, task: int, other: int) -> bool:
        """Whether all steps of one task could have come before all of the other's, with the same result."""
        before: list[int] = []
        for step in self.steps:
            mask = 0
            for index in range(step.at - 1, -1, -1):
                if mask >> index & 1:
                    continue
                earlier = self.steps[index]
                caused = earlier.who == step.who or step.waiting.sent_by == index
                if caused or earlier.footprint.conflicts(step.footprint):
                    mask |= before[index] | 1 << index
            before.append(mask)
        others = sum(1 << step.at for step in self.steps if step.who == other)
        return not any(before[step.at] & others for step in self.steps if step.who == task)

    # ---- the tasks ---------------------------------------------------------------------------------------------------

    def _live(self, number: int, task: Task) -> None:
        outcome = self.outcomes[number]
        try:
            outcome.value = task(Peer(self, number))
            outcome.kind = "done"
        except _Stopped:
            return
        except Crash:
            outcome.kind = "crashed"
        except UnknownOutcomeError as error:
            outcome.kind, outcome.error = "unknown", error
        except BaseException as error:  # noqa: BLE001  # judged with all the rest of the execution
            outcome.kind, outcome.error = "failed", error
        self._main.release()

    def _await(self, number: int, waiting: PendingStep) -> None:
        """Hands the baton back until the calling task is chosen."""
        self.waiting[number] = waiting
        self._main.release()
        self._batons[number].acquire()
        if self._stopping:
            raise _Stopped

    def wait(self, number: int, duration_us: int) -> None:
        """See Peer.wait."""
        self._await(number, PendingStep(TIME, f"{WAITING} {duration_us / HOUR_US:g} h"))
        self.now_us += duration_us

    def meanwhile(self, number: int, what: str, after_us: int, calls: Sequence[Callable[[MemoryBucket], Any]]) -> None:
        """See Peer.meanwhile."""
        self._await(number, PendingStep(EVERYTHING, f"{MEANWHILE} {what}"))
        for call in calls:
            call(self.bucket)
            self.now_us += after_us
        self._answering = False

    def time_us(self) -> int:
        """The time, for a task."""
        for step in (self._answered.get(self._current), *self.steps[-1:]):
            if step is not None:
                step.footprint = step.footprint._replace(depends_on_time=True)
        return self.now_us

    def note_us(self) -> int:
        """The time, for a client that notes when a request is sent or answered, which alone affects nothing."""
        if self._answering:
            self._answering = False
            self._answered[self._current] = self.steps[-1]
        return self.now_us

    def _server_time_us(self) -> int:
        """The time, for the server, which puts it into each answer last."""
        self._answering = True
        return self.now_us

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def step(self, request: StoreRequest) -> Fate:
        if self._stopping:
            raise _Stopped
        number = int(request.who)
        if number in self._dead:
            raise Crash
        at, fault, fate = len(self.requests[number]), self.fault, Fate.OK
        self.requests[number].append(request)
        if fault is not None and fault[:2] == (number, at):
            if fault.fate is None:
                self.struck = True
                self.wait(number, self._stall_us)
            elif fault.fate in (fates_in_outages(request) if fault.lasts else fates(request)):
                self.struck, fate = True, fault.fate
        elif self.struck and fault is not None and fault.task == number and fault.at < at <= fault.at + fault.lasts:
            fate = Fate.THROTTLED
        self._await(number, PendingStep(footprint(request, fate), f"{request.verb} {request.subject}", request, fate))
        if fate in (Fate.CRASH_BEFORE, Fate.CRASH_AFTER):
            self._dead.add(number)
        if footprint(request, fate) is NOTHING:
            self.steps[-1].result = fate.value
        return fate

    def deliver_later(self, request: StoreRequest, arrive: Callable[[], object]) -> None:
        sent_us = self.now_us

        def land() -> None:
            if self.now_us - sent_us > SIGNED_US:
                self.steps[-1].result = "refused: signed too long ago"
            else:
                arrive()

        description = f"a request of {request.who} arrives: {request.verb} {request.subject}"
        effect = footprint(request, Fate.OK)
        self.waiting[self._processes] = PendingStep(effect, description, request, None, self.steps[-1].at, land)
        self._processes += 1

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        step = self.steps[-1]
        result = str(answer) if isinstance(answer, Refusal) else "ok"
        if step.waiting.fate not in (Fate.OK, None):
            result = f"{result}; {step.waiting.fate.value}"
        step.result, step.landed = result, step.landed or not isinstance(answer, Refusal)

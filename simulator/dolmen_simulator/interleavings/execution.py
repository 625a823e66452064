"""One execution of two tasks against one bucket, in which every request waits until it is chosen.

A choice is the number of who goes on: 0 and 1 are the tasks, greater numbers are requests that are still on their
way, in the order in which they were sent. Time stands still but for the waiting that a task does itself; randomness is
each task's own. So what happens follows from the choices and from what was made to go wrong, and from nothing else.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dolmen.context import Context
from dolmen.database import Database
from dolmen.errors import UnknownOutcomeError
from dolmen.runtime import Runtime
from dolmen.store.base import ServerClock
from dolmen.store.memory import MemoryBucket, MemoryObject
from dolmen.store.s3.client import Connection
from dolmen_simulator.interleavings.steps import (
    MUCH,
    NOTHING,
    TIME,
    Fault,
    Outcome,
    Step,
    Waiting,
    fates,
    fates_in_outages,
    footprint,
)
from dolmen_simulator.world.fates import Answer, Crash, Fate, Refusal, Request, Wire
from dolmen_simulator.world.scheduler import START_US
from dolmen_simulator.world.server import Server
from dolmen_simulator.world.wire import SimulatedStore

HOUR_US = 3_600_000_000
SIGNED_US = 15 * 60_000_000
"""So long S3 takes a signature: what arrives later is refused."""

_MOST = 2_000
"""Steps of one execution: more mean that it never ends."""

WAITING = "waits"
MEANWHILE = "meanwhile"


def _baton() -> threading.Lock:
    """Whoever takes it waits until it is handed to him."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class _Stopped(BaseException):
    """This execution is over: unwinds a task's thread."""


class _Steady(random.Random):
    """Nobody waits any longer for having been unlucky, so that retries draw nothing."""

    def uniform(self, a: float, b: float) -> float:
        return a


class _Watched(ServerClock):
    """A clock of a client that knows whether it is looked at.

    Args:
        inner: the clock that answers feed.
        seen: called whenever somebody looks.
    """

    def __init__(self, inner: ServerClock, seen: Callable[[], object]) -> None:
        super().__init__(inner.runtime)
        self._inner, self._seen = inner, seen

    def reading(self) -> tuple[int, float]:
        """See ServerClock."""
        self._seen()
        return self._inner.reading()

    @property
    def now_us(self) -> int:
        """See ServerClock."""
        return self.reading()[0]

    @property
    def age_seconds(self) -> float:
        """See ServerClock."""
        return self.reading()[1]


class Peer:
    """A process that takes part: its own client, and what it opens with it.

    Args:
        back_off_hours: how long it sleeps between two attempts: no time at all, unless it is one that gets frozen.
    """

    def __init__(self, execution: Execution, number: int) -> None:
        self._execution, self._number = execution, number
        self.back_off_hours = 0.0
        self.runtime = Runtime(
            clock_us=lambda: execution.time_us(),
            monotonic=lambda: execution.time_us() / 1e6,
            sleep=lambda seconds: self._back_off(),
            random=_Steady(f"task {number}"),
            threads=1,
        )
        self.store = SimulatedStore(execution.server, str(number), self.runtime)
        client, clock = self.store.connection.client, self.store.connection.clock
        self.store.connection = Connection(client, _Watched(clock, execution.time_us))
        self._database: Database | None = None

    @property
    def db(self) -> Database:
        """Opened when first asked for: a request or two."""
        if self._database is None:
            self._database = Database(self.store, self.runtime)
        return self._database

    @property
    def context(self) -> Context:
        """What background work takes."""
        return self.db.context

    def wait(self, hours: float) -> None:
        """Lets time go by for everybody; a step like any other."""
        self._execution.wait(self._number, round(hours * HOUR_US))

    def meanwhile(self, what: str, hours: float, *calls: Callable[[MemoryBucket], object]) -> None:
        """Others do a lot, one after the other, in which nobody comes in between: one step.

        Args:
            what: in words.
            hours: that go by after each call.
        """
        self._execution.meanwhile(self._number, what, round(hours * HOUR_US), calls)

    def _back_off(self) -> None:
        if self.back_off_hours:
            self.wait(self.back_off_hours)


Task = Callable[[Peer], Any]


class Execution(Wire):
    """Runs two tasks one request at a time.

    Args:
        objects: the bucket's content; it is not changed.
        tasks: what each does.
        now_us: the time.
        fault: what goes wrong.
        stall_us: how long a task that stands still does so.
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
        self.outcomes = [Outcome() for _ in tasks]
        self.waiting: dict[int, Waiting] = {}
        self.steps: list[Step] = []
        self.requests: list[list[Request]] = [[] for _ in tasks]
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

    # ---- for who chooses ---------------------------------------------------------------------------------------------

    def advance(self, who: int) -> Step:
        """Lets one of those waiting do what it waits for, up to its next request."""
        waiting = self.waiting.pop(who)
        step = Step(who, waiting, len(self.steps), waiting.does)
        self.steps.append(step)
        if len(self.steps) > _MOST:
            raise AssertionError(f"after {_MOST} steps it is not over")
        if who < len(self._threads):
            self.outcomes[who].last = step.at
        if waiting.arrive is not None:
            waiting.arrive()
        else:
            self._current = who
            self._answering = False
            if not (step.did.writes or step.did.passes):
                step.did = step.did._replace(timely=False)
            self._batons[who].release()
            self._main.acquire()
        return step

    def stop(self) -> None:
        """Ends the tasks that are not at their end."""
        self._stopping = True
        for number, thread in enumerate(self._threads):
            if thread.is_alive():
                self._batons[number].release()
                thread.join()

    @property
    def choices(self) -> tuple[int, ...]:
        """Who went on at each step."""
        return tuple(step.who for step in self.steps)

    def could_be_first(self, task: int, other: int) -> bool:
        """Whether all of one task could have been before all of another, and nobody would have noticed."""
        before: list[int] = []
        for step in self.steps:
            mask = 0
            for index in range(step.at - 1, -1, -1):
                if mask >> index & 1:
                    continue
                earlier = self.steps[index]
                caused = earlier.who == step.who or step.waiting.sent_by == index
                if caused or earlier.did.conflicts(step.did):
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

    def _await(self, number: int, waiting: Waiting) -> None:
        """Called by a task: hands the baton back until it is chosen."""
        self.waiting[number] = waiting
        self._main.release()
        self._batons[number].acquire()
        if self._stopping:
            raise _Stopped

    def wait(self, number: int, duration_us: int) -> None:
        """See Peer.wait."""
        self._await(number, Waiting(TIME, f"{WAITING} {duration_us / HOUR_US:g} h"))
        self.now_us += duration_us

    def meanwhile(self, number: int, what: str, after_us: int, calls: Sequence[Callable[[MemoryBucket], Any]]) -> None:
        """See Peer.meanwhile."""
        self._await(number, Waiting(MUCH, f"{MEANWHILE} {what}"))
        for call in calls:
            call(self.bucket)
            self.now_us += after_us
        self._answering = False

    def time_us(self) -> int:
        """The time, for a task. A client notes when each answer came; that alone makes no difference to anybody."""
        own = [step for step in (self._answered.get(self._current), *self.steps[-1:]) if step is not None]
        if self._answering:
            self._answering = False
            self._answered[self._current] = own[-1]
        else:
            for step in own:
                step.did = step.did._replace(timely=True)
        return self.now_us

    def _server_time_us(self) -> int:
        """The time, for the server, which last puts it into its answer."""
        self._answering = True
        return self.now_us

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def step(self, request: Request) -> Fate:
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
        self._await(number, Waiting(footprint(request, fate), f"{request.verb} {request.told}", request, fate))
        if fate in (Fate.CRASH_BEFORE, Fate.CRASH_AFTER):
            self._dead.add(number)
        if footprint(request, fate) is NOTHING:
            self.steps[-1].came = fate.value
        return fate

    def later(self, request: Request, arrive: Callable[[], object]) -> None:
        sent_us = self.now_us

        def land() -> None:
            if self.now_us - sent_us > SIGNED_US:
                self.steps[-1].came = "refused: it was signed too long ago"
            else:
                arrive()

        told = f"what {request.who} has sent arrives: {request.verb} {request.told}"
        does = footprint(request, Fate.OK)
        self.waiting[self._processes] = Waiting(does, told, request, None, self.steps[-1].at, land)
        self._processes += 1

    def arrived(self, request: Request, answer: Answer) -> None:
        step = self.steps[-1]
        came = str(answer) if isinstance(answer, Refusal) else "ok"
        if step.waiting.fate not in (Fate.OK, None):
            came = f"{came}; {step.waiting.fate.value}"
        step.came, step.landed = came, step.landed or not isinstance(answer, Refusal)

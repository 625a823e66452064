"""Virtual time: actors run production code in threads, of which exactly one runs until it pauses.

Other actors can run only during a pause, and the times at which pauses end decide which runs next. As the seed
decides the lengths of pauses, it decides the whole schedule, on any machine.
"""

from __future__ import annotations

import ctypes
import heapq
import sys
import threading
import traceback
from collections.abc import Callable

START_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z, the beginning of every history."""


LOOK_SECONDS = 10.0
LOOKS = 18
"""An actor hangs if nothing happens during this many consecutive looks, so many seconds of real time apart. Looks are
counted because a machine that stood still has only one look in that time."""


class HangError(Exception):
    """An actor computes without end: it neither sends a request nor returns."""


class Stopped(BaseException):
    """Unwinds an actor's thread when the history is over. No production code may catch it."""


class Task:
    """An actor's thread, with the baton that lets it run."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name, self.body = name, body
        self.baton = threading.Lock()
        self.baton.acquire()
        self.thread: threading.Thread | None = None


class Scheduler:
    """Runs tasks in virtual time. Everything but ``run`` is called by the task that holds the baton."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.failure: BaseException | None = None
        self._events: list[tuple[int, int, Task | Callable[[], None]]] = []
        self._events_ever = 0
        self._tasks: list[Task] = []
        self._main = threading.Lock()
        self._main.acquire()
        self._current: Task | None = None
        self._stopping = False
        self._unwinding = False

    def spawn(self, name: str, body: Callable[[], None], delay_us: int = 0) -> None:
        """Adds an actor that begins to run after a delay."""
        task = Task(name, body)
        self._tasks.append(task)
        self._schedule(delay_us, task)

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Calls ``action`` after a delay, outside of any actor. It must not pause."""
        self._schedule(delay_us, action)

    def pause(self, delay_us: int) -> None:
        """Pauses the calling actor while others run."""
        self._schedule(delay_us, self.current)
        self.park()

    def park(self) -> None:
        """Pauses the calling actor until another one wakes it."""
        task = self.current
        if self._stopping:
            raise Stopped
        if self._hand_on(task):
            task.baton.acquire()
        if self._stopping:
            raise Stopped

    def wake(self, task: Task) -> None:
        """Lets an actor that has parked itself run again, once the caller pauses."""
        self._schedule(0, task)

    @property
    def current(self) -> Task:
        """The calling actor."""
        task = self._current
        assert task is not None, "only actors pause"
        assert task.thread is threading.current_thread(), "production code reached the store from a thread of its own"
        return task

    def stop(self) -> None:
        """Ends the history at the caller's next pause."""
        self._stopping = True

    def fail(self, error: BaseException) -> None:
        """Ends the history; ``run`` raises the first error."""
        self.failure = self.failure or error
        self._stopping = True

    def run(self) -> None:
        """Runs until an actor stops the history, fails or hangs, then unwinds all actors."""
        self._hand_on(None)
        self._wait()
        self._unwinding = True
        for task in self._tasks:
            if task.thread is not None and task.thread.is_alive():
                self._current = task
                task.baton.release()
                task.thread.join()
        if self.failure is not None:
            raise self.failure

    def drain(self, within_us: int) -> None:
        """Runs, after ``run``, the actions that are due within that time, without any actor."""
        end_us = self.now_us + within_us
        while self._events:
            self.now_us, _, event = heapq.heappop(self._events)
            if self.now_us > end_us:
                return
            if not isinstance(event, Task):
                event()

    def _wait(self) -> None:
        """Waits until the history has ended."""
        looks, events = 0, -1
        while not self._main.acquire(timeout=LOOK_SECONDS):
            looks, events = (looks + 1 if self._events_ever == events else 0), self._events_ever
            if looks == LOOKS:
                self._interrupt()
            if looks == 2 * LOOKS and self.failure:
                raise self.failure  # it is not in Python code, so its thread is abandoned

    def _interrupt(self) -> None:
        """Interrupts the current actor."""
        task = self._current
        if task is None or task.thread is None or task.thread.ident is None:
            return
        frame = sys._current_frames().get(task.thread.ident)
        calls = traceback.extract_stack(frame)[:-9:-1] if frame else []
        where = " < ".join(f"{call.name} ({call.filename.rpartition('/')[2]}:{call.lineno})" for call in calls)
        self.fail(HangError(f"{task.name} has asked for nothing for {LOOKS * LOOK_SECONDS:.0f} s; it is in {where}"))
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(task.thread.ident), ctypes.py_object(Stopped))

    def _schedule(self, delay_us: int, event: Task | Callable[[], None]) -> None:
        self._events_ever += 1
        heapq.heappush(self._events, (self.now_us + max(delay_us, 0), self._events_ever, event))

    def _hand_on(self, task: Task | None) -> bool:
        """Advances time to the next event. Returns whether the caller has to wait for its baton."""
        while self._events and not self._stopping:
            self.now_us, _, event = heapq.heappop(self._events)
            if not isinstance(event, Task):
                try:
                    event()
                except BaseException as error:  # noqa: BLE001  # belongs to the history, not to this thread
                    self.fail(error)
                continue
            self._current = event
            if event is task:
                return False
            if event.thread is None:
                event.thread = threading.Thread(target=self._live, args=(event,), name=event.name, daemon=True)
                event.thread.start()
            else:
                event.baton.release()
            return True
        self._stopping = True
        self._main.release()
        return True

    def _live(self, task: Task) -> None:
        try:
            task.body()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again by ``run``
            self.fail(error)
        if not self._unwinding:
            self._tasks.remove(task)
            self._hand_on(None)

"""One life of an actor: a process with a fresh client and a fresh Database, until it crashes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context
from dolmen.errors import (
    AppliedIdError,
    DuplicateKeyError,
    Error,
    RetryableError,
    RowError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    TagExistsError,
    TagNotFoundError,
    UnknownOutcomeError,
    UnsettledTimestampError,
    VersionExpiredError,
)
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.judge.ledger import CommitLedger
from dolmen_simulator.judge.model import Effect, Operation, OperationRun
from dolmen_simulator.judge.never import Never, ViolationError, unexpected_error
from dolmen_simulator.world.fates import Crash
from dolmen_simulator.world.network import MINUTE_US, Line, Network
from dolmen_simulator.world.replay import STEADY
from dolmen_simulator.world.scheduler import Stopped
from dolmen_simulator.world.threads import ThreadSignal
from dolmen_simulator.world.wire import SimulatedStore

T = TypeVar("T")

#: Maximum number of runs of an operation: with so few actors it must win before that.
_MOST_RUNS = 12

#: Share of processes that upload small data files in parts.
_MULTIPART = 0.25
_SMALL_UPLOADS = {"threshold_bytes": 1_500, "part_bytes": 1_000}

#: Errors that a call may raise because of faults and other actors; any other error ends the history.
EXPECTED = (
    RetryableError,
    TableNotFoundError,
    TableExistsError,
    TagNotFoundError,
    TagExistsError,
    AppliedIdError,
    DuplicateKeyError,
    RowError,
    SchemaError,
    VersionExpiredError,
)


class Process:
    """Runs an actor's operations through production code, and lets the ledger check the answers.

    Args:
        network: the network.
        who: name of the actor.
        rng: random source of this life, for uuids, jitter and clock skew.
    """

    def __init__(self, network: Network, who: str, rng: random.Random) -> None:
        self.network, self.who = network, who
        self._session = network.ledger.recording.session(who)
        limit = 600 if rng.random() < 0.05 else 10
        skew_us = rng.randint(-limit * MINUTE_US, limit * MINUTE_US)
        if STEADY in network.without:
            skew_us = 0
        scheduler, whole = network.scheduler, network.connect(who)
        self.line = whole
        self.runtime = Runtime(
            clock_us=lambda: scheduler.now_us + skew_us + whole.clock_jump_us - whole.clock_behind_us,
            monotonic=lambda: (scheduler.now_us - whole.frozen_us) / 1e6,
            sleep=lambda seconds: network.sleep(who, seconds),
            random=rng,
            threads=1,
            signal=lambda: ThreadSignal(scheduler, self.line),
        )
        sizes = _SMALL_UPLOADS if rng.random() < _MULTIPART else {}
        self.db = Database(SimulatedStore(network.server, who, self.runtime, **sizes), self.runtime)
        self.db.refresh()  # a process begins by looking for the newest version

    def make_at_once(self, calls: Sequence[Callable[[Process], object]]) -> None:
        """Makes calls in threads of this process, and waits until all have ended.

        Args:
            calls: at least one. Each gets the process as its thread sees it. Those that write need messages of their
                own.

        Raises:
            Crash: the process has died.
            ViolationError: at the end of the history, all its threads waited for one another.
        """
        network, scheduler = self.network, self.network.scheduler
        left, all_ended = len(calls), ThreadSignal(self.network.scheduler, self.line)

        def live(thread: Process, call: Callable[[Process], object]) -> None:
            nonlocal left
            try:
                call(thread)
            except Crash:
                network.counts["threads that died"] += 1
            left -= 1
            if not left:
                all_ended.set()

        for number, call in enumerate(calls, 1):
            name = f"{self.who} thread {number}"
            scheduler.spawn(name, partial(live, self._thread(name), call), self.runtime.random.randint(0, 5_000))
        try:
            all_ended.wait()
        except Stopped:
            if len(self.line.parked) > left:
                scheduler.fail(ViolationError(Never.MISREPORTED, f"{left} threads of {self.who} wait for ever"))
            raise
        self.line.threads.clear()

    def _thread(self, name: str) -> Process:
        thread = copy.copy(self)
        thread.who, thread._session = name, f"{self._session}, {name}"
        thread.line = self.line.threads[name] = Line(self.line.random, process=self.line)
        return thread

    @property
    def ledger(self) -> CommitLedger:
        """The ledger of the history."""
        return self.network.ledger

    def write(
        self,
        kind: str,
        effects: Iterable[Effect],
        call: Callable[[], Commit | None],
        *,
        reads: bool = False,
        digests: dict[str, str] | None = None,
        message: str = "",
        reading: int | None = None,
    ) -> bool:
        """Makes one call that writes. Returns whether it was acknowledged.

        Args:
            kind: description for people.
            effects: effects of its statements, in order.
            call: the call.
            reads: whether changes of what it read may be conflicts.
            digests: content digests of its requests, by id.
            message: its message for the history.
            reading: the version that it asks for, if it is not the newest.
        """
        operation = self._begin(
            Operation(kind, self.who, *self._versions, reads=reads, digests=digests or {}, message=message)
        )
        if reading is not None:
            operation.reading = reading
        self.begin_run(*effects)
        return self._judge(operation, call)

    def run_transaction(
        self,
        kind: str,
        function: Callable[[Transaction, OperationRun], None],
        digests: dict[str, str] | None = None,
        message: str = "",
    ) -> bool:
        """Calls ``db.run`` with a function that adds its effects to its run. Returns whether it was acknowledged."""
        operation = self._begin(
            Operation(kind, self.who, *self._versions, replays=True, digests=digests or {}, message=message)
        )

        def run(transaction: Transaction) -> None:
            if operation.runs:
                self.network.counts["replays"] += 1
            if operation.runs >= _MOST_RUNS:
                raise ViolationError(
                    Never.MISREPORTED, f"{operation} has been replayed {operation.runs} times and never commits"
                )
            self.call_with_base(transaction, self.begin_run(), function)

        return self._judge(operation, lambda: self.db.run(run, message=message))

    def begin_run(self, *effects: Effect) -> OperationRun:
        """Begins a run, which the next commit id identifies."""
        operation = self.line.operation
        assert operation is not None
        operation.runs += 1
        self.line.run = OperationRun(operation, list(effects))
        self.evidence.begin_run(self.line.run)
        return self.line.run

    def call_with_base(
        self, transaction: Transaction, run: OperationRun, function: Callable[[Transaction, OperationRun], None]
    ) -> None:
        """Calls ``function``, then records its base version, which is certain once it has found its tables."""
        try:
            function(transaction, run)
        finally:
            run.base = unit_of(transaction).base.version

    def upkeep(self, kind: str, call: Callable[[], T], about: tuple[str, ...] = ()) -> T | None:
        """Does background work: any number of commits that change no row. Returns its result; None if it failed.

        Args:
            kind: description for people.
            call: the work.
            about: tables that it works on, which may be dropped meanwhile.
        """
        operation = self._begin(Operation(kind, self.who, *self._versions, upkeep=True, about=about))
        self.begin_run()
        found: list[T] = []
        self._judge(operation, lambda: found.append(call()))
        return found[0] if found else None

    def read(self, call: Callable[[], T], version: int | None = None) -> T | None:
        """Makes a call that reads. Returns its result; None if it failed.

        Args:
            call: the call.
            version: the version that it asks for; None for the newest that the process knows.
        """
        operation = self._begin(Operation("read", self.who, *self._versions))
        if version is not None:
            operation.reading, self.evidence.at = version, version or None
        self.evidence.begin_run(None)
        try:
            return call()
        except UnsettledTimestampError:
            self.network.counts["unsettled timestamps"] += 1
        except (RetryableError, VersionExpiredError) as error:
            self.ledger.check_refused(operation, None, error)
        except ViolationError:
            raise
        except Exception as error:  # users would get it instead of rows
            raise unexpected_error(f"a read by {self.who}", error) from error
        finally:
            self.evidence.ended_us = self.network.scheduler.now_us
        return None

    @property
    def context(self) -> Context:
        """The context that background work takes."""
        return self.db._context

    @property
    def _versions(self) -> tuple[int, int]:
        """The newest version, and the newest that this process has seen."""
        return self.ledger.version, min(self.db.version, self.ledger.version)

    def _begin(self, operation: Operation) -> Operation:
        self.network.rest(self.line, self.who)
        operation.reading, operation.began_us = operation.known, self.network.scheduler.now_us
        self.line.operation, self.line.run = operation, None
        self.evidence = self.ledger.recording.begin_call(operation, self._session, operation.began_us)
        return operation

    def _judge(self, operation: Operation, call: Callable[[], Commit | None]) -> bool:
        counts = self.network.counts
        self._note(f"begins {operation.kind}")
        try:
            commit = call()
        except UnknownOutcomeError as error:
            self._note(f"{operation.kind}: {error}")
            run = self.line.run
            if not operation.faults and not (run and self.ledger.may_be_unknown(run)):
                raise unexpected_error(f"{operation}, of which nothing was lost", error) from error
            self.ledger.record_unknown(operation, error.commit_id)
            counts["unknown commits"] += 1
            counts["unknown commits that had landed"] += operation.landed_version is not None
        except EXPECTED as error:
            self._note(f"{operation.kind}: {type(error).__name__}: {error}")
            counts[f"{type(error).__name__} of {operation.kind.split()[0]}"] += 1
            self.ledger.check_refused(operation, self.line.run, error)
        except Error as error:
            raise unexpected_error(str(operation), error) from error
        else:
            self._note(f"{operation.kind}: {commit!r}")
            assert self.line.run is not None
            self.ledger.check_acknowledged(operation, self.line.run, commit)
            counts["acknowledged"] += 1
            counts["attempts lost"] += max(commit.attempts - 1, 0) if commit else 0
            self.evidence.acknowledged = True
            return True
        finally:
            self.evidence.ended_us = self.network.scheduler.now_us
        return False

    def _note(self, what: str) -> None:
        self.network.trace.note(self.network.scheduler.now_us, self.who, what)

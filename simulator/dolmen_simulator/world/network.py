"""The network of a history: its seed decides how long requests travel, their fates, and when processes stall.

The store itself is the server, which has no faults. The network also reports to the ledger what is sent, lands and is
removed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from dolmen.format.layout import POINTER
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.ledger import CommitLedger
from dolmen_simulator.judge.model import Operation, OperationRun
from dolmen_simulator.judge.stored import messages_in
from dolmen_simulator.world.fates import Answer, Crash, Fate, Refusal, StoreRequest, Verb, Wire
from dolmen_simulator.world.scheduler import Scheduler, Stopped
from dolmen_simulator.world.server import RepeatedCompletion, Server
from dolmen_simulator.world.trace import Trace

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
_INTERESTING = 2.0  # faults strike puts of the pointer more often by this factor
_LATEST_US = 13 * MINUTE_US  # S3 refuses what was signed 15 minutes ago, and the way here may take one

_SET_CLOCK = 0.2  # probability that a local clock which stood still is set before a request

_LASTS = 0.2  # probability that a lost answer begins an outage

_OUTAGES = (Fate.REQUEST_LOST, Fate.UNREACHABLE, Fate.THROTTLED)
_SILENT = (Fate.REQUEST_LOST, Fate.RESPONSE_LOST, Fate.LATE)
_LASTING = {**dict.fromkeys(_SILENT, Fate.REQUEST_LOST), Fate.THROTTLED_AFTER: Fate.UNREACHABLE}
_CHANGED_UNHEARD = (Fate.RESPONSE_LOST, Fate.CRASH_AFTER, Fate.THROTTLED_AFTER, Fate.LATE)
_UNKNOWN = (Fate.REQUEST_LOST, Fate.RESPONSE_LOST, Fate.LATE, Fate.THROTTLED, Fate.THROTTLED_AFTER)

_Table: TypeAlias = list[tuple[float, Fate]]


@dataclass(frozen=True)
class Faults:
    """Probabilities of each kind of fault, per request.

    Args:
        crash: the process dies, half before the effect, half after it.
        lost: no answer; half of the requests arrived.
        late: no answer, and the request arrives later, up to 13 minutes.
        double: the request arrives twice: half at once, answered by the second; half once more later.
        throttled: 503 or 500; half of the requests had their effect.
        conflict: 409: nothing has happened.
        unreachable: no connection.
        outage: the process gets no answers, no connection or only 503 for a while.
        stall: the process stalls for minutes.
        jump: its local clock jumps.
        rest: the process rests for minutes before a call, not per request. Its machine may be frozen: then its clocks
            stand still. The local one is set when it continues, or after some requests.
    """

    crash: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    double: float = 0.0
    throttled: float = 0.0
    conflict: float = 0.0
    unreachable: float = 0.0
    outage: float = 0.0
    stall: float = 0.0
    jump: float = 0.0
    rest: float = 0.0


@dataclass
class Line:
    """The connection of one process to the network. After a crash every further request crashes again.

    Each of several threads of a process has one, too, for its own calls; all else is that of the process.

    Args:
        random: random source of the actor in all its lives, so that the fates of its requests do not depend on others.
        operation: the current operation.
        run: the current run of that operation.
        process: the line of its process; None if this is that line.
        threads: the lines of the threads of this process, by the names of their tasks.
        parked: what its threads wait for.
        frozen_us: how long its machine was frozen, which its monotonic clock does not show.
        clock_behind_us: how much of that its local clock does not show yet.
    """

    random: random.Random
    operation: Operation | None = None
    run: OperationRun | None = None
    process: Line | None = None
    threads: dict[str, Line] = field(default_factory=dict)
    parked: set[object] = field(default_factory=set)
    dead: bool = False
    fate: Fate = Fate.OK
    outage: Fate = Fate.OK
    outage_until_us: int = 0
    clock_jump_us: int = 0
    frozen_us: int = 0
    clock_behind_us: int = 0

    @property
    def whole(self) -> Line:
        """The line of the whole process."""
        return self.process or self

    @property
    def beside(self) -> list[Line]:
        """The lines of all threads of the process, which commit together; this one alone if there are no others."""
        return list(self.process.threads.values()) if self.process else [self]


@dataclass
class _Rates:
    """Cumulative probabilities of fates, by kind of request."""

    reads: _Table = field(default_factory=list)
    writes: _Table = field(default_factory=list)
    conditional: _Table = field(default_factory=list)


class Network(Wire):
    """The store, its clock, time, faults and ledger, which all processes share.

    Args:
        scheduler: virtual time.
        rng: random source of the server's clock and behaviour.
        faults: probabilities of faults.
        counts: counts of events.
        trace: record of events.
    """

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, faults: Faults, counts: Counter[str], trace: Trace
    ) -> None:
        self.scheduler, self.random, self.faults, self.counts, self.trace = scheduler, rng, faults, counts, trace
        self.without: frozenset[str] = frozenset()
        self.steps = 0
        self.step_limit = 0
        self.server_off_us = 0
        self.bucket = MemoryBucket(self.server_clock_us, "simulation")
        self.server = Server(
            self.bucket, self, page=rng.choice((10, 30, 100)), repeated=rng.choice(tuple(RepeatedCompletion))
        )
        self.ledger = CommitLedger(self.bucket, counts)
        self.lines: dict[str, Line] = {}
        self._belated = ""
        self._streams: dict[str, random.Random] = {}
        self._seed = rng.getrandbits(64)
        self._rates = _rates(faults)

    def connect(self, who: str) -> Line:
        """Makes the line of an actor's next life."""
        stream = self._streams.setdefault(who, random.Random(f"{self._seed} {who}"))
        line = self.lines[who] = Line(stream)
        return line

    def line(self, who: str) -> Line:
        """The line of a process, or of that of its threads which makes the present call."""
        line = self.lines[who]
        return line.threads.get(self.scheduler.current.name, line) if line.threads else line

    def server_clock_us(self) -> int:
        """The time on the server's clock."""
        return self.scheduler.now_us + self.server_off_us

    def sleep(self, who: str, seconds: float) -> None:
        """Sleeps between two attempts of a process; now and then it wakes up much later."""
        line = self.line(who)
        self._pause(line, round(seconds * 1e6))
        if line.random.random() < self.faults.stall:
            self.trace.note(self.scheduler.now_us, who, "oversleeps")
            self._stall(line, 60 * MINUTE_US)

    def rest(self, line: Line, who: str) -> None:
        """Lets a process that has one thread rest, now and then, before it makes a call."""
        if line.threads or line.process or line.random.random() >= self.faults.rest:
            return
        duration_us = line.random.randint(10 * SECOND_US, 4 * MINUTE_US)
        kind = line.random.choice(("rests", "is frozen", "is frozen with all its clocks"))
        self.trace.note(self.scheduler.now_us, who, kind)
        self.counts[f"process {kind}"] += 1
        self._pause(line, duration_us)
        line.frozen_us += duration_us if kind != "rests" else 0
        line.clock_behind_us += duration_us if kind == "is frozen with all its clocks" else 0

    # ---- fates of requests -------------------------------------------------------------------------------------------

    def step(self, request: StoreRequest) -> Fate:
        """Lets the travel time pass, then draws the request's fate."""
        line = self.line(request.who)
        if not line.whole.dead:
            self._sent(line, request)
        return self.deal(request)

    def deal(self, request: StoreRequest) -> Fate:
        """Draws the fate of a request, without recording it as part of a commit."""
        line = self.line(request.who)
        if line.whole.dead:
            raise Crash
        if line.whole.clock_behind_us and line.random.random() < _SET_CLOCK:
            line.whole.clock_behind_us = 0
        if self.steps >= self.step_limit:
            raise Stopped  # code that gives up may still clean up
        self._count()
        self._pause(line, _travel_us(line.random))
        fate = line.fate = self._fate(line, request)
        if fate is not Fate.OK:
            self._note(line, request, fate)
        if fate in (Fate.CRASH_BEFORE, Fate.CRASH_AFTER):
            line.whole.dead = True
        return fate

    def _pause(self, line: Line, delay_us: int) -> None:
        """Lets time pass for a process, of which another thread may end it."""
        self.scheduler.pause(delay_us)
        if line.whole.dead:
            raise Crash

    def wait_for_timeout(self, request: StoreRequest) -> None:
        """Waits shortly for a lost connection, or half a minute for an answer that never comes."""
        line = self.line(request.who)
        rng = line.random
        self._pause(line, rng.randint(10_000, 2 * SECOND_US if rng.random() < 0.5 else 30 * SECOND_US))

    def deliver_later(self, request: StoreRequest, arrive: Callable[[], object]) -> None:
        """Lets a request arrive seconds or minutes later."""
        line = self.line(request.who)
        what = "late" if line.fate is Fate.LATE else "double"
        delay_us = line.random.randint(1_000, 3 * SECOND_US if line.random.random() < 0.7 else _LATEST_US)

        def belated() -> None:
            self._belated = what
            try:
                arrive()
            finally:
                self._belated = ""

        self.scheduler.after(delay_us, belated)

    def keys_not_removed(self, request: StoreRequest) -> Collection[str]:
        """Draws keys that fail by themselves; for a delete without an answer, also all keys from one on."""
        line, keys = self.lines[request.who], request.keys
        end = len(keys)
        if line.fate in _CHANGED_UNHEARD:
            end = line.random.randint(0, end)
        chance = (self.faults.throttled + self.faults.lost) / 2
        spared = tuple(key for index, key in enumerate(keys) if index >= end or line.random.random() < chance)
        self.counts["keys not deleted"] += len(spared) - (len(keys) - end)
        return spared

    # ---- reports to the ledger ---------------------------------------------------------------------------------------

    def before_removal(self, key: str) -> None:
        """Checks the removal of an object. Raises ViolationError."""
        try:
            self.ledger.retention.check_delete(key, self.server_clock_us())
            self.ledger.publications.check_delete(key, self.server_clock_us())
        except BaseException as error:  # production code may raise another one on its way out
            self.scheduler.fail(error)
            raise

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        """Records an answer; a pointer that has landed is a version. Raises ViolationError."""
        now_us, belated = self.scheduler.now_us, self._belated
        refused, pointer = isinstance(answer, Refusal), request.key == POINTER and request.verb is Verb.PUT
        result = str(answer) if refused else "ok"
        self.trace.step(
            now_us, request.who, request.verb.value, request.subject, f"{belated}: {result}" if belated else result
        )
        if refused:
            self.counts["conflicts"] += pointer and not belated and self.lines[request.who].fate is Fate.OK
            return
        if belated and request.verb in (Verb.PUT, Verb.COMPLETE_UPLOAD):
            self.counts[f"{belated} landings"] += 1
            self.counts[f"{belated} landings of a pointer"] += pointer
        if request.verb is Verb.DELETE:
            self.counts["late deletes"] += bool(belated)
        elif request.verb is Verb.COMPLETE_UPLOAD:
            self.counts["uploads completed"] += 1
        committed = False
        if request.verb is Verb.PUT:
            try:
                self.ledger.publications.record_put(request.key, self.server_clock_us())
                committed = pointer and self.ledger.record_pointer(request.body, now_us)
            except BaseException as error:
                self.scheduler.fail(error)
                raise
        if committed:
            run = self.ledger.chain[-1].run
            assert run is not None
            self.trace.commit(now_us, self.ledger.version, run)

    def _sent(self, line: Line, request: StoreRequest) -> None:
        run, verb = line.run, request.verb
        if verb not in (Verb.PUT, Verb.CREATE_UPLOAD):
            return
        runs = [each.run for each in line.beside if each.run]
        for each in _members(runs, run, request):
            if each.first_put is None:
                each.first_put = self.ledger.version
            each.puts(request.key)
        if run is not None and request.key.startswith("segment/") and run.operation.kind != "merge":
            self.ledger.spilled_segments.add(request.key)
        if request.key == POINTER:
            self.ledger.record_sent(request.body, run, runs)

    # ---- random decisions --------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Counts a request; ends the history at the limit."""
        self.steps += 1
        if self.steps >= self.step_limit:
            self.scheduler.stop()
        if self.random.random() < 0.01:
            self.server_off_us = self.random.randint(-20 * SECOND_US, 20 * SECOND_US)

    def _fate(self, line: Line, request: StoreRequest) -> Fate:
        faults, verb, rng = self.faults, request.verb, line.random
        pointer = verb is Verb.PUT and request.key == POINTER
        chance = rng.random()
        if pointer:
            chance /= _INTERESTING
        if (chance := chance - faults.stall) < 0:
            self.trace.note(self.scheduler.now_us, request.who, "stands still")
            self._stall(line, _LATEST_US if pointer else 60 * MINUTE_US)
            return Fate.OK
        if (chance := chance - faults.jump) < 0:
            line.whole.clock_jump_us = rng.randint(-600 * MINUTE_US, 600 * MINUTE_US)
            return Fate.OK
        if (chance := chance - faults.outage) < 0:
            self._cut(line, rng.choice(_OUTAGES))
        if self.scheduler.now_us < line.whole.outage_until_us:
            outage = line.whole.outage
            return rng.choice(_SILENT) if outage is Fate.REQUEST_LOST and not verb.reads else outage
        table = self._rates
        for limit, fate in table.reads if verb.reads else table.conditional if verb.conditional else table.writes:
            if chance < limit:
                if faults.outage and fate in _LASTING and not verb.reads and rng.random() < _LASTS:
                    self._cut(line, _LASTING[fate])
                return fate
        return Fate.OK

    def _cut(self, line: Line, outage: Fate) -> None:
        """Begins an outage of a process."""
        line.whole.outage = outage
        longest_us = MINUTE_US // 6 if outage is Fate.THROTTLED else 6 * MINUTE_US  # answers come at once
        line.whole.outage_until_us = self.scheduler.now_us + line.random.randint(SECOND_US, longest_us)
        self.counts["outages"] += 1

    def _stall(self, line: Line, longest_us: int) -> None:
        self.counts["stalls"] += 1
        self._pause(line, line.random.randint(MINUTE_US, longest_us))

    def _note(self, line: Line, request: StoreRequest, fate: Fate) -> None:
        name = fate.name.lower().replace("_", " ")
        self.trace.step(self.scheduler.now_us, request.who, request.verb.value, request.subject, name)
        self.counts[name] += 1
        for each in line.beside:
            if each.operation is not None:
                each.operation.faults += 1
        if request.verb is Verb.PUT and fate in _UNKNOWN:
            self.counts["unknown outcomes"] += 1
            self.counts["unknown outcomes of a pointer"] += request.key == POINTER
        elif request.verb is Verb.DELETE and fate in _UNKNOWN:
            self.counts["deletes without answer"] += 1


def _members(runs: Sequence[OperationRun], own: OperationRun | None, request: StoreRequest) -> list[OperationRun]:
    """The runs that an object is put for: of a manifest those of all threads whose changes it has."""
    told = messages_in(request.body) if len(runs) > 1 and request.key.startswith("manifest/") else []
    return [each for each in runs if each is own or each.operation.message in told]


def _travel_us(rng: random.Random) -> int:
    """Draws the travel time of a request; now and then it is seconds."""
    chance = rng.random()
    if chance < 0.93:
        return rng.randint(1_000, 40_000)
    return rng.randint(40_000, 1_500_000) if chance < 0.995 else rng.randint(SECOND_US, MINUTE_US)


def _rates(faults: Faults) -> _Rates:
    reads = (
        (Fate.CRASH_BEFORE, faults.crash / 2),
        (Fate.REQUEST_LOST, faults.lost / 2),
        (Fate.THROTTLED, faults.throttled / 2),
        (Fate.UNREACHABLE, faults.unreachable),
    )
    writes = (
        (Fate.CRASH_BEFORE, faults.crash / 2),
        (Fate.CRASH_AFTER, faults.crash / 2),
        (Fate.REQUEST_LOST, faults.lost / 2),
        (Fate.RESPONSE_LOST, faults.lost / 2),
        (Fate.LATE, faults.late),
        (Fate.DOUBLED, faults.double / 2),
        (Fate.DOUBLED_LATER, faults.double / 2),
        (Fate.THROTTLED, faults.throttled / 2),
        (Fate.THROTTLED_AFTER, faults.throttled / 2),
        (Fate.UNREACHABLE, faults.unreachable),
    )
    return _Rates(_table(reads), _table(writes), _table((*writes, (Fate.CONFLICT, faults.conflict))))


def _table(rates: Collection[tuple[Fate, float]]) -> _Table:
    limits = accumulate(rate for _, rate in rates)
    return [(limit, fate) for limit, (fate, _) in zip(limits, rates, strict=True)]

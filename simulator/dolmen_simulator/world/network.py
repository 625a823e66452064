"""The wire of a history: its seed says how long requests travel, what becomes of them, and when processes stand still.

What the store itself does is the server's business, which is never wrong. Here is also where the ledger hears of all
that is sent, has landed and is removed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from dolmen.format.layout import POINTER
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.ledger import CommitLedger
from dolmen_simulator.judge.model import Operation, OperationRun
from dolmen_simulator.world.fates import Answer, Crash, Fate, Refusal, StoreRequest, Verb, Wire
from dolmen_simulator.world.scheduler import Scheduler, Stopped
from dolmen_simulator.world.server import RepeatedCompletion, Server
from dolmen_simulator.world.trace import Trace

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
_INTERESTING = 2.0  # so much more often does something happen to a put of the pointer
_LATEST_US = 13 * MINUTE_US  # S3 refuses what was signed 15 minutes ago, and the way here may take one

_LASTS = 0.2  # so often does what cuts an answer off go on for a while

_OUTAGES = (Fate.REQUEST_LOST, Fate.UNREACHABLE, Fate.THROTTLED)
_SILENT = (Fate.REQUEST_LOST, Fate.RESPONSE_LOST, Fate.LATE)
_LASTING = {**dict.fromkeys(_SILENT, Fate.REQUEST_LOST), Fate.THROTTLED_AFTER: Fate.UNREACHABLE}
_CHANGED_UNHEARD = (Fate.RESPONSE_LOST, Fate.CRASH_AFTER, Fate.THROTTLED_AFTER, Fate.LATE)
_UNKNOWN = (Fate.REQUEST_LOST, Fate.RESPONSE_LOST, Fate.LATE, Fate.THROTTLED, Fate.THROTTLED_AFTER)

_Table: TypeAlias = list[tuple[float, Fate]]


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong, per request: probabilities.

    Args:
        crash: the process dies, half before the effect, half after it.
        lost: no answer; half of the requests arrived.
        late: no answer, and the request arrives later, up to 13 minutes.
        double: the request arrives twice: half at once, answered by the second; half once more later.
        throttled: 503 or 500; half of the requests had their effect.
        conflict: 409: nothing has happened.
        unreachable: no connection.
        outage: from here on the process gets no answers, no connection or only 503 for a while.
        stall: the process stands still for minutes.
        jump: its local clock jumps.
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


@dataclass
class Line:
    """One process's end of the wire. Once it has crashed every request crashes again.

    Args:
        random: of the actor, in all its lives: what becomes of its requests does not depend on who else takes part.
        operation: what it is doing.
        run: and the run of that.
    """

    random: random.Random
    operation: Operation | None = None
    run: OperationRun | None = None
    dead: bool = False
    fate: Fate = Fate.OK
    outage: Fate = Fate.OK
    outage_until_us: int = 0
    clock_jump_us: int = 0


@dataclass
class _Rates:
    """By kind of request, from which number on the seed's die means which fate."""

    reads: _Table = field(default_factory=list)
    writes: _Table = field(default_factory=list)
    conditional: _Table = field(default_factory=list)


class Network(Wire):
    """What all processes share: the store, its clock, time, faults, and the account of what happened.

    Args:
        rng: what is nobody's own: the server's clock and habits.
        faults: how often what goes wrong.
        counts: what happened how often.
        trace: what happened.
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
        """The line of an actor's next life."""
        stream = self._streams.setdefault(who, random.Random(f"{self._seed} {who}"))
        line = self.lines[who] = Line(stream)
        return line

    def server_clock_us(self) -> int:
        """The clock of the server that answers."""
        return self.scheduler.now_us + self.server_off_us

    def sleep(self, who: str, seconds: float) -> None:
        """What a process does between two attempts; now and then it wakes up much later."""
        line = self.lines[who]
        self.scheduler.pause(round(seconds * 1e6))
        if line.random.random() < self.faults.stall:
            self.trace.note(self.scheduler.now_us, who, "oversleeps")
            self._stall(line, 60 * MINUTE_US)

    # ---- what becomes of requests ------------------------------------------------------------------------------------

    def step(self, request: StoreRequest) -> Fate:
        """Time goes by on the way there, and then the seed says what becomes of it."""
        line = self.lines[request.who]
        if not line.dead:
            self._sent(line, request)
        return self.deal(request)

    def deal(self, request: StoreRequest) -> Fate:
        """The same for a request to another store than the database's."""
        line = self.lines[request.who]
        if line.dead:
            raise Crash
        if self.steps >= self.step_limit:
            raise Stopped  # what gives up on its way out may still want to clean up
        self._count()
        self.scheduler.pause(_travel_us(line.random))
        fate = line.fate = self._fate(line, request)
        if fate is not Fate.OK:
            self._note(line, request, fate)
        if fate in (Fate.CRASH_BEFORE, Fate.CRASH_AFTER):
            line.dead = True
        return fate

    def wait_for_timeout(self, request: StoreRequest) -> None:
        """A lost connection shows soon, an answer that never comes after half a minute."""
        rng = self.lines[request.who].random
        self.scheduler.pause(rng.randint(10_000, 2 * SECOND_US if rng.random() < 0.5 else 30 * SECOND_US))

    def deliver_later(self, request: StoreRequest, arrive: Callable[[], object]) -> None:
        """Seconds, or minutes."""
        line = self.lines[request.who]
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
        """Some keys may fail by themselves; of a delete that nobody hears of, all from one on."""
        line, keys = self.lines[request.who], request.keys
        end = len(keys)
        if line.fate in _CHANGED_UNHEARD:
            end = line.random.randint(0, end)
        chance = (self.faults.throttled + self.faults.lost) / 2
        spared = tuple(key for index, key in enumerate(keys) if index >= end or line.random.random() < chance)
        self.counts["keys not deleted"] += len(spared) - (len(keys) - end)
        return spared

    # ---- what the ledger hears of ------------------------------------------------------------------------------------

    def before_removal(self, key: str) -> None:
        """Judges it. Raises ViolationError."""
        try:
            self.ledger.retention.check_delete(key, self.server_clock_us())
        except BaseException as error:  # production code may raise another one on its way out
            self.scheduler.fail(error)
            raise

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        """Takes note of it; a pointer that has landed is a version. Raises ViolationError."""
        now_us, belated = self.scheduler.now_us, self._belated
        refused, pointer = isinstance(answer, Refusal), request.key == POINTER and request.verb is Verb.PUT
        told = str(answer) if refused else "ok"
        self.trace.step(
            now_us, request.who, request.verb.value, request.subject, f"{belated}: {told}" if belated else told
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
        if pointer:
            try:
                self.ledger.record_version(request.body, now_us)
            except BaseException as error:
                self.scheduler.fail(error)
                raise
            run = self.ledger.chain[-1].run
            assert run is not None
            self.trace.commit(now_us, self.ledger.version, run)

    def _sent(self, line: Line, request: StoreRequest) -> None:
        run, verb = line.run, request.verb
        if verb not in (Verb.PUT, Verb.CREATE_UPLOAD):
            return
        if run is not None:
            if run.first_put is None:
                run.first_put = self.ledger.version
            run.puts(request.key)
            if request.key.startswith("segment/") and run.operation.kind != "merge":
                self.ledger.spilled_segments.add(request.key)
        if request.key == POINTER:
            self.ledger.record_sent(request.body, run)

    # ---- the seed's decisions ----------------------------------------------------------------------------------------

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
            line.clock_jump_us = rng.randint(-600 * MINUTE_US, 600 * MINUTE_US)
            return Fate.OK
        if (chance := chance - faults.outage) < 0:
            self._cut(line, rng.choice(_OUTAGES))
        if self.scheduler.now_us < line.outage_until_us:
            if line.outage is Fate.REQUEST_LOST and not verb.reads:
                return rng.choice(_SILENT)
            return line.outage
        table = self._rates
        for limit, fate in table.reads if verb.reads else table.conditional if verb.conditional else table.writes:
            if chance < limit:
                if faults.outage and fate in _LASTING and not verb.reads and rng.random() < _LASTS:
                    self._cut(line, _LASTING[fate])
                return fate
        return Fate.OK

    def _cut(self, line: Line, outage: Fate) -> None:
        """From here on the process is cut off for a while."""
        line.outage = outage
        longest_us = MINUTE_US // 6 if outage is Fate.THROTTLED else 6 * MINUTE_US  # answers come at once
        line.outage_until_us = self.scheduler.now_us + line.random.randint(SECOND_US, longest_us)
        self.counts["outages"] += 1

    def _stall(self, line: Line, longest_us: int) -> None:
        self.counts["stalls"] += 1
        self.scheduler.pause(line.random.randint(MINUTE_US, longest_us))

    def _note(self, line: Line, request: StoreRequest, fate: Fate) -> None:
        told = fate.name.lower().replace("_", " ")
        self.trace.step(self.scheduler.now_us, request.who, request.verb.value, request.subject, told)
        self.counts[told] += 1
        if line.operation is not None:
            line.operation.faults += 1
        if request.verb is Verb.PUT and fate in _UNKNOWN:
            self.counts["unknown outcomes"] += 1
            self.counts["unknown outcomes of a pointer"] += request.key == POINTER
        elif request.verb is Verb.DELETE and fate in _UNKNOWN:
            self.counts["deletes without answer"] += 1


def _travel_us(rng: random.Random) -> int:
    """How long a request takes to arrive; now and then, seconds."""
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

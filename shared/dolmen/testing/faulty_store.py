"""A process's view of the shared bucket through a network that loses, delays, doubles and refuses.

Every verb is one step of the history: time goes by, others come in, and then the seed says what becomes of it. What
the store itself does (each verb atomic, conditions judged when a put ARRIVES) is MemoryStore's; nothing here makes
the store lie about what it holds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from dolmen.errors import StoreUnavailableError
from dolmen.format.layout import POINTER
from dolmen.runtime import Runtime
from dolmen.store.base import Buffer, Deleted, Object, ObjectInfo, PutOutcome, Stored, Unknown
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.testing.ledger import Ledger
from dolmen.testing.model import Operation, Run
from dolmen.testing.scheduler import Scheduler
from dolmen.testing.trace import Trace

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
_INTERESTING = 2.0  # so much more often does something happen to a put of the pointer
_LATEST_US = 13 * MINUTE_US  # S3 refuses what was signed 15 minutes ago, and the way here may take one


class Crash(BaseException):
    """The process dies here. No production code may catch it."""


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong, per verb: probabilities.

    Args:
        crash: the process dies, half before the effect, half after it.
        lost: no answer; half of the puts landed.
        late: no answer, and the put (or delete) arrives later, up to 13 minutes.
        double: the put arrives twice: half at once, answered by the second; half once more later.
        refused: 409 or 503 to the end of the client's patience: nothing landed.
        outage: from here on the process gets no answers for a while.
        stall: the process stands still for minutes.
        jump: its local clock jumps.
    """

    crash: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    double: float = 0.0
    refused: float = 0.0
    outage: float = 0.0
    stall: float = 0.0
    jump: float = 0.0


class Network:
    """What all processes share: the bucket, its clock, time, faults, and the account of what happened."""

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, faults: Faults, counts: Counter[str], trace: Trace
    ) -> None:
        self.scheduler, self.random, self.faults, self.counts, self.trace = scheduler, rng, faults, counts, trace
        self.steps = 0
        self.without: frozenset[str] = frozenset()
        self.step_limit = 0
        self.server_off_us = 0
        self.whole_seconds = rng.random() < 0.5
        self.page = rng.choice((20, 100, 1_000))
        self.bucket = MemoryBucket(self.server_clock_us, "simulation")
        self.ledger = Ledger(self.bucket, counts)
        self._wire = MemoryStore(self.bucket, Runtime(clock_us=lambda: 0, monotonic=lambda: 0.0))

    def server_clock_us(self) -> int:
        """The ``Date`` of an answer: some server's clock, often in whole seconds as HTTP has it."""
        now_us = self.scheduler.now_us + self.server_off_us
        return now_us - now_us % SECOND_US if self.whole_seconds else now_us

    def step(self) -> None:
        """Counts a verb; ends the history at the limit."""
        self.steps += 1
        if self.steps >= self.step_limit:
            self.scheduler.stop()
        if self.random.random() < 0.01:
            self.server_off_us = self.random.randint(-20 * SECOND_US, 20 * SECOND_US)

    def travel_us(self) -> int:
        """How long a request takes to arrive; now and then, seconds."""
        chance = self.random.random()
        if chance < 0.93:
            return self.random.randint(1_000, 40_000)
        return self.random.randint(40_000, 1_500_000) if chance < 0.995 else self.random.randint(SECOND_US, MINUTE_US)

    def delay_us(self) -> int:
        """How late a late put is."""
        return self.random.randint(1_000, 3 * SECOND_US if self.random.random() < 0.7 else _LATEST_US)

    def arrive_later(self, who: str, key: str, body: bytes, if_match: str | None, what: str) -> None:
        """Sends a put on a long way."""

        def arrive() -> None:
            outcome = self._wire.put(key, body, if_match=if_match)
            self.trace.step(self.scheduler.now_us, who, "put", key, f"{what}: {type(outcome).__name__}")
            if isinstance(outcome, Stored):
                self.counts[f"{what} landings"] += 1
                if key == POINTER:
                    self.counts[f"{what} landings of a pointer"] += 1
            self.arrived(key, body, outcome)

        self.scheduler.after(self.delay_us(), arrive)

    def delete_later(self, who: str, keys: Sequence[str]) -> None:
        """Sends a delete on a long way."""

        def arrive() -> None:
            self.trace.step(self.scheduler.now_us, who, "delete", " ".join(keys), "late")
            self.counts["late deletes"] += 1
            for key in keys:
                self.delete(key)

        self.scheduler.after(self.delay_us(), arrive)

    def delete(self, key: str) -> None:
        """Removes an object, if it may go. Raises ViolationError."""
        self.ledger.retention.deleting(key, self.server_clock_us())
        self.bucket.objects.pop(key, None)

    def arrived(self, key: str, body: bytes, outcome: PutOutcome) -> None:
        """Takes note of a put's true outcome."""
        if key == POINTER and isinstance(outcome, Stored):
            self.ledger.landed(body, self.scheduler.now_us)
            run = self.ledger.chain[-1].run
            assert run is not None
            self.trace.commit(self.scheduler.now_us, self.ledger.version, run)


class FaultyStore(MemoryStore):
    """One process's client. Once it has crashed every verb crashes again."""

    def __init__(self, network: Network, who: str, runtime: Runtime) -> None:
        super().__init__(network.bucket, runtime)
        self._network, self._who = network, who
        self._dead = False
        self._outage_until_us = 0
        self.operation: Operation | None = None
        self.run: Run | None = None
        self.clock_jump_us = 0

    # ---- verbs -------------------------------------------------------------------------------------------------------

    def get(
        self,
        key: str,
        byte_range: tuple[int, int] | None = None,
        *,
        etag: str | None = None,
        version: str | None = None,
    ) -> Object:
        self._before("get", key)
        found = super().get(key, byte_range, etag=etag, version=version)
        self._read("get", key)
        return found

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        self._before("head", key)
        found = super().head(key, version=version)
        self._read("head", key)
        return found

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Page by page: others come in between, and any page may get no answer."""
        while True:
            self._before("list", prefix)
            page = list(islice(super().list(prefix, start_after), self._network.page))
            self._read("list", prefix)
            yield from page
            if len(page) < self._network.page:
                return
            start_after = page[-1].key

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        """Any part of it may have happened when the process dies or gets no answer; each key may fail by itself."""
        what = " ".join(keys)
        fate = self._before("delete", what)
        network, faults = self._network, self._network.faults
        if network.scheduler.now_us < self._outage_until_us:
            fate = network.random.random() * (faults.lost + faults.late)
        if (fate := fate - faults.late) < 0:
            network.delete_later(self._who, keys)
            raise self._no_answer("delete", what, "late")
        sound = len(keys)
        crash = network.random.random() * 2 < faults.crash
        if crash or (fate := fate - faults.lost) < 0:
            sound = network.random.randint(0, sound)
        done: list[Deleted] = []
        for key in keys[:sound]:
            refused = network.random.random() * 2 < faults.refused + faults.lost
            network.counts["keys not deleted"] += refused
            if not refused:
                network.delete(key)
            done.append(Deleted(key, "InternalError" if refused else None))
        if crash:
            self._crash("after", "delete", what)
        if sound < len(keys):
            raise self._no_answer("delete", what, "answer lost")
        self._note("delete", what, f"{sum(each.error is None for each in done)} gone")
        self._now()
        return done

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        content = bytes(body)
        if self.run is not None and self.run.first_put is None:
            self.run.first_put = self._network.ledger.version
        if self.run is not None:
            self.run.puts(key)
            if key.startswith("segment/") and self.run.operation.kind != "merge":
                self._network.ledger.spilled.add(key)
        if key == POINTER:
            self._network.ledger.sent(content, self.run)
        fate = self._before("put", key)
        network, faults = self._network, self._network.faults
        if network.scheduler.now_us < self._outage_until_us:
            fate = network.random.random() * (faults.lost + faults.late + faults.refused)
        if (fate := fate - faults.lost) < 0:
            if network.random.random() < 0.5:
                return self._unknown("put", key, "request lost")
            self._perform(key, content, if_match)
            return self._unknown("put", key, "response lost")
        if (fate := fate - faults.late) < 0:
            network.arrive_later(self._who, key, content, if_match, "late")
            return self._unknown("put", key, "late")
        if (fate := fate - faults.refused) < 0:
            self._fault("refused")
            self._note("put", key, "refused")
            raise StoreUnavailableError(f"409 or 503 for {key}")
        if doubled := (fate := fate - faults.double) < 0:
            if network.random.random() < 0.5:
                self._fault("doubled at once")
                self._perform(key, content, if_match)
            else:
                self._fault("doubled later")
                network.arrive_later(self._who, key, content, if_match, "double")
        outcome = self._perform(key, content, if_match)
        if network.random.random() * 2 < faults.crash:
            self._crash("after", "put", key)
        self._note("put", key, type(outcome).__name__)
        if key == POINTER and not doubled and not isinstance(outcome, Stored):
            network.counts["conflicts"] += 1
        return outcome

    # ---- what happens to them ----------------------------------------------------------------------------------------

    def _perform(self, key: str, content: bytes, if_match: str | None) -> PutOutcome:
        outcome = super().put(key, content, if_match=if_match)
        self._network.arrived(key, content, outcome)
        return outcome

    def _before(self, verb: str, key: str) -> float:
        """One step: time goes by on the way there. Returns where the seed's die fell, for the verb to use."""
        network = self._network
        if self._dead:
            raise Crash
        network.step()
        network.scheduler.pause(network.travel_us())
        faults, chance = network.faults, network.random.random()
        if verb == "put" and key == POINTER:
            chance /= _INTERESTING
        if (chance := chance - faults.stall) < 0:
            self._note(verb, key, "stalls")
            network.counts["stalls"] += 1
            longest_us = _LATEST_US if key == POINTER else 60 * MINUTE_US
            network.scheduler.pause(network.random.randint(MINUTE_US, longest_us))
        elif (chance := chance - faults.jump) < 0:
            self.clock_jump_us = network.random.randint(-600 * MINUTE_US, 600 * MINUTE_US)
        elif (chance := chance - faults.outage) < 0:
            self._outage_until_us = network.scheduler.now_us + network.random.randint(SECOND_US, 6 * MINUTE_US)
            network.counts["outages"] += 1
        elif (chance := chance - faults.crash / 2) < 0:
            self._crash("before", verb, key)
        return chance if chance >= 0 else 1.0

    def _read(self, verb: str, key: str) -> None:
        """What becomes of the answer to a read: clients retry these by themselves, so only rarely is it lost."""
        network = self._network
        if network.scheduler.now_us < self._outage_until_us or network.random.random() * 4 < network.faults.lost:
            raise self._no_answer(verb, key, "unavailable")
        self._note(verb, key, "ok")

    def _no_answer(self, verb: str, key: str, what: str) -> StoreUnavailableError:
        self._fault("unreadable" if verb != "delete" else "deletes without answer")
        self._note(verb, key, what)
        self._network.scheduler.pause(self._network.random.randint(SECOND_US, 20 * SECOND_US))
        return StoreUnavailableError(f"no answer for {verb} {key}")

    def _unknown(self, verb: str, key: str, what: str) -> PutOutcome:
        self._fault(what)
        self._network.counts["unknown outcomes"] += 1
        if key == POINTER:
            self._network.counts["unknown outcomes of a pointer"] += 1
        self._note(verb, key, what)
        self._network.scheduler.pause(self._network.random.randint(SECOND_US // 2, 10 * SECOND_US))
        return Unknown(what)

    def _crash(self, when: str, verb: str, key: str) -> None:
        self._dead = True
        self._network.counts[f"crashes {when}"] += 1
        self._note(verb, key, f"crashes {when}")
        raise Crash

    def _fault(self, what: str) -> None:
        self._network.counts[what] += 1
        if self.operation is not None:
            self.operation.faults += 1

    def _note(self, verb: str, key: str, what: str) -> None:
        network = self._network
        network.trace.step(network.scheduler.now_us, self._who, verb, key, what)

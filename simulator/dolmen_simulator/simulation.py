"""Runs one history: actors in a world with the faults of its seed, and all checks."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.errors import RetryableError
from dolmen.format.layout import memory_name
from dolmen.maintenance.gc.mark import manifest_keys, needed_keys, tagged_manifests
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.actors.aftermath import runtime_without_faults, tidy
from dolmen_simulator.actors.cast import ACTORS, SETTINGS, choose_kinds
from dolmen_simulator.actors.parting import erase_in_copy
from dolmen_simulator.actors.writers import Actor
from dolmen_simulator.judge.isolation import History
from dolmen_simulator.judge.layout import check_partitions
from dolmen_simulator.judge.model import user_tables
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable, violated_promise
from dolmen_simulator.judge.seen import check_all, check_memory
from dolmen_simulator.world.fates import Crash
from dolmen_simulator.world.network import MINUTE_US, SECOND_US, Faults, Network
from dolmen_simulator.world.process import Process
from dolmen_simulator.world.replay import ALL, STEADY, HistoryError, HistoryFailure, Replay, check_names
from dolmen_simulator.world.scheduler import Scheduler
from dolmen_simulator.world.trace import Trace

T = TypeVar("T")
Audit: TypeAlias = Callable[[Database, MemoryBucket, int], None]
"""Checks a version, given a database without faults and the objects."""

WEATHER: dict[str, Faults] = {
    "calm": Faults(),
    "ordinary": Faults(
        crash=0.006,
        lost=0.01,
        late=0.02,
        double=0.006,
        throttled=0.004,
        conflict=0.01,
        unreachable=0.002,
        outage=0.001,
        stall=0.0005,
        jump=0.001,
        rest=0.03,
    ),
    "lossy": Faults(
        crash=0.002, lost=0.08, late=0.02, double=0.02, throttled=0.01, conflict=0.01, outage=0.002, jump=0.001
    ),
    "late": Faults(crash=0.004, lost=0.02, late=0.10, double=0.03, outage=0.002, stall=0.004, rest=0.05),
    "crashing": Faults(crash=0.04, lost=0.01, late=0.02, double=0.01, throttled=0.004),
    "refusing": Faults(
        crash=0.004, lost=0.01, late=0.02, throttled=0.06, conflict=0.10, unreachable=0.02, outage=0.003
    ),
    "stormy": Faults(
        crash=0.015,
        lost=0.06,
        late=0.08,
        double=0.03,
        throttled=0.02,
        conflict=0.03,
        unreachable=0.01,
        outage=0.003,
        stall=0.003,
        jump=0.002,
        rest=0.05,
    ),
}
"""The probabilities of faults in a history, of which its seed chooses one set."""

_AUDIT_EVERY = 20
_IDLE_TURNS = 2_000
_AUDITS_OF_UPKEEP = 0.2
_AUDITS_AT_THE_END = 2


KINDS = (*(field.name for field in fields(Faults)), STEADY)
"""Kinds of faults that can be left out of a history."""


def named_actors(cast: Sequence[tuple[type[Actor], int]]) -> Iterator[tuple[str, type[Actor]]]:
    """Yields the actors of a cast, by name."""
    for kind, number in cast:
        for index in range(number):
            yield f"{kind.label or kind.__name__.lower()}-{index + 1}", kind


@dataclass(frozen=True)
class HistorySummary:
    """The result of a history without a violation.

    Args:
        seed: its seed.
        steps: number of its requests.
        weather: name of its probabilities of faults.
        digest: digest of its trace.
        counts: counts of events.
    """

    seed: int
    steps: int
    weather: str
    digest: str
    counts: Counter[str]


def simulate(
    seed: int,
    steps: int,
    *,
    keep: int | None = 60,
    cast: Sequence[tuple[type[Actor], int]] = ACTORS,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    faults: Faults | None = None,
    take_history: Callable[[History], None] | None = None,
    audit: Audit | None = None,
) -> HistorySummary:
    """Runs one history to its end and checks all of it.

    Args:
        seed: seed of all random numbers.
        steps: number of requests to the store.
        keep: number of trace events in an error; None for all.
        cast: kinds of actors that may take part, with their numbers.
        only: names of the actors that take part, such as ``appender-1``; None for all.
        without: kinds of faults that do not happen: names of fields of ``Faults``, ``skew``, or ``all``.
        faults: probabilities of faults; None lets the seed choose.
        take_history: takes all recorded transactions at the end, for other checkers.
        audit: checks each version that is audited, beside the simulator itself.

    Raises:
        HistoryError: something happened that must never happen; it says what, and how to replay the history.
        InputError: an actor or a kind of fault is unknown.
    """
    history = _History(seed, steps, keep, cast, only, without, faults)
    history.audit = audit
    network = history.network
    collects = gc.isenabled()
    gc.disable()  # nearly all that a history makes lives until its end
    try:
        history.run()
    except Exception as error:
        raise HistoryError(history.failure(error)) from error
    finally:
        if collects:
            gc.enable()
    if take_history:
        take_history(network.ledger.recorded_history())
    return HistorySummary(seed, network.steps, history.weather, history.trace.digest, network.counts)


class _History:
    """The world of one seed; see ``actors.World``."""

    def __init__(
        self,
        seed: int,
        steps: int,
        keep: int | None,
        cast: Sequence[tuple[type[Actor], int]],
        only: Collection[str] | None,
        without: Collection[str],
        faults: Faults | None,
    ) -> None:
        self.seed, self.steps, self.cast = seed, steps, cast
        kinds = choose_kinds(self._rng("crowd")) if cast is ACTORS else {kind for kind, _ in cast}
        self.actors = {
            name: kind for name, kind in named_actors(cast) if (kind in kinds if only is None else name in only)
        }
        check_names(only, [name for name, _ in named_actors(cast)], "actors")
        check_names(without, (*KINDS, ALL), "kinds of faults")
        self.only, self.without = only, frozenset(KINDS if ALL in without else without)
        rng = self._rng("network")
        self.weather = rng.choice(sorted(WEATHER))
        faults = faults or WEATHER[self.weather]
        faults = replace(faults, **dict.fromkeys(self.without - {STEADY}, 0.0))
        self.haste = rng.choice((1, 1, 4))
        self.scheduler, self.trace = Scheduler(), Trace(keep)
        self.network = Network(self.scheduler, rng, faults, Counter(), self.trace)
        self.network.without = self.without
        self.network.step_limit = steps
        self._quiet_until_us = 0
        self._given_out = 0
        self._asked = self._idle = 0
        self._shared: dict[Any, Any] = {}
        self._audited = 0
        self._auditor: Database | None = None
        self.audit: Audit | None = None
        self._chooser = self._rng("audits")
        self._upkeep_seen = 0
        settings = self._rng("settings")
        self.choices = SETTINGS
        self.settings = {name: settings.choice(values) for name, values in SETTINGS.items()}

    @property
    def now_us(self) -> int:
        """The time."""
        return self.scheduler.now_us

    def shared(self, kind: Callable[[], T]) -> T:
        """The instance of this kind that all actors share, made at first use."""
        if kind not in self._shared:
            self._shared[kind] = kind()
        made: T = self._shared[kind]
        return made

    def unique(self) -> int:
        """A number that was never returned before."""
        self._given_out += 1
        return self._given_out

    def run(self) -> None:
        """Runs the history and all checks."""
        for name, kind in self.actors.items():
            self._spawn(name, kind)
        self.scheduler.run()
        self.scheduler.drain(20 * MINUTE_US)
        ledger = self.network.ledger
        ledger.check_dates()
        ledger.check_unknown()
        ledger.check_isolation()
        if ledger.version:
            rng, oldest = self._rng("audit"), max(ledger.retention.horizon, 1)
            versions = {
                oldest,
                ledger.version,
                *(rng.randint(oldest, ledger.version) for _ in range(_AUDITS_AT_THE_END)),
                *ledger.retention.tagged,
            }
            for version in sorted(versions):
                self._audit(version)
            erase_in_copy(self.network, self._rng("parting"))
            ledger.publications.check_all()
            tidy(self.network, self._rng("aftermath"))
            ledger.publications.check_all()
            self._audit(ledger.version)
        self.network.counts["spills orphaned"] += len(ledger.spilled_segments - ledger.named_segments)

    def failure(self, error: Exception) -> HistoryFailure:
        """The failure of a history that an error ended."""
        never = violated_promise(error)
        reason = str(error) if isinstance(error, ViolationError) else f"{type(error).__name__}: {error}"
        self.trace.violation(self.now_us, reason)
        only = None if self.only is None else tuple(self.actors)
        without = (ALL,) if self.without == {*KINDS} else tuple(sorted(self.without))
        replay = Replay(self.seed, self.steps, only, without)
        return HistoryFailure(
            replay, never, reason, self.network.steps, self.trace.digest, self.trace.events, tuple(self.actors)
        )

    def _spawn(self, name: str, kind: type[Actor]) -> None:
        actor = kind(self, self._rng(name))
        self.scheduler.spawn(name, lambda: self._live(name, actor), actor.random.randint(0, SECOND_US // 10))

    def _live(self, name: str, actor: Actor) -> None:
        lives = 0
        while True:
            lives += 1
            try:
                process = Process(self.network, name, self._rng(f"{name} life {lives}"))
                while True:
                    actor.turn(process)
                    self._end_if_all_are_idle()
                    self._audit_now_and_then()
                    self.scheduler.pause(self._idle_us(actor))
            except Crash:
                self.scheduler.pause(actor.random.randint(SECOND_US // 10, 2 * SECOND_US))
            except RetryableError:  # the database could not be opened
                self.scheduler.pause(actor.random.randint(SECOND_US // 10, 10 * SECOND_US))

    def _end_if_all_are_idle(self) -> None:
        """Ends the history if no actor has sent a request for long: readers would wait for a writer without end."""
        self._idle = self._idle + 1 if self.network.steps == self._asked else 0
        self._asked = self.network.steps
        if self._idle > _IDLE_TURNS:
            self.scheduler.stop()

    def _idle_us(self, actor: Actor) -> int:
        """Draws an actor's idle time; now and then most actors rest, so that time passes."""
        rng, now_us = actor.random, self.scheduler.now_us
        if rng.random() < 0.01:
            self._quiet_until_us = now_us + rng.randint(MINUTE_US, 150 * MINUTE_US)
        rest_us = max(self._quiet_until_us - now_us, 0)
        if actor.restless:
            rest_us = min(rest_us, rng.randint(0, 40 * MINUTE_US))
        return rng.randint(0, SECOND_US // (4 * self.haste)) + rest_us

    def _audit_now_and_then(self) -> None:
        """Audits the newest version now and then; after background work often also its version and an old one."""
        ledger, rng = self.network.ledger, self._chooser
        if ledger.version - self._audited >= _AUDIT_EVERY:
            self._audited = ledger.version
            self._audit(ledger.version)
        if ledger.upkeep_version > self._upkeep_seen:
            self._upkeep_seen = ledger.upkeep_version
            if rng.random() < _AUDITS_OF_UPKEEP:
                oldest = max(ledger.retention.horizon, 1)
                self._audit(max(self._upkeep_seen, oldest))
                self._audit(rng.randint(oldest, ledger.version) if rng.random() < 0.5 else oldest)

    def _audit(self, version: int) -> None:
        """Reads a version through production code without any faults, and compares it with the model."""
        if self._auditor is None:
            runtime = runtime_without_faults(self.network, self._rng("auditor"))
            self._auditor = Database(MemoryStore(self.network.bucket, runtime), runtime)
        with raising_unreadable(f"version {version}"):
            self._read_all(self._auditor, version)
        if self.audit is not None:
            self.audit(self._auditor, self.network.bucket, version)
        self.network.counts["versions audited"] += 1

    def _read_all(self, auditor: Database, version: int) -> None:
        ledger, snapshot = self.network.ledger, auditor.at(version=version)
        state = ledger.visible_state(version, ledger.version)
        if version == ledger.version:
            self._compare_references(auditor)
        there = snapshot.tables()
        if user_tables(there) != sorted(state):
            raise ViolationError(Never.LOST, f"version {version} shows tables {there}, not {sorted(state)}")
        for name, rows in state.items():
            data = snapshot.table(name).scan(with_commit_ts=True).to_arrow()
            check_all(ledger, data, version, name, f"version {version}", ledger.version)
            files = check_partitions(snapshot.table(name), self.network.bucket, f"version {version}, {name!r}")
            self.network.counts["files of one partition"] += files
            memory = memory_name(name)
            remembered = snapshot.table(memory).to_arrow() if memory in there else None
            check_memory(remembered, rows, f"version {version}")

    def _compare_references(self, auditor: Database) -> None:
        """Raises ViolationError unless collection would keep every object that the newest version needs."""
        retention, head = self.network.ledger.retention, auditor._context.head
        manifest = head.refresh().manifest
        marked = set(needed_keys(manifest, head.segments))
        for key in tagged_manifests(manifest):
            marked.update(manifest_keys(key, head.segments))
        assert retention.newest is not None
        expired = (needs for version, needs in retention.tagged.items() if version < retention.horizon)
        forgotten = retention.newest.needs.union(*expired) - marked
        if forgotten:
            raise ViolationError(Never.COLLECTED, f"collection would not keep {sorted(forgotten)}")

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed} {purpose}")

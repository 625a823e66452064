"""The end of a history: all actors have stopped, the store answers, and time is unlimited.

Days later, when no sweep looks for orphans among the history's objects, some keys cannot be deleted at first. In the
end verification must find nothing wrong, collection must come to an end, and only objects that kept versions need may
be left.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.format.layout import POINTER
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryStore
from dolmen_simulator.judge.model import Operation, OperationRun
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable
from dolmen_simulator.judge.retention import setting
from dolmen_simulator.world.fates import Answer, Fate, StoreRequest, Verb, Wire
from dolmen_simulator.world.network import MINUTE_US, Network
from dolmen_simulator.world.server import Server
from dolmen_simulator.world.wire import SimulatedStore

_WHO = "aftermath"
_ROUNDS = 36
"""More rounds than kept versions: each run adds versions itself, and so may expire another one."""
_FAILING_ROUNDS = 6
_FAILING = 0.3
_LATER_US = 4 * 24 * 60 * MINUTE_US


class FaultlessWire(Wire):
    """A wire that answers all requests, and reports them to the ledger.

    Args:
        network: the network of the history.
        rng: decides which keys cannot be deleted.
    """

    def __init__(self, network: Network, rng: random.Random) -> None:
        self._network, self._random = network, rng
        self.failing = 0.0
        self.failed = 0
        version = network.ledger.version
        self.run = OperationRun(Operation("gc", _WHO, version, version, upkeep=True))

    def step(self, request: StoreRequest) -> Fate:
        """Lets the request arrive and be answered."""
        if request.verb is Verb.PUT:
            self.run.puts(request.key)
            if request.key == POINTER:
                self._network.ledger.record_sent(request.body, self.run)
        return Fate.OK

    def keys_not_removed(self, request: StoreRequest) -> Collection[str]:
        """Draws the keys that fail, each by itself."""
        spared = tuple(key for key in request.keys if self._random.random() < self.failing)
        self.failed += len(spared)
        return spared

    def before_removal(self, key: str) -> None:
        """Checks the removal of an object."""
        self._network.before_removal(key)

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        """Records the answer; a pointer that has landed is a version."""
        self._network.on_arrival(request, answer)


def runtime_without_faults(network: Network, rng: random.Random) -> Runtime:
    """Makes a runtime in virtual time, without waiting."""
    scheduler = network.scheduler
    return Runtime(
        clock_us=lambda: scheduler.now_us,
        monotonic=lambda: scheduler.now_us / 1e6,
        sleep=lambda seconds: None,
        random=rng,
        threads=1,
    )


def tidy(network: Network, rng: random.Random) -> None:
    """Verifies, collects until nothing is left to do, and checks the remaining objects. Raises ViolationError."""
    ledger, retention = network.ledger, network.ledger.retention
    runtime = runtime_without_faults(network, rng)
    wire = FaultlessWire(network, rng)
    context = Database(SimulatedStore(Server(network.bucket, wire), _WHO, runtime), runtime)._context
    _verify(network, deep=rng.random() < 0.5)
    properties = ledger.settings[-1]
    if "retention" not in properties or "orphan_age" not in properties:
        return
    step_us = max(setting(properties, name) for name in ("retention", "orphan_age", "reader_grace")) + 90 * MINUTE_US
    network.scheduler.now_us += _LATER_US
    for number in range(_ROUNDS):
        network.scheduler.now_us += step_us
        version, objects, failed = ledger.version, len(network.bucket.objects), wire.failed
        wire.failing = _FAILING if number < _FAILING_ROUNDS else 0.0
        with raising_unreadable("collection without any faults"):
            collect(context)
        if (ledger.version, len(network.bucket.objects), wire.failed) == (version, objects, failed):
            break
    else:
        raise ViolationError(
            Never.COLLECTED,
            f"collection finds something to do in each of {_ROUNDS} runs, although the last ones have no faults",
        )
    network.counts["keys not deleted in the aftermath"] += wire.failed
    if ledger.publications.leftovers():  # of dropped tables: their pins are gone
        with raising_unreadable("a full collection without any faults"):
            collect(context, full=True)
    if left := retention.leftovers() | ledger.publications.leftovers():
        raise ViolationError(
            Never.COLLECTED, f"after all collections {len(left)} objects are left over: {sorted(left)[:8]}"
        )
    _verify(network, deep=False)


def _verify(network: Network, *, deep: bool) -> None:
    rng = random.Random(0)
    runtime = runtime_without_faults(network, rng)
    with raising_unreadable("verify"):
        report = verify(Database(MemoryStore(network.bucket, runtime), runtime)._context, deep=deep, all_versions=True)
    if report.errors:
        raise ViolationError(Never.UNREADABLE, f"verify: {'; '.join(map(str, report.errors[:3]))}")
    network.counts["databases verified"] += 1

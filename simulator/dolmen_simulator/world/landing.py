"""The landing place of a history: a bucket of its own on the same bad wire, into which files are dropped."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dolmen.ingest.announcements import Drop, write_notification, write_record
from dolmen.ingest.landing import REJECTED, Landing
from dolmen.store.base import ObjectStore
from dolmen.store.memory import MemoryBucket, MemoryObject
from dolmen.store.s3.store import S3Store
from dolmen_simulator.judge.model import Effect
from dolmen_simulator.world.fates import Answer, Fate, Refusal, StoreRequest, Wire
from dolmen_simulator.world.network import Network
from dolmen_simulator.world.process import Process
from dolmen_simulator.world.requests import SimulatedQueue
from dolmen_simulator.world.server import Server
from dolmen_simulator.world.wire import SimulatedSession

BUCKET = "drops"
_URL = f"s3://{BUCKET}"


@dataclass(frozen=True)
class DroppedFile:
    """A message of the ingest queue: the event of one dropped file.

    Args:
        drop: as the event announces it.
        body: of the file.
        effects: what it does once it is ingested; none if nothing of it can be.
        bad: whether it holds what cannot be read.
        since: the newest version when it was dropped.
        dropped_us: when that was; None if its event does not say so.
    """

    drop: Drop
    body: bytes
    effects: tuple[Effect, ...]
    bad: bool
    since: int
    dropped_us: int | None = None

    @property
    def id(self) -> str:
        """Under which it is ingested once."""
        return self.drop.id

    @property
    def table(self) -> str:
        """For which it was dropped."""
        return self.drop.key.split("/")[1]

    @property
    def message(self) -> str:
        """The notification that S3 sends of it; of one without a sequencer, that of a backfill."""
        created_us = self.dropped_us if self.drop.sequencer is not None else None
        return write_notification([write_record(replace(self.drop, created_us=created_us))])

    def forge(self) -> None:
        """Its id is of its content, so there is none."""


class DropQueue(SimulatedQueue[DroppedFile]):
    """The ingest queue, and the bucket that its events are of.

    Args:
        under_way: by id of a drop, how many deliveries of it are being handled.
        died: ids of drops of which a delivery that was under way beside others ended without an answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.under_way = Counter[str]()
        self.died: set[str] = set()
        self._server: Server | None = None

    def put(self, network: Network, key: str, body: bytes) -> str:
        """A user drops a file, over one of the same name if there is one. Returns its ETag, without quotes."""
        etag, bucket = hashlib.md5(body, usedforsecurity=False).hexdigest(), self._at(network).bucket
        bucket.objects[key] = MemoryObject(body, f'"{etag}"', bucket.clock_us())
        return etag

    def body(self, network: Network, key: str) -> bytes | None:
        """What is there under a key."""
        there = self._at(network).bucket.objects.get(key)
        return there.body if there else None

    def begins(self, ids: Iterable[str]) -> None:
        """A batch with these drops is being handled."""
        for id_ in ids:
            if not self.under_way[id_]:
                self.died.discard(id_)
            self.under_way[id_] += 1

    def ends(self, ids: Iterable[str], answered: set[str]) -> None:
        """It no longer is: some of them were answered, the others are to come again."""
        for id_ in ids:
            self.under_way[id_] -= 1
            if id_ not in answered:
                self.died.add(id_)

    def is_settled(self, id_: str) -> bool:
        """Whether nothing is being done about a drop, nor left undone by a delivery beside the last one."""
        return not self.under_way[id_] and id_ not in self.died

    def landing(self, process: Process) -> Landing:
        """The landing place as a process opens it."""
        session = SimulatedSession(self._at(process.network), process.who)
        stores: dict[str, ObjectStore] = {
            url: S3Store(BUCKET, prefix, runtime=process.runtime, session=session)
            for url, prefix in ((_URL, ""), (f"{_URL}/{REJECTED}", REJECTED))
        }
        return Landing(process.db.url, runtime=process.runtime, _stores=stores)

    def _at(self, network: Network) -> Server:
        if self._server is None:
            self._server = Server(MemoryBucket(network.server_clock_us, BUCKET), _LandingWire(network))
        return self._server


class _LandingWire(Wire):
    """The wire that all use; the ledger has nothing to do with what is at this end of it."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def step(self, request: StoreRequest) -> Fate:
        line = self._network.lines[request.who]
        run, line.run = line.run, None  # what is put here is no part of a commit
        try:
            return self._network.step(request)
        finally:
            line.run = run

    def wait_for_timeout(self, request: StoreRequest) -> None:
        self._network.wait_for_timeout(request)

    def deliver_later(self, request: StoreRequest, arrive: Callable[[], object]) -> None:
        self._network.deliver_later(request, arrive)

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        told = str(answer) if isinstance(answer, Refusal) else "ok"
        network = self._network
        network.trace.step(network.scheduler.now_us, request.who, request.verb.value, request.subject, told)

"""The landing place of a history: a bucket of its own, on the same faulty network, into which files are dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from dolmen.base.records import replace
from dolmen.ingest.announcements import Drop, write_notification, write_record
from dolmen.ingest.landing import REJECTED, Landing
from dolmen.store.base import ObjectStore
from dolmen.store.memory import MemoryBucket, MemoryObject
from dolmen.store.s3.bucket_store import S3Store
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
        drop: the drop as the event announces it.
        body: content of the file.
        effects: effects of its ingestion; none if nothing of it can be ingested.
        bad: whether it has unreadable content.
        since: the newest version when it was dropped.
        dropped_us: when it was dropped; None if its event does not say.
    """

    drop: Drop
    body: bytes
    effects: tuple[Effect, ...]
    bad: bool
    since: int
    dropped_us: int | None = None

    @property
    def id(self) -> str:
        """The applied id of its ingestion."""
        return self.drop.id

    @property
    def table(self) -> str:
        """Name of its table."""
        return self.drop.key.split("/")[1]

    @property
    def message(self) -> str:
        """The notification of S3, or without a sequencer that of a backfill."""
        return write_notification([write_record(replace(self.drop, created_us=self.dropped_us))])

    def forge(self) -> None:
        """Returns None: the id follows from the content."""


class DropQueue(SimulatedQueue[DroppedFile]):
    """The ingest queue, and the bucket of its events."""

    def __init__(self) -> None:
        super().__init__()
        self._server: Server | None = None

    def put(self, network: Network, key: str, body: bytes) -> str:
        """Drops a file as a user does, and replaces one of the same name. Returns its ETag, without quotes."""
        etag, bucket = hashlib.md5(body, usedforsecurity=False).hexdigest(), self._at(network).bucket
        bucket.objects[key] = MemoryObject(body, f'"{etag}"', bucket.clock_us())
        return etag

    def body(self, network: Network, key: str) -> bytes | None:
        """The content of an object; None if there is none."""
        there = self._at(network).bucket.objects.get(key)
        return there.body if there else None

    def landing(self, process: Process) -> Landing:
        """Opens the landing place for a process."""
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
    """The network's wire, without the ledger, because these requests are not part of a commit."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def step(self, request: StoreRequest) -> Fate:
        line = self._network.lines[request.who]
        run, line.run = line.run, None  # objects that are put here are not part of a commit
        try:
            return self._network.step(request)
        finally:
            line.run = run

    def wait_for_timeout(self, request: StoreRequest) -> None:
        self._network.wait_for_timeout(request)

    def deliver_later(self, request: StoreRequest, arrive: Callable[[], object]) -> None:
        self._network.deliver_later(request, arrive)

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        result = str(answer) if isinstance(answer, Refusal) else "ok"
        network = self._network
        network.trace.step(network.scheduler.now_us, request.who, request.verb.value, request.subject, result)

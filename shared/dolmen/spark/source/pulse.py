"""The intent of a job that no process outlives: its tasks keep the intent alive while they run.

As tasks know nothing of each other, their heartbeats have random numbers instead of 0, 1, 2, which collection does
not mind: it goes by how old the newest one is.
"""

from __future__ import annotations

from dolmen.base.runtime import Runtime
from dolmen.commit.intent import BEAT_SECONDS, PREFIX, Heartbeat
from dolmen.errors import Error
from dolmen.format.pointer import FORMAT_VERSION
from dolmen.store.base import ObjectStore
from dolmen.store.create import create

_NUMBER_BITS = 60


class Pulse:
    """One process's part in an intent.

    Args:
        txid: of the job.
        what: the job, for people.
        table: the table it writes for.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, txid: str, what: str, table: str) -> None:
        self._store, self._runtime, self._txid = store, runtime, txid
        self._what, self._table = what, table
        self._last_beat = runtime.monotonic()

    def start(self) -> int:
        """Puts the process's first heartbeat, before its first object.

        Returns:
            the server's clock before that, by which the fence judges the job's objects.

        Raises:
            StoreUnavailableError, AccessDeniedError: it could not be put.
        """
        self._put()  # whose answer brings the server's clock, if there was none yet
        return self._store.clock.now_us

    def beat(self) -> None:
        """Puts another heartbeat if the last is 10 minutes old. Raises as ``start`` does."""
        if self._runtime.monotonic() - self._last_beat >= BEAT_SECONDS:
            self._put()

    def done(self) -> None:
        """Marks the intent as done. Never raises because of the store, as that would hide the commit."""
        try:
            create(self._store, f"{PREFIX}{self._txid}/done", self._heartbeat(0).encode(), self._runtime)
        except Error:
            return

    def _put(self) -> None:
        n = 1 + self._runtime.random.getrandbits(_NUMBER_BITS)
        create(self._store, f"{PREFIX}{self._txid}/{n}.json", self._heartbeat(n).encode(), self._runtime)
        self._last_beat = self._runtime.monotonic()

    def _heartbeat(self, n: int) -> Heartbeat:
        now_us = self._store.clock.now_us
        return Heartbeat(FORMAT_VERSION, self._txid, n, self._what, (self._table,), now_us, now_us)

"""Intents: short-lived objects that say which objects a long job is writing, while it has not committed them.

An intent protects nothing: the fence in the manifest decides which commits may still land. It only lets collection
find the objects of a job that died, and remove them at once instead of after days. A job names its objects
``<txid>-<uuid>`` and puts a new heartbeat ``intent/<txid>/<n>.json`` now and then. A txid belongs to one attempt of
one job and is never used again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from dolmen.errors import CorruptionError, Error
from dolmen.format.checksum import seal, unseal
from dolmen.format.decoding import prepare
from dolmen.format.pointer import FORMAT_VERSION, check_format_version
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectStore
from dolmen.store.create import create

PREFIX = "intent/"
BEAT_SECONDS = 600.0
"""A heartbeat is due when the last one is this old; collection waits for several times as long."""

_KEY = re.compile(r"intent/([0-9a-f]{32})/(\d+\.json|done)")


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an intent's object says.

    Args:
        txid: 32 hexadecimal digits; the names of the job's objects begin with them.
        n: 0 for the first heartbeat.
        what: the job, for people.
        tables: names of the tables under whose prefixes it writes; none = any.
        started_us: the server's clock before the job's first object; 0 = not known.
        now_us: the server's clock before this heartbeat.
    """

    format_version: int
    txid: str
    n: int
    what: str
    tables: tuple[str, ...] = ()
    started_us: int = 0
    now_us: int = 0

    def encode(self) -> bytes:
        """The object's bytes: sealed JSON."""
        return seal(msgspec.json.encode(self))

    @classmethod
    def decode(cls, body: bytes, key: str) -> Heartbeat:
        """Reads one. Raises CorruptionError, or UnsupportedFormatError when a newer dolmen wrote it."""
        document = unseal(body, key)
        check_format_version(document, key)
        try:
            return msgspec.json.decode(document, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptionError(key, f"not a heartbeat: {error}") from error


def parse_intent_key(key: str) -> tuple[str, bool] | None:
    """(txid, whether it is the ``done``) of an intent's object; None if it isn't one."""
    match = _KEY.fullmatch(key)
    return (match[1], match[2] == "done") if match else None


class Intent:
    """The intent of one attempt of one job. See ``begin``."""

    def __init__(self, store: ObjectStore, runtime: Runtime, what: str, tables: Iterable[str] = ()) -> None:
        self._store, self._runtime, self._what = store, runtime, what
        self._tables = tuple(sorted(set(tables)))
        self.txid = runtime.uuid()
        self._started_us = store.clock.now_us
        self._beats, self._last_beat = 0, 0.0

    @classmethod
    def begin(cls, store: ObjectStore, runtime: Runtime, what: str, tables: Iterable[str] = ()) -> Intent:
        """Makes an intent known, with its first heartbeat, before the first object is named after it.

        Args:
            what: the job, for people.
            tables: names of the tables it writes for; with none, collection has to look under all of them.

        Raises:
            StoreUnavailableError, AccessDeniedError: the heartbeat could not be put.
        """
        intent = cls(store, runtime, what, tables)
        intent._put_heartbeat()
        return intent

    def name(self) -> str:
        """``<txid>-<uuid>``: a fresh name for one of the job's objects, without directory and suffix."""
        return f"{self.txid}-{self._runtime.uuid()}"

    def beat(self) -> None:
        """Puts another heartbeat if the last one is 10 minutes old. To be called between files and runs.

        Raises:
            StoreUnavailableError, AccessDeniedError: it could not be put; the job will be taken for dead in time.
        """
        if self._runtime.monotonic() - self._last_beat >= BEAT_SECONDS:
            self._put_heartbeat()

    def finish(self) -> None:
        """Says that the job's commit has landed, so that nobody need take it for dead.

        Only for a commit that is known to have landed: what an unclear or failed one has left is found by the intent.
        Never raises because of the store, as that would hide the commit; without a ``done`` the txid is revoked in
        time, which harms nobody.
        """
        heartbeat = self._heartbeat()
        try:
            create(self._store, f"{PREFIX}{self.txid}/done", heartbeat.encode(), self._runtime)
        except Error:
            return

    def _put_heartbeat(self) -> None:
        create(self._store, f"{PREFIX}{self.txid}/{self._beats}.json", self._heartbeat().encode(), self._runtime)
        self._beats += 1
        self._last_beat = self._runtime.monotonic()

    def _heartbeat(self) -> Heartbeat:
        now_us = self._store.clock.now_us
        return Heartbeat(FORMAT_VERSION, self.txid, self._beats, self._what, self._tables, self._started_us, now_us)


class LateIntent:
    """Names for a stream of files that mostly is one file: the first has no intent, which would cost two requests.

    Args:
        begin: gives the intent when a second file begins.
    """

    def __init__(self, runtime: Runtime, begin: Callable[[], Intent]) -> None:
        self._runtime, self._begin = runtime, begin
        self._named = False
        self._intent: Intent | None = None

    def name(self) -> str:
        """A uuid for the first file, then names of the intent."""
        if not self._named:
            self._named = True
            return self._runtime.uuid()
        self._intent = self._intent or self._begin()
        return self._intent.name()

    def beat(self) -> None:
        """Keeps the intent alive, once there is one."""
        if self._intent:
            self._intent.beat()


prepare(Heartbeat)

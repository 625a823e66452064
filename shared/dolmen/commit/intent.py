"""Intents: short-lived objects that announce which objects a long job is writing before it commits them.

An intent protects nothing: the fence in the manifest decides which commits may still land. An intent lets collection
find the objects of a dead job at once instead of days later. A job names its objects ``<txid>-<uuid>``, and writes a
new heartbeat ``intent/<txid>/<n>.json`` from time to time. A txid belongs to one attempt of one job, and is never used
again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError, Error
from dolmen.format.layout import FORMAT_VERSION, check_format_version, prepare, seal, unseal
from dolmen.store.base import ObjectStore, create

PREFIX = "intent/"
BEAT_SECONDS = 600.0
"""Seconds after which the next heartbeat is due. Collection waits for several times as long."""

_KEY = re.compile(r"intent/([0-9a-f]{32})/(\d+\.json|done)")


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of an intent's object.

    Args:
        txid: 32 hexadecimal digits; the names of the job's objects begin with them.
        n: 0 for the first heartbeat.
        what: a description of the job, for people.
        tables: the names of the tables under whose prefixes the job writes; empty for any.
        started_us: the server's clock before the job's first object; 0 if it is not known.
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
        """Reads a heartbeat. Raises CorruptionError, or UnsupportedFormatError when a newer dolmen wrote it."""
        document = unseal(body, key)
        check_format_version(document, key)
        try:
            return msgspec.json.decode(document, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptionError(key, f"not a heartbeat: {error}") from error


def parse_intent_key(key: str) -> tuple[str, bool] | None:
    """(txid, whether it is the ``done`` object) from the key of an intent's object; None for other keys."""
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
        """Announces an intent with its first heartbeat, before any object is named after it.

        Args:
            what: a description of the job, for people.
            tables: the names of the tables that it writes; if empty, collection must search under all of them.

        Raises:
            StoreUnavailableError, AccessDeniedError: the heartbeat could not be written.
        """
        intent = cls(store, runtime, what, tables)
        intent._put_heartbeat()
        return intent

    def name(self) -> str:
        """A fresh name ``<txid>-<uuid>`` for one of the job's objects, without directory and suffix."""
        return f"{self.txid}-{self._runtime.uuid()}"

    def beat(self) -> None:
        """Writes another heartbeat if the last one is 10 minutes old. Call it between files and runs.

        Raises:
            StoreUnavailableError, AccessDeniedError: it could not be written; in time the job will be taken for dead.
        """
        if self._runtime.monotonic() - self._last_beat >= BEAT_SECONDS:
            self._put_heartbeat()

    def finish(self) -> None:
        """Notes that the job's commit has landed, so that collection does not take the job for dead.

        Call it only after a commit that is known to have landed. After an unknown or failed commit, collection needs
        the intent to find the job's objects. Errors of the store are ignored, because they would hide the commit:
        without the ``done`` object the txid is revoked in time, which does no harm.
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
    """Names for a stream of files that is mostly one file. The first file has no intent, which saves two requests.

    Args:
        begin: returns the intent; called when a second file begins.
    """

    def __init__(self, runtime: Runtime, begin: Callable[[], Intent]) -> None:
        self._runtime, self._begin = runtime, begin
        self._named = False
        self._intent: Intent | None = None

    def name(self) -> str:
        """A uuid for the first file, then names under the intent."""
        if not self._named:
            self._named = True
            return self._runtime.uuid()
        self._intent = self._intent or self._begin()
        return self._intent.name()

    def beat(self) -> None:
        """Keeps the intent alive, if there is one."""
        if self._intent:
            self._intent.beat()


prepare(Heartbeat)

"""The state that all objects of an open database share: the newest known version, and the queue of waiting changes.

Changes that wait at the same time become one version together. There is no thread for this: the first change that waits
leads. It commits itself and all that are queued by then; then the next one that still waits leads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from dolmen.base.records import replace
from dolmen.base.runtime import POINTER_READ, Instant, Runtime, Signal, attempts, shared_runtime
from dolmen.base.units import DAY_US, SECOND_US
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import ClockError, CorruptionError, ObjectNotFoundError
from dolmen.format.layout import POINTER, Pointer, Turn, manifest_key
from dolmen.format.manifest import EMPTY, HistoryEntry, Manifest
from dolmen.store import open_store, portable_url
from dolmen.store.base import ObjectStore, Stored
from dolmen.store.cache import ObjectCache


class Waiting(Protocol):
    """A change in the queue: see ``dolmen.commit.loop.Member``."""

    signal: Signal
    number: int
    outcome: Any


M = TypeVar("M", bound=Waiting)


class CommitQueue(Generic[M]):
    """The changes of one process that wait for a version, in the order of their numbers; the first one leads."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()
        self._waiting: list[M] = []
        self._leader: M | None = None
        self.last_number = 0

    @property
    def has_leader(self) -> bool:
        return self._leader is not None and self._process == os.getpid()

    def join(self, member: M) -> bool:
        """Adds a change. Returns whether it leads now; otherwise its signal will be set."""
        if self._process != os.getpid():
            self._begin()  # threads do not survive a fork: this process has no leader
        with self._lock:
            self.last_number += 1
            member.number = self.last_number
            self._waiting.append(member)
            if self._leader is not None:
                return False
            self._leader = member
            return True

    def all(self) -> list[M]:
        with self._lock:
            return list(self._waiting)

    def end(self, member: M, outcome: Any) -> None:
        with self._lock:
            if member in self._waiting:
                self._waiting.remove(member)
            member.outcome = outcome
        member.signal.set()

    def leave(self, member: M) -> None:
        """Removes a change, whatever its outcome. If it led, the first of the others leads."""
        with self._lock:
            if member in self._waiting:
                self._waiting.remove(member)
            if self._leader is not member:
                return
            self._leader = following = self._waiting[0] if self._waiting else None
        if following is not None:
            following.signal.set()


STAMP_SECONDS = 240.0
"""A pointer PUT must be signed at most this many seconds after the version's date. S3 accepts a
signature for 15 minutes, so no version can land more than 20 minutes after its date (docs/protocol.md)."""

_DATES_DISAGREE_SECONDS = 5.0  # how far responses of one server may disagree, beyond whole seconds

_DECODED_FACTOR = 8  # the memory of a decoded manifest, in multiples of its encoded size

_BEHIND_FIRST = manifest_key(1, "").removesuffix("-.json") + "~"
"""Sorts after all manifests of version 1, which attempts at the first commit may leave behind."""


class Base(Struct, frozen=True):
    """A version that a commit can be based on."""

    manifest: Manifest
    etag: str | None  # the ETag of the pointer; None without a database, "" if only readback shows that it was replaced
    date_us: int = 0  # the server's clock in the response that showed it as the newest; 0 if this process committed it
    turn: Turn | None = None


class Look(Struct, frozen=True):
    """The pointer, as one response showed it, with the server's clock then, and this process's (``monotonic``)."""

    pointer: Pointer
    etag: str
    date_us: int
    at: float

    @property
    def turn(self) -> Turn | None:
        return self.pointer.turn or None


class Stamp(Struct, frozen=True):
    """The date of a version by the server's clock, and (``made``) by this machine's clocks."""

    time_us: int
    made: Instant


class Head:
    """Knows the newest version. Asks the store only on request."""

    def __init__(
        self, store: ObjectStore, runtime: Runtime, *, trust_clock: bool = False, cache: ObjectCache | None = None
    ) -> None:
        self.store, self.runtime = store, runtime
        self.cache = ObjectCache.of_store(store, runtime) if cache is None else cache
        self.segments = SegmentReader(store, runtime, self.cache)
        self.trust_clock = trust_clock
        self.queue = CommitQueue[Any]()
        self.cached: Base | None = None
        """The newest version seen so far."""
        self._seen_at = float("-inf")
        self._is_new = False

    def newest(self) -> Base:
        """The newest version seen so far; reads it if none was seen. Raises as ``refresh`` does."""
        return self.cached or self.refresh()

    @property
    def manifest_bytes(self) -> int:
        """Size of the newest manifest seen so far, which every commit uploads; 0 before the first commit."""
        manifest = self.newest().manifest
        return len(manifest.encode()) if manifest.version else 0

    def refresh(self) -> Base:
        """Reads the pointer, and the manifest if the pointer moved: 1 or 2 GETs, and a LIST if it is missing at first.

        Raises:
            CorruptionError: pointer or manifest is damaged or missing, or the pointer went back to an older version.
            UnsupportedFormatError: a newer dolmen wrote them.
        """
        base = self._read()
        if base.etag is None and not self._is_new:
            base = self.check_new(base)
            self._is_new = True
        return base

    def _read(self) -> Base:
        for attempt in attempts(self.runtime, POINTER_READ):
            look = self.look()
            if look is None:
                return self._remember(Base(EMPTY, None, self.store.clock.now_us), self.runtime.monotonic())
            try:
                return self.follow(look)
            except ObjectNotFoundError:  # collected between the two reads, so the pointer must have moved
                if attempt.is_last:
                    raise CorruptionError(POINTER, f"it names {look.pointer.manifest}, which is missing") from None
        raise AssertionError("unreachable")

    def look(self) -> Look | None:
        """Reads the pointer alone: 1 GET. None if there is none. Raises what ``refresh`` raises."""
        seen = self.cached
        try:
            response = self.store.get(POINTER)
        except ObjectNotFoundError:
            if seen and seen.etag is not None:
                raise CorruptionError(POINTER, "the pointer is gone") from None
            return None
        pointer = Pointer.decode(response.body, POINTER)
        _check_forward(seen, pointer)
        return Look(pointer, response.etag, self.store.clock.now_us, self.runtime.monotonic())

    def follow(self, look: Look) -> Base:
        """Reads the manifest that the pointer names, unless it is known: at most 1 GET.

        Raises ObjectNotFoundError if it is missing. Look again: the version may have expired in the meantime.
        """
        seen, named = self.cached, look.pointer
        if seen and seen.manifest.commit_id == named.commit_id:
            base = replace(seen, etag=look.etag, date_us=look.date_us, turn=look.turn)
            return self._remember(base, look.at)
        manifest = self.read_manifest(named.manifest, named.commit_id)
        if manifest.commit_id != named.commit_id:
            raise CorruptionError(
                POINTER, f"it names commit {named.commit_id}, but {named.manifest} is of commit {manifest.commit_id}"
            )
        return self._remember(Base(manifest, look.etag, look.date_us, look.turn), look.at)

    def take_turn(self, look: Look, turn: Turn) -> Look | None:
        """Puts a turn into the pointer: 1 PUT. Returns the new pointer; None if the PUT may have failed."""
        pointer = msgspec.structs.replace(look.pointer, turn=turn)
        outcome = self.store.put(POINTER, pointer.encode(), if_match=look.etag)
        return replace(look, pointer=pointer, etag=outcome.etag) if isinstance(outcome, Stored) else None

    def check_new(self, base: Base) -> Base:
        """Checks, when there is no pointer, that nothing was ever committed: one request.

        Returns ``base``, or a version that others have committed. Raises CorruptionError if a pointer is lost.
        """
        if not self.has_been_committed_to():
            return base
        base = self._read()
        if base.etag is None:
            raise CorruptionError(
                POINTER, "it is gone, though versions were committed; docs/operations.md says how to find the newest"
            )
        return base

    def has_been_committed_to(self) -> bool:
        """Whether there are manifests after version 1, which proves a commit: a LIST."""
        return next(self.store.list("manifest/", start_after=_BEHIND_FIRST), None) is not None

    @property
    def age_seconds(self) -> float:
        """Seconds since the newest version was last known to be the newest."""
        return self.runtime.monotonic() - self._seen_at

    def check_kept(self, version: int, last: int | None = None) -> None:
        """Raises VersionExpiredError if ``version``, or one up to ``last``, has expired: its objects may be missing."""
        newest = self.refresh().manifest
        end = version if last is None else min(last, newest.horizon)
        for each in range(version, end + 1):
            newest.check_kept(each)

    def _remember(self, base: Base, at: float) -> Base:
        if self.cached is None or base.manifest.version >= self.cached.manifest.version:  # else a thread was faster
            self.cached, self._seen_at = base, at
        return base

    def read_manifest(self, key: str, commit_id: str = "") -> Manifest:
        """Reads a manifest. Raises ObjectNotFoundError, CorruptionError, UnsupportedFormatError.

        ``commit_id``: of its commit, if known; then it may come from the cache.
        """
        cache_key = ("manifest", key, commit_id)
        cached: Manifest | None = self.cache.get(cache_key) if commit_id else None
        if cached is not None:
            return cached
        body = self.cache.disk.get(cache_key) if commit_id and self.cache.disk else None
        if body is None:
            body = self.store.get(key).body
        manifest = Manifest.decode(body, key)
        if manifest.commit_id == commit_id:
            self.cache.put_on_disk(cache_key, body)
            self.keep_manifest(manifest, len(body))
        return manifest

    def keep_manifest(self, manifest: Manifest, size: int) -> None:
        """Caches a manifest of ``size`` bytes for other handles of this process."""
        self.cache.put(("manifest", manifest.key, manifest.commit_id), manifest, _DECODED_FACTOR * size, is_new=True)

    def read_kept(self, key: str, version: int, commit_id: str = "") -> Manifest:
        """Reads the manifest of a version that was kept. Raises VersionExpiredError if it has expired since."""
        try:
            return self.read_manifest(key, commit_id)
        except ObjectNotFoundError:
            self.check_kept(version)
            raise CorruptionError(key, "the manifest is missing") from None

    def advance(self, base: Base) -> None:
        """Records a version that this process committed itself."""
        if self.cached is None or base.manifest.version > self.cached.manifest.version:
            self._remember(base, self.runtime.monotonic())

    def server_now(self, previous: Manifest) -> int:
        """The server's last ``Date`` in microseconds, which is never ahead of its clock.

        Raises ClockError if it is a day away from both the local clock and the previous commit.
        """
        return self._check_clock(self.store.clock.now_us, previous)

    def server_stamp(self, previous: Manifest) -> Stamp | None:
        """The server's time now, for the version after ``previous``; None if only a request can show it."""
        made = self.runtime.instant()
        now_us = self.store.clock.estimate()
        return None if now_us is None else Stamp(self._check_clock(now_us, previous), made)

    def _check_clock(self, now_us: int, previous: Manifest) -> int:
        local_us = self.runtime.clock_us()
        off = min(abs(now_us - other) for other in (local_us, previous.created_at or local_us))
        if off > DAY_US and not self.trust_clock:
            raise ClockError(
                f"the store's clock is {off / DAY_US:.1f} days away from this machine's and from the last commit; "
                "correct the wrong clock, or open the database with trust_clock=True"
            )
        return now_us

    def seconds_since(self, stamp: Stamp) -> float:
        """Seconds since a stamp was made, by this machine's clocks (which may have been frozen) or the server's."""
        least_us = self.store.clock.least_us
        if least_us is None:
            return float("inf")
        return max(self.runtime.elapsed(stamp.made), (least_us - stamp.time_us) / SECOND_US)

    def may_send(self, stamp: Stamp) -> bool:
        """Whether a pointer to a version with this stamp may be sent: it is young, and was right when it was made."""
        most_seconds = self.runtime.elapsed(stamp.made) + _DATES_DISAGREE_SECONDS
        return self.seconds_since(stamp) <= min(most_seconds, STAMP_SECONDS)


def commit_of(head: Head, newest: Manifest, version: int) -> HistoryEntry | None:
    """The commit that made a version, with at most one GET; None if it has left the history."""
    if version == newest.version:
        return newest.as_history()
    entries: Sequence[HistoryEntry] = newest.history
    for segment in newest.segments_of("history"):
        if segment.least <= version <= segment.greatest:
            entries = head.segments.history(segment)
    return next((entry for entry in entries if entry.version == version), None)


def _check_forward(seen: Base | None, named: Pointer) -> None:
    """Raises CorruptionError if the pointer moved back, which only happens if somebody replaced it."""
    if seen is None or seen.manifest.version < named.version:
        return
    manifest = seen.manifest
    if (manifest.version, manifest.commit_id) != (named.version, named.commit_id):
        raise CorruptionError(
            POINTER,
            f"it names version {named.version}, commit {named.commit_id}, though version {manifest.version}, "
            f"{manifest.commit_id}, was committed; if an older copy was put back on purpose, open the database again",
        )


class Context(Struct, frozen=True):
    """The store of a database, its newest known version, and the cache of its immutable objects."""

    store: ObjectStore
    runtime: Runtime
    head: Head

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes open the store by its URL, with their own clock, threads and cache."""
        return _reopen, (portable_url(self.store), self.head.trust_clock)

    @property
    def cache(self) -> ObjectCache:
        return self.head.cache

    @property
    def segments(self) -> SegmentReader:
        return self.head.segments

    @contextmanager
    def reading(self, version: int, last: int | None = None) -> Iterator[None]:
        """Wraps work that reads a version's objects: if one is missing because it expired, raises VersionExpiredError.

        ``last`` is the last version, if the work reads several; those between may expire even if a tag keeps the first.
        """
        try:
            yield
        except CorruptionError as error:
            if error.is_missing:
                self.head.check_kept(version, last)
            raise


class Handle(Protocol):
    """An object of the public API: a database, a table, a snapshot."""

    _context: Context


def context_of(handle: Handle) -> Context:
    """The context of a handle, for code below the public classes."""
    return handle._context


def _reopen(url: str, trust_clock: bool) -> Context:
    runtime = shared_runtime()
    store = open_store(url, runtime)
    return Context(store, runtime, Head(store, runtime, trust_clock=trust_clock))

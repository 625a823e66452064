"""The newest version known to this process: the pointer's ETag, and the manifest that the pointer names.

Turns: a writer that has lost again asks to be the next to commit.

A process that has just committed knows the newest version without a request. Others must read it first, so they would
always lose against a writer that commits continuously. A writer that has lost twice therefore replaces the pointer by
one that names the same version, and a turn. That makes no version. Running attempts fail, because the ETag that they
depend on has changed. A process that reads the turn waits until the version changes, or as long as the turn says.

Only fairness depends on this waiting: a commit is a compare-and-swap, whichever writer has the turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from dolmen.base.runtime import POINTER_READ, Instant, Runtime, attempts
from dolmen.base.units import DAY_US, SECOND_US
from dolmen.commit.group import CommitQueue
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import ClockError, CorruptionError, ObjectNotFoundError, StoreUnavailableError, VersionExpiredError
from dolmen.format.layout import POINTER, Pointer, Turn, manifest_key
from dolmen.format.manifest import EMPTY, Manifest
from dolmen.store.base import ObjectStore, Stored
from dolmen.store.cache import DiskCache, ObjectCache

STAMP_SECONDS = 240.0
"""Seconds within which a pointer PUT must be signed after the time that the version is dated with. S3 accepts a
signature for 15 minutes, so no version can land more than 20 minutes after its date (docs/protocol.md)."""


_CLOCKS_DISAGREE_SECONDS = 5.0
"""The most by which answers of one server may disagree, beside whole seconds."""


_BEHIND_FIRST = manifest_key(1, "").removesuffix("-.json") + "~"
"""Sorts after all manifests of version 1, which attempts at the first commit may leave behind."""


@dataclass(frozen=True, slots=True)
class Base:
    """A version that a commit can be based on.

    Args:
        etag: the ETag of the pointer; None if the database does not exist yet.
        date_us: the server's clock in the response that showed it as the newest; 0 if this process committed it.
        turn: who commits next, if a writer asked for it.
    """

    manifest: Manifest
    etag: str | None
    date_us: int = 0
    turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The pointer, as one response showed it.

    Args:
        date_us: the server's clock in that response. A later time would be too late, because reading the manifest
            takes long.
        at: when it came, by ``runtime.monotonic``.
    """

    pointer: Pointer
    etag: str
    date_us: int
    at: float

    @property
    def turn(self) -> Turn | None:
        """The turn of the writer that commits next; None if no writer asked for one."""
        return self.pointer.turn or None


@dataclass(frozen=True, slots=True)
class Stamp:
    """The time that a version is dated with.

    Args:
        time_us: the server's clock, microseconds since the epoch.
        made: when that was its time, by the clocks of this machine.
    """

    time_us: int
    made: Instant


class Head:
    """Knows the newest version. Asks the store only on request.

    Args:
        trust_clock: accept a server's clock that contradicts both the local clock and the previous commit.
        cache: keeps immutable objects; a cache of its own by default.
    """

    def __init__(
        self, store: ObjectStore, runtime: Runtime, *, trust_clock: bool = False, cache: ObjectCache | None = None
    ) -> None:
        self.store, self.runtime = store, runtime
        self.cache = ObjectCache(disk=DiskCache.from_environment(store.url, runtime)) if cache is None else cache
        self.segments = SegmentReader(store, runtime, self.cache)
        self.trust_clock = trust_clock
        self.queue = CommitQueue()
        self._base: Base | None = None
        self._seen_at = float("-inf")
        self._is_new = False

    @property
    def cached(self) -> Base | None:
        """The newest version seen so far, or None before the first look."""
        return self._base

    def known(self) -> Base:
        """The newest version seen so far; looks for it if none was seen. Raises as ``refresh`` does."""
        return self._base or self.refresh()

    @property
    def manifest_bytes(self) -> int:
        """Size of the newest manifest seen so far, which every commit uploads; 0 before the first commit."""
        manifest = self.known().manifest
        return len(manifest.encode()) if manifest.version else 0

    def refresh(self) -> Base:
        """Reads the pointer, and the manifest if the pointer moved: 1 or 2 GETs.

        The first time that the pointer is missing, a LIST finds out whether the database is new.

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
        """Reads the pointer alone: 1 GET. None if there is none.

        Raises:
            CorruptionError: it is damaged, gone, or went back to an older version.
            UnsupportedFormatError: a newer dolmen wrote it.
        """
        known = self._base
        try:
            found = self.store.get(POINTER)
        except ObjectNotFoundError:
            if known and known.etag is not None:
                raise CorruptionError(POINTER, "the pointer is gone") from None
            return None
        pointer = Pointer.decode(found.body, POINTER)
        _check_forward(known, pointer)
        return Look(pointer, found.etag, self.store.clock.now_us, self.runtime.monotonic())

    def follow(self, look: Look) -> Base:
        """Reads the manifest that the pointer names, if it is not the one that is known: at most 1 GET.

        Raises:
            ObjectNotFoundError: it is missing. Look again: the version may have expired in the meantime.
            CorruptionError: it is damaged.
            UnsupportedFormatError: a newer dolmen wrote it.
        """
        known, named = self._base, look.pointer
        if known and known.manifest.commit_id == named.commit_id:
            base = replace(known, etag=look.etag, date_us=look.date_us, turn=look.turn)
            return self._remember(base, look.at)
        manifest = self.read_manifest(named.manifest)
        if manifest.commit_id != named.commit_id:
            raise CorruptionError(
                POINTER, f"it names commit {named.commit_id}, but {named.manifest} is of commit {manifest.commit_id}"
            )
        return self._remember(Base(manifest, look.etag, look.date_us, look.turn), look.at)

    def take_turn(self, look: Look, turn: Turn) -> Look | None:
        """Names a turn in the pointer: 1 PUT. Returns the pointer with it, None if it is not known to be there."""
        pointer = msgspec.structs.replace(look.pointer, turn=turn)
        outcome = self.store.put(POINTER, pointer.encode(), if_match=look.etag)
        return replace(look, pointer=pointer, etag=outcome.etag) if isinstance(outcome, Stored) else None

    def check_new(self, base: Base) -> Base:
        """Checks, when there is no pointer, that nothing was ever committed: one request.

        Returns:
            ``base``, or a version that others have committed in the meantime.

        Raises:
            CorruptionError: there are manifests of later versions, so the pointer existed and is lost.
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
        """Raises VersionExpiredError if a version has expired, so that its objects may rightly be missing.

        Args:
            last: the last version, to check all from the one to the other.
        """
        newest = self.refresh().manifest
        end = version if last is None else min(last, newest.horizon)
        for each in range(version, end + 1):
            if not newest.is_kept(each):
                raise VersionExpiredError(f"version {each} has expired: the oldest kept is {newest.horizon}")

    def _remember(self, base: Base, at: float) -> Base:
        if self._base is None or base.manifest.version >= self._base.manifest.version:  # else a thread was faster
            self._base, self._seen_at = base, at
        return base

    def read_manifest(self, key: str) -> Manifest:
        """Reads a manifest. Raises ObjectNotFoundError, CorruptionError, UnsupportedFormatError."""
        return Manifest.decode(self.store.get(key).body, key)

    def advance(self, base: Base) -> None:
        """Notes a version that this process committed itself."""
        if self._base is None or base.manifest.version > self._base.manifest.version:
            self._remember(base, self.runtime.monotonic())

    def server_now(self, previous: Manifest) -> int:
        """The server's last ``Date`` in microseconds, which is never ahead of its clock.

        Raises:
            ClockError: it is a day away from both the local clock and the previous commit.
        """
        return self._check_clock(self.store.clock.now_us, previous)

    def stamp(self, previous: Manifest) -> Stamp | None:
        """The server's time now, for the version after ``previous``; None if it must be asked for.

        Raises:
            ClockError: see ``server_now``.
        """
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
        """Seconds since a stamp was made, by this machine's clocks or by the server's answers, whichever shows more.

        The clocks of a machine that was frozen may show nothing of it.
        """
        least_us = self.store.clock.least_us
        if least_us is None:
            return float("inf")
        return max(self.runtime.elapsed(stamp.made), (least_us - stamp.time_us) / SECOND_US)

    def may_send(self, stamp: Stamp) -> bool:
        """Whether a pointer to a version with this stamp may be sent: it is not old, and was right when it was made."""
        most_seconds = self.runtime.elapsed(stamp.made) + _CLOCKS_DISAGREE_SECONDS
        return self.seconds_since(stamp) <= min(most_seconds, STAMP_SECONDS)


def _check_forward(known: Base | None, named: Pointer) -> None:
    """Raises CorruptionError if the pointer moved back: a pointer only moves forward, so somebody replaced it."""
    if known is None or known.manifest.version < named.version:
        return
    there = known.manifest
    if (there.version, there.commit_id) != (named.version, named.commit_id):
        raise CorruptionError(
            POINTER,
            f"it names version {named.version}, commit {named.commit_id}, though version {there.version}, "
            f"{there.commit_id}, was committed; if an older copy was put back on purpose, open the database anew",
        )


LOSSES = 2
"""Attempts that a writer loses before it asks for a turn: where few compete, the next one mostly lands anyway."""


LONGEST_SECONDS = 5.0
"""Nobody waits longer for a turn, whatever the pointer says."""


_SHORTEST_SECONDS = 0.1


_LEAST_TRIPS = 0.1


_TRIPS = 4
"""Round trips of a lost attempt, with its readback."""


_PATIENCE = 6
"""Round trips between the first looks of who waits. Who has seen n versions pass looks n + 1 times as often, so that it
mostly comes first to the turn of the next one."""


def turn_seconds(turn: Turn) -> float:
    """How long others wait for a turn at most."""
    return min(turn.ms / 1_000, LONGEST_SECONDS)


def await_turn(head: Head, losses: int, seconds: float) -> Base:
    """Waits until an attempt is worth while; takes a turn after ``LOSSES`` lost ones.

    Args:
        losses: how often this change has lost.
        seconds: how long its last attempt took.

    Returns:
        The newest version.
    """
    runtime = head.runtime
    own = Turn(runtime.uuid(), round(min(max(2 * seconds, _SHORTEST_SECONDS), LONGEST_SECONDS) * 1_000))
    if losses < LOSSES:
        runtime.sleep(runtime.random.uniform(0, min(seconds, LONGEST_SECONDS)))
    look = head.look()
    first = 0 if look is None else look.pointer.version
    while look is not None:
        look = _wait_for_others(head, look, own, first, min(seconds / _TRIPS, 1.0))
        if losses < LOSSES or look is None or look.turn == own:
            break
        try:
            taken = head.take_turn(look, own)
        except StoreUnavailableError:
            break  # the attempt finds out what is wrong
        if taken is not None:
            look = taken
            break
        look = head.look()  # another writer came first, or the answer was lost
    try:
        return head.refresh() if look is None else head.follow(look)
    except ObjectNotFoundError:  # the version has expired in the meantime
        return head.refresh()


def _wait_for_others(head: Head, look: Look, own: Turn, first: int, trip: float) -> Look | None:
    """Waits while the pointer has another writer's turn. Returns the pointer then; None if there is none.

    Args:
        first: the version that was the newest when this change began to wait.
        trip: seconds of a round trip, about.
    """
    runtime, since, slept = head.runtime, look, 0.0
    latest: Look | None = look
    while latest is not None and latest.turn not in (None, own):
        if latest.etag != since.etag:
            since, slept = latest, 0.0
        assert latest.turn is not None
        if max(latest.at - since.at, slept) >= turn_seconds(latest.turn):
            break  # whose turn it was does not come
        passed = latest.pointer.version - first
        pause = runtime.random.uniform(0.5, 1) * max(trip, 0.001) * max(_PATIENCE / (1 + passed), _LEAST_TRIPS)
        runtime.sleep(pause)
        slept += pause
        latest = head.look()
    return latest

"""The commit loop. A version is committed when the pointer names it, and not before.

A process that has just committed knows the newest version without a request. Others must read it first, so they would
always lose against a writer that commits continuously. A writer that has lost twice therefore takes a turn: it replaces
the pointer by one that names the same version and its turn. That makes no version, but running attempts fail, because
the ETag that they depend on has changed. A process that reads the turn waits until the version changes, or as long as
the turn says. Only fairness depends on this: a commit is a compare-and-swap, whichever writer has the turn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec import Struct

from dolmen.base.runtime import POINTER_PUT, Signal, attempts
from dolmen.commit.change import NO_NOTE, Change, Effects, Note, make_version, summarize
from dolmen.commit.draft import Draft, Statement
from dolmen.commit.head import STAMP_SECONDS, Base, Head, Look, Stamp
from dolmen.commit.readback import Readback, read_back
from dolmen.commit.root_budget import RootBudget
from dolmen.commit.uploads import PendingUploads
from dolmen.errors import CorruptionError, Error, ObjectNotFoundError, StoreUnavailableError, UnknownOutcomeError
from dolmen.format.layout import POINTER, Pointer, Turn
from dolmen.format.manifest import HistoryEntry, Manifest
from dolmen.store.base import Stored, Unknown

_log = logging.getLogger("dolmen")
"""Logs commits and their attempts, without values of rows, predicates, messages or request ids."""

MOST_CHANGES = 256
"""The most changes in one version. Each adds an entry to the manifest, and some upload a ``.del`` object with it."""

_MOST_UNSTAMPED = 100
"""The most attempts that end without a date for the version, because the server's time is not known (``Head.stamp``).
After each one the pointer is read again, because every response shows the server's clock."""


class Committed(Struct, frozen=True):
    """The outcome of a commit."""

    # the version that the change became, with others or alone; None if there was nothing left to apply
    manifest: Manifest | None
    already: dict[str, int]  # the versions of requests that were applied before and left out, by request id
    attempts: int  # attempts to replace the pointer; each of them may send its PUT several times
    # effects, change: of this change alone, even if the version has others, too
    effects: Effects | None = None
    change: Change | None = None

    @property
    def entry(self) -> HistoryEntry | None:
        """The history's entry for this change alone; None if there was nothing left to apply."""
        if self.manifest is None:
            return None
        entry = self.manifest.as_history()
        if self.effects is None or self.change is None:
            return entry
        first_effects, further_effects = summarize(self.effects.on_tables)
        return msgspec.structs.replace(
            entry,
            commit_ts=self.effects.commit_ts,
            operation=self.change.operation,
            counts=self.effects.counts,
            did=first_effects,
            did_more=further_effects,
            message=self.change.note.message,
            metadata=dict(self.change.note.metadata),
        )


@dataclass(eq=False)
class Member:
    """A change that waits for a version, and its outcome."""

    change: Change
    uploads: PendingUploads
    signal: Signal  # set when there is an outcome, or when this change leads
    number: int = 0  # its place in the queue, set by ``CommitQueue.join``
    # its requests that committed versions had applied, with these versions
    already: dict[str, int] = field(default_factory=dict)
    attempts: int = 0  # as in ``Committed``
    outcome: Committed | Error | None = None

    def result(self) -> Committed:
        assert self.outcome is not None, "it has waited for its outcome"
        if isinstance(self.outcome, Error):
            raise self.outcome
        return self.outcome


def commit(head: Head, change: Change, uploads: PendingUploads) -> Committed:
    """Makes ``change`` the next version, alone or with others of this process that wait for the pointer.

    Raises:
        ConflictError, TableExistsError, ...: raised by the change's statements on the newest version.
        InputError: the version would not be readable.
        StoreUnavailableError: the store can't be reached; nothing was committed.
        UnknownOutcomeError: an attempt was sent, and its outcome cannot be found out.
    """
    if uploads.files and head.queue.has_leader:  # upload them now: they would delay the leader's next version
        change = change.with_first_upload(head.store.clock.now_us)
        uploads.upload_files()
    member = Member(change, uploads, head.runtime.signal())
    try:
        if not head.queue.join(member):
            member.signal.wait()
        if member.outcome is None:
            Leader(head, member).lead()
    finally:
        head.queue.leave(member)
    _log_outcome(head, member)
    return member.result()


def _log_outcome(head: Head, member: Member) -> None:
    outcome, operation = member.outcome, member.change.operation
    if isinstance(outcome, Error):
        _log.info("%s: %s: %s, attempts: %d", head.store.url, operation, type(outcome).__name__, member.attempts)
    elif outcome is not None and outcome.manifest is not None:
        version = outcome.manifest.version
        _log.info("%s: %s is in version %d, attempts: %d", head.store.url, operation, version, member.attempts)


def submit(
    head: Head,
    operation: str,
    statements: Sequence[Statement],
    *,
    first_upload_us: int | None = None,
    txid: str | None = None,
    uploads: PendingUploads | None = None,
) -> Committed:
    """Commits background work (see ``commit`` and ``Change``). Makes no version when nothing is left to do."""
    change = Change(
        commit_id=head.runtime.uuid(),
        operation=operation,
        statements=tuple(statements),
        first_upload_us=first_upload_us,
        txid=txid,
        is_background=True,
    )
    return commit(head, change, uploads or PendingUploads(head.store, head.runtime, head.segments))


@dataclass
class _AdaptedChange:
    """A change, adapted to the base and to the changes before it in the same version.

    ``already`` has its requests that an earlier version, or an earlier change of this one, has applied.
    """

    member: Member
    change: Change
    already: dict[str, int]

    @property
    def has_work(self) -> bool:
        """Whether some of its requests, or its statements, were not applied before."""
        return not self.already or bool(self.change.applied or self.change.statements)


class _NextVersion(NamedTuple):
    """A version that is made, and not sent yet: its manifest, its date, and what each of its changes does."""

    manifest: Manifest
    body: bytes  # the encoded manifest
    stamp: Stamp
    effects: list[Effects]


def _choose_group(waiting: list[Member], most: int) -> list[Member]:
    """The first changes that can become one version together, at most ``most``.

    Background work goes alone, because it makes no version if it has nothing to do. The notes of the others
    must fit into one (``Note.join``).
    """
    group = waiting[:1]
    if waiting[0].change.is_background:
        return group
    for member in waiting[1:]:
        if len(group) == most:
            break
        if member.change.is_background:
            continue
        note = member.change.note
        if note == NO_NOTE or Note.join([each.change.note for each in (*group, member)]) is not None:
            group.append(member)
    return group


def copy_error(error: Error) -> Error:
    """An equal error for another thread, because raising an error changes it."""
    if isinstance(error, UnknownOutcomeError):
        copied: Error = UnknownOutcomeError(error.commit_id, error.reason)
    else:
        copied = type(error).__new__(type(error), *error.args)
        vars(copied).update(vars(error))
    copied.__cause__ = error.__cause__
    return copied


class Leader:
    """Commits the changes that wait, together, until this thread's own has an outcome."""

    def __init__(self, head: Head, own: Member) -> None:
        self._head, self._runtime, self._queue, self._own_member = head, head.runtime, head.queue, own
        self._root_budget = RootBudget(head.runtime, head.segments)
        self._most_changes, self._unstamped = MOST_CHANGES, 0
        self._queued_before_base = 0  # the number of the last change that was queued before the base was read
        self._attempted: list[Member] = []
        self._sent = ""  # the commit id of a pointer that may have landed

    def lead(self) -> None:
        """Makes attempts until this thread's change has an outcome. An error of an attempt ends all of its changes."""
        try:
            self._begin()
            while self._own_member.outcome is None:
                self._attempt()
        except Error as error:
            for member in self._attempted or self._queue.all():
                self._queue.end(member, error if member is self._own_member else copy_error(error))
            self._attempted = []
        finally:
            for member in self._attempted:
                self._queue.end(member, self._interruption())

    def _interruption(self) -> Error:
        """The error of changes that were under way when this thread was interrupted."""
        if self._sent:
            return UnknownOutcomeError(self._sent, "the thread that sent it was interrupted")
        return StoreUnavailableError("the thread that committed this with other changes was interrupted; repeat it")

    def _begin(self) -> None:
        head = self._head
        # An attempt on an old base usually loses. The version after the base may expire before readback looks for it.
        if head.cached is None or max(head.age_seconds, head.store.clock.age_seconds) > STAMP_SECONDS:
            self._refresh()
        else:
            self._base = head.cached
        if (turn := self._base.turn) is not None and head.age_seconds < turn_seconds(turn):
            self._base = wait_before_retry(head, 0, 0.0)
        if self._base.etag is None:
            self._base = head.check_new(self._base)

    def _refresh(self) -> None:
        queued = self._queue.last_number
        self._base, self._queued_before_base = self._head.refresh(), queued

    def _attempt(self) -> None:
        """Makes the next version of the changes that wait, and tries to commit it."""
        head, began = self._head, self._runtime.monotonic()
        # Adapt first: it may end this thread's change, or read a newer base. Then there is nothing to commit yet.
        group = self._adapt()
        if not group:
            return
        applied = [each for each in group if each.has_work]
        # Each change records the time of its first upload before the manifest is made, to be compared with the fence.
        for each in applied:
            if each.member.uploads.has_objects:
                self._record_upload(each)
        version = self._make_version(applied)
        if version is None:
            return
        # From here on an interruption concerns the whole group. All objects are stored before the pointer names them.
        self._attempted = [each.member for each in group]
        spill = self._root_budget.take_waiting(head.store.clock.now_us)
        first, *others = (each.member.uploads for each in applied)
        first.upload(others, spill, version.manifest.key, version.body)
        if head.may_send(version.stamp):
            self._send(version, group, began)
            return
        self._attempted = []
        # The pointer was not sent: the stamp is too old, and so is the base; or a response has shown that the stamp was
        # wrong when it was made, and the next attempt only needs a new one.
        if head.seconds_since(version.stamp) > STAMP_SECONDS:
            self._refresh()

    def _make_version(self, applied: list[_AdaptedChange]) -> _NextVersion | None:
        """Makes the manifest of the changes; None if there is nothing to send, or not in this attempt."""
        head, base, first = self._head, self._base.manifest, applied[0]
        commit_id = first.change.commit_id if len(applied) == 1 else self._runtime.uuid()
        try:
            # The stamp first: it dates the version, and the pointer may be sent only while it is young (``may_send``).
            stamp = head.server_stamp(base)
            if stamp is None:
                self._unstamped += 1
                if self._unstamped > _MOST_UNSTAMPED:
                    raise StoreUnavailableError("the clocks of this machine disagree: set them right, and repeat it")
                self._refresh()
                return None
            changes = [each.change for each in applied]
            attempt_id = self._runtime.attempt_id()
            made, effects = make_version(changes, base, stamp.time_us, attempt_id, commit_id, head.segments)
            if made is None:
                self._queue.end(first.member, Committed(None, first.member.already, first.member.attempts))
                return None
            manifest = self._root_budget.spill_from(made, base, is_background=first.change.is_background)
            # The spill precedes the encoding. Decoding what was encoded proves that readers can read this version.
            return _NextVersion(*manifest.as_read(), stamp, effects)
        except Error as error:
            if len(applied) > 1:
                self._most_changes = 1  # each goes alone, and meets its own error
            elif self._is_final(first.member, error):
                self._queue.end(first.member, error)
            return None

    def _send(self, version: _NextVersion, group: list[_AdaptedChange], began: float) -> None:
        """Sends the pointer to a version of which all objects are stored."""
        head, manifest = self._head, version.manifest
        for member in self._attempted:
            member.attempts += 1
        # While ``_sent`` is set, the outcome is unknown: all changes get that error if this thread is interrupted.
        self._sent = manifest.commit_id
        _log.debug("%s: attempt at version %d with %d changes", head.store.url, manifest.version, len(version.effects))
        etag = _swap_pointer(head, self._base, manifest, version.stamp)
        self._sent = ""
        if etag is not None:
            # The head advances first, so that a thread that wakes up finds its own version.
            head.advance(Base(manifest, etag))
            head.keep_manifest(manifest, len(version.body))
            self._finish(group, manifest, version.effects)
            return
        _log.debug("%s: version %d became another commit's", head.store.url, manifest.version)
        # Another commit came first. All changes of the queue were added before the next base is read: an error that
        # one of them meets on that base is final.
        self._attempted = []
        queued = self._queue.last_number
        self._base = wait_before_retry(head, self._own_member.attempts, self._runtime.monotonic() - began)
        self._queued_before_base = queued

    def _adapt(self) -> list[_AdaptedChange]:
        """Adapts the changes that wait to the base, each to the effects of those before it.

        A change that fails after others may fail because of them. It waits for the next version, where it comes first.
        Returns an empty list if this thread's change has an outcome, or if the base was read again.
        """
        base, segments = self._base.manifest, self._head.segments
        members = _choose_group(self._queue.all(), self._most_changes)
        draft, adapted = Draft(base, segments), list[_AdaptedChange]()
        for member in members:
            try:
                # Requests that were applied before leave the change before anything is compared with the base.
                already = member.change.already_applied(draft.base, segments)
                change = member.change.without_requests(set(already))
                each = _AdaptedChange(member, change, member.already | already)
                if each.has_work:
                    if change.needs_preparing:  # it may read rows of the changes before it: their files must be stored
                        for other in adapted:
                            if other.has_work and other.member.uploads.files:
                                self._record_upload(other)
                                other.member.uploads.upload_files()
                    member.uploads.earlier = [other.member.uploads for other in adapted]
                    each.change = change = change.prepare(draft, member.uploads)
                    if len(members) > 1:  # applied to a copy: an error must leave no trace in the draft of the others
                        tried = draft.copy()
                        effects = change.apply(tried, draft.base.commit_ts + 1)
                        draft = tried.next_draft(effects.commit_ts, effects.applied)
            except Error as error:
                if adapted:  # perhaps the error is due to these: it waits for the next version
                    continue
                if self._is_final(member, error):
                    self._queue.end(member, error)
                return []
            # A request that a landed version applied stays applied. What an earlier change of this version applies
            # counts only if this attempt lands; until then the member keeps the request.
            if all(version <= base.version for version in already.values()):
                member.already, member.change = each.already, change
                if not each.has_work:
                    self._queue.end(member, Committed(None, member.already, member.attempts))
                    if member is self._own_member:
                        return []
                    continue
            adapted.append(each)
        return adapted

    def _record_upload(self, each: _AdaptedChange) -> None:
        """Records that objects of a change are about to be uploaded."""
        now_us = self._head.store.clock.now_us
        each.change = each.change.with_first_upload(now_us)
        each.member.change = each.member.change.with_first_upload(now_us)

    def _is_final(self, member: Member, error: Error) -> bool:
        """Whether an error is final, because the base is the newest version. Otherwise reads the newest one."""
        base, is_fresh = self._base.manifest, member.number <= self._queued_before_base
        is_missing = isinstance(error, CorruptionError) and error.is_missing
        if is_fresh and not is_missing:
            return True
        self._refresh()  # an error on a cached base proves nothing
        # A missing object is damage, unless the base has expired meanwhile.
        return is_fresh and base.version >= self._base.manifest.horizon

    def _finish(self, group: list[_AdaptedChange], manifest: Manifest, effects: list[Effects]) -> None:
        rest = iter(effects)
        self._attempted = []
        for each in group:
            member = each.member
            if not each.has_work:
                outcome = Committed(None, each.already, member.attempts)
            elif len(effects) == 1:
                outcome = Committed(manifest, each.already, member.attempts)
            else:
                outcome = Committed(manifest, each.already, member.attempts, next(rest), each.change)
            self._queue.end(member, outcome)


def _swap_pointer(head: Head, base: Base, manifest: Manifest, stamp: Stamp) -> str | None:
    """Puts the pointer. Returns its new ETag, or None if another commit or a turn certainly came first.

    It returns "" if only readback shows that the commit landed: the pointer may have moved on since.
    """
    pointer = Pointer(manifest.version, manifest.key, manifest.commit_id).encode()
    unknown, refusal = "", "the store reports that the pointer changed, but still shows the old one"
    for attempt in attempts(head.runtime, POINTER_PUT):
        if attempt.number and not head.may_send(stamp):
            break
        try:
            outcome = head.store.put(POINTER, pointer, if_match=base.etag)
        except StoreUnavailableError as error:  # this put did not land, but an earlier one may have
            refusal = str(error)
            continue
        except Error as error:
            if unknown:
                raise UnknownOutcomeError(manifest.commit_id, f"{unknown}, then {error}") from error
            raise
        if isinstance(outcome, Stored):
            return outcome.etag
        verdict = read_back(head, base, manifest.commit_id)
        if verdict is Readback.OURS:
            return ""
        if verdict in (Readback.THEIRS, Readback.TURN):
            return None
        if isinstance(outcome, Unknown):
            unknown = outcome.reason
        elif verdict is Readback.UNKNOWN:
            unknown = unknown or "the pointer was replaced, and the commit that did it can't be read"
    if unknown:
        raise UnknownOutcomeError(manifest.commit_id, unknown)
    raise StoreUnavailableError(f"the pointer could not be replaced: {refusal}")


LOSSES_BEFORE_TURN = 2
"""Attempts that a writer loses before it asks for a turn: with few competitors, the next one usually lands anyway."""

LONGEST_SECONDS = 5.0  # the longest wait for a turn, whatever the pointer says

_SHORTEST_SECONDS, _LEAST_TRIPS = 0.1, 0.1

_TRIPS = 4  # round trips of a lost attempt, with its readback

_PATIENCE = 6
"""Round trips between the first reads of a waiting process. It reads more often with each version that
passes, so the process that has waited longest mostly takes the next turn."""


def turn_seconds(turn: Turn) -> float:
    """How long others wait for a turn at most."""
    return min(turn.ms / 1_000, LONGEST_SECONDS)


def wait_before_retry(head: Head, losses: int, seconds: float) -> Base:
    """Waits until another attempt may succeed, and returns the newest version.

    After ``LOSSES_BEFORE_TURN`` lost attempts it takes a turn. ``seconds``: how long the last attempt took.
    """
    runtime = head.runtime
    own = Turn(runtime.uuid(), round(min(max(2 * seconds, _SHORTEST_SECONDS), LONGEST_SECONDS) * 1_000))
    if losses >= LOSSES_BEFORE_TURN:
        _log.debug("%s: asks for a turn of %d ms after %d lost attempts", head.store.url, own.ms, losses)
    else:
        runtime.sleep(runtime.random.uniform(0, min(seconds, LONGEST_SECONDS)))
    look = head.look()
    first = 0 if look is None else look.pointer.version
    while look is not None:
        look = _wait_for_others(head, look, own, first, min(seconds / _TRIPS, 1.0))
        if losses < LOSSES_BEFORE_TURN or look is None or look.turn == own:
            break
        try:
            with_turn = head.take_turn(look, own)
        except StoreUnavailableError:
            break  # the attempt finds out what is wrong
        if with_turn is not None:
            look = with_turn
            break
        look = head.look()  # another writer came first, or the response was lost
    try:
        return head.refresh() if look is None else head.follow(look)
    except ObjectNotFoundError:  # the version has expired in the meantime
        return head.refresh()


def _wait_for_others(head: Head, look: Look, own: Turn, first: int, trip: float) -> Look | None:
    """Waits while the pointer has another writer's turn. Returns the pointer then; None if there is none.

    ``first`` is the version that was the newest when this change began to wait; ``trip`` is the time of a round trip.
    """
    runtime, since, slept = head.runtime, look, 0.0
    latest: Look | None = look
    while latest is not None and latest.turn not in (None, own):
        if latest.etag != since.etag:
            since, slept = latest, 0.0
        assert latest.turn is not None
        if max(latest.at - since.at, slept) >= turn_seconds(latest.turn):
            break  # the writer that has the turn does not commit
        passed = latest.pointer.version - first
        pause = runtime.random.uniform(0.5, 1) * max(trip, 0.001) * max(_PATIENCE / (1 + passed), _LEAST_TRIPS)
        runtime.sleep(pause)
        slept += pause
        latest = head.look()
    return latest

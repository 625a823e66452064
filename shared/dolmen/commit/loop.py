"""The commit loop. A version is committed when the pointer names it, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dolmen.base.retry import POINTER_PUT, attempts
from dolmen.commit.change import Change, Effects, make_version
from dolmen.commit.draft import Draft
from dolmen.commit.group import MOST_CHANGES, Committed, Member, copy_error
from dolmen.commit.head import STAMP_SECONDS, Base, Head, Stamp, await_turn, turn_seconds
from dolmen.commit.readback import Readback, read_back
from dolmen.commit.statements.statement import Statement
from dolmen.commit.uploads import PendingUploads
from dolmen.errors import CorruptionError, Error, StoreUnavailableError, UnknownOutcomeError
from dolmen.format.layout import POINTER
from dolmen.format.manifest import Manifest
from dolmen.format.pointer import Pointer
from dolmen.store.base import Stored, Unknown

_MOST_UNSTAMPED = 100
"""Attempts of one commit that could not be dated. Each one reads the pointer, which shows the server's clock."""


def commit(head: Head, change: Change, uploads: PendingUploads) -> Committed:
    """Makes ``change`` the next version, alone or with others of this process that wait for the pointer meanwhile.

    Raises:
        ConflictError, TableExistsError, ...: raised by the change's statements on the newest version.
        InputError: the version would not be readable.
        StoreUnavailableError: the store can't be reached; nothing was committed.
        UnknownOutcomeError: an attempt was sent, and its outcome cannot be found out.
    """
    if uploads.files and head.queue.is_busy:  # they would go up with the leader's next version, which takes longer
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
    return member.result()


def submit(
    head: Head,
    operation: str,
    statements: Sequence[Statement],
    *,
    first_upload_us: int | None = None,
    txid: str | None = None,
    uploads: PendingUploads | None = None,
) -> Committed:
    """Commits background work (see ``commit``). Makes no version when others have left nothing to do.

    Args:
        operation: a word for ``history``.
        first_upload_us: the server's clock before its first object was uploaded; None without uploads.
        txid: the intent under which they were uploaded.
        uploads: holds ``.del`` objects that the statements refer to already.
    """
    change = Change(
        commit_id=head.runtime.uuid(),
        operation=operation,
        statements=tuple(statements),
        first_upload_us=first_upload_us,
        txid=txid,
        upkeep=True,
    )
    return commit(head, change, uploads or PendingUploads(head.store, head.runtime, head.segments))


@dataclass
class _Fitted:
    """A change that is fitted to the version so far.

    Args:
        found: its requests that were applied before, some perhaps by a change of the same version.
    """

    member: Member
    change: Change
    found: dict[str, int]

    @property
    def is_left(self) -> bool:
        """Whether anything of it is left to apply."""
        return not self.found or bool(self.change.applied or self.change.statements)


class Leader:
    """Commits the changes that wait, together, until its own is settled."""

    def __init__(self, head: Head, own: Member) -> None:
        self._head, self._runtime, self._queue, self._own = head, head.runtime, head.queue, own
        self._most, self._unstamped = MOST_CHANGES, 0
        self._read_for = 0  # the base was read after this change had joined, so its errors are no old base's
        self._under_way: list[Member] = []
        self._sent = ""  # the commit id of a pointer that may have landed

    def lead(self) -> None:
        """Makes attempts. An error of the store is an error of all changes that it concerns."""
        try:
            self._begin()
            while self._own.outcome is None:
                self._attempt()
        except Error as error:
            for member in self._under_way or self._queue.all():
                self._queue.settle(member, error if member is self._own else copy_error(error))
            self._under_way = []
        finally:
            for member in self._under_way:
                self._queue.settle(member, self._interruption())

    def _interruption(self) -> Error:
        """The error of changes that were under way when this thread was interrupted."""
        if self._sent:
            return UnknownOutcomeError(self._sent, "the thread that sent it was interrupted")
        return StoreUnavailableError("the thread that committed this with other changes was interrupted; repeat it")

    def _begin(self) -> None:
        head = self._head
        # An old base would lose its first attempt, and its successor may expire before readback looks for it.
        if head.cached is None or max(head.age_seconds, head.store.clock.age_seconds) > STAMP_SECONDS:
            self._refresh()
        else:
            self._base = head.cached
        if (turn := self._base.turn) is not None and head.age_seconds < turn_seconds(turn):
            self._base = await_turn(head, 0, 0.0)
        if self._base.etag is None:
            self._base = head.check_new(self._base)

    def _refresh(self) -> None:
        joined = self._queue.joined
        self._base, self._read_for = self._head.refresh(), joined

    def _attempt(self) -> None:
        """Makes the next version of what waits, and tries to commit it."""
        head, base, began = self._head, self._base, self._runtime.monotonic()
        group = self._fit()
        if not group:
            return
        applied = [each for each in group if each.is_left]
        for each in applied:
            if each.member.uploads.has_objects:
                self._note_upload(each)
        own = applied[0]
        commit_id = own.change.commit_id if len(applied) == 1 else self._runtime.uuid()
        try:
            stamp = head.stamp(base.manifest)
            if stamp is None:
                self._unstamped += 1
                if self._unstamped > _MOST_UNSTAMPED:
                    raise StoreUnavailableError("the clocks of this machine disagree: set them right, and repeat it")
                self._refresh()
                return
            changes = [each.change for each in applied]
            attempt = self._runtime.attempt()
            made, effects = make_version(changes, base.manifest, stamp.time_us, attempt, commit_id, head.segments)
            if made is None:
                self._queue.settle(own.member, Committed(None, own.member.already, own.member.tries))
                return
            manifest = own.member.uploads.root_budget.fit(made, base.manifest, upkeep=own.change.upkeep)
            manifest, body = manifest.as_read()
        except Error as error:
            if len(applied) > 1:
                self._most = 1  # each goes alone, and meets its own error
            elif self._is_final(own.member, error):
                self._queue.settle(own.member, error)
            return
        self._under_way = [each.member for each in group]
        own.member.uploads.upload(manifest.key, body, [each.member.uploads for each in applied[1:]])
        if head.may_send(stamp):
            for member in self._under_way:
                member.tries += 1
            self._sent = commit_id
            etag = _swing(head, base, manifest, stamp)
            self._sent = ""
            if etag is not None:
                head.advance(Base(manifest, etag))
                self._settle(group, manifest, effects)
                return
            self._under_way = []
            joined = self._queue.joined
            self._base = await_turn(head, self._own.tries, self._runtime.monotonic() - began)
            self._read_for = joined
            return
        self._under_way = []
        if head.seconds_since(stamp) > STAMP_SECONDS:  # else the last answer has the time
            self._refresh()

    def _fit(self) -> list[_Fitted]:
        """Fits the changes that wait to the base, each to what those before it make of it.

        An error of a change behind others may be due to those, which are not committed yet. So that change waits for
        the next version, where it comes first.

        Returns:
            Those that fit, first that of this thread. None if that is settled, or the base was read anew.
        """
        base, segments = self._base.manifest, self._head.segments
        members, draft, fitted = self._queue.first(self._most), Draft(base, segments), list[_Fitted]()
        for member in members:
            try:
                found = member.change.already_applied(draft.base, segments)
                change = member.change.without(set(found))
                each = _Fitted(member, change, member.already | found)
                if each.is_left:
                    if change.is_prepared:  # it may read the rows of those before it
                        for other in fitted:
                            if other.is_left and other.member.uploads.files:
                                self._note_upload(other)
                                other.member.uploads.upload_files()
                    member.uploads.beside = [other.member.uploads for other in fitted]
                    each.change = change = change.prepare(draft, member.uploads)
                    if len(members) > 1:
                        tried = draft.copy()
                        effects = change.apply(tried, draft.base.commit_ts + 1)
                        draft = tried.following(effects.commit_ts, effects.applied)
            except Error as error:
                if fitted:
                    continue
                if self._is_final(member, error):
                    self._queue.settle(member, error)
                return []
            if all(version <= base.version for version in found.values()):
                member.already, member.change = each.found, change  # true whatever becomes of this attempt
                if not each.is_left:
                    self._queue.settle(member, Committed(None, member.already, member.tries))
                    if member is self._own:
                        return []
                    continue
            fitted.append(each)
        return fitted

    def _note_upload(self, each: _Fitted) -> None:
        """Notes that objects of a change are about to be uploaded."""
        now_us = self._head.store.clock.now_us
        each.change = each.change.with_first_upload(now_us)
        each.member.change = each.member.change.with_first_upload(now_us)

    def _is_final(self, member: Member, error: Error) -> bool:
        """Whether an error is final, as the base is the newest version. Otherwise reads the newest one."""
        base, is_fresh = self._base.manifest, member.number <= self._read_for
        gone = isinstance(error, CorruptionError) and error.is_missing
        if is_fresh and not gone:
            return True
        self._refresh()  # an error on a cached base proves nothing
        # An object that is missing is damage, unless the base expired while the change was fitted to it.
        return is_fresh and base.version >= self._base.manifest.horizon

    def _settle(self, group: list[_Fitted], manifest: Manifest, effects: list[Effects]) -> None:
        """Ends the waiting of changes that have become a version."""
        rest = iter(effects)
        self._under_way = []
        for each in group:
            member = each.member
            if not each.is_left:
                outcome = Committed(None, each.found, member.tries)
            elif len(effects) == 1:
                outcome = Committed(manifest, each.found, member.tries)
            else:
                outcome = Committed(manifest, each.found, member.tries, next(rest), each.change)
            self._queue.settle(member, outcome)


def _swing(head: Head, base: Base, manifest: Manifest, stamp: Stamp) -> str | None:
    """Puts the pointer. Returns its new ETag if that committed, None if it certainly did not: another took the place.

    The ETag is "" if the commit landed and the pointer has moved on since.
    """
    pointer = Pointer(manifest.version, manifest.key, manifest.commit_id).encode()
    unknown, refusal = "", "the store answers that it changed, and shows that it did not"
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
            unknown = unknown or "the pointer was replaced, and by whom can't be read"
    if unknown:
        raise UnknownOutcomeError(manifest.commit_id, unknown)
    raise StoreUnavailableError(f"the pointer could not be replaced: {refusal}")

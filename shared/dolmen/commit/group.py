"""Groups: the changes that wait for the pointer at the same time in one process, which become one version together.

There is no thread for this. The first change that waits leads: it commits itself and all that are queued by then. Then
the next one that still waits leads.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import msgspec

from dolmen.base import arguments
from dolmen.base.runtime import Signal
from dolmen.commit.change import Change, Effects, join_messages, summarize
from dolmen.commit.uploads import PendingUploads
from dolmen.errors import Error, UnknownOutcomeError
from dolmen.format.manifest import HistoryEntry, Manifest

MOST_CHANGES = 256
"""The most changes in one version. Each adds an entry to the manifest, and some a ``.del`` object to what is uploaded
with it."""


@dataclass(frozen=True)
class Committed:
    """The outcome of a commit.

    Args:
        manifest: the version that the change became, with others or alone; None if there was nothing left to apply.
        already: the versions of requests that were applied before and left out, by request id.
        attempts: how often the pointer was put.
        effects: what this change did, if others are in the version, too.
        change: the change as it was applied.
    """

    manifest: Manifest | None
    already: dict[str, int]
    attempts: int
    effects: Effects | None = None
    change: Change | None = None

    @property
    def entry(self) -> HistoryEntry | None:
        """The entry of the history for this change alone; None if there was nothing left to apply."""
        if self.manifest is None:
            return None
        entry = self.manifest.as_history()
        if self.effects is None or self.change is None:
            return entry
        did, did_more = summarize(self.effects.on_tables)
        return msgspec.structs.replace(
            entry,
            commit_ts=self.effects.commit_ts,
            operation=self.change.operation,
            counts=self.effects.counts,
            did=did,
            did_more=did_more,
            message=self.change.message,
        )


@dataclass(eq=False)
class Member:
    """A change that waits for a version, and its outcome.

    Args:
        signal: set when there is an outcome, or when this change leads.
        number: its number among all changes of the process, in the order in which they were queued.
        already: requests of it that committed versions had applied.
        tries: how often the pointer was put for it.
    """

    change: Change
    uploads: PendingUploads
    signal: Signal
    number: int = 0
    already: dict[str, int] = field(default_factory=dict)
    tries: int = 0
    outcome: Committed | Error | None = None

    def result(self) -> Committed:
        """The outcome of the commit. Raises its error."""
        assert self.outcome is not None, "it has waited for its outcome"
        if isinstance(self.outcome, Error):
            raise self.outcome
        return self.outcome


class CommitQueue:
    """The changes of one process that wait for a version, in the order of their numbers; the first one leads."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()
        self._waiting: list[Member] = []
        self._leader: Member | None = None
        self._last_number = 0

    @property
    def last_number(self) -> int:
        """The number of the last change that was queued."""
        return self._last_number

    @property
    def is_busy(self) -> bool:
        """Whether a change leads."""
        return self._leader is not None and self._process == os.getpid()

    def join(self, member: Member) -> bool:
        """Adds a change. Returns whether it leads now; otherwise its signal will be set."""
        if self._process != os.getpid():
            self._begin()  # threads do not survive a fork: this process has no leader
        with self._lock:
            self._last_number += 1
            member.number = self._last_number
            self._waiting.append(member)
            if self._leader is not None:
                return False
            self._leader = member
            return True

    def first(self, most: int) -> list[Member]:
        """The first changes that can become one version together, at most ``most``.

        Background work goes alone, because it makes no version if it has nothing to do. So does a change that would
        make the message too long.
        """
        with self._lock:
            waiting = list(self._waiting)
        group = waiting[:1]
        if waiting[0].change.upkeep:
            return group
        for member in waiting[1:]:
            if len(group) == most:
                break
            if member.change.upkeep:
                continue
            said = join_messages([each.change for each in (*group, member)]) if member.change.message else ""
            if len(said.encode()) <= arguments.MAX_MESSAGE_BYTES:
                group.append(member)
        return group

    def all(self) -> list[Member]:
        """All changes that wait."""
        with self._lock:
            return list(self._waiting)

    def settle(self, member: Member, outcome: Committed | Error) -> None:
        """Ends the waiting of a change."""
        with self._lock:
            if member in self._waiting:
                self._waiting.remove(member)
            member.outcome = outcome
        member.signal.set()

    def leave(self, member: Member) -> None:
        """Takes a change out, whatever has become of it. If it led, the first of the others leads."""
        with self._lock:
            if member in self._waiting:
                self._waiting.remove(member)
            if self._leader is not member:
                return
            self._leader = following = self._waiting[0] if self._waiting else None
        if following is not None:
            following.signal.set()


def copy_error(error: Error) -> Error:
    """An equal error for another thread, because raising an error changes it."""
    if isinstance(error, UnknownOutcomeError):
        copied: Error = UnknownOutcomeError(error.commit_id, error.reason)
    else:
        copied = type(error).__new__(type(error), *error.args)
        vars(copied).update(vars(error))
    copied.__cause__ = error.__cause__
    return copied

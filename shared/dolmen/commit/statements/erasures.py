"""Statements that lead erasures from hidden to gone. None changes what a reader sees.

Each looks at the version on which it lands, so whatever was restored or tagged meanwhile is taken into account.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dolmen.commit.draft import Draft
from dolmen.entries.segments.erasures import erasures_of
from dolmen.entries.segments.held import least_held
from dolmen.format.erasures import Erasure, LeavingErasures, RewrittenErasures

LEAVE_PART = 8
"""Versions that list an erasure expire when 1/LEAVE_PART of its time is left."""


@dataclass(frozen=True)
class NoteRewritten:
    """Notes up to which erasure no file of any table holds rows any more."""

    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds a note, if it says more than the last one."""
        listed = erasures_of(draft.base, draft.segments)
        held = least_held(draft.tables.values(), draft.segments, {erasure.ts for erasure in listed})
        through = max((erasure.ts for erasure in listed if not held or erasure.ts < held), default=0)
        if through > max((each.through for each in draft.rewritten), default=0):
            draft.rewritten = (*draft.rewritten, RewrittenErasures(draft.version, through))


@dataclass(frozen=True)
class ForgetErasures:
    """Takes the oldest erasures from the list, which holds values, once no version that is kept needs them.

    Args:
        through: timestamp of the last erasure that may go: receipts of all up to it are written.
        now_us: the server's clock.
        listed_us: how long an erasure is held against late drops, in microseconds.
        left_at: a time by the server's clock after which nobody uploads what an older manifest says.
    """

    through: int
    now_us: int
    listed_us: int
    left_at: int
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Moves those that may go to ``leaving``, and releases their records."""
        listed = erasures_of(draft.base, draft.segments)
        leaving = forgettable(
            listed, forgotten_through(draft), through=self.through, now_us=self.now_us, listed_us=self.listed_us
        )
        if not leaving:
            return
        last = leaving[-1].ts
        kept = _unspilled(draft, last)
        draft.erasures = tuple(erasure for erasure in (*kept, *draft.erasures) if erasure.ts > last)
        draft.release(erased.tombstone.blob.object for erasure in leaving for erased in erasure.tables)
        draft.rewritten = tuple(each for each in draft.rewritten if each.through > last)
        entry = LeavingErasures(
            draft.version,
            tuple(erasure.id for erasure in leaving),
            self.left_at,
            min(
                erasure.hurried_at or erasure.due_at - (erasure.due_at - erasure.requested_at) // LEAVE_PART
                for erasure in leaving
            ),
            min(erasure.due_at for erasure in leaving),
            min(erasure.requested_at for erasure in leaving),
        )
        draft.leaving = (*draft.leaving, entry)


def _unspilled(draft: Draft, last: int) -> list[Erasure]:
    """Takes segments of erasures with timestamps up to this one off the list; returns those that are not all of them.

    A segment that has none beyond is released with all that its entries name.
    """
    kept: list[Erasure] = []
    segments = []
    for segment in draft.own_segments:
        if segment.kind != "erasures" or segment.least > last:
            segments.append(segment)
        elif segment.greatest <= last:
            draft.release_tree(segment)
        else:
            draft.release([segment.object])
            kept += draft.segments.erasures(segment)
    draft.own_segments = tuple(segments)
    return kept


@dataclass(frozen=True)
class HurryErasure:
    """Makes the rows of an erasure leave the disk as soon as they can.

    Args:
        id: the erasure.
        now_us: the server's clock.
    """

    id: str
    now_us: int
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Marks it in the list, or lets the versions before it left the list expire; nothing if it is gone."""
        draft.leaving = tuple(
            msgspec.structs.replace(each, expire_at=min(each.expire_at, self.now_us)) if self.id in each.ids else each
            for each in draft.leaving
        )
        segments = []
        for segment in draft.own_segments:
            spilled = draft.segments.erasures(segment) if segment.kind == "erasures" else ()
            if any(erasure.id == self.id for erasure in spilled):
                draft.release([segment.object])
                draft.erasures = (*spilled, *draft.erasures)
            else:
                segments.append(segment)
        draft.own_segments = tuple(segments)
        draft.erasures = tuple(
            msgspec.structs.replace(erasure, hurried_at=max(self.now_us, erasure.requested_at))
            if erasure.id == self.id and not erasure.hurried_at
            else erasure
            for erasure in draft.erasures
        )


def forgotten_through(held: Draft) -> int:
    """Timestamp up to which no version that is kept holds rows of an erasure, or shows them without it; 0 = of none."""
    oldest = min([held.horizon, *(tag.version for tag in held.tags.values())])
    return max((each.through for each in held.rewritten if each.version <= oldest), default=0)


def forgettable(
    listed: tuple[Erasure, ...], until: int, *, through: int, now_us: int, listed_us: int
) -> tuple[Erasure, ...]:
    """The erasures that may leave the list: the oldest ones, all up to the first that may not.

    Args:
        listed: oldest first.
        until: see ``forgotten_through``.
        through: timestamp of the last one that may go.
        now_us: the server's clock.
        listed_us: how long an erasure is held against late drops at most, in microseconds.
    """
    for place, erasure in enumerate(listed):
        if erasure.ts > min(until, through) or erasure.requested_at > now_us - erasure.memory_us(listed_us):
            return listed[:place]
    return listed


@dataclass(frozen=True)
class CloseErasures:
    """Takes erasures whose receipts say that they are gone from ``leaving``."""

    ids: frozenset[str]
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes the ids, and entries without any."""
        left = []
        for entry in draft.leaving:
            ids = tuple(id_ for id_ in entry.ids if id_ not in self.ids)
            if ids:
                left.append(msgspec.structs.replace(entry, ids=ids))
        draft.leaving = tuple(left)


@dataclass(frozen=True)
class WakeTables:
    """Brings idle tables back into the manifest whose section also holds an entry of another time.

    Args:
        sections: keys of these sections.
    """

    sections: frozenset[str]
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Puts the whole entries in place of their stubs. The sections are released with that."""
        for name, stub in list(draft.tables.items()):
            if stub.section is not None and stub.section.object in self.sections:
                draft.tables[name] = draft.segments.whole(stub)

"""Changes of one process that wait for the pointer at the same time, without threads."""

from __future__ import annotations

import threading

from dolmen.commit.change import Change
from dolmen.commit.loop import Committed, Leader, Member
from dolmen.errors import Error
from dolmen.format.manifest import Manifest
from support.commit_world import Writer


def commit_together(writer: Writer, *changes: Change) -> list[Committed | Error]:
    """Commits changes that have all joined before the first one leads. Returns their outcomes."""
    members = [Member(change, writer.uploads(), threading.Event()) for change in changes]
    queue = writer.head.queue
    leads = [queue.join(member) for member in members]
    assert leads == [True, *[False] * (len(changes) - 1)]
    for member in members:
        if member.outcome is None:
            Leader(writer.head, member).lead()
        queue.leave(member)
    assert all(member.signal.wait(0) for member in members)
    return [member.outcome for member in members if member.outcome is not None]


def version_of(outcome: Committed | Error) -> Manifest:
    """The version that a change became."""
    assert isinstance(outcome, Committed), outcome
    assert outcome.manifest is not None
    return outcome.manifest

"""Commits the fence that collection commits before it deletes."""

from __future__ import annotations

from collections.abc import Sequence

from dolmen import Database
from dolmen.commit.change import Change
from dolmen.commit.head import context_of
from dolmen.commit.loop import commit
from dolmen.commit.statements.background import MoveFence
from dolmen.commit.uploads import PendingUploads


def move_fence(db: Database, horizon: int | None = None, revoke: Sequence[str] = ()) -> None:
    """Expires versions before ``horizon``, and revokes jobs.

    Args:
        revoke: txids of the jobs' intents.
    """
    context = context_of(db)
    now = context.head.refresh().manifest
    seen = now.horizon, now.orphan_cutoff
    fence = MoveFence(seen, now.horizon if horizon is None else horizon, now.orphan_cutoff, tuple(revoke))
    change = Change(context.runtime.uuid(), "gc", (fence,))
    commit(context.head, change, PendingUploads(context.store, context.runtime, context.segments))

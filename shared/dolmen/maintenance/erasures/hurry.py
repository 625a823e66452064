"""Hurries an erasure: its rows leave the disk as soon as running readers allow, instead of by its deadline."""

from __future__ import annotations

from dolmen.commit.context import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.erasures import HurryErasure
from dolmen.maintenance.erasures.status import ErasureStatus, status_of
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.run import maintain

OPERATION = "hurry"
_ROUNDS = 4
"""Collections that can do something at once: a note, versions that expire, the list, versions that had the list."""


def hurry_erasure(context: Context, id_: str) -> ErasureStatus:
    """Rewrites the files that hold rows of an erasure, and lets the versions that need these files expire.

    What follows takes ``reader_grace`` and ``orphan_age``, and is left to the next collections. Repeated, it goes on.

    Raises:
        NotFoundError: there is neither an erasure nor a receipt of this id.
        Error: of a step that failed; the others are done.
    """
    if status_of(context, id_).state == "gone":
        return status_of(context, id_)
    now_us = max(context.store.clock.now_us, context.head.refresh().manifest.created_at)
    submit(context.head, OPERATION, [HurryErasure(id_, now_us)])
    done = maintain(context, steps=("resolve", "compact", "merge"))
    for _ in range(_ROUNDS):
        before = context.head.refresh().manifest.version
        collect(context)
        if context.head.refresh().manifest.version == before:
            break
    for failure in done.failures:
        raise failure.error
    return status_of(context, id_)

"""Pending erasures: those that are due first, and how many are in danger."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.commit.context import Context
from dolmen.entries.segments.erasures import erasures_of
from dolmen.format.manifest import Manifest
from dolmen.maintenance.erasures.figures import is_in_danger
from dolmen.maintenance.erasures.status import ErasureStatus, pending_statuses
from dolmen.maintenance.health.health import PendingErasure

MOST_ERASURES = 20
"""The most erasures that are told of one by one: each costs the request of its receipt."""


@dataclass(frozen=True)
class ErasureOverview:
    """The erasures of a version.

    Args:
        first: those that are due first.
        left_out: number of the others.
        in_danger: number of all of which hardly any time is left, as far as the manifest knows.
    """

    first: tuple[PendingErasure, ...] = ()
    left_out: int = 0
    in_danger: int = 0


def pending_erasures(context: Context, manifest: Manifest, now_us: int) -> ErasureOverview:
    """Finds the erasures of which some object may still hold rows. Costs no request for a database without erasures."""
    spans = {each.id: (each.due_at, each.requested_at) for each in erasures_of(manifest, context.segments)}
    spans |= {id_: (each.due_at, each.requested_at) for each in manifest.leaving for id_ in each.ids}
    if not spans:
        return ErasureOverview()
    first = sorted(spans, key=lambda id_: (spans[id_], id_))[:MOST_ERASURES]
    found = {status.id: status for status in pending_statuses(context, manifest, frozenset(first))}
    told = [_pending(found[id_], *spans[id_], now_us) for id_ in first if id_ in found]
    others = spans.keys() - set(first)
    endangered = sum(is_in_danger(spans[id_][1], spans[id_][0], now_us) for id_ in others)
    pending = tuple(each for each in told if each.state != "gone")
    return ErasureOverview(pending, len(others), endangered + sum(each.in_danger for each in pending))


def _pending(status: ErasureStatus, due_at: int, requested_at: int, now_us: int) -> PendingErasure:
    tables = tuple(each.name or "a dropped table" for each in status.receipt.tables)
    danger = status.state != "gone" and is_in_danger(requested_at, due_at, now_us)
    return PendingErasure(
        status.id, status.state, requested_at, due_at, danger, tables, status.next_step, status.next_at
    )

"""Collection (GC): what no kept version needs is deleted, by nobody else and never before a commit said so.

One commit moves the horizon and the fence; then everything is judged by THAT commit's own manifest, or a later one.
What it does not name and was uploaded before the fence can't be committed any more, so whatever lands afterwards, a
deleted object is never missed. Every step may be repeated: after a crash at any point the next run goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Freed, MoveFence
from dolmen.commit.statements.base import Statement
from dolmen.context import Context
from dolmen.errors import ConflictError
from dolmen.format.manifest import Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance import never
from dolmen.maintenance.gc.eraser import Amount, ObjectEraser
from dolmen.maintenance.gc.intents import clear_intent, finished_intents
from dolmen.maintenance.gc.keyset import KeySet
from dolmen.maintenance.gc.mark import Marker, mark
from dolmen.maintenance.gc.plan import OPERATION, CollectionPlan, freeable, next_horizon, plan
from dolmen.maintenance.gc.release import Release
from dolmen.maintenance.gc.report import Collected
from dolmen.maintenance.gc.sweep import Sweep, sweepable
from dolmen.store.backoff import attempts

_FENCES = 10
"""So often it plans again because another collection moved the fence first."""


def collect(
    context: Context,
    *,
    dry_run: bool = False,
    deadline: Callable[[], bool] = never,
    settings: DatabaseSettings | None = None,
    full: bool = False,
    marker: Marker = mark,
) -> Collected:
    """Lets old versions expire and deletes what no kept version needs.

    What versions dropped that expire now goes in a later run, once ``reader_grace`` is over.

    Args:
        dry_run: only say what would be done.
        deadline: True = stop now; asked between batches. What was done is recorded, and the next run goes on.
        settings: by default those of the database.
        full: look at all objects for orphans, also where earlier runs have looked.
        marker: works out what must stay; always asked about a version from which on the fence stands.

    Raises:
        ConflictError: other collections moved the fence all the time.
        UnknownOutcomeError: a commit may or may not have landed; nothing was deleted after it.
        VersionExpiredError: it stood still until others had collected what it was to read: run it again.
    """
    manifest, planned, chosen = _move_fence(context, settings, full=full, dry_run=dry_run)
    if manifest.version == 0:
        return Collected(0, 0, dry_run=dry_run)
    with context.reading(manifest.version):
        own = settings is None
        return _Collection(
            context, chosen, manifest, planned, deadline, marker, own=own, dry_run=dry_run, full=full
        ).run()


def _move_fence(
    context: Context, settings: DatabaseSettings | None, *, full: bool, dry_run: bool
) -> tuple[Manifest, CollectionPlan, DatabaseSettings]:
    """Moves horizon and fence, if that is called for; a version from which on they stand."""
    head = context.head
    for _ in attempts(context.runtime, _FENCES):
        manifest = head.refresh().manifest
        chosen = settings or DatabaseSettings.of(manifest)
        with context.reading(manifest.version):
            planned = plan(head, manifest, chosen, full=full)
        if dry_run or manifest.version == 0 or not planned.moves:
            return manifest, planned, chosen
        seen = (manifest.horizon, manifest.orphan_cutoff)
        fence = MoveFence(
            seen,
            planned.horizon,
            planned.orphan_cutoff,
            planned.revoke,
            planned.applied_before,
            None if settings else chosen,
        )
        try:
            done = submit(head, OPERATION, [fence])
        except ConflictError as error:
            conflict = error
            continue
        return done.manifest or head.refresh().manifest, planned, chosen
    raise conflict


class _Collection:
    """One run after the fence.

    Args:
        manifest: of the commit that moved the fence, or a later one.
        own: whether the settings are those of the database.
    """

    def __init__(
        self,
        context: Context,
        settings: DatabaseSettings,
        manifest: Manifest,
        planned: CollectionPlan,
        deadline: Callable[[], bool],
        marker: Marker,
        *,
        own: bool,
        dry_run: bool,
        full: bool,
    ) -> None:
        self._held_to = settings if own else None
        self._context, self._settings, self._manifest, self._planned = context, settings, manifest, planned
        self._deadline, self._marker, self._dry_run, self._full = deadline, marker, dry_run, full
        self._eraser = ObjectEraser(context.store, dry_run=dry_run)
        self._now_us = max(planned.now_us, manifest.created_at)
        self._through = freeable(manifest, settings, self._now_us)
        self._freed, self._swept = manifest.freed, manifest.swept
        self._listed = False
        self._waiting: Amount | None = None
        self._marked: KeySet | None = None

    @property
    def _kept(self) -> KeySet:
        """What must stay: of the newest version, and of older ones that are kept or may still be read from."""
        if self._marked is None:  # not a cached_property: up to Python 3.11 all of a class wait for one that fetches
            self._marked = self._marker(self._manifest, self._context.segments, self._through)
        return self._marked

    def run(self) -> Collected:
        """Deletes, records how far it came, and lets the next versions expire."""
        finished = self._clear_intents() and self._release() and self._sweep()
        newest = self._record()
        horizon = max(newest.horizon, self._planned.horizon if self._dry_run else 0)
        return Collected(
            version=newest.version,
            horizon=horizon,
            versions_expired=max(0, horizon - max(self._planned.horizon_before, 1)),
            deleted=self._eraser.deleted,
            revoked=self._planned.revoke,
            waiting=self._waiting,
            errors=self._eraser.errors,
            finished=finished,
            dry_run=self._dry_run,
        )

    def _clear_intents(self) -> bool:
        for intent in finished_intents(self._planned.intents, self._manifest):
            if self._deadline():
                return False
            clear_intent(self._context.store, self._eraser, intent, self._manifest, None if intent.done else self._kept)
        return True

    def _release(self) -> bool:
        if self._through <= self._manifest.freed:
            return True
        if self._deadline():
            return False
        context = self._context
        release = Release(
            context.store, context.segments, self._eraser, self._manifest, self._kept, self._through, self._deadline
        )
        progress = release.run()
        self._freed, self._listed = progress.freed, progress.complete
        return progress.complete

    def _sweep(self) -> bool:
        if not self._planned.sweep:
            return True
        if self._deadline():
            return False
        cutoff = self._planned.orphan_cutoff if self._dry_run else self._manifest.orphan_cutoff
        kept = self._kept
        if self._freed < self._through:  # a segment on the list is no orphan: by it the next run finds what is left
            kept = self._marker(self._manifest, self._context.segments, self._freed)
        sweep = Sweep(
            self._context.head,
            self._eraser,
            self._manifest,
            kept,
            sweepable(cutoff),
            self._deadline,
            full=self._full,
        )
        swept = sweep.run()
        self._swept, self._waiting = swept.swept, swept.waiting
        return swept.complete

    def _record(self) -> Manifest:
        """Takes what is done off the list, and moves the horizon on once the list of the last one is empty."""
        manifest, head = self._manifest, self._context.head
        if self._dry_run:
            return manifest
        statements: list[Statement] = []
        if self._freed > manifest.freed or self._swept > manifest.swept:
            statements.append(Freed(self._freed, self._swept))
        if self._listed and self._through == manifest.horizon:
            horizon = next_horizon(head, manifest, self._settings, self._planned.now_us)
            if horizon > manifest.horizon:
                seen = (manifest.horizon, manifest.orphan_cutoff)
                fence = MoveFence(seen, horizon, manifest.orphan_cutoff, settings=self._held_to)
                try:
                    return submit(head, OPERATION, [*statements, fence]).manifest or head.refresh().manifest
                except ConflictError:  # another collection has let versions expire, or other settings hold
                    return self._submit(statements)
        return self._submit(statements)

    def _submit(self, statements: list[Statement]) -> Manifest:
        if not statements:
            return self._manifest
        head = self._context.head
        return submit(head, OPERATION, statements).manifest or head.refresh().manifest

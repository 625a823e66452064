"""Collection (GC): deletes objects that no kept version needs, only after a commit has said so.

One commit moves the horizon and the fence. Then everything is judged by that commit's own manifest, or a later one.
An object that this manifest does not name, and that was uploaded before the fence, can no longer be committed. So
whatever lands afterwards needs no deleted object. Every step may be repeated: after a crash at any point the next run
goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dolmen.base.cached import cached_property
from dolmen.commit.context import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import CollectionProgress, MoveFence
from dolmen.commit.statements.base import Statement
from dolmen.commit.statements.erasures import CloseErasures
from dolmen.errors import ConflictError
from dolmen.format.manifest import Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.iceberg.pins import published_tables
from dolmen.iceberg.published_objects import publications_before
from dolmen.maintenance import never
from dolmen.maintenance.erasures.closing import Closing
from dolmen.maintenance.erasures.figures import figures_of
from dolmen.maintenance.erasures.progress import erasure_work
from dolmen.maintenance.erasures.receipts import describe_erasures
from dolmen.maintenance.gc.eraser import Amount, ObjectEraser
from dolmen.maintenance.gc.intents import clear_intent, finished_intents
from dolmen.maintenance.gc.keyset import KeySet
from dolmen.maintenance.gc.mark import Marker, mark
from dolmen.maintenance.gc.plan import OPERATION, CollectionPlan, freeable, next_horizon, plan
from dolmen.maintenance.gc.publications import PublicationSweep
from dolmen.maintenance.gc.release import Release
from dolmen.maintenance.gc.report import Collected
from dolmen.maintenance.gc.sweep import Sweep, sweepable
from dolmen.store.backoff import attempts

_FENCES = 10
"""How often collection plans again because another one moved the fence first."""


def collect(
    context: Context,
    *,
    dry_run: bool = False,
    deadline: Callable[[], bool] = never,
    settings: DatabaseSettings | None = None,
    full: bool = False,
    marker: Marker = mark,
    outside: Sequence[str] = (),
) -> Collected:
    """Lets old versions expire, and deletes objects that no kept version needs.

    Objects of versions that expire now are deleted by a later run, once ``reader_grace`` is over.

    Args:
        dry_run: report what would be deleted, and delete nothing.
        deadline: True = stop now; asked between batches. Progress is recorded, and the next run goes on.
        settings: retention settings; by default those of the database.
        full: look for orphans among all objects, including those that earlier runs have looked at.
        marker: finds the objects to keep; it is called with a version at or after the fence.
        outside: URLs of places whose objects receipts of erasures tell.

    Raises:
        ConflictError: other collections moved the fence again and again.
        UnknownOutcomeError: a commit may or may not have landed; nothing was deleted after it.
        VersionExpiredError: it was halted so long that others collected objects it needs: run it again.
    """
    manifest, planned, chosen = _move_fence(context, settings, full=full, dry_run=dry_run)
    if manifest.version == 0:
        return Collected(0, 0, dry_run=dry_run)
    with context.reading(manifest.version):
        own = settings is None
        return _Collection(
            context, chosen, manifest, planned, deadline, marker, outside, own=own, dry_run=dry_run, full=full
        ).run()


def _move_fence(
    context: Context, settings: DatabaseSettings | None, *, full: bool, dry_run: bool
) -> tuple[Manifest, CollectionPlan, DatabaseSettings]:
    """Moves horizon and fence if there is a reason to. Returns a version in which they stand, the plan, the
    settings."""
    head = context.head
    for _ in attempts(context.runtime, _FENCES):
        manifest = head.refresh().manifest
        chosen = settings or DatabaseSettings.of(manifest)
        with context.reading(manifest.version):
            planned = plan(head, manifest, chosen, full=full)
        if dry_run or manifest.version == 0 or not planned.moves:
            return manifest, planned, chosen
        seen = (manifest.horizon, manifest.orphan_cutoff)
        work = planned.erasures
        describe_erasures(context, manifest, work)
        fence = MoveFence(
            seen,
            planned.horizon,
            planned.orphan_cutoff,
            planned.revoke,
            planned.applied_before,
            None if settings else chosen,
            planned.now_us,
            work.forced,
        )
        try:
            done = submit(head, OPERATION, [*work.before_fence(), fence, *work.after_fence()])
        except ConflictError as error:
            conflict = error
            continue
        return done.manifest or head.refresh().manifest, planned, chosen
    raise conflict


class _Collection:
    """The part of a run after the fence.

    Args:
        manifest: the manifest of the commit that moved the fence, or a later one.
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
        outside: Sequence[str],
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
        self._closed: frozenset[str] = frozenset()
        self._outside = outside

    @cached_property
    def _kept(self) -> KeySet:
        """Keys of the objects to keep: those of the newest version, and of older ones that may still be read."""
        return self._marker(self._manifest, self._context.segments, self._through)

    def run(self) -> Collected:
        """Deletes, records the progress, and lets the next versions expire."""
        finished = (
            self._clear_intents() and self._release() and self._sweep() and self._sweep_publications() and self._close()
        )
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
            erasures=figures_of(newest, self._context.segments, self._now_us),
            erasures_gone=len(self._closed),
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
        if self._freed < self._through:  # a segment on the work list is no orphan: the next run needs it
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

    def _sweep_publications(self) -> bool:
        return self._publications().run()

    def _publications(self) -> PublicationSweep:
        return PublicationSweep(
            self._context,
            self._eraser,
            self._context.head.refresh().manifest if published_tables(self._manifest) else self._manifest,
            self._settings,
            self._now_us,
            self._deadline,
            full=self._full or bool(self._manifest.leaving),  # an erasure may have taken the pins of old publications
            dry_run=self._dry_run,
        )

    def _close(self) -> bool:
        """Writes the receipts of erasures of which nothing is left."""
        if self._dry_run:
            return True
        planned = self._planned
        freed = min(self._freed, self._through)
        closing = Closing(
            self._context,
            self._manifest,
            planned.intents,
            self._now_us,
            freed,
            self._swept,
            self._deadline,
            partial(publications_before, self._context),
            lambda: self._kept,
            self._outside,
        )
        complete = closing.run()
        self._closed = frozenset(closing.closed)
        self._eraser.errors.update(closing.errors)
        return complete

    def _record(self) -> Manifest:
        """Removes finished work from the list. Once the list is empty, moves the horizon forward."""
        manifest, head = self._manifest, self._context.head
        if self._dry_run:
            return manifest
        statements: list[Statement] = []
        if self._freed > manifest.freed or self._swept > manifest.swept:
            statements.append(CollectionProgress(self._freed, self._swept))
        if self._closed:
            statements.append(CloseErasures(self._closed))
        if self._listed and self._through == manifest.horizon:
            now_us = self._planned.now_us
            horizon = next_horizon(head, manifest, self._settings, now_us)
            work = erasure_work(manifest, self._context.segments, self._settings, now_us, horizon)
            if max(horizon, work.forced) > manifest.horizon:
                describe_erasures(self._context, manifest, replace(work, forgets=()))
                seen = (manifest.horizon, manifest.orphan_cutoff)
                fence = MoveFence(
                    seen, horizon, manifest.orphan_cutoff, settings=self._held_to, now_us=now_us, forced=work.forced
                )
                try:
                    return submit(head, OPERATION, [*statements, fence]).manifest or head.refresh().manifest
                except ConflictError:  # another collection has let versions expire, or the settings have changed
                    return self._submit(statements)
        return self._submit(statements)

    def _submit(self, statements: list[Statement]) -> Manifest:
        if not statements:
            return self._manifest
        head = self._context.head
        return submit(head, OPERATION, statements).manifest or head.refresh().manifest

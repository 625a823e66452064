"""Collection (GC): deletes objects that no kept version needs, after a commit that moves the horizon and the fence.

Other steps use that commit's manifest, or a later one (docs/protocol.md). Every step may be repeated: after a crash at
any point the next run continues. Its words:

- horizon: the oldest version that may be read; earlier ones have expired.
- fence: the time ``orphan_cutoff``. Objects uploaded before it can no longer become part of a commit.
- released: objects that a commit's version no longer needs; they are deleted up to version ``freed``.
- orphans: objects that no commit can name any more; those last modified before the time ``swept`` are deleted.
- leaving: erasures that are no longer listed, but whose rows some object may still hold. After that they are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from msgspec import Struct

from dolmen.base.records import FactSheet, replace
from dolmen.base.runtime import FENCE, attempts, cached_property, never
from dolmen.base.units import count_text
from dolmen.commit.draft import Statement
from dolmen.commit.head import Context, Head
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import CollectionProgress, MoveFence
from dolmen.commit.statements.erasures import CloseErasures
from dolmen.commit.versions import newest_at
from dolmen.errors import ConflictError
from dolmen.format.manifest import HistoryEntry, Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.iceberg.publication_upkeep import sweep_publications
from dolmen.maintenance.erasures.erasure_receipts import ReceiptFinisher, write_receipts
from dolmen.maintenance.erasures.erasure_work import ErasureWork, erasure_work
from dolmen.maintenance.erasures.status import ErasureFigures, figures_of
from dolmen.maintenance.gc.deletion import Amount, ObjectDeleter, ReleasedDeleter
from dolmen.maintenance.gc.mark import KeySet, Marker, mark
from dolmen.maintenance.gc.sweep import (
    ListedIntent,
    Sweep,
    clear_intent,
    dead_jobs,
    has_objects_to_sweep,
    intents_to_clear,
    list_intents,
    sweep_cutoff,
)

OPERATION = "gc"
"""The operation of collection's commits in the history. Only commits of other operations are a reason to collect."""

REASONS: dict[str, str] = {
    "released": "dropped by expired versions",
    "manifests": "manifests of expired versions",
    "orphans": "orphans",
    "revoked": "left by dead jobs",
    "intents": "intents",
    "publications": "replaced publications",
}
"""Reasons for deleting objects, in words."""


@dataclass(frozen=True, repr=False)
class Collected(FactSheet):
    """The result of one collection."""

    version: int  # the newest version at its end
    horizon: int  # the oldest version that can be read now
    # number of versions that expired; their objects are deleted once ``reader_grace`` is over
    versions_expired: int = 0
    # objects and bytes by reason (``REASONS``). Objects that versions released are not measured; their bytes count as
    # 0.
    deleted: Mapping[str, Amount] = field(default_factory=dict)
    revoked: tuple[str, ...] = ()  # txids of jobs that counted as dead
    # orphans that are too young to delete, including uploads of running commits; None if none were listed
    waiting: Amount | None = None
    # reasons by key of objects that could not be deleted, or of receipts that could not be written; the next run tries
    # them again
    errors: Mapping[str, str] = field(default_factory=dict)
    # figures of the erasures whose rows are not gone yet
    erasures: ErasureFigures = field(default_factory=ErasureFigures)
    erasures_gone: int = 0  # number of erasures whose receipts were completed: no object holds their rows any more
    finished: bool = True  # False if the deadline stopped it before its work was done
    dry_run: bool = False  # True if nothing was deleted: the figures say what a run would delete

    @property
    def objects(self) -> int:
        return sum(amount.objects for amount in self.deleted.values())

    @property
    def bytes(self) -> int:
        return sum(amount.bytes for amount in self.deleted.values())

    def facts(self) -> list[tuple[str, str]]:
        waiting, first_error = self.waiting, min(self.errors, default="")
        least = f", at least {self.bytes:,} bytes" if self.bytes else ""
        deleted = [(words, self.deleted.get(reason)) for reason, words in REASONS.items()]
        lines = [
            ("would delete" if self.dry_run else "deleted", count_text(self.objects, "object") + least),
            ("oldest version kept", f"{max(self.horizon, 1):,}" if self.version else ""),
            ("versions expired", _number(self.versions_expired)),
            *((words, _amount_text(amount) if amount else "") for words, amount in deleted),
            ("dead jobs revoked", _number(len(self.revoked))),
            ("orphans too young to go", _amount_text(waiting) if waiting and waiting.objects else ""),
            ("erasures gone from the disk", _number(self.erasures_gone)),
            (
                "not deleted",
                f"{len(self.errors):,}, {first_error} first: {self.errors[first_error]}" if self.errors else "",
            ),
            ("finished", "" if self.finished else "no: the next run continues"),
        ]
        return [(name, value) for name, value in lines if value]


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


def _amount_text(amount: Amount) -> str:
    return f"{amount.objects:,}" + (f" ({amount.bytes:,} bytes)" if amount.bytes else "")


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
    """Lets old versions expire, and deletes objects that no kept version needs. See ``Database.gc``.

    Objects of versions that expire now are deleted by a later run, once ``reader_grace`` is over.

    Args:
        settings: retention settings; by default those of the database.
        marker: finds the objects to keep; it is called with a version at or after the fence.
        outside: URLs outside the database, such as landing buckets; receipts of erasures count their objects.

    Raises:
        ConflictError: other collections kept moving the fence.
        UnknownOutcomeError: a commit may or may not have landed; nothing was deleted after it.
        VersionExpiredError: it was halted so long that others collected objects it needs: run it again.
    """
    manifest, plan, effective = _move_fence(context, settings, full=full, dry_run=dry_run)
    if manifest.version == 0:
        return Collected(0, 0, dry_run=dry_run)
    with context.reading(manifest.version):
        return _Collection(
            context,
            effective,
            manifest,
            plan,
            deadline,
            marker,
            outside,
            has_own_settings=settings is None,
            dry_run=dry_run,
            full=full,
        ).run()


def _move_fence(
    context: Context, settings: DatabaseSettings | None, *, full: bool, dry_run: bool
) -> tuple[Manifest, CollectionPlan, DatabaseSettings]:
    """Moves horizon and fence if there is a reason to. Returns a manifest with both, the plan, and the settings."""
    head = context.head
    for _ in attempts(context.runtime, FENCE):
        manifest = head.refresh().manifest
        effective = settings or DatabaseSettings.of(manifest)
        with context.reading(manifest.version):
            plan = make_plan(head, manifest, effective, full=full)
        # The fence moves only if a commit is needed, because each commit makes attempts of others lose.
        if dry_run or manifest.version == 0 or not plan.needs_commit:
            return manifest, plan, effective
        work = plan.erasures
        # Receipts are written first, because the commit removes their erasures from the manifest.
        write_receipts(context, manifest, work)
        fence = MoveFence(
            (manifest.horizon, manifest.orphan_cutoff),
            plan.horizon,
            plan.orphan_cutoff,
            plan.revoke,
            plan.applied_before,
            None if settings else effective,
            plan.now_us,
            work.expire_before,
        )
        try:
            commit = submit(head, OPERATION, [*work.before_fence(), fence, *work.after_fence()])
        except ConflictError as error:
            conflict = error
            continue
        return commit.manifest or head.refresh().manifest, plan, effective
    raise conflict


class CollectionPlan(Struct, frozen=True):
    """The plan of a collection."""

    now_us: int  # the server's clock
    horizon_before: int  # the oldest version that could be read before
    # horizon, orphan_cutoff: those after the commit that moves the fence
    horizon: int
    orphan_cutoff: int
    revoke: tuple[str, ...]  # txids of dead jobs, which that commit revokes
    applied_before: int  # that commit forgets the ids of requests that were applied before this time
    needs_commit: bool  # whether that commit is needed
    has_to_sweep: bool  # whether there may be orphans that are old enough to delete
    erasures: ErasureWork  # the next steps of erasures
    intents: dict[str, ListedIntent]  # the intents of all jobs, by txid


def make_plan(head: Head, manifest: Manifest, settings: DatabaseSettings, *, full: bool) -> CollectionPlan:
    """Plans a collection on a version that was just read."""
    now_us = head.server_now(manifest)
    intents = list_intents(head.store)
    # The objects of expired versions are deleted first: if more versions expired now, the grace would start again.
    may_expire = manifest.freed >= manifest.horizon
    horizon = next_horizon(head, manifest, settings, now_us) if may_expire else manifest.horizon
    erasures = erasure_work(manifest, head.segments, settings, now_us, horizon)
    if not may_expire:
        erasures = replace(erasures, expire_before=0, tags=())
    orphan_cutoff = max(manifest.orphan_cutoff, now_us - settings.orphan_age_us)
    revoke = dead_jobs(intents, manifest, now_us - settings.intent_timeout_us)
    applied_before = now_us - settings.applied_retention_us
    forgets_ids = any(segment.created_at < applied_before for segment in manifest.segments_of("applied"))
    before_us = sweep_cutoff(orphan_cutoff)
    holds_erased = any(manifest.swept < each.left_at <= before_us for each in manifest.leaving)
    has_to_sweep = full or holds_erased or has_objects_to_sweep(head, manifest, before_us)
    has_ended_tags = any(0 < tag.until <= now_us for tag in manifest.tags.values())
    needs_commit = (
        horizon > manifest.horizon
        or bool(revoke)
        or forgets_ids
        or has_to_sweep
        or has_ended_tags
        or erasures.needs_fence(manifest.horizon)
    )
    return CollectionPlan(
        now_us,
        manifest.horizon,
        horizon,
        orphan_cutoff,
        revoke,
        applied_before,
        needs_commit,
        has_to_sweep,
        erasures,
        intents,
    )


def last_deletable_version(manifest: Manifest, settings: DatabaseSettings, now_us: int) -> int:
    """Objects released up to this version may be deleted: the horizon, once ``reader_grace`` is over."""
    is_over = manifest.horizon_at + settings.reader_grace_us <= now_us
    return manifest.horizon if is_over else min(manifest.freed, manifest.horizon)


def next_horizon(head: Head, manifest: Manifest, settings: DatabaseSettings, now_us: int) -> int:
    """The oldest version to keep; the present horizon when moving it is not worth a commit.

    A version is kept if it was the newest at some time within the retention, if it is one of the newest
    ``keep_versions``, or if a cursor still needs it. A tag keeps only its own version.
    """
    horizon = manifest.horizon
    needed_by_cursors = (cursor.version for cursor in manifest.cursors.values() if cursor.holds(now_us))
    oldest_kept = min([manifest.version - settings.keep_versions + 1, *needed_by_cursors])
    if oldest_kept > horizon:
        oldest_kept = min(oldest_kept, newest_at(head, manifest, now_us - settings.retention_us))
    return oldest_kept if oldest_kept > horizon and _is_worth_it(head, manifest, horizon, oldest_kept) else horizon


def _is_worth_it(head: Head, manifest: Manifest, horizon: int, oldest_kept: int) -> bool:
    """Whether more than collection's own commits would expire. Otherwise an idle database would commit endlessly."""
    if any(segment.greatest > horizon and segment.least <= oldest_kept for segment in manifest.segments_of("released")):
        return True
    if any(horizon < entry.version <= oldest_kept for entry in manifest.released):
        return True
    if any(_expires(entry, horizon, oldest_kept) for entry in manifest.history):
        return True
    older = (s for s in manifest.segments_of("history") if s.least < oldest_kept and s.greatest >= horizon)
    return any(_expires(entry, horizon, oldest_kept) for segment in older for entry in head.segments.history(segment))


def _expires(entry: HistoryEntry, horizon: int, oldest_kept: int) -> bool:
    return horizon <= entry.version < oldest_kept and entry.operation != OPERATION


@dataclass
class _Collection:
    """The part of a run after the commit that moved the fence; it uses that commit's manifest or a later one."""

    context: Context
    settings: DatabaseSettings
    manifest: Manifest
    plan: CollectionPlan
    deadline: Callable[[], bool]
    marker: Marker
    outside: Sequence[str]
    _: KW_ONLY
    has_own_settings: bool
    dry_run: bool
    full: bool

    def __post_init__(self) -> None:
        self._deleter = ObjectDeleter(self.context.store, self.context.cache, dry_run=self.dry_run)
        self._now_us = max(self.plan.now_us, self.manifest.created_at)
        self._last_deletable = last_deletable_version(self.manifest, self.settings, self._now_us)
        self._freed, self._swept, self._released_all = self.manifest.freed, self.manifest.swept, False
        self._waiting: Amount | None = None
        self._gone_ids: frozenset[str] = frozenset()

    @cached_property
    def _needed(self) -> KeySet:
        """Keys of the objects that the newest version needs, or an older one that may still be read."""
        return self.marker(self.manifest, self.context.segments, self._last_deletable)

    def run(self) -> Collected:
        finished = (
            # Intents first: they name the objects of dead jobs, which a sweep would find only days later.
            self._clear_intents()
            # Released objects before orphans: some are found only through segments that the sweep would delete.
            and self._delete_released()
            and self._sweep()
            and self._sweep_publications()
            # Receipts last: they say that all other steps are done.
            and self._finish_receipts()
        )
        # Progress is recorded even after a deadline, so that the next run continues from there.
        newest = self._record()
        horizon = max(newest.horizon, self.plan.horizon if self.dry_run else 0)
        return Collected(
            version=newest.version,
            horizon=horizon,
            versions_expired=max(0, horizon - max(self.plan.horizon_before, 1)),
            deleted=self._deleter.deleted,
            revoked=self.plan.revoke,
            waiting=self._waiting,
            errors=self._deleter.errors,
            erasures=figures_of(newest, self.context.segments, self._now_us),
            erasures_gone=len(self._gone_ids),
            finished=finished,
            dry_run=self.dry_run,
        )

    def _clear_intents(self) -> bool:
        for intent in intents_to_clear(self.plan.intents, self.manifest):
            if self.deadline():
                return False
            clear_intent(
                self.context.store, self._deleter, intent, self.manifest, None if intent.is_done else self._needed
            )
        return True

    def _delete_released(self) -> bool:
        if self._last_deletable <= self.manifest.freed:
            return True
        if self.deadline():
            return False
        context = self.context
        self._freed, self._released_all = ReleasedDeleter(
            context.store,
            context.segments,
            self._deleter,
            self.manifest,
            self._needed,
            self._last_deletable,
            self.deadline,
        ).run()
        return self._released_all

    def _sweep(self) -> bool:
        if not self.plan.has_to_sweep:
            return True
        if self.deadline():
            return False
        cutoff = self.plan.orphan_cutoff if self.dry_run else self.manifest.orphan_cutoff
        kept = self._needed
        if self._freed < self._last_deletable:  # the next run finds released objects through segments
            kept = self.marker(self.manifest, self.context.segments, self._freed)
        before_us, head = sweep_cutoff(cutoff), self.context.head
        progress = Sweep(head, self._deleter, self.manifest, kept, before_us, self.deadline, full=self.full).run()
        self._swept, self._waiting = progress.swept, progress.waiting
        return progress.is_complete

    def _sweep_publications(self) -> bool:
        finished, problems = sweep_publications(
            self.context,
            self.manifest,
            self.settings,
            self._now_us,
            lambda infos: bool(self._deleter.delete_listed("publications", infos)),
            self.deadline,
            full=self.full,
            dry_run=self.dry_run,
        )
        self._deleter.errors.update(problems)
        return finished

    def _finish_receipts(self) -> bool:
        if self.dry_run:
            return True
        finisher = ReceiptFinisher(
            self.context,
            self.manifest,
            self.plan.intents,
            self._now_us,
            min(self._freed, self._last_deletable),
            self._swept,
            self.deadline,
            lambda: self._needed,
            self.outside,
        )
        complete = finisher.run()
        self._gone_ids = frozenset(finisher.finished)
        self._deleter.errors.update(finisher.errors)
        return complete

    def _record(self) -> Manifest:
        """Commits the progress. Lets further versions expire if the objects of all expired ones are deleted."""
        manifest, head = self.manifest, self.context.head
        if self.dry_run:
            return manifest
        statements: list[Statement] = []
        if self._freed > manifest.freed or self._swept > manifest.swept:
            statements.append(CollectionProgress(self._freed, self._swept))
        if self._gone_ids:
            statements.append(CloseErasures(self._gone_ids))
        if self._released_all and self._last_deletable == manifest.horizon:
            now_us = self.plan.now_us
            horizon = next_horizon(head, manifest, self.settings, now_us)
            work = erasure_work(manifest, self.context.segments, self.settings, now_us, horizon)
            if max(horizon, work.expire_before) > manifest.horizon:
                write_receipts(self.context, manifest, replace(work, to_delist=()))
                fence = MoveFence(
                    (manifest.horizon, manifest.orphan_cutoff),
                    horizon,
                    manifest.orphan_cutoff,
                    settings=self.settings if self.has_own_settings else None,
                    now_us=now_us,
                    expire_before=work.expire_before,
                )
                try:
                    return submit(head, OPERATION, [*statements, fence]).manifest or head.refresh().manifest
                except ConflictError:  # another collection has let versions expire, or the settings have changed
                    return self._submit(statements)
        return self._submit(statements)

    def _submit(self, statements: list[Statement]) -> Manifest:
        if not statements:
            return self.manifest
        head = self.context.head
        return submit(head, OPERATION, statements).manifest or head.refresh().manifest

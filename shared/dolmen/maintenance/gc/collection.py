"""Collection (GC): deletes objects that no kept version needs, only after a commit has said so.

One commit moves the horizon and the fence (docs/protocol.md). Everything else goes by that commit's own manifest, or a
later one. Every step may be repeated: after a crash at any point the next run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from html import escape

from dolmen.base.runtime import FENCE, attempts, cached_property, never
from dolmen.base.units import count_text
from dolmen.commit.change import Statement
from dolmen.commit.head import Context, Head
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import CollectionProgress, MoveFence
from dolmen.commit.statements.erasures import CloseErasures
from dolmen.commit.versions import newest_at
from dolmen.errors import ConflictError
from dolmen.format.manifest import HistoryEntry, Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.erasures.erasure_work import ErasureWork, erasure_work, write_receipts
from dolmen.maintenance.erasures.receipts import ReceiptFinisher
from dolmen.maintenance.erasures.status import ErasureFigures, figures_of
from dolmen.maintenance.gc.deletion import (
    Amount,
    KeySet,
    KnownIntent,
    ObjectDeleter,
    Sweep,
    clear_intent,
    dead_jobs,
    finished_intents,
    has_come_of_age,
    intents,
    sweepable,
)
from dolmen.maintenance.gc.mark import Marker, Release, mark
from dolmen.transactions.publisher import publisher

OPERATION = "gc"
"""The operation of collection's commits in the history. These commits alone are no reason to collect again."""

REASONS: dict[str, str] = {
    "released": "dropped by expired versions",
    "manifests": "manifests of expired versions",
    "orphans": "orphans",
    "revoked": "left by dead jobs",
    "intents": "intents",
    "publications": "replaced publications",
}
"""Reasons for deleting objects, in words."""


@dataclass(frozen=True)
class Collected:
    """The result of one collection.

    Args:
        version: the newest version at its end.
        horizon: the oldest version that can be read now.
        versions_expired: number of versions that expired; their objects go once ``reader_grace`` is over.
        deleted: objects and bytes by reason (``REASONS``). Objects that versions released are not measured; their bytes
            count as 0.
        revoked: txids of jobs that counted as dead.
        waiting: orphans that are too young to delete, including those of commits under way; None if none were listed.
        errors: reasons by key of objects that could not be deleted, or of receipts that could not be written; the next
            run tries them again.
        erasures_gone: number of erasures whose receipts say since this run that no object holds their rows.
        finished: True if nothing was left for lack of time.
        dry_run: True if nothing was deleted: the figures say what would be.
    """

    version: int
    horizon: int
    versions_expired: int = 0
    deleted: Mapping[str, Amount] = field(default_factory=dict)
    revoked: tuple[str, ...] = ()
    waiting: Amount | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    erasures: ErasureFigures = field(default_factory=ErasureFigures)
    erasures_gone: int = 0
    finished: bool = True
    dry_run: bool = False

    @property
    def objects(self) -> int:
        return sum(amount.objects for amount in self.deleted.values())

    @property
    def bytes(self) -> int:
        return sum(amount.bytes for amount in self.deleted.values())

    @property
    def facts(self) -> list[tuple[str, str]]:
        waiting, first_error = self.waiting, min(self.errors, default="")
        deleted = [(words, self.deleted.get(reason)) for reason, words in REASONS.items()]
        lines = [
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
            ("finished", "" if self.finished else "no: the next run goes on"),
        ]
        return [(name, value) for name, value in lines if value]

    def _head(self) -> str:
        return f"{'would delete' if self.dry_run else 'deleted'} {count_text(self.objects, 'object')}"

    def __repr__(self) -> str:
        facts = "".join(f", {name} {value}" for name, value in self.facts)
        return f"<Collected: {self._head()}{facts}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in self.facts)
        return f"<div><b>{self._head()}</b><table>{rows}</table></div>"


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
    """Lets old versions expire, and deletes objects that no kept version needs.

    Objects of versions that expire now are deleted by a later run, once ``reader_grace`` is over.

    Args:
        dry_run: report what would be deleted, and delete nothing.
        deadline: True = stop now; asked between batches. Progress is recorded, and the next run goes on.
        settings: retention settings; by default those of the database.
        full: look for orphans among all objects, including those that earlier runs have looked at.
        marker: finds the objects to keep; it is called with a version at or after the fence.
        outside: URLs outside the database, whose objects the receipts of erasures count.

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
    """Moves horizon and fence if there is a reason to. Returns a version with both, the plan, the settings."""
    head = context.head
    for _ in attempts(context.runtime, FENCE):
        manifest = head.refresh().manifest
        chosen = settings or DatabaseSettings.of(manifest)
        with context.reading(manifest.version):
            planned = plan(head, manifest, chosen, full=full)
        # The fence must not move unless a commit is needed: each commit makes attempts of others lose.
        if dry_run or manifest.version == 0 or not planned.moves:
            return manifest, planned, chosen
        work = planned.erasures
        # Receipts before the commit, which removes the erasures that they describe from the manifest.
        write_receipts(context, manifest, work)
        fence = MoveFence(
            (manifest.horizon, manifest.orphan_cutoff),
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


@dataclass(frozen=True)
class CollectionPlan:
    """The plan of a collection.

    Args:
        horizon, orphan_cutoff, revoke, applied_before: values for the commit that moves the fence; the present ones if
            nothing is to move.
        moves: whether that commit is needed.
        sweep: whether there may be orphans that are old enough to delete.
        intents: all intents, by txid.
    """

    now_us: int
    horizon_before: int
    horizon: int
    orphan_cutoff: int
    revoke: tuple[str, ...]
    applied_before: int
    moves: bool
    sweep: bool
    erasures: ErasureWork
    intents: dict[str, KnownIntent]


def plan(head: Head, manifest: Manifest, settings: DatabaseSettings, *, full: bool = False) -> CollectionPlan:
    """Plans a collection on a version that was just read."""
    now_us = head.server_now(manifest)
    known = intents(head.store)
    # Objects of expired versions are deleted first, so that the grace of their readers does not begin again.
    may_expire = manifest.freed >= manifest.horizon
    horizon = next_horizon(head, manifest, settings, now_us) if may_expire else manifest.horizon
    erasures = erasure_work(manifest, head.segments, settings, now_us, horizon)
    if not may_expire:
        erasures = replace(erasures, forced=0, tags=())
    orphan_cutoff = max(manifest.orphan_cutoff, now_us - settings.orphan_age_us)
    revoke = dead_jobs(known, manifest, now_us - settings.intent_timeout_us)
    applied_before = now_us - settings.applied_retention_us
    forgets = any(segment.created_at < applied_before for segment in manifest.segments_of("applied"))
    before_us = sweepable(orphan_cutoff)
    holds_erased = any(manifest.swept < each.left_at <= before_us for each in manifest.leaving)
    sweep = full or holds_erased or has_come_of_age(head, manifest, before_us)
    ends = any(0 < tag.until <= now_us for tag in manifest.tags.values())
    moves = horizon > manifest.horizon or bool(revoke) or forgets or sweep or ends or erasures.moves(manifest.horizon)
    return CollectionPlan(
        now_us, manifest.horizon, horizon, orphan_cutoff, revoke, applied_before, moves, sweep, erasures, known
    )


def last_deletable_version(manifest: Manifest, settings: DatabaseSettings, now_us: int) -> int:
    """The version up to which objects may be deleted: the horizon, once readers of older versions had time to end."""
    over = manifest.horizon_at + settings.reader_grace_us <= now_us
    return manifest.horizon if over else min(manifest.freed, manifest.horizon)


def next_horizon(head: Head, manifest: Manifest, settings: DatabaseSettings, now_us: int) -> int:
    """The oldest version to keep; the present horizon when moving it is not worth a commit.

    A version is kept if it was the newest at some time within the retention, if it is among the newest
    ``keep_versions``, or if a cursor still needs it. A tag keeps its version alone.
    """
    horizon = manifest.horizon
    needed_by_cursors = (cursor.version for cursor in manifest.cursors.values() if cursor.holds(now_us))
    oldest_kept = min([manifest.version - settings.keep_versions + 1, *needed_by_cursors])
    if oldest_kept > horizon:
        oldest_kept = min(oldest_kept, newest_at(head, manifest, now_us - settings.retention_us))
    return oldest_kept if oldest_kept > horizon and _worth_it(head, manifest, horizon, oldest_kept) else horizon


def _worth_it(head: Head, manifest: Manifest, horizon: int, oldest_kept: int) -> bool:
    """Whether more than collection's own commits would expire. Else an idle database would never stop committing."""
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
    """The part of a run after the fence, by the manifest of the commit that moved it, or a later one."""

    context: Context
    settings: DatabaseSettings
    manifest: Manifest
    planned: CollectionPlan
    deadline: Callable[[], bool]
    marker: Marker
    outside: Sequence[str]
    _: KW_ONLY
    own: bool
    dry_run: bool
    full: bool

    def __post_init__(self) -> None:
        self._deleter = ObjectDeleter(self.context.store, dry_run=self.dry_run)
        self._now_us = max(self.planned.now_us, self.manifest.created_at)
        self._through = last_deletable_version(self.manifest, self.settings, self._now_us)
        self._freed, self._swept, self._listed = self.manifest.freed, self.manifest.swept, False
        self._waiting: Amount | None = None
        self._gone: frozenset[str] = frozenset()

    @cached_property
    def _kept(self) -> KeySet:
        """Keys of the objects to keep: those of the newest version, and of older ones that may still be read."""
        return self.marker(self.manifest, self.context.segments, self._through)

    def run(self) -> Collected:
        finished = (
            # Intents first: they name the objects of dead jobs, which a sweep would find only days later.
            self._clear_intents()
            # Released objects before orphans: the sweep must not take what the work list still names.
            and self._release()
            and self._sweep()
            and self._sweep_publications()
            # Receipts last: they say that all of this is done.
            and self._finish_receipts()
        )
        # Also after a deadline: the next run continues from what is recorded. It may let the next versions expire.
        newest = self._record()
        horizon = max(newest.horizon, self.planned.horizon if self.dry_run else 0)
        return Collected(
            version=newest.version,
            horizon=horizon,
            versions_expired=max(0, horizon - max(self.planned.horizon_before, 1)),
            deleted=self._deleter.deleted,
            revoked=self.planned.revoke,
            waiting=self._waiting,
            errors=self._deleter.errors,
            erasures=figures_of(newest, self.context.segments, self._now_us),
            erasures_gone=len(self._gone),
            finished=finished,
            dry_run=self.dry_run,
        )

    def _clear_intents(self) -> bool:
        for intent in finished_intents(self.planned.intents, self.manifest):
            if self.deadline():
                return False
            clear_intent(self.context.store, self._deleter, intent, self.manifest, None if intent.done else self._kept)
        return True

    def _release(self) -> bool:
        if self._through <= self.manifest.freed:
            return True
        if self.deadline():
            return False
        context = self.context
        self._freed, self._listed = Release(
            context.store, context.segments, self._deleter, self.manifest, self._kept, self._through, self.deadline
        ).run()
        return self._listed

    def _sweep(self) -> bool:
        if not self.planned.sweep:
            return True
        if self.deadline():
            return False
        cutoff = self.planned.orphan_cutoff if self.dry_run else self.manifest.orphan_cutoff
        kept = self._kept
        if self._freed < self._through:  # a segment on the work list is no orphan: the next run needs it
            kept = self.marker(self.manifest, self.context.segments, self._freed)
        before_us, head = sweepable(cutoff), self.context.head
        swept = Sweep(head, self._deleter, self.manifest, kept, before_us, self.deadline, full=self.full).run()
        self._swept, self._waiting = swept.swept, swept.waiting
        return swept.complete

    def _sweep_publications(self) -> bool:
        finished, problems = publisher().sweep(
            self.context,
            self.manifest,
            self.settings,
            self._now_us,
            lambda found: bool(self._deleter.erase_listed("publications", found)),
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
            self.planned.intents,
            self._now_us,
            min(self._freed, self._through),
            self._swept,
            self.deadline,
            lambda: self._kept,
            self.outside,
        )
        complete = finisher.run()
        self._gone = frozenset(finisher.finished)
        self._deleter.errors.update(finisher.errors)
        return complete

    def _record(self) -> Manifest:
        """Removes finished work from the list. Once the list is empty, moves the horizon forward."""
        manifest, head = self.manifest, self.context.head
        if self.dry_run:
            return manifest
        statements: list[Statement] = []
        if self._freed > manifest.freed or self._swept > manifest.swept:
            statements.append(CollectionProgress(self._freed, self._swept))
        if self._gone:
            statements.append(CloseErasures(self._gone))
        if self._listed and self._through == manifest.horizon:
            now_us = self.planned.now_us
            horizon = next_horizon(head, manifest, self.settings, now_us)
            work = erasure_work(manifest, self.context.segments, self.settings, now_us, horizon)
            if max(horizon, work.forced) > manifest.horizon:
                write_receipts(self.context, manifest, replace(work, forgets=()))
                fence = MoveFence(
                    (manifest.horizon, manifest.orphan_cutoff),
                    horizon,
                    manifest.orphan_cutoff,
                    settings=self.settings if self.own else None,
                    now_us=now_us,
                    forced=work.forced,
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

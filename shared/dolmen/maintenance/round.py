"""One round of maintenance, as the compact function runs it at each call and ``make up`` every minute.

Tables take turns: the one with most work is first, each gets a share of the time, and unused time goes to others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from dolmen.base.records import field_names
from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.erasures import HurryErasure
from dolmen.errors import TableNotFoundError
from dolmen.format.manifest import SegmentKind, TableEntry
from dolmen.format.properties import TableSettings
from dolmen.iceberg.publication_directory import asks_for_publication
from dolmen.maintenance.compact.compaction import Compacted, compact
from dolmen.maintenance.debt import STEPS, Debts, Step
from dolmen.maintenance.erasures.status import ErasureStatus, status_of
from dolmen.maintenance.gc.collection import Collected, collect
from dolmen.maintenance.indexing import index_table
from dolmen.maintenance.resolution import Resolved, resolve
from dolmen.maintenance.segment_merging import Merged, merge_segments
from dolmen.maintenance.ttl import Expired, expire_rows


@dataclass(frozen=True)
class CompletedStep:
    """A step that ended without error, whether or not there was work to do; ``table`` is None for all."""

    step: Step
    table: str | None
    result: Any
    seconds: float

    def __repr__(self) -> str:
        return f"<Done {self.step} {self.table or 'the database'} in {self.seconds:.2f} s: {self.result!r}>"


@dataclass(frozen=True)
class StepFailure:
    """A step that failed. The other steps still run."""

    step: Step
    table: str | None
    error: Exception

    def __repr__(self) -> str:
        return f"<Failure {self}>"

    def __str__(self) -> str:
        return f"{self.step} {self.table or 'the database'}: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Round:
    """The result of a round."""

    # the steps that ended without error, in the order of their ends; a table may have had several turns
    done: tuple[CompletedStep, ...]
    failures: tuple[StepFailure, ...]  # the steps that failed
    finished: bool  # True if no work was left for lack of time
    indexes_behind: tuple[str, ...] = ()  # tables whose index this round should have brought up to date, but did not

    def __repr__(self) -> str:
        changed = [done for done in self.done if done.result.commits]
        idle = len(self.done) - len(changed)
        lines = "".join(f"\n  {one!r}" for one in (*changed, *self.failures))
        rest = f"\n  {idle:,} steps found nothing to do" if lines and idle else ""
        ending = "" if self.finished else ", cut short by its deadline"
        return f"<Round{ending}:{f'{lines}{rest}' or ' there was nothing to do'}>"

    def results(self, step: Step) -> list[Any]:
        return [done.result for done in self.done if done.step == step]


def maintain(
    context: Context,
    *,
    tables: Collection[str] | None = None,
    steps: Collection[Step] = STEPS,
    compacted_elsewhere: Collection[str] = (),
    deadline: Deadline | None = None,
    progress: Callable[[CompletedStep | StepFailure], None] = lambda ended: None,
) -> Round:
    """Does all maintenance that is due, as far as the time allows. See ``Database.maintain``.

    Safe to repeat, and to run beside others. At the deadline, finished work is committed.
    """
    rounder = _Rounder(context, deadline or Deadline(context.runtime), progress)
    return rounder.run(tables, steps, compacted_elsewhere)


class _Rounder:
    def __init__(
        self, context: Context, deadline: Deadline, progress: Callable[[CompletedStep | StepFailure], None]
    ) -> None:
        self._context, self._deadline, self._progress = context, deadline, progress
        self._done: list[CompletedStep] = []
        self._failures: list[StepFailure] = []

    def run(
        self, tables: Collection[str] | None, steps: Collection[Step], compacted_elsewhere: Collection[str]
    ) -> Round:
        context = self._context
        entries = context.head.refresh().manifest.tables
        for name in sorted(set(tables or ()) - entries.keys()):
            missing = TableNotFoundError(f"no table {name!r}; tables: {', '.join(sorted(entries)) or 'none'}")
            self._record(StepFailure(next(step for step in STEPS if step in steps), name, missing))
        names = [name for name in entries if tables is None or name in tables]
        if "expire" in steps:
            self._expire(tables)
        resolving = _by_most_entries(names, entries, "tombstones") if "resolve" in steps else []
        compactable = [name for name in names if name not in compacted_elsewhere]
        compacting = _by_most_entries(compactable, entries, "files") if "compact" in steps else []
        # An idle table, whose entry is in a segment, needs no work on its index.
        awake = [name for name in names if not entries[name].section and "index" in steps]
        indexing = [n for n in awake if TableSettings.of(entries[n]).index or entries[n].segments_of("index")]
        indexed_tables, merging = tuple(indexing), "merge" in steps
        while resolving or compacting or indexing or merging:
            resolving = self._take_turns("resolve", resolve, resolving, 0.5 if compacting else 0.9)
            compacting = self._take_turns("compact", compact, compacting, 0.9 if merging or indexing else 1.0)
            indexing = self._take_turns("index", index_table, indexing, 0.9 if merging else 1.0)
            if merging and not self._deadline():
                stop = self._deadline.share(self._deadline.left_seconds)
                result = self._run_step("merge", None, partial(merge_segments, context, deadline=stop))
                merging = result is not None and not result.finished and bool(result.commits)
            if self._deadline():
                break
        if "publish" in steps:
            self._publish(names)
        finished = not (self._deadline.reached or resolving or compacting or indexing or merging)
        return Round(tuple(self._done), tuple(self._failures), finished, self._find_stale_indexes(indexed_tables))

    def _find_stale_indexes(self, names: Sequence[str]) -> tuple[str, ...]:
        """The tables whose index is not up to date: its step failed, was not finished, or had no turn."""
        is_current = {done.table: done.result.finished for done in self._done if done.step == "index"}
        return tuple(name for name in names if not is_current.get(name) and not self._is_dropped(name))

    def _expire(self, tables: Collection[str] | None) -> None:
        if self._deadline():
            return
        run = partial(expire_rows, self._context, tables=tables, deadline=self._deadline)
        result = self._run_step("expire", None, run)
        for name, error in result.failures.items() if result else ():
            self._record(StepFailure("expire", name, error))

    def _publish(self, names: Collection[str]) -> None:
        from dolmen.iceberg.publication import publish

        cached = self._context.head.cached
        assert cached is not None
        manifest = cached.manifest
        for name in names:
            entry = manifest.tables.get(name)
            if entry is None or self._deadline():
                continue
            if asks_for_publication(self._context, manifest, entry):
                self._run_step("publish", name, partial(publish, self._context, name))

    def _take_turns(self, step: Step, run: Callable[..., Any], names: Sequence[str], used_share: float) -> list[str]:
        """Gives each table a turn within a share of the remaining time; returns the tables that need another one."""
        left_seconds = self._deadline.left_seconds
        reserved_seconds = 0.0 if math.isinf(left_seconds) else left_seconds * (1 - used_share)
        unfinished: list[str] = []
        for index, name in enumerate(names):
            if self._deadline():
                return [*unfinished, *names[index:]]
            share = self._deadline.share((self._deadline.left_seconds - reserved_seconds) / (len(names) - index))
            result = self._run_step(step, name, partial(run, self._context, name, deadline=share))
            if result is not None and not result.finished and (share.reached or result.commits):
                unfinished.append(name)
        return unfinished

    def _run_step(self, step: Step, table: str | None, run: Callable[[], Any]) -> Any:
        """Runs a step. Records an error, which does not stop the other steps."""
        runtime = self._context.runtime
        began = runtime.monotonic()
        try:
            result = run()
        except Exception as error:  # noqa: BLE001 - recorded, and handled by the caller at the end
            if not self._is_dropped(table):
                self._record(StepFailure(step, table, error))
            return None
        self._record(CompletedStep(step, table, result, runtime.monotonic() - began))
        return result

    def _is_dropped(self, table: str | None) -> bool:
        """Whether a step failed because its table was dropped."""
        cached = self._context.head.cached
        return table is not None and cached is not None and table not in cached.manifest.tables

    def _record(self, ended: CompletedStep | StepFailure) -> None:
        if isinstance(ended, CompletedStep):
            self._done.append(ended)
        else:
            self._failures.append(ended)
        self._progress(ended)


def _by_most_entries(names: Sequence[str], entries: Mapping[str, TableEntry], kind: SegmentKind) -> list[str]:
    """Names of tables, the most entries of a kind first."""
    spilled = {name: sum(segment.count for segment in entries[name].segments_of(kind)) for name in names}
    return sorted(names, key=lambda name: (-spilled[name] - len(getattr(entries[name], kind)), name))


_COLLECTIONS = 4
"""The most collections that a hurried erasure needs: one notes that its files are rewritten, one lets the versions with
its rows expire, one takes it off the list, and one lets the versions with that list expire."""


def hurry_erasure(context: Context, id_: str) -> ErasureStatus:
    """See ``Database.hurry_erasure``. Safe to repeat. Raises the error of a failed step once the others are done."""
    if status_of(context, id_).state == "gone":
        return status_of(context, id_)
    now_us = max(context.store.clock.now_us, context.head.refresh().manifest.created_at)
    submit(context.head, "hurry", [HurryErasure(id_, now_us)])
    round_ = maintain(context, steps=("resolve", "compact", "merge"))
    for _ in range(_COLLECTIONS):
        version = context.head.refresh().manifest.version
        collect(context)
        if context.head.refresh().manifest.version == version:
            break
    for failure in round_.failures:
        raise failure.error
    return status_of(context, id_)


MARGIN_SECONDS = 10.0  # seconds in reserve: for a commit whose response is lost, and for the end of a Lambda invocation
SLOWDOWN = 2.0  # the next step may take this many times as long as the longest one so far


class Deadline:
    """Tells when to stop: when the next step may not fit into ``remaining_seconds``.

    It measures steps by the time between calls, so a loop calls it once per step.
    """

    def __init__(self, runtime: Runtime, remaining_seconds: Callable[[], float] = lambda: math.inf) -> None:
        self._runtime, self._remaining_seconds = runtime, remaining_seconds
        self._last_call_at, self._longest_seconds = runtime.monotonic(), 0.0
        self.reached = False

    @property
    def left_seconds(self) -> float:
        """Seconds until the deadline, before which another step may begin; below 0 after it."""
        return self._remaining_seconds() - MARGIN_SECONDS - SLOWDOWN * self._longest_seconds

    def __call__(self) -> bool:
        """Whether to stop. Once True, it stays True."""
        now = self._runtime.monotonic()
        self._longest_seconds, self._last_call_at = max(self._longest_seconds, now - self._last_call_at), now
        self.reached = self.reached or self.left_seconds <= 0
        return self.reached

    def share(self, seconds: float) -> DeadlineShare:
        """A deadline for one of several tables: reached after ``seconds``, or when the whole deadline is reached."""
        self._last_call_at = self._runtime.monotonic()  # the time since the last call was not a step
        left_seconds = self.left_seconds
        return DeadlineShare(self, -math.inf if math.isinf(left_seconds) else left_seconds - seconds)


class DeadlineShare:
    """A share of a deadline. At least one step fits into it, unless the whole deadline is reached."""

    def __init__(self, whole: Deadline, end_left_seconds: float) -> None:
        self._whole, self._end_left_seconds = whole, end_left_seconds
        self._has_begun = self.reached = False

    def __call__(self) -> bool:
        is_over = self._whole() or (self._has_begun and self._whole.left_seconds <= self._end_left_seconds)
        self._has_begun = True
        self.reached = self.reached or is_over
        return self.reached


Unit: TypeAlias = Literal["Count", "Bytes", "Seconds"]
Measures: TypeAlias = dict[str, tuple[Unit, float]]  # unit and value of each metric in CloudWatch, by name


def facts_of(result: Any) -> dict[str, Any]:
    """The figures of a result: names and numbers, never values of the data."""
    if isinstance(result, Expired):
        return {"tables": sorted(result.cutoffs), "version": result.commit.version if result.commit else None}
    if isinstance(result, Collected):
        deleted = {reason: amount.objects for reason, amount in result.deleted.items() if amount.objects}
        return {
            "version": result.version,
            "horizon": result.horizon,
            "versions_expired": result.versions_expired,
            "deleted": deleted,
            "objects": result.objects,
            "bytes": result.bytes,
            "revoked": len(result.revoked),
            "erasures_pending": result.erasures.pending,
            "erasures_gone": result.erasures_gone,
            "finished": result.finished,
        }
    return {
        name: getattr(result, name)
        for name in field_names(result)
        if name != "table" and isinstance(getattr(result, name), int)
    }


def has_changed_anything(result: Any) -> bool:
    if isinstance(result, Collected):
        return bool(result.objects or result.versions_expired or result.revoked)
    return bool(result.commits > 0)


def measures_of_round(done: Round) -> Measures:
    """Measures of a round, summed over all tables."""
    resolved: list[Resolved] = done.results("resolve")
    compacted: list[Compacted] = done.results("compact")
    merged: list[Merged] = done.results("merge")
    expired: list[Expired] = done.results("expire")
    return {
        "TablesExpired": ("Count", sum(len(one.cutoffs) for one in expired)),
        "TombstonesResolved": ("Count", sum(one.dropped for one in resolved)),
        "RowsResolved": ("Count", sum(one.rows for one in resolved)),
        "FilesCompacted": ("Count", sum(one.files_in for one in compacted)),
        "BytesCompacted": ("Bytes", sum(one.bytes_in for one in compacted)),
        "RowsRemoved": ("Count", sum(one.rows_deleted for one in compacted)),
        "GroupsDropped": ("Count", sum(one.dropped for one in compacted)),
        "SegmentsMerged": ("Count", sum(one.inputs for one in merged)),
        "TablesPublished": ("Count", sum(one.commits for one in done.results("publish"))),
        "IndexesBehind": ("Count", len(done.indexes_behind)),
        "StepsFailed": ("Count", len(done.failures)),
        "RoundsUnfinished": ("Count", int(not done.finished)),
    }


def measures_of_debt(debts: Debts) -> Measures:
    return {
        "TombstoneDebt": ("Count", debts.total("tombstones")),
        "OldestUnresolvedDeleteSeconds": ("Seconds", debts.oldest_unresolved_age_us / 1e6),
        "SmallFileDebt": ("Count", debts.total("files_saved")),
        "DeadRows": ("Count", debts.total("dead_rows")),
        "IndexLagRows": ("Count", debts.total("index_lag_rows")),
        "PublicationLagSeconds": ("Seconds", debts.publication_lag_us / 1e6),
        "ManifestBytes": ("Bytes", debts.manifest_bytes),
        "ManifestBudget": ("Bytes", debts.manifest_budget),
    }


def measures_of_collection(collected: Collected) -> Measures:
    """Measures of a collection, and of the objects that wait for one. A dry run deletes nothing."""
    factor = 0 if collected.dry_run else 1
    measures: Measures = {
        "ObjectsDeleted": ("Count", collected.objects * factor),
        "BytesDeleted": ("Bytes", collected.bytes * factor),
        "VersionsExpired": ("Count", collected.versions_expired * factor),
        "JobsRevoked": ("Count", len(collected.revoked) * factor),
        "DeletesFailed": ("Count", len(collected.errors)),
        "ErasuresGone": ("Count", collected.erasures_gone * factor),
        "ErasuresPending": ("Count", collected.erasures.pending),
        "ErasuresInDanger": ("Count", collected.erasures.in_danger),
        "OldestErasureSeconds": ("Seconds", collected.erasures.oldest_age_us / 1e6),
    }
    if collected.erasures.deadline_us is not None:
        measures["ErasureDeadlineSeconds"] = ("Seconds", collected.erasures.deadline_us / 1e6)
    if (waiting := collected.waiting) is not None:
        measures |= {"OrphanBytes": ("Bytes", waiting.bytes), "OrphanObjects": ("Count", waiting.objects)}
    return measures

"""The maintenance side of a database: background work that a program may start by itself.

The scheduled functions call the same code in ``dolmen.maintenance``. It is imported by the first call of such a method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from dolmen import arguments
from dolmen.context import Context
from dolmen.errors import InputError, TableNotFoundError

if TYPE_CHECKING:
    from dolmen.maintenance.compact.compaction import Compacted
    from dolmen.maintenance.deadline import Deadline
    from dolmen.maintenance.debt import Debts
    from dolmen.maintenance.expire import Expired
    from dolmen.maintenance.gc.report import Collected
    from dolmen.maintenance.merge import Merged
    from dolmen.maintenance.resolve.resolution import Resolved
    from dolmen.maintenance.run import Done, Round, Step, StepFailure
    from dolmen.maintenance.verify.report import Progress, VerifyReport

T = TypeVar("T")


class MaintainableDatabase:
    """A database whose deletes can be resolved, files compacted, versions expired, and objects checked."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def resolve(self, table: str | None = None) -> dict[str, Resolved]:
        """Turns unresolved deletes of one table, or of all, into deletion vectors, which makes scans fast again.

        Returns:
            by table, what was done. Safe at any time, beside anything; changes nothing that a reader sees.
        """
        from dolmen.maintenance.resolve.resolution import resolve

        return self._each(table, lambda name: resolve(self._context, name))

    def compact(self, table: str | None = None, *, dry_run: bool = False) -> dict[str, Compacted]:
        """Rewrites small and mostly deleted files of one table, or of all, into full ones, where that pays.

        Args:
            dry_run: only plan; what comes back says what would be done, why, and what it would save.

        Returns:
            by table, what was planned and done. Safe at any time, beside anything; changes nothing that a reader sees.
        """
        from dolmen.maintenance.compact.compaction import compact

        arguments.flag("dry_run", dry_run)
        return self._each(table, lambda name: compact(self._context, name, dry_run=dry_run))

    def merge(self) -> Merged:
        """Merges segments: what has left the manifest is kept in few objects. See ``compact``."""
        from dolmen.maintenance.merge import merge_segments

        return merge_segments(self._context)

    def expire(self) -> Expired:
        """Deletes the rows that have outlived their table's ``ttl`` (see ``Table.set``), in one commit."""
        from dolmen.maintenance.expire import expire_rows

        return expire_rows(self._context)

    def maintain(
        self,
        tables: Collection[str] | None = None,
        *,
        steps: Collection[Step] | None = None,
        compacted_elsewhere: Collection[str] = (),
        deadline: Deadline | None = None,
        progress: Callable[[Done | StepFailure], None] = lambda ended: None,
    ) -> Round:
        """One round of all of this: expire, resolve, compact, merge; what the compact function does at each call.

        Args:
            tables: their names; all by default.
            steps: which, of ``dolmen.maintenance.run.STEPS``; all by default.
            compacted_elsewhere: tables that are not to be compacted here, as a job does.
            deadline: when to stop; the next round goes on.
            progress: called after each step.

        Returns:
            what was done, and what failed: one that fails does not stop the others.
        """
        from dolmen.maintenance.run import STEPS, maintain

        chosen = arguments.names("steps", steps) if steps is not None else []
        if unknown := sorted(set(chosen) - set(STEPS)):
            raise InputError(f"no step {arguments.short_repr(unknown[0])}; there are: {', '.join(STEPS)}")
        return maintain(
            self._context,
            tables=None if tables is None else arguments.names("tables", tables),
            steps=[step for step in STEPS if step in chosen or not chosen],
            compacted_elsewhere=arguments.names("compacted_elsewhere", compacted_elsewhere),
            deadline=deadline,
            progress=progress,
        )

    def gc(
        self, *, dry_run: bool = False, full: bool = False, deadline: Callable[[], bool] = lambda: False
    ) -> Collected:
        """Lets old versions expire, and deletes what no kept version needs. How long what is kept: see ``set``.

        Args:
            dry_run: only say what would go.
            full: look for orphans among all objects, not only among those named since the last run.
            deadline: True = stop; the next run goes on.
        """
        from dolmen.maintenance.gc.collection import collect

        arguments.flag("dry_run", dry_run)
        arguments.flag("full", full)
        return collect(self._context, dry_run=dry_run, full=full, deadline=deadline)

    def verify(
        self,
        *,
        version: int | None = None,
        deep: bool = False,
        all_versions: bool = False,
        progress: Progress | None = None,
    ) -> VerifyReport:
        """Checks that everything is there and is what it should be; changes nothing. See ``dolmen.verify`` for a
        database that can't be opened.

        Args:
            version: check what this version holds; the newest by default.
            deep: read all data, and compare it with what is said of it.
            all_versions: look whether all that any kept version needs is there; with ``deep`` read it too.
            progress: called with what is being checked, how many are done, and how many there are.
        """
        from dolmen.maintenance.verify import verification

        if version is not None:
            arguments.number("version", version)
        arguments.flag("deep", deep)
        arguments.flag("all_versions", all_versions)
        return verification.verify(
            self._context, version=version, deep=deep, all_versions=all_versions, progress=progress
        )

    def stats(self, *, exact: bool = False) -> Debts:
        """What background work has left to do: unresolved deletes, small files, dead rows, the manifest's size.

        Args:
            exact: read segments, where what the manifest says of them is not enough.
        """
        from dolmen.maintenance.debt import debts

        return debts(self._context, exact=arguments.flag("exact", exact))

    def _each(self, table: str | None, run: Callable[[str], T]) -> dict[str, T]:
        """Runs a step for one table, or for all; one of all that is dropped before its turn is left out."""
        manifest, done = self._context.head.refresh().manifest, dict[str, T]()
        if table is not None:
            manifest.table(table)
            return {table: run(table)}
        for name in sorted(manifest.tables):
            try:
                done[name] = run(name)
            except TableNotFoundError:
                continue
        return done

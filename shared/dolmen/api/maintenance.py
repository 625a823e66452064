"""The maintenance methods of a database. They import ``dolmen.maintenance`` when they are called."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from dolmen.base import arguments
from dolmen.commit.head import Context
from dolmen.errors import InputError, TableNotFoundError, short_repr
from dolmen.store import open_store

if TYPE_CHECKING:
    from dolmen.iceberg.publication import IcebergPublication
    from dolmen.maintenance.compact.compaction import Compacted
    from dolmen.maintenance.debt import Debts, Step
    from dolmen.maintenance.erasures.status import ErasureStatus, ReceiptCheck
    from dolmen.maintenance.gc.collection import Collected
    from dolmen.maintenance.health.health import Health, Pipeline
    from dolmen.maintenance.resolution import Resolved
    from dolmen.maintenance.round import CompletedStep, Deadline, Round, StepFailure
    from dolmen.maintenance.segment_merging import Merged
    from dolmen.maintenance.ttl import Expired
    from dolmen.maintenance.verify.findings import Progress, VerifyReport

T = TypeVar("T")


class MaintainableDatabase:
    """A database with methods that resolve deletes, compact files, collect garbage, and verify objects."""

    _context: Context

    def resolve(self, table: str | None = None) -> dict[str, Resolved]:
        """Turns unresolved deletes of one table, or of all, into deletion vectors, which makes scans fast again.

        Returns results by table. Safe at any time, beside any other work; readers see no change.

        Examples:
            >>> commit = people.delete("age < 30")
            >>> sorted(db.resolve("people"))
            ['people']
        """
        from dolmen.maintenance.resolution import resolve

        return self._run_on_tables(table, lambda name: resolve(self._context, name))

    def compact(
        self, table: str | None = None, *, repartition: bool = False, recluster: bool = False, dry_run: bool = False
    ) -> dict[str, Compacted]:
        """Rewrites small and mostly deleted files of one table, or of all, into full ones, where that pays.

        Returns plans and results by table. Safe at any time, beside any other work; readers see no change.

        Args:
            repartition: also split full files with rows of several partitions: files written before the table got its
                present ``partition_by``.
            recluster: also rewrite full files of tables with ``cluster_by``, all into one z-order.
            dry_run: plan only; the result says what would be done, why, and what it would save.

        Examples:
            >>> sorted(db.compact(dry_run=True))
            ['people']
        """
        from dolmen.maintenance.compact.compaction import CompactionOptions, compact

        arguments.flag("dry_run", dry_run)
        options = CompactionOptions(
            repartition=arguments.flag("repartition", repartition), recluster=arguments.flag("recluster", recluster)
        )
        return self._run_on_tables(table, lambda name: compact(self._context, name, options=options, dry_run=dry_run))

    def merge(self) -> Merged:
        """Merges segments, so that the entries outside the manifest are in few objects. See ``compact``.

        Examples:
            >>> db.merge().commits  # few entries have left the manifest
            0
        """
        from dolmen.maintenance.segment_merging import merge_segments

        return merge_segments(self._context)

    def expire(self) -> Expired:
        """Deletes rows that are older than their table's ``ttl`` (see ``Table.set``), in one commit.

        Examples:
            >>> db.expire().commits  # no table has a ttl
            0
        """
        from dolmen.maintenance.ttl import expire_rows

        return expire_rows(self._context)

    def publish_iceberg(
        self, table: str | None = None, *, glue: str | None = None, anew: bool = False, dry_run: bool = False
    ) -> dict[str, IcebergPublication]:
        """Publishes one table, or all with the setting ``iceberg``. See ``Table.publish_iceberg``.

        Returns results by table. Safe at any time, beside any other work.

        Examples:
            >>> sorted(db.publish_iceberg("people"))
            ['people']
        """
        from dolmen.format.properties import TableSettings
        from dolmen.iceberg.publication import publish

        arguments.flag("anew", anew)
        arguments.flag("dry_run", dry_run)
        run = partial(publish, self._context, glue=glue, anew=anew, dry_run=dry_run)
        if table is not None:
            return self._run_on_tables(table, run)
        manifest = self._context.head.refresh().manifest
        entries = {name: self._context.segments.whole(entry) for name, entry in sorted(manifest.tables.items())}
        names = [name for name, entry in entries.items() if TableSettings.of(entry).iceberg is not None]
        return {name: run(name) for name in names}

    def maintain(
        self,
        tables: Collection[str] | None = None,
        *,
        steps: Collection[Step] | None = None,
        compacted_elsewhere: Collection[str] = (),
        deadline: Deadline | None = None,
        progress: Callable[[CompletedStep | StepFailure], None] = lambda ended: None,
    ) -> Round:
        """Runs one round of expire, resolve, compact, index, merge and publish, as the compact function does.

        Args:
            tables: names of tables; all by default.
            steps: some of ``dolmen.maintenance.debt.STEPS``; all by default.
            compacted_elsewhere: tables that are not compacted here, because a job does it.
            deadline: when to stop; the next round continues.
            progress: called after each step.

        Returns the steps that were done, and those that failed: a failure does not stop the others.

        Examples:
            >>> db.maintain(steps=["resolve", "compact"]).failures
            ()
        """
        from dolmen.maintenance.debt import STEPS
        from dolmen.maintenance.round import maintain

        step_names = arguments.names("steps", steps) if steps is not None else []
        if unknown := sorted(set(step_names) - set(STEPS)):
            raise InputError(f"no step {short_repr(unknown[0])}; there are: {', '.join(STEPS)}")
        return maintain(
            self._context,
            tables=None if tables is None else arguments.names("tables", tables),
            steps=[step for step in STEPS if step in step_names or not step_names],
            compacted_elsewhere=arguments.names("compacted_elsewhere", compacted_elsewhere),
            deadline=deadline,
            progress=progress,
        )

    def gc(
        self,
        *,
        dry_run: bool = False,
        full: bool = False,
        deadline: Callable[[], bool] = lambda: False,
        outside: Collection[str] = (),
    ) -> Collected:
        """Lets old versions expire, and deletes objects that no kept version needs. Settings say how long to keep them.

        Args:
            dry_run: report what would be deleted, and delete nothing.
            full: look for orphans among all objects, not only among those since the last run.
            deadline: returns True when it is time to stop; the next run continues.
            outside: URLs whose objects erasure receipts should list: dropped and rejected files, exports. Nothing is
                changed there.

        Examples:
            >>> db.gc(dry_run=True).deleted
            {}
        """
        from dolmen.maintenance.gc.collection import collect

        arguments.flag("dry_run", dry_run)
        arguments.flag("full", full)
        urls = arguments.names("outside", outside)
        for url in urls:
            open_store(url, self._context.runtime)  # a wrong one is refused before anything is done
        return collect(self._context, dry_run=dry_run, full=full, deadline=deadline, outside=urls)

    def verify(
        self,
        *,
        version: int | None = None,
        deep: bool = False,
        all_versions: bool = False,
        progress: Progress | None = None,
    ) -> VerifyReport:
        """Checks that all objects exist and are correct; changes nothing. For a damaged database: ``dolmen.verify``.

        Args:
            version: the version to check; the newest by default.
            deep: read all data, and compare it with its entries.
            all_versions: check that all objects of every kept version exist; with ``deep`` read them too.
            progress: called with a kind of object, the number checked so far, and the total.

        Examples:
            >>> db.verify(deep=True).findings
            ()
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
        """Computes the remaining background work: unresolved deletes, small files, dead rows, the manifest's size.

        Args:
            exact: also read segments where their entries in the manifest do not suffice.

        Examples:
            >>> db.stats().tables["people"].files
            1
        """
        from dolmen.maintenance.debt import debts

        return debts(self._context, exact=arguments.flag("exact", exact))

    def health(self, pipeline: Pipeline | None = None) -> Health:
        """Reports sizes, versions, deletes, overlap, deadlines, due work, and what needs attention.

        Reads metadata of the newest version only, and contains no value of a row.

        Args:
            pipeline: rejects and queues, which the database does not know
                (``dolmen.ingest.pipeline_health.look_at_pipeline``).

        Raises:
            CorruptionError: pointer, manifest or a segment is damaged or missing.

        Examples:
            >>> db.health().concerns
            ()
        """
        from dolmen.maintenance.health.look import look

        return look(self._context, pipeline)

    def report(self, pipeline: Pipeline | None = None) -> str:
        """The text of one HTML page that shows ``health``: it needs no other file, and contains no value of a row.

        Args:
            pipeline: see ``health``.

        Examples:
            >>> "<html" in db.report()
            True
        """
        from dolmen.maintenance.health.page import draw_page

        return draw_page(self.health(pipeline))

    def receipts(self, *, gone: bool = False) -> list[ErasureStatus]:
        """The progress of erasures whose rows are still in some object, oldest first.

        Args:
            gone: also erasures whose rows no object holds any more.

        Examples:
            >>> erased = people.erase("id = 2")
            >>> len(db.receipts())
            1
        """
        from dolmen.maintenance.erasures.status import list_statuses

        return list_statuses(self._context, gone=arguments.flag("gone", gone))

    def receipt(self, id: str) -> ErasureStatus:
        """The progress of one erasure, with its receipt. Raises NotFoundError.

        Examples:
            >>> erased = people.erase("id = 2")
            >>> db.receipt(erased.id).id == erased.id
            True
        """
        from dolmen.maintenance.erasures.status import status_of

        return status_of(self._context, id)

    def hurry_erasure(self, id: str) -> ErasureStatus:
        """Makes the rows of an erasure leave the disk as soon as running readers allow. Raises NotFoundError.

        It rewrites the files that hold rows, and lets all earlier versions expire, with their tags. The files are
        deleted by the first collection after ``reader_grace``, and the receipt says "gone" after ``orphan_age``. Once
        the erasure has left the list, a file that was dropped before it brings its rows back.

        Examples:
            >>> erased = people.erase("id = 2")
            >>> db.hurry_erasure(erased.id).id == erased.id
            True
        """
        from dolmen.maintenance.round import hurry_erasure

        return hurry_erasure(self._context, id)

    def verify_receipt(self, id: str) -> ReceiptCheck:
        """Checks that the database holds no object or row that the receipt of an erasure calls gone.

        Raises:
            NotFoundError: there is neither an erasure nor a receipt of this id.
            CorruptionError: the receipt is damaged.

        Examples:
            >>> erased = people.erase("id = 2")
            >>> db.verify_receipt(erased.id).findings
            ()
        """
        from dolmen.maintenance.erasures.status import check_receipt

        return check_receipt(self._context, id)

    def _run_on_tables(self, table: str | None, run: Callable[[str], T]) -> dict[str, T]:
        """Runs a step for one table or for all. Skips tables that are dropped before their turn."""
        manifest, results = self._context.head.refresh().manifest, dict[str, T]()
        if table is not None:
            manifest.table(table)
            return {table: run(table)}
        for name in sorted(manifest.tables):
            with suppress(TableNotFoundError):
                results[name] = run(name)
        return results

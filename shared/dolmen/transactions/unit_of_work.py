"""A unit of work collects statements on one version and commits them together; ``Commit`` is the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from html import escape
from typing import Any, Literal

import pyarrow as pa
from msgspec import Struct, field

from dolmen.base import arguments
from dolmen.base.records import html_table, replace
from dolmen.base.units import count_text, utc
from dolmen.commit.change import (
    NO_NOTE,
    Change,
    ColumnsDependency,
    NamesDependency,
    Note,
    RowsDependency,
    find_applied,
    needs_preparing,
)
from dolmen.commit.draft import Draft, Statement
from dolmen.commit.head import STAMP_SECONDS, Context
from dolmen.commit.loop import Committed
from dolmen.commit.loop import commit as commit_change
from dolmen.commit.statements.row_changes import InsertRows
from dolmen.commit.uploads import Intent, PendingUploads
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import InputError, TableNotFoundError, VersionExpiredError
from dolmen.format.manifest import AppliedId, Counts, HistoryEntry, Manifest, TableEffect, TableEntry
from dolmen.format.properties import TableSettings
from dolmen.predicate.ast import Predicate
from dolmen.rows.scan.load_deletes import ErasedRowsFilter, ErasureMatcher
from dolmen.rows.write.row_digest import content_digest


class Commit(Struct, frozen=True):
    """One commit, as returned to its writer and by ``history()``, which shows what was committed together as one.

    Args:
        version: the version it made; if nothing changed, the version it was made on.
        commit_ts: timestamp of its last statement, int64 microseconds; it orders deletes and data.
        created_at: the time of the attempt that landed, by the store's clock, in UTC. It is not before the call began.
            S3's clock shows whole seconds, so it may be a second early on a machine whose own clock is wrong. It never
            decreases from version to version.
        commit_id: the unique id of its version, which changes that were committed together share.
        operation: a word for what it did; "nothing" if there was nothing to do.
        counts: the numbers of rows, files and tombstones that it changed.
        did: what it did to which tables and columns; only the first few, and never a value.
        did_more: the number of further ones.
        message, metadata: what its author says about it.
        requests: ids of the requests that it applied, as long as they are remembered.
        attempts: how often the pointer was put (0 in history).
        already: versions that had applied requests of this call before, by request id.
        erased_rows_written: how many of the rows that this call wrote match an erasure in force: data about people
            who were erased may be in the table again (0 in history).
        erased_rows_left_out: how many rows this call left out because they match one (0 in history).
        rows_skipped: how many rows this call did not write because the table has equal ones (0 in history).
    """

    version: int
    commit_ts: int
    created_at: datetime
    commit_id: str
    operation: str
    counts: Counts
    did: tuple[TableEffect, ...] = ()
    did_more: int = 0
    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    requests: tuple[str, ...] = ()
    attempts: int = 0
    already: dict[str, int] = field(default_factory=dict)
    erased_rows_written: int = 0
    erased_rows_left_out: int = 0
    rows_skipped: int = 0

    @classmethod
    def of(
        cls,
        entry: HistoryEntry,
        requests: Sequence[str] = (),
        *,
        attempts: int = 0,
        already: dict[str, int] | None = None,
    ) -> Commit:
        """Makes a commit from its entry in the history."""
        return cls(
            version=entry.version,
            commit_ts=entry.commit_ts,
            created_at=utc(entry.created_at),
            commit_id=entry.commit_id,
            operation=entry.operation,
            counts=entry.counts,
            did=entry.did,
            did_more=entry.did_more,
            message=entry.message,
            metadata=entry.metadata,
            requests=tuple(requests),
            attempts=attempts,
            already=already or {},
        )

    @classmethod
    def nothing(cls, base: HistoryEntry, already: dict[str, int] | None = None) -> Commit:
        """The result of a call that changed nothing on ``base``, or whose requests had been applied before."""
        version = max(already.values()) if already else base.version
        created_at = utc(base.created_at)
        return cls(version, base.commit_ts, created_at, "", "nothing", Counts(), already=already or {})

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that it changed, as far as they are in ``did``."""
        return tuple(dict.fromkeys(effect.table for effect in self.did if effect.table))

    @property
    def done(self) -> str:
        """The changes in words: ``append events; delete users(user_id)``."""
        return "; ".join([*map(str, self.did), *([f"{self.did_more:,} more"] if self.did_more else ())])

    @property
    def rows(self) -> int | None:
        """Number of rows added, or else deleted; None if a tombstone deleted them, which does not count rows."""
        if self.counts.rows_added:
            return self.counts.rows_added
        return None if self.counts.tombstones_added else self.counts.rows_deleted

    @property
    def mode(self) -> Literal["tombstone", "positions"] | None:
        """How a delete was done: by a tombstone, or by the positions of the rows; None for any other commit."""
        if self.operation != "delete":
            return None
        return "tombstone" if self.counts.tombstones_added else "positions"

    def _properties(self) -> list[tuple[str, str]]:
        """Its properties that differ from the default, by name, in words."""
        counts = self.counts
        numbers = {
            "rows added": counts.rows_added,
            "files added": counts.files_added,
            "tombstones": counts.tombstones_added,
            "rows deleted": counts.rows_deleted,
            "files removed": counts.files_removed,
            "files resolved": counts.files_resolved,
            "tombstones removed": counts.tombstones_removed,
            "groups dropped": counts.groups_dropped,
            "written rows that were erased": self.erased_rows_written,
            "erased rows left out": self.erased_rows_left_out,
            "equal rows skipped": self.rows_skipped,
        }
        ids = [id_ if len(id_) <= 80 else f"{id_[:77]}..." for id_ in self.requests[:3]]
        more = [f"{len(self.requests) - 3:,} more"] if len(self.requests) > 3 else []
        texts = {
            "did": self.done,
            "for": ", ".join(ids + more),
            "message": repr(self.message) if self.message else "",
            "metadata": ", ".join(self.metadata),
            "applied before": ", ".join(f"{id_} (version {version})" for id_, version in self.already.items()),
        }
        shown = {name: f"{number:,}" for name, number in numbers.items() if number}
        return [*shown.items(), *((name, text) for name, text in texts.items() if text)]

    def __repr__(self) -> str:
        properties = "".join(f", {name} {value}" for name, value in self._properties())
        return f"<Commit {self.version} {self.operation} at {self.created_at:%Y-%m-%d %H:%M:%S}Z{properties}>"

    def _repr_html_(self) -> str:
        head = f"<b>version {self.version}</b> {escape(self.operation)} {self.created_at:%Y-%m-%d %H:%M:%S}Z"
        return f"<div>{head}{html_table(self._properties())}</div>"


def must_leave_out_erased(entry: TableEntry, leave_out: bool | None = None) -> bool:
    """True if a write leaves out erased rows; None = as the table's setting says."""
    return TableSettings.of(entry).leave_out_erased if leave_out is None else leave_out


class UnitOfWork:
    """Collects statements on one version, its base; ``commit`` makes a version of them.

    ``base`` is by default the newest version known at first use; with ``newest``, it is read now. ``has_ended`` is True
    after the commit, and after ``abandon``.
    """

    def __init__(
        self,
        context: Context,
        operation: str = "transaction",
        *,
        note: Note = NO_NOTE,
        base: Manifest | None = None,
        newest: bool = False,
    ) -> None:
        self.context, self.operation = context, arguments.operation(operation)
        self.operations: list[str] = []
        """The operations of the calls so far."""
        self._note = note
        self.uploads = PendingUploads(context.store, context.runtime, context.segments)
        self._base = base
        self._statements: list[Statement] = []
        self._dependencies: list[RowsDependency | ColumnsDependency | NamesDependency] = []
        self._looked_up: set[str] = set()
        self._applied: dict[str, str] = {}  # the digest of each request that was bound to one
        self._excluded_by: set[str] = set()
        self._content: dict[str, tuple[str, ...]] = {}  # the digests of the statements of each other request
        self._request_bound_later: str | None = None
        self._first_upload_us: int | None = None
        self._intent: Intent | None = None
        self._draft: Draft | None = None
        self._is_draft_saved = False  # a savepoint may go back to it, so the next statement gets a copy
        self._manifest: Manifest | None = None
        self._applied_by_id: tuple[Manifest, dict[str, bool]] | None = None
        self._is_base_fixed = base is not None
        self._is_refreshed = False
        self.has_ended = False
        self._filters: list[ErasedRowsFilter] = []
        self.skipped_rows = 0
        """The rows that were not written because the table has equal ones."""
        if newest:
            self.refresh()

    @property
    def base(self) -> Manifest:
        """The version that this is made on: the newest known at first use."""
        if self._base is None:
            cached = self.context.head.cached
            self._base = (cached or self.context.head.refresh()).manifest
        return self._base

    def refresh(self) -> None:
        """Takes the newest version as the base. Only before the first statement."""
        self._base, self._is_refreshed = self.context.head.refresh().manifest, True

    def refresh_once(self) -> None:
        """Takes the newest version as the base, unless it already did, or something depends on the base."""
        if not self._is_refreshed:
            self.rebase()

    @property
    def _can_rebase(self) -> bool:
        """True if nothing depends on the base yet."""
        return self._draft is None and not self._dependencies and not self._is_base_fixed

    def rebase(self) -> bool:
        """Takes the newest version as the base if nothing depends on the base yet. True if the base has changed."""
        if not self._can_rebase:
            return False
        old_base = self.base
        self.refresh()
        return self.base is not old_base

    def keep_base(self) -> None:
        """Keeps the base from now on, although neither a statement nor a read depends on it."""
        self._is_base_fixed = True

    @property
    def manifest(self) -> Manifest:
        """The base with the statements so far, under provisional timestamps."""
        if self._draft is None:
            return self.base
        if self._manifest is None:
            self._manifest = self._draft.finish(
                attempt="00000000",
                commit_id="",
                operation="draft",
                commit_ts=self.base.commit_ts + len(self._statements),
                created_at=self.base.created_at,
                applied=(),
            )
        return self._manifest

    @property
    def tables(self) -> Mapping[str, TableEntry]:
        """The tables with the statements so far."""
        return self._draft.tables if self._draft else self.base.tables

    @property
    def counts(self) -> Counts:
        """The counts of the statements so far."""
        return self._draft.counts if self._draft else Counts()

    def entry(self, name: str) -> TableEntry:
        """The table's entry with the statements so far. Looks for a newer base before it reports a missing table."""
        arguments.text("table", name)
        can_rebase = self._can_rebase
        if name not in self.tables and can_rebase:
            self.refresh()
        if (entry := self.tables.get(name)) is None:
            entry = self.manifest.table(name)  # raises TableNotFoundError
        try:
            with self.context.reading(self.base.version):
                return self.context.segments.whole(entry)
        except VersionExpiredError:  # reading an idle table's section in an old version
            if not can_rebase:
                raise
            self.refresh()
            return self.context.segments.whole(self.manifest.table(name))

    @property
    def now_us(self) -> int:
        """Microseconds by the server's clock."""
        return self.context.store.clock.now_us

    @property
    def next_ts(self) -> int:
        """The provisional commit timestamp of the next statement, which its rows show until the commit."""
        return self.base.commit_ts + 1 + len(self._statements)

    def begin_upload(self) -> None:
        """Records the time before the first upload of this transaction, to compare it with the fence."""
        self._check_open()
        if self._first_upload_us is None:
            # After a long idle time the fence may be later than the last response: another one shows the time.
            if self.context.store.clock.age_seconds > STAMP_SECONDS:
                self.context.head.refresh()
            self._first_upload_us = self.context.store.clock.now_us

    def intent(self) -> Intent:
        """The intent of this attempt, which begins at first use: when an append needs a second file."""
        if self._intent is None:
            self._intent = Intent.begin(self.context.store, self.context.runtime, self.operation)
        return self._intent

    def add(self, statement: Statement) -> None:
        """Adds a statement and applies it to the draft. If that raises, the statement is left out."""
        self._check_open()
        if self._draft is None:
            draft = Draft(self.base, self.context.segments)
        else:
            draft = self._draft.copy() if self._is_draft_saved else self._draft
        if needs_preparing(statement):
            with self.context.reading(self.base.version):
                statement = statement.prepare(draft, self.uploads)
        statement.apply(draft, self.next_ts)
        self._statements.append(statement)
        self._draft, self._manifest, self._is_draft_saved = draft, None, False

    def erased_filter(self, entry: TableEntry, leave_out: bool | None = None) -> ErasedRowsFilter | None:
        """A filter that counts erased rows, for ``Commit``; None if no erasure in force reaches the table."""
        with self.context.reading(self.base.version):
            erasures = erasures_of(self.base, self.context.segments)
            matcher = ErasureMatcher.of(self.context, entry, erasures) if erasures else None
        if matcher is None:
            return None
        self._filters.append(ErasedRowsFilter(matcher, must_leave_out_erased(entry, leave_out)))
        return self._filters[-1]

    def filter_erased(
        self, entry: TableEntry, batches: Iterable[pa.RecordBatch], *, leave_out: bool
    ) -> Iterable[pa.RecordBatch]:
        """Rows on their way to a table, through its ``erased_filter``."""
        erased = self.erased_filter(entry, leave_out)
        return batches if erased is None else erased.filter(batches)

    def prepare(self, statement: InsertRows) -> InsertRows:
        """Fits a statement to the statements so far, like ``add``, without adding it. Raises as ``add`` does."""
        with self.context.reading(self.base.version):
            return statement.prepare(self._draft or Draft(self.base, self.context.segments), self.uploads)

    def has_changed(self, uuid: str) -> bool:
        """True if a statement so far changes this table, under any name."""
        return any(statement.uuid == uuid for statement in self._statements)

    @contextmanager
    def savepoint(self, request_bound_later: str | None = None) -> Iterator[None]:
        """Adds all statements of this block or, when it raises, none of them. Its reads count in any case.

        The caller binds the request ``request_bound_later`` to a digest (``bind``) after these statements.
        """
        draft, self._is_draft_saved = self._draft, True
        statements, content, filters = len(self._statements), dict(self._content), len(self._filters)
        skipped_rows = self.skipped_rows
        outer = self._request_bound_later
        self._request_bound_later = request_bound_later or outer
        try:
            yield
        except BaseException:
            self._draft, self._manifest, self._content, self.skipped_rows = draft, None, content, skipped_rows
            self._is_draft_saved = True
            del self._statements[statements:], self._filters[filters:]
            raise
        finally:
            self._request_bound_later = outer

    def depend_on_rows(self, name: str, predicate: Predicate | None, manifest: Manifest | None = None) -> None:
        """Makes the commit valid only while no later version changes rows for which the predicate is TRUE.

        ``manifest`` is the draft in which the table has the name, if it is not the newest.
        """
        manifest = manifest or self.manifest
        base_name = self.base.name_of(manifest.table(name).uuid)
        if base_name is None:
            return  # created by this transaction: no other one can have changed it
        entry = self.base.tables[base_name]
        schema = self.context.segments.whole(entry).schema
        self._dependencies.append(
            RowsDependency(base_name, entry.uuid, entry.epoch, self.base.commit_ts, predicate, schema=schema)
        )

    def depend_on_columns(self, name: str) -> None:
        """Makes the commit valid only while the names of columns of this table name the same columns."""
        entry = self.context.segments.whole(self.base.table(name))
        self._dependencies.append(ColumnsDependency(name, entry.uuid, self.base.commit_ts, entry.schema))

    def depend_on_names(self, name: str | None = None) -> None:
        """Makes the commit valid only while this name stays in use, or stays free; or while all names stay the same."""
        names = frozenset(self.base.tables)
        among = None if name is None else frozenset({name})
        dependency = NamesDependency(names if among is None else names & among, among)
        if dependency not in self._dependencies:
            self._dependencies.append(dependency)

    def depend_on(self, dependency: RowsDependency) -> None:
        """Makes the commit valid only while a read of an older version holds. Raises ConflictError if it does not."""
        self._check_open()
        with self.context.reading(self.base.version):
            dependency.check(Draft(self.base, self.context.segments))
        self._dependencies.append(dependency)

    def look_up(self, name: str) -> TableEntry:
        """The table's entry. The commit is valid only while this table exists, or while the name stays free."""
        try:
            entry = self.entry(name)
        except TableNotFoundError:
            self.depend_on_names(name)
            raise
        self._looked_up.add(entry.uuid)
        return entry

    def bind(self, request: str, digest: str) -> None:
        """See ``Transaction.bind``."""
        request, digest = arguments.request_id(request), arguments.text("digest", digest)
        if self._applied.setdefault(request, digest) != digest:
            raise InputError(f"request {request!r} is in this transaction twice with different content: use a new id")

    def exclude(self, request: str) -> None:
        """See ``Transaction.exclude``."""
        self._excluded_by.add(arguments.request_id(request))

    def needs_content(self, request: str | None) -> bool:
        """True if statements of this request add to its content: yes, unless the caller binds it to a digest."""
        if request is None or arguments.request_id(request) == self._request_bound_later:
            return False
        return request not in self._applied

    def add_content(self, request: str | None, *parts: Any) -> None:
        """Adds a statement to the content of its request, unless the caller binds that to a digest."""
        if request is not None and self.needs_content(request):
            self.add_digest(request, content_digest(*parts))

    def add_digest(self, request: str, digest: str) -> None:
        """Adds the digest of a statement to the content of its request."""
        self._check_open()
        self._content[request] = (*self._content.get(request, ()), digest)

    def find_applied(self, requests: Collection[str]) -> dict[str, AppliedId]:
        """Finds the requests (ids) that the base has applied. ``commit`` looks again in the newest version."""
        applied = find_applied(self.base, requests, self.context.segments)
        self._lookups().update((id_, id_ in applied) for id_ in requests)
        return applied

    def has_applied(self, request: str | None) -> bool:
        """True if the base has applied this request, so that its statements must not be added again."""
        if request is None:
            return False
        request = arguments.request_id(request)
        if request not in self._lookups():
            self.find_applied([request])
        return self._lookups()[request]

    def _lookups(self) -> dict[str, bool]:
        """By request id that was looked up, whether the base has applied it."""
        if self._applied_by_id is None or self._applied_by_id[0] is not self.base:
            self._applied_by_id = self.base, {}
        return self._applied_by_id[1]

    def commit(self) -> Commit:
        """Makes one version of the statements. See ``Transaction.commit``."""
        change = self.end()
        if change is None:
            return self._nothing()
        return self.result(change, commit_change(self.context.head, change, self.uploads))

    def end(self) -> Change | None:
        """Ends this transaction. Returns its change, to be committed; None if there is nothing to commit."""
        self._check_open()
        self.has_ended = True
        content = {id_: parts[0] if len(parts) == 1 else content_digest(*parts) for id_, parts in self._content.items()}
        applied = {**content, **self._applied}
        if not self._statements and not applied:
            return None
        for uuid in sorted(self._looked_up - {each.uuid for each in (*self._statements, *self._dependencies)}):
            if (base_name := self.base.name_of(uuid)) is not None:
                self.depend_on_names(base_name)
        return Change(
            commit_id=self.context.runtime.uuid(),
            operation=self.operation,
            statements=tuple(self._statements),
            applied=applied,
            dependencies=tuple(self._dependencies),
            first_upload_us=self._first_upload_us,
            txid=self._intent.txid if self._intent else None,
            note=self._note,
            excluded_by=frozenset(self._excluded_by),
        )

    def result(self, change: Change, done: Committed) -> Commit:
        """The commit of the change that this transaction ended with."""
        if self._intent and done.manifest is not None:
            self._intent.finish()
        if done.entry is None:
            return self._nothing(done.already)
        requests = [id_ for id_ in change.applied if id_ not in done.already]
        commit = Commit.of(done.entry, requests, attempts=done.attempts, already=done.already)
        written = sum(each.count for each in self._filters if not each.leaves_out)
        return replace(self._with_left_out(commit), erased_rows_written=written)

    def _nothing(self, already: dict[str, int] | None = None) -> Commit:
        return self._with_left_out(Commit.nothing(self.base.as_history(), already))

    def _with_left_out(self, commit: Commit) -> Commit:
        """The commit with the numbers of rows that its calls left out."""
        erased = sum(each.count for each in self._filters if each.leaves_out)
        return replace(commit, erased_rows_left_out=erased, rows_skipped=self.skipped_rows)

    def abandon(self) -> None:
        """Ends this without a commit. Does nothing if it has ended."""
        self.has_ended = True

    def __str__(self) -> str:
        tables = sorted({statement.name for statement in self._statements if statement.name})
        state = "ended" if self.has_ended else "open"
        about = f" about {', '.join(tables)}" if tables else ""
        base = "" if self._base is None else f" on version {self._base.version}"
        return f"{self.operation}, {state}{base}: {count_text(len(self._statements), 'statement')}{about}"

    def _check_open(self) -> None:
        if self.has_ended:
            raise InputError("this transaction has ended: begin another one")

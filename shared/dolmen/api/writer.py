"""Buffered writers: rows and deletes from any thread, committed together and acknowledged when they are committed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import groupby
from types import TracebackType
from typing import Any, Self, get_args

import pyarrow as pa
from msgspec import Struct, field

from dolmen.base import arguments
from dolmen.base.runtime import WRITER_BATCH, attempts
from dolmen.base.units import MIB
from dolmen.commit.change import NO_NOTE, ExpectErasures, Note, reuse_error
from dolmen.commit.head import Context
from dolmen.commit.loop import copy_error
from dolmen.commit.statements.row_changes import Write
from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    Error,
    InputError,
    LimitError,
    PredicateError,
    RowError,
    SchemaError,
    StaleWriterError,
    short_repr,
)
from dolmen.format.del_object import Keys
from dolmen.format.evolution import check_written_under, same_column, with_constraints
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema, own_names
from dolmen.predicate.ast import Predicate, columns
from dolmen.predicate.parse import Parameters, Where
from dolmen.rows.write.conform import conform
from dolmen.rows.write.row_digest import RowDigest, content_digest
from dolmen.transactions.row_arguments import NewColumns, choose_rows, divide_columns, parse_where, rows_of
from dolmen.transactions.row_statements import TableChange
from dolmen.transactions.unit_of_work import Commit, UnitOfWork, must_leave_out_erased

MAX_ROWS, MAX_SECONDS, MAX_BYTES = 1_000_000, 1.0, 256 * MIB
_DELETE_BYTES = 1_024  # bytes that a delete counts for at least
_MOST_KEYS = 100_000  # the most keys of several calls that become one delete
_MOST_FAILED = 1_000


class Acknowledgement(Future[Commit]):
    """A future for the commit with the rows, or the delete, of one call. Waiting for it makes the writer commit."""

    def __init__(self, writer: BufferedWriter) -> None:
        super().__init__()
        self._writer, self.was_asked = writer, False

    def result(self, timeout: float | None = None) -> Commit:
        """The commit. Its counts are those of all calls that were committed together.

        Args:
            timeout: seconds to wait; without limit by default.

        Raises:
            TimeoutError: the commit did not end within this time; it continues.
            Error: the error of the commit. After UnknownOutcomeError the rows may be there.

        Examples:
            >>> with people.writer() as writer:
            ...     writer.delete("id = 1").result().version
            3
        """
        self.was_asked = True
        self._writer.hurry(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the commit; None if it is committed. Waits as ``result`` does."""
        self.was_asked = True
        self._writer.hurry(self)
        return super().exception(timeout)


class _BufferedCall(Struct):
    """The rows, or the delete, of one call, as they fitted the table at that time (``entry``)."""

    acknowledgement: Acknowledgement
    entry: TableEntry
    batches: list[pa.RecordBatch] = field(default_factory=list)
    where: Predicate | None = None
    keys: Keys | None = None
    request: str | None = None
    digest: str = ""
    size_bytes: int = 0
    rows: int = 0

    @property
    def is_delete(self) -> bool:
        """True if it deletes rows, False if it adds them."""
        return self.where is not None or self.keys is not None


class _Buffer(Struct):
    """The calls that wait for the next commit."""

    calls: list[_BufferedCall] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    since: float = 0.0


class BufferedWriter:
    """Collects rows and deletes of one table from any thread, and commits them as few large files.

    A commit contains all calls so far, in order: a delete hides rows that its thread added before, and none that it
    adds later. Call ``close``, or use it in ``with``. Calls not yet acknowledged may be lost if the process ends.

    Args:
        table: name of the table.
        max_rows, max_seconds, max_bytes, new_columns, note: see ``Table.writer``.
    """

    def __init__(
        self,
        context: Context,
        table: str,
        max_rows: int,
        max_seconds: float,
        max_bytes: int,
        new_columns: NewColumns = "refuse",
        note: Note = NO_NOTE,
    ) -> None:
        self._context, self._table, self._note = context, table, note
        self._max_rows = arguments.number("max_rows", max_rows, 1)
        self._max_bytes = arguments.number("max_bytes", max_bytes, 1)
        if isinstance(max_seconds, bool) or not isinstance(max_seconds, int | float) or not max_seconds >= 0:
            raise InputError(f"max_seconds={short_repr(max_seconds)}: give seconds, 0 or more")
        self._max_seconds = max_seconds
        arguments.one_of("new_columns", new_columns, get_args(NewColumns))
        self._new_columns = new_columns
        self._changed, self._committing = threading.Condition(), threading.Lock()
        self._buffer = _Buffer()
        self._calls_in_commit: list[_BufferedCall] = []
        self._requests: dict[str, _BufferedCall] = {}
        self._buffered_bytes = 0
        self._is_hurried = self._is_closed = False
        self._failed: list[Acknowledgement] = []
        self._uuid = UnitOfWork(context).entry(table).uuid  # raises TableNotFoundError
        self._has_thread = context.runtime.threads > 1
        if self._has_thread:
            context.runtime.start(self._work, f"dolmen-writer-{table}")

    def append(self, data: Any, *, cast: bool = False, request: str | None = None) -> Acknowledgement:
        """Adds rows. Waits while too many bytes wait.

        Args:
            data, cast: as for ``Table.append``. The rows stay in memory until they are committed.
            request: an id under which this is applied once, however often it is tried, here or by ``Table.append``.

        Raises:
            SchemaError, RowError: the rows do not fit the table; none of them is added.
            AppliedIdError: other rows wait under this id.
            ConflictError: another table has the name now. The acknowledgement may raise it, too.
            LimitError: the rows are larger than ``max_bytes``: ``Table.append`` streams them.

        Examples:
            >>> with people.writer() as writer:
            ...     done = writer.append([{"id": 4, "name": "Dan", "age": 61}])
            >>> done.result().rows
            1
        """
        entry = self._table_entry()
        arguments.flag("cast", cast)
        data, added = divide_columns(self._table, entry, data, self._new_columns)
        if added:
            entry = self._add_columns(added)
        digest = None if request is None else RowDigest(entry.schema.arrow)
        if request is not None:
            arguments.request_id(request)
        call = _BufferedCall(Acknowledgement(self), entry, request=request)
        schema = entry.schema.at(lambda: self._context.store.clock.current_us)
        for batch in rows_of(schema, data, digest, cast=cast):
            call.batches.append(batch)
            call.size_bytes += batch.nbytes
            call.rows += batch.num_rows
            if call.size_bytes > self._max_bytes:
                raise LimitError(f"rows of more than max_bytes={self._max_bytes:,}: Table.append streams them")
        if digest:
            call.digest = content_digest("append", self._table, None, digest.hexdigest())
        return self._add(call)

    def delete(
        self,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
    ) -> Acknowledgement:
        """Deletes rows that are committed, or were added before by this thread. Waits as ``append`` does.

        Args:
            where, parameters, keys, on: as for ``Table.delete``. ``now()`` is the time of this call.

        Raises:
            PredicateError, SchemaError, InputError: the predicate or the keys do not fit the table.

        Examples:
            >>> with people.writer() as writer:
            ...     done = writer.delete(keys=[1, 2])
            >>> people.count()
            1
        """
        entry = self._table_entry()
        predicate, chosen = choose_rows("delete", entry, where, parameters, keys, on)
        call = _BufferedCall(Acknowledgement(self), entry, keys=chosen, size_bytes=_DELETE_BYTES)
        if chosen is None:
            call.where = parse_where(self._context, entry, predicate)
        else:
            call.size_bytes += chosen.nbytes
        return self._add(call)

    def flush(self) -> None:
        """Commits all calls so far. Raises the first error of a call whose result was not asked for.

        Examples:
            >>> writer = people.writer()
            >>> done = writer.append([{"id": 4, "name": "Dan", "age": 61}])
            >>> writer.flush()
            >>> done.done()
            True
            >>> writer.close()
        """
        with self._changed:
            waiting = [call.acknowledgement for call in (*self._calls_in_commit, *self._buffer.calls)]
        for acknowledgement in waiting:
            self.hurry(acknowledgement)
        with self._changed:
            while any(not each.done() for each in waiting):
                self._changed.wait()
            failed, self._failed = [each for each in self._failed if not each.was_asked], []
        for each in failed:
            each.result()

    def close(self) -> None:
        """Commits all calls, and ends. Raises the first error of a call whose result was not asked for.

        Examples:
            >>> writer = people.writer()
            >>> writer.close()
            >>> writer
            <BufferedWriter people, closed: 0 rows wait, 0 bytes held>
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.flush()

    def hurry(self, acknowledgement: Acknowledgement) -> None:
        """Begins a commit as soon as the one under way has ended, if this one is not committed yet.

        Examples:
            >>> writer = people.writer(max_seconds=3600)
            >>> done = writer.append([{"id": 4, "name": "Dan", "age": 61}])
            >>> writer.hurry(done)
            >>> done.result().version
            3
            >>> writer.close()
        """
        if acknowledgement.done():
            return
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
        if not self._has_thread:
            self._commit_here()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Commits all calls, even if the block raised an error; that error is then raised."""
        try:
            self.close()
        except Error:
            if kind is None:
                raise

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("a writer belongs to one process: open one in each")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return (
            f"<BufferedWriter {self._table}, {state}: {self._buffer.rows} rows wait, {self._buffered_bytes} bytes held>"
        )

    def _table_entry(self) -> TableEntry:
        """The table as this process knows it; rows and deletes are checked against its columns."""
        context, cached = self._context, self._context.head.cached
        root_entry = cached.manifest.tables.get(self._table) if cached else None
        entry = context.segments.whole(root_entry) if root_entry else UnitOfWork(context).entry(self._table)
        self._check(entry)
        return entry

    def _add_columns(self, added: Sequence[pa.Field]) -> TableEntry:
        """Adds columns to the table, in a commit of its own, unless others have added them. Returns the table then."""
        for attempt in attempts(self._context.runtime, WRITER_BATCH):
            unit = UnitOfWork(self._context, "alter", note=self._note, newest=True)
            change = TableChange(unit, self._table)
            self._check(change.entry)
            names = own_names([field.name for field in added], change.entry.schema)
            known = change.entry.schema.arrow.names
            change.add_columns([field for field, name in zip(added, names, strict=True) if name not in known])
            try:
                unit.commit()
                break
            except ConflictError:
                if attempt.is_last:
                    raise
        return self._table_entry()

    def _check(self, entry: TableEntry) -> None:
        if entry.uuid != self._uuid:
            raise ConflictError(
                f"the name {self._table!r} has passed to another table since this writer was opened: open a new writer"
            )

    def _add(self, call: _BufferedCall) -> Acknowledgement:
        with self._changed:
            while True:
                if self._is_closed:
                    raise InputError("this writer is closed: open another one")
                if call.request is not None and (twin := self._requests.get(call.request)):
                    if twin.digest != call.digest:
                        raise AppliedIdError(f"other rows wait under the id {call.request!r}: use a new id")
                    return twin.acknowledgement
                if not self._buffered_bytes or self._buffered_bytes + call.size_bytes <= self._max_bytes:
                    break
                self._is_hurried = True
                self._changed.notify_all()
                if not self._has_thread:
                    break
                self._changed.wait()
            if not self._buffer.calls:
                self._buffer.since = self._context.runtime.monotonic()
            self._buffer.calls.append(call)
            self._buffer.rows += call.rows
            self._buffer.size_bytes += call.size_bytes
            self._buffered_bytes += call.size_bytes
            if call.request is not None:
                self._requests[call.request] = call
            self._changed.notify_all()
            is_due = self._wait_seconds() <= 0
        if is_due and not self._has_thread:
            self._commit_here()
        return call.acknowledgement

    def _wait_seconds(self) -> float:
        """Seconds until the next commit is due; not positive if it is due now. Only with calls in the buffer."""
        full = self._buffer.rows >= self._max_rows or self._buffer.size_bytes >= self._max_bytes // 2
        if full or self._is_hurried or self._is_closed:
            return 0.0
        return self._buffer.since + self._max_seconds - self._context.runtime.monotonic()

    def _take(self) -> list[_BufferedCall]:
        """Takes all calls out of the buffer; the next ones wait for the next commit."""
        with self._changed:
            calls, self._buffer, self._is_hurried = self._buffer.calls, _Buffer(), False
            self._calls_in_commit = [call for call in calls if call.acknowledgement.set_running_or_notify_cancel()]
            for call in calls:
                if call.acknowledgement.cancelled():
                    self._release(call)
            return self._calls_in_commit

    def _release(self, call: _BufferedCall) -> None:
        self._buffered_bytes -= call.size_bytes
        if call.request is not None:
            self._requests.pop(call.request, None)

    def _work(self) -> None:
        """Commits whenever a commit is due, in the writer's own thread, until it is closed and empty."""
        while True:
            with self._changed:
                while not self._buffer.calls or (seconds := self._wait_seconds()) > 0:
                    if self._is_closed and not self._buffer.calls:
                        return
                    self._changed.wait(seconds if self._buffer.calls else None)
            self._commit(self._take())

    def _commit_here(self) -> None:
        """Commits all calls so far in the caller's thread, after those that another thread commits."""
        with self._committing:
            self._commit(self._take())

    def _commit(self, calls: list[_BufferedCall]) -> None:
        """Commits calls, and completes the acknowledgement of each."""
        if not calls:
            return
        try:
            outcomes: list[Commit | BaseException] = self._commit_calls(calls)
        except BaseException as error:  # noqa: BLE001 - the waiting callers raise it
            outcomes = [copy_error(error) if isinstance(error, Error) else error for _ in calls]
        with self._changed:
            for call, outcome in zip(calls, outcomes, strict=True):
                self._release(call)
                if isinstance(outcome, Commit):
                    call.acknowledgement.set_result(outcome)
                else:
                    call.acknowledgement.set_exception(outcome)
                    self._failed.append(call.acknowledgement)
            self._failed = [each for each in self._failed if not each.was_asked][:_MOST_FAILED]
            self._calls_in_commit = []
            self._changed.notify_all()

    def _commit_calls(self, calls: Sequence[_BufferedCall]) -> list[Commit | BaseException]:
        """Makes one commit of calls, without those whose requests were applied before."""
        for attempt in attempts(self._context.runtime, WRITER_BATCH):
            unit = UnitOfWork(self._context, "write", note=self._note)
            applied = unit.find_applied([call.request for call in calls if call.request is not None])
            new = [call for call in calls if call.request not in applied]
            if new:
                self._check(unit.entry(self._table))
            try:
                for run in self._runs(new):
                    self._add_statement(unit, run)
                commit = unit.commit()
            except (ConflictError, AppliedIdError, StaleWriterError):
                if attempt.is_last:
                    raise
                self._context.head.refresh()  # the next attempt leaves out requests that others have applied
                continue
            except (SchemaError, RowError, PredicateError) as error:  # each call fitted the columns at its time
                raise ConflictError(
                    f"the columns or checks of table {self._table!r} have changed since append or delete was called; "
                    f"call it again: {error}"
                ) from error
            outcomes = list[Commit | BaseException]()
            for call in calls:
                entry = applied.get(call.request) if call.request is not None else None
                if entry is None:
                    outcomes.append(commit)
                else:
                    nothing = Commit.nothing(unit.base.as_history(), {entry.id: entry.version})
                    outcomes.append(reuse_error(entry, call.digest) or nothing)
            return outcomes
        raise AssertionError("unreachable")

    def _runs(self, calls: Sequence[_BufferedCall]) -> Iterator[list[_BufferedCall]]:
        """Yields runs of calls that can be one statement each. Rows and deletes keep their order."""
        for is_delete, group in groupby(calls, key=lambda call: call.is_delete):
            if is_delete:
                yield from self._delete_runs(group)
                continue
            rows = list(group)
            for with_request in (False, True):  # only rows with a request can be taken out of a commit
                some = [call for call in rows if call.rows and (call.request is not None) is with_request]
                yield from (list(run) for _, run in groupby(some, key=lambda call: call.entry.schema))
            yield from ([call] for call in rows if not call.rows and call.request is not None)

    def _delete_runs(self, deletes: Iterable[_BufferedCall]) -> Iterator[list[_BufferedCall]]:
        """Yields deletes by keys of the same columns together, up to ``_MOST_KEYS``, and others alone."""
        run, count, last = list[_BufferedCall](), 0, None
        for call in deletes:
            if call.keys is None:
                yield [call]
                continue
            key_columns = call.keys.column_names, call.entry.schema
            count += call.keys.num_rows
            if run and (key_columns != last or count > _MOST_KEYS):
                yield run
                run, count = [], call.keys.num_rows
            run.append(call)
            last = key_columns
        if run:
            yield run

    def _add_statement(self, unit: UnitOfWork, run: Sequence[_BufferedCall]) -> None:
        """Adds one statement for a run of calls (see ``_runs``)."""
        first, entry = run[0], unit.look_up(self._table)
        schema, base_ts = first.entry.schema, unit.base.commit_ts
        if first.where is not None:
            _present_names(schema, columns(first.where), entry, base_ts)
            TableChange(unit, self._table).delete(first.where)
        elif first.keys is not None:
            names = _present_names(schema, map(int, first.keys.column_names), entry, base_ts)
            keys = pa.concat_tables([call.keys for call in run if call.keys is not None])
            TableChange(unit, self._table).delete(keys=keys.rename_columns(names), on=names)
        else:
            check_written_under(schema, entry, base_ts)  # before anything is uploaded
            unit.begin_upload()
            leaves_out = must_leave_out_erased(entry)
            kept = unit.filter_erased(
                first.entry, [batch for call in run for batch in call.batches], leave_out=leaves_out
            )
            batches = [batch for batch in kept if batch.num_rows]
            own = with_constraints(first.entry, entry)
            if batches and own is not first.entry:
                rows = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
                batches, schema = list(conform(rows, own.schema)), own.schema
            requests = frozenset(call.request for call in run if call.request is not None)
            if batches:
                files = TableChange(unit, self._table, entry=own).write_rows(batches)
                if leaves_out:
                    unit.add(ExpectErasures(self._table, entry.uuid, base_ts, None))
                unit.add(Write(self._table, entry.uuid, files, requests=requests, schema=schema))
            for call in run:
                if call.request is not None:
                    unit.bind(call.request, call.digest)


def _present_names(schema: Schema, ids: Iterable[int], entry: TableEntry, base_ts: int) -> list[str]:
    """The present names of columns of an older schema. Raises SchemaError if one was dropped."""
    names = []
    for id_ in ids:
        present = same_column(entry.schema, schema.by_id[id_], base_ts)
        if present is None:
            raise SchemaError(f"column {schema.by_id[id_].name!r} was dropped meanwhile")
        names.append(present.name)
    return names

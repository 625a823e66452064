"""Adds the rows of one dropped file to a transaction, in bounded memory, or rejects the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
from msgspec import Struct

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.commit.change import Expect
from dolmen.commit.head import context_of
from dolmen.errors import (
    ConflictError,
    Error,
    InputError,
    LimitError,
    ObjectChangedError,
    ObjectNotFoundError,
    TableNotFoundError,
    VersionExpiredError,
)
from dolmen.format.ingest_properties import INGEST_PROPERTIES, IngestSettings
from dolmen.format.manifest import TableEntry
from dolmen.ingest.announcements import Drop
from dolmen.ingest.batch import Decision, RequestOutcome
from dolmen.ingest.drops.drop_outcomes import NO_ROWS, DropOutcome, RowCounts
from dolmen.ingest.formats.formats import SourceFile, detect_file, folder_fields, read
from dolmen.ingest.formats.source_file import OnBadRow, ReadOptions, RowNumbers
from dolmen.ingest.landing import Landing, LandingPath
from dolmen.ingest.late import ErasedRows, expect_erasures
from dolmen.ingest.new_columns import NO_NEW_COLUMNS, NewColumns, ingest_with_new_columns
from dolmen.ingest.redaction import UnforeseenError
from dolmen.ingest.rejects import Quarantine, Reject, find_reject, header_of, reject_drop
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable
from dolmen.transactions.unit_of_work import UnitOfWork, must_leave_out_erased

COPY_BYTES_PER_SECOND = 30_000_000  # the slowest speed of copying a reject
RESERVED_SECONDS = 30  # time for the other reports after a reject is copied


class DropIngestion(Struct):
    """One dropped file, and its state while its batch is ingested."""

    database: Database
    landing: Landing
    drop: Drop
    path: LandingPath  # the path of the file below the landing prefix, which names its table
    max_bytes: int | None = None  # the most bytes of the unpacked file; None: the default of ``ReadOptions``
    time_left: Callable[[], float] = lambda: math.inf  # seconds left for it, and for all work after it
    may_wait: bool = False  # whether it will be delivered again if its table does not exist
    auto_create: bool = False  # whether a table that does not exist is created, with columns inferred from the file
    settings: IngestSettings | None = None  # the settings of its table that it was read with
    # ties the commit to this table, these settings, and the columns that it was read with
    expected: Expect | None = None
    counts: RowCounts = NO_ROWS  # the rows that it adds
    final_outcome: DropOutcome | None = None  # its outcome, if that needs no commit
    # columns_added, columns_widened: how many columns of the table it adds and widens
    columns_added: int = 0
    columns_widened: int = 0
    # the names of the settings that were inferred from it for a new table; None if there are none
    inferred: str | None = None
    quarantined_to: Reject | None = None  # where its bad rows were put
    error: Error | None = None  # why it is rejected
    error_column: str | None = None  # the table's column that the error names, if any

    def add_to(self, transaction: Transaction) -> Decision:
        """Adds the file's rows to the transaction, or decides what to do with the file instead."""
        drop = self.drop
        self.counts, self.settings, self.quarantined_to, self.expected = NO_ROWS, None, None, None
        self.columns_added, self.columns_widened, self.inferred = 0, 0, None
        self.error = self.error_column = None
        try:
            error = self._try_to_add(transaction)
            if error is None:
                return "apply"
            if isinstance(error, TableNotFoundError) and self.may_wait:
                self.final_outcome = DropOutcome(drop, "waiting", error=error)
                return "finish"
            if self._sees_uncommitted_columns(transaction):
                retry = ConflictError(f"{error}; another file of this batch adds the columns, so it is read again")
                self.final_outcome = DropOutcome(drop, "failed", error=retry)
                return "finish"
            self.error, self.error_column = error, self._column_of_error(transaction, error)
            # Without an event that may come again, no commit need remember the rejection.
            if drop.rejection_id is None:
                self.final_outcome = self._reject(error)
                return "finish"
            if self.expected is not None:  # with other settings or columns the file may be good
                unit_of(transaction).add(replace(self.expected, request=drop.rejection_id))
            return "reject"
        except (ObjectNotFoundError, ObjectChangedError) as changed:
            self.final_outcome = DropOutcome(drop, "superseded", error=changed)
        return "finish"

    def _reject(self, error: Error) -> DropOutcome:
        """Writes the report. Raises ObjectNotFoundError, ObjectChangedError: the drop was deleted, or overwritten."""
        seconds = self.drop.size / COPY_BYTES_PER_SECOND + RESERVED_SECONDS
        can_copy = self.size_error is None and seconds <= self.time_left()  # and still commit the other files
        database, hint = self._database_attributes(), self._hint(error)
        rejected = reject_drop(self.landing, self.drop, self.path, error, database, copy=can_copy, hint=hint)
        return DropOutcome(self.drop, "rejected", reject=rejected, error=error, column=self.error_column)

    def _hint(self, error: Error) -> dict[str, Any]:
        """For the report: how the file seems to be written, if its table's properties say otherwise."""
        if not isinstance(error, InputError) or self.settings is None or self.size_error:
            return {}
        from dolmen.ingest.inference.hints import explain  # only for rejects

        path = self.path.path
        options = self.limit_options(ReadOptions.of(self.settings))
        try:
            format = detect_file(self.open, path, self.settings.format)
        except Error:
            return {}
        found = explain(SourceFile(self.open, format, path, options), error)
        return {} if found is None else {"found": found.found, "hint": found.properties}

    def _sees_uncommitted_columns(self, transaction: Transaction) -> bool:
        """Whether the table has columns that other files of this batch added, and that may never be committed.

        Then no file is rejected, except in the commit that creates the table.
        """
        name, whole = self.path.path.partition("/")[0], unit_of(transaction).uploads.segments.whole
        entry, base_entry = unit_of(transaction).tables.get(name), unit_of(transaction).base.tables.get(name)
        if entry is None or base_entry is None:
            return entry is not None and self.drop.rejection_id is None
        return whole(entry).schema != whole(base_entry).schema

    def _try_to_add(self, transaction: Transaction) -> Error | None:
        """Adds the file's rows to the transaction, or adds nothing and returns what is wrong with the file.

        An unforeseen error that occurs twice is the file's own. Transient errors are raised.
        """
        if too_large := self.size_error:
            return too_large
        unforeseen: Exception | None = None
        while True:
            try:
                self.expected = None
                with unit_of(transaction).savepoint():
                    self._add_to_table(transaction)
            except (InputError, TableNotFoundError) as error:
                return error
            except Exception as error:
                if _is_transient(error):
                    raise
                if unforeseen is not None:
                    return UnforeseenError(self.path.path, error)
                unforeseen = error
            else:
                return None

    @property
    def size_error(self) -> LimitError | None:
        """The error about a file that is over the limit even before it is unpacked; None if it is not."""
        most = self.limit_options(ReadOptions()).max_bytes
        if self.drop.size <= most:
            return None
        return LimitError(
            f"file {self.path.path!r} has {self.drop.size:,} bytes, and one file may hold {most:,}: "
            "split it into smaller files"
        )

    def open(self) -> BinaryIO:
        return self.landing.open(self.drop)

    def limit_options(self, options: ReadOptions) -> ReadOptions:
        if self.max_bytes is None:
            return options
        most, temporary = self.max_bytes, min(self.max_bytes, options.max_temporary_bytes)
        return replace(options, max_bytes=most, max_temporary_bytes=temporary)

    def outcome(self, outcome: RequestOutcome) -> DropOutcome:
        match outcome.status:
            case "applied":
                return DropOutcome(
                    self.drop,
                    "ingested",
                    self.counts,
                    outcome.version,
                    self.quarantined_to,
                    inferred=self.inferred,
                    columns_added=self.columns_added,
                    columns_widened=self.columns_widened,
                )
            case "duplicate":
                return DropOutcome(self.drop, "duplicate", version=outcome.version)
            case "rejected":
                assert outcome.version is not None
                return self._report_rejection(outcome.version)
            case "finished":
                assert self.final_outcome is not None
                return self.final_outcome
            case "postponed":
                return DropOutcome(self.drop, "postponed")
        return DropOutcome(self.drop, "failed", error=outcome.error)

    def _report_rejection(self, version: int) -> DropOutcome:
        """Writes the report of a committed rejection, unless an earlier delivery did."""
        try:
            if reject := find_reject(self.landing, self.drop, self.path):
                return DropOutcome(self.drop, "rejected", reject=reject, error=self.error, column=self.error_column)
            return self._reject(self.error or self._find_error(version))
        except (ObjectNotFoundError, ObjectChangedError) as changed:
            return DropOutcome(self.drop, "superseded", error=changed)
        except Exception as error:  # noqa: BLE001 - must not block the other drops of its batch
            return DropOutcome(self.drop, "failed", error=error)

    def _find_error(self, version: int) -> Error:
        """Reads the file again on the version that rejected it, to find the reason."""
        try:
            transaction = Transaction(UnitOfWork(context_of(self.database), base=self.database.at(version).manifest))
            error = self._try_to_add(transaction)
        except VersionExpiredError:
            error = None
        return error or InputError(
            f"file {self.path.path!r} was rejected by version {version}, and the reason was not written down: "
            "drop it again to see it"
        )

    def _add_to_table(self, transaction: Transaction) -> None:
        # No conflict if others create the table meanwhile: of the file's id and its rejection's, only one is committed.
        try:
            entry = unit_of(transaction).entry(self.path.table)
        except TableNotFoundError:
            if not self.auto_create:
                raise TableNotFoundError(f"no table {self.path.table!r}: create it, then drop the file again") from None
            entry = self._create_table(transaction)
        else:
            # The commit fails if others change the settings or columns that the file is read with.
            self.expected = Expect(
                self.path.table, entry.uuid, entry.properties, INGEST_PROPERTIES, self.drop.id, entry.schema
            )
            unit_of(transaction).add(self.expected)
        table = TransactionTable(unit_of(transaction), self.path.table)
        settings = IngestSettings.of(entry)
        settings.check(entry.schema, entry.primary_key)
        all_erasures = must_leave_out_erased(entry)
        expect_erasures(transaction, self.path.table, None if all_erasures else self.drop.dropped_us, self.drop.id)
        self.settings = settings
        path, clock = self.path.path, context_of(self.database).store.clock
        schema = None if settings.mode == "cdc" else entry.schema.at(lambda: clock.current_us)
        options = self.limit_options(ReadOptions.of(settings, schema))
        source = SourceFile(self.open, detect_file(self.open, path, settings.format), path, options)

        def add_rows(settings: IngestSettings, new: NewColumns) -> None:
            # By now, types may be widened.
            erased = ErasedRows.of(transaction, table.name, self.drop.dropped_us, all_erasures=all_erasures)
            self._add_rows(transaction, table, source, settings, new, erased)

        if settings.new_columns == "add":
            new = ingest_with_new_columns(transaction, table.name, source, settings, self.drop.id, add_rows)
            self.columns_added, self.columns_widened = len(new.added), len(new.widened)
        else:
            add_rows(settings, NO_NEW_COLUMNS)

    def _create_table(self, transaction: Transaction) -> TableEntry:
        """Creates the table with types that fit the whole file, and properties by which later files are read alike.

        Names of folders with values (``day=2026-11-27``) are columns, too.

        A rejected file creates no table.
        """
        from dolmen.adopt.hive_folders import folder_values  # only for files of tables that do not exist
        from dolmen.ingest.inference.inference import infer_file

        detect_file(self.open, self.path.path)  # a table's files have names that show a format
        limits = self.limit_options(ReadOptions())
        found = infer_file(self.open, self.path.path, limits=limits, samples=False)
        schema, properties = found.schema, found.properties
        if folders := list(folder_values(self.path.path.split("/")[:-1])):
            own = set(map(str.lower, schema.names))
            added = [field for field in folder_fields(folders, [self.path.path]) if field.name.lower() not in own]
            schema, properties = pa.schema([*schema, *added]), {**properties, "ingest_hive": folders}
        self.inferred = ", ".join(properties) or None
        transaction.create_table(self.path.table, schema, properties=properties, request=self.drop.id)
        return unit_of(transaction).entry(self.path.table)

    def _add_rows(
        self,
        transaction: Transaction,
        table: TransactionTable,
        source: SourceFile,
        settings: IngestSettings,
        new: NewColumns,
        erased: ErasedRows | None,
    ) -> None:
        """Adds the rows by ``ingest_mode``; quarantines bad ones if the settings say so."""
        with Quarantine(self.path.path, settings.max_bad_rows) as quarantine:
            on_bad_row = quarantine.add if settings.on_bad_row == "quarantine" else None
            if settings.mode == "cdc":
                from dolmen.ingest.cdc.apply_changes import ingest_changes  # only for tables that take changes

                counts = ingest_changes(
                    transaction,
                    table.name,
                    source,
                    settings=settings,
                    unused=new.empty,
                    on_bad_row=on_bad_row,
                    request=self.drop.id,
                    erased=erased,
                )
            elif settings.mode == "append":
                rows = self._read(source, table.schema, new, on_bad_row, erased)
                table.append(rows.reader, request=self.drop.id, leave_out_erased=False)
                counts = RowCounts(appended=rows.count)
            else:
                key = table.primary_key  # its columns are not nullable, so that the reader reports rows without a key
                columns = pa.schema(
                    [each.with_nullable(each.nullable and each.name not in key) for each in table.schema]
                )
                rows = self._read(source, columns, new, on_bad_row, erased)
                table.upsert(rows.reader, request=self.drop.id, leave_out_erased=False)
                counts = RowCounts(upserted=rows.count)
            if quarantine.count:
                header, about = header_of(source), self._database_attributes()
                self.quarantined_to = quarantine.keep(self.landing, self.drop, self.path, source, header, about)
            self.counts = replace(counts, quarantined=quarantine.count, erased=erased.count if erased else 0)

    def _read(
        self,
        source: SourceFile,
        schema: pa.Schema,
        new: NewColumns,
        on_bad_row: OnBadRow | None,
        erased: ErasedRows | None,
    ) -> _RowCounter:
        """Reads the rows of the dropped file, without rows erased since, and counts them as they are consumed."""
        numbers = RowNumbers(on_bad_row)
        rows = new.leave_out(read(source, new.extend(schema), on_bad_row=numbers.for_reader), schema)
        if erased is not None:
            from dolmen.ingest.cdc.change_columns import find_columns  # only for files older than an erasure

            assert self.settings is not None
            erased.read_names(source, partial(find_columns, source, self.settings))
            rows = erased.leave_out(rows, numbers, self.path.path, on_bad_row)
        return _RowCounter(rows, context_of(self.database).runtime)

    def _column_of_error(self, transaction: Transaction, error: Exception) -> str | None:
        name = getattr(error, "column", None)
        table = unit_of(transaction).tables.get(self.path.path.partition("/")[0]) if name else None
        return name if table and name in unit_of(transaction).uploads.segments.whole(table).schema.arrow.names else None

    def _database_attributes(self) -> dict[str, Any]:
        return {"url": self.database.url, "version": self.database.version}


def _is_transient(error: Exception) -> bool:
    """Whether an error comes from the store, the database or the machine, not from the file."""
    if isinstance(error, OSError):
        return error.errno is not None  # Arrow has OSErrors of its own, without a number, for damaged data
    if isinstance(error, RuntimeError):  # such as: a thread cannot start; two kinds come only from data
        return not isinstance(error, RecursionError | NotImplementedError)
    return isinstance(error, Error | MemoryError | ImportError)


class _RowCounter:
    """Counts rows as they are consumed. Reads the next ones while some are written."""

    def __init__(self, rows: pa.RecordBatchReader, runtime: Runtime) -> None:
        self.count = 0
        self.reader = pa.RecordBatchReader.from_batches(rows.schema, self._count(runtime.ahead(rows)))

    def _count(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            self.count += batch.num_rows
            yield batch

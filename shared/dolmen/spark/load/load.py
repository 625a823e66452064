"""Bulk load: landing files of any format, and whole prefixes of them, into tables, each file once.

Files are known by the ids that their events have. So a load may be repeated, may continue one that was killed, and may
run while events ingest the same files: the commits alone decide which of them loads a file.

Where rows are only added to a table, tasks read and write its files, in batches. The core ingests all other files in
the driver, one batch after the other, in bounded memory: where rows replace others or are changes, so that order
matters; where bad rows are kept; where the table does not exist yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import msgspec
from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.base.runtime import cached_property
from dolmen.base.units import GIB, MIB, size_text
from dolmen.commit.change import Expect
from dolmen.commit.head import context_of
from dolmen.commit.statements.row_changes import Write
from dolmen.errors import AppliedIdError, ConflictError, Error, InputError, short_repr
from dolmen.format.entries import DataFile
from dolmen.format.ingest_properties import INGEST_PROPERTIES, IngestSettings
from dolmen.format.properties import TableSettings
from dolmen.ingest.announcements import Drop
from dolmen.ingest.batch import BASE_CHANGED
from dolmen.ingest.drops.announce_files import DropSource, group_drops
from dolmen.ingest.drops.drop_ingestion import DropIngestion
from dolmen.ingest.drops.drop_outcomes import DropOutcome, RowCounts
from dolmen.ingest.drops.ingest_drops import ingest_drops, ingest_with_retries
from dolmen.ingest.formats.source_file import ReadOptions
from dolmen.ingest.landing import Landing
from dolmen.ingest.late import ErasedRows, expect_erasures
from dolmen.service.handover.handover_records import HandoverRecord, HandoverRecords
from dolmen.spark.load.load_tasks import (
    PIECES,
    RANGE_BYTES,
    RUNS,
    Batches,
    DropReader,
    FileReport,
    LoadTask,
    Ranges,
    Sample,
    TaskFiles,
    cut_runs,
    read_runs,
    write_groups,
    write_ranges,
)
from dolmen.spark.sessions import check_database, check_session
from dolmen.spark.tasks import collect_objects, collect_rows, map_in_tasks
from dolmen.spark.write.write_tasks import begin_uploads, collect_with_heartbeats, encode_entry
from dolmen.store import portable_url
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit, must_leave_out_erased

MAX_FILES, MAX_BYTES = 1000, 8 * GIB
"""The most files and bytes of one batch, which is one commit. A larger one is clustered better, and costs more when it
fails."""
_CORE_FILES, _CORE_BYTES = 100, GIB  # the most files and bytes of one batch that the core ingests
_MOST_PROBLEMS = 1000
_WAITING_BATCHES = 4  # the files of this many batches may wait for more files of their table
BUFFERED_BYTES = 32 * MIB  # the most bytes of a file's rows that a task keeps until it has seen the file's end
SAMPLE_BYTES = MIB  # bytes of sorted rows for each sampled key, or an eighth of a data file if that is less
LEAST_GROUP_BYTES, MOST_GROUP_BYTES = 16 * MIB, 256 * MIB
"""The bytes of files that a task reads, at least and at most; or one larger file."""
_STORED_AS = 0.6  # bytes of Parquet for a byte of a run, roughly: the plan's number of files depends on it
_BLOBS_AT_ONCE = 4  # runs, or pieces of them, that a worker gets at once; each has megabytes


def load(
    spark: SparkSession,
    database: Database,
    drops: DropSource | HandoverRecords | Iterable[Drop | None],
    *,
    landing: Landing | None = None,
    auto_create: bool = False,
    max_file_bytes: int | None = None,
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    dry_run: bool = False,
    on_progress: Callable[[Loaded, str], None] = lambda loaded, doing: None,
) -> Loaded:
    """Loads files into the tables that their keys name, as the tables' properties say.

    A file that cannot be read goes to the rejects, as in ingest, and the others are loaded. A file that fails only
    temporarily is among the problems: load again.

    Args:
        drops: a source of files; or records of drops that were handed over, each of which is removed when all of its
            drops have an outcome; or any drops (None is skipped).
        landing: where drops are found; by default that of a ``DropSource``.
        auto_create: create a table that does not exist, with the schema of its first readable file.
        max_file_bytes: the most bytes of one unpacked file; a larger file is rejected.
        max_files, max_bytes: of one commit, where tasks read.
        dry_run: only list the files, and find those that are already loaded.
        on_progress: called with the result so far, and a text that says what is being done.

    Raises:
        UnknownOutcomeError: the last commit may have landed; load again, each file is still loaded once.
        StoreUnavailableError, AccessDeniedError, ...: a request failed; what is committed stays.
        PySparkException, Py4JJavaError: a job failed for a reason outside dolmen; what is committed stays.
    """
    check_session(spark)
    check_database(database)
    if not (isinstance(drops, (DropSource, HandoverRecords)) or hasattr(drops, "__iter__")):
        raise InputError(f"drops={short_repr(drops)}: give DropSource.of(url), or drops")
    auto_create, dry_run = arguments.flag("auto_create", auto_create), arguments.flag("dry_run", dry_run)
    max_files, max_bytes = arguments.number("max_files", max_files, 1), arguments.number("max_bytes", max_bytes, 1)
    if max_file_bytes is not None:
        max_file_bytes = arguments.number("max_file_bytes", max_file_bytes, 1)
    if landing is None:
        if not isinstance(drops, DropSource):
            raise InputError("where are these files? Give landing=Landing(...)")
        landing = drops.landing
    runtime = context_of(database).runtime
    began, done = runtime.monotonic(), Loaded()

    def notify(doing: str) -> None:
        done.seconds = runtime.monotonic() - began
        on_progress(done, doing)

    loading = _Loading(spark, database, landing, auto_create, max_file_bytes, done, notify)
    waiting_drops: Iterable[Drop | None]
    if isinstance(drops, HandoverRecords):
        waiting_drops = records = _Records(drops)
    else:
        waiting_drops, records = drops.drops() if isinstance(drops, DropSource) else drops, None
    while True:
        for table, batch in _batches(landing, iter(waiting_drops), done, max_files, max_bytes):
            if dry_run:
                loading.count(table, batch)
                continue
            outcomes = loading.load(table, batch)
            if records is not None:
                records.remove(outcomes)
        if records is None or not records.has_more():  # no other job was started for records that have come since
            break
    notify("done")
    return done


@dataclass
class Loaded:
    """The result of a load."""

    # files by outcome; a dry run adds those that ``would be loaded``
    outcomes: Counter[str] = field(default_factory=Counter)
    # files, bytes: that have an outcome, and their size
    files: int = 0
    bytes: int = 0
    rows: int = 0  # that were added to the tables
    commits: int = 0
    skipped: int = 0  # listed objects that cannot be drops
    tables: Counter[str] = field(default_factory=Counter)  # files by table
    # the first thousand files that were rejected or failed, or could not be tagged or removed
    problems: list[DropOutcome] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, table: str, outcomes: Sequence[DropOutcome], commit: Commit | None) -> None:
        for outcome in outcomes:
            self.outcomes[outcome.status] += 1
            self.bytes += outcome.drop.size
            self.rows += outcome.counts.ingested
            trouble = outcome.status in ("rejected", "failed") or outcome.landing_error
            if trouble and len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(outcome)
        self.files += len(outcomes)
        self.tables[table] += len(outcomes)
        self.commits += commit is not None


def _batches(
    landing: Landing, drops: Iterator[Drop | None], done: Loaded, max_files: int, max_bytes: int
) -> Iterator[tuple[str, list[Drop]]]:
    """Yields drops in batches of one table each (or of none, ""), in order, and then raises the error of ``drops``."""
    waiting: dict[str, list[Drop]] = {}
    sizes: Counter[str] = Counter()
    count = 0
    error: Error | None = None
    try:
        for drop in drops:
            if drop is None:
                done.skipped += 1
                continue
            table = landing.table(drop) or ""
            batch = waiting.setdefault(table, [])
            if batch and (len(batch) >= max_files or sizes[table] + drop.size > max_bytes):
                yield table, batch
                count, sizes[table] = count - len(batch), 0
                batch = waiting[table] = []
            batch.append(drop)
            count, sizes[table] = count + 1, sizes[table] + drop.size
            if count >= _WAITING_BATCHES * max_files:
                table = max(waiting, key=lambda name: len(waiting[name]))
                batch = waiting.pop(table)
                yield table, batch
                count, sizes[table] = count - len(batch), 0
    except Error as raised:
        error = raised
    yield from waiting.items()
    if error is not None:
        raise error


class _Records:
    """The drops of records, one after the other. Records whose drops have outcomes are removed."""

    def __init__(self, store: HandoverRecords) -> None:
        self._store = store
        self._open: dict[str, tuple[HandoverRecord, set[str]]] = {}
        self._of: dict[str, set[str]] = {}

    def __iter__(self) -> Iterator[Drop]:
        for record in self._store.read_all():
            if record.key in self._open:
                continue  # some of its drops failed in this job: it is left to the next one
            self._open[record.key] = record, {drop.id for drop in record.drops}
            for drop in record.drops:
                self._of.setdefault(drop.id, set()).add(record.key)
                yield drop

    def has_more(self) -> bool:
        return any(record.key not in self._open for record in self._store.read_all())

    def remove(self, outcomes: Sequence[DropOutcome]) -> None:
        for outcome in outcomes:
            if outcome.status == "failed":
                continue
            for key in self._of.pop(outcome.drop.id, ()):
                record, remaining = self._open[key]
                remaining.discard(outcome.drop.id)
                if not remaining:
                    self._store.remove(record)
                    del self._open[key]


def is_loaded_by_tasks(settings: IngestSettings) -> bool:
    """Whether tasks read the files of a table: order does not matter, and bad rows are not kept."""
    return settings.mode == "append" and settings.on_bad_row == "reject_file"


@dataclass
class _Loading:
    """Loads batches, each in the way that its table needs."""

    spark: SparkSession
    database: Database
    landing: Landing
    auto_create: bool
    max_file_bytes: int | None
    done: Loaded
    notify: Callable[[str], None]

    @cached_property
    def _session(self) -> SparkSession:
        """The same Spark, with settings of its own."""
        spark = self.spark.newSession()
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_BLOBS_AT_ONCE))
        spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
        return spark

    def load(self, table: str, drops: list[Drop]) -> list[DropOutcome]:
        outcomes: list[DropOutcome] = []
        while drops:
            settings = self._settings(table)
            if settings is not None and is_loaded_by_tasks(settings):
                return outcomes + self._by_tasks(table, drops)
            # The first file that can be read creates a table that does not exist yet: look again after each.
            first = 1 if table and settings is None and self.auto_create else len(drops)
            outcomes += self._by_core(table, drops[:first])
            drops = drops[first:]
        return outcomes

    def count(self, table: str, drops: list[Drop]) -> None:
        applied = unit_of(self.database.transaction()).find_applied({drop.id for drop in drops})
        duplicates = [drop for drop in drops if drop.id in applied]
        outcomes = [DropOutcome(drop, "duplicate", version=applied[drop.id].version) for drop in duplicates]
        self.done.add(table, outcomes, None)
        new_drops = [drop for drop in drops if drop.id not in applied]
        self.done.outcomes["would be loaded"] += len(new_drops)
        self.done.files += len(new_drops)
        self.done.bytes += sum(drop.size for drop in new_drops)
        self.done.tables[table] += len(new_drops)

    def _settings(self, table: str) -> IngestSettings | None:
        """The table's settings for ingest; None if they can't be read, mostly because there is no table."""
        try:
            return IngestSettings.of(unit_of(self.database.transaction()).entry(table))
        except Error:
            if table in self.database.tables():
                return IngestSettings(on_bad_row="quarantine")  # the core reports the error
            return None

    def _by_core(self, table: str, drops: Sequence[Drop]) -> list[DropOutcome]:
        outcomes: list[DropOutcome] = []
        for group in group_drops(drops, _CORE_FILES, _CORE_BYTES):
            self.notify(f"{table}: {len(group):,} files, by the core")
            for ingested in ingest_with_retries(
                self.database, self.landing, group, auto_create=self.auto_create, max_bytes=self.max_file_bytes
            ):
                outcomes += ingested.outcomes
                self.done.add(table, ingested.outcomes, ingested.commit)
        return outcomes

    def _by_tasks(self, table: str, drops: Sequence[Drop]) -> list[DropOutcome]:
        """Loads files in ONE commit. The core ingests the files that tasks can't read, or reports why it can't.

        ``ingest_drops`` decides which files are read, commits them, and disposes of them; here Spark reads them. A data
        file has rows of many files. So if another process has ingested one of them, or has replaced the table, the
        commit is refused, and the batch is made again without that file.
        """
        portable_url(context_of(self.database).store)
        read = partial(self._read_all, table)
        ingested = ingest_drops(
            self.database, self.landing, drops, max_bytes=self.max_file_bytes, operation="load", read_all=read
        )
        outcomes: list[DropOutcome] = []
        remaining: list[Drop] = []
        for outcome in ingested.outcomes:
            error = outcome.error if outcome.status == "failed" else None
            is_applied = isinstance(error, AppliedIdError)
            # The core also takes files of a table that changed again and again.
            if outcome.status == "postponed" or (isinstance(error, BASE_CHANGED) and not is_applied):
                remaining.append(outcome.drop)
            elif error is not None and not is_applied:
                raise error
            else:
                outcomes.append(outcome)
        self.done.add(table, outcomes, ingested.commit)
        return outcomes + self._by_core(table, remaining)

    def _read_all(self, table: str, transaction: Transaction, ingestions: Sequence[DropIngestion]) -> list[str]:
        """Adds the rows of all files that tasks can read; returns the ids of these."""
        work = _BatchLoad(self._session, transaction, table, ingestions[0])
        # The core takes files with rows that were erased since the files were dropped.
        all_erasures = must_leave_out_erased(unit_of(transaction).entry(table))
        to_read = [
            each
            for each in ingestions
            if ErasedRows.of(transaction, table, each.drop.dropped_us, all_erasures=all_erasures) is None
        ]
        while to_read:  # again without files that turned out bad after some of their rows were written
            self.notify(f"{table}: {len(to_read):,} files, {size_text(sum(each.drop.size for each in to_read))}")
            written = work.write([each.drop for each in to_read])
            whole = [number for number in range(len(to_read)) if written.reports[number].is_whole]
            for number in whole:
                to_read[number].counts = RowCounts(appended=written.reports[number].rows)
            to_read = [to_read[number] for number in whole]
            if written.is_clean:
                break
        ids = [each.drop.id for each in to_read]
        if ids:
            times = [each.drop.dropped_us for each in to_read]
            oldest = None if all_erasures or None in times else min(time for time in times if time is not None)
            expect_erasures(transaction, table, oldest, ids[0])
            work.add_to(transaction, ids, written.files)
            self.notify(f"{table}: committing {len(ids):,} files")
        return ids


class _TaskResults(Struct, frozen=True):
    """The result of tasks: data files, reports by the number of the drop, and whether ``files`` can be used."""

    files: tuple[DataFile, ...]
    reports: dict[int, FileReport]
    is_clean: bool


class _BatchLoad:
    def __init__(self, spark: SparkSession, transaction: Transaction, table: str, ingestion: DropIngestion) -> None:
        self._spark, self._transaction, self._table = spark, transaction, table
        self._landing = ingestion.landing
        entry = self._entry = unit_of(transaction).entry(table)
        self._settings = IngestSettings.of(entry)
        self._settings.check(entry.schema, entry.primary_key)
        if not is_loaded_by_tasks(self._settings):
            raise ConflictError(f"table {table!r}: how its files are ingested was changed meanwhile")
        self._file_bytes = TableSettings.of(entry).target_file_bytes
        clock = unit_of(transaction).context.store.clock
        self._options = ingestion.limit_options(
            ReadOptions.of(self._settings, entry.schema.at(lambda: clock.current_us))
        )

    def write(self, drops: Sequence[Drop]) -> _TaskResults:
        """Reads files, and writes their rows into data files under the transaction's intent."""
        groups = _groups(drops, self._spark.sparkContext.defaultParallelism)
        how = self._settings.format, self._options, tuple(drops), groups, BUFFERED_BYTES
        read = DropReader(self._landing, encode_entry(self._entry), *how)
        numbers = self._spark.range(0, len(groups), 1, len(groups))
        return self._write_in_order(numbers, read) if self._entry.sort_key else self._write_unordered(numbers, read)

    def add_to(self, transaction: Transaction, ids: Sequence[str], files: tuple[DataFile, ...]) -> None:
        """Adds the rows of these drops. The commit is refused if the way to read the table's files has changed."""
        unit, entry = unit_of(transaction), self._entry
        unit.add(Expect(self._table, entry.uuid, entry.properties, INGEST_PROPERTIES, ids[0], entry.schema))
        if files:
            unit.add(Write(self._table, entry.uuid, files, requests=frozenset(ids), schema=entry.schema))

    def _write_unordered(self, numbers: DataFrame, read: DropReader) -> _TaskResults:
        written = self._run(numbers, self._file_bytes, partial(write_groups, read))
        reports = {report.drop: report for each in written for report in each.reports}
        is_clean = all(report.is_whole or not report.rows for report in reports.values())
        return _TaskResults(_files(written), reports, is_clean)

    def _run(
        self, frame: DataFrame, file_bytes: int, work: Callable[[LoadTask], Callable[[Batches], Iterator[TaskFiles]]]
    ) -> list[TaskFiles]:
        task = LoadTask(*begin_uploads(self._transaction, self._table), file_bytes=file_bytes)
        return collect_objects(frame, work(task), TaskFiles, partial(collect_with_heartbeats, self._transaction))

    def _write_in_order(self, numbers: DataFrame, read: DropReader) -> _TaskResults:
        work = read_runs(read, min(SAMPLE_BYTES, self._file_bytes // 8))
        runs = map_in_tasks(numbers, work, RUNS).persist(StorageLevel.DISK_ONLY)
        try:
            rows = collect_rows(runs.where("report IS NOT NULL").select("report"))
            reports = {each.drop: each for each in (msgspec.json.decode(row.report, type=FileReport) for row in rows)}
            bad = [number for number, each in reports.items() if not each.is_whole]
            good = runs.where(F.col("run").isNotNull() & (F.col("number").isNull() | ~F.col("number").isin(bad)))
            samples = [Sample.decode(row.sample) for row in good.select("sample").collect()]
            if not samples:
                return _TaskResults((), reports, True)
            ranges = self._ranges(samples)
            parts = ranges.parts[-1] + 1
            cut = map_in_tasks(good.select("run"), cut_runs(read.entry, ranges, self._lanes(parts)), PIECES)
            lanes = cut.repartition(parts, "lane").sortWithinPartitions("lane", "range")
            # A range becomes one file, even if it is somewhat too large.
            files = _files(self._run(lanes, 2 * self._file_bytes, write_ranges))
        finally:
            runs.unpersist()
        count, expected = sum(file.rows for file in files), sum(each.rows for each in reports.values() if each.is_whole)
        if count != expected:  # runs were lost with a machine, and a file has changed before it was read again
            raise ConflictError(f"table {self._table!r}: {expected:,} rows were read first, and {count:,} later")
        return _TaskResults(files, reports, True)

    def _ranges(self, samples: Sequence[Sample]) -> Ranges:
        """Plans a part for each full data file, or for each processor if the files stay large enough."""
        stored_bytes = sum(sample.stored for sample in samples) * _STORED_AS
        least = min(self._spark.sparkContext.defaultParallelism, int(stored_bytes // (self._file_bytes / 4)))
        parts = max(1, least, round(stored_bytes / self._file_bytes))
        pieces = max(1, round(sum(sample.weight * len(sample.keys) for sample in samples) / parts / RANGE_BYTES))
        return Ranges.of(((key, sample.weight) for sample in samples for key in sample.keys), parts, pieces)

    def _lanes(self, parts: int) -> tuple[int, ...]:
        """Finds a number for each part that Spark's hash puts into a partition of its own."""
        lanes: dict[int, int] = {}
        numbers = self._spark.range(0, parts * (parts.bit_length() + 8)).select(F.col("id").cast("int").alias("lane"))
        for row in numbers.select("lane", F.pmod(F.hash("lane"), F.lit(parts)).alias("to")).collect():
            lanes.setdefault(row.to, row.lane)
        return tuple(lanes.get(part, part) for part in range(parts))  # two parts in one partition: correct, but slower


def _groups(drops: Sequence[Drop], tasks: int) -> tuple[tuple[int, ...], ...]:
    """Groups the numbers of neighbouring drops, about two groups for each of ``tasks``."""
    total = sum(drop.size for drop in drops)
    most = min(MOST_GROUP_BYTES, max(LEAST_GROUP_BYTES, total // (2 * tasks)))
    numbers = iter(range(len(drops)))
    return tuple(tuple(islice(numbers, len(group))) for group in group_drops(drops, len(drops), most))


def _files(written: Sequence[TaskFiles]) -> tuple[DataFile, ...]:
    return tuple(file for each in written for file in each.files)

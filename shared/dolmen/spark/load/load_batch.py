"""One batch of a load: files of one table that tasks read and write, in ONE commit.

``dolmen.ingest.drops.ingest_drops`` decides which files are read, commits them, and disposes of them; here Spark reads
them. A data file has rows of many files. So if another process has ingested one of them, or has replaced the table, the
commit is refused, and the batch is made again without that file. A file that its task cannot read is left out of the
commit. Afterwards the core ingests it alone, and rejects it with the usual report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.api.database import Database
from dolmen.base.units import MIB, megabytes_text
from dolmen.commit.context import context_of
from dolmen.commit.statements.row_changes import Write
from dolmen.commit.statements.statement import Expect
from dolmen.errors import AppliedIdError, ConflictError
from dolmen.format.entries import DataFile
from dolmen.format.ingest_properties import INGEST_PROPERTIES, IngestSettings
from dolmen.format.properties import TableSettings
from dolmen.ingest.announcements import Drop
from dolmen.ingest.batch import BASE_CHANGED
from dolmen.ingest.drops.announce_files import group_drops
from dolmen.ingest.drops.drop_ingestion import DropIngestion
from dolmen.ingest.drops.drop_outcomes import DropOutcome, RowCounts
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.formats.reader_options import ReadOptions
from dolmen.ingest.landing import Landing
from dolmen.ingest.late import ErasedRows, expect_erasures
from dolmen.spark.load.load_tasks import (
    PIECES,
    RANGE_BYTES,
    RUNS,
    WRITTEN,
    FileReport,
    LoadTask,
    Ranges,
    ReadDrops,
    Sample,
    cut_runs,
    read_runs,
    write_ranges,
    write_read,
)
from dolmen.spark.sessions import worker_url
from dolmen.spark.tasks import collect_rows, map_in_tasks
from dolmen.spark.write.write_tasks import begin_uploads, collect_keeping_alive, encode_entry
from dolmen.transactions.results import Commit
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import leaves_out_erased

BUFFERED_BYTES = 32 * MIB
"""The most bytes of a file's rows that a task keeps until it has seen the file's end."""
SAMPLE_BYTES = MIB
"""Bytes of sorted rows for each sampled key, or an eighth of a data file if that is less."""
LEAST_GROUP_BYTES, MOST_GROUP_BYTES = 16 * MIB, 256 * MIB
"""The bytes of files that a task reads, at least and at most; or one larger file."""
_STORED_AS = 0.6
"""Bytes of Parquet for a byte of a run, roughly: the plan's number of files depends on it."""
_BLOBS_AT_ONCE = 4
"""Runs, or pieces of them, that a worker gets at once; each has megabytes."""


@dataclass(frozen=True)
class LoadedBatch:
    """The result of a batch: outcomes of drops, the drops that are left to the core, and the commit."""

    outcomes: list[DropOutcome]
    left: list[Drop]
    commit: Commit | None


def is_loaded_by_tasks(settings: IngestSettings) -> bool:
    """Whether tasks read the files of a table: order does not matter, and bad rows are not kept."""
    return settings.mode == "append" and settings.on_bad_row == "reject_file"


class BatchLoader:
    """Loads batches into tables of one database."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        landing: Landing,
        max_file_bytes: int | None,
        notify: Callable[[str], None],
    ) -> None:
        self._spark = spark.newSession()  # the same Spark, with settings of its own
        self._spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_BLOBS_AT_ONCE))
        self._spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
        self._database, self._landing = database, landing
        self._max_file_bytes, self._notify = max_file_bytes, notify

    def load(self, table: str, drops: Sequence[Drop]) -> LoadedBatch:
        """Loads files into a table, which ``is_loaded_by_tasks``.

        Raises:
            UnknownOutcomeError: the commit may have landed; repeated, each file is still loaded once.
            StoreUnavailableError, AccessDeniedError: the database, or a file, can't be reached.
            PySparkException, Py4JJavaError: a job failed. No error leaves a commit.
        """
        worker_url(context_of(self._database).store)
        ingested = ingest_drops(
            self._database,
            self._landing,
            drops,
            max_bytes=self._max_file_bytes,
            operation="load",
            read_all=partial(self._read_all, table),
        )
        outcomes: list[DropOutcome] = []
        left: list[Drop] = []
        for outcome in ingested.outcomes:
            error = outcome.error if outcome.status == "failed" else None
            is_applied = isinstance(error, AppliedIdError)
            # The core ingests files of a table that changed again and again, or says why not.
            if outcome.status == "postponed" or (isinstance(error, BASE_CHANGED) and not is_applied):
                left.append(outcome.drop)
            elif error is not None and not is_applied:
                raise error
            else:
                outcomes.append(outcome)
        return LoadedBatch(outcomes, left, ingested.commit)

    def _read_all(self, table: str, transaction: Transaction, ingestions: Sequence[DropIngestion]) -> list[str]:
        """Adds the rows of all files that tasks can read; returns the ids of these."""
        work = _Work(self._spark, transaction, table, ingestions[0])
        # The core takes files with rows that were erased since the files were dropped.
        every = leaves_out_erased(unit_of(transaction).entry(table))
        to_read = [
            each for each in ingestions if ErasedRows.of(transaction, table, each.drop.dropped_us, every=every) is None
        ]
        while to_read:  # again without files that turned out bad after some of their rows were written
            self._notify(f"{table}: {len(to_read):,} files, {megabytes_text(sum(each.drop.size for each in to_read))}")
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
            oldest = None if every or None in times else min(time for time in times if time is not None)
            expect_erasures(transaction, table, oldest, ids[0])
            work.add_to(transaction, ids, written.files)
            self._notify(f"{table}: committing {len(ids):,} files")
        return ids


@dataclass(frozen=True)
class _Written:
    """The result of tasks: data files, reports by the number of the drop, and whether ``files`` can be used."""

    files: tuple[DataFile, ...]
    reports: dict[int, FileReport]
    is_clean: bool


class _Work:
    """The jobs of one round."""

    def __init__(self, spark: SparkSession, transaction: Transaction, table: str, one: DropIngestion) -> None:
        self._spark, self._transaction, self._table = spark, transaction, table
        self._landing = one.landing
        entry = self._entry = unit_of(transaction).entry(table)
        self._settings = IngestSettings.of(entry)
        self._settings.check(entry.schema, entry.primary_key)
        if not is_loaded_by_tasks(self._settings):
            raise ConflictError(f"table {table!r}: how its files are ingested was changed meanwhile")
        self._file_bytes = TableSettings.of(entry).target_file_bytes
        self._options = one.limit_options(ReadOptions.of(self._settings, entry.schema))

    def write(self, drops: Sequence[Drop]) -> _Written:
        """Reads files, and writes their rows into data files under the transaction's intent."""
        groups = _groups(drops, self._spark.sparkContext.defaultParallelism)
        how = self._settings.format, self._options, tuple(drops), groups, BUFFERED_BYTES
        read = ReadDrops(self._landing, encode_entry(self._entry), *how)
        numbers = self._spark.range(0, len(groups), 1, len(groups))
        return self._in_order(numbers, read) if self._entry.sort_key else self._as_they_come(numbers, read)

    def add_to(self, transaction: Transaction, ids: Sequence[str], files: tuple[DataFile, ...]) -> None:
        """Adds the rows of these drops. The commit is refused if the way to read the table's files has changed."""
        unit, entry = unit_of(transaction), self._entry
        unit.add(Expect(self._table, entry.uuid, entry.properties, INGEST_PROPERTIES, ids[0], entry.schema))
        if files:
            unit.add(Write(self._table, entry.uuid, files, requests=frozenset(ids), schema=entry.schema))

    def _as_they_come(self, numbers: DataFrame, read: ReadDrops) -> _Written:
        task = LoadTask(*begin_uploads(self._transaction, self._table), self._file_bytes)
        rows = collect_keeping_alive(self._transaction, map_in_tasks(numbers, write_read(read, task), WRITTEN))
        reports = _file_reports(rows)
        return _Written(_files(rows), reports, all(each.is_whole or not each.rows for each in reports.values()))

    def _in_order(self, numbers: DataFrame, read: ReadDrops) -> _Written:
        work = read_runs(read, min(SAMPLE_BYTES, self._file_bytes // 8))
        runs = map_in_tasks(numbers, work, RUNS).persist(StorageLevel.DISK_ONLY)
        try:
            reports = _file_reports(collect_rows(runs.where("report IS NOT NULL").select("report")))
            bad = [number for number, each in reports.items() if not each.is_whole]
            good = runs.where(F.col("run").isNotNull() & (F.col("number").isNull() | ~F.col("number").isin(bad)))
            samples = [Sample.decode(row.sample) for row in good.select("sample").collect()]
            if not samples:
                return _Written((), reports, True)
            ranges = self._ranges(samples)
            parts = ranges.parts[-1] + 1
            cut = map_in_tasks(good.select("run"), cut_runs(read.entry, ranges, self._lanes(parts)), PIECES)
            lanes = cut.repartition(parts, "lane").sortWithinPartitions("lane", "range")
            uploads = begin_uploads(self._transaction, self._table)
            task = LoadTask(*uploads, 2 * self._file_bytes)  # a range is a file, if it is somewhat larger too
            files = _files(collect_keeping_alive(self._transaction, map_in_tasks(lanes, write_ranges(task), WRITTEN)))
        finally:
            runs.unpersist()
        rows, expected = sum(file.rows for file in files), sum(each.rows for each in reports.values() if each.is_whole)
        if rows != expected:  # runs were lost with a machine, and a file has changed before it was read again
            raise ConflictError(f"table {self._table!r}: {expected:,} rows were read first, and {rows:,} later")
        return _Written(files, reports, True)

    def _ranges(self, samples: Sequence[Sample]) -> Ranges:
        """Plans a part for each full data file, or for each processor if files are not too small then."""
        stored = sum(sample.stored for sample in samples) * _STORED_AS
        least = min(self._spark.sparkContext.defaultParallelism, int(stored // (self._file_bytes / 4)))
        parts = max(1, least, round(stored / self._file_bytes))
        pieces = max(1, round(sum(sample.weight * len(sample.keys) for sample in samples) / parts / RANGE_BYTES))
        return Ranges.of(((key, one.weight) for one in samples for key in one.keys), parts, pieces)

    def _lanes(self, parts: int) -> tuple[int, ...]:
        """Finds a number for each part that Spark's hash puts into a partition of its own."""
        lanes: dict[int, int] = {}
        numbers = self._spark.range(0, parts * (parts.bit_length() + 8)).select(F.col("id").cast("int").alias("lane"))
        for row in numbers.select("lane", F.pmod(F.hash("lane"), F.lit(parts)).alias("to")).collect():
            lanes.setdefault(row.to, row.lane)
        return tuple(lanes.get(part, part) for part in range(parts))  # two of one partition: right as well, but slower


def _groups(drops: Sequence[Drop], tasks: int) -> tuple[tuple[int, ...], ...]:
    """Groups the numbers of neighbouring drops, about two groups for each of ``tasks``."""
    total = sum(drop.size for drop in drops)
    most = min(MOST_GROUP_BYTES, max(LEAST_GROUP_BYTES, total // (2 * tasks)))
    numbers = iter(range(len(drops)))
    return tuple(tuple(islice(numbers, len(group))) for group in group_drops(drops, len(drops), most))


def _file_reports(rows: Sequence[Row]) -> dict[int, FileReport]:
    reports = (msgspec.json.decode(row.report, type=FileReport) for row in rows if row.report is not None)
    return {report.drop: report for report in reports}


def _files(rows: Sequence[Row]) -> tuple[DataFile, ...]:
    return tuple(msgspec.json.decode(row.entry, type=DataFile) for row in rows if row.entry is not None)

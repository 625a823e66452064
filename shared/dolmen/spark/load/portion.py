"""One portion of a load: some files of one table, read and written by tasks, in ONE commit.

The commit applies the ids of all its drops. If somebody else has ingested one of them meanwhile, or has replaced the
table, it is refused, and the portion is made anew without them: rows of many files stand mixed in its data files.

A file that its task could not read is left out of the commit, and ingested by the core afterwards, alone: that finds
out once more what is wrong with it, and rejects it with the same report as ever (or finds that it can be read).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.commit.statements.expect import Expect
from dolmen.commit.statements.rows import Write
from dolmen.database import Database
from dolmen.errors import AppliedIdError, ConflictError, InputError, NotFoundError, StaleWriterError
from dolmen.format.entries import DataFile
from dolmen.format.ingest_properties import INGEST_PROPERTIES, IngestSettings
from dolmen.format.manifest import AppliedId
from dolmen.format.properties import TableSettings
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.disposal import dispose
from dolmen.ingest.drops.outcomes import DropOutcome, RowCounts
from dolmen.ingest.formats.options import ReadOptions
from dolmen.ingest.landing import Landing
from dolmen.ingest.rejects.report import find_reject
from dolmen.results import Commit
from dolmen.spark.failures import FAILURES, dolmen_error, telling
from dolmen.spark.load.order import Ranges
from dolmen.spark.load.read import FileRead, Places, ReadDrops
from dolmen.spark.load.tasks import (
    PIECES,
    RANGE_BYTES,
    RUNS,
    WRITTEN,
    LoadTask,
    Sample,
    cut_runs,
    read_runs,
    write_ranges,
    write_read,
)
from dolmen.spark.paths import worker_url
from dolmen.spark.write.frame import attended, bare
from dolmen.transaction import Transaction
from dolmen.units import megabytes_text

ROUNDS = 5
"""How often a portion is made anew because what it was made on has changed under it."""
HELD_BYTES = 32 << 20
"""A file of up to so many bytes of rows is held back by its task until its end was seen."""
SAMPLE_BYTES = 1 << 20
"""One key is taken as a sample of so many bytes of sorted rows, or of an eighth of a data file."""
LEAST_GROUP_BYTES, MOST_GROUP_BYTES = 16 << 20, 256 << 20
"""A task reads files of so many bytes, or one that is larger."""

_CHANGED = (InputError, NotFoundError, ConflictError, StaleWriterError)
_STORED_AS = 0.6
"""Bytes of Parquet for a byte of a run, roughly: says how many files to plan."""
_BLOBS_AT_ONCE = 4
"""Runs, or pieces of them, that a worker is handed at once; they are megabytes each."""


@dataclass(frozen=True)
class Settled:
    """What became of a portion: an outcome for each drop but those that are left to the core, and the commit."""

    outcomes: list[DropOutcome]
    left: list[Drop]
    commit: Commit | None


def is_loaded_by_tasks(settings: IngestSettings) -> bool:
    """Whether files of a table are read by tasks: where order does not matter, and bad rows are not kept aside."""
    return settings.mode == "append" and settings.on_bad_row == "reject_file"


class PortionLoader:
    """Loads portions into tables of one database.

    Args:
        max_file_bytes: what one file may hold once it is unpacked; None = as much as ``ReadOptions`` says.
        notify: is told what is being done.
    """

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

    def load(self, table: str, drops: Sequence[Drop]) -> Settled:
        """Loads files into a table, which ``is_loaded_by_tasks``.

        Raises:
            UnknownOutcomeError: the commit may have landed; repeated, each file is still loaded once.
            StoreUnavailableError, AccessDeniedError: the database, or a file, can't be reached.
            PySparkException, Py4JJavaError: a job failed. Nothing was committed then, as after all that is raised.
        """
        worker_url(self._database.context.store)
        leaders: dict[str, Drop] = {}
        for drop in drops:
            leaders.setdefault(drop.id, drop)
        for _ in range(ROUNDS):
            try:
                settled = self._round(table, list(leaders.values()))
                break
            except _CHANGED:  # made anew on the newest version, or else by the core, which finds out what is wrong
                settled = Settled([], list(leaders.values()), None)
        versions = {outcome.drop.id: outcome.version for outcome in settled.outcomes}
        for drop in drops:
            if drop is not leaders[drop.id] and drop.id in versions:
                settled.outcomes.append(DropOutcome(drop, "duplicate", version=versions[drop.id]))
            elif drop is not leaders[drop.id]:
                settled.left.append(drop)
        return replace(settled, outcomes=self._disposed(table, settled.outcomes))

    def _round(self, table: str, drops: list[Drop]) -> Settled:
        transaction = self._database.transaction("load")
        known = transaction.find_applied({drop.id for drop in drops})
        outcomes = [_applied_before(drop, known[drop.id]) for drop in drops if drop.id in known]
        new = [drop for drop in drops if drop.id not in known]
        found = self._database.runtime.map(self._rejected_before, new)
        rejected = {outcome.drop.id: outcome for outcome in found if outcome is not None}
        outcomes += rejected.values()
        final = transaction.applied_before({drop.rejection_id for drop in new if drop.rejection_id is not None})
        unreported = [drop for drop in new if drop.id not in rejected and drop.rejection_id in final]
        new = [drop for drop in new if drop.id not in rejected and drop.rejection_id not in final]
        if not new:
            return Settled(outcomes, unreported, None)
        work = _Work(self._spark, transaction, table, self._landing, self._max_file_bytes)
        read, left = new, unreported  # the core writes the reports of these
        while read:  # again without those that turned out bad behind rows that were handed on
            self._notify(f"{table}: {len(read):,} files, {megabytes_text(sum(drop.size for drop in read))}")
            written = work.write(read)
            left += [drop for place, drop in enumerate(read) if not written.told[place].whole]
            counts = {drop.id: written.told[place].rows for place, drop in enumerate(read)}
            read = [drop for place, drop in enumerate(read) if written.told[place].whole]
            if written.is_clean:
                break
        if not read:
            return Settled(outcomes, left, None)
        self._notify(f"{table}: committing {len(read):,} files")
        commit = work.commit(read, written.files)
        outcomes += [
            DropOutcome(drop, "ingested", RowCounts(appended=counts[drop.id]), commit.version)
            if drop.id not in commit.already
            else DropOutcome(drop, "duplicate", version=commit.already[drop.id])
            for drop in read
        ]
        return Settled(outcomes, left, commit if commit.commit_id else None)

    def _rejected_before(self, drop: Drop) -> DropOutcome | None:
        place = self._landing.place(drop) if drop.sequencer else None
        before = find_reject(self._landing, drop, place) if place else None
        return DropOutcome(drop, "rejected", reject=before) if before else None

    def _disposed(self, table: str, outcomes: list[DropOutcome]) -> list[DropOutcome]:
        """Does with each file whose rows are committed what its table asks for."""
        transaction = self._database.transaction()
        try:
            policy = IngestSettings.of(transaction.entry(table)).landing
        except (InputError, NotFoundError) as error:  # the table was dropped, say
            return [replace(outcome, disposal_error=error) for outcome in outcomes]
        if policy == "keep":
            return outcomes

        def disposed(outcome: DropOutcome) -> DropOutcome:
            if outcome.status not in ("ingested", "duplicate"):
                return outcome
            try:
                dispose(self._landing, outcome.drop, policy)
            except Exception as error:  # noqa: BLE001 - reported in the outcome
                return replace(outcome, disposal_error=error)
            return outcome

        return list(self._database.runtime.map(disposed, outcomes))


@dataclass(frozen=True)
class _Written:
    """What the tasks have made of some files: ``told`` of each by its place, and whether ``files`` can be used."""

    files: tuple[DataFile, ...]
    told: dict[int, FileRead]
    is_clean: bool


class _Work:
    """The jobs of one round."""

    def __init__(
        self, spark: SparkSession, transaction: Transaction, table: str, landing: Landing, max_bytes: int | None
    ) -> None:
        self._spark, self._transaction, self._table = spark, transaction, table
        self._landing = Places.of(landing)
        entry = transaction.entry(table)
        self._settings = IngestSettings.of(entry)
        self._settings.check(entry.schema, entry.primary_key)
        if not is_loaded_by_tasks(self._settings):
            raise ConflictError(f"table {table!r}: how its files are ingested was changed meanwhile")
        self._is_sorted = bool(entry.sort_key)
        self._file_bytes = TableSettings.of(entry).target_file_bytes
        self._uuid, self._properties = entry.uuid, entry.properties
        self._entry = msgspec.json.encode(bare(entry))
        options = ReadOptions.of(self._settings)
        if max_bytes is not None:
            temporary = min(max_bytes, options.max_temporary_bytes)
            options = replace(options, max_bytes=max_bytes, max_temporary_bytes=temporary)
        self._options = options

    def write(self, drops: Sequence[Drop]) -> _Written:
        """Reads files, and writes their rows into data files under the transaction's intent."""
        groups = _groups(drops, self._spark.sparkContext.defaultParallelism)
        format = self._settings.format
        read = ReadDrops(self._landing, self._entry, format, self._options, tuple(drops), groups, HELD_BYTES)
        return self._in_order(read) if self._is_sorted else self._as_they_come(read)

    def commit(self, drops: Sequence[Drop], files: tuple[DataFile, ...]) -> Commit:
        """Commits what was read of these files, if the table's files are still to be read as they were."""
        self._transaction.add(Expect(self._table, self._uuid, self._properties, INGEST_PROPERTIES, drops[0].id))
        if files:
            ids = frozenset(drop.id for drop in drops)
            self._transaction.add(Write(self._table, self._uuid, files, requests=ids))
        for drop in drops:
            self._transaction.bind(drop.id, drop.digest)
            if drop.rejection_id is not None:
                self._transaction.exclude(drop.rejection_id)
        return self._transaction.commit()

    def _as_they_come(self, read: ReadDrops) -> _Written:
        task = self._task(self._file_bytes)
        rows = self._attended(self._groups(read).mapInArrow(telling(write_read(read, task)), WRITTEN))
        told = _told(rows)
        return _Written(_files(rows), told, all(each.whole or not each.rows for each in told.values()))

    def _in_order(self, read: ReadDrops) -> _Written:
        made = read_runs(read, min(SAMPLE_BYTES, self._file_bytes // 8))
        runs = self._groups(read).mapInArrow(telling(made), RUNS).persist(StorageLevel.DISK_ONLY)
        try:
            told = _told(_collected(runs.where("told IS NOT NULL").select("told")))
            bad = [place for place, each in told.items() if not each.whole]
            good = runs.where(F.col("run").isNotNull() & (F.col("place").isNull() | ~F.col("place").isin(bad)))
            samples = [Sample.decode(row.sample) for row in good.select("sample").collect()]
            if not samples:
                return _Written((), told, True)
            ranges = self._ranges(samples)
            parts = ranges.parts[-1] + 1
            cut = good.select("run").mapInArrow(telling(cut_runs(self._entry, ranges, self._lanes(parts))), PIECES)
            lanes = cut.repartition(parts, "lane").sortWithinPartitions("lane", "range")
            task = self._task(2 * self._file_bytes)  # a range is a file, if it is somewhat larger too
            files = _files(self._attended(lanes.mapInArrow(telling(write_ranges(task)), WRITTEN)))
        finally:
            runs.unpersist()
        rows, expected = sum(file.rows for file in files), sum(each.rows for each in told.values() if each.whole)
        if rows != expected:  # runs were lost with a machine, and a file has changed before it was read again
            raise ConflictError(f"table {self._table!r}: {expected:,} rows were read first, and {rows:,} later")
        return _Written(files, told, True)

    def _ranges(self, samples: Sequence[Sample]) -> Ranges:
        """As many parts as full data files, or as processors if the files are not too small then."""
        stored = sum(sample.stored for sample in samples) * _STORED_AS
        least = min(self._spark.sparkContext.defaultParallelism, int(stored // (self._file_bytes / 4)))
        parts = max(1, least, round(stored / self._file_bytes))
        pieces = max(1, round(sum(sample.weight * len(sample.keys) for sample in samples) / parts / RANGE_BYTES))
        return Ranges.of(((key, one.weight) for one in samples for key in one.keys), parts, pieces)

    def _groups(self, read: ReadDrops) -> DataFrame:
        count = len(read.groups)
        return self._spark.range(0, count, 1, numPartitions=count)

    def _lanes(self, parts: int) -> tuple[int, ...]:
        """For each part a number that Spark's hash puts into a partition of its own."""
        lanes: dict[int, int] = {}
        numbers = self._spark.range(0, parts * (parts.bit_length() + 8)).select(F.col("id").cast("int").alias("lane"))
        for row in numbers.select("lane", F.pmod(F.hash("lane"), F.lit(parts)).alias("to")).collect():
            lanes.setdefault(row.to, row.lane)
        return tuple(lanes.get(part, part) for part in range(parts))  # two of one partition: right as well, but slower

    def _task(self, file_bytes: int) -> LoadTask:
        transaction = self._transaction
        url = worker_url(transaction.context.store)
        transaction.begin_upload()
        return LoadTask(url, self._table, self._entry, transaction.intent().txid, file_bytes)

    def _attended(self, job: DataFrame) -> list[Row]:
        return attended(self._transaction, job)


def _groups(drops: Sequence[Drop], tasks: int) -> tuple[tuple[int, ...], ...]:
    """Places of drops, for one task each: neighbours, so many that twice ``tasks`` have something to do."""
    total = sum(drop.size for drop in drops)
    most = min(MOST_GROUP_BYTES, max(LEAST_GROUP_BYTES, total // (2 * tasks)))
    groups: list[tuple[int, ...]] = []
    group: list[int] = []
    size = 0
    for place, drop in enumerate(drops):
        if group and size + drop.size > most:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(place)
        size += drop.size
    return (*groups, tuple(group))


def _collected(job: DataFrame) -> list[Row]:
    """Raises errors of dolmen as what they are."""
    try:
        rows: list[Row] = job.collect()
    except FAILURES as failure:
        if error := dolmen_error(failure):
            raise error from failure
        raise
    return rows


def _told(rows: Sequence[Row]) -> dict[int, FileRead]:
    told = (msgspec.json.decode(row.told, type=FileRead) for row in rows if row.told is not None)
    return {each.place: each for each in told}


def _files(rows: Sequence[Row]) -> tuple[DataFile, ...]:
    return tuple(msgspec.json.decode(row.entry, type=DataFile) for row in rows if row.entry is not None)


def _applied_before(drop: Drop, applied: AppliedId) -> DropOutcome:
    if applied.digest == drop.digest:
        return DropOutcome(drop, "duplicate", version=applied.version)
    reason = f"id {drop.id!r} was applied by version {applied.version} with other content: use a new id"
    return DropOutcome(drop, "failed", error=AppliedIdError(reason))

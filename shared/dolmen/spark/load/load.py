"""Bulk load: landing files of any format, and whole prefixes of them, into tables, each file once.

Files are known by the ids that their events have. So a load may be repeated, may continue one that was killed, and may
run while events ingest the same files: the commits alone decide which of them loads a file.

Where rows are only added to a table, tasks read and write its files, in batches (``load_batch``). The core ingests all
other files in the driver, one batch after the other, in bounded memory: where rows replace others or are changes, so
that order matters; where bad rows are kept; where the table does not exist yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.base.units import GIB
from dolmen.commit.context import context_of
from dolmen.errors import Error, InputError
from dolmen.format.ingest_properties import IngestSettings
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.announce_files import DropSource, group_drops
from dolmen.ingest.drops.drop_outcomes import DropOutcome
from dolmen.ingest.drops.ingest_drops import ingest_with_retries
from dolmen.ingest.landing import Landing
from dolmen.service.handover.handover_records import HandoverRecord, HandoverRecords
from dolmen.spark.load.load_batch import BatchLoader, is_loaded_by_tasks
from dolmen.spark.sessions import check_database, check_session
from dolmen.transactions.results import Commit
from dolmen.transactions.transaction import unit_of

MAX_FILES, MAX_BYTES = 1000, 8 * GIB
"""The most files and bytes of one batch, which is one commit. A larger one is clustered better, and costs more when it
fails."""
_CORE_FILES, _CORE_BYTES = 100, GIB
"""The most files and bytes of one batch that the core ingests."""
_MOST_PROBLEMS = 1000
_WAITING_BATCHES = 4
"""The files of this many batches may wait for more files of their table."""


@dataclass
class Loaded:
    """The result of a load.

    Args:
        outcomes: files by outcome; a dry run adds those that ``would be loaded``.
        files, bytes: that have an outcome, and their size.
        rows: that were added to the tables.
        skipped: listed objects that cannot be drops.
        tables: files by table.
        problems: the first thousand files that were rejected or failed, or could not be tagged or removed.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    files: int = 0
    bytes: int = 0
    rows: int = 0
    commits: int = 0
    skipped: int = 0
    tables: Counter[str] = field(default_factory=Counter)
    problems: list[DropOutcome] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, table: str, outcomes: Sequence[DropOutcome], commit: Commit | None) -> None:
        """Counts files that have an outcome."""
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

    A file that cannot be read goes to the rejects, as in ingest, and the others are loaded. A file that fails for the
    moment is among the problems: load again.

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
        raise InputError(f"drops={arguments.short_repr(drops)}: give Source.of(place), or drops")
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

    batches = None if dry_run else BatchLoader(spark, database, landing, max_file_bytes, notify)
    core: dict[str, Any] = {"auto_create": auto_create, "max_bytes": max_file_bytes}
    loading = _Loading(database, landing, batches, core, done, notify)
    found: Iterable[Drop | None]
    if isinstance(drops, HandoverRecords):
        found = records = _Records(drops)
    else:
        found, records = drops.drops() if isinstance(drops, DropSource) else drops, None
    while True:
        for table, batch in _batches(landing, iter(found), done, max_files, max_bytes):
            outcomes = loading.load(table, batch)
            if records is not None and not dry_run:
                records.remove(outcomes)
        if records is None or not records.has_more():  # no other job was started for records that have come since
            break
    notify("done")
    return done


@dataclass
class _Loading:
    """Loads batches, each in the way that its table needs."""

    database: Database
    landing: Landing
    batches: BatchLoader | None
    core: dict[str, Any]
    done: Loaded
    notify: Callable[[str], None]

    def load(self, table: str, drops: list[Drop]) -> list[DropOutcome]:
        """Loads the files of a table, and returns their outcomes."""
        if self.batches is None:
            return self._dry_run(table, drops)
        outcomes: list[DropOutcome] = []
        while drops:
            settings = self._settings(table)
            if settings is not None and is_loaded_by_tasks(settings):
                loaded = self.batches.load(table, drops)
                self.done.add(table, loaded.outcomes, loaded.commit)
                return outcomes + loaded.outcomes + self._by_core(table, loaded.left)
            # The first file that can be read creates a table that does not exist yet: look again after each.
            first = 1 if table and settings is None and self.core["auto_create"] else len(drops)
            outcomes += self._by_core(table, drops[:first])
            drops = drops[first:]
        return outcomes

    def _settings(self, table: str) -> IngestSettings | None:
        """How a table's files are ingested; None if that is not known, above all if there is no table."""
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
            for ingested in ingest_with_retries(self.database, self.landing, group, **self.core):
                outcomes += ingested.outcomes
                self.done.add(table, ingested.outcomes, ingested.commit)
        return outcomes

    def _dry_run(self, table: str, drops: list[Drop]) -> list[DropOutcome]:
        applied = unit_of(self.database.transaction()).find_applied({drop.id for drop in drops})
        outcomes = [
            DropOutcome(drop, "duplicate", version=applied[drop.id].version) for drop in drops if drop.id in applied
        ]
        self.done.add(table, outcomes, None)
        others = [drop for drop in drops if drop.id not in applied]
        self.done.outcomes["would be loaded"] += len(others)
        self.done.files += len(others)
        self.done.bytes += sum(drop.size for drop in others)
        self.done.tables[table] += len(others)
        return outcomes


def _batches(
    landing: Landing, drops: Iterator[Drop | None], done: Loaded, max_files: int, max_bytes: int
) -> Iterator[tuple[str, list[Drop]]]:
    """Yields drops in batches of one table each, in their order; the table is "" for drops without one.

    Raises what ``drops`` raises, after it has yielded all that came before.
    """
    waiting: dict[str, list[Drop]] = {}
    sizes: Counter[str] = Counter()
    count = 0
    error: Error | None = None
    while True:
        try:
            drop = next(drops)
        except StopIteration:
            break
        except Error as raised:
            error = raised
            break
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
    yield from waiting.items()
    if error is not None:
        raise error


class _Records:
    """The drops of records, one after the other. Records whose drops have outcomes are removed."""

    def __init__(self, stored: HandoverRecords) -> None:
        self._stored = stored
        self._open: dict[str, tuple[HandoverRecord, set[str]]] = {}
        self._of: dict[str, set[str]] = {}

    def __iter__(self) -> Iterator[Drop]:
        for record in self._stored.pending():
            if record.key in self._open:
                continue  # some of its drops failed in this job: it is left to the next one
            self._open[record.key] = record, {drop.id for drop in record.drops}
            for drop in record.drops:
                self._of.setdefault(drop.id, set()).add(record.key)
                yield drop

    def has_more(self) -> bool:
        """Whether there are new records."""
        return any(record.key not in self._open for record in self._stored.pending())

    def remove(self, outcomes: Sequence[DropOutcome]) -> None:
        """Removes the records whose drops all have an outcome."""
        for outcome in outcomes:
            if outcome.status == "failed":
                continue
            for key in self._of.pop(outcome.drop.id, ()):
                record, left = self._open[key]
                left.discard(outcome.drop.id)
                if not left:
                    self._stored.remove(record)
                    del self._open[key]

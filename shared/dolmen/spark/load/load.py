"""Bulk load: landing files of any format, and whole prefixes of them, into tables, each file once.

Files are known by the ids that their events have, so a load may be repeated, go on where a killed one ended, and run
while the same files are ingested by events. What is committed by whom is decided by the commits alone.

Files for tables that rows are added to are read and written by tasks, in portions (``load_portion``). All others (where
rows replace others or are changes, so that order matters; where bad rows are kept aside; tables that do not exist yet)
are ingested by the core in the driver, a batch after the other, in bounded memory.
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
from dolmen.errors import Error, InputError
from dolmen.format.ingest_properties import IngestSettings
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.announce_files import DropSource, group_drops
from dolmen.ingest.drops.drop_outcomes import DropOutcome
from dolmen.ingest.drops.ingest_drops import ingest_with_retries
from dolmen.ingest.landing import Landing
from dolmen.service.handover.handover_records import HandoverRecord, HandoverRecords
from dolmen.spark import checks as given
from dolmen.spark.load.load_batch import PortionLoader, is_loaded_by_tasks
from dolmen.transactions.results import Commit

MAX_FILES, MAX_BYTES = 1000, 8 * GIB
"""The most files and bytes of one portion, which is one commit.

A larger one is clustered better, but costs more when it fails."""
_CORE_FILES, _CORE_BYTES = 100, GIB
"""The most files and bytes of one batch that the core ingests."""
_MOST_PROBLEMS = 1000
_WAITING_PORTIONS = 4
"""The files of this many portions may wait for more files of their table."""


@dataclass
class Loaded:
    """The result of a load.

    Args:
        outcomes: files by what became of them; of a dry run also those that ``would be loaded``.
        files, bytes: that were settled, and their size.
        rows: that are in the tables now.
        commits: that were made.
        skipped: listed objects that can be no drops.
        tables: files by table.
        problems: the first thousand files that were rejected or failed, or could not be tagged or removed.
        seconds: how long it took.
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
        """Counts files that are settled."""
        for outcome in outcomes:
            self.outcomes[outcome.status] += 1
            self.bytes += outcome.drop.size
            self.rows += outcome.counts.ingested
            trouble = outcome.status in ("rejected", "failed") or outcome.disposal_error
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
    """Loads files into the tables that their places name, as the tables' properties say.

    A file that cannot be read goes to the rejects, as in ingest, and the others are loaded. One that fails for the
    moment is among the problems: load again.

    Args:
        drops: a place to look for files in; or records of drops that were handed over, which are removed once all of
            theirs are settled; or any drops (None is skipped).
        landing: where drops are found; by default that of a ``Source``.
        auto_create: create a table that does not exist, with the schema of its first readable file.
        max_file_bytes: what one file may hold once it is unpacked; one that holds more is rejected.
        max_files, max_bytes: of one commit, where tasks read.
        dry_run: only look which files there are, and which of them are loaded already.
        on_progress: is told what was done so far, and what is being done.

    Raises:
        UnknownOutcomeError: the last commit may have landed; load again, each file is still loaded once.
        StoreUnavailableError, AccessDeniedError, ...: something can't be reached; what is committed stays.
        PySparkException, Py4JJavaError: a job failed by something that is not of dolmen; what is committed stays.
    """
    given.session(spark)
    given.database(database)
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
    runtime = database.runtime
    began, done = runtime.monotonic(), Loaded()

    def notify(doing: str) -> None:
        done.seconds = runtime.monotonic() - began
        on_progress(done, doing)

    portions = None if dry_run else PortionLoader(spark, database, landing, max_file_bytes, notify)
    core: dict[str, Any] = {"auto_create": auto_create, "max_bytes": max_file_bytes}
    loading = _Loading(database, landing, portions, core, done, notify)
    found: Iterable[Drop | None]
    if isinstance(drops, HandoverRecords):
        found = records = _Records(drops)
    else:
        found, records = drops.drops() if isinstance(drops, DropSource) else drops, None
    while True:
        for table, portion in _portions(landing, iter(found), done, max_files, max_bytes):
            settled = loading.load(table, portion)
            if records is not None and not dry_run:
                records.remove(settled)
        if records is None or not records.has_more():  # some may have come meanwhile, with nobody to start a job for
            break
    notify("done")
    return done


@dataclass
class _Loading:
    """Loads portions, each in the way that its table needs."""

    database: Database
    landing: Landing
    portions: PortionLoader | None
    core: dict[str, Any]
    done: Loaded
    notify: Callable[[str], None]

    def load(self, table: str, drops: list[Drop]) -> list[DropOutcome]:
        """Loads the files of a table, and returns their outcomes."""
        if self.portions is None:
            return self._looked_up(table, drops)
        outcomes: list[DropOutcome] = []
        while drops:
            settings = self._settings(table)
            if settings is not None and is_loaded_by_tasks(settings):
                settled = self.portions.load(table, drops)
                self._add(outcomes, table, settled.outcomes, settled.commit)
                return outcomes + self._by_core(table, settled.left)
            # A table that does not exist yet is created by the first file that can be read: look again behind each.
            first = 1 if table and settings is None and self.core["auto_create"] else len(drops)
            outcomes += self._by_core(table, drops[:first])
            drops = drops[first:]
        return outcomes

    def _settings(self, table: str) -> IngestSettings | None:
        """How a table's files are ingested; None if that is not known, above all if there is no table."""
        try:
            return IngestSettings.of(self.database.transaction().entry(table))
        except Error:
            if table in self.database.tables():
                return IngestSettings(on_bad_row="quarantine")  # the core says what is wrong
            return None

    def _by_core(self, table: str, drops: Sequence[Drop]) -> list[DropOutcome]:
        outcomes: list[DropOutcome] = []
        for group in group_drops(drops, _CORE_FILES, _CORE_BYTES):
            self.notify(f"{table}: {len(group):,} files, by the core")
            for ingested in ingest_with_retries(self.database, self.landing, group, **self.core):
                self._add(outcomes, table, ingested.outcomes, ingested.commit)
        return outcomes

    def _looked_up(self, table: str, drops: list[Drop]) -> list[DropOutcome]:
        known = self.database.transaction().find_applied({drop.id for drop in drops})
        there = [DropOutcome(drop, "duplicate", version=known[drop.id].version) for drop in drops if drop.id in known]
        outcomes: list[DropOutcome] = []
        self._add(outcomes, table, there, None)
        others = [drop for drop in drops if drop.id not in known]
        self.done.outcomes["would be loaded"] += len(others)
        self.done.files += len(others)
        self.done.bytes += sum(drop.size for drop in others)
        self.done.tables[table] += len(others)
        return outcomes

    def _add(self, to: list[DropOutcome], table: str, outcomes: Sequence[DropOutcome], commit: Commit | None) -> None:
        to += outcomes
        self.done.add(table, outcomes, commit)


@dataclass
class _Portion:
    drops: list[Drop] = field(default_factory=list)
    bytes: int = 0

    def add(self, drop: Drop) -> None:
        self.drops.append(drop)
        self.bytes += drop.size


def _portions(
    landing: Landing, drops: Iterator[Drop | None], done: Loaded, max_files: int, max_bytes: int
) -> Iterator[tuple[str, list[Drop]]]:
    """Yields drops in portions of one table each, in their order; the table is "" for drops without one.

    Raises what ``drops`` raises, after all that came before was handed out.
    """
    waiting: dict[str, _Portion] = {}
    error: Error | None = None
    count = 0
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
        portion = waiting.setdefault(table, _Portion())
        if portion.drops and (len(portion.drops) >= max_files or portion.bytes + drop.size > max_bytes):
            yield table, portion.drops
            count -= len(portion.drops)
            portion = waiting[table] = _Portion()
        portion.add(drop)
        count += 1
        if count >= _WAITING_PORTIONS * max_files:
            table, portion = max(waiting.items(), key=lambda each: len(each[1].drops))
            yield table, waiting.pop(table).drops
            count -= len(portion.drops)
    for table, portion in waiting.items():
        yield table, portion.drops
    if error is not None:
        raise error


class _Records:
    """The drops of records, one after the other. Knows which of them are settled."""

    def __init__(self, handed: HandoverRecords) -> None:
        self._handed = handed
        self._open: dict[str, tuple[HandoverRecord, set[str]]] = {}
        self._of: dict[str, set[str]] = {}

    def __iter__(self) -> Iterator[Drop]:
        for record in self._handed.pending():
            if record.key in self._open:
                continue  # not settled by this job, so it is left to the next one
            self._open[record.key] = record, {drop.id for drop in record.drops}
            for drop in record.drops:
                self._of.setdefault(drop.id, set()).add(record.key)
                yield drop

    def has_more(self) -> bool:
        """Whether there are new records."""
        return any(record.key not in self._open for record in self._handed.pending())

    def remove(self, outcomes: Sequence[DropOutcome]) -> None:
        """Removes the records whose drops are all settled."""
        for outcome in outcomes:
            if outcome.status == "failed":
                continue
            for key in self._of.pop(outcome.drop.id, ()):
                record, left = self._open[key]
                left.discard(outcome.drop.id)
                if not left:
                    self._handed.remove(record)
                    del self._open[key]

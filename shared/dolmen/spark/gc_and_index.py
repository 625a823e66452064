"""Collection and indexing on Spark: the core plans and commits, and tasks read segments or build parts of indexes.

Both use the core's code in tasks, so the result is the same as on one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from pyspark.sql import SparkSession

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.base.runtime import never
from dolmen.base.units import cut_by_size
from dolmen.commit.head import Context, context_of
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.format.manifest import Manifest, Segment
from dolmen.format.properties import DatabaseSettings, has_index
from dolmen.maintenance.gc.collection import Collected, collect
from dolmen.maintenance.gc.mark import Codes, KeySet, MarkPart, keys_of_part, split_mark, stable_code, stable_codes
from dolmen.maintenance.indexing import Indexed, IndexVersion, PartBuilding, index_reader, index_table
from dolmen.spark.sessions import check_database, check_session
from dolmen.spark.tasks import run_numbered, snapshot_in_task
from dolmen.store import portable_url

_PROBE = "data/probe/2026/01/01/00/probe.parquet"
_ENTRIES_A_JOB = 50_000_000  # the most segment entries that one job marks: its results pass through the driver's JVM


def gc(
    spark: SparkSession,
    database: Database,
    *,
    dry_run: bool = False,
    full: bool = False,
    deadline: Callable[[], bool] = never,
    settings: DatabaseSettings | None = None,
) -> Collected:
    """Expires old versions, and deletes the objects that no kept version needs. See ``Database.gc``.

    Spark's tasks find the objects that must stay, for a database whose segments take long to read on one machine. The
    driver has 8 bytes in memory for each of these objects; it alone lists and deletes. ``settings`` are the database's
    by default.

    Raises:
        InputError: Spark's workers can't reach the database.
        PySparkException: a task failed repeatedly; nothing was deleted by the mark of its job.
        ConflictError, UnknownOutcomeError, ...: as ``Database.gc`` does.
    """
    check_session(spark)
    context = context_of(check_database(database))
    dry_run, full = arguments.flag("dry_run", dry_run), arguments.flag("full", full)
    marker = SparkMarker(spark, portable_url(context.store), context)
    return collect(context, dry_run=dry_run, deadline=deadline, settings=settings, full=full, marker=marker)


class SparkMarker:
    """Finds the keys of all objects that must stay, as the core's mark does (``maintenance.gc.collection``).

    Nothing needed is ever deleted, because

    - the driver names the manifest of the commit that moved the fence, or a later one, and every task compares it with
      the one it has read;
    - the mark is used only when each part has come back whole, exactly once;
    - a part is made of immutable segments, read by checksum: repeated and speculative tasks find the same, and a task
      that can't read a segment fails the job;
    - keys travel as 64 bits of a digest that is the same in every process; every task proves that by an example.
    """

    def __init__(self, spark: SparkSession, url: str, context: Context) -> None:
        self._spark, self._url, self._context = spark, url, context

    def __call__(self, manifest: Manifest, reader: SegmentReader, after: int) -> KeySet:
        keys, parts = split_mark(manifest, reader, after)
        codes = [stable_codes(keys)]
        for some in cut_by_size(parts, lambda part: part.entries, _ENTRIES_A_JOB):
            codes += self._codes(manifest, after, some)
        return KeySet.of_codes(codes)

    def _codes(self, manifest: Manifest, after: int, parts: Sequence[MarkPart]) -> list[Codes]:
        """The codes of all keys in some parts. Raises AssertionError unless each share came back once, by this code."""
        tasks = min(len(parts), 4 * max(1, self._spark.sparkContext.defaultParallelism))
        shares = tuple(msgspec.json.encode(parts[number::tasks]) for number in range(tasks))
        task = MarkTask(self._url, manifest.version, manifest.commit_id, after, shares)
        reports = run_numbered(self._spark, tasks, task.mark, MarkReport)
        if any(report.probe != stable_code(_PROBE) for report in reports):
            raise AssertionError("tasks and driver run different versions of dolmen: nothing is deleted")
        return [np.frombuffer(report.codes, np.int64) for report in reports]


class MarkReport(msgspec.Struct, frozen=True):
    """The codes that a task has found, and its code of ``_PROBE``."""

    probe: int
    codes: bytes


class MarkTask(Struct, frozen=True):
    """The values that each task needs: the manifest, and the parts by task. See ``split_mark`` for ``after``."""

    url: str
    version: int
    commit_id: str
    after: int
    shares: tuple[bytes, ...]

    def mark(self, number: int) -> MarkReport:
        """Finds the codes of a share. Raises AssertionError if the version is not the driver's."""
        parts = msgspec.json.decode(self.shares[number], type=list[MarkPart])
        with snapshot_in_task(self.url, self.version) as (context, manifest):
            if manifest.commit_id != self.commit_id:
                raise AssertionError(f"version {self.version} differs here from the driver's: nothing is deleted")
            keys = (key for part in parts for key in keys_of_part(part, manifest, context.segments, self.after))
            return MarkReport(stable_code(_PROBE), stable_codes(keys).tobytes())


def index(
    spark: SparkSession,
    database: Database,
    tables: str | Collection[str] | None = None,
    *,
    deadline: Callable[[], bool] = never,
    progress: Callable[[Indexed], None] = lambda done: None,
) -> dict[str, Indexed]:
    """Brings the indexes of tables up to the newest version, as ``Database.maintain`` does with the step ``index``.

    The results of a job are one commit. If others have changed the index in the meantime, the commit has no effect, and
    its parts are orphans.

    Args:
        tables: names; by default all tables with an index.
        deadline: called before each job; True = leave the rest.
        progress: called after each commit with the result for the table so far.

    Returns:
        the result of each table. Safe at any time; readers see no change.

    Raises:
        TableNotFoundError: no such table.
        InputError: Spark's workers can't reach the database.
        CorruptionError: a data file, or a part of the index, is damaged or missing.
        PySparkException: a task failed repeatedly. Earlier commits stay.
    """
    check_session(spark)
    context = context_of(check_database(database))
    manifest = context.head.refresh().manifest
    if tables is None:
        whole = ((name, context.segments.whole(root)) for name, root in sorted(manifest.tables.items()))
        names = [name for name, entry in whole if has_index(entry) or entry.segments_of("index")]
    else:
        names = arguments.names("tables", tables)
    for name in names:
        manifest.table(name)
    url, at_once = portable_url(context.store), max(1, spark.sparkContext.defaultParallelism)

    def build(version: IndexVersion, buildings: Sequence[PartBuilding]) -> list[Segment]:
        where = url, version.manifest.version, version.name
        inputs = [([file.uuid for file in each.files], [part.object for part in each.parts]) for each in buildings]
        found = run_numbered(spark, len(inputs), lambda number: build_part(*where, *inputs[number]), list[Segment])
        return [part for parts in found for part in parts]

    return {
        name: index_table(context, name, deadline=deadline, build=build, at_once=at_once, progress=progress)
        for name in names
    }


def build_part(url: str, version: int, table: str, files: Sequence[str], parts: Sequence[str]) -> list[Segment]:
    """Builds a part in a task, in bounded memory: of files with these uuids, or in place of parts with these keys."""
    with snapshot_in_task(url, version) as (context, manifest):
        table_version = IndexVersion.of(context, table, manifest, index_reader(context))
        replaced = {part.object: part for part in table_version.parts}
        files_to_index = tuple(table_version.live[uuid] for uuid in files)
        part = table_version.build(PartBuilding(files_to_index, tuple(replaced[key] for key in parts)))
        return [] if part is None else [part]

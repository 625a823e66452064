"""Indexing on Spark: the core's parts of tables' indexes, many at once, each in a task of its own.

The driver plans as the core does (``dolmen.maintenance.indexing``), and a task builds each part with the core's
code, so the parts are byte for byte those that one machine makes. What a job has built is one commit. If others have
changed the index in the meantime, the commit has no effect, and its parts are orphans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.base.runtime import never
from dolmen.commit.context import Context, context_of
from dolmen.commit.loop import submit
from dolmen.format.manifest import Segment
from dolmen.format.properties import has_index
from dolmen.maintenance.indexing import MOST_LOST, Indexed, IndexVersion, PartBuilding, index_reader
from dolmen.spark import checks
from dolmen.spark.checks import worker_url
from dolmen.spark.file_tasks import open_to_write, run_numbered, snapshot_in_task, task_runtime

BUILT = "number INT, part BINARY"
"""The report of a task: the number of a part, and the reference to it, encoded; NULL if there was no entry."""


def index(
    spark: SparkSession,
    database: Database,
    tables: str | Collection[str] | None = None,
    *,
    deadline: Callable[[], bool] = never,
    progress: Callable[[Indexed], None] = lambda done: None,
) -> dict[str, Indexed]:
    """Brings the indexes of tables up to the newest version, as ``Database.maintain`` does with the step ``index``.

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
    checks.session(spark)
    context = context_of(checks.database(database))
    manifest = context.head.refresh().manifest
    if tables is None:
        whole = ((name, context.segments.whole(root)) for name, root in sorted(manifest.tables.items()))
        names = [name for name, entry in whole if has_index(entry) or entry.segments_of("index")]
    else:
        names = arguments.names("tables", tables)
    for name in names:
        manifest.table(name)
    return {name: _IndexRun(spark, context, name, progress).run(deadline) for name in names}


@dataclass(frozen=True)
class IndexTask:
    """The values that each task of an indexing needs; everything is read in one version."""

    url: str
    version: int
    table: str

    def build(self, files: Collection[str], parts: Collection[str]) -> Segment | None:
        """Builds a part, in bounded memory: of files with these uuids, or in place of parts with these keys."""
        with snapshot_in_task(open_to_write(self.url, task_runtime()), self.version) as (context, manifest):
            version = IndexVersion.of(context, self.table, manifest, index_reader(context))
            replaced = {part.object: part for part in version.parts}
            building = PartBuilding(tuple(version.live[uuid] for uuid in files), tuple(replaced[key] for key in parts))
            return version.build(building)


class _IndexRun:
    """Brings one table's index up to date."""

    def __init__(self, spark: SparkSession, context: Context, name: str, progress: Callable[[Indexed], None]) -> None:
        self._spark, self._context, self._name, self._progress = spark, context, name, progress
        self._url = worker_url(context.store)
        self._at_once = max(1, spark.sparkContext.defaultParallelism)
        self._files = self._entries = self._commits = 0
        self._tried: set[str] = set()
        """Uuids of files that were read."""

    def run(self, deadline: Callable[[], bool]) -> Indexed:
        """Builds parts until none is missing, or ``deadline`` says so, or others keep changing the index."""
        lost, reader = 0, index_reader(self._context)
        while lost < MOST_LOST:
            manifest = self._context.head.refresh().manifest
            with self._context.reading(manifest.version):
                version = IndexVersion.of(self._context, self._name, manifest, reader)
                useless = version.useless()
                more = has_index(version.entry) and not useless
                buildings = version.to_build(self._tried)[: self._at_once] if more else []
            if not useless and not buildings:
                return self._done(finished=True)
            if deadline():
                break
            lost += not (self._put(version, useless, (), None) if useless else self._build(version, buildings))
        return self._done(finished=False)

    def _build(self, version: IndexVersion, buildings: Sequence[PartBuilding]) -> bool:
        """Runs a job, and commits its parts. Returns whether the commit landed."""
        now_us = self._context.store.clock.now_us
        for building in buildings:
            self._tried.update(file.uuid for file in building.files)
            self._files += len(building.files)
        task = IndexTask(self._url, version.manifest.version, self._name)
        inputs = [
            ([file.uuid for file in building.files], [part.object for part in building.parts]) for building in buildings
        ]

        def build(number: int) -> pa.RecordBatch:
            part = task.build(*inputs[number])
            encoded = None if part is None else msgspec.json.encode(part)
            return pa.record_batch(
                [pa.array([number], pa.int32()), pa.array([encoded], pa.binary())], ["number", "part"]
            )

        rows = run_numbered(self._spark, len(inputs), build, BUILT)
        built = [msgspec.json.decode(row.part, type=Segment) for row in rows if row.part is not None]
        return self._put(version, [part for building in buildings for part in building.parts], built, now_us)

    def _put(
        self, version: IndexVersion, inputs: Sequence[Segment], outputs: Sequence[Segment], first_upload_us: int | None
    ) -> bool:
        statement = version.put(inputs, outputs)
        committed = submit(self._context.head, "index", [statement], first_upload_us=first_upload_us)
        if committed.manifest is None:
            return False
        self._commits += 1
        self._entries += sum(part.count for part in outputs)
        self._progress(self._done(finished=False))
        return True

    def _done(self, *, finished: bool) -> Indexed:
        return Indexed(self._name, self._files, self._entries, self._commits, finished)

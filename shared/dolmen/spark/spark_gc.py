"""Collection with the mark on Spark: tasks find the objects that must stay, the core does everything else.

Nothing needed is ever deleted, because

- the mark is that of ``maintenance.gc.collection``, by the manifest of the commit that moved the fence, or a later one:
  the driver names it, and every task compares it with the one it has read;
- the driver finds the manifest's own keys; tasks find all others, in parts that are counted: the mark is used only
  when each part has come back whole, exactly once;
- a part is made of immutable segments, read by checksum: repeated and speculative tasks find the same, and a task that
  can't read a segment fails the job before anything is deleted by its mark;
- keys travel as 64 bits of a digest that is the same in every process; every task proves that by an example. Where two
  keys share their bits, an object is kept that could be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.base.runtime import never
from dolmen.base.units import MIB
from dolmen.commit.context import Context, context_of
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.format.manifest import Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.gc.collection import Collected, collect
from dolmen.maintenance.gc.deletion import Codes, KeySet, stable_code, stable_codes
from dolmen.maintenance.gc.mark import MarkPart, keys_of_part, split_mark
from dolmen.spark import checks
from dolmen.spark.checks import worker_url
from dolmen.spark.failures import mark_errors, raising_dolmen_errors
from dolmen.spark.file_tasks import MapBatches, snapshot_in_task, task_runtime
from dolmen.store import open_store

_MARKED = "part INT, piece INT, pieces INT, probe BIGINT, codes BINARY"
_COLUMNS = pa.schema(
    [("part", pa.int32()), ("piece", pa.int32()), ("pieces", pa.int32()), ("probe", pa.int64()), ("codes", pa.binary())]
)
_PROBE = "data/probe/2026/01/01/00/probe.parquet"
_PIECE = MIB
"""The codes in one report: 8 MB."""
_ENTRIES_A_JOB = 50_000_000
"""Entries of segments that are marked by one job: its results pass through the driver's JVM."""


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
    driver has 8 bytes in memory for each of these objects; it alone lists and deletes.

    Args:
        dry_run: only report what would be deleted.
        full: look for orphans among all objects, not only among those named since the last run.
        deadline: True = stop; the next run continues.
        settings: by default those of the database.

    Raises:
        InputError: Spark's workers can't reach the database.
        PySparkException: a task failed repeatedly; nothing was deleted by the mark of its job.
        ConflictError, UnknownOutcomeError, ...: as ``Database.gc`` does.
    """
    checks.session(spark)
    context = context_of(checks.database(database))
    dry_run, full = arguments.flag("dry_run", dry_run), arguments.flag("full", full)
    marker = SparkMarker(spark, worker_url(context.store), context)
    return collect(context, dry_run=dry_run, deadline=deadline, settings=settings, full=full, marker=marker)


class SparkMarker:
    """Finds the keys of all objects that must stay, as the core's mark does."""

    def __init__(self, spark: SparkSession, url: str, context: Context) -> None:
        self._spark, self._url, self._context = spark, url, context

    def __call__(self, manifest: Manifest, reader: SegmentReader, after: int) -> KeySet:
        """The keys of all objects that must stay."""
        keys, parts = split_mark(manifest, reader, after)
        found = [stable_codes(keys)]
        for some in _waves(parts):
            found += self._codes(manifest, after, some)
        return KeySet.of_codes(found)

    def _codes(self, manifest: Manifest, after: int, parts: Sequence[MarkPart]) -> list[Codes]:
        """The codes of all keys that some parts name. Raises AssertionError as ``check_codes`` does."""
        task = MarkTask(self._url, manifest.version, manifest.commit_id, after, msgspec.json.encode(parts))
        tasks = min(len(parts), 4 * max(1, self._spark.sparkContext.defaultParallelism))
        numbers = self._spark.range(0, len(parts), 1, tasks)
        with raising_dolmen_errors():
            table = numbers.mapInArrow(mark_parts(task), _MARKED).toArrow()
        return check_codes(table, len(parts))


def check_codes(table: pa.Table, parts: int) -> list[Codes]:
    """The codes in the reports of tasks.

    Raises:
        AssertionError: a part, or a piece of one, is missing or was reported twice, or other code than this made it.
    """
    pieces: dict[int, set[int]] = {part: set() for part in range(parts)}
    expected: dict[int, int] = {}
    codes: list[Codes] = []
    for batch in table.to_batches():
        for part, piece, of, probe, body in zip(*(batch.column(name) for name in table.column_names), strict=True):
            reported = pieces[part.as_py()]
            if piece.as_py() in reported or expected.setdefault(part.as_py(), of.as_py()) != of.as_py():
                raise AssertionError(f"part {part} of the mark was reported twice: nothing is deleted")
            if probe.as_py() != stable_code(_PROBE):
                raise AssertionError("tasks and driver run different versions of dolmen: nothing is deleted")
            reported.add(piece.as_py())
            codes.append(np.frombuffer(body.as_buffer(), np.int64))
    missing = [part for part, reported in pieces.items() if reported != set(range(expected.get(part, 1)))]
    if missing:
        raise AssertionError(f"{len(missing)} of {parts} parts of the mark did not come back: nothing is deleted")
    return codes


@dataclass(frozen=True)
class MarkTask:
    """The values that each task needs.

    Args:
        version, commit_id: of the manifest whose objects are marked.
        after: objects that later commits released must stay.
        parts: of the job, encoded.
    """

    url: str
    version: int
    commit_id: str
    after: int
    parts: bytes

    def mark(self, numbers: Sequence[int]) -> Iterator[tuple[int, Codes]]:
        """Yields the codes of each of these parts.

        Raises:
            AssertionError: the version is not the one that the driver sees.
            VersionExpiredError: others have collected the version.
        """
        parts = msgspec.json.decode(self.parts, type=list[MarkPart])
        with snapshot_in_task(open_store(self.url, task_runtime()), self.version) as (context, manifest):
            if manifest.commit_id != self.commit_id:
                raise AssertionError(
                    f"version {self.version} is another one here than in the driver: nothing is deleted"
                )
            for number in numbers:
                yield number, stable_codes(keys_of_part(parts[number], manifest, context.segments, self.after))


def mark_parts(task: MarkTask) -> MapBatches:
    """For ``mapInArrow``: numbers of parts become the codes of what they name."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        for part, codes in task.mark(numbers) if numbers else ():
            pieces = [codes[start : start + _PIECE] for start in range(0, len(codes), _PIECE)] or [codes]
            for number, piece in enumerate(pieces):
                row = [[part], [number], [len(pieces)], [stable_code(_PROBE)], [piece.tobytes()]]
                yield pa.record_batch(
                    [pa.array(v, f.type) for v, f in zip(row, _COLUMNS, strict=True)], schema=_COLUMNS
                )

    return mark_errors(run)


def _waves(parts: Sequence[MarkPart]) -> Iterator[list[MarkPart]]:
    """Yields the parts of each job in turn."""
    some: list[MarkPart] = []
    for part in parts:
        some.append(part)
        if sum(each.entries for each in some) >= _ENTRIES_A_JOB:
            yield some
            some = []
    if some:
        yield some

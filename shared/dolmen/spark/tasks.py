"""Runs dolmen's work in Spark's Python workers, and raises its errors in the driver with their own types.

Spark sends the driver the text of a worker's traceback, and nothing else. So a task adds a line to its error that has
all of it as JSON, and the driver finds the line in that text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from pyroaring import BitMap
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as s

from dolmen import errors
from dolmen.base.records import replace
from dolmen.base.runtime import PerProcess, Runtime, shared_runtime
from dolmen.commit.head import Context, Head
from dolmen.commit.versions import manifest_at_version
from dolmen.errors import Error, RowError
from dolmen.format.layout import POINTER
from dolmen.format.manifest import Manifest
from dolmen.format.schema import Schema
from dolmen.rows.write.casts import FindCast
from dolmen.rows.write.conform import conform
from dolmen.store import open_store
from dolmen.store.base import ObjectStore

__all__ = ["Py4JError", "Py4JJavaError"]


try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:  # with pyspark-client: nothing raises these

    class Py4JError(Exception):  # type: ignore[no-redef]
        """An error of the bridge to the JVM."""

    class Py4JJavaError(Exception):  # type: ignore[no-redef]
        """An exception that was raised in the JVM."""


T = TypeVar("T")
FAILURES = PySparkException, Py4JJavaError  # the errors of a failed job in the driver
_MARK = "raised by dolmen in a task: "
_LINE = re.compile(re.escape(_MARK) + r"(\{.*\})")
MapBatches: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for ``map_in_tasks``."""
OBJECTS = "body BINARY"  # rows of ``collect_objects``
FILE, ROW = "__file", "__row"  # columns with the name of a row's file, and the row's position in it
_THREADS = 4  # threads for the requests of a task; it computes on one processor, the one that Spark gives it


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, whose JVM is in another process."""
    return not hasattr(spark, "_jsparkSession")


@contextmanager
def mark_dolmen_errors() -> Iterator[None]:
    """Adds to dolmen's errors in a worker the text from which ``dolmen_error`` makes them again in the driver."""
    try:
        yield
    except Error as error:
        context = TaskContext.get()
        marked = error
        if isinstance(error, RowError) and error.row is not None and context is not None:
            # Rows of a DataFrame are numbered within their partition.
            reason = f"{error.reason} (of the rows in partition {context.partitionId()} of the DataFrame)"
            marked = RowError(reason, file=error.file, line=error.line, row=error.row, column=error.column)
        marked.add_note(mark_of(marked))
        raise marked.with_traceback(error.__traceback__) from error.__cause__


@contextmanager
def raising_dolmen_errors() -> Iterator[None]:
    """Raises dolmen's own error if a job has failed by one; leaves other errors as they are.

    ::

        with raising_dolmen_errors():
            frame.write.format("dolmen").mode("overwrite").option("table", "events").save(url)
    """
    try:
        yield
    except FAILURES as failure:
        if error := dolmen_error(failure):
            raise error from failure
        raise


def mark_of(error: Error) -> str:
    """A text from which ``dolmen_error`` makes the error, if a job fails with it."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    plain = (str, int, float, bool, type(None))
    fields = {name: value for name, value in vars(error).items() if name[:2] != "__" and isinstance(value, plain)}
    return _MARK + msgspec.json.encode({"kind": kind, "text": str(error), "fields": fields}).decode()


def dolmen_error(failure: BaseException) -> Error | None:
    """The error of dolmen that made a job fail; None if there is none."""
    lines = _LINE.findall(str(failure))
    if not lines:
        return None
    document = msgspec.json.decode(lines[-1])
    kind = getattr(errors, document["kind"], Error)
    error: Error = kind.__new__(kind)
    Exception.__init__(error, document["text"])
    error.__dict__.update(document["fields"])
    return error


def reason_of(error: BaseException) -> str:
    """Spark's reason for refusing a piece of SQL, in one line."""
    return str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]


def map_in_tasks(frame: DataFrame, work: MapBatches, schema: str | s.StructType) -> DataFrame:
    """``mapInArrow`` for columns of any names, where Spark sees fields and quotes; tasks mark dolmen's errors."""
    names = frame.columns
    is_renamed = any(sign in name for name in names for sign in ".`")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with mark_dolmen_errors():
            yield from work((batch.rename_columns(names) for batch in batches) if is_renamed else batches)

    plain = frame.toDF(*(f"_{index}" for index in range(len(names)))) if is_renamed else frame
    return plain.mapInArrow(run, schema)


def collect_rows(job: DataFrame) -> list[Row]:
    """Runs a job, and collects its rows. Raises an Error of dolmen that a task raised, or Spark's own."""
    with raising_dolmen_errors():
        rows: list[Row] = job.collect()
    return rows


def collect_objects(
    frame: DataFrame,
    work: Callable[[Iterator[pa.RecordBatch]], Iterable[T]],
    kind: type[T],
    collect: Callable[[DataFrame], list[Row]] = collect_rows,
) -> list[T]:
    """Runs ``work``, which makes objects of a partition's batches, in tasks, and returns these objects.

    ``kind`` is their type, as for msgspec; tables and bitmaps may be in them. ``collect`` runs the job.
    """
    rows = collect(map_in_tasks(frame, return_objects(work), OBJECTS))
    return [decode_object(row.body, kind) for row in rows]


def return_objects(work: Callable[[Iterator[pa.RecordBatch]], Iterable[object]]) -> MapBatches:
    """For ``map_in_tasks``: ``work`` makes objects of a partition, which become rows of ``OBJECTS``."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for value in work(batches):
            yield pa.record_batch([pa.array([_encode(value)], pa.binary())], ["body"])

    return run


def _encode(value: object) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=lambda v: v.serialize() if isinstance(v, BitMap) else ipc_bytes(v))


def decode_object(body: bytes, kind: type[T]) -> T:
    def decode(kind: type, body: bytes) -> object:
        return BitMap.deserialize(body) if kind is BitMap else table_from_ipc(body)

    return msgspec.msgpack.decode(body, type=kind, dec_hook=decode)


def ipc_bytes(rows: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def table_from_ipc(body: bytes | pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(body).read_all()


def run_numbered(spark: SparkSession, count: int, work: Callable[[int], T], kind: type[T]) -> list[T]:
    """Runs a task for each number below ``count``, and returns their results in order. See ``collect_objects``.

    Raises AssertionError if a result is missing, or came back twice.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, T]]:
        for batch in batches:
            yield from ((number, work(number)) for number in batch.column(0).to_pylist())

    results = collect_objects(spark.range(0, count, 1, count), run, tuple[int, kind])  # type: ignore[valid-type]
    by_number = dict(results)
    if len(results) != count or by_number.keys() != set(range(count)):
        raise AssertionError(f"{count} tasks were begun, {len(results)} came back: their results are not used")
    return [by_number[number] for number in range(count)]


@PerProcess
def task_runtime() -> Runtime:
    """The runtime of tasks of background work in this process."""
    return replace(shared_runtime(), threads=_THREADS, cores=1)


@contextmanager
def snapshot_in_task(url: str, version: int) -> Iterator[tuple[Context, Manifest]]:
    """Reads in a task the version of a database that the driver planned with. Raises VersionExpiredError."""
    runtime = task_runtime()
    store = open_store(url, runtime)
    context = Context(store, runtime, Head(store, runtime))
    manifest = manifest_at_version(context.head, context.head.refresh().manifest, version)
    with context.reading(version):
        yield context, manifest


def open_to_write(url: str, runtime: Runtime) -> ObjectStore:
    """The store of a database, for a task that names objects.

    Names begin with the hour by the server's clock, so the server is asked for it: collection looks there for the
    objects of a dead job.
    """
    store = open_store(url, runtime)
    if not store.clock.now_us:
        store.head(POINTER)
    return store


def conform_batches(
    batches: Iterator[pa.RecordBatch], schema: Schema, find_casts: Mapping[str, FindCast] | None = None
) -> Iterator[pa.RecordBatch] | None:
    """The rows of batches that have one schema, as ``conform`` returns them; None if there is no batch."""
    first = next(batches, None)
    if first is None:
        return None
    source = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
    return conform(source, schema, find_casts=find_casts)

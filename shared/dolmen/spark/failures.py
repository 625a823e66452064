"""Raises the errors of tasks in the driver, with their own types.

Spark sends the driver the text of a worker's traceback, and nothing else. So a task adds a line to its error that has
all of it as JSON, and the driver finds the line in that text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException

from dolmen import errors
from dolmen.errors import Error, RowError

__all__ = ["Py4JError", "Py4JJavaError"]


try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:  # with pyspark-client: nothing raises these

    class Py4JError(Exception):  # type: ignore[no-redef]
        """An error of the bridge to the JVM."""

    class Py4JJavaError(Exception):  # type: ignore[no-redef]
        """An exception that was raised in the JVM."""


FAILURES = PySparkException, Py4JJavaError
"""The errors by which a failed job is known in the driver."""
_MARK = "raised by dolmen in a task: "
_LINE = re.compile(re.escape(_MARK) + r"(\{.*\})")


def mark_errors(
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Wraps a function for ``mapInArrow`` so that ``dolmen_error`` finds dolmen's errors in the driver."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with mark_dolmen_errors():
            yield from work(batches)

    return run


@contextmanager
def mark_dolmen_errors() -> Iterator[None]:
    """Adds all that ``dolmen_error`` needs to the text of dolmen's errors in a worker."""
    try:
        yield
    except Error as error:
        found = _placed(error)
        found.add_note(mark_of(found))
        raise found.with_traceback(error.__traceback__) from error.__cause__


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
    """A text that has all of an error: if a job fails with it, ``dolmen_error`` finds the error."""
    return _MARK + msgspec.json.encode(_described(error)).decode()


def dolmen_error(failure: BaseException) -> Error | None:
    """The error of dolmen that made a job fail; None if there is none."""
    lines = _LINE.findall(str(failure))
    if not lines:
        return None
    described = msgspec.json.decode(lines[-1])
    kind = getattr(errors, described["kind"], Error)
    error: Error = kind.__new__(kind)
    Exception.__init__(error, described["text"])
    error.__dict__.update(described["fields"])
    return error


def _described(error: Error) -> dict[str, object]:
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    plain = (str, int, float, bool, type(None))
    fields = {name: value for name, value in vars(error).items() if name[:2] != "__" and isinstance(value, plain)}
    return {"kind": kind, "text": str(error), "fields": fields}


def _placed(error: Error) -> Error:
    """Adds the partition to an error about a row: rows of a DataFrame are numbered only within it."""
    context = TaskContext.get()
    if not isinstance(error, RowError) or error.row is None or context is None:
        return error
    reason = f"{error.reason} (of the rows in partition {context.partitionId()} of the DataFrame)"
    return RowError(reason, file=error.file, line=error.line, row=error.row, column=error.column)

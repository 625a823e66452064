"""What runs in Spark's Python workers: dolmen itself, on some files of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from dolmen.database import open as open_database
from dolmen.predicate import Predicate
from dolmen.scan.scan import Scan
from dolmen.spark.types import carried_schema


@dataclass(frozen=True)
class ReadTask:
    """A scan that workers share: each is told which files are its own.

    Args:
        url: of the database.
        columns: names, in order; the hidden ``_commit_ts`` is told by ``with_commit_ts``.
        where: bound to the table's schema in this version.
    """

    url: str
    version: int
    table: str
    columns: tuple[str, ...]
    where: Predicate | None
    with_commit_ts: bool

    def scan(self, paths: Iterable[str]) -> Scan:
        """The part of the scan that reads these files. The manifest is fetched, and planned with, once more."""
        table = open_database(self.url).at(version=self.version).table(self.table)
        return table.scan(self.columns, self.where, with_commit_ts=self.with_commit_ts).of_files(set(paths))


def read_files(task: ReadTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: batches of one column, paths of data files, become their rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        paths = [path for batch in batches for path in batch.column(0).to_pylist()]
        if paths:
            scan = task.scan(paths)
            schema = carried_schema(scan.schema)
            yield from (batch.cast(schema) for batch in scan.to_batches())

    return read

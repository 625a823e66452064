"""A scan as an Arrow dataset: the columns and filters that DuckDB asks it for reach the plan.

DuckDB knows Arrow datasets by their class. It asks them for a scanner, with the columns that it needs and those
conditions that it will not check again itself: its own planner decides what these are, in the column's own types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from dolmen.errors import Error
from dolmen.format.schema import Schema
from dolmen.predicate import Predicate
from dolmen.rows.scan.arrow_filter import Filter, read_filter
from dolmen.rows.scan.boxes import box, boxed_schema, needs_boxes, unbox
from dolmen.rows.scan.row_source import RowSource

if TYPE_CHECKING:
    import duckdb

Narrow: TypeAlias = Callable[[Sequence[str], Predicate | None], RowSource]
"""Makes a scan of these columns, and of the rows that fulfil a condition."""


class ScanDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow is untyped
    """Rows of one table, as DuckDB scans them.

    Args:
        name: the table's.
        schema: columns of the rows.
        stored: the table's columns with their ids.
        narrow: makes the scans.
        filters: whether a scan may be narrowed to some rows. It must be, unless DuckDB needs boxes.
    """

    def __init__(self, name: str, schema: pa.Schema, stored: Schema, narrow: Narrow, *, filters: bool = True) -> None:
        self.name = name
        self._boxed = needs_boxes()
        self._schema = boxed_schema(schema, filters=filters) if self._boxed else schema
        self._stored, self._narrow = stored, narrow
        self.error: Error | None = None
        """The error of the last scan, as DuckDB shows only its text."""
        self.rehearsed: list[RowSource] | None = None
        """While this is a list, scans are added to it instead of being read."""

    def relation(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """The rows as a relation, which begins a scan whenever it is executed."""
        scanned = connection.from_arrow(self)
        return unbox(scanned) if self._boxed else scanned

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows, in the form that DuckDB scans."""
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: Any = None, batch_size: int | None = None, **_: Any
    ) -> Scanner:
        """Makes a scan. DuckDB calls it for each place in a query that reads the table, in each run."""
        self.error = None
        wanted = list(self.schema.names if columns is None else columns)
        asked = (
            Filter(frozenset(), None, True) if filter is None else read_filter(filter, self._stored, boxed=self._boxed)
        )
        rest = None if asked.whole else filter
        tested = set() if asked.whole else set(self.schema.names if asked.columns is None else asked.columns)
        extra = [name for name in self.schema.names if name in tested and name not in wanted]
        scan = self._narrow([*wanted, *extra], asked.predicate)
        if self.rehearsed is not None:
            self.rehearsed.append(scan)
        schema = pa.schema([self.schema.field(name) for name in wanted])
        batches = self._batches(scan, wanted, rest) if self.rehearsed is None else iter(())
        return Scanner(schema, batches)

    def _batches(self, scan: RowSource, wanted: list[str], rest: Any) -> Iterator[pa.RecordBatch]:
        try:
            for read in scan.to_batches():
                batch = box(read, self.schema) if self._boxed else read
                kept = batch if rest is None else batch.filter(rest)
                yield kept if kept.schema.names == wanted else kept.select(wanted)
        except Error as error:
            self.error = error
            raise


class Scanner(ds.Scanner):  # type: ignore[misc]  # pyarrow is untyped
    """One run over a dataset."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._schema, self._batches = schema, batches

    @property
    def projected_schema(self) -> pa.Schema:
        """Columns of the batches."""
        return self._schema

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)

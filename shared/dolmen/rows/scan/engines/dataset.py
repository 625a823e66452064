"""A scan as an Arrow dataset: the columns and filters that DuckDB asks it for reach the plan.

DuckDB recognizes Arrow datasets by their class. It asks them for a scanner, with the columns that it needs and the
conditions that it will not check again itself.

DuckDB 2 does not push filters that Arrow cannot express. DuckDB 1.5 fails on them (``n IS DISTINCT FROM 3 OR n = 4``,
most joins of times), or asks for other rows (``f <= 'nan'``, and ``ORDER BY`` with ``LIMIT`` before 1.5.3). On fields
of structs it pushes only comparisons with constants, and nothing if the struct has a field of a type without filters.
So for DuckDB 1.5 each column is in a *box*: a struct with the column as its first field. A second field, of the type
null, is added if comparisons go wrong as well: those of floats, because Arrow's NaN is not the greatest number, and
those of times of day and of nested values, because not all constants can be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from dolmen.base.late_imports import optional
from dolmen.errors import Error
from dolmen.format.schema import Schema
from dolmen.format.types import quote_name
from dolmen.predicate.ast import Predicate
from dolmen.rows.scan.engines.arrow_expressions import Filter, read_filter
from dolmen.rows.scan.engines.dataframes import RowSource

if TYPE_CHECKING:
    import duckdb


_VALUE = "value"
_NO_FILTER = pa.field("no_filter", pa.null())


def needs_boxes() -> bool:
    """True if the installed DuckDB pushes filters that Arrow cannot express."""
    version: str = optional("duckdb", "dolmen[sql]").__version__
    return int(version.partition(".")[0]) < 2


def boxed_schema(schema: pa.Schema, *, filters: bool) -> pa.Schema:
    """The columns in boxes, with filters if comparisons may be pushed."""

    def box_field(field: pa.Field) -> pa.Field:
        t, value = pa.types, pa.field(_VALUE, field.type, field.nullable)
        is_filtered = filters and not (t.is_floating(field.type) or t.is_time(field.type) or t.is_nested(field.type))
        return pa.field(field.name, pa.struct([value] if is_filtered else [value, _NO_FILTER]))

    return pa.schema(map(box_field, schema))


def box(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    fields = [schema.field(name) for name in batch.schema.names]
    columns = [
        pa.StructArray.from_arrays([column, pa.nulls(batch.num_rows)][: field.type.num_fields], fields=list(field.type))
        for column, field in zip(batch.columns, fields, strict=True)
    ]
    return pa.record_batch(columns, pa.schema(fields))


Narrow: TypeAlias = Callable[[Sequence[str], Predicate | None], RowSource]
"""Makes a scan of these columns, and of the rows that fulfil a condition."""


class ScanDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow is untyped
    """Rows of one table, as DuckDB scans them. Boxed columns without ``filters`` take no condition."""

    def __init__(self, name: str, schema: pa.Schema, stored: Schema, narrow: Narrow, *, filters: bool = True) -> None:
        self.name = name
        self._boxed = needs_boxes()
        self._schema = boxed_schema(schema, filters=filters) if self._boxed else schema
        self._stored, self._narrow = stored, narrow
        self.error: Error | None = None
        """The error of the last scan, of which DuckDB shows only the text."""
        self.rehearsed: list[RowSource] | None = None
        """While this is a list, scans are added to it instead of being read."""

    def relation(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """The rows as a relation, which begins a scan whenever it is executed."""
        scanned = connection.from_arrow(self)
        if not self._boxed:
            return scanned
        names = list(map(quote_name, scanned.columns))
        return scanned.project(", ".join(f"struct_extract({name}, '{_VALUE}') AS {name}" for name in names))

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: Any = None, batch_size: int | None = None, **_: Any
    ) -> Scanner:
        """Makes a scan. DuckDB calls it for each part of a query that reads the table, in each run."""
        self.error = None
        requested = list(self.schema.names if columns is None else columns)
        pushed = Filter(frozenset(), None, True)
        if filter is not None:
            pushed = read_filter(filter, self._stored, boxed=self._boxed)
        remaining_filter = None if pushed.is_exact else filter
        inputs = set() if pushed.is_exact else set(self.schema.names if pushed.columns is None else pushed.columns)
        extra = [name for name in self.schema.names if name in inputs and name not in requested]
        scan = self._narrow([*requested, *extra], pushed.predicate)
        if self.rehearsed is not None:
            self.rehearsed.append(scan)
        schema = pa.schema([self.schema.field(name) for name in requested])
        batches = self._batches(scan, requested, remaining_filter) if self.rehearsed is None else iter(())
        return Scanner(schema, batches)

    def _batches(self, scan: RowSource, requested: list[str], remaining_filter: Any) -> Iterator[pa.RecordBatch]:
        try:
            for unboxed in scan.to_batches():
                batch = box(unboxed, self.schema) if self._boxed else unboxed
                rows = batch if remaining_filter is None else batch.filter(remaining_filter)
                yield rows if rows.schema.names == requested else rows.select(requested)
        except Error as error:
            self.error = error
            raise


class Scanner(ds.Scanner):  # type: ignore[misc]  # pyarrow is untyped
    """One run over a dataset."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._schema, self._batches = schema, batches

    @property
    def projected_schema(self) -> pa.Schema:
        return self._schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)

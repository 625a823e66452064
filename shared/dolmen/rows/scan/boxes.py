"""Boxes: columns in the form in which DuckDB 1.5 asks for no rows that its filters cannot describe.

DuckDB pushes filters into Arrow datasets. DuckDB 2 leaves out those that Arrow cannot express. DuckDB 1.5 fails on
them (``n IS DISTINCT FROM 3 OR n = 4``, most joins of times), or asks for other rows (``f <= 'nan'``, and ``ORDER BY``
with ``LIMIT`` before 1.5.3). It does so for filters on columns. On fields of structs it pushes comparisons with
constants only, and it pushes nothing on structs that have a field of a type without filters.

A box is a struct with a column as its first field. It has a second field, of the type null, if comparisons of the
column go wrong as well: those of floats, as Arrow's NaN is not the greatest number, and those of times of day and of
nested values, as not all constants can be written. The relation takes the columns out of their boxes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from dolmen.rows.scan.optional import optional

if TYPE_CHECKING:
    import duckdb

_VALUE = "value"
_NO_FILTER = pa.field("no_filter", pa.null())


def needs_boxes() -> bool:
    """Whether the DuckDB that is installed pushes filters that Arrow cannot express."""
    version: str = optional("duckdb", "dolmen[sql]").__version__
    return int(version.partition(".")[0]) < 2


def boxed_schema(schema: pa.Schema, *, filters: bool) -> pa.Schema:
    """The columns in boxes.

    Args:
        filters: whether comparisons may be pushed.
    """
    return pa.schema(
        pa.field(field.name, pa.struct(_fields(field, filters and _compares_alike(field.type)))) for field in schema
    )


def _fields(column: pa.Field, filters: bool) -> list[pa.Field]:
    value = pa.field(_VALUE, column.type, column.nullable)
    return [value] if filters else [value, _NO_FILTER]


def _compares_alike(arrow_type: pa.DataType) -> bool:
    """Whether Arrow compares all values of a type with all constants as DuckDB does."""
    t = pa.types
    return not (t.is_floating(arrow_type) or t.is_time(arrow_type) or t.is_nested(arrow_type))


def box(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with their columns in boxes.

    Args:
        schema: of ``boxed_schema``; it has the columns of the batch.
    """
    boxed = [schema.field(name) for name in batch.schema.names]
    columns = [
        pa.StructArray.from_arrays([column, pa.nulls(batch.num_rows)][: field.type.num_fields], fields=list(field.type))
        for column, field in zip(batch.columns, boxed, strict=True)
    ]
    return pa.record_batch(columns, pa.schema(boxed))


def unbox(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The columns out of their boxes."""
    names = ['"' + name.replace('"', '""') + '"' for name in relation.columns]
    return relation.project(", ".join(f"struct_extract({name}, '{_VALUE}') AS {name}" for name in names))

"""Whether tables of some columns can be stored at all: two rows of them are written and read back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as t

from dolmen.errors import SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.rows.write.options import DEFAULT
from dolmen.rows.write.parquet_object import WritePlan, write_object
from dolmen.rows.write.runs import prepare
from dolmen.store.base import Buffer


def check_storable(entry: TableEntry) -> None:
    """Writes a row of values and, as far as columns may be NULL, one without, in memory, and reads them back.

    Whatever pyarrow refuses is refused here, before a table is there that takes no row. It takes milliseconds, and
    only once for equal columns and keys.

    Raises:
        SchemaError: a file of these columns cannot be written, or does not hold what was written.
    """
    kept = TableEntry(
        uuid="", epoch=0, schema=entry.schema, primary_key=entry.primary_key, sort_key=entry.sort_key, properties={}
    )
    _check_storable(msgspec.json.encode(kept))


@lru_cache(256)
def _check_storable(encoded: bytes) -> None:
    entry = msgspec.json.decode(encoded, type=TableEntry)
    schema = entry.schema.arrow
    try:
        columns = [_example_column(field) for field in schema]
        rows = pa.table(columns, schema)
        run = prepare(list(rows.columns), entry)
        output = _Memory()
        write_object(output, "probe", entry, WritePlan.of(run, DEFAULT), run)
        found = pq.ParquetFile(pa.BufferReader(bytes(output.body))).read(use_threads=False)
        if not found.cast(schema).equals(run.table):
            raise pa.ArrowInvalid("what was written is not what is read back")
    except (pa.ArrowException, OSError, OverflowError, ValueError, RecursionError) as error:
        raise SchemaError(f"a table of these columns cannot be stored: {error}") from error


def _example_column(field: pa.Field) -> pa.Array:
    example = _example(field.type)
    return pa.array([example, None if field.nullable else example], field.type)


def _example(kind: pa.DataType) -> Any:
    """Some value of a stored type, as Python has it."""
    if t.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if t.is_map(kind):
        return [(_example(kind.key_type), _example(kind.item_type))]
    if t.is_list(kind):
        return [_example(kind.value_type)]
    if t.is_string(kind):
        return "a"
    if t.is_fixed_size_binary(kind):
        return b"a" * kind.byte_width
    if t.is_binary(kind):
        return b"a"
    return 0 if not t.is_boolean(kind) else True


class _Memory:
    """An upload that goes nowhere."""

    def __init__(self) -> None:
        self.body = bytearray()

    def write(self, data: Buffer, /) -> int:
        self.body += data
        return len(data)

    def commit(self) -> int:
        return len(self.body)

    def abort(self) -> None:
        """There is nothing to give up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """There is nothing to close."""

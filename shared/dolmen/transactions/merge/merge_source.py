"""The source of a merge: its rows in memory, and an index of their keys, which finds the matches of target rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.units import MIB
from dolmen.errors import LimitError, SchemaError
from dolmen.format.del_object import keys_from_arrow
from dolmen.format.schema import Field, Schema, own_names, same_names, stored_type
from dolmen.format.types import one_array, to_mask
from dolmen.predicate.ast import Constant, Predicate
from dolmen.rows.scan.key_codes import codes, is_exact
from dolmen.rows.scan.rows_by_key import MOST_LISTED_KEYS, where_key_in
from dolmen.rows.write.casts import FindCast, Misfit, lossless_cast
from dolmen.rows.write.conform import conform
from dolmen.rows.write.row_digest import RowDigest
from dolmen.rows.write.row_input import as_batches, frame_cast, is_pandas, is_polars

MAX_BYTES = 256 * MIB  # the most Arrow memory of a source
MAX_PAIRS, PAIR_BYTES = 131_072, 64 * MIB
"""The most pairs of a target and a source row that are processed at once, unless one target row has more."""

Indices: TypeAlias = npt.NDArray[np.int64]


class SourceRows(Struct, frozen=True):
    """The rows of a source in stored types, all in memory; ``find`` returns their casts to a table's types.

    ``untyped`` are columns without a value and without a type.
    """

    rows: pa.RecordBatch
    find: FindCast
    untyped: frozenset[str] = frozenset()

    @classmethod
    def of(cls, data: Any, schema: Schema) -> SourceRows:
        """Takes rows as ``Table.append`` does, with any columns, in the table's types where these lose nothing.

        Raises:
            InputError: it holds no rows.
            SchemaError: a column occurs twice, or has a type that cannot be stored.
            LimitError: more than 256 MB.
        """
        if isinstance(data, SourceRows):
            return data
        reader, find = as_batches(data, schema.arrow), frame_cast(data) or lossless_cast
        table_types = {field.name: field.arrow_type for field in schema.fields}
        names = own_names(reader.schema.names, schema)
        if alike := same_names(names):
            raise SchemaError(f"column {alike[0]!r} occurs twice in the source, ignoring case: rename one")
        fields = [field.with_name(name) for field, name in zip(reader.schema, names, strict=True)]
        stored = pa.schema([pa.field(field.name, _stored_type(field, table_types)) for field in fields])
        batches, size = [], 0
        for batch in conform(reader, stored, find):
            batches.append(batch)
            size += batch.nbytes
            if size > MAX_BYTES:
                raise LimitError(
                    f"a merge of more than {MAX_BYTES >> 20} MB of rows: split it, or run it on Spark "
                    "(dolmen.spark.merge)"
                )
        table = pa.Table.from_batches(batches, stored).combine_chunks()
        if is_pandas(data) or is_polars(data):
            table = _cast_to_table(table, table_types, find)
        arrays = [one_array(column) for column in table.columns]
        untyped = frozenset(field.name for field in fields if pa.types.is_null(field.type))
        return cls(pa.RecordBatch.from_arrays(arrays, schema=table.schema), find, untyped)

    def without(self, names: Sequence[str]) -> SourceRows:
        """The same rows without some columns."""
        return replace(self, rows=self.rows.drop_columns(list(names))) if names else self

    def digest(self) -> str:
        """The digest of the rows, a part of the request's digest."""
        digest = RowDigest(self.rows.schema)
        digest.update(self.rows)
        return digest.hexdigest()

    def keys(self, fields: tuple[Field, ...]) -> pa.Table:
        """The columns of a key, in the table's types. Raises SchemaError, or RowError if a value does not fit."""
        names = [field.name for field in fields]
        if missing := [name for name in names if name not in self.rows.schema.names]:
            raise SchemaError(f"the source has no column {missing[0]!r}, by which the merge joins")
        key_rows = self.rows.select(names)
        schema = pa.schema([(field.name, field.arrow_type) for field in fields])
        reader = pa.RecordBatchReader.from_batches(key_rows.schema, [key_rows])
        return pa.Table.from_batches(conform(reader, schema, self.find), schema)


class KeyIndex:
    """Finds the source rows with the key of a target row, both in the table's types. NULL equals nothing."""

    def __init__(self, keys: pa.Table, fields: tuple[Field, ...]) -> None:
        is_complete = ~_null_mask(keys.columns, keys.num_rows)
        self._source_rows = np.flatnonzero(is_complete)
        self.rows = keys.num_rows
        self.nulls = self.rows - len(self._source_rows)
        complete = keys.filter(pa.array(is_complete)) if self.nulls else keys
        self._arrays = [one_array(column) for column in complete.columns]
        self._exact = is_exact([array.type for array in self._arrays])
        key_codes = codes(self._arrays) if complete.num_rows else np.zeros(0, np.int64)
        self._order = np.argsort(key_codes, kind="stable")
        self._codes = key_codes[self._order]
        self._distinct = keys_from_arrow(complete, fields)
        self.repeated = self._distinct.num_rows < complete.num_rows

    def predicate(self) -> Predicate:
        """A predicate that is TRUE for every row with one of the keys, and for few others."""
        if self._distinct.num_rows == 0:
            return Constant(False)
        return where_key_in({int(name): self._distinct[name] for name in self._distinct.column_names}, MOST_LISTED_KEYS)

    def pairs(self, target: Sequence[pa.Array], most: int) -> Iterator[tuple[int, int, Indices, Indices]]:
        """Finds the matching pairs of some target rows, in parts of ``most`` pairs, unless one target row has more.

        Yields the first and the last (exclusive) target row of a part, and the indices of the target rows (ascending)
        and of the source rows of its pairs.
        """
        rows = len(target[0])
        target_codes = codes(target) if rows else np.zeros(0, np.int64)
        first = np.searchsorted(self._codes, target_codes, "left")
        counts = np.searchsorted(self._codes, target_codes, "right") - first
        counts[_null_mask(target, rows)] = 0
        ends = np.cumsum(counts)
        start = 0
        while start < rows:
            pairs_before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, pairs_before + most, "right")))
            counts_here = counts[start:stop]
            target_rows = np.repeat(np.arange(start, stop), counts_here)
            steps = np.arange(len(target_rows)) - np.repeat(np.cumsum(counts_here) - counts_here, counts_here)
            source_keys = self._order[np.repeat(first[start:stop], counts_here) + steps]
            if not self._exact and len(target_rows):
                same = self._equal(target, target_rows, source_keys)
                target_rows, source_keys = target_rows[same], source_keys[same]
            yield start, stop, target_rows, self._source_rows[source_keys]
            start = stop

    def _equal(self, target: Sequence[pa.Array], target_rows: Indices, source_keys: Indices) -> npt.NDArray[np.bool_]:
        same = np.ones(len(target_rows), np.bool_)
        for one, other in zip(target, self._arrays, strict=True):
            same &= to_mask(pc.equal(one.take(pa.array(target_rows)), other.take(pa.array(source_keys))))
        return same


def _null_mask(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> npt.NDArray[np.bool_]:
    """A mask of the rows with a NULL in some column."""
    mask = np.zeros(rows, np.bool_)
    for column in columns:
        if column.null_count:
            mask |= to_mask(pc.is_null(column))
    return mask


def _stored_type(field: pa.Field, table_types: dict[str, pa.DataType]) -> pa.DataType:
    if pa.types.is_null(field.type):
        return table_types.get(field.name, pa.string())
    try:
        return stored_type(field.type)
    except SchemaError as error:
        if field.name in table_types and pa.types.is_nested(field.type):  # with only NULL at some position
            return table_types[field.name]
        raise SchemaError(f"column {field.name!r}: {error}") from None


def _cast_to_table(rows: pa.Table, table_types: dict[str, pa.DataType], find: FindCast) -> pa.Table:
    """Casts rows of a frame to the types of the table's columns, where this loses nothing: frames lack some types."""
    for index, field in enumerate(rows.schema):
        target = table_types.get(field.name, field.type)
        if target == field.type:
            continue
        with suppress(SchemaError, Misfit):
            cast = find(field.type, target)
            column = one_array(rows.column(index))
            rows = rows.set_column(index, field.with_type(target), cast(column) if cast else column)
    return rows

"""Chooses the Parquet encoding of each column, and whether it is compressed, by trying them on a sample of the rows.

Only encodings that DuckDB, Polars and Spark's vectorised reader all know are tried: dictionary, plain,
DELTA_BINARY_PACKED for integers and times, DELTA_LENGTH_BYTE_ARRAY for strings and binaries.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from dolmen.format.properties import FAST_COMPRESSION, Compression
from dolmen.format.schema import is_nested, leaf_count

SAMPLE_ROWS = 8192
_SAMPLE_SLICES = 4

TRIAL_ROWS = 16_384
"""With fewer rows a trial would take longer than writing them: texts get dictionaries, integers are packed."""

_NEAR_MISS, _GROUP_ROWS = 1.5, 65_536
"""A dictionary that takes less than ``_NEAR_MISS`` times the alternative's space gets a second trial, on more rows."""

_MOST_DISTINCT = 0.995
"""If more of the sample's values are distinct, nearly all values of a row group are: no dictionary is tried."""

_DELTA = {"INT32": "DELTA_BINARY_PACKED", "INT64": "DELTA_BINARY_PACKED", "BYTE_ARRAY": "DELTA_LENGTH_BYTE_ARRAY"}
_DELTA_MAY_TAKE = {"INT32": 1.25, "INT64": 1.25, "BYTE_ARRAY": 0.97}
"""The size allowed for a delta encoded column, in parts of the plain one. Packed integers decode four times faster than
ZSTD decompresses them, so they may even be larger; strings gain no time."""

_WORTH_COMPRESSING = 0.98
"""Packed integers are compressed only if ZSTD leaves less than this part of them. Other columns always are: their later
rows may compress well, while packed integers stay small without it."""


class Leaf(Struct, frozen=True):
    """A Parquet column. A nested column of the table has one or more.

    ``path`` need not be unique: there may be a column "a.b" and a struct "a" with a field "b".
    """

    path: str
    physical_type: str
    column: str
    is_nested: bool


class Encodings(Struct, frozen=True):
    """Encodings by path of the leaf; PLAIN for leaves in neither ``dictionary`` nor ``delta``.

    ``row_bytes`` (compressed) is None without a trial. Compression would not make the ``uncompressed`` columns smaller.
    """

    dictionary: tuple[str, ...]
    delta: dict[str, str]
    row_bytes: float | None = None
    uncompressed: frozenset[str] = frozenset()
    compression: Compression = FAST_COMPRESSION

    def options(self, schema: pa.Schema) -> dict[str, Any]:
        """The arguments of pyarrow's writer, for a file of this schema."""
        paths, (codec, level) = {leaf.path for leaf in leaves(schema)}, self.compression
        return {
            "use_dictionary": list(self.dictionary) or False,
            "column_encoding": self.delta or None,
            "compression": {path: "none" if path in self.uncompressed else codec for path in paths},
            "compression_level": None if level is None else dict.fromkeys(paths - self.uncompressed, level),
        }


@lru_cache(maxsize=64)
def leaves(schema: pa.Schema) -> tuple[Leaf, ...]:
    writer = pq.ParquetWriter(pa.BufferOutputStream(), schema)
    writer.close()
    columns = writer.writer.metadata.schema
    fields = [field for field in schema for _ in range(leaf_count(field.type))]
    return tuple(
        Leaf(column.path, column.physical_type, field.name, is_nested(field.type))
        for column, field in zip(map(columns.column, range(len(columns))), fields, strict=True)
    )


def choose(rows: pa.Table, compression: Compression = FAST_COMPRESSION) -> Encodings:
    """The encodings that suit these rows, the first of a file."""
    all_leaves = leaves(rows.schema)
    paths = Counter(leaf.path for leaf in all_leaves)
    delta = {
        leaf.path: _DELTA[leaf.physical_type]
        for leaf in all_leaves
        if leaf.physical_type in _DELTA and paths[leaf.path] == 1  # else it would be another column's too
    }
    if rows.num_rows < TRIAL_ROWS:
        texts = tuple(leaf.path for leaf in all_leaves if leaf.physical_type == "BYTE_ARRAY")
        delta = {path: encoding for path, encoding in delta.items() if path not in texts}
        return Encodings(texts, delta, compression=compression)
    sample, codec = _sample(rows), compression.codec
    plain_sizes = _sizes(sample, codec, use_dictionary=False)
    delta_chunks = _chunks(sample, codec, use_dictionary=False, column_encoding=delta or None)
    delta_sizes = {path: chunk.total_compressed_size for path, chunk in delta_chunks.items()}
    chosen = {
        leaf.path: delta[leaf.path]
        for leaf in all_leaves
        if leaf.path in delta and delta_sizes[leaf.path] <= plain_sizes[leaf.path] * _DELTA_MAY_TAKE[leaf.physical_type]
    }
    best = plain_sizes | {path: delta_sizes[path] for path in chosen}
    some = {leaf.column for leaf in all_leaves if leaf.is_nested or _has_repeated_values(sample[leaf.column])}
    dictionary_sizes = _sizes(
        sample.select([name for name in sample.column_names if name in some]), codec, use_dictionary=True
    )
    near_misses = [
        leaf.column
        for leaf in all_leaves
        if not leaf.is_nested
        and leaf.path in dictionary_sizes
        and best[leaf.path] <= dictionary_sizes[leaf.path] < best[leaf.path] * _NEAR_MISS
    ]
    dictionary_sizes |= _dictionary_sizes_of_more_rows(rows.select(near_misses), codec)
    dictionary = tuple(path for path in best if dictionary_sizes.get(path, math.inf) < best[path])
    for path in dictionary:
        best[path] = dictionary_sizes[path]
        chosen.pop(path, None)
    uncompressed = frozenset(
        path
        for path in chosen
        if "DELTA_BINARY_PACKED" in delta_chunks[path].encodings
        and delta_sizes[path] > delta_chunks[path].total_uncompressed_size * _WORTH_COMPRESSING
    )
    return Encodings(dictionary, chosen, sum(best.values()) / sample.num_rows, uncompressed, compression)


def _has_repeated_values(values: pa.ChunkedArray) -> bool:
    return len(values.unique()) <= len(values) * _MOST_DISTINCT


def _sample(rows: pa.Table) -> pa.Table:
    """Rows from all over the run: its beginning alone may be untypical."""
    if rows.num_rows <= SAMPLE_ROWS:
        return rows
    each = SAMPLE_ROWS // _SAMPLE_SLICES
    last = rows.num_rows - each
    starts = (last * i // (_SAMPLE_SLICES - 1) for i in range(_SAMPLE_SLICES))
    return pa.concat_tables(rows.slice(start, each) for start in starts).combine_chunks()


def _dictionary_sizes_of_more_rows(rows: pa.Table, codec: str) -> dict[str, float]:
    """Sizes of dictionaries that more rows share, by path, scaled to the rows of the sample."""
    group = rows.slice(0, _GROUP_ROWS)
    if group.num_rows <= SAMPLE_ROWS or group.num_columns == 0:
        return {}
    sizes = _sizes(group, codec, use_dictionary=True)
    return {path: size * SAMPLE_ROWS / group.num_rows for path, size in sizes.items()}


def _sizes(sample: pa.Table, codec: str, **encoding: Any) -> dict[str, float]:
    chunks = _chunks(sample, codec, **encoding)
    return {path: chunk.total_compressed_size for path, chunk in chunks.items()}


def _chunks(sample: pa.Table, codec: str, **encoding: Any) -> dict[str, pq.ColumnChunkMetaData]:
    writer = pq.ParquetWriter(
        pa.BufferOutputStream(),
        sample.schema,
        compression=codec,
        compression_level=1 if codec in ("zstd", "gzip") else None,  # a trial: higher levels take time
        write_statistics=False,
        **encoding,
    )
    writer.write_table(sample)
    writer.close()
    group = writer.writer.metadata.row_group(0)
    return {chunk.path_in_schema: chunk for chunk in map(group.column, range(group.num_columns))}

"""The ``.del`` object, which holds what one commit deletes from one table: predicates, lists of keys, and vectors.

docs/format.md specifies it. A key is a tuple of columns. Lists of keys are distinct and sorted, so integers compress
well (delta encoding), and the least and greatest key are the first and last. A deletion vector has positions of rows in
one data file, counted over all of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from typing import Any, TypeAlias
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from dolmen.base import pc
from dolmen.errors import CorruptionError, RowError
from dolmen.format.entries import Blob, KeysTombstone, Vector, column_stats
from dolmen.format.layout import FORMAT_VERSION, build_decoders, decode_sealed, seal
from dolmen.format.schema import Field, type_from_json
from dolmen.format.types import (
    Json,
    Plain,
    check_key_type,
    from_json,
    text_bytes,
    to_array,
    to_json,
    to_plain,
    type_of,
)

MAGIC = b"DEL1"

INLINE_BYTES = 1024  # lists and predicates whose JSON is at most this long are also in the manifest entry
_FEW = 64  # up to this many keys, a thorough compression costs more time than it saves space
_MANY = 1 << 20  # from this many tuples on, equal ones are left out before the others are sorted
_FIXED_AT_ONCE, _TEXTS_AT_ONCE = 1 << 17, 1 << 13
"""The number of keys of a long list that are decoded at once: of fixed width, and others."""
_MANY_TEXTS = 1 << 12  # shorter lists of text are left to pyarrow
_PREFIX_BYTES = 8
Indexes: TypeAlias = npt.NDArray[Any]

Keys: TypeAlias = pa.Table  # distinct tuples in ascending order; columns are named by id


class BlobInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A blob in the footer. ``file`` is the uuid of a vector's data file."""

    kind: str
    offset: int
    length: int
    crc32: int
    columns: tuple[int, ...] = ()
    file: str = ""
    cardinality: int = 0


class TombstoneFooter(msgspec.Struct, frozen=True):
    """The footer: the table's uuid and the blobs in order."""

    format_version: int
    table: str
    blobs: tuple[BlobInfo, ...]


class TombstoneObject:
    """A ``.del`` object being built; ``table`` is a uuid."""

    def __init__(self, key: str, table: str) -> None:
        self.key, self.table = key, table
        self._body = bytearray(MAGIC)
        self._blobs: list[BlobInfo] = []

    def add_where(self, predicate: bytes, columns: tuple[int, ...]) -> Blob:
        return self._add("where", predicate, columns=columns)

    def add_keys(self, parquet: bytes, columns: tuple[int, ...]) -> Blob:
        return self._add("keys", parquet, columns=columns)

    def add_vector(self, file: str, positions: BitMap) -> Vector:
        """Adds the deletion vector of the data file with this uuid."""
        cardinality = len(positions)
        blob = self._add("vector", encode_vector(positions), file=file, cardinality=cardinality)
        return Vector(blob.object, blob.offset, blob.length, blob.crc32, cardinality)

    def _add(
        self, kind: str, body: bytes, *, columns: tuple[int, ...] = (), file: str = "", cardinality: int = 0
    ) -> Blob:
        blob = Blob(self.key, len(self._body), len(body), crc32(body))
        self._blobs.append(BlobInfo(kind, blob.offset, blob.length, blob.crc32, columns, file, cardinality))
        self._body += body
        return blob

    def encode(self) -> bytes:
        footer = seal(msgspec.json.encode(TombstoneFooter(FORMAT_VERSION, self.table, tuple(self._blobs))))
        return b"".join((self._body, footer, len(footer).to_bytes(4, "little"), MAGIC))


def read_footer(body: bytes, key: str) -> TombstoneFooter:
    """The footer of a whole ``.del`` object. Raises CorruptionError or UnsupportedFormatError."""
    if len(body) < 12 or body[:4] != MAGIC or body[-4:] != MAGIC:
        raise CorruptionError(key, "not a .del object (truncated?)")
    length = int.from_bytes(body[-8:-4], "little")
    if length > len(body) - 12:
        raise CorruptionError(key, f"a footer of {length} bytes in {len(body)}")
    return decode_sealed(body[-8 - length : -8], key, TombstoneFooter, "footer")


def check_blob(body: bytes, blob: Blob | Vector) -> bytes:
    """Returns the bytes of a blob if they are what its entry says. Raises CorruptionError."""
    if len(body) != blob.length or crc32(body) != blob.crc32:
        raise CorruptionError(blob.object, f"blob at byte {blob.offset}: checksum differs")
    return body


def encode_vector(positions: BitMap) -> bytes:
    """Portable Roaring bytes."""
    compact = positions.copy()
    compact.run_optimize()
    return bytes(compact.serialize())


def decode_vector(body: bytes, vector: Vector, rows: int) -> BitMap:
    """Reads the vector of a file with this number of physical rows. Raises CorruptionError."""
    try:
        if len(body) != vector.length or crc32(body) != vector.crc32:
            raise ValueError("checksum differs")
        positions = BitMap.deserialize(body)
        if len(positions) != vector.cardinality:
            raise ValueError(f"{len(positions)} positions, not {vector.cardinality}")
        if positions and positions.max() >= rows:
            raise ValueError(f"position {positions.max()} in a file of {rows} rows")
    except ValueError as error:
        raise CorruptionError(vector.object, f"vector at byte {vector.offset}: {error}") from error
    return positions


def vector_of_mask(mask: npt.NDArray[np.bool_], first: int) -> BitMap:
    """Positions of the True values of ``mask``, whose first value is for position ``first``."""
    if mask.all():
        return BitMap(range(first, first + len(mask)))
    return BitMap((np.flatnonzero(mask) + first).astype(np.uint32))


def keep_mask(positions: BitMap, first: int, rows: int) -> npt.NDArray[np.bool_]:
    """True for each of the ``rows`` positions from ``first`` on that is NOT in the vector."""
    keep = np.ones(rows, dtype=np.bool_)
    deleted = positions & BitMap(range(first, first + rows))
    keep[np.asarray(deleted.to_array(), dtype=np.int64) - first] = False
    return keep


def keys_from_arrow(data: pa.Table, columns: tuple[Field, ...]) -> Keys:
    """The distinct, sorted tuples of a table's columns.

    ``data``: rows with (at least) the columns by NAME, in their stored types.

    Raises:
        InputError: a float or nested column, which cannot be part of a key.
        RowError: a NULL, with its 1-based row.
    """
    table = key_tuples(data, columns)
    if table.num_rows > _MANY:  # more than a delete may have: so most are equal, or the caller will refuse the keys
        if table.num_columns == 1:
            table = pa.table([pc.unique(table.column(0))], names=table.column_names)
        else:
            table = table.group_by(table.column_names, use_threads=False).aggregate([])
    return distinct_keys(table)[0]


def key_tuples(data: pa.Table, columns: tuple[Field, ...]) -> pa.Table:
    """The tuples of a table's columns as they are, with the columns of a key: in the order of ids, and named by them.

    See ``keys_from_arrow`` for arguments and errors.
    """
    columns = tuple(sorted(columns, key=lambda field: field.id))
    arrays = {}
    for field in columns:
        check_key_type(field.arrow_type, field.name)
        check_not_null(data, [field])
        arrays[str(field.id)] = data[field.name]
    return pa.table(arrays)


def check_not_null(rows: pa.Table | pa.RecordBatch, columns: Iterable[Field], rows_before: int | None = 0) -> None:
    """Raises RowError for a NULL in a key with these columns.

    ``rows_before``: the number of rows before these, by which the error counts; None if rows have no numbers.
    """
    for field in columns:
        values = rows[field.name]
        if values.null_count:
            row = None if rows_before is None else rows_before + pc.index(pc.is_null(values), True).as_py() + 1
            raise RowError("NULL in a key: it equals nothing", row=row, column=field.name)


def distinct_keys(tuples: pa.Table) -> tuple[Keys, Indexes]:
    """The keys among tuples (see ``key_tuples``), and the last index of each."""
    if tuples.num_rows < 2:
        return tuples, np.arange(tuples.num_rows)  # most requests are for one
    order = order_of(tuples)
    keys = tuples.take(pa.array(order))
    last = last_of_equals(keys)
    return (keys, order) if last.all() else (keys.filter(pa.array(last)), order[last])


def add_keys(target: TombstoneObject, keys: Keys) -> KeysTombstone:
    """Stores ``keys`` in a ``.del`` object. Returns the entry, which gets its timestamp when it is committed."""
    ids = tuple(int(name) for name in keys.column_names)
    blob = target.add_keys(_encode(keys), ids)
    bounds: list[tuple[Json, Json]] = []
    for column in keys.columns:
        ends = pc.min_max(column) if keys.num_rows > 1 else {"min": column[0], "max": column[0]}
        least, greatest = to_plain(pa.array([ends["min"], ends["max"]], column.type))
        stats = column_stats(least, greatest, 0)
        bounds.append((stats.min, stats.max))
    types = tuple(str(column.type) for column in keys.columns)
    return KeysTombstone(ids, types, keys.num_rows, tuple(bounds), blob, _inline(keys))


def inline_keys(tombstone: KeysTombstone) -> Keys | None:
    """The keys in the entry itself; None if they have to be fetched."""
    return None if tombstone.values is None else all_inline_keys([tombstone])


def all_inline_keys(tombstones: Sequence[KeysTombstone]) -> pa.Table:
    """The keys in the entries of tombstones over the same columns of the same types, one after the other."""
    arrays = []
    for index, name in enumerate(tombstones[0].types):
        arrow_type = type_from_json(name)
        values = list(chain.from_iterable([(t.values or ())[index] for t in tombstones]))
        arrays.append(to_array(plain_values(values, arrow_type), arrow_type))
    return pa.table(arrays, names=[str(column) for column in tombstones[0].columns])


def plain_values(values: list[Json], arrow_type: pa.DataType) -> list[Plain]:
    """The plain values of JSON forms, without a call for each where both forms are the same. Raises SchemaError."""
    column_type = type_of(arrow_type)
    plain = column_type.plain if column_type else None
    if plain in (int, str) and set(map(type, values)) <= {plain}:
        return list(values)
    return [from_json(value, arrow_type) for value in values]


def decode_keys(body: bytes, tombstone: KeysTombstone) -> Keys:
    """The keys of a fetched blob. Raises CorruptionError."""
    with _keys_file(body, tombstone) as file:
        # No Arrow threads: one of them might free the body after the Python interpreter has ended.
        return _check_columns(file.read(use_threads=False), tombstone)


def decode_keys_in_parts(body: bytes, tombstone: KeysTombstone) -> Iterator[Keys]:
    """The keys of a fetched blob, some thousands at a time. Raises CorruptionError."""
    types = (type_of(type_from_json(name)) for name in tombstone.types)
    is_fixed = all(each is not None and each.codes != "variable" for each in types)
    with _keys_file(body, tombstone) as file:
        for batch in file.iter_batches(_FIXED_AT_ONCE if is_fixed else _TEXTS_AT_ONCE, use_threads=False):
            yield _check_columns(pa.Table.from_batches([batch]), tombstone)


@contextmanager
def _keys_file(body: bytes, tombstone: KeysTombstone) -> Iterator[pq.ParquetFile]:
    check_blob(body, tombstone.blob)
    try:
        file = pq.ParquetFile(pa.BufferReader(body))
        if file.metadata.num_rows != tombstone.count:
            raise _other_keys(tombstone)
        yield file
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(tombstone.blob.object, f"keys at byte {tombstone.blob.offset}: {error}") from error


def _check_columns(keys: Keys, tombstone: KeysTombstone) -> Keys:
    if keys.column_names != [str(column) for column in tombstone.columns]:
        raise _other_keys(tombstone)
    return keys


def _other_keys(tombstone: KeysTombstone) -> CorruptionError:
    return CorruptionError(tombstone.blob.object, f"keys at byte {tombstone.blob.offset}: not those of the entry")


def _encode(keys: Keys) -> bytes:
    sink = pa.BufferOutputStream()
    types = {field.name: type_of(field.type) for field in keys.schema}
    pq.write_table(
        keys,
        sink,
        compression="zstd",
        compression_level=3 if keys.num_rows > _FEW else 1,
        use_dictionary=False,
        column_encoding={name: each.key_encoding for name, each in types.items() if each and each.key_encoding},
        write_statistics=False,
        store_schema=True,  # keeps types that Parquet alone would not, such as uint64 or zones
    )
    return bytes(sink.getvalue())


def _inline(keys: Keys) -> tuple[tuple[Json, ...], ...] | None:
    if keys.num_rows * keys.num_columns > INLINE_BYTES // 2:  # a value takes at least a digit and a comma
        return None
    values = tuple(tuple(to_json(value) for value in to_plain(column.combine_chunks())) for column in keys.columns)
    return values if len(msgspec.json.encode(values)) <= INLINE_BYTES else None


def order_of(keys: pa.Table) -> Indexes:
    """The indexes of the rows in ascending order of all columns; equal rows stay in their order. No key is NULL."""
    if keys.num_columns == 1 and keys.num_rows >= _MANY_TEXTS and keys.schema.types[0] in (pa.string(), pa.binary()):
        values = keys.column(0).combine_chunks()
        if isinstance(values, pa.Array):  # else there are more than 2 GB of text
            return _order_of_texts(values)
    by = [(name, "ascending") for name in keys.column_names]
    order: Indexes = pc.sort_indices(keys, sort_keys=by).to_numpy()
    return order


def order_by_heads(heads: npt.NDArray[np.uint64], order_tied: Callable[[Indexes], Indexes]) -> Indexes:
    """The indexes of keys in ascending order; equal ones stay in their order if ``order_tied`` leaves them so.

    Args:
        heads: the bytes in which keys may differ first, as a number for each key.
        order_tied: the order of the keys at some ascending indexes: of all whose heads are not unique.
    """
    order: Indexes = np.argsort(heads)  # takes a fifth of the time of a stable sort
    heads = heads[order]
    same = heads[1:] == heads[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if len(tied):  # all that begin alike are neighbours, and stay so when they are sorted as a whole
        indexes = np.sort(order[tied])
        order[tied] = indexes[order_tied(indexes)]
    return order


def last_of_equals(keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row of a sorted table is the last of those that are equal to it."""
    last = np.ones(keys.num_rows, bool)
    if keys.num_rows > 1:
        same = [pc.equal(column[:-1], column[1:]) for column in keys.columns]
        last[:-1] = ~reduce(pc.and_, same).to_numpy()
    return last


def _order_of_texts(values: pa.Array) -> Indexes:
    """Sorts by the first bytes that may differ, as one number for each text: faster than pyarrow for long lists."""
    ends = pc.min_max(values.cast(pa.binary()))
    least, greatest = ends["min"].as_py(), ends["max"].as_py()
    shared = next((at for at, (a, b) in enumerate(zip(least, greatest, strict=False)) if a != b), len(least))
    heads = _prefixes(values, shared)
    return order_by_heads(heads, lambda tied: pc.sort_indices(values.take(pa.array(tied))).to_numpy())


def _prefixes(values: pa.Array, skipped: int) -> npt.NDArray[np.uint64]:
    """The first bytes of each text after ``skipped`` ones, as a big-endian number; zeros follow its end."""
    data, offsets = text_bytes(values)
    prefixes = np.zeros((len(values), _PREFIX_BYTES), np.uint8)
    if len(data):
        starts, ends = offsets[:-1] + skipped, offsets[1:]
        least = int((ends - starts).min())
        for index in range(_PREFIX_BYTES):
            at = starts + index
            byte = data.take(at, mode="clip")
            prefixes[:, index] = byte if index < least else np.where(at < ends, byte, 0)
    return prefixes.view(">u8").ravel().astype(np.uint64)


build_decoders(TombstoneFooter)

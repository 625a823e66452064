"""Keys: the lists of column tuples that ``keys`` tombstones hold.

The blob is a Parquet file of the distinct tuples in ascending order, one column per id, named by the decimal id, in
ascending order of ids. Sorting makes integers cheap (delta encoding) and bounds free.

The order of key tuples: that of pyarrow's ``sort_indices``, and found sooner where long lists of text are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dolmen.errors import CorruptionError, InputError, RowError
from dolmen.format.delete_object import TombstoneObject, check_blob
from dolmen.format.entries import KeysTombstone, column_stats
from dolmen.format.schema import Field, type_from_json
from dolmen.format.types import Json, Plain, can_be_key, from_json, to_array, to_json, to_plain, type_of

Places: TypeAlias = npt.NDArray[Any]


_MANY_TEXTS = 1 << 12
"""Shorter lists of text are left to pyarrow."""


_PREFIX_BYTES = 8


def order_of(keys: pa.Table) -> Places:
    """The places of the rows in ascending order of all columns; equal rows stay in their order. No key is NULL."""
    if keys.num_columns == 1 and keys.num_rows >= _MANY_TEXTS and keys.schema.types[0] in (pa.string(), pa.binary()):
        values = keys.column(0).combine_chunks()
        if isinstance(values, pa.Array):  # else there are more than 2 GB of text
            return _order_of_texts(values)
    by = [(name, "ascending") for name in keys.column_names]
    order: Places = pc.sort_indices(keys, sort_keys=by).to_numpy()
    return order


def order_by_heads(heads: npt.NDArray[np.uint64], order_tied: Callable[[Places], Places]) -> Places:
    """The places of keys in ascending order; equal ones stay in their order if ``order_tied`` leaves them so.

    Args:
        heads: the bytes in which keys may differ first, as a number for each key.
        order_tied: the order of the keys at some places: of all whose heads are not unique.
    """
    order: Places = np.argsort(heads, kind="stable")
    heads = heads[order]
    same = heads[1:] == heads[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if len(tied):  # all that begin alike are neighbours, and stay so when they are sorted as a whole
        places = order[tied]
        order[tied] = places[order_tied(places)]
    return order


def last_of_equals(keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row of a sorted table is the last of those that are equal to it."""
    last = np.ones(keys.num_rows, bool)
    if keys.num_rows > 1:
        same = [pc.equal(column[:-1], column[1:]) for column in keys.columns]
        last[:-1] = ~reduce(pc.and_, same).to_numpy()
    return last


def _order_of_texts(values: pa.Array) -> Places:
    """Sorts by the first bytes that may differ, as one number for each text, and then those whose numbers are equal.

    Pyarrow compares text by text, which for 1,000,000 UUIDs takes three times as long.
    """
    ends = pc.min_max(values.cast(pa.binary()))
    prefixes = _prefixes(values, _shared_bytes(ends["min"].as_py(), ends["max"].as_py()))
    return order_by_heads(prefixes, lambda tied: pc.sort_indices(values.take(pa.array(tied))).to_numpy())


def _shared_bytes(one: bytes, other: bytes) -> int:
    """The number of bytes with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _prefixes(values: pa.Array, skipped: int) -> npt.NDArray[np.uint64]:
    """The first bytes of each text behind ``skipped`` ones, as a big-endian number; zeros follow its end."""
    _, places, text = values.buffers()
    found = np.zeros((len(values), _PREFIX_BYTES), np.uint8)
    if text is not None and text.size:
        data = np.frombuffer(text, np.uint8)
        offsets = np.frombuffer(places, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        starts, ends = offsets[:-1] + skipped, offsets[1:]
        least = int((ends - starts).min())
        for place in range(_PREFIX_BYTES):
            at = starts + place
            byte = data.take(at, mode="clip")
            found[:, place] = byte if place < least else np.where(at < ends, byte, 0)
    return found.view(">u8").ravel().astype(np.uint64)


_FEW = 64
"""Up to this many keys, a thorough compression costs more time than it saves space."""


_MANY = 1 << 20
"""From this many tuples on, equal ones are left out before the others are sorted."""


_FIXED_AT_ONCE, _TEXTS_AT_ONCE = 1 << 17, 1 << 13
"""The number of keys of a long list that are decoded at once: of fixed width, and others."""


INLINE_BYTES = 1024
"""Lists whose JSON is at most this long also stand in the manifest entry."""


Keys: TypeAlias = pa.Table
"""Distinct tuples in ascending order; columns are named by id."""


def keys_from_arrow(data: pa.Table, columns: tuple[Field, ...]) -> Keys:
    """The distinct, sorted tuples of a table's columns.

    Args:
        data: rows with (at least) the columns by NAME, in their stored types.
        columns: the tuple.

    Raises:
        InputError: a float or nested column, which nothing can be deleted by.
        RowError: a NULL, with its 1-based row.
    """
    table = key_tuples(data, columns)
    if table.num_rows > _MANY:  # then many are equal, or the caller refuses them
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
        if not can_be_key(field.arrow_type):
            raise InputError(f"column {field.name!r} of type {field.arrow_type} can't be (part of) a key")
        array = data[field.name]
        if array.null_count:
            row = pc.index(pc.is_null(array), True).as_py() + 1
            raise RowError("NULL in a key: it equals nothing", row=row, column=field.name)
        arrays[str(field.id)] = array
    return pa.table(arrays)


def distinct_keys(tuples: pa.Table) -> tuple[Keys, Places]:
    """The keys among tuples (see ``key_tuples``), and the last index of each."""
    if tuples.num_rows < 2:
        return tuples, np.arange(tuples.num_rows)  # most requests are for one
    order = order_of(tuples)
    keys = tuples.take(pa.array(order))
    last = last_of_equals(keys)
    return (keys, order) if last.all() else (keys.filter(pa.array(last)), order[last])


def add_keys(target: TombstoneObject, keys: Keys) -> KeysTombstone:
    """Stores ``keys`` in a ``.del`` object; returns the (unstamped) entry."""
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
    """The keys that stand in the entry itself, or None if they have to be fetched."""
    return None if tombstone.values is None else all_inline_keys([tombstone])


def all_inline_keys(tombstones: Sequence[KeysTombstone]) -> pa.Table:
    """The keys that stand in the entries of tombstones over the same columns of the same types, one after the other."""
    arrays = []
    for place, name in enumerate(tombstones[0].types):
        arrow_type = type_from_json(name)
        values = list(chain.from_iterable([(t.values or ())[place] for t in tombstones]))
        arrays.append(to_array(plain_values(values, arrow_type), arrow_type))
    return pa.table(arrays, names=[str(column) for column in tombstones[0].columns])


def plain_values(values: list[Json], arrow_type: pa.DataType) -> list[Plain]:
    """The plain values of many JSON forms of one type, without a call for each value where both forms are the same.

    Raises:
        SchemaError: one does not fit the type.
    """
    found = type_of(arrow_type)
    same = found.plain if found is not None else None
    if same in (int, str) and set(map(type, values)) <= {same}:
        return list(values)
    return [from_json(value, arrow_type) for value in values]


def decode_keys(body: bytes, tombstone: KeysTombstone) -> Keys:
    """The keys of a fetched blob. Raises CorruptionError."""
    check_blob(body, tombstone.blob)
    try:
        # without threads of Arrow's, which may let go of the body late: that needs an interpreter that may be gone
        table = pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(tombstone.blob.object, f"keys at byte {tombstone.blob.offset}: {error}") from error
    _check_columns(table, tombstone)
    if table.num_rows != tombstone.count:
        raise _other_keys(tombstone)
    return table


def decode_keys_in_parts(body: bytes, tombstone: KeysTombstone) -> Iterator[Keys]:
    """The keys of a fetched blob, some thousands at a time. Raises CorruptionError."""
    check_blob(body, tombstone.blob)
    fixed = all(_is_fixed_width(type_from_json(name)) for name in tombstone.types)
    rows = 0
    try:
        file = pq.ParquetFile(pa.BufferReader(body))
        for batch in file.iter_batches(_FIXED_AT_ONCE if fixed else _TEXTS_AT_ONCE, use_threads=False):
            part = pa.Table.from_batches([batch])
            _check_columns(part, tombstone)
            rows += part.num_rows
            yield part
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(tombstone.blob.object, f"keys at byte {tombstone.blob.offset}: {error}") from error
    if rows != tombstone.count:
        raise _other_keys(tombstone)


def _is_fixed_width(arrow_type: pa.DataType) -> bool:
    found = type_of(arrow_type)
    return found is not None and found.codes != "variable"


def _check_columns(keys: Keys, tombstone: KeysTombstone) -> None:
    if keys.column_names != [str(column) for column in tombstone.columns]:
        raise _other_keys(tombstone)


def _other_keys(tombstone: KeysTombstone) -> CorruptionError:
    return CorruptionError(tombstone.blob.object, f"keys at byte {tombstone.blob.offset}: not those of the entry")


def _encode(keys: Keys) -> bytes:
    sink = pa.BufferOutputStream()
    encodings = {field.name: _encoding(field.type) for field in keys.schema}
    pq.write_table(
        keys,
        sink,
        compression="zstd",
        compression_level=3 if keys.num_rows > _FEW else 1,
        use_dictionary=False,
        column_encoding={name: encoding for name, encoding in encodings.items() if encoding},
        write_statistics=False,
        store_schema=True,  # keeps types that Parquet alone would not, such as uint64 or zones
    )
    return bytes(sink.getvalue())


def _encoding(arrow_type: pa.DataType) -> str | None:
    found = type_of(arrow_type)
    return None if found is None else found.key_encoding


def _inline(keys: Keys) -> tuple[tuple[Json, ...], ...] | None:
    if keys.num_rows * keys.num_columns > INLINE_BYTES // 2:  # a value takes at least a digit and a comma
        return None
    values = tuple(tuple(to_json(value) for value in to_plain(column.combine_chunks())) for column in keys.columns)
    return values if len(msgspec.json.encode(values)) <= INLINE_BYTES else None

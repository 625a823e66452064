"""Whether Arrow arrays of foreign origin hold what their types say.

Arrow takes buffers as they come: a string may hold bytes that are not UTF-8, a decimal more digits than its type, a
dictionary index may lie outside its dictionary. Readers refuse such values, or crash on them. Everything is
vectorised: text costs about 5 ms a million short strings, numbers nothing.

Values of children are looked at only where the rows of the array lie, so that the parts of one large array cost
together what the whole costs.

``fill_hidden`` fills the values in a struct's fields where the struct itself is NULL. Readers ignore them, and Arrow
may have anything there, NULL or a value. But Parquet's writer refuses any NULL in a field that is not nullable.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.errors import RowError

_REASONS = (
    (re.compile("UTF8"), "the text is not UTF-8: decode it by its true encoding, or store it as binary"),
    (re.compile(r"Decimal value .* does not fit"), "a decimal has more digits than its type {kind} holds"),
    (re.compile("not within the acceptable range"), "a {kind} lies outside of a day"),
    (re.compile("does not represent a whole number of days"), "a {kind} is no whole number of days"),
)


def check_values(batch: pa.RecordBatch, *, first_row: int = 1) -> None:
    """Looks at every value of a batch.

    Args:
        first_row: 1-based number of the batch's first row, for errors.

    Raises:
        RowError: a value is not one of its column's type; names the first such row and its column.
    """
    faults = [
        (fault[0], index, fault[1]) for index, column in enumerate(batch.columns) if (fault := first_invalid(column))
    ]
    if faults:
        row, index, reason = min(faults)
        raise RowError(reason, row=first_row + row, column=batch.schema.field(index).name)


def first_invalid(array: pa.Array) -> tuple[int, str] | None:
    """Place (0-based) and reason of the first value that is none of the array's type; None if there is none."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return first_invalid(array.storage)
    if not (t.is_nested(kind) or t.is_dictionary(kind) or t.is_run_end_encoded(kind)):
        return _first_invalid_leaf(array)
    try:
        array.validate()
    except pa.ArrowInvalid as error:
        return 0, _reason(error, kind)
    if t.is_dictionary(kind):
        return _first_invalid_code(array)
    if t.is_struct(kind):
        faults = [fault for index in range(kind.num_fields) if (fault := first_invalid(array.field(index)))]
        return min(faults, default=None)
    if t.is_fixed_size_list(kind):
        size = kind.list_size
        fault = first_invalid(array.values.slice(array.offset * size, len(array) * size)) if size else None
        return fault and (fault[0] // size, fault[1])
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        return _first_invalid_list(array)
    if t.is_run_end_encoded(kind):
        return _first_invalid_run(array)
    return _first_invalid_leaf(array)  # views of lists, unions: as a whole, for they are never stored


def _first_invalid_leaf(array: pa.Array) -> tuple[int, str] | None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        reason = _reason(error, array.type)
    else:
        return None
    good, bad = 0, len(array)  # the first ``good`` values are valid, the first ``bad`` are not
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            array.slice(0, middle).validate(full=True)
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return good, reason


def _first_invalid_code(array: pa.DictionaryArray) -> tuple[int, str] | None:
    codes, values = array.indices.cast(pa.int64(), safe=False), array.dictionary  # large unsigned ones turn negative
    index = pc.index(pc.or_(pc.less(codes, 0), pc.greater_equal(codes, len(values))), True).as_py()
    if index >= 0:
        return index, "an index lies outside of its dictionary"
    if fault := first_invalid(values):
        index = pc.index(codes, fault[0]).as_py()
        return max(index, 0), fault[1]
    return None


def _first_invalid_list(array: pa.Array) -> tuple[int, str] | None:
    is_map = t.is_map(array.type)
    offsets = array.offsets
    children = (array.keys, array.items) if is_map else (array.values,)
    ends = offsets.to_numpy()
    if not len(array):
        return None
    wrong = np.flatnonzero((ends[1:] < ends[:-1]) | (ends[1:] > len(children[0])) | (ends[:-1] < 0))
    if len(wrong):
        return int(wrong[0]), "the offsets of a list lie outside of its values"
    start, stop = int(ends[0]), int(ends[-1])
    faults = [fault for child in children if (fault := first_invalid(child.slice(start, stop - start)))]
    if not faults:
        return None
    index, reason = min(faults)
    return int(np.searchsorted(ends, start + index, side="right")) - 1, reason


def _first_invalid_run(array: pa.RunEndEncodedArray) -> tuple[int, str] | None:
    first, count = array.find_physical_offset(), array.find_physical_length()
    ends = array.run_ends.slice(first, count).to_numpy() - array.offset
    if count and (ends[0] <= 0 or (np.diff(ends) <= 0).any() or ends[-1] < len(array)):
        return 0, "the ends of its runs are out of order"
    fault = first_invalid(array.values.slice(first, count))
    return fault and (int(ends[fault[0] - 1]) if fault[0] else 0, fault[1])


def _reason(error: pa.ArrowInvalid, kind: pa.DataType) -> str:
    text = str(error)
    for pattern, reason in _REASONS:
        if pattern.search(text):
            return reason.format(kind=kind)
    return f"the Arrow data are damaged: {text}"


def _needs_values(kind: pa.DataType) -> bool:
    """Whether the type has a field that is not nullable, in a struct at any depth."""
    if t.is_struct(kind):
        return any(not field.nullable or _needs_values(field.type) for field in kind)
    if t.is_map(kind):
        return _needs_values(kind.key_type) or _needs_values(kind.item_type)
    return bool(t.is_list(kind)) and _needs_values(kind.value_type)


def fill_hidden_of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``fill_hidden`` of every column."""
    return pa.RecordBatch.from_arrays([_with_values(column) for column in batch.columns], schema=batch.schema)


def fill_hidden(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values, of a column of a stored type, with some value in each field that is not nullable.

    The caller has seen that no such field is NULL where its struct is not. Little is copied.
    """
    if not _needs_values(column.type):
        return column
    return pa.chunked_array([_with_values(chunk) for chunk in column.chunks], column.type)


def _with_values(array: pa.Array) -> pa.Array:
    """Applies ``fill_hidden`` to one array."""
    kind = array.type
    if not _needs_values(kind):
        return array
    if t.is_struct(kind):
        children = [_with_values(array.field(index)) for index in range(kind.num_fields)]
        filled = [
            child if field.nullable or not child.null_count else _without_nulls(child)
            for child, field in zip(children, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(filled, fields=list(kind), mask=array.is_null() if array.null_count else None)
    validity, offsets = array.buffers()[:2]
    if t.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [_with_values(array.keys), _with_values(array.items)], fields=[kind.key_field, kind.item_field]
        )
    else:
        entries = _with_values(array.values)
    return pa.Array.from_buffers(kind, len(array), [validity, offsets], array.null_count, array.offset, [entries])


def _without_nulls(array: pa.Array) -> pa.Array:
    """The array with whatever stands under its NULLs in their place."""
    kind = array.type
    if t.is_struct(kind):  # whose children know nothing of the array's own offset
        return pa.StructArray.from_arrays([array.field(index) for index in range(kind.num_fields)], fields=list(kind))
    children = []
    if t.is_map(kind):
        children = [pa.StructArray.from_arrays([array.keys, array.items], fields=[kind.key_field, kind.item_field])]
    elif t.is_list(kind):
        children = [array.values]
    buffers = array.buffers()[1 : kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), [None, *buffers], 0, array.offset, children)

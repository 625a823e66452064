"""Masks of a row group's rows: without those that vectors and tombstones hide, and those that a predicate matches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.errors import CorruptionError
from dolmen.format.delete_object import keep_mask
from dolmen.format.nesting import has_same_fields, nested_values
from dolmen.format.schema import COMMIT_TS_ID, Field, is_nested
from dolmen.predicate import Predicate, matches
from dolmen.predicate.any_of import Conjunction, any_of
from dolmen.predicate.ast import all_columns
from dolmen.rows.scan.by_key.keys_lookup import Tuples
from dolmen.rows.scan.read.row_groups import RowGroup

Mask = npt.NDArray[np.bool_]


def live_mask(group: RowGroup, columns: Mapping[int, pa.Array]) -> Mask | None:
    """A mask of the rows that are not deleted: vectors by position first, then tombstones; None for all rows.

    Positions are counted over all physical rows of the file, so this must see whole row groups.

    Args:
        columns: by id, at least those that ``group.tests`` names, whole.
    """
    keep = keep_mask(group.file.vector, group.first, group.rows) if group.gone and group.file.vector else None
    rows: dict[tuple[int, ...], Tuples] = {}
    for lookup in group.lookups:
        if lookup.columns not in rows:
            rows[lookup.columns] = Tuples([columns[id_] for id_ in lookup.columns], lookup.types)
        keep = _without(keep, lookup.hidden_mask(rows[lookup.columns], group.file.file.applied_through))
    if group.predicates:
        (group,) = with_hidden([group], [columns])
        assert group.hidden is not None
        keep = _without(keep, group.hidden)
    return keep


def with_hidden(groups: Sequence[RowGroup], columns: Sequence[Mapping[int, pa.Array]]) -> list[RowGroup]:
    """Adds to row groups a mask of the rows that their predicates hide.

    Evaluates a predicate once for all row groups whose columns have the same types: one evaluation of a small row group
    takes as long as one of many.

    Args:
        columns: for each row group, by id, at least those that ``group.tests`` names, whole.
    """
    found = list(groups)
    alike: dict[tuple[tuple[tuple[int, pa.DataType], ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for at, group in enumerate(groups):
        if group.predicates and group.hidden is None:
            ids = sorted(frozenset[int]().union(*(predicate.ids for predicate in group.predicates)))
            lacking = tuple(id_ for id_ in ids if id_ not in group.file.footer.columns)
            alike[tuple((id_, columns[at][id_].type) for id_ in ids), lacking].append(at)
    for (types, _), places in alike.items():
        some = [groups[at] for at in places]
        whole = {id_: _together([columns[at][id_] for at in places]) for id_, _ in types}
        hidden = _hidden_mask(some, whole)
        for at, mask in zip(places, np.split(hidden, np.cumsum([group.rows for group in some])[:-1]), strict=True):
            found[at] = replace(groups[at], hidden=mask)
    return found


def _hidden_mask(groups: Sequence[RowGroup], columns: Mapping[int, pa.Array]) -> Mask:
    """A mask of the rows of several row groups, one after the other, that their predicates hide."""
    rows = [group.rows for group in groups]
    hidden = np.zeros(sum(rows), np.bool_)
    predicates: list[Conjunction] = []
    limits: list[Mask | None] = []
    for predicate, limit in _limits(groups, rows):
        own = as_bound(predicate.predicate, groups[0], columns)
        if own is columns:
            predicates.append(predicate)
            limits.append(limit)
        else:
            mask = to_mask(matches(predicate.predicate, own, len(hidden)))
            hidden |= mask if limit is None else mask & limit
    return hidden | any_of(predicates, columns, len(hidden), limits)


def _limits(groups: Sequence[RowGroup], rows: list[int]) -> Iterator[tuple[Conjunction, Mask | None]]:
    """Each predicate of some row groups, with a mask of the rows of its row groups; None if it is one of all."""
    first = groups[0].predicates
    if all(group.predicates == first for group in groups):
        yield from ((predicate, None) for predicate in first)
        return
    members: dict[Conjunction, list[int]] = defaultdict(list)
    for at, group in enumerate(groups):
        for predicate in group.predicates:
            members[predicate].append(at)
    for predicate, places in members.items():
        there = np.zeros(len(groups), np.bool_)
        there[places] = True
        yield predicate, None if len(places) == len(groups) else np.repeat(there, rows)


def _together(arrays: Sequence[pa.Array]) -> pa.Array:
    """Columns of several row groups, one after the other."""
    if len(arrays) == 1:
        return arrays[0]
    if pa.types.is_dictionary(arrays[0].type):
        arrays = [array.cast(array.type.value_type) for array in arrays]
    return pa.concat_arrays(arrays)


def filter_mask(group: RowGroup, columns: Mapping[int, pa.Array]) -> Mask | None:
    """A mask of the rows that match the scan's predicate, deleted or not; None for all rows."""
    return None if group.filter is None else to_mask(matches(group.filter, columns, group.rows))


def row_mask(group: RowGroup, columns: Mapping[int, pa.Array]) -> Mask | None:
    """A mask of the rows that match and are not deleted; None for all rows."""
    keep, wanted = live_mask(group, columns), filter_mask(group, columns)
    if keep is None or wanted is None:
        return wanted if keep is None else keep
    return keep & wanted


def column_of(group: RowGroup, field: Field, arrays: Mapping[int, pa.Array]) -> pa.Array:
    """A column of a row group as the table has it now, whatever the file's type was; all rows, deleted ones too.

    Raises:
        CorruptionError: the file holds a value that the column has no room for.
    """
    row_ts = group.file.file.row_ts
    if field.id == COMMIT_TS_ID and row_ts is not None:
        return pa.repeat(pa.scalar(row_ts, pa.int64()), group.rows)
    array, wanted = arrays[field.id], field.arrow_type
    own = group.file.footer.columns.get(field.id)
    try:
        if own is not None and is_nested(wanted) and not has_same_fields(own.type, wanted):
            return nested_values(array, own.type, wanted)  # fields inside go by ids, whatever their names
        if array.type == wanted:
            return array
        return pa.nulls(group.rows, wanted) if pa.types.is_null(array.type) else array.cast(wanted)
    except pa.ArrowInvalid:  # it would say the value
        reason = f"column {field.name!r} is {array.type} there, and has a value that the table's {wanted} cannot hold"
        raise CorruptionError(group.file.file.path, reason) from None


def as_bound(predicate: Predicate, group: RowGroup, columns: Mapping[int, pa.Array]) -> Mapping[int, pa.Array]:
    """The columns, of which those that the file lacks have the type that the predicate was bound to, if it is narrower.

    A comparison of floats depends on their width, so a constant that is a double now must hide what the float did.
    """
    if group.file.footer.columns.keys() >= columns.keys():
        return columns
    lacking = [column for column in all_columns(predicate) if column.id not in group.file.footer.columns]
    narrow = {
        column.id: columns[column.id].cast(column.arrow_type)
        for column in lacking
        if pa.types.is_float32(column.arrow_type) and pa.types.is_float64(columns[column.id].type)
    }
    return {**columns, **narrow} if narrow else columns


def to_mask(array: pa.BooleanArray) -> Mask:
    """A boolean array without NULLs as bytes."""
    mask: Mask = array.to_numpy(zero_copy_only=False)
    return mask


def to_arrow(mask: Mask) -> pa.BooleanArray:
    """Bytes as an Arrow array, several times faster than ``pa.array``."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits])


def _without(keep: Mask | None, hidden: Mask) -> Mask:
    kept = ~hidden
    return kept if keep is None else keep & kept

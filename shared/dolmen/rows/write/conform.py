"""Record batches of any origin made to fit a table: columns by name, lossless casts, bounded batches.

Arrow takes buffers as they come: a string may hold bytes that are not UTF-8, a decimal more digits than its type has, a
dictionary index may lie outside its dictionary. So every value is checked first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.runtime import shared_runtime
from dolmen.base.units import MIB
from dolmen.errors import MAX_SHOWN, ConstraintError, RowError, SchemaError
from dolmen.format.column_history import with_field_ids
from dolmen.format.schema import Default, DefaultFunction, Schema, constant, readable_names
from dolmen.format.types import Mask, change_children, to_mask, to_plain
from dolmen.predicate.ast import Not, Predicate, columns
from dolmen.predicate.bind import condition_of
from dolmen.predicate.evaluate import matches
from dolmen.predicate.text import plain_text, to_sql
from dolmen.rows.write.casts import Cast, FindCast, Misfit, find_refused, first_misfit, lossless_cast, match_fields

_NULL = "NULL in a column that is not nullable"
_REASONS = (
    (re.compile("UTF8"), "the text is not UTF-8: decode it by its true encoding, or store it as binary"),
    (re.compile(r"Decimal value .* does not fit"), "a decimal has more digits than its type {kind} holds"),
    (re.compile("not within the acceptable range"), "a {kind} lies outside of a day"),
    (re.compile("does not represent a whole number of days"), "a {kind} is not a whole number of days"),
)


def check_values(batch: pa.RecordBatch, *, first_row: int = 1) -> None:
    """Raises RowError for the first row, from ``first_row`` on, with a value that is not one of its column's type."""
    found = ((first_invalid(column), index) for index, column in enumerate(batch.columns))
    if invalid := [(problem[0], index, problem[1]) for problem, index in found if problem]:
        row, index, reason = min(invalid)
        raise RowError(reason, row=first_row + row, column=batch.schema.field(index).name)


def first_invalid(array: pa.Array) -> tuple[int, str] | None:
    """The index and the reason of the first value that is not one of the array's type; None if all are."""
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
        problems = [first_invalid(array.field(index)) for index in range(kind.num_fields)]
        return min(filter(None, problems), default=None)
    if t.is_fixed_size_list(kind):
        size = kind.list_size
        problem = first_invalid(array.values.slice(array.offset * size, len(array) * size)) if size else None
        return problem and (problem[0] // size, problem[1])
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        return _first_invalid_list(array)
    if t.is_run_end_encoded(kind):
        return _first_invalid_run(array)
    return _first_invalid_leaf(array)  # views of lists, unions: never stored, so checked as a whole


def _first_invalid_leaf(array: pa.Array) -> tuple[int, str] | None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        index = find_refused(len(array), lambda n: array.slice(0, n).validate(full=True), pa.ArrowInvalid)
        return index, _reason(error, array.type)
    return None


def _first_invalid_code(array: pa.DictionaryArray) -> tuple[int, str] | None:
    codes, values = array.indices.cast(pa.int64(), safe=False), array.dictionary  # large unsigned ones turn negative
    index = pc.index(pc.or_(pc.less(codes, 0), pc.greater_equal(codes, len(values))), True).as_py()
    if index >= 0:
        return index, "an index lies outside of its dictionary"
    if problem := first_invalid(values):
        return max(pc.index(codes, problem[0]).as_py(), 0), problem[1]
    return None


def _first_invalid_list(array: pa.Array) -> tuple[int, str] | None:
    if not len(array):
        return None
    children = (array.keys, array.items) if t.is_map(array.type) else (array.values,)
    ends = array.offsets.to_numpy()
    wrong = np.flatnonzero((ends[1:] < ends[:-1]) | (ends[1:] > len(children[0])) | (ends[:-1] < 0))
    if len(wrong):
        return int(wrong[0]), "the offsets of a list lie outside of its values"
    start, stop = int(ends[0]), int(ends[-1])
    problems = [first_invalid(child.slice(start, stop - start)) for child in children]
    if (first := min(filter(None, problems), default=None)) is None:
        return None
    return int(np.searchsorted(ends, start + first[0], side="right")) - 1, first[1]


def _first_invalid_run(array: pa.RunEndEncodedArray) -> tuple[int, str] | None:
    first, count = array.find_physical_offset(), array.find_physical_length()
    ends = array.run_ends.slice(first, count).to_numpy() - array.offset
    if count and (ends[0] <= 0 or (np.diff(ends) <= 0).any() or ends[-1] < len(array)):
        return 0, "the ends of its runs are out of order"
    problem = first_invalid(array.values.slice(first, count))
    return problem and (int(ends[problem[0] - 1]) if problem[0] else 0, problem[1])


def _reason(error: pa.ArrowInvalid, kind: pa.DataType) -> str:
    text = str(error)
    for pattern, reason in _REASONS:
        if pattern.search(text):
            return reason.format(kind=kind)
    return f"the Arrow data are damaged: {text}"


MAX_BATCH_ROWS = 131_072

MAX_BATCH_BYTES = 64 * MIB  # batches above either limit are cut; a single row never is


class CastColumn(Struct, frozen=True):
    """The source of one column: the input's column ``index``, with the cast if there is one, or the ``default``."""

    field: pa.Field
    index: int | None
    cast: Cast | None
    default: Default = None


class RowCheck(Struct, frozen=True):
    """A check of a table, as new rows are compared with it."""

    # name, text: its name, and its condition in SQL
    name: str
    text: str
    violation: Predicate  # TRUE for the rows that it refuses
    # its columns, by id: the name, and the type, whose structs have the ids of their fields
    columns: Mapping[int, tuple[str, pa.DataType]]

    def refused(self, columns: Mapping[int, pa.Array], rows: int) -> Mask:
        """A mask of the rows that it refuses; ``columns`` are by id."""
        # Structs of users' rows have no ids, and a condition finds the fields by these.
        own = {id_: with_field_ids(columns[id_], type_) for id_, (_, type_) in self.columns.items()}
        return to_mask(matches(self.violation, own, rows))

    def reason(self, columns: Mapping[int, pa.Array], row: int) -> str:
        """Why it refuses a row."""
        named = sorted(self.columns.items())[:_SHOWN_COLUMNS]
        values = ", ".join(f"{name} is {_shown_value(columns[id_], row)}" for id_, (name, _) in named)
        return f"the check {self.name!r} is FALSE: {_cut(self.text)}{values and f', and {values}'}"

    def find(self, batch: pa.RecordBatch) -> tuple[int, str] | None:
        """The index of the first row that it refuses, and why; None if there is none."""
        own = {id_: batch[name] for id_, (name, _) in self.columns.items()}
        refused = self.refused(own, batch.num_rows)
        if not refused.any():
            return None
        row = int(refused.argmax())
        return row, self.reason(own, row)


_SHOWN_COLUMNS = 4


def _shown_value(array: pa.Array, row: int) -> str:
    value = array.slice(row, 1)
    if value.null_count:
        return "NULL"
    return _cut(str(value[0].as_py()) if t.is_nested(array.type) else plain_text(to_plain(value)[0], array.type))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def row_checks(schema: Schema) -> tuple[RowCheck, ...]:
    """The checks of a table with these columns."""
    found = []
    for check in schema.checks:
        condition = condition_of(check, schema)
        fields = [schema.by_id[id_] for id_ in columns(condition)]
        named = {field.id: (field.name, field.arrow_type) for field in fields}
        found.append(RowCheck(check.name, to_sql(condition, schema), Not(condition), named))
    return tuple(found)


def check_rows(batches: Iterable[pa.RecordBatch], schema: Schema) -> Iterator[pa.RecordBatch]:
    """Passes on rows of a table's own types. Raises RowError for one that a check refuses."""
    checks = row_checks(schema)
    for batch in batches:
        _check(batch, checks, None)
        yield batch


def _check(batch: pa.RecordBatch, checks: Sequence[RowCheck], first_row: int | None) -> None:
    if refused := [found for check in checks if (found := check.find(batch))]:
        index, reason = min(refused)
        raise ConstraintError(reason, row=None if first_row is None else first_row + index)


class CastPlan(Struct, frozen=True):
    """How batches of one schema become batches of a table's schema, whose rows meet its checks."""

    target: pa.Schema
    columns: tuple[CastColumn, ...]
    checks: tuple[RowCheck, ...] = ()


def plan_conform(
    source: pa.Schema,
    target: Schema | pa.Schema,
    find: FindCast = lossless_cast,
    defaults: Mapping[str, Default] | None = None,
    find_casts: Mapping[str, FindCast] | None = None,
    checks: tuple[RowCheck, ...] | None = None,
) -> CastPlan:
    """Plans how batches of ``source`` are made to fit ``target`` (a table's schema, or one of stored types).

    For ``find`` and ``find_casts`` see ``match_fields``. ``defaults`` are the values of missing columns in JSON form,
    by name; if None, those of a table's schema; ``checks`` likewise. Raises SchemaError as ``match_fields`` does.
    """
    schema = target.arrow if isinstance(target, Schema) else target
    if defaults is None:
        defaults = target.write_defaults if isinstance(target, Schema) else {}
    with readable_names():
        matches = match_fields(list(source), list(schema), find, defaults, find_casts or {})
    columns = (
        CastColumn(field, index, cast, defaults.get(field.name))
        for field, (cast, index) in zip(schema, matches, strict=True)
    )
    if checks is None:
        checks = row_checks(target) if isinstance(target, Schema) else ()
    return CastPlan(schema, tuple(columns), checks)


def conform(
    batches: pa.RecordBatchReader,
    schema: Schema | pa.Schema,
    find: FindCast = lossless_cast,
    defaults: Mapping[str, Default] | None = None,
    find_casts: Mapping[str, FindCast] | None = None,
    checks: tuple[RowCheck, ...] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``batches`` as batches of exactly ``schema``, neither too long nor too large.

    For the other arguments see ``plan_conform``.

    Raises:
        SchemaError: the columns do not match; raised by the call, before any row is read.
        RowError: a value does not fit, or is not one of its type, or a check refuses the row; ``row`` counts from 1
            over the whole stream.
            Earlier batches have been yielded by then.
    """
    return _conform(batches, plan_conform(batches.schema, schema, find, defaults, find_casts, checks))


def _conform(batches: Iterable[pa.RecordBatch], plan: CastPlan) -> Iterator[pa.RecordBatch]:
    row = 1
    for batch in batches:
        check_values(batch, first_row=row)
        for part in _parts(batch):
            yield conform_batch(part, plan, first_row=row)
            row += part.num_rows


def conform_batch(batch: pa.RecordBatch, plan: CastPlan, *, first_row: int = 1) -> pa.RecordBatch:
    """Makes one batch fit.

    Raises RowError for the first value that does not fit, by row and then by column, or else for the first row that a
    check refuses.
    """
    arrays, misfits = [], []
    for column in plan.columns:
        if column.index is None:
            array = _default_values(column.default, column.field.type, batch.num_rows)
        else:
            array = batch.column(column.index)
        try:
            arrays.append(_fit(array, column))
        except Misfit:
            index, reason = first_misfit(array, partial(_fit, column=column))
            misfits.append((index, column.field.name, reason))
    if misfits:
        index, name, reason = min(misfits, key=lambda misfit: misfit[0])
        raise (ConstraintError if reason == _NULL else RowError)(reason, row=first_row + index, column=name)
    if not arrays:
        raise SchemaError("a table needs at least one column")
    fitted = pa.RecordBatch.from_arrays(arrays, schema=plan.target)
    _check(fitted, plan.checks, first_row)
    return fitted


def _default_values(default: Default, arrow_type: pa.DataType, rows: int) -> pa.Array:
    if not isinstance(default, DefaultFunction):
        return constant(default, arrow_type, rows)
    assert default.name == "uuid", f"{default} has no value yet: fit rows to the columns of their statement (Schema.at)"
    # Nothing depends on their values, so they need not come from the caller's runtime.
    numbers = np.frombuffer(shared_runtime().random.randbytes(16 * rows), np.uint8).reshape(rows, 16).copy()
    numbers[:, 6], numbers[:, 8] = numbers[:, 6] & 0x0F | 0x40, numbers[:, 8] & 0x3F | 0x80  # version 4, RFC 9562
    if not t.is_string(arrow_type):
        return pa.Array.from_buffers(arrow_type, rows, [None, pa.py_buffer(numbers.tobytes())])
    digits = np.frombuffer(numbers.tobytes().hex().encode(), np.uint8).reshape(rows, 32)
    texts = np.full((rows, 36), ord("-"), np.uint8)
    for hyphens, (start, end) in enumerate(pairwise((0, 8, 12, 16, 20, 32))):
        texts[:, start + hyphens : end + hyphens] = digits[:, start:end]
    ends = pa.py_buffer(np.arange(0, 36 * rows + 1, 36, dtype=np.int32))
    return pa.Array.from_buffers(arrow_type, rows, [None, ends, pa.py_buffer(texts.tobytes())])


def _fit(array: pa.Array, column: CastColumn) -> pa.Array:
    values = column.cast(array) if column.cast else array
    if not column.field.nullable and values.null_count:  # asked of the decoded values: dictionaries may hold NULLs
        raise Misfit(_NULL)
    return values


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts within the limits: decoding and 32-bit offsets then never overflow."""
    for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
        yield from _halves(_copy_views(batch.slice(start, MAX_BATCH_ROWS)))


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 1 or batch.nbytes <= MAX_BATCH_BYTES:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _halves(batch.slice(0, middle))
    yield from _halves(batch.slice(middle))


def _copy_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copies views out of the batch: a slice of views counts the bytes of all the values they share."""
    types = [_without_view(field.type) for field in batch.schema]
    if types == batch.schema.types:
        return batch
    arrays = [column.cast(kind) for column, kind in zip(batch.columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _without_view(kind: pa.DataType) -> pa.DataType:
    if t.is_string_view(kind):
        return pa.large_string()
    if t.is_binary_view(kind):
        return pa.large_binary()
    return change_children(kind, _without_view)

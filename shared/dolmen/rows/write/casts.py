"""Casts between Arrow types that a write may make so that values fit a table's types. By default they lose nothing:

==========================  ==================================================================================
from                        to
==========================  ==================================================================================
null                        any type
integer                     integer, decimal: when every value fits; float64 up to 2^53, float32 up to 2^24
float16, float32, float64   float of any width: when every value is exactly the same number there
decimal                     decimal, integer: when every value is exactly the same number there
bool                        bool
string, binary, fixed size  themselves, in any of Arrow's layouts; binary of another width when every length fits
date32, date64              date32; naive timestamp (midnight)
time, naive timestamp       their microsecond type, when no digit is lost
zoned timestamp             UTC microseconds, when no digit is lost
list, struct, map           by the same rules inside; struct fields by name, like columns
dictionary, run-end         as the values they encode
extension                   as its storage type
==========================  ==================================================================================

Everything else is refused by kind, whatever the values. With ``cast=True`` a value that does not fit may lose a part:

- numbers are rounded to the nearest number that the column holds, halves to even; one out of its range is refused
- times lose the digits beyond microseconds, timestamps in a date column their time of day
- a timestamp without a zone is taken as UTC, one with a zone becomes its time in UTC where the column has none
- text is parsed, as Arrow parses it, and other values become text; text that cannot be parsed is refused

Nothing wraps around, and nothing becomes NULL.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa
from pyarrow import types as t

from dolmen.base import pc
from dolmen.errors import SchemaError
from dolmen.format.schema import own_names, same_names, same_names_problem
from dolmen.format.types import is_bytes, is_text, null_mask, short_type

Cast: TypeAlias = Callable[[pa.Array], pa.Array]
"""Turns an array into one of the target type, or raises ``Misfit`` when a value does not fit."""

FindCast: TypeAlias = Callable[[pa.DataType, pa.DataType], Cast | None]
"""Finds the cast from one type to another (None: nothing to do). Raises ``SchemaError`` if there is none."""

_SHOWN_CHARACTERS = 60


class Misfit(Exception):  # noqa: N818 - callers catch it: they have the row's number and raise RowError
    """A value does not fit its column's type: the reason, without row and column."""


def short_value(value: object) -> str:
    """A value as error messages show it: short, on one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def find_refused(
    count: int, check: Callable[[int], object], refusal: type[Exception] | tuple[type[Exception], ...]
) -> int:
    """The index of the first of ``count`` values that is refused: ``check(n)`` tests the first n values."""

    def is_refused(values: int) -> bool:
        try:
            check(values)
        except refusal:
            return True
        return False

    return bisect_left(range(1, count), True, key=is_refused)


def first_misfit(array: pa.Array, cast: Cast) -> tuple[int, str]:
    """The index and the reason of the first value that ``cast`` refuses; at least one must be refused."""
    index = find_refused(len(array), lambda count: cast(array[:count]), Misfit)
    try:
        cast(array[index : index + 1])
    except Misfit as misfit:
        return index, str(misfit)
    raise AssertionError("a value was refused among others and accepted alone")


def lossless_cast(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """Finds the cast of values without children, by the table above (see ``FindCast``)."""
    if source == target:
        return None
    if t.is_integer(source) and t.is_decimal(target):
        # an integer type may hold more digits than the column: go through a type that holds all of them
        return checked_cast(pa.decimal256(76, target.scale), target)
    if t.is_decimal(source) and t.is_decimal(target) and target.scale > source.scale:
        # Arrow does not notice when 128 bits overflow on rescaling, nor 256: use types that cannot
        more = target.scale - source.scale
        wide = pa.decimal256(76 - more, source.scale) if t.is_decimal256(source) else pa.decimal256(76, target.scale)
        return checked_cast(wide, target)
    if t.is_floating(source) and t.is_floating(target):
        return checked_cast(target) if source.bit_width <= target.bit_width else partial(_narrow_float, target=target)
    if _is_same_kind(source, target):
        return checked_cast(target)
    hint = ""
    if t.is_timestamp(source) and t.is_timestamp(target):
        hint = (
            "; give the values a time zone first"
            if target.tz
            else "; the column holds times without a zone: convert the values to local time first"
        )
    elif is_text(source):
        hint = "; text is never parsed here: cast it first"
    raise SchemaError(f"values of type {short_type(source)} are never stored as {short_type(target)}{hint}")


def match_fields(
    source: list[pa.Field],
    target: list[pa.Field],
    find: FindCast = lossless_cast,
    defaults: Collection[str] = (),
    find_casts: Mapping[str, FindCast] = MappingProxyType({}),
) -> list[tuple[Cast | None, int | None]]:
    """For each target field, the cast and the index of the source field of that name; no index if there is none.

    The caller checks for NULLs in fields that are not nullable: it knows which rows count.

    Args:
        find: finds the cast of values without children; ``find_casts`` has others, by name of the field.
        defaults: names of fields that may be missing even where they are not nullable.

    Raises SchemaError: a field occurs twice, is unknown, is missing and not nullable, or is of another kind.
    """
    given = [field.name for field in source]
    own = own_names(given, target)
    if pair := same_names(given, own):
        raise SchemaError(same_names_problem(pair), column=own[given.index(pair[0])])
    indexes = {name: index for index, name in enumerate(own)}
    names = dict.fromkeys(field.name for field in target)
    if extra := [name for name in indexes if name not in names]:
        listed = ", ".join(names)
        reason = f"no column {extra[0]!r} in the table; there are: {listed}; add_column (dolmen alter --add) adds one"
        raise SchemaError(reason, column=extra[0])
    matches: list[tuple[Cast | None, int | None]] = []
    for field in target:
        found = indexes.get(field.name)
        if found is None:
            if not field.nullable and field.name not in defaults:
                raise SchemaError(f"column {field.name!r} is missing and not nullable", column=field.name)
            matches.append((None, None))
            continue
        try:
            matches.append((_cast(source[found].type, field.type, find_casts.get(field.name, find)), found))
        except SchemaError as error:
            raise SchemaError(f"column {field.name!r}: {error}", column=field.name) from None
    return matches


def _cast(source: pa.DataType, target: pa.DataType, find: FindCast) -> Cast | None:
    if isinstance(source, pa.BaseExtensionType):
        return _chain(lambda array: array.storage, _cast(source.storage_type, target, find))
    if t.is_dictionary(source):
        if not (t.is_string_view(source.value_type) or t.is_binary_view(source.value_type)):
            return _chain(lambda array: array.dictionary_decode(), _cast(source.value_type, target, find))
        plain = pa.large_string() if t.is_string_view(source.value_type) else pa.large_binary()  # views can't be taken
        return _chain(lambda array: array.dictionary.cast(plain).take(array.indices), _cast(plain, target, find))
    if t.is_run_end_encoded(source):
        return _chain(pc.run_end_decode, _cast(source.value_type, target, find))
    if t.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if t.is_struct(source) and t.is_struct(target):
        return _struct_cast(source, target, find)
    if t.is_map(source) and t.is_map(target):
        return _map_cast(source, target, find)
    if (t.is_list(source) or t.is_large_list(source) or t.is_fixed_size_list(source)) and t.is_list(target):
        return _list_cast(source, target, find)
    return find(source, target)


def _item_cast(source: pa.DataType, target: pa.Field, find: FindCast) -> Cast | None:
    cast = _cast(source, target.type, find)
    if target.nullable:
        return cast

    def reject_null(array: pa.Array) -> pa.Array:
        values = cast(array) if cast else array
        if values.null_count:
            raise Misfit("NULL inside a value where none is allowed")
        return values

    return reject_null


def _is_same_kind(source: pa.DataType, target: pa.DataType) -> bool:
    if t.is_integer(source):
        return bool(t.is_integer(target) or t.is_floating(target))
    if t.is_decimal(source):
        return bool(t.is_decimal(target) or t.is_integer(target))
    if t.is_timestamp(source) and t.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if t.is_date(source):
        return bool(t.is_date(target) or (t.is_timestamp(target) and target.tz is None))
    if t.is_time(source):
        return bool(t.is_time(target))
    if is_text(source):
        return bool(t.is_string(target))
    if is_bytes(source):
        return bool(t.is_binary(target) or t.is_fixed_size_binary(target))
    return False


def _chain(first: Cast, second: Cast | None) -> Cast:
    return first if second is None else lambda array: second(first(array))


def checked_cast(*targets: pa.DataType) -> Cast:
    """The cast through ``targets`` to the last of them."""

    def cast(array: pa.Array) -> pa.Array:
        try:
            result = array
            for target in targets:
                result = result.cast(target)
        except pa.ArrowInvalid:
            raise misfit_error(array, targets[-1]) from None
        return result

    return cast


def _narrow_float(array: pa.Array, target: pa.DataType) -> pa.Array:
    narrow = array.cast(target, safe=False)
    same = pc.or_(pc.equal(narrow.cast(array.type), array), pc.is_nan(array))
    if pc.all(same).as_py() is False:
        raise misfit_error(array, target)
    return narrow


def misfit_error(array: pa.Array, target: pa.DataType) -> Misfit:
    """The error of a cast that refuses a value of an array; it names the value if the array has only one."""
    if len(array) > 1:
        return Misfit("")  # ``first_misfit`` finds the value
    try:
        value = str(array[0])
    except (OverflowError, ValueError):  # a day or a time that Python cannot represent
        value = str(array.cast(pa.int32() if t.is_date32(array.type) else pa.int64())[0])
    hint = "; write whole microseconds, or text" if getattr(array.type, "unit", "") == "ns" else ""
    hint = "; write it as text" if t.is_decimal256(array.type) and t.is_decimal128(target) else hint
    return Misfit(f"{short_value(value)} cannot be stored as {target} without loss{hint}")


def _list_cast(source: pa.DataType, target: pa.DataType, find: FindCast) -> Cast | None:
    inner = _item_cast(source.value_type, target.value_field, find)
    if inner is None and source == target:
        return None

    def cast(array: pa.Array) -> pa.Array:
        values, offsets = array.flatten(), flattened_offsets(array)
        return pa.ListArray.from_arrays(offsets, inner(values) if inner else values, type=target, mask=null_mask(array))

    return cast


def _map_cast(source: pa.DataType, target: pa.DataType, find: FindCast) -> Cast | None:
    key = _cast(source.key_type, target.key_type, find)  # never NULL in a map
    item = _item_cast(source.item_type, target.item_field, find)
    if key is None and item is None and source == target:
        return None
    entries = pa.list_(pa.struct([source.key_field, source.item_field]))

    def cast(array: pa.Array) -> pa.Array:
        listed = array.cast(entries)
        keys, items = listed.flatten().flatten()
        return pa.MapArray.from_arrays(
            flattened_offsets(listed), key(keys) if key else keys, item(items) if item else items, type=target,
            mask=null_mask(array),
        )  # fmt: skip

    return cast


def _struct_cast(source: pa.DataType, target: pa.DataType, find: FindCast) -> Cast | None:
    casts = match_fields(list(source), list(target), find)
    if source == target and all(cast is None for cast, _ in casts) and all(field.nullable for field in target):
        return None

    def cast(array: pa.Array) -> pa.Array:
        children, output = array.flatten(), []
        for (inner, index), field in zip(casts, target, strict=True):
            child = pa.nulls(len(array), field.type) if index is None else children[index]
            output.append(inner(child) if inner else child)
            if not field.nullable and output[-1].null_count > array.null_count:
                raise Misfit(f"NULL in field {field.name!r}, which is not nullable")
        return pa.StructArray.from_arrays(output, fields=list(target), mask=null_mask(array))

    return cast


def flattened_offsets(array: pa.Array) -> pa.Array:
    """Offsets of ``array.flatten()``, which has no values outside the slice and none under NULLs."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])


def lossy_cast(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """Finds the cast of values without children that may lose a part of them (see ``FindCast``)."""
    try:
        exact = lossless_cast(source, target)
        if exact is None:
            return None
    except SchemaError as error:
        exact = None
        try:
            pa.array([], source).cast(target)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            raise SchemaError(f"values of type {short_type(source)} cannot be cast to {short_type(target)}") from error

    def cast(array: pa.Array) -> pa.Array:
        try:
            if exact is not None:
                return exact(array)
        except Misfit:
            pass
        try:
            return _round(array, target)
        except pa.ArrowInvalid:
            pass
        if len(array) > 1:
            raise Misfit
        try:
            value = short_value(array[0].as_py())
        except (OverflowError, ValueError):
            value = "this value"
        raise Misfit(f"{value} cannot be cast to {short_type(target)}")

    return cast


def _round(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if is_text(source):
        array = pc.utf8_trim_whitespace(array.cast(pa.large_string()))
    elif t.is_decimal(source) and (t.is_decimal(target) or t.is_integer(target)):
        digits = target.scale if t.is_decimal(target) else 0
        array = pc.round(array, ndigits=digits, round_mode="half_to_even") if digits < source.scale else array
    elif t.is_floating(source) and t.is_integer(target):
        array = pc.round(array.cast(pa.float64()), round_mode="half_to_even")
        signed = t.is_signed_integer(target)
        least = -(2.0 ** (target.bit_width - 1)) if signed else 0.0
        beyond = 2.0 ** (target.bit_width - signed)
        if pc.all(pc.and_(pc.greater_equal(array, least), pc.less(array, beyond))).as_py() is False:
            raise pa.ArrowInvalid("out of range")  # Arrow would wrap it around
        return array.cast(target)
    elif t.is_floating(source) and t.is_floating(target):
        narrow = array.cast(target, safe=False)
        if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(array))).as_py():
            raise pa.ArrowInvalid("out of range")
        return narrow
    elif t.is_integer(source) and t.is_floating(target):
        return array.cast(target, safe=False)
    if t.is_timestamp(source) and t.is_date(target):
        array = array.cast(pa.timestamp(source.unit))
    return array.cast(options=pc.CastOptions(target_type=target, allow_time_truncate=True))

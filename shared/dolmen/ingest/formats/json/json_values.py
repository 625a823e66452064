"""JSON text as Arrow values, a block at a time.

pyarrow's parser does the work. What it takes though it is not JSON (NaN, Infinity), or gives another type than dolmen
does (times), is asked of it as text or checked after it.

Numbers in JSON that a parser changes without a word: found in its text, a block at a time.

Keys of JSON objects that differ from the names of columns in case only.

pyarrow's parser matches keys exactly. So a file's own spelling is asked of it, and the columns are renamed after it. A
block that mixes spellings is read line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json
from pyarrow import types as t

from dolmen.errors import RowError, SchemaError
from dolmen.format.schema import own_names
from dolmen.ingest.formats.json.slow_rows import NotAnObject, Wanted, may_be_too_deep, parse_line
from dolmen.ingest.formats.text.cells import (
    Parse,
    has_decimals,
    has_quoted_tiny,
    may_be_tiny,
    native_decimal,
    precision_check,
    text_cast,
    without_tiny,
)
from dolmen.ingest.formats.text.infer import changes_digits
from dolmen.ingest.formats.text.text_export import join_lines
from dolmen.ingest.formats.text.times import NUMBER, TimeFormat
from dolmen.rows.write.casts import Cast, FindCast, Misfit
from dolmen.rows.write.conform import CastPlan, conform_batch, plan_conform

_NEGATIVE_ZERO = re.compile(rb"-0(?<=[:,\[\s]-0)[,\]}\s]")


_SURE_BYTES = 15
"""Numbers without an exponent that are not longer keep their digits in a double."""


_IN_NUMBER = np.zeros(256, bool)


_IN_NUMBER[list(b"0123456789+-.eE")] = True


_QUOTE, _LOWER_CASE = ord('"'), 0x20


def has_negative_zero(data: bytes) -> bool:
    """Whether a number may be ``-0``, which parsers take for the integer 0."""
    return _NEGATIVE_ZERO.search(data) is not None


def has_changing_floats(data: bytes) -> bool:
    """Whether a number that is no integer may have other digits as a double. What is in strings may count, too."""
    array = np.frombuffer(data, np.uint8)
    edges = np.flatnonzero(np.diff(_IN_NUMBER[array], prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    doubtful = ends - starts > _SURE_BYTES
    exponents = np.flatnonzero((array[1:] == ord("-")) & (array[:-1] | _LOWER_CASE == ord("e")))
    doubtful[np.searchsorted(starts, exponents, "right") - 1] = True
    doubtful &= array[np.maximum(starts, 1) - 1] != _QUOTE
    text = _slices(array, starts[doubtful], ends[doubtful])
    text = text.filter(pc.and_(pc.match_substring_regex(text, NUMBER), pc.match_substring_regex(text, "[.eE]")))
    return changes_digits(text, text.cast(pa.float64()))


def _slices(array: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Parts of ASCII text."""
    sizes = ends - starts
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    characters = array[np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])]
    return pa.StringArray.from_buffers(
        len(sizes), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(characters.tobytes())
    )


_NAMES_AT_ONCE = 200
"""More names than this make an expression too large for a fast search."""


class OtherSpellings:
    """Finds texts that are names of fields in values of a type, in another case."""

    def __init__(self, kind: pa.DataType) -> None:
        self._patterns = _patterns(tuple(sorted(set(_names(kind)))))

    def may_be_in(self, data: bytes | pa.Buffer) -> bool:
        """Whether valid UTF-8 has such a text in quotes, be it a key or a value."""
        size = len(data) if isinstance(data, bytes) else data.size
        offsets = pa.array([0, size], pa.int64()).buffers()[1]
        whole = pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data))
        return any(pc.match_substring_regex(whole, pattern)[0].as_py() for pattern in self._patterns)


def spell_as_found(asked: Iterable[pa.Field], found: pa.StructArray) -> list[pa.Field]:
    """The fields with names as the keys of objects have them.

    Args:
        found: the objects, with all of their keys.

    Raises:
        pa.ArrowInvalid: a name is there in several spellings.
    """
    asked, children = list(asked), dict(zip((field.name for field in found.type), found.flatten(), strict=True))
    spellings: dict[str, list[str]] = {field.name: [] for field in asked}
    for name, own in zip(children, own_names(children, asked), strict=True):
        if own in spellings and (name != own or children[name].null_count < len(found)):
            spellings[own].append(name)
    made = []
    for field in asked:
        if len(spellings[field.name]) > 1:
            raise pa.ArrowInvalid(f"keys in several spellings: {spellings[field.name]}")
        (name,) = spellings[field.name] or [field.name]
        kind = _spell_type(field.type, children[name]) if name in children else field.type
        made.append(field.with_name(name).with_type(kind))
    return made


def _spell_type(asked: pa.DataType, found: pa.Array) -> pa.DataType:
    if t.is_struct(asked) and t.is_struct(found.type):
        return pa.struct(spell_as_found(asked, found))
    if t.is_list(asked) and t.is_list(found.type):
        return pa.list_(asked.value_field.with_type(_spell_type(asked.value_type, found.flatten())))
    return asked


def _names(kind: pa.DataType) -> Iterator[str]:
    while t.is_list(kind):
        kind = kind.value_type
    for field in kind if t.is_struct(kind) else ():
        yield field.name
        yield from _names(field.type)


@lru_cache(maxsize=64)
def _patterns(names: tuple[str, ...]) -> list[str]:
    others = [other for name in names if (other := _other_case(name))]
    return [
        '"(?:' + "|".join(others[start : start + _NAMES_AT_ONCE]) + ')"'
        for start in range(0, len(others), _NAMES_AT_ONCE)
    ]


def _other_case(name: str) -> str:
    """An expression for a name with at least one letter in another case; "" if it has no letters."""
    made = ""
    for place in range(len(name) - 1, -1, -1):
        letter, other = name[place], name[place].swapcase()
        ways = [re.escape(letter) + made] if made else []
        if other != letter and len(other) == 1:
            ways.append(f"{re.escape(other)}(?i:{re.escape(name[place + 1 :])})")
        made = f"(?:{'|'.join(ways)})" if ways else ""
    return made


_PARSER_WORDS = re.compile(r"^JSON parse error: |[.]? in row \d+$")


def parse_objects(
    data: bytes | pa.Buffer, schema: pa.Schema | None, unexpected: Literal["error", "infer", "ignore"]
) -> pa.Table:
    """The JSON objects in ``data``, of the types in ``schema``; ``unexpected`` says what becomes of other fields.

    Raises:
        pa.ArrowInvalid: for whatever is wrong. Objects that share a line are NOT found to be wrong.
    """
    if schema is not None and has_decimals(pa.struct(list(schema))):
        text = data if isinstance(data, bytes) else data.to_pybytes()
        if may_be_tiny(text):
            if has_quoted_tiny(text):
                raise pa.ArrowInvalid("a decimal with so small an exponent is no value of any column")
            data = without_tiny(text)
    size = len(data) if isinstance(data, bytes) else data.size
    table = json.read_json(
        pa.BufferReader(data),
        json.ReadOptions(use_threads=False, block_size=size + 1),
        json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    table.validate()  # lists of nothing but NULLs come out with too few values
    return table


def parser_type(target: pa.DataType, times: TimeFormat | None = None) -> pa.DataType:
    """The type to ask of the parser for values of ``target``: text where dolmen reads it itself, or numbers.

    Raises:
        SchemaError: JSON cannot hold it.
    """
    if t.is_map(target):
        raise SchemaError("maps cannot be read from text: drop Parquet, or use a list of structs")
    if t.is_list(target):
        return pa.list_(parser_type(target.value_type, times))
    if t.is_struct(target):
        return pa.struct([(field.name, parser_type(field.type, times)) for field in target])
    if t.is_temporal(target) or t.is_binary(target) or t.is_fixed_size_binary(target):
        return (times and times.parser_type(target)) or pa.string()
    if t.is_decimal(target):
        return native_decimal(target) or pa.string()
    return target


def json_cast(times: TimeFormat | None, ignore_extra: bool) -> FindCast:
    """How casts are found of JSON values, parsed to their column's type or to numbers already, or text."""
    return partial(_json_cast, times=times, ignore_extra=ignore_extra)


def _json_cast(
    source: pa.DataType, target: pa.DataType, *, times: TimeFormat | None, ignore_extra: bool
) -> Cast | None:
    if source == target or (t.is_decimal(source) and t.is_decimal(target)):
        return _finite if t.is_floating(target) else precision_check(target)
    if times is not None and (numbers := times.number_cast(source, target)) is not None:
        return numbers
    if t.is_nested(target):
        return text_cast(target, empty_is_null=False, parse=nested_parse(target, times, ignore_extra))
    return text_cast(target, empty_is_null=False, parse=times.parser(target) if times is not None else None)


def wanted_of(schema: pa.Schema, times: TimeFormat | None, ignore_extra: bool) -> Wanted:
    """The parts of JSON that rows of ``schema`` want, when it is parsed row by row."""
    row = pa.struct(list(schema))
    return Wanted(row, ignore_extra, times is not None and times.digits is not None, has_decimals(row))


def nested_parse(target: pa.DataType, times: TimeFormat | None = None, ignore_extra: bool = False) -> Parse:
    """How JSON text becomes lists or structs.

    Raises:
        SchemaError: JSON cannot hold them.
    """
    schema = pa.schema([("value", target)])
    find = json_cast(times, ignore_extra)
    wanted = replace(wanted_of(schema, times, ignore_extra), floats=has_floats(target))
    at_once = pa.schema([("value", parser_type(target, times))])
    in_words = pa.schema([("value", _text_parser_type(target))])
    others = OtherSpellings(target) if has_structs(target) else None
    parse = partial(
        _parse_as,
        asked=at_once,
        plan=plan_conform(at_once, schema, find),
        ignore_extra=ignore_extra,
        others=others if ignore_extra else None,
    )
    if in_words == at_once and not (wanted.decimals or wanted.floats or others):
        return parse
    exactly = partial(_parse_as, asked=in_words, plan=plan_conform(in_words, schema, find), ignore_extra=ignore_extra)
    return partial(_parse_nested, parse=parse, exactly=exactly, wanted=wanted)


def _text_parser_type(target: pa.DataType) -> pa.DataType:
    """The type to ask of the parser where times, decimals and floats (``"NaN"`` is one) are strings all."""
    if t.is_list(target):
        return pa.list_(_text_parser_type(target.value_type))
    if t.is_struct(target):
        return pa.struct([(field.name, _text_parser_type(field.type)) for field in target])
    return pa.string() if t.is_decimal(target) or t.is_floating(target) else parser_type(target)


def has_floats(kind: pa.DataType) -> bool:
    """Whether values of a type are floats, or hold some."""
    if t.is_nested(kind):
        return any(has_floats(kind.field(place).type) for place in range(kind.num_fields))
    return bool(t.is_floating(kind))


def has_structs(kind: pa.DataType) -> bool:
    """Whether values of a type are structs, or lists of some."""
    return bool(t.is_struct(kind) or (t.is_list(kind) and has_structs(kind.value_type)))


def _parse_nested(text: pa.Array, parse: Parse, exactly: Parse, wanted: Wanted) -> pa.Array:
    """Parses all at once; where the parser accepts too little, again with doubtful numbers as strings, keys spelled."""
    try:
        return parse(text)
    except Misfit:
        return exactly(pa.array([_in_words(value, wanted) for value in text.to_pylist()], pa.string()))


def _in_words(text: str | None, wanted: Wanted) -> str | None:
    if text is None:
        return None
    try:
        row = parse_line(f'{{"value":{text}}}'.encode(), wanted)
    except NotAnObject as malformed:
        raise Misfit(str(malformed)) from None
    return msgspec.json.encode(row.get("value")).decode()


def _parse_as(
    text: pa.Array, asked: pa.Schema, plan: CastPlan, ignore_extra: bool, others: OtherSpellings | None = None
) -> pa.Array:
    if not len(text):
        return pa.nulls(0, plan.target.types[0])
    lines = join_lines(pc.binary_join_element_wise('{"value":', pc.fill_null(text, "null"), "}\n", ""))
    if ignore_extra and may_be_too_deep(lines.to_pybytes()):  # elsewhere the parser stops at the first unknown key
        raise Misfit("nested too deep")
    if others is not None and others.may_be_in(lines):  # so would keys in another case be
        raise Misfit("keys in another case")
    try:
        table = parse_objects(lines, asked, "ignore" if ignore_extra else "error")
    except pa.ArrowInvalid as error:
        raise Misfit(_PARSER_WORDS.sub("", str(error))) from None
    if table.num_rows != len(text):
        raise Misfit("not one JSON value")
    (batch,) = table.combine_chunks().to_batches()
    try:
        return conform_batch(batch, plan).column(0)
    except RowError as error:
        raise Misfit(error.reason) from None


def _finite(values: pa.Array) -> pa.Array:
    if pc.all(pc.is_finite(values)).as_py() is False:
        raise Misfit("NaN and Infinity are not JSON")
    return values

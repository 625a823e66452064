"""Parses JSON values: all of a block at once by pyarrow's parser, or one line after the other.

pyarrow's parser accepts more than JSON (NaN, Infinity) and has its own types of times: such values are requested as
text, or checked afterwards. It matches keys exactly, so it gets the columns as the file spells them.

Lines are parsed one by one, slowly and strictly, to name the wrong one and to read values whose kind differs by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json as arrow_json
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.errors import RowError, RowProblem, SchemaError
from dolmen.format.schema import own_names, same_names, same_names_problem
from dolmen.format.types import contains_kind
from dolmen.ingest.formats.cells import (
    Parse,
    TimeFormat,
    join_strings,
    may_be_tiny,
    native_decimal,
    precision_check,
    text_cast,
    write_out_tiny,
)
from dolmen.ingest.formats.source_file import is_closed
from dolmen.ingest.formats.text_blocks import Block
from dolmen.rows.write.casts import Cast, Misfit
from dolmen.rows.write.conform import CastPlan, conform_batch, plan_conform

JsonObject: TypeAlias = dict[str, Any]
"""Values as ``json`` returns them, but numbers as ``msgspec.Raw``, which keeps their text."""

MAX_DEPTH = 200
"""How deeply values may nest. pyarrow's parser recurses without a limit and takes the process down with it."""

_LF, _CR, _OPEN, _CLOSE = b"\n\r{}"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_DEPTH_STEPS = np.zeros(256, np.int8)
_DEPTH_STEPS[list(b"[{")], _DEPTH_STEPS[list(b"]}")] = 1, -1
_NO_OBJECT = "not a JSON object"
_IN_LINES = ": each line holds one, with nothing around them"
_OF_ARRAY = (
    "; --json-rows values (ingest_json_rows: values) reads objects in an array, and jq -c '.[]' makes one line of each"
)
_ON_SEVERAL_LINES = (
    "; --json-rows values (ingest_json_rows: values) reads objects on several lines, or several on one, and jq -c . "
    "makes one line of each"
)
_PART = re.compile(rb"\s*\{[^}]*")  # a line on which an object begins that may end on another one
_NAMES_AT_ONCE = 200  # more names than this make an expression too large for a fast search
_PARSER_WORDS = re.compile(r"^JSON parse error: |[.]? in row \d+$")
_QUOTED_TINY = re.compile(rb'"\s*[+-]?[0-9.]+[eE]-[0-9]{3,}\s*"')
"""A number in text of so small an exponent that pyarrow's parser of decimals may crash on it."""


class NotAnObject(Exception):  # noqa: N818 - turned into a RowError by the caller, which knows the line
    """A line is not one JSON object; the message says why."""

    def __init__(self, reason: str, problem: RowProblem | None = None) -> None:
        super().__init__(reason)
        self.problem = problem


class JsonSelection(Struct, frozen=True):
    """Selects the parts of a row's JSON that a table takes, when it is parsed line by line."""

    row: pa.StructType  # the table's columns, as a struct
    ignore_extra: bool  # leave out keys that have no field, without a look at their values
    # numeric_times, decimals: keep these as text, because parsers accept only some of their values
    numeric_times: bool
    decimals: bool
    floats: bool = False  # keep floats as text, because the strings ``"NaN"`` and ``"Infinity"`` may be among them

    @classmethod
    def of(cls, schema: pa.Schema, times: TimeFormat | None, ignore_extra: bool) -> JsonSelection:
        row = pa.struct(list(schema))
        return cls(row, ignore_extra, times is not None and times.digits is not None, contains_kind(row, t.is_decimal))

    def select(self, value: Any, kind: pa.DataType | None, closed: bool = False) -> Any:
        """Selects from a value for ``kind``, or None if it has no such type; ``closed`` keeps all keys."""
        if isinstance(value, dict):
            return self._select_object(value, kind, closed)
        if isinstance(value, list):
            item = kind.value_type if kind is not None and t.is_list(kind) else None
            return [self.select(inner, item, closed) for inner in value]
        if isinstance(value, msgspec.Raw):
            text = bytes(value).decode()
            if text[-1] in "Ny":
                _refuse_constant(text)
            if kind is not None and (
                t.is_decimal(kind)
                or (self.floats and t.is_floating(kind))
                or (self.numeric_times and t.is_temporal(kind))
            ):
                return text
        return value

    def _select_object(self, value: JsonObject, kind: pa.DataType | None, closed: bool) -> JsonObject:
        fields = {field.name: field for field in kind} if kind is not None and t.is_struct(kind) else None
        for name in value.repeated if isinstance(value, _ObjectWithRepeatedKeys) else ():
            if fields is None or name in fields:
                raise NotAnObject(f"key {name!r} is there twice")
        if fields is None:
            return {name: self.select(inner, None) for name, inner in value.items()}
        names = own_names(value, fields)
        if closed and (extra := [name for name in names if name not in fields]):
            raise NotAnObject(f"no column {extra[0]!r} in the table; there are: {', '.join(fields)}")
        column_keys = [key for key, own in zip(value, names, strict=True) if own in fields]
        if len({*names}) < len(names) and (alike := same_names(column_keys)):
            raise NotAnObject(same_names_problem(alike, "key"))
        return {
            name: self.select(inner, fields[name].type, closed or is_closed(fields[name]))
            if name in fields
            else self.select(inner, None)
            for name, inner in zip(names, value.values(), strict=True)
            if name in fields or not self.ignore_extra
        }


def parse_line(line: bytes, selection: JsonSelection | None = None) -> JsonObject:
    """Parses one line as a JSON object (RFC 8259), keys in order; columns are spelled as in the table.

    Raises NotAnObject: malformed, not UTF-8, NaN or Infinity, a repeated key (for columns in any case), nested too
    deeply, or not an object.
    """
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_too_deep(line):
        raise NotAnObject(f"nested more than {MAX_DEPTH} deep")
    lenient = selection is not None and selection.ignore_extra
    try:
        value = json.loads(
            line.decode(),
            object_pairs_hook=_any_object if lenient else _object,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_number if lenient else _refuse_constant,
        )
        msgspec.json.encode(value)
    except UnicodeDecodeError as error:
        raise NotAnObject(f"not UTF-8: {error.reason}", "not UTF-8") from None
    except UnicodeEncodeError:
        raise NotAnObject("half of a surrogate pair in a string") from None
    except json.JSONDecodeError as error:
        raise NotAnObject(f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
    if not isinstance(value, dict):
        raise NotAnObject(_NO_OBJECT)
    selected: JsonObject = value if selection is None else selection.select(value, selection.row)
    return selected


def _hint(line: bytes, reason: str) -> str:
    """The end of the reason why a line is not a JSON object: options that may read it."""
    where = _IN_LINES if reason == _NO_OBJECT else ""
    if line.lstrip()[:1] == b"[":
        return where + _OF_ARRAY
    is_part = reason.startswith("not JSON: ") and (_PART.fullmatch(line) or "Extra data" in reason)
    return where + (_ON_SEVERAL_LINES if is_part else "")


def _number(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


class _ObjectWithRepeatedKeys(dict[str, Any]):
    """An object with repeated keys: an error, unless a selection leaves them out."""

    repeated: list[str]


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = _any_object(pairs)
    if isinstance(members, _ObjectWithRepeatedKeys):
        raise NotAnObject(f"key {members.repeated[0]!r} is there twice")
    return members


def _any_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    doubled, names = _ObjectWithRepeatedKeys(members), [name for name, _ in pairs]
    doubled.repeated = [name for name in members if names.count(name) > 1]
    return doubled


def _refuse_constant(word: str) -> NoReturn:
    raise NotAnObject(f"{word} is not JSON")


class Lines:
    """The lines of a block that are not blank, parsed one by one; ``row`` is the 1-based number of the first one."""

    def __init__(self, block: Block, row: int, name: str, selection: JsonSelection | None = None) -> None:
        numbers = count(block.line) if block.lines is None else block.lines.tolist()
        lines = zip(numbers, block.data.split(b"\n"), strict=False)
        self._numbered = [(number, line) for number, line in lines if line.strip()]
        self._has_rows_in_lines = block.lines is None
        self._row, self._name, self._selection = row, name, selection

    def __len__(self) -> int:
        return len(self._numbered)

    def block(self, start: int, stop: int) -> Block:
        """Some of them (0-based), without blank lines."""
        some = self._numbered[start:stop]
        return Block(b"\n".join(line for _, line in some), some[0][0])

    def text(self, index: int) -> bytes:
        """One of them (0-based), without its end."""
        return self._numbered[index][1].rstrip(b"\r")

    def error(self, index: int, reason: str, column: str | None = None, problem: RowProblem | None = None) -> RowError:
        """The error about one of them (0-based)."""
        line = self._numbered[index][0]
        return RowError(reason, file=self._name, line=line, row=self._row + index, column=column, problem=problem)

    def parse_good(self) -> list[JsonObject]:
        """The rows that are well-formed."""
        rows: list[JsonObject] = []
        for _, line in self._numbered:
            with suppress(NotAnObject):
                rows.append(parse_line(line, self._selection))
        return rows

    def parse(
        self, check: Callable[[JsonObject], tuple[str, str] | None] = lambda _: None
    ) -> tuple[list[JsonObject], RowError | None]:
        """The rows up to the first that is malformed, or in which ``check`` finds a problem (column and reason)."""
        rows: list[JsonObject] = []
        for index, (_, line) in enumerate(self._numbered):
            try:
                parsed = parse_line(line, self._selection)
            except NotAnObject as malformed:
                hint = _hint(line, str(malformed)) if self._has_rows_in_lines else ""
                return rows, self.error(index, f"{malformed}{hint}", problem=malformed.problem)
            if problem := check(parsed):
                return rows, self.error(index, problem[1], problem[0])
            rows.append(parsed)
        return rows, None


def count_objects(lines: bytes) -> int | None:
    """The number of lines that are not blank, if all of them begin with ``{`` and end with ``}``; else None.

    If so, no value spans two lines; if the parser finds as many objects, each line holds exactly one.
    """
    array = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(array == _LF)
    if not len(ends) or ends[-1] != len(lines) - 1:
        ends = np.append(ends, len(lines))
    starts = np.concatenate(([0], ends[:-1] + 1))
    if (starts < ends).all():
        lasts = ends - 1 - (array[ends - 1] == _CR)
        if (array[starts] == _OPEN).all() and (array[lasts] == _CLOSE).all():
            return len(starts)
    objects = [stripped for line in lines.split(b"\n") if (stripped := line.strip())]
    return len(objects) if all(line[0] == _OPEN and line[-1] == _CLOSE for line in objects) else None


def may_be_too_deep(lines: bytes) -> bool:
    """Whether brackets nest more than ``MAX_DEPTH`` deep in one of the lines.

    A line with fewer opening brackets cannot; in other lines, brackets are counted without those in strings.
    """
    array = np.frombuffer(lines, np.uint8)
    opening = np.flatnonzero(_DEPTH_STEPS[array] > 0)
    ends = np.append(np.flatnonzero(array == _LF), len(lines))
    counts = np.diff(np.searchsorted(opening, ends), prepend=0)
    starts = np.concatenate(([0], ends[:-1]))
    return any(_is_too_deep(lines[starts[index] : ends[index]]) for index in np.flatnonzero(counts > MAX_DEPTH))


def _is_too_deep(line: bytes) -> bool:
    steps = _DEPTH_STEPS[np.frombuffer(_STRING.sub(b"", line), np.uint8)]
    return bool(len(steps) and np.cumsum(steps, dtype=np.int64).max() > MAX_DEPTH)


def check_utf8(data: bytes) -> None:
    """Raises UnicodeDecodeError: pyarrow's JSON parser does not look."""
    if not data.isascii():
        data.decode()


def parse_objects(
    data: bytes | pa.Buffer, schema: pa.Schema | None, unexpected: Literal["error", "infer", "ignore"]
) -> pa.Table:
    """Parses the JSON objects in ``data`` to the types in ``schema``; ``unexpected`` says how to treat other fields.

    Raises pa.ArrowInvalid for any error, but does NOT notice objects that share a line.
    """
    if schema is not None and contains_kind(pa.struct(list(schema)), t.is_decimal):
        text = data if isinstance(data, bytes) else data.to_pybytes()
        if may_be_tiny(text):
            if _QUOTED_TINY.search(text):
                raise pa.ArrowInvalid("the exponent of a decimal is too small for any column")
            data = write_out_tiny(text)
    size = len(data) if isinstance(data, bytes) else data.size
    table = arrow_json.read_json(
        pa.BufferReader(data),
        arrow_json.ReadOptions(use_threads=False, block_size=size + 1),
        arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    table.validate()  # lists of nothing but NULLs come out with too few values
    return table


def parser_type(target: pa.DataType, times: TimeFormat | None = None) -> pa.DataType:
    """The type to ask of the parser: text or numbers if dolmen converts them itself. Raises SchemaError for maps."""
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


def _text_parser_type(target: pa.DataType) -> pa.DataType:
    """The type to ask of the parser where times, decimals and floats (``"NaN"`` is one) are all strings."""
    if t.is_list(target):
        return pa.list_(_text_parser_type(target.value_type))
    if t.is_struct(target):
        return pa.struct([(field.name, _text_parser_type(field.type)) for field in target])
    return pa.string() if t.is_decimal(target) or t.is_floating(target) else parser_type(target)


def json_cast(source: pa.DataType, target: pa.DataType, *, times: TimeFormat | None, ignore_extra: bool) -> Cast | None:
    """The cast of JSON values, parsed to ``target`` or to numbers already, or text (see ``casts.FindCast``)."""
    if source == target or (t.is_decimal(source) and t.is_decimal(target)):
        return _check_finite if t.is_floating(target) else precision_check(target)
    return unparsed_cast(source, target, times, ignore_extra, empty_is_null=False)


def unparsed_cast(
    source: pa.DataType, target: pa.DataType, times: TimeFormat | None, ignore_extra: bool, *, empty_is_null: bool
) -> Cast:
    """The cast from numbers that are times, and from text: JSON for lists and structs."""
    if times is not None and (numbers := times.number_cast(source, target)) is not None:
        return numbers
    if t.is_nested(target):
        parse: Parse | None = nested_parse(target, times, ignore_extra)
    else:
        parse = times.parser(target) if times is not None else None
    return text_cast(target, empty_is_null=empty_is_null, parse=parse)


def _check_finite(values: pa.Array) -> pa.Array:
    if pc.all(pc.is_finite(values)).as_py() is False:
        raise Misfit("NaN and Infinity are not JSON")
    return values


def nested_parse(target: pa.DataType, times: TimeFormat | None, ignore_extra: bool) -> Parse:
    """A function that turns JSON text into lists or structs. Raises SchemaError if JSON cannot hold them."""
    schema = pa.schema([("value", target)])
    find = partial(json_cast, times=times, ignore_extra=ignore_extra)
    at_once = pa.schema([("value", parser_type(target, times))])
    as_text = pa.schema([("value", _text_parser_type(target))])
    others = OtherSpellings(target) if contains_kind(target, t.is_struct) else None
    selection = replace(JsonSelection.of(schema, times, ignore_extra), floats=contains_kind(target, t.is_floating))
    parse = partial(
        _parse_as,
        parser_schema=at_once,
        plan=plan_conform(at_once, schema, find),
        ignore_extra=ignore_extra,
        others=others if ignore_extra else None,
    )
    if as_text == at_once and not (selection.decimals or selection.floats or others):
        return parse
    plan = plan_conform(as_text, schema, find)

    def parse_again(text: pa.Array) -> pa.Array:
        try:
            return parse(text)
        except Misfit:
            selected = pa.array([_select_from_text(value, selection) for value in text.to_pylist()], pa.string())
            return _parse_as(selected, as_text, plan, ignore_extra)

    return parse_again


def _select_from_text(text: str | None, selection: JsonSelection) -> str | None:
    if text is None:
        return None
    try:
        row = parse_line(f'{{"value":{text}}}'.encode(), selection)
    except NotAnObject as malformed:
        raise Misfit(str(malformed)) from None
    return msgspec.json.encode(row.get("value")).decode()


def _parse_as(
    text: pa.Array, parser_schema: pa.Schema, plan: CastPlan, ignore_extra: bool, others: OtherSpellings | None = None
) -> pa.Array:
    if not len(text):
        return pa.nulls(0, plan.target.types[0])
    lines = join_strings(pc.binary_join_element_wise('{"value":', pc.fill_null(text, "null"), "}\n", ""))
    if ignore_extra and may_be_too_deep(lines.to_pybytes()):  # elsewhere the parser stops at the first unknown key
        raise Misfit("nested too deep")
    if others is not None and others.may_be_in(lines):  # the parser would ignore keys in another case
        raise Misfit("keys in another case")
    try:
        table = parse_objects(lines, parser_schema, "ignore" if ignore_extra else "error")
    except pa.ArrowInvalid as error:
        raise Misfit(_PARSER_WORDS.sub("", str(error))) from None
    if table.num_rows != len(text):
        raise Misfit("not one JSON value")
    (batch,) = table.combine_chunks().to_batches()
    try:
        return conform_batch(batch, plan).column(0)
    except RowError as error:
        raise Misfit(error.reason) from None


class OtherSpellings:
    """Finds the field names of a type in another case."""

    def __init__(self, kind: pa.DataType) -> None:
        self._patterns = _patterns(tuple(sorted(set(_names(kind)))))

    def may_be_in(self, data: bytes | pa.Buffer) -> bool:
        """Whether valid UTF-8 has such a name in quotes, as a key or as a value."""
        size = len(data) if isinstance(data, bytes) else data.size
        offsets = pa.array([0, size], pa.int64()).buffers()[1]
        whole = pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data))
        return any(pc.match_substring_regex(whole, pattern)[0].as_py() for pattern in self._patterns)


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
    expression = ""
    for index in range(len(name) - 1, -1, -1):
        letter, other = name[index], name[index].swapcase()
        ways = [re.escape(letter) + expression] if expression else []
        if other != letter and len(other) == 1:
            ways.append(f"{re.escape(other)}(?i:{re.escape(name[index + 1 :])})")
        expression = f"(?:{'|'.join(ways)})" if ways else ""
    return expression


def spell_like_keys(fields: Iterable[pa.Field], objects: pa.StructArray) -> list[pa.Field]:
    """Spells the names of the fields like the keys of ``objects``.

    Raises pa.ArrowInvalid if a name has several spellings.
    """
    fields, children = list(fields), dict(zip((field.name for field in objects.type), objects.flatten(), strict=True))
    spellings: dict[str, list[str]] = {field.name: [] for field in fields}
    for name, own in zip(children, own_names(children, fields), strict=True):
        if own in spellings and (name != own or children[name].null_count < len(objects)):
            spellings[own].append(name)
    spelled = []
    for field in fields:
        if len(spellings[field.name]) > 1:
            raise pa.ArrowInvalid(f"keys in several spellings: {spellings[field.name]}")
        (name,) = spellings[field.name] or [field.name]
        kind = _spell_type(field.type, children[name]) if name in children else field.type
        spelled.append(field.with_name(name).with_type(kind))
    return spelled


def _spell_type(target: pa.DataType, values: pa.Array) -> pa.DataType:
    if t.is_struct(target) and t.is_struct(values.type):
        return pa.struct(spell_like_keys(target, values))
    if t.is_list(target) and t.is_list(values.type):
        return pa.list_(target.value_field.with_type(_spell_type(target.value_type, values.flatten())))
    return target

"""JSON lines one by one: slow and strict, to say which line is wrong, and to read what differs in kind by row."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import types as t

from dolmen.format.schema import own_names, same_names
from dolmen.ingest.formats.reader_options import is_closed

JsonObject: TypeAlias = dict[str, Any]
"""Values as ``json`` gives them, but numbers as ``msgspec.Raw``: their very text."""

MAX_DEPTH = 200
"""How deeply values may nest. pyarrow's parser recurses without a limit and takes the process down with it."""

_LF, _CR, _OPEN, _CLOSE = b"\n\r{}"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_DEPTH_STEPS = np.zeros(256, np.int8)
_DEPTH_STEPS[list(b"[{")], _DEPTH_STEPS[list(b"]}")] = 1, -1


_NO_OBJECT = "not a JSON object: each line holds one, and nothing stands around them all"
_OF_ARRAY = "; of one array of objects, jq -c '.[]' makes one line each"


class NotAnObject(Exception):  # noqa: N818 - turned into a RowError by who knows the line
    """A line is not one JSON object; the message says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parts of a row's JSON that are wanted.

    Args:
        row: the table's columns, as a struct.
        ignore_extra: leave out what it has no field for, and do not look at it.
        numeric_times: times may be numbers: they become their text, like all other times.
        decimals: so do decimals, of which parsers take less than there are.
        floats: so do floats, so that the strings ``"NaN"`` and ``"Infinity"`` may stand among them.
    """

    row: pa.StructType
    ignore_extra: bool
    numeric_times: bool
    decimals: bool
    floats: bool = False


def parse_line(line: bytes, wanted: Wanted | None = None) -> JsonObject:
    """One line as a JSON object (RFC 8259), keys in their order; those that are wanted in the table's spelling.

    Raises:
        NotAnObject: malformed, not UTF-8, NaN or Infinity, a key twice (if only in another case, a wanted one), nested
            too deeply, or not an object.
    """
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _too_deep(line):
        raise NotAnObject(f"nested more than {MAX_DEPTH} deep")
    lenient = wanted is not None and wanted.ignore_extra
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
        raise NotAnObject(f"not UTF-8: {error.reason}") from None
    except UnicodeEncodeError:
        raise NotAnObject("half of a surrogate pair in a string") from None
    except json.JSONDecodeError as error:
        hint = _OF_ARRAY if line.lstrip()[:1] == b"[" else ""
        raise NotAnObject(f"not JSON: {error.msg} at character {error.pos + 1}{hint}") from None
    if not isinstance(value, dict):
        raise NotAnObject(_NO_OBJECT + (_OF_ARRAY if isinstance(value, list) else ""))
    if wanted is not None:
        kept: JsonObject = _select_wanted(value, wanted.row, wanted)
        return kept
    return value


def _select_wanted(value: Any, kind: pa.DataType | None, wanted: Wanted, closed: bool = False) -> Any:
    """Selects the wanted parts of a value of this type (None: of another kind of value).

    Args:
        closed: nothing that is extra in it is left out (see ``options.CLOSED``).
    """
    if isinstance(value, dict):
        fields = {field.name: field for field in kind} if kind is not None and t.is_struct(kind) else None
        for name in value.twice if isinstance(value, _Doubled) else ():
            if fields is None or name in fields:
                raise NotAnObject(f"key {name!r} is there twice")
        if fields is None:
            return {name: _select_wanted(inner, None, wanted) for name, inner in value.items()}
        names = own_names(value, fields)
        if extra := [name for name in names if name not in fields] if closed else []:
            raise NotAnObject(f"no column {extra[0]!r} in the table; there are: {', '.join(fields)}")
        found = [key for key, own in zip(value, names, strict=True) if own in fields]
        if len({*names}) < len(names) and (alike := same_names(found)):
            raise NotAnObject(f"keys {alike[0]!r} and {alike[1]!r} differ in case only: rename one, or leave it out")
        return {
            name: _select_wanted(inner, fields[name].type, wanted, closed or is_closed(fields[name]))
            if name in fields
            else _select_wanted(inner, None, wanted)
            for name, inner in zip(names, value.values(), strict=True)
            if name in fields or not wanted.ignore_extra
        }
    if isinstance(value, list):
        item = kind.value_type if kind is not None and t.is_list(kind) else None
        return [_select_wanted(inner, item, wanted, closed) for inner in value]
    if isinstance(value, msgspec.Raw):
        text = bytes(value).decode()
        if text[-1] in "Ny":
            _refuse_constant(text)
        if kind is not None and (
            t.is_decimal(kind)
            or (wanted.floats and t.is_floating(kind))
            or (wanted.numeric_times and t.is_temporal(kind))
        ):
            return text
    return value


def count_objects(lines: bytes) -> int | None:
    """The number of lines that are not blank, if all of them begin with ``{`` and end with ``}``; else None.

    If so, no value can reach from one line into the next, and if as many objects are parsed, each line holds one.
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

    A line of fewer opening brackets cannot; the others are counted after their strings are taken out.
    """
    array = np.frombuffer(lines, np.uint8)
    opening = np.flatnonzero(_DEPTH_STEPS[array] > 0)
    ends = np.append(np.flatnonzero(array == _LF), len(lines))
    counts = np.diff(np.searchsorted(opening, ends), prepend=0)
    starts = np.concatenate(([0], ends[:-1]))
    return any(_too_deep(lines[starts[place] : ends[place]]) for place in np.flatnonzero(counts > MAX_DEPTH))


def _too_deep(line: bytes) -> bool:
    steps = _DEPTH_STEPS[np.frombuffer(_STRING.sub(b"", line), np.uint8)]
    return bool(len(steps) and np.cumsum(steps, dtype=np.int64).max() > MAX_DEPTH)


def as_text(value: Any) -> str | None:
    """A value as the text that ``text`` reads: a string itself, anything else its JSON."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def text_column(rows: list[JsonObject], name: str) -> pa.Array:
    """The texts of one field of all rows; NULL where it is null or missing."""
    return pa.array([as_text(row.get(name)) for row in rows], pa.string())


def _number(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    made = _any_object(pairs)
    if isinstance(made, _Doubled):
        raise NotAnObject(f"key {made.twice[0]!r} is there twice")
    return made


class _Doubled(dict[str, Any]):
    """An object with keys that are there twice: a fault, unless these are not wanted."""

    twice: list[str]


def _any_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    doubled, names = _Doubled(made), [name for name, _ in pairs]
    doubled.twice = [name for name in made if names.count(name) > 1]
    return doubled


def _refuse_constant(word: str) -> NoReturn:
    raise NotAnObject(f"{word} is not JSON")

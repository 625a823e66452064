"""JSON lines one by one: slow and strict, to say which line is wrong, and to read what differs in kind by row."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

JsonObject: TypeAlias = dict[str, Any]
"""Values as ``json`` gives them, but numbers as ``msgspec.Raw``: their very text."""

MAX_DEPTH = 200
"""How deeply values may nest. pyarrow's parser recurses without a limit and takes the process down with it."""

_LF, _CR, _OPEN, _CLOSE = b"\n\r{}"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_DEPTH_STEPS = np.zeros(256, np.int8)
_DEPTH_STEPS[list(b"[{")], _DEPTH_STEPS[list(b"]}")] = 1, -1


class NotAnObject(Exception):  # noqa: N818 - turned into a RowError by who knows the line
    """A line is not one JSON object; the message says why."""


def parse_line(line: bytes) -> JsonObject:
    """One line as a JSON object (RFC 8259), keys in their order.

    Raises:
        NotAnObject: malformed, not UTF-8, NaN or Infinity, a key twice, nested too deeply, or not an object.
    """
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _too_deep(line):
        raise NotAnObject(f"nested more than {MAX_DEPTH} deep")
    try:
        value = json.loads(
            line.decode(),
            object_pairs_hook=_object,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse_constant,
        )
        msgspec.json.encode(value)
    except UnicodeDecodeError as error:
        raise NotAnObject(f"not UTF-8: {error.reason}") from None
    except UnicodeEncodeError:
        raise NotAnObject("half of a surrogate pair in a string") from None
    except json.JSONDecodeError as error:
        raise NotAnObject(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    if not isinstance(value, dict):
        raise NotAnObject("not a JSON object: each line holds one, and nothing stands around them all")
    return value


def count_objects(lines: bytes) -> int | None:
    """How many lines are not blank, if each of them begins with ``{`` and ends with ``}``; None if one does not.

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
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotAnObject(f"key {twice!r} is there twice")
    return made


def _refuse_constant(word: str) -> NoReturn:
    raise NotAnObject(f"{word} is not JSON")

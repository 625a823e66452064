"""Keys of JSON objects that differ from the names of columns in case only.

pyarrow's parser matches keys exactly. So a file's own spelling is asked of it, and the columns are renamed after it. A
block that mixes spellings is read line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.format.schema import own_names

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

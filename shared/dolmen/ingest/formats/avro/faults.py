"""Finds what is wrong with records of Avro: the field, and the reason in plain words."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

_MAX_STEPS = 1_000_000
_VARINT_BYTES = 10
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class RecordFault(NamedTuple):
    """The fault of a record.

    Args:
        field: the path to the field, with points; "" for the record itself.
        reason: what is wrong there.
    """

    field: str
    reason: str


class _Bad(Exception):  # noqa: N818 - an answer, not a failure
    """Says what is wrong with a value."""


def find_fault(plain: Any, data: memoryview) -> RecordFault:
    """Goes through a record that cannot be decoded.

    Args:
        plain: its schema, as ``AvroTypes.plain`` has it.
        data: the block from the record on.
    """
    found = first_fault(plain, data, 1, _MAX_STEPS)
    return found[1] if found else RecordFault("", "a value is none of its type")


def first_fault(plain: Any, data: memoryview, records: int, most: int = sys.maxsize) -> tuple[int, RecordFault] | None:
    """Goes through records that may be at fault; returns the number of the first that is, from 1, and its fault.

    Args:
        plain: as in ``find_fault``.
        data: the records.
        records: how many there are.
        most: values to look at.
    """
    walk = _Walk(data, most)
    for number in range(1, records + 1):
        try:
            walk.read(plain, ())
        except _Bad as fault:
            return number, RecordFault(".".join(walk.path), str(fault))
    return None


class _Walk:
    """Goes through values. When it raises ``_Bad``, ``path`` is where."""

    def __init__(self, data: memoryview, most: int) -> None:
        self._data, self._at, self._left = data, 0, most
        self._named: dict[str, Any] = {}
        self.path: tuple[str, ...] = ()

    def read(self, plain: Any, path: tuple[str, ...]) -> None:
        """Passes over a value."""
        self.path = path
        self._left -= 1
        if self._left < 0:
            raise _Bad("a value is none of its type")
        if isinstance(plain, list):
            branch = self._number()
            if not 0 <= branch < len(plain):
                raise _Bad(f"it says that it is of type {branch} of a union of {len(plain)}, counted from 0")
            self.read(plain[branch], path)
        elif isinstance(plain, dict):
            self._read_complex(plain, path)
        elif plain in self._named:
            self._read_complex(self._named[plain], path)
        elif plain in ("int", "long"):
            self._number()
        elif plain in ("bytes", "string"):
            taken = self._take(self._number(), "a length of {} bytes")
            if plain == "string":
                _check_text(taken)
        else:
            self._take(_SIZES[plain], "{} bytes")

    def _read_complex(self, plain: dict[str, Any], path: tuple[str, ...]) -> None:
        kind = plain["type"]
        self._named.setdefault(plain.get("name", ""), plain)
        if kind == "record":
            for field in plain["fields"]:
                self.read(field["type"], (*path, field["name"]))
        elif kind == "enum":
            symbol = self._number()
            if not 0 <= symbol < len(plain["symbols"]):
                raise _Bad(f"it is symbol {symbol} of {len(plain['symbols'])}, counted from 0")
        elif kind == "fixed":
            self._take(plain["size"], "{} bytes")
        else:
            self._items(plain, path)

    def _items(self, plain: dict[str, Any], path: tuple[str, ...]) -> None:
        while count := self._number():
            if count < 0:
                count = -count
                self._number()
            if count > len(self._data) - self._at:
                raise _Bad(f"it says that it has {count:,} items, more than there are bytes left in its block")
            for _ in range(count):
                if plain["type"] == "map":
                    _check_text(self._take(self._number(), "a length of {} bytes"))
                self.read(plain["items" if plain["type"] == "array" else "values"], path)
                self.path = path

    def _take(self, size: int, what: str) -> bytes:
        left = len(self._data) - self._at
        if not 0 <= size <= left:
            raise _Bad(f"it says that it has {what.format(f'{size:,}')}, and {left:,} are left in its block")
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def _number(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES):
            byte = self._take(1, "one more byte")[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                break
        if byte >= 0x80 or value >> 64:
            raise _Bad("it has a number of more than 64 bits")
        return (value >> 1) ^ -(value & 1)


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise _Bad(f"its text is not UTF-8: {error.reason}") from None

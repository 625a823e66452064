"""Decides which cells pyarrow's CSV reader may parse itself, and finds text of which it would accept too much."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.format.types import TextKind, type_of
from dolmen.ingest.formats.json.values import nested_parse
from dolmen.ingest.formats.text.cells import precision_check, text_cast, within_years
from dolmen.ingest.formats.text.decimals import may_be_tiny, native_decimal
from dolmen.ingest.formats.text.times import TimeFormat
from dolmen.rows.write.lossless import Cast, Misfit

_LOWER_CASE = 0x20


def native_type(target: pa.DataType, times: TimeFormat | None) -> pa.DataType | None:
    """The type as which pyarrow's CSV reader reads the cells of a column; None = as text."""
    if times is not None and times.parser(target) is not None:
        asked = times.parser_type(target)
        return asked if asked is not None and t.is_integer(asked) else None
    if not _is_parsed_natively(target):
        return None
    return native_decimal(target) if t.is_decimal(target) else target


NATIVE: dict[TextKind, bool] = {
    "string": True,
    "bool": True,
    "integer": True,
    "float": True,
    "decimal": True,
    "date": True,
    "timestamp": True,
    "time": False,
    "base64": False,
    "json": False,
}
"""Whether pyarrow's CSV reader understands text of a grammar (``ColumnType.text``) as dolmen does, or refuses it."""


def _is_parsed_natively(target: pa.DataType) -> bool:
    found = type_of(target)
    return found is not None and found.text is not None and NATIVE[found.text]


@dataclass(frozen=True)
class Suspect:
    """Text that pyarrow's CSV reader may take for more than ``text`` does: columns are then asked for as text.

    Args:
        concerns: whether it does so where it reads values of this type.
        is_in: whether a block of text may hold some; seldom wrong, and cheap.
    """

    concerns: Callable[[pa.DataType], bool]
    is_in: Callable[[bytes], bool]


def without_doubts(native: dict[str, pa.DataType], doubts: Sequence[Suspect]) -> dict[str, pa.DataType]:
    """The types without those of columns that pyarrow may misread, given these doubts about a block."""
    return {name: kind for name, kind in native.items() if not any(doubt.concerns(kind) for doubt in doubts)}


def _may_be_hexadecimal(data: bytes) -> bool:
    """Whether there is a 0x anywhere, which pyarrow would take for the beginning of an integer."""
    if b"x" not in data and b"X" not in data:
        return False
    array = np.frombuffer(data, np.uint8)
    return bool(((array[1:] | _LOWER_CASE == ord("x")) & (array[:-1] == ord("0"))).any())


def _may_have_payload(data: bytes) -> bool:
    """Whether there is a nan(1) anywhere, which pyarrow would take for NaN."""
    return b"(" in data and _PAYLOAD.search(data) is not None


def _may_be_hour_alone(data: bytes) -> bool:
    """Whether there is a 2024-02-29T13 anywhere, which pyarrow would take for 13:00."""
    array = np.frombuffer(data + b"\n\n\n", np.uint8)
    marks = np.flatnonzero((array[1:-3] == ord("T")) | (array[1:-3] == ord(" "))) + 1
    for place in (-1, 1, 2):
        marks = marks[array[marks + place] - ord("0") < 10]  # unsigned: what is below 0 is far above
    return bool((array[marks + 3] != ord(":")).any())


_PAYLOAD = re.compile(rb"[nN]\(")
SUSPECTS = (
    Suspect(lambda kind: bool(t.is_integer(kind) or t.is_decimal(kind)), _may_be_hexadecimal),
    Suspect(t.is_decimal, may_be_tiny),
    Suspect(t.is_floating, _may_have_payload),
    Suspect(t.is_timestamp, _may_be_hour_alone),
)


def cell_cast(source: pa.DataType, target: pa.DataType, *, times: TimeFormat | None, ignore_extra: bool) -> Cast | None:
    """The cast of cells, parsed to ``target`` or to numbers already, or text (see ``lossless.FindCast``)."""
    if source == target or (t.is_decimal(source) and t.is_decimal(target)):
        if t.is_timestamp(target) or t.is_date(target):
            return within_years
        return _not_infinite if t.is_floating(target) else precision_check(target)
    if times is not None and (numbers := times.number_cast(source, target)) is not None:
        return numbers
    if t.is_nested(target):
        return text_cast(target, empty_is_null=True, parse=nested_parse(target, times, ignore_extra))
    return text_cast(target, empty_is_null=True, parse=times.parser(target) if times is not None else None)


def _not_infinite(values: pa.Array) -> pa.Array:
    if pc.any(pc.is_inf(values)).as_py():
        raise Misfit("infinite, or too large a number: its text tells")
    return values

"""Positions in a source's log, as Debezium's connectors write them: numbers, or text.

One connector writes ``lsn`` as a number, another as ``"24023128"`` or PostgreSQL's own ``"0/16E9458"``; ``scn``
(Oracle) and ``commit_lsn`` (SQL Server) are text, ``pos`` (MySQL) is a number. A file is asked which it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.base.units import MIB
from dolmen.errors import InputError
from dolmen.ingest.formats.formats import SourceFile, infer

Form: TypeAlias = Literal["number", "text"]

_LOOKED_AT_BYTES = MIB
_PIECE_BYTES = 1 << 16
_LSN = r"^(?P<high>[0-9A-Fa-f]{1,8})/(?P<low>[0-9A-Fa-f]{1,8})$"
_DIGITS = r"^[0-9]{1,18}$"


def find_forms(source: SourceFile, paths: Iterable[str]) -> dict[str, Form]:
    """How a file writes what stands at these paths: by its first event that has it, or by its schema.

    Nothing is said of a path that none of the file's first megabyte has, or of a file that cannot be read: whoever
    reads it finds out what is wrong.
    """
    wanted = {path: path.split(".") for path in paths}
    try:
        if source.format.kind == "jsonl":
            return _forms_in_json(source, wanted)
        schema = infer(source)
    except InputError:
        return {}
    whole = pa.struct(list(schema))
    found = {path: form for path, names in wanted.items() if (form := _form_of_type(whole, names))}
    return found | {path: form for path, names in wanted.items() if (form := _form_of_type(whole, ["payload", *names]))}


def _forms_in_json(source: SourceFile, wanted: dict[str, list[str]]) -> dict[str, Form]:
    found: dict[str, Form] = {}
    with source.text() as stream:
        rest, size = b"", 0
        while size < _LOOKED_AT_BYTES and (data := stream.read(_PIECE_BYTES)):
            size += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _note_forms(line, wanted, found)
            if len(found) == len(wanted):
                return found
        _note_forms(rest, wanted, found)
    return found


def _note_forms(line: bytes, wanted: dict[str, list[str]], found: dict[str, Form]) -> None:
    try:
        event = json.loads(line, parse_int=float, parse_float=float)
    except (ValueError, RecursionError):  # not whole, or a bad row, which is told when it is read
        return
    if isinstance(event, dict) and isinstance(event.get("payload"), dict):
        event = event["payload"]
    for path, names in wanted.items():
        value: Any = event
        for each in names:
            value = value.get(each) if isinstance(value, dict) else None
        if path not in found and isinstance(value, str | float):
            found[path] = "text" if isinstance(value, str) else "number"


def _form_of_type(kind: pa.DataType, names: list[str]) -> Form | None:
    for each in names:
        place = kind.get_field_index(each) if t.is_struct(kind) else -1
        if place < 0:
            return None
        kind = kind.field(place).type
    return "text" if t.is_string(kind) else "number" if t.is_integer(kind) else None


def parse_position(text: pa.Array) -> pa.Array:
    """Positions in text as int64: what is digits alone, and PostgreSQL's ``0/16E9458``; NULL for any other."""
    text = pc.utf8_trim_whitespace(text)
    nothing = pa.scalar(None, pa.string())
    plain = pc.if_else(pc.match_substring_regex(text, _DIGITS), text, nothing).cast(pa.int64())
    halves = pc.extract_regex(text, _LSN)
    high, low = (_parse_hexadecimal(pc.struct_field(halves, half)) for half in ("high", "low"))
    return pc.coalesce(plain, pc.add(pc.multiply(high, 1 << 32), low))


def _parse_hexadecimal(digits: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("0x", digits, "").cast(pa.int64())


def plain_text(text: pa.Array) -> pa.Array:
    """Positions in text, with PostgreSQL's ``0/16E9458`` as the number that it stands for."""
    is_lsn = pc.match_substring_regex(text, _LSN)
    if pc.any(is_lsn).as_py() is not True:
        return text
    return pc.if_else(is_lsn, parse_position(text).cast(pa.string()), text)

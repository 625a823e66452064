"""Arrow values as the text that ``delimited``, ``jsonl`` and ``text`` read back equal, whole columns at a time.

====================  ==============================================================================================
type                  text
====================  ==============================================================================================
string                itself; in CSV always in quotes, so that it is never NULL, whatever a table's ``ingest_nulls``
bool                  ``true``, ``false``
numbers               shortest decimal number that is read as the same; ``nan``, ``inf``, ``-inf`` (JSON: ``"NaN"``,
                      ``"Infinity"``, ``"-Infinity"``); decimals are strings in JSON, as few parsers keep their digits
date, time            ISO 8601, of the years 1 to 9999; ``Z`` where there is a zone
binary, fixed size    base64; in CSV no bytes at all are ``""``
list, struct          JSON
map                   none
NULL                  in CSV the empty field without quotes, in JSON ``null``
====================  ==============================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.base.units import DAY_US
from dolmen.format.types import JsonKind, TextKind, type_of
from dolmen.ingest.formats.text.cells import FIRST_DAY, LAST_DAY
from dolmen.rows.write.casts import flattened_offsets

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_NAMED_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_NON_FINITE = '"NaN"', '"Infinity"', '"-Infinity"'


class Unsayable(Exception):  # noqa: N818 - turned into an InputError by who knows the file
    """A value has no text; the message says why.

    Args:
        reason: what is wrong with the value.
        place: 0-based place of the value among those that were given.
    """

    def __init__(self, reason: str, place: int) -> None:
        self.reason, self.place = reason, place
        super().__init__(reason)


def has_text(kind: pa.DataType) -> bool:
    """Whether values of a type can be written as text: maps cannot, at any depth."""
    found = type_of(kind)
    if found is None or found.text is None:
        return False
    return not t.is_nested(kind) or all(has_text(kind.field(place).type) for place in range(kind.num_fields))


def csv_lines(batch: pa.RecordBatch, delimiter: str) -> pa.Buffer:
    """The rows of a batch as records of delimited text. Raises ``Unsayable``."""
    cells = [_by_column(field.name, _cells, column) for field, column in zip(batch.schema, batch.columns, strict=True)]
    lines = cells[0] if len(cells) == 1 else pc.binary_join_element_wise(*cells, delimiter)
    return join_lines(pc.binary_join_element_wise(lines, "", "\n"))


def csv_header(names: list[str], delimiter: str) -> bytes:
    """The first record: the names of the columns, in quotes where they need them."""
    return (delimiter.join(_quoted_name(name, delimiter) for name in names) + "\n").encode()


def _quoted_name(name: str, delimiter: str) -> str:
    plain = name.isprintable() and name == name.strip() and not set(name) & {'"', delimiter}
    return name if plain else '"' + name.replace('"', '""') + '"'


def json_lines(batch: pa.RecordBatch) -> pa.Buffer:
    """The rows of a batch as JSON objects, one a line. Raises ``Unsayable``."""
    pairs = zip(batch.schema, batch.columns, strict=True)
    fields = [(field.name, _by_column(field.name, _json, column)) for field, column in pairs]
    return join_lines(pc.binary_join_element_wise(_object(fields), "", "\n"))


def join_lines(strings: pa.Array) -> pa.Buffer:
    """The bytes of all strings, one after the other; none is NULL."""
    _, offsets, data = strings.buffers()
    bounds = np.frombuffer(offsets, np.int32)
    first = int(bounds[strings.offset])
    return data.slice(first, int(bounds[strings.offset + len(strings)]) - first) if data else pa.py_buffer(b"")


def _by_column(name: str, say: Callable[[pa.Array], pa.Array], column: pa.Array) -> pa.Array:
    try:
        return say(column)
    except Unsayable as unsayable:
        raise Unsayable(f"column {name!r}: {unsayable.reason}", unsayable.place) from None


def _cells(array: pa.Array) -> pa.Array:
    """Fields of delimited text."""
    text = _text(array)
    if t.is_string(array.type) or t.is_nested(array.type):
        text = _around('"', pc.replace_substring(text, '"', '""'), '"')
    elif t.is_binary(array.type):
        text = pc.if_else(pc.equal(text, ""), '""', text)
    return pc.fill_null(pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string())), "")


def _text(array: pa.Array) -> pa.Array:
    """Values without children as text; NULL stays NULL."""
    found = type_of(array.type)
    assert found is not None, array.type
    assert found.text is not None, array.type
    return WRITERS[found.text](array)


def _as_it_is(array: pa.Array) -> pa.Array:
    return array


def _cast_to_text(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _date_text(array: pa.Array) -> pa.Array:
    _check_years(array.cast(pa.int32()), FIRST_DAY, LAST_DAY)
    return array.cast(pa.string())


def _timestamp_text(array: pa.Array) -> pa.Array:
    _check_years(array.cast(pa.int64()), FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1)
    return pc.replace_substring(array.cast(pa.string()), " ", "T")


def _check_years(numbers: pa.Array, first: int, last: int) -> None:
    """Raises Unsayable for a time of a year that has not four digits: readers of text know no others."""
    outside = pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)
    if pc.any(outside).as_py():
        raise Unsayable("a time outside of the years 1 to 9999", pc.index(outside, True).as_py())


def _json(array: pa.Array) -> pa.Array:
    """Values as JSON; NULL is ``null``."""
    found = type_of(array.type)
    assert found is not None, array.type
    assert found.json is not None, array.type
    return pc.if_else(array.is_valid(), JSON_WRITERS[found.json](array), "null")


def _json_string(array: pa.Array) -> pa.Array:
    return _around('"', _escape(array), '"')


def _json_quoted(array: pa.Array) -> pa.Array:
    return _around('"', _text(array), '"')


def _json_object(array: pa.Array) -> pa.Array:
    return _object([(field.name, _json(child)) for field, child in zip(array.type, array.flatten(), strict=True)])


def _json_list(array: pa.Array) -> pa.Array:
    offsets, items = flattened_offsets(array), array.flatten()
    try:
        texts = _json(items)
    except Unsayable as unsayable:
        row = int(np.searchsorted(offsets.to_numpy(), unsayable.place, side="right")) - 1
        raise Unsayable(unsayable.reason, row) from None
    return _around("[", pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ","), "]")


def _object(fields: list[tuple[str, pa.Array]]) -> pa.Array:
    pieces: list[pa.Array | str] = ["{"]
    for place, (name, text) in enumerate(fields):
        pieces += [f"{',' if place else ''}{json.dumps(name, ensure_ascii=False)}:", text]
    return pc.binary_join_element_wise(*pieces, "}", "")


def _json_float(array: pa.Array) -> pa.Array:
    text, finite = array.cast(pa.string()), pc.is_finite(array)
    if pc.all(finite).as_py() is not False:
        return text
    nan, infinity, negative = _NON_FINITE
    word = pc.if_else(pc.is_nan(array), nan, pc.if_else(pc.greater(array, 0.0), infinity, negative))
    return pc.if_else(finite, text, word)


def _escape(strings: pa.Array) -> pa.Array:
    """Strings as they stand between the quotes of JSON."""
    if not pc.any(pc.match_substring_regex(strings, r'[\x00-\x1f\\"]')).as_py():
        return strings
    strings = pc.replace_substring(pc.replace_substring(strings, "\\", "\\\\"), '"', '\\"')
    for code in range(32):
        character = chr(code)
        if pc.any(pc.match_substring(strings, character)).as_py():
            strings = pc.replace_substring(strings, character, _NAMED_ESCAPES.get(character, f"\\u{code:04x}"))
    return strings


def _around(before: str, text: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, text, after, "")


def encode_base64(array: pa.Array) -> pa.Array:
    """Base64 (RFC 4648, section 4, padded) of binary values, all at once; NULL stays NULL."""
    filled = pc.fill_null(array.cast(pa.binary()), b"")
    _, offset_buffer, data_buffer = filled.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32)[filled.offset : filled.offset + len(filled) + 1].astype(np.int64)
    octets = np.frombuffer(data_buffer or b"", np.uint8)[bounds[0] : bounds[-1]]
    sizes = np.diff(bounds)
    triples = (sizes + 2) // 3
    starts = np.concatenate(([0], np.cumsum(triples)))
    # each value begins at a triple of its own: where its bytes go, as they stand one after the other
    shift = np.repeat(starts[:-1] * 3 - (bounds[:-1] - bounds[0]), sizes)
    padded = np.zeros(int(starts[-1]) * 3, np.uint8)
    padded[np.arange(len(octets)) + shift] = octets
    first, second, third = padded.reshape(-1, 3).T
    sixes = np.empty((len(first), 4), np.uint8)
    sixes[:, 0], sixes[:, 1] = first >> 2, (first & 3) << 4 | second >> 4
    sixes[:, 2], sixes[:, 3] = (second & 15) << 2 | third >> 6, third & 63
    characters = _ALPHABET[sixes]
    lasts, left = starts[1:] - 1, sizes % 3
    characters[lasts[left == 1], 2:] = ord("=")
    characters[lasts[left == 2], 3] = ord("=")
    made = pa.StringArray.from_buffers(
        len(filled), pa.py_buffer((starts * 4).astype(np.int32)), pa.py_buffer(np.ascontiguousarray(characters))
    )
    return pc.if_else(array.is_valid(), made, pa.scalar(None, pa.string()))


WRITERS: dict[TextKind, Callable[[pa.Array], pa.Array]] = {
    "string": _as_it_is,
    "bool": _cast_to_text,
    "integer": _cast_to_text,
    "float": _cast_to_text,
    "decimal": _cast_to_text,
    "date": _date_text,
    "time": _cast_to_text,
    "timestamp": _timestamp_text,
    "base64": encode_base64,
    "json": _json,
}
"""How values become text, by the kind of its grammar (``ColumnType.text``)."""

JSON_WRITERS: dict[JsonKind, Callable[[pa.Array], pa.Array]] = {
    "bare": _cast_to_text,
    "float": _json_float,
    "string": _json_string,
    "quoted": _json_quoted,
    "array": _json_list,
    "object": _json_object,
}
"""How values become JSON, by the form that it has for their type (``ColumnType.json``)."""

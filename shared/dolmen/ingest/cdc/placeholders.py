"""Finds the placeholder that Debezium writes for a value that the source's log does not hold (docs/cdc.md).

It has a form that fits the column::

    text                  __debezium_unavailable_value
    bytes                 its bytes; as text in base64 or hexadecimal digits, by binary.handling.mode
    lists of text, bytes  a list of the placeholder alone
    lists of UUIDs        a list of the UUID of its bytes (version 3, without a name space)
    lists of integers     a list of its bytes, which are signed; of dates too, in days
    maps (hstore)         the placeholder as the only key; also as JSON text

In JSON lines it may be plain text in columns of any type. There the text becomes NULL, and an extra field marks it with
the number of its form, so that a bad row can be reported unchanged.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.format.types import to_mask
from dolmen.ingest.formats.source_file import BadRow, ByteStream, SourceFile, mark_name
from dolmen.ingest.formats.text_blocks import MAX_RECORD_BYTES

HEX = "hex:"  # prefix of a placeholder in hexadecimal digits, as PostgreSQL's connector reads it


@dataclass(frozen=True, eq=False)
class UnavailableValue:
    """The forms of one placeholder."""

    words: tuple[str, ...]  # the placeholder as text, and its bytes in base64 and in hexadecimal digits
    texts: pa.Array  # all its forms as text
    octets: pa.Array  # all its forms as bytes
    items: pa.Array  # the only items of lists of texts, and the only keys of maps
    numbers: tuple[tuple[int, ...], ...]  # the items of lists of numbers, for each spelling

    @classmethod
    def of(cls, placeholder: str) -> UnavailableValue:
        """The forms of a placeholder in the connector's configuration. With ``hex:``, both readings count."""
        return _forms(placeholder)

    def find(self, values: pa.Array) -> pa.BooleanArray | None:
        """Selects the placeholders among values; None in the usual case that there are none."""
        kind = values.type
        if t.is_string(kind):
            is_placeholder = pc.is_in(values, self.texts)
        elif t.is_binary(kind):
            is_placeholder = pc.is_in(values, self.octets)
        elif t.is_map(kind) and t.is_string(kind.key_type):
            pairs = values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
            is_placeholder = self._find_single(pairs, pc.struct_field(pairs.flatten(), 0))
        elif t.is_list(kind) and (t.is_string(kind.value_type) or t.is_binary(kind.value_type)):
            is_placeholder = self._find_single(values, values.flatten())
        elif t.is_list(kind) and (t.is_integer(kind.value_type) or t.is_date32(kind.value_type)):
            is_placeholder = self._find_numbers(values)
        else:
            return None
        return is_placeholder if is_placeholder is not None and pc.any(is_placeholder).as_py() else None

    def _find_single(self, lists: pa.Array, items: pa.Array) -> pa.Array | None:
        hits = pc.is_in(items, self.octets if t.is_binary(items.type) else self.items)
        if not pc.any(hits).as_py():
            return None
        sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        starts = np.cumsum(sizes) - sizes
        single = np.flatnonzero(sizes == 1)
        found = np.zeros(len(lists), bool)
        found[single] = to_mask(hits)[starts[single]]
        return pa.array(found)

    def _find_numbers(self, lists: pa.Array) -> pa.Array | None:
        sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        found = np.zeros(len(lists), bool)
        for numbers in self.numbers:
            rows = np.flatnonzero(sizes == len(numbers))
            if not len(rows):
                continue
            items = lists.take(pa.array(rows)).flatten()
            if t.is_date32(items.type):
                items = items.cast(pa.int32())
            values = pc.fill_null(items.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)
            found[rows] = (values.reshape(-1, len(numbers)) == np.array(numbers, np.float64)).all(axis=1)
        return pa.array(found)


@cache
def _forms(placeholder: str) -> UnavailableValue:
    spellings = [placeholder.encode()]
    if placeholder.startswith(HEX):
        spellings.append(bytes.fromhex(placeholder.removeprefix(HEX)))
    words: list[str] = []
    texts: list[str] = []
    ids: list[str] = []
    numbers = [tuple(np.frombuffer(octets, np.int8).tolist()) for octets in spellings]
    for octets, bytes_ in zip(spellings, numbers, strict=True):
        text = octets.decode(errors="replace")
        encoded = [base64.b64encode(octets).decode(), base64.urlsafe_b64encode(octets).decode()]
        encoded += [octets.hex(), octets.hex().upper()]
        id_ = str(uuid.UUID(bytes=hashlib.md5(octets, usedforsecurity=False).digest(), version=3))
        words += [text, *encoded]
        ids.append(id_)
        texts += [_json(form) for form in ({text: text}, [text], [id_], list(bytes_), *([each] for each in encoded))]
    words = list(dict.fromkeys(words))
    octets_: list[bytes] = [*spellings, *(word.encode() for word in words)]
    return UnavailableValue(
        tuple(words),
        pa.array([*words, *texts]),
        pa.array(octets_, pa.binary()),
        pa.array([*words, *ids]),
        tuple(numbers),
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_MARK = mark_name("")
_MARKED = re.compile(rb'null,"%b(?:[^"\\]|\\.)*":([0-9]+)' % _MARK.encode())


class MarkedText:
    """Marks the placeholders (``texts``) of some columns in a file of JSON lines."""

    def __init__(self, texts: Sequence[str], columns: Sequence[str]) -> None:
        words = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
        self._words = words
        self._forms = [form for word in words for form in (word, b"[%b]" % word, b"{%b:%b}" % (word, word))]
        names = b"|".join(re.escape(json.dumps(column, ensure_ascii=False).encode()) for column in columns)
        forms = b"|".join(rb"(%b|\[\s*%b\s*\]|\{\s*%b\s*:\s*%b\s*\})" % ((re.escape(word),) * 4) for word in words)
        self._pattern = re.compile(rb"((?i:%b))(\s*:\s*)(?:%b)(?=\s*[,}])" % (names, forms))

    def source(self, source: SourceFile) -> SourceFile:
        @contextmanager
        def open_marked() -> Iterator[Any]:
            with source.text() as stream:
                yield _MarkedStream(stream, self)

        dialect = replace(source.options.dialect, encoding="utf-8")
        return replace(
            source,
            open=cast(Any, open_marked),
            format=replace(source.format, compression=None),
            options=replace(source.options, dialect=dialect),
        )

    def mark(self, lines: bytes) -> bytes:
        if not any(word in lines for word in self._words):
            return lines
        return self._pattern.sub(self._replacement, lines)

    def restore(self, bad: BadRow) -> BadRow:
        """Restores a bad row as in the file, except for spaces in a placeholder."""
        if bad.text is None or _MARK.encode() not in bad.text:
            return bad
        return replace(bad, text=_MARKED.sub(lambda match: self._forms[int(match[1])], bad.text))

    def _replacement(self, match: re.Match[bytes]) -> bytes:
        name, colon = match[1], match[2]
        word = next(index for index, group in enumerate(match.groups()[2:]) if group)
        form = 3 * word + b'"[{'.index(match[3 + word][:1])
        return b'%b%bnull,"%b%b:%d' % (name, colon, _MARK.encode(), name[1:], form)


class _MarkedStream:
    """The bytes of a file, with marks in its lines."""

    def __init__(self, stream: ByteStream, marks: MarkedText) -> None:
        self._stream, self._marks = stream, marks
        self._ahead = self._rest = b""

    def read(self, size: int, /) -> bytes:
        while not self._ahead:
            data = self._stream.read(size)
            lines, feed, self._rest = (self._rest + data).rpartition(b"\n")
            if not data or len(self._rest) > MAX_RECORD_BYTES:
                lines, feed, self._rest = lines + feed + self._rest, b"", b""
            self._ahead = self._marks.mark(lines + feed)
            if not data:
                break
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

"""Marks placeholders in JSON lines where no value of the column's type can say them.

Debezium writes the placeholder as plain text into columns of any type that may be stored out of line: bytes in base64,
decimals as text, arrays, composites. The text becomes NULL, and a field beside it says so::

    {"id": 1, "photo": "__debezium_unavailable_value"}
    {"id": 1, "photo": null, "\\ue000photo": 0}

The number is the form that stood there, so that a bad row can be kept as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from dolmen.ingest.formats.compression import ByteStream
from dolmen.ingest.formats.options import BadRow, mark_name
from dolmen.ingest.formats.source import SourceFile
from dolmen.ingest.formats.text.blocks import MAX_RECORD_BYTES

_MARK = mark_name("")
_MARKED = re.compile(rb'null,"%b(?:[^"\\]|\\.)*":([0-9]+)' % _MARK.encode())


class MarkedText:
    """Marks the placeholders of some columns in a file of JSON lines.

    Args:
        texts: what stands in a placeholder's place, as text.
        columns: their names.
    """

    def __init__(self, texts: Sequence[str], columns: Sequence[str]) -> None:
        words = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
        self._words = words
        self._forms = [form for word in words for form in (word, b"[%b]" % word, b"{%b:%b}" % (word, word))]
        names = b"|".join(re.escape(json.dumps(column, ensure_ascii=False).encode()) for column in columns)
        forms = b"|".join(rb"(%b|\[\s*%b\s*\]|\{\s*%b\s*:\s*%b\s*\})" % ((re.escape(word),) * 4) for word in words)
        self._placed = re.compile(rb"((?i:%b))(\s*:\s*)(?:%b)(?=\s*[,}])" % (names, forms))

    def source(self, source: SourceFile) -> SourceFile:
        """The file with marks."""

        @contextmanager
        def opened() -> Iterator[Any]:
            with source.stream() as stream:
                yield _MarkedStream(stream, self)

        return replace(source, open=cast(Any, opened), format=replace(source.format, compression=None))

    def mark(self, lines: bytes) -> bytes:
        """Whole lines with marks."""
        if not any(word in lines for word in self._words):
            return lines
        return self._placed.sub(self._replacement, lines)

    def restore(self, bad: BadRow) -> BadRow:
        """A bad row as it stands in the file, but for spaces in a placeholder."""
        if bad.text is None or _MARK.encode() not in bad.text:
            return bad
        return replace(bad, text=_MARKED.sub(lambda found: self._forms[int(found[1])], bad.text))

    def _replacement(self, found: re.Match[bytes]) -> bytes:
        name, colon = found[1], found[2]
        word = next(place for place, group in enumerate(found.groups()[2:]) if group)
        form = 3 * word + b'"[{'.index(found[3 + word][:1])
        return b'%b%bnull,"%b%b:%d' % (name, colon, _MARK.encode(), name[1:], form)


class _MarkedStream:
    """The bytes of a file, line by line with marks."""

    def __init__(self, stream: ByteStream, marks: MarkedText) -> None:
        self._stream, self._marks = stream, marks
        self._ahead = self._rest = b""

    def read(self, size: int, /) -> bytes:
        """The next bytes, up to ``size``; empty only at the end."""
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

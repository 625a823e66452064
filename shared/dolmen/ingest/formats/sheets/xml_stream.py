"""XML of foreign files, parsed as a stream: names without their namespaces, no document types, bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias
from xml.parsers import expat

from dolmen.base.units import MIB
from dolmen.errors import InputError
from dolmen.ingest.formats.source_file import ByteStream

Start: TypeAlias = Callable[[str, Mapping[str, str]], None]
End: TypeAlias = Callable[[str], None]

_BLOCK_BYTES = MIB // 4
MAX_PENDING_BYTES = 64 * MIB  # the most bytes of one tag or comment: the parser holds it all
MAX_TEXT = 16 * MIB  # characters of one text


class _LocalNames(dict[str, str]):
    """Names of elements and attributes without their namespaces."""

    def __missing__(self, name: str) -> str:
        local = name.rpartition(" ")[2]
        if len(self) < 10_000:
            self[name] = local
        return local


class XmlStream:
    """Parses a stream, and calls ``start`` and ``end`` for each element.

    Args:
        what: what errors call the stream: the file, and its part.
    """

    def __init__(self, stream: ByteStream, what: str, start: Start, end: End) -> None:
        self._stream, self._what = stream, what
        self._text: list[str] | None = None
        self._length = 0
        parser = self._parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        local = _LocalNames()
        parser.StartElementHandler = lambda name, attributes: start(local[name], attributes)
        parser.EndElementHandler = lambda name: end(local[name])
        parser.StartDoctypeDeclHandler = self._on_document_type

    def collect_text(self, before: str = "") -> None:
        """Keeps text from here on, until ``take_text``, after the text ``before``."""
        if self._text is None:
            self._parser.CharacterDataHandler = self._on_text
        self._text, self._length = [before], len(before)

    def take_text(self) -> str:
        """The text since ``collect_text``; empty if that was not called."""
        text = "".join(self._text or ())
        self._text, self._parser.CharacterDataHandler = None, None
        return text

    def parse(self, *, is_whole: bool = True) -> Iterator[None]:
        """Parses block by block, and pauses after each; only if it ``is_whole``, all elements must end.

        Raises InputError for damage, and what the handlers raise.
        """
        read = 0
        try:
            while data := self._stream.read(_BLOCK_BYTES):
                read += len(data)
                self._parser.Parse(data, False)
                if read - self._parser.CurrentByteIndex > MAX_PENDING_BYTES:
                    raise InputError(f"{self._what} has a tag of more than {MAX_PENDING_BYTES:,} bytes")
                yield
            if is_whole:
                self._parser.Parse(b"", True)
                yield
        except expat.ExpatError as error:
            raise InputError(f"{self._what} is damaged: {error}") from None

    def parse_all(self) -> None:
        for _ in self.parse():
            pass

    def _on_text(self, data: str) -> None:
        self._length += len(data)
        if self._length > MAX_TEXT:
            raise InputError(f"{self._what} has a text of more than {MAX_TEXT:,} characters")
        assert self._text is not None
        self._text.append(data)

    def _on_document_type(self, *_: object) -> None:
        raise InputError(f"{self._what} declares a document type, which no workbook needs")

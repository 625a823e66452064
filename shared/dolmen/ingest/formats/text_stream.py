"""The text of a file as UTF-8, whatever its encoding: transcoded as it is read, in bounded memory.

A byte order mark must not contradict the encoding; ``utf-16`` and ``utf-32`` need one. It is still there, in UTF-8, for
the reader to skip. A byte that the encoding does not have is an error of the whole file; for UTF-8 the readers find it,
because there it may be one bad row.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

from dolmen.errors import InputError
from dolmen.format.dialect import Encoding
from dolmen.ingest.formats.text_blocks import count_lines

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"Obj\x01": "Avro",
}
_MAGIC_BYTES = max(map(len, _MAGIC))
MARKS: dict[bytes, Encoding] = {
    codecs.BOM_UTF32_LE: "utf-32le",  # begins as that of UTF-16 does
    codecs.BOM_UTF32_BE: "utf-32be",
    codecs.BOM_UTF16_LE: "utf-16le",
    codecs.BOM_UTF16_BE: "utf-16be",
    codecs.BOM_UTF8: "utf-8",
}
"""Byte order marks, and the encodings that begin with them."""


def undecodable_reason(error: UnicodeDecodeError) -> str:
    """The reason for refusing a row whose bytes should be UTF-8."""
    return f"not UTF-8: {error.reason}; for another encoding, set ingest_encoding"


class TextStream:
    """The bytes of a text file as UTF-8; its first bytes are checked to be text.

    Args:
        read: reads the next bytes of the file, up to a number; empty only at the end.
        name: what errors call the file.
    """

    def __init__(self, read: Callable[[int], bytes], name: str, encoding: Encoding = "utf-8") -> None:
        self._read, self._name, self._encoding = read, name, encoding
        self._ahead: bytes | None = None
        self._transcoder: _Transcoder | None = None

    def read(self, size: int, /) -> bytes:
        """The next bytes. Raises InputError if the content is plainly of another format or encoding."""
        if self._ahead is None:
            self._ahead = self._start(size)
        if not self._ahead:
            return self._read(size) if self._transcoder is None else self._transcoder.read(size)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def _start(self, size: int) -> bytes:
        data = b""
        while len(data) < _MAGIC_BYTES and (more := self._read(max(size, _MAGIC_BYTES))):
            data += more
        for magic, kind in _MAGIC.items():
            if data.startswith(magic):
                raise InputError(f"file {self._name!r} holds {kind} data, not what its name says: rename it")
        encoding = self._own_encoding(data)
        if encoding == "utf-8":
            return data
        self._transcoder = _Transcoder(self._read, self._name, encoding)
        return self._transcoder.decode(data, last=False)

    def _own_encoding(self, data: bytes) -> Encoding:
        """The encoding, with its order of bytes. Raises InputError if the byte order mark contradicts it."""
        wanted = self._encoding
        marked = next((encoding for mark, encoding in MARKS.items() if data.startswith(mark)), None)
        if marked is None:
            if wanted in ("utf-16", "utf-32") and data:
                raise InputError(
                    f"file {self._name!r} has no byte order mark: give its encoding as {wanted}le or {wanted}be "
                    "(--encoding, or the setting ingest_encoding)"
                )
            return wanted
        if marked == wanted or (marked != "utf-8" and marked[:-2] == wanted):
            return marked
        family = marked.upper().removesuffix("LE").removesuffix("BE")
        if wanted == "utf-8":
            raise InputError(
                f"file {self._name!r} is encoded in {family}: save it as UTF-8, or say so "
                f"(--encoding {family.lower()}, or the setting ingest_encoding)"
            )
        raise InputError(
            f"file {self._name!r} begins with the byte order mark of {family}, so it is not encoded in {wanted} "
            "(--encoding, or the setting ingest_encoding)"
        )


class _Transcoder:
    """Turns the rest of a file into UTF-8, up to a byte that the encoding does not have, which is an error then."""

    def __init__(self, read: Callable[[int], bytes], name: str, encoding: Encoding) -> None:
        self._read, self._name, self._encoding = read, name, encoding
        self._codec = "cp1252" if encoding == "windows-1252" else encoding
        self._decoder = codecs.getincrementaldecoder(self._codec)()
        self._consumed = self._lines = 0
        self._after_return = False
        self._ready, self._ended = b"", False
        self._error: InputError | None = None

    def read(self, size: int) -> bytes:
        while not self._ready and not self._ended:
            if self._error is not None:
                raise self._error
            data = self._read(size)
            self._ready = self.decode(data, last=not data)
            self._ended = not data and self._error is None
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def decode(self, data: bytes, *, last: bool) -> bytes:
        """The next bytes as UTF-8, up to those that the encoding does not have; then ``read`` raises InputError."""
        self._consumed += len(data)
        problem = None
        try:
            text = self._decoder.decode(data, last).encode()
        except UnicodeDecodeError as error:
            problem = error
            text = error.object[: error.start].decode(self._codec).encode()
        # An LF after a CR that was counted is no line end.
        self._lines += count_lines(text) - (self._after_return and text.startswith(b"\n"))
        if text:
            self._after_return = text.endswith(b"\r")
        if problem is not None:
            offset = self._consumed - len(problem.object) + problem.start
            found = problem.object[problem.start : problem.end][:4]
            self._error = InputError(
                f"file {self._name!r}, line {1 + self._lines}: the byte{'s' if len(found) > 1 else ''} "
                f"0x{found.hex(' ')} at offset {offset:,}: not {self._encoding}: {problem.reason}; is it another "
                "encoding (--encoding, or the setting ingest_encoding), or a damaged file?"
            )
        return text

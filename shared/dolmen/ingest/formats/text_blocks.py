"""Text files: transcoded to UTF-8 as they are read, and cut into blocks of whole records that know their first line.

A byte order mark must not contradict the encoding; ``utf-16`` and ``utf-32`` need one. It is still there, in UTF-8, for
the reader to skip. A byte that the encoding does not have is an error of the whole file; for UTF-8 the readers find it,
because there it may be one bad row.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dolmen.base.records import replace
from dolmen.base.units import KIB, MIB
from dolmen.errors import InputError, RowError
from dolmen.format.dialect import Encoding
from dolmen.format.ingest_properties import Compression, FileKind

MAX_RECORD_BYTES = 64 * MIB
"""The longest record. Without a limit, one unclosed quote would pull a whole file into memory."""

_WINDOW_BYTES = 64 * KIB
_LF, _CR = b"\n\r"
_NULL_LINE = re.compile(rb"^[ \t]*null[ \t]*(?=\r?$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records, in file order; ``line`` is the 1-based line of the file on which they begin.

    If ``lines`` is given, each record is one line of ``data``, and these are the lines of the file on which they begin.
    """

    data: bytes
    line: int
    problem: BrokenRecord | None = None  # why it cannot be parsed: then it is a single record
    lines: npt.NDArray[np.int64] | None = field(default=None, compare=False)

    def line_at(self, offset: int) -> int:
        """The line of the file that holds the byte at ``offset``."""
        return self.line + count_lines(self.data[:offset])


class BrokenRecord(Exception):  # noqa: N818 - turned into a RowError as soon as its line is known
    """A record is malformed at ``offset``; ``ends``: it may be cut off at the end of that line."""

    def __init__(self, offset: int, reason: str, *, ends: bool) -> None:
        self.offset, self.reason, self.ends = offset, reason, ends


FindEnd: TypeAlias = Callable[[bytes, bool], int]
"""Takes bytes from the start of a record, and whether they are the file's last. Returns the end of the last whole
record in them (0: there is none). Raises ``BrokenRecord`` when the FIRST record can never end."""


PIECE_BYTES = 128 * KIB


def pieces(data: bytes, more: int = 0, end: bytes = b"") -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes and an ``end``, 128 KB at a time, each piece with up to ``more`` bytes of the next one.

    Intermediate results for a piece stay in the processor's cache, and in memory that is reused: new memory for a whole
    block takes longer than the computation.
    """
    array, length = np.frombuffer(data, np.uint8), PIECE_BYTES + more
    for start in range(0, len(data), PIECE_BYTES):
        piece = array[start : start + length]
        yield np.frombuffer(piece.tobytes() + end, np.uint8)[:length] if end and len(piece) < length else piece


def offsets_of(sign: str, data: bytes) -> npt.NDArray[np.int64]:
    """Where an ASCII character is."""
    found = [np.flatnonzero(piece == ord(sign)) + at * PIECE_BYTES for at, piece in enumerate(pieces(data))]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def count_lines(data: bytes) -> int:
    """The number of line ends: LF, CR LF, or a CR alone."""
    return _count_feeds(data) + count_lone_returns(data)


def _count_feeds(data: bytes) -> int:
    """The number of LFs. Ten times as fast as ``bytes.count`` where lines are short."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _LF))


def count_lone_returns(data: bytes) -> int:
    """The number of CRs without an LF after them."""
    if b"\r" not in data:
        return 0
    array = np.frombuffer(data, np.uint8)
    pairs = np.count_nonzero((array[:-1] == _CR) & (array[1:] == _LF))
    return int(np.count_nonzero(array == _CR) - pairs)


def line_ends(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Offsets just past each LF, CR LF and CR alone. A CR at the very end counts as one alone."""
    ends: npt.NDArray[np.int64] = np.flatnonzero(array == _LF) + 1
    returns = np.flatnonzero(array == _CR) + 1
    if len(returns):
        followed = returns[returns < len(array)]
        alone = followed[array[followed] != _LF]
        if returns[-1] == len(array):
            alone = np.append(alone, len(array))
        ends = np.sort(np.concatenate((ends, alone)))
    return ends


def line_blocks(read: Callable[[int], bytes], name: str, block_bytes: int) -> Iterator[Block]:
    """A file whose records are its lines, in blocks. Raises RowError for a line that is too long."""
    return blocks(read, _last_line_end, name, block_bytes, _count_feeds)


def skip_nulls(block: Block) -> Block:
    """The block with its ``null`` lines made blank."""
    return replace(block, data=_NULL_LINE.sub(b"", block.data)) if _NULL_LINE.search(block.data) else block


def _last_line_end(data: bytes, last: bool) -> int:
    return len(data) if last else data.rfind(b"\n") + 1


def blocks(
    read: Callable[[int], bytes],
    find_end: FindEnd,
    name: str,
    block_bytes: int,
    lines_in: Callable[[bytes], int] = count_lines,
    *,
    isolate_broken: bool = False,
    skip_lines: int = 0,
) -> Iterator[Block]:
    """Cuts a stream into blocks of about ``block_bytes``; a byte order mark at its start is left out.

    Args:
        read: reads the next bytes of the file, up to a number; empty only at the end.
        lines_in: counts the line ends in some bytes, by the rules of this format.
        isolate_broken: whether a broken record that can end with its line is a block of its own.
        skip_lines: the number of lines before the first record, whatever is in them.

    Raises RowError for a record that never ends, or is longer than ``MAX_RECORD_BYTES``; InputError if the file has
    fewer lines than ``skip_lines``.
    """
    pending, line, first = b"", 1 + skip_lines, not skip_lines
    ahead = _read_past_lines(read, skip_lines, name, block_bytes) if skip_lines else b""
    while True:
        data, ahead = ahead or read(block_bytes), b""
        last = not data
        if first:
            while data and len(data) < len(codecs.BOM_UTF8) and (more := read(block_bytes)):
                data += more
            data, first = data.removeprefix(codecs.BOM_UTF8), False
        pending += data
        window = len(pending)  # bytes to search: few after a broken record, then increasingly many
        while pending:
            whole = window >= len(pending)
            try:
                block = Block(pending[: find_end(pending if whole else pending[:window], last and whole)], line)
            except BrokenRecord as broken:
                if not (isolate_broken and broken.ends):
                    raise RowError(broken.reason, file=name, line=line + lines_in(pending[: broken.offset])) from None
                block = Block(pending[: _line_end(pending, broken.offset, last)], line, broken)
                window, whole = _WINDOW_BYTES, False
                if not block.data:
                    break
            if block.data:
                yield block
                line += lines_in(block.data)
                pending = pending[len(block.data) :]
            if whole:
                break
            if not block.problem:
                window *= 2
        if last and not pending:
            return
        if len(pending) > MAX_RECORD_BYTES:
            raise RowError(
                f"a record is longer than {MAX_RECORD_BYTES // MIB} MiB; is a quote never closed?", file=name, line=line
            )


def _read_past_lines(read: Callable[[int], bytes], count: int, name: str, block_bytes: int) -> bytes:
    """Reads past the first ``count`` lines. Returns what was read after them."""
    skipped, held, is_unfinished = 0, b"", False
    while data := read(block_bytes):
        data = held + data
        whole = len(data) - data.endswith(b"\r")  # its LF may follow
        ends = line_ends(np.frombuffer(data, np.uint8)[:whole])
        if skipped + len(ends) >= count:
            return data[ends[count - skipped - 1] :]
        skipped += len(ends)
        held = data[whole:]
        is_unfinished = whole > ends[-1] if len(ends) else is_unfinished or whole > 0
    skipped += bool(held or is_unfinished)
    if 0 < skipped < count:
        lines = f"{skipped:,} line{'s' if skipped != 1 else ''}"
        raise InputError(f"file {name!r} has {lines}, but {count:,} come before its rows (ingest_skip_lines)")
    return b""


def _line_end(data: bytes, start: int, last: bool) -> int:
    """The end of the line that holds the byte at ``start``; 0 if it does not end in ``data``."""
    feed, lone = data.find(b"\n", start) + 1, data.find(b"\r", start) + 1
    if lone and lone != feed - 1 and (lone < len(data) or last) and not 0 < feed < lone:
        return lone
    return feed or (len(data) if last else 0)


class Magic(Struct, frozen=True):
    """The first bytes of files of some format, which is not text."""

    start: bytes
    what: str  # what such a file is, in messages
    kind: FileKind | None = None
    compression: Compression | None = None
    advice: str = ""  # what to do with a file that is never read, and is neither text nor compressed
    may_be_text: bool = False  # text may begin so: it is text if it has no zero bytes, and is of its encoding

    @classmethod
    def of(cls, data: bytes, *, whole: bool, encoding: Encoding = "utf-8") -> Magic | None:
        """That of a file that begins with ``data``; None for text and anything unknown."""
        found = next((each for each in MAGIC if data.startswith(each.start)), None)
        may_be_text = found is not None and found.may_be_text and b"\0" not in data
        return None if may_be_text and is_encoded(data, encoding, whole) else found


ZIP, COMPOUND = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
ARROW_STREAM = b"\xff\xff\xff\xff"
_UNPACK, _EXPORT = "unpack it, or compress it with gzip or Zstandard", "export its tables as CSV or Parquet"
MAGIC = (
    Magic(b"\x1f\x8b", "gzip data", compression="gzip"),
    Magic(b"\x28\xb5\x2f\xfd", "zstd data", compression="zstd"),
    Magic(b"BZh", "bzip2 data", compression="bz2", may_be_text=True),
    Magic(b"\xfd7zXZ\x00", "xz data", advice=_UNPACK),
    Magic(b"\x04\x22\x4d\x18", "LZ4 data", advice=_UNPACK),
    Magic(b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", advice="unpack it, and give each file alone"),
    Magic(b"Rar!\x1a\x07", "a RAR archive", advice="unpack it, and give each file alone"),
    Magic(ZIP, "a zip archive (an Excel workbook is one)"),
    Magic(b"PK\x05\x06", "an empty zip archive", advice="there is no file in it"),
    Magic(b"PK\x07\x08", "a zip archive in several parts", advice="join them"),
    Magic(COMPOUND, "an old Office file such as .xls"),
    Magic(b"PAR1", "a Parquet file", "parquet", may_be_text=True),
    Magic(b"ARROW1", "an Arrow file", "arrow"),
    Magic(b"FEA1", "a Feather file of version 1", "arrow"),  # which the reader refuses by name
    Magic(b"Obj\x01", "an Avro file", "avro"),
    Magic(b"ORC", "an ORC file", "orc", may_be_text=True),
    Magic(b"SQLite format 3\x00", "a SQLite database", advice=_EXPORT),
    Magic(b"\x89HDF\r\n\x1a\n", "an HDF5 file", advice="write its tables as Parquet"),
    Magic(b"\x93NUMPY", "a NumPy array"),
    Magic(b"%PDF-", "a PDF file", advice="export its tables as CSV"),
    Magic(b"{\\rtf", "an RTF file"),
    Magic(b"\x89PNG\r\n\x1a\n", "a PNG image"),
    Magic(b"\xff\xd8\xff", "a JPEG image"),
    Magic(b"GIF8", "a GIF image", may_be_text=True),
    Magic(b"RIFF", "a RIFF file, such as sound or an image", may_be_text=True),
    Magic(b"\x7fELF", "a program"),
    Magic(b"MZ\x90", "a program"),
    Magic(b"\xca\xfe\xba\xbe", "a Java class"),
    Magic(b"$FL2", "an SPSS file", may_be_text=True),
    Magic(b"$FL3", "an SPSS file", may_be_text=True),
    Magic(b"<stata_dta>", "a Stata file"),
    Magic(b"RDX2\n", "R data", may_be_text=True),
    Magic(b"RDX3\n", "R data", may_be_text=True),
)
_MAGIC_BYTES = max(len(each.start) for each in MAGIC)
MARKS: dict[bytes, Encoding] = {
    codecs.BOM_UTF32_LE: "utf-32le",  # begins as that of UTF-16 does
    codecs.BOM_UTF32_BE: "utf-32be",
    codecs.BOM_UTF16_LE: "utf-16le",
    codecs.BOM_UTF16_BE: "utf-16be",
    codecs.BOM_UTF8: "utf-8",
}
"""Byte order marks, and the encodings that begin with them."""


def is_encoded(sample: bytes, encoding: str, whole: bool) -> bool:
    """Whether bytes are text of an encoding; unless it is the ``whole`` text, its last character may be cut."""
    try:
        codecs.getincrementaldecoder(encoding)().decode(sample, whole)
    except UnicodeDecodeError:
        return False
    return True


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
        if magic := Magic.of(data, whole=False, encoding=self._encoding):
            raise InputError(f"file {self._name!r} is {magic.what}, not what its name says: rename it")
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
        # An LF after a CR that was counted is not a line end.
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

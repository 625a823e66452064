"""Text files cut into blocks of whole records, each knowing on which line it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dolmen.errors import RowError
from dolmen.ingest.compression import ByteStream

MAX_RECORD_BYTES = 64 << 20
"""The longest record. Without a limit, one quote that is never closed would gather a whole file in memory."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records, in file order; ``line`` is the 1-based line of the file on which they begin."""

    data: bytes
    line: int

    def line_at(self, offset: int) -> int:
        """The line of the file that holds the byte at ``offset``."""
        return self.line + count_lines(self.data[:offset])


class Broken(Exception):  # noqa: N818 - turned into a RowError as soon as its line is known
    """A record cannot be cut off.

    Args:
        offset: the byte to blame.
        reason: what is wrong, without the place.
    """

    def __init__(self, offset: int, reason: str) -> None:
        self.offset, self.reason = offset, reason


FindEnd: TypeAlias = Callable[[bytes, bool], int]
"""Given some bytes from the start of a record, and whether they are the file's last, where the last whole record in
them ends (0: none does). Raises ``Broken`` when the FIRST record can never end."""


def count_lines(data: bytes) -> int:
    """How many line ends there are: LF, CR LF, or a CR alone."""
    return data.count(b"\n") + count_lone_returns(data)


def count_lone_returns(data: bytes) -> int:
    """How many CRs stand without an LF after them."""
    return data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else 0


def blocks(
    stream: ByteStream,
    find_end: FindEnd,
    name: str,
    block_bytes: int,
    lines_in: Callable[[bytes], int] = count_lines,
) -> Iterator[Block]:
    """Cuts a stream into blocks of about ``block_bytes``; a byte order mark at its start is left out.

    Args:
        lines_in: how many line ends some bytes have, as this format understands them.

    Raises:
        RowError: a record that never ends, or is longer than ``MAX_RECORD_BYTES``: names file and line.
    """
    pending, line, first = b"", 1, True
    while True:
        data = stream.read(block_bytes)
        last = not data
        if first:
            while data and len(data) < len(_BYTE_ORDER_MARK) and (more := stream.read(block_bytes)):
                data += more
            data, first = data.removeprefix(_BYTE_ORDER_MARK), False
        pending += data
        try:
            end = len(pending) and find_end(pending, last)
        except Broken as broken:
            raise RowError(broken.reason, file=name, line=line + lines_in(pending[: broken.offset])) from None
        if end:
            block = Block(pending[:end], line)
            yield block
            line += lines_in(block.data)
            pending = pending[end:]
        if last and not pending:
            return
        if len(pending) > MAX_RECORD_BYTES:
            raise RowError(
                f"a record is longer than {MAX_RECORD_BYTES >> 20} MiB; is a quote never closed?", file=name, line=line
            )

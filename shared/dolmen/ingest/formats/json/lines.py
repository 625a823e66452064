"""The lines of JSON files: where they end, and each of them parsed on its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from dolmen.errors import RowError
from dolmen.ingest.formats.compression import ByteStream
from dolmen.ingest.formats.json.rows import JsonObject, NotAnObject, Wanted, parse_line
from dolmen.ingest.formats.text.blocks import Block, blocks, count_feeds

_NULL_LINE = re.compile(rb"^[ \t]*null[ \t]*(?=\r?$)", re.MULTILINE)


def line_blocks(stream: ByteStream, name: str, block_bytes: int) -> Iterator[Block]:
    """A file in blocks of whole lines. Raises RowError for a line that is too long."""
    return blocks(stream, _last_line_end, name, block_bytes, count_feeds)


def _last_line_end(data: bytes, last: bool) -> int:
    return len(data) if last else data.rfind(b"\n") + 1


def without_nulls(block: Block) -> Block:
    """The block with blank lines where ``null`` stands."""
    if not _NULL_LINE.search(block.data):
        return block
    return replace(block, data=_NULL_LINE.sub(b"", block.data))


def check_utf8(data: bytes) -> None:
    """Raises UnicodeDecodeError: pyarrow's JSON parser does not look."""
    if not data.isascii():
        data.decode()


class Lines:
    """The lines of a block that are not blank, parsed one by one.

    Args:
        row: the 1-based number in the file of the first of them.
        wanted: what of them is wanted; None for everything.
    """

    def __init__(self, block: Block, row: int, name: str, wanted: Wanted | None = None) -> None:
        self._numbered = [
            (number, line) for number, line in enumerate(block.data.split(b"\n"), block.line) if line.strip()
        ]
        self._row, self._name, self._wanted = row, name, wanted

    def __len__(self) -> int:
        return len(self._numbered)

    def block(self, start: int, stop: int) -> Block:
        """Some of them (0-based), those between them left out."""
        some = self._numbered[start:stop]
        return Block(b"\n".join(line for _, line in some), some[0][0])

    def text(self, place: int) -> bytes:
        """One of them (0-based), without its end."""
        return self._numbered[place][1].rstrip(b"\r")

    def fault(self, place: int, reason: str, column: str | None = None) -> RowError:
        """The error that blames the row at ``place`` (0-based)."""
        line = self._numbered[place][0]
        return RowError(reason, file=self._name, line=line, row=self._row + place, column=column)

    def parse_good(self) -> list[JsonObject]:
        """The rows that are well-formed."""
        rows: list[JsonObject] = []
        for _, line in self._numbered:
            with suppress(NotAnObject):
                rows.append(parse_line(line, self._wanted))
        return rows

    def parse(
        self, check: Callable[[JsonObject], tuple[str, str] | None] = lambda _: None
    ) -> tuple[list[JsonObject], RowError | None]:
        """The rows up to the first that is malformed, or in which ``check`` finds a fault (column and reason)."""
        rows: list[JsonObject] = []
        for place, (_, line) in enumerate(self._numbered):
            try:
                parsed = parse_line(line, self._wanted)
            except NotAnObject as malformed:
                return rows, self.fault(place, str(malformed))
            if found := check(parsed):
                return rows, self.fault(place, found[1], found[0])
            rows.append(parsed)
        return rows, None

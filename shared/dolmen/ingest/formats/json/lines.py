"""The lines of JSON files: where they end, and each of them parsed on its own.

Counts the different keys in lines of JSON, before they become columns.

pyarrow gives all rows of a block a value for each key in it, which takes seconds for thousands of keys, and minutes for
tens of thousands. Most blocks have few: some of their lines tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import numpy as np

from dolmen.errors import LimitError, RowError
from dolmen.format.layout import prepare
from dolmen.ingest.formats.json.slow_rows import JsonObject, NotAnObject, Wanted, parse_line
from dolmen.ingest.formats.source_file import ByteStream
from dolmen.ingest.formats.text.text_blocks import Block, blocks, count_feeds

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


MANY_KEYS = 1_000
"""More different keys than this in a block are slower to parse at once than line by line."""


_SAMPLED, _LONGEST = 56, 8


_LF = ord("\n")


_Keys: TypeAlias = dict[str, Any]
"""The keys of objects, each with those of the objects that stand under it."""


prepare(dict[str, Any])


_DECODER = msgspec.json.Decoder(dict[str, Any])


def has_many_keys(lines: bytes, most: int, name: str) -> bool:
    """Whether a block of lines, each an object, has more than ``MANY_KEYS`` different keys, those inside included.

    Raises:
        LimitError: it has more than ``most``.
    """
    sample, widest = _Count(most, name), 0
    for line in _some(lines):
        before = sample.keys
        sample.add([line])
        widest = max(widest, line.count(b":"))
        if sample.keys - before > MANY_KEYS:
            break
    if sample.keys <= min(MANY_KEYS, max(_SAMPLED, 4 * widest)):
        return False
    whole = _Count(most, name)
    whole.add(lines.split(b"\n"))
    return whole.keys > MANY_KEYS


def too_many_keys(most: int, name: str) -> LimitError:
    """The error about a file of more different keys than ``most``."""
    return LimitError(
        f"file {name!r} has more than {most:,} different keys: are some of them data? For a table the setting "
        "ingest_max_columns allows more"
    )


class _Count:
    """The number of different keys so far."""

    def __init__(self, most: int, name: str) -> None:
        self.keys = 0
        self._seen: _Keys = {}
        self._most, self._name = most, name

    def add(self, lines: list[bytes]) -> None:
        """Adds the keys of the lines that are objects."""
        for line in lines:
            try:
                left: list[tuple[Any, _Keys]] = [(_DECODER.decode(line), self._seen)]
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
            while left:
                value, seen = left.pop()
                if isinstance(value, list):
                    left += [(item, seen) for item in value if isinstance(item, dict | list)]
                    continue
                for key, inner in value.items():
                    below = seen.get(key)
                    if below is None:
                        below = seen[key] = {}
                        self.keys += 1
                        if self.keys > self._most:
                            raise too_many_keys(self._most, self._name)
                    if isinstance(inner, dict | list):
                        left.append((inner, below))


def _some(lines: bytes) -> list[bytes]:
    """Some lines of a block: the longest, and others from all of it."""
    ends = np.append(np.flatnonzero(np.frombuffer(lines, np.uint8) == _LF), len(lines))
    starts = np.concatenate(([0], ends[:-1] + 1))
    longest = np.argsort(starts - ends, kind="stable")[:_LONGEST]
    chosen = np.union1d(longest, np.linspace(0, len(ends) - 1, min(_SAMPLED, len(ends))).astype(np.int64))
    return [lines[starts[place] : ends[place]] for place in chosen]

"""Writes a tree from entries that come in the order of their keys: leaves as they fill, then the pages above them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dolmen.entries.index.key_bytes import Keys, as_matrix, as_strings, from_matrix, no_keys
from dolmen.entries.index.pages import (
    MOST_ROWS,
    InnerPage,
    LeafPage,
    PageRef,
    Places,
    encode_inner,
    encode_leaf,
    inner_rows,
    leaf_rows,
)
from dolmen.format.checksums import crc32


class PageOutput(Protocol):
    """Takes the bytes of pages, one after the other."""

    def write(self, data: bytes, /) -> int:
        """Appends ``data``; returns how many bytes were taken (all)."""


@dataclass(slots=True)
class _Level:
    """Pages of one level that no page above them refers to yet."""

    separators: list[Any] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)
    references: list[PageRef] = field(default_factory=list)
    written: int = 0

    def inner(self, rows: int, width: int) -> InnerPage:
        """Makes a page of the first ``rows`` of them, which leave this list."""
        keys = np.array(self.separators[:rows], no_keys(width).dtype if width else None)
        page = InnerPage(keys, np.array(self.shared[:rows], bool), np.array(self.references[:rows], np.uint64))
        del self.separators[:rows], self.shared[:rows], self.references[:rows]
        self.written += 1
        return page


class TreeWriter:
    """A tree being written. All pages but the root go to the output; it holds some leaves' entries in memory.

    Args:
        output: takes the pages.
        offset: bytes that stand before them in the object.
        width: the key encoding's.
    """

    def __init__(self, output: PageOutput, offset: int, width: int) -> None:
        self.offset, self.entries = offset, 0
        self._output, self._width = output, width
        self._keys, self._places = no_keys(width), np.zeros(0, np.uint64)
        self._last: Keys | None = None
        self._levels: list[_Level] = [_Level()]

    def add(self, keys: Keys, places: Places) -> None:
        """Adds entries in the order of their keys, none of which is less than one that was added before."""
        self.entries += len(keys)
        self._keys, self._places = np.concatenate((self._keys, keys)), np.concatenate((self._places, places))
        at = 0
        while len(self._keys) - at > MOST_ROWS:
            at += self._write_leaf(at)
        self._keys, self._places = self._keys[at:], self._places[at:]

    def finish(self) -> bytes:
        """Writes the pages that are left, and returns the root, which is not written.

        Raises:
            ValueError: no entry was added.
        """
        if not self.entries:
            raise ValueError("a tree has entries")
        rows, at = len(self._keys), 0
        if self._last is None and leaf_rows(self._keys, self._places, self._width) == rows:
            return encode_leaf(LeafPage(self._keys, self._places), self._width)
        while at < rows:
            at += self._write_leaf(at)
        for depth, level in enumerate(self._levels):  # grows meanwhile
            while level.references:
                rows = inner_rows(np.array(level.separators), self._width)
                if not level.written and rows == len(level.references):
                    return encode_inner(level.inner(rows, self._width), self._width)
                self._write_inner(depth, rows)
        raise AssertionError("the last level has one page")

    def _write_leaf(self, at: int) -> int:
        window = slice(at, at + MOST_ROWS)
        rows = leaf_rows(self._keys[window], self._places[window], self._width)
        leaf = LeafPage(self._keys[at : at + rows], self._places[at : at + rows])
        first = leaf.keys[:1]
        separator = first if self._last is None else _separator(self._last, first)
        shared = self._last is not None and bool(self._last[0] == first[0])
        self._last = leaf.keys[-1:]
        self._add_page(0, separator[0], shared, encode_leaf(leaf, self._width))
        return rows

    def _write_inner(self, depth: int, rows: int) -> None:
        page = self._levels[depth].inner(rows, self._width)
        self._add_page(depth + 1, page.keys[0], bool(page.shared[0]), encode_inner(page, self._width))

    def _add_page(self, depth: int, separator: Any, shared: bool, body: bytes) -> None:
        if depth == len(self._levels):
            self._levels.append(_Level())
        level = self._levels[depth]
        if len(level.references) == MOST_ROWS:  # more than a page takes
            self._write_inner(depth, inner_rows(np.array(level.separators), self._width))
        self._output.write(body)
        level.separators.append(separator)
        level.shared.append(shared)
        level.references.append(PageRef(self.offset, len(body), crc32(body)))
        self.offset += len(body)


def _separator(before: Keys, first: Keys) -> Keys:
    """The shortest key greater than ``before`` and not greater than ``first``; ``first`` itself if both are equal."""
    if before[0] == first[0]:
        return first
    width = max(before.dtype.itemsize, first.dtype.itemsize)
    is_number = first.dtype == np.uint64
    low, high = (as_matrix(key if is_number else key.astype(f"S{width}"))[0] for key in (before, first))
    matrix = high.copy()
    matrix[int(np.flatnonzero(low != high)[0]) + 1 :] = 0
    return from_matrix(matrix.reshape(1, -1)) if is_number else as_strings(matrix.reshape(1, -1))

"""Reads a tree: looks up keys, each page once however many keys there are, and goes through it in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dolmen.index.key_bytes import Keys
from dolmen.index.pages import InnerPage, LeafPage, PageRef, Places

_PAGES_AT_ONCE = 64


class PageSource(Protocol):
    """Gives pages by their references."""

    def pages(self, references: Sequence[PageRef]) -> Iterator[LeafPage | InnerPage]:
        """The pages, in the order of their references. Raises CorruptionError."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree: its root, and where its other pages come from."""

    root: LeafPage | InnerPage
    source: PageSource

    def find(self, keys: Keys) -> Iterator[tuple[npt.NDArray[np.int64], Places]]:
        """The entries of some keys, part by part: for each the place of its key in ``keys``, and where its row is.

        Args:
            keys: distinct, in ascending order.

        Raises:
            CorruptionError: a page is not what its reference says.
        """
        if len(keys):
            yield from self._find(self.root, keys, 0)

    def leaves(self, least: Keys | None = None, greatest: Keys | None = None) -> Iterator[LeafPage]:
        """The leaves with the keys from ``least`` to ``greatest``, cut to these, in order.

        Args:
            least, greatest: an array of one key each; None = no bound.

        Raises:
            CorruptionError: a page is not what its reference says.
        """
        yield from self._leaves(self.root, least, greatest)

    def _find(
        self, page: LeafPage | InnerPage, keys: Keys, start: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], Places]]:
        if isinstance(page, LeafPage):
            begin, end = np.searchsorted(page.keys, keys, "left"), np.searchsorted(page.keys, keys, "right")
            counts = end - begin
            total = int(counts.sum())
            if total:
                rows = np.arange(total) - np.repeat(np.cumsum(counts) - counts - begin, counts)
                yield np.repeat(np.arange(start, start + len(keys)), counts), page.places[rows]
            return
        first, last = page.below(keys, keys)
        below = np.arange(int(first[0]), int(last[-1]) + 1)
        begin, end = np.searchsorted(last, below, "left"), np.searchsorted(first, below, "right")
        wanted = np.flatnonzero(end > begin)
        for at in range(0, len(wanted), _PAGES_AT_ONCE):
            some = wanted[at : at + _PAGES_AT_ONCE]
            pages = self.source.pages([page.reference(int(below[row])) for row in some])
            for child, low, high in zip(pages, begin[some].tolist(), end[some].tolist(), strict=True):
                yield from self._find(child, keys[low:high], start + low)

    def _leaves(self, page: LeafPage | InnerPage, least: Keys | None, greatest: Keys | None) -> Iterator[LeafPage]:
        if isinstance(page, LeafPage):
            begin = 0 if least is None else int(np.searchsorted(page.keys, least, "left")[0])
            end = len(page.keys) if greatest is None else int(np.searchsorted(page.keys, greatest, "right")[0])
            if begin < end:
                yield LeafPage(page.keys[begin:end], page.places[begin:end])
            return
        low, high = page.keys[:1] if least is None else least, page.keys[-1:] if greatest is None else greatest
        begin = 0 if least is None else int(page.below(low, low)[0][0])
        end = len(page.keys) if greatest is None else int(page.below(high, high)[1][0]) + 1
        for at in range(begin, end, _PAGES_AT_ONCE):
            rows = range(at, min(end, at + _PAGES_AT_ONCE))
            for child in self.source.pages([page.reference(row) for row in rows]):
                yield from self._leaves(child, least, greatest)

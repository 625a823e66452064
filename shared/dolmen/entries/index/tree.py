"""Reads a tree: looks up keys, each page once however many keys there are, and goes through it in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dolmen.entries.index.key_bytes import Keys
from dolmen.entries.index.pages import InnerPage, LeafPage, PageRef, Places

_PAGES_AT_ONCE = 64

Page: TypeAlias = LeafPage | InnerPage
ReadPages: TypeAlias = Callable[[Iterable[tuple[int, PageRef]]], Iterator[Page]]
"""Gives pages of several trees: takes the number of the tree and the reference of each, and keeps their order."""


class PageSource(Protocol):
    """Gives pages by their references."""

    def pages(self, references: Sequence[PageRef]) -> Iterator[Page]:
        """The pages, in the order of their references. Raises CorruptionError."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree: its root, and where its other pages come from."""

    root: Page
    source: PageSource

    def find(self, keys: Keys) -> Iterator[tuple[npt.NDArray[np.int64], Places]]:
        """The entries of some keys, part by part: for each the place of its key in ``keys``, and where its row is.

        Args:
            keys: distinct, in ascending order.

        Raises:
            CorruptionError: a page is not what its reference says.
        """
        found = find_all([self.root], keys, lambda wanted: self.source.pages([reference for _, reference in wanted]))
        yield from ((at, places) for _, at, places in found)

    def leaves(self, least: Keys | None = None, greatest: Keys | None = None) -> Iterator[LeafPage]:
        """The leaves with the keys from ``least`` to ``greatest``, cut to these, in order.

        Args:
            least, greatest: an array of one key each; None = no bound.

        Raises:
            CorruptionError: a page is not what its reference says.
        """
        yield from self._leaves(self.root, least, greatest)

    def _leaves(self, page: Page, least: Keys | None, greatest: Keys | None) -> Iterator[LeafPage]:
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


def find_all(roots: Sequence[Page], keys: Keys, read: ReadPages) -> Iterator[tuple[int, npt.NDArray[np.int64], Places]]:
    """The entries of some keys in several trees, level by level, so that a level of all trees is read together.

    Args:
        roots: of the trees.
        keys: distinct, in ascending order.

    Yields:
        the number of a tree; for some of its entries the place of each one's key in ``keys``; and where its row is.
    """
    level: Iterable[tuple[int, Page, int, int]] = ((tree, page, 0, len(keys)) for tree, page in enumerate(roots))
    while len(keys):
        below: list[tuple[int, PageRef, int, int]] = []
        for tree, page, low, high in level:
            if isinstance(page, InnerPage):
                below += ((tree, *wanted) for wanted in _pages_with(page, keys, low, high))
                continue
            at, places = _entries(page, keys[low:high])
            if len(at):
                yield tree, at + low, places
        if not below:
            return
        pages = read((tree, reference) for tree, reference, _, _ in below)
        level = ((tree, page, low, high) for (tree, _, low, high), page in zip(below, pages, strict=True))


def _entries(leaf: LeafPage, keys: Keys) -> tuple[npt.NDArray[np.int64], Places]:
    """The entries of a leaf with some keys: the place of each one's key among these, and where its row is."""
    begin, end = np.searchsorted(leaf.keys, keys, "left"), np.searchsorted(leaf.keys, keys, "right")
    counts = end - begin
    rows = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts - begin, counts)
    return np.repeat(np.arange(len(keys)), counts), leaf.places[rows]


def _pages_with(page: InnerPage, keys: Keys, low: int, high: int) -> Iterator[tuple[PageRef, int, int]]:
    """The pages below that may have some of the keys from ``low`` to ``high``, and which of them each may have."""
    first, last = page.below(keys[low:high], keys[low:high])
    below = np.arange(int(first[0]), int(last[-1]) + 1)
    begin, end = np.searchsorted(last, below, "left"), np.searchsorted(first, below, "right")
    for row in np.flatnonzero(end > begin).tolist():
        yield page.reference(int(below[row])), low + int(begin[row]), low + int(end[row])

"""Looks keys up in one tree of an index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dolmen.entries.index.key_encoding import Keys
from dolmen.entries.index.pages import Addresses, Tree, find_all


def find(tree: Tree, keys: Keys) -> Iterator[tuple[npt.NDArray[np.int64], Addresses]]:
    """The entries of some keys, part by part: for each the index of its key, and where its row is."""
    found = find_all([tree.root], keys, lambda wanted: tree.read([reference for _, reference in wanted]))
    yield from ((at, places) for _, at, places in found)

"""Sets of millions of keys, in 8 bytes per key."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from dolmen.base.cached import cached_property

Codes = npt.NDArray[np.int64]


def stable_code(key: str) -> int:
    """64 bits of a key that are the same in every process, unlike Python's ``hash`` of a text."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)


def stable_codes(keys: Iterable[str]) -> Codes:
    """The codes of keys, ascending and without repetitions."""
    return np.unique(np.fromiter(map(stable_code, keys), np.int64))


class KeySet:
    """A set of keys without false negatives; a false positive has a probability of 2^-64 per key and question.

    It holds sorted 64-bit hashes. On a false positive, collection keeps an object that it could have deleted.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._codes = array("q", map(hash, keys))
        self._code: Callable[[str], int] = hash

    @classmethod
    def of_codes(cls, parts: Sequence[Codes]) -> KeySet:
        """The union of parts that other processes found with ``stable_codes``."""
        found = cls(())
        found._code = stable_code
        for part in parts:
            found._codes.frombytes(np.ascontiguousarray(part, np.int64).tobytes())
        return found

    @cached_property
    def _sorted(self) -> Codes:
        codes = np.frombuffer(self._codes, np.int64).copy()
        self._codes = array("q")
        codes.sort()
        return codes

    def __len__(self) -> int:
        """Number of keys that were given, including repetitions."""
        return len(self._sorted)

    def holds(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each of ``keys`` is in the set."""
        wanted = np.fromiter(map(self._code, keys), np.int64, len(keys))
        ordered = self._sorted
        if not len(ordered):
            return np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        held: npt.NDArray[np.bool_] = ordered[places] == wanted
        return held

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.holds([key])[0])

"""Sets of keys in 8 bytes each: who may stay is asked of a set of millions."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]


def stable_code(key: str) -> int:
    """64 bits of a key that are the same in every process; Python's own ``hash`` of a text is not."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)


def stable_codes(keys: Iterable[str]) -> Codes:
    """The codes of keys, ascending, each once."""
    return np.unique(np.fromiter(map(stable_code, keys), np.int64))


class KeySet:
    """A set that never forgets a key, and takes one it was not given for its own once in 2^64 questions per key.

    It holds 64-bit hashes, sorted. Where it is wrong collection keeps an object that it could have deleted.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._codes = array("q", map(hash, keys))
        self._code: Callable[[str], int] = hash

    @classmethod
    def of_codes(cls, parts: Sequence[Codes]) -> KeySet:
        """The union of what other processes have found, as ``stable_codes``."""
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
        """How many keys it was given, repetitions included."""
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

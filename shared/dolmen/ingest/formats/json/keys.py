"""Counts the different keys in lines of JSON, before they become columns.

pyarrow gives all rows of a block a value for each key in it, which takes seconds for thousands of keys, and minutes for
tens of thousands. Most blocks have few: some of their lines tell.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np

from dolmen.errors import LimitError
from dolmen.format.decoding import prepare

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

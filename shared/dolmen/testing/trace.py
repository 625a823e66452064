"""The history in words: its last lines for people, its digest for comparing runs."""

from __future__ import annotations

import hashlib
from collections import deque

from dolmen.testing.scheduler import START_US


class Trace:
    """Keeps the last lines and a digest of all.

    Args:
        keep: how many lines to keep.
    """

    def __init__(self, keep: int = 60) -> None:
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=keep)
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, now_us: int, who: str, what: str) -> None:
        """Adds a line."""
        self._lines.append((now_us, who, what))
        self._hash.update(f"{now_us} {who} {what}\n".encode())

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        return self._hash.hexdigest()

    def lines(self) -> list[str]:
        """The last lines, oldest first, with virtual seconds since the beginning."""
        return [f"{(now_us - START_US) / 1e6:12.6f}  {who:<14} {what}" for now_us, who, what in self._lines]

"""Files as messages: when a file is complete, and how one is written whole."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAMESPACE = uuid.UUID("6f0f7c58-5d0a-4c5e-9a3f-2f6b3f0f1d11")

Stamp = tuple[int, int, int]
"""Inode, time of the last change in nanoseconds, and size: a file with the same stamp is the same file, unchanged."""


@dataclass(slots=True)
class Letter:
    """A message of this machine.

    Args:
        id: the same after a restart.
        name: name of its file, for people.
        body: text of the message.
        tries: how often it was delivered.
        due: when to deliver it (again), in seconds of the runtime's monotonic clock.
    """

    id: str
    name: str
    body: str
    stamp: Stamp
    tries: int = 0
    due: float = 0.0


class FileWatch:
    """Tells which files are complete: those that have the same stamp at two looks."""

    def __init__(self) -> None:
        self._last: dict[str, Stamp] = {}

    def unchanged(self, now: dict[str, Stamp]) -> list[str]:
        """Returns the names in ``now`` whose stamps are those of the last call."""
        names = [name for name, stamp in now.items() if self._last.get(name) == stamp]
        self._last = now
        return names


def letter_id(*parts: str) -> str:
    """The id of a letter that these texts identify: the same after a restart."""
    return str(uuid.uuid5(_NAMESPACE, "\n".join(parts)))


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def list_files(root: Path, *, below: bool = True) -> Iterator[tuple[str, Stamp]]:
    """Lists the files under ``root``: the path relative to it, with ``/``, and the stamp.

    Names that are not Unicode text are left out, as no event can hold them.

    Args:
        below: also those in its directories.
    """
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if below and not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            try:
                relative.encode()
                found = os.stat(path)
            except (UnicodeEncodeError, FileNotFoundError):
                continue
            if stat.S_ISREG(found.st_mode) and not name.startswith("."):
                yield relative, (found.st_ino, found.st_mtime_ns, found.st_size)

"""What an actor meant to do, and what it was told: a file of its own, synced line by line, that outlives its death."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def read(path: Path) -> list[Entry]:
    """All whole lines; one that is being written, or that a kill cut off, is no line yet."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


class Journal:
    """An actor's own journal.

    Args:
        path: continues what is there.
    """

    def __init__(self, path: Path) -> None:
        self.entries = read(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        os.ftruncate(self._fd, len(content.rpartition(b"\n")[0]) + 1 if b"\n" in content else 0)
        os.lseek(self._fd, 0, os.SEEK_END)

    def write(self, kind: str, **facts: Any) -> None:
        """One line, on disk when this returns."""
        entry = {"kind": kind, **facts}
        os.write(self._fd, json.dumps(entry).encode() + b"\n")
        os.fsync(self._fd)
        self.entries.append(entry)


class Steps:
    """What a journal says of an actor that does one step after the other."""

    def __init__(self, entries: list[Entry]) -> None:
        self.intents = [entry for entry in entries if entry["kind"] == "intent"]
        self.ends: dict[int, Entry] = {
            entry["step"]: entry for entry in entries if entry["kind"] in ("acknowledged", "refused", "unknown")
        }

    @property
    def unended(self) -> Entry | None:
        """The last intent, if its end is not known."""
        if self.intents and self.intents[-1]["step"] not in self.ends:
            return self.intents[-1]
        return None

    def landed(self, step: int, version: int) -> bool | None:
        """Whether a step stands in a version; None = nobody can tell from here."""
        match self.ends.get(step):
            case {"kind": "acknowledged", "version": int(at)}:
                return at <= version
            case {"kind": "refused"}:
                return False
        return None


def journals(directory: Path) -> Iterator[tuple[str, list[Entry]]]:
    """All journals by their actors' names."""
    for path in sorted(directory.glob("*.jsonl")):
        yield path.stem, read(path)

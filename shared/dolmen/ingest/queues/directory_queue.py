"""A queue on one machine: a directory in which each message is a file.

::

    queue/<name>.json           messages that wait, those of users among them
    queue/.claimed/<id>.<name>  messages that were delivered, until they are done
    dead-letters/*.json         beside the queue: messages that the local pipeline gave up

Files as messages: when a file is complete, and how one is written whole.
"""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB
from dolmen.errors import NotFoundError
from dolmen.ingest.queues.queue import QueueDepth, check_sizes

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
    """Finds the files that are complete: those that have the same stamp in two listings."""

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
    """Writes a file so that it exists whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def list_files(root: Path, *, below: bool = True) -> Iterator[tuple[str, Stamp]]:
    """Lists the files under ``root``: the path relative to it, with ``/``, and the stamp.

    Names that are not Unicode text are left out, because no event can contain them.

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


MAX_FILE_BYTES = 64 * MIB
"""The most bytes of one message: as many as a delete request may have."""


_MAX_SHOWN_BYTES = 200


class DirectoryQueue:
    """A queue whose messages are the ``*.json`` files of a directory. Anyone may put one there, by any name.

    A file is claimed when it is delivered: it is renamed into ``.claimed``, so another file of its name is another
    message.

    Args:
        root: the directory.

    Raises:
        NotFoundError: there is no such directory.
    """

    max_bytes = MAX_FILE_BYTES

    def __init__(self, root: Path, runtime: Runtime) -> None:
        if not root.is_dir():
            raise NotFoundError(
                f"there is no directory {str(root)!r}: start 'dolmen local', which makes one, or say where"
            )
        self.url, self.root, self._runtime = str(root), root, runtime
        self._claimed = root / ".claimed"
        self._watch = FileWatch()
        self._is_first_listing = True
        self.has_incomplete = False

    @property
    def dead_letters(self) -> Path:
        """The directory in which the local pipeline puts messages that it gave up."""
        return self.root.absolute().parent / "dead-letters"

    def send(self, bodies: Sequence[str]) -> None:
        check_sizes([len(body.encode()) for body in bodies], self.max_bytes)
        for body in bodies:
            name = f"{self._runtime.clock_us():017d}-{self._runtime.uuid()[:12]}.json"
            write_whole(self.root / name, body)

    def receive(self) -> Iterator[Letter]:
        """Delivers the files that are complete, and those that an earlier process claimed and did not finish."""
        self._claimed.mkdir(exist_ok=True)
        if self._is_first_listing:
            self._is_first_listing = False
            for path in sorted(self._claimed.glob("*.json")):
                yield _read_letter(path)
        now = {name: stamp for name, stamp in list_files(self.root, below=False) if name.endswith(".json")}
        complete = self._watch.unchanged(now)
        self.has_incomplete = len(complete) < len(now)
        for name in complete:
            shown = name if len(name.encode()) <= _MAX_SHOWN_BYTES else "long-name.json"
            claimed = self._claimed / f"{letter_id(name, *map(str, now[name]))}.{shown}"
            try:
                os.rename(self.root / name, claimed)
            except FileNotFoundError:
                continue
            yield _read_letter(claimed)

    def acknowledge(self, letter: Letter, *, given_up: bool = False) -> None:
        """Removes a message that is done, or that a dead letter holds now."""
        (self._claimed / f"{letter.id}.{letter.name}").unlink(missing_ok=True)

    def waiting(self) -> int:
        return sum(1 for _ in self.root.glob("[!.]*.json"))

    def depth(self) -> QueueDepth:
        dead = self.dead_letters
        return QueueDepth(
            self.waiting(),
            sum(1 for _ in self._claimed.glob("*.json")),
            sum(1 for _ in dead.glob("delete-*.json")),
            str(dead),
        )

    def find_messages(self) -> Iterator[dict[str, Any]]:
        """Reads the messages that wait or are being handled, as JSON objects; empty for one that is not an object."""
        for path in (*self.root.glob("[!.]*.json"), *self._claimed.glob("*.json")):
            yield _read_object(path)

    def find_dead_letters(self) -> Iterator[dict[str, Any]]:
        """Reads the delete requests that were given up, each with its ``body`` and the ``reason``."""
        for path in sorted(self.dead_letters.glob("delete-*.json")):
            yield _read_object(path)


def _read_letter(claimed: Path) -> Letter:
    id_, _, name = claimed.name.partition(".")
    try:
        body = claimed.read_bytes().decode(errors="replace")
    except OSError as error:
        body = f"the file cannot be read: {error}"  # this is no request, and is given up with this text
    return Letter(id_, name, body, (0, 0, 0))


def _read_object(path: Path) -> dict[str, Any]:
    """Reads the JSON object in a file; an empty one if there is none that can be read."""
    try:
        if path.stat().st_size > 2 * MAX_FILE_BYTES:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # removed in the meantime, or not JSON, which the function reports
        return {}
    return found if isinstance(found, dict) else {}

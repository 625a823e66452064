"""Messages on one machine: files of two directories, delivered until they succeed or are given up."""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dolmen.errors import Error, ObjectNotFoundError
from dolmen.ingest.announcements import DIRECTORY_BUCKET, Drop, write_notification, write_record
from dolmen.ingest.landing import is_temporary
from dolmen.runtime import Runtime
from dolmen.store.local.store import LocalStore

_MAX_SHOWN_BYTES = 200
_NAMESPACE = uuid.UUID("6f0f7c58-5d0a-4c5e-9a3f-2f6b3f0f1d11")

Stamp = tuple[int, int, int]
"""Inode, time of the last change in nanoseconds, and size: what tells whether a file is still the same."""


@dataclass(slots=True)
class Letter:
    """A message on its way.

    Args:
        id: the same after a restart.
        name: of the file it is about, for people.
        body: what the queue would hold.
        tries: how often it was delivered.
        due: when to deliver it (again), by the runtime's monotonic clock.
    """

    id: str
    name: str
    body: str
    stamp: Stamp
    tries: int = 0
    due: float = 0.0


class FileWatch:
    """Tells which files have come to rest: same stamp at two looks."""

    def __init__(self) -> None:
        self._last: dict[str, Stamp] = {}

    def at_rest(self, now: dict[str, Stamp]) -> list[str]:
        """Those of ``now`` that have not changed since the last look."""
        resting = [name for name, stamp in now.items() if self._last.get(name) == stamp]
        self._last = now
        return resting


class LandingDirectory:
    """Announces files dropped under a directory, as S3 would. The files stay: what was handled is remembered.

    Forgetting (a lost state directory) costs reading and no more while the database knows the drops' ids.
    """

    def __init__(self, root: Path, state: Path, runtime: Runtime) -> None:
        self._root, self._log = root, state / "landing.jsonl"
        self._store = LocalStore(root, runtime)
        self._settling = FileWatch()
        self._announced = self._read_log()
        self.unsettled = False

    def poll(self) -> Iterator[Letter]:
        """The files that have come to rest since the last call, each once until it changes."""
        now = {
            name: stamp
            for name, stamp in _files(self._root)
            if not is_temporary(name) and self._announced.get(name) != stamp
        }
        resting = self._settling.at_rest(now)
        self.unsettled = len(resting) < len(now)
        for name in resting:
            self._announced[name] = now[name]
            try:
                etag = self._store.head(name).etag
            except ObjectNotFoundError:
                continue  # removed meanwhile
            except Error:
                etag = "unreadable"  # the function will find out why, and say so
            _, changed_ns, size = now[name]
            drop = Drop(DIRECTORY_BUCKET, name, size, etag, sequencer=f"{changed_ns:016X}")
            yield Letter(_id(name, etag), name, write_notification([write_record(drop)]), now[name])

    def done(self, letter: Letter, *, given_up: bool = False) -> None:
        """Remembers that a file need not be announced again. One that was given up is, after a restart."""
        if given_up:
            return
        with self._log.open("a") as log:
            log.write(json.dumps([letter.name, *letter.stamp]) + "\n")

    def _read_log(self) -> dict[str, Stamp]:
        """Reads the log, and writes it anew without what is gone."""
        there = dict(_files(self._root))
        kept: dict[str, Stamp] = {}
        if self._log.exists():
            for line in self._log.read_text().splitlines():
                try:
                    name, *stamp = json.loads(line)
                except ValueError:
                    continue  # a last line that a crash cut off
                if there.get(name) == tuple(stamp):
                    kept[name] = there[name]
        write_whole(self._log, "".join(json.dumps([name, *stamp]) + "\n" for name, stamp in kept.items()))
        return kept


class QueueDirectory:
    """Delivers the ``*.json`` files of a directory, as SQS would: each is gone once it is done.

    A file is claimed first, by renaming it into ``.claimed``: another one of its name is then another message.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._claimed = root, root / ".claimed"
        self._claimed.mkdir(parents=True, exist_ok=True)
        self._settling = FileWatch()
        self._left = sorted(self._claimed.glob("*.json"))  # by a run that ended before they were done
        self.unsettled = False

    def poll(self) -> Iterator[Letter]:
        """The files that have come to rest since the last call."""
        for path in self._left:
            yield self._letter(path)
        self._left = []
        now = {name: stamp for name, stamp in _files(self._root, below=False) if name.endswith(".json")}
        resting = self._settling.at_rest(now)
        self.unsettled = len(resting) < len(now)
        for name in resting:
            shown = name if len(name.encode()) <= _MAX_SHOWN_BYTES else "long-name.json"
            claimed = self._claimed / f"{_id(name, *map(str, now[name]))}.{shown}"
            try:
                os.rename(self._root / name, claimed)
            except FileNotFoundError:
                continue
            yield self._letter(claimed)

    def done(self, letter: Letter, *, given_up: bool = False) -> None:
        """Takes the message off the queue."""
        (self._claimed / f"{letter.id}.{letter.name}").unlink(missing_ok=True)

    def _letter(self, claimed: Path) -> Letter:
        id_, _, name = claimed.name.partition(".")
        try:
            body = claimed.read_bytes().decode(errors="replace")
        except OSError as error:
            body = f"the file cannot be read: {error}"  # which is no request either, and is given up with this text
        return Letter(id_, name, body, (0, 0, 0))


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _files(root: Path, *, below: bool = True) -> Iterator[tuple[str, Stamp]]:
    """Files by their path under ``root``, with ``/``. Names that are no text are left out: no event can say them."""
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


def _id(*parts: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, "\n".join(parts)))

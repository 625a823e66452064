"""The directories of a local pipeline, and the landing directory, whose files are announced as S3 announces objects."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dolmen.base.runtime import Runtime
from dolmen.errors import Error, ObjectNotFoundError
from dolmen.ingest.announcements import DIRECTORY_BUCKET, Drop, write_notification, write_record
from dolmen.ingest.landing import is_temporary
from dolmen.ingest.queues import FileWatch, Letter, Stamp, letter_id, list_files, write_whole
from dolmen.store.local_store import LocalStore


@dataclass(frozen=True, slots=True)
class LocalLayout:
    """The directories of a local pipeline, as ``make up`` lays them out::

    .local/
      database/              the database
      landing/<table>/...    drop files here; they stay, unless their table says otherwise (ingest_landing: expire)
      queue/*.json           drop delete requests here; they are removed once they are applied
      rejected/<table>/...   files and rows that could not be read, each with a <name>.error.json
      dead-letters/*.json    messages that failed repeatedly, with the reason
      state/                 the lists of finished files, the functions' log, the lock
    """

    database: str
    landing: Path
    queue: Path
    rejected: Path
    dead_letters: Path
    state: Path

    @classmethod
    def under(cls, root: str | os.PathLike[str], database: str | None = None) -> LocalLayout:
        """The ordinary layout in one directory.

        Args:
            database: its URL, if it is elsewhere.
        """
        base = Path(root).expanduser().absolute()
        names = (base / name for name in ("landing", "queue", "rejected", "dead-letters", "state"))
        return cls(database or str(base / "database"), *names)

    @classmethod
    def beside(cls, landing: str | os.PathLike[str], queue: str | os.PathLike[str], database: str) -> LocalLayout:
        """The layout around given directories: the others are siblings of the landing directory."""
        landing = Path(landing).expanduser().absolute()
        base = cls.under(landing.parent, database)
        return cls(database, landing, Path(queue).expanduser().absolute(), base.rejected, base.dead_letters, base.state)

    def make(self) -> None:
        """Makes the directories that are missing, but for the database's."""
        for directory in (self.landing, self.queue, self.rejected, self.dead_letters, self.state):
            directory.mkdir(parents=True, exist_ok=True)


class LandingDirectory:
    """Announces files dropped under a directory, as S3 would. The files stay, and a log lists those that are done.

    A lost log only costs reading the files again, as long as the database remembers the drops' ids.
    """

    def __init__(self, root: Path, state: Path, runtime: Runtime) -> None:
        self._root, self._log = root, state / "landing.jsonl"
        self._store = LocalStore(root, runtime)
        self._watch = FileWatch()
        self._announced = self._read_log()
        self.has_incomplete = False

    def receive(self) -> Iterator[Letter]:
        """Delivers the files that are complete, each once until it changes."""
        now = {
            name: stamp
            for name, stamp in list_files(self._root)
            if not is_temporary(name) and self._announced.get(name) != stamp
        }
        complete = self._watch.unchanged(now)
        self.has_incomplete = len(complete) < len(now)
        for name in complete:
            self._announced[name] = now[name]
            try:
                etag = self._store.head(name).etag
            except ObjectNotFoundError:
                continue  # removed in the meantime
            except Error:
                etag = "unreadable"  # the function will report why
            _, changed_ns, size = now[name]
            created_us = changed_ns // 1_000
            drop = Drop(DIRECTORY_BUCKET, name, size, etag, sequencer=f"{changed_ns:016X}", created_us=created_us)
            yield Letter(letter_id(name, etag), name, write_notification([write_record(drop)]), now[name])

    def acknowledge(self, letter: Letter, *, given_up: bool = False) -> None:
        """Records that a file need not be announced again. A file given up is announced again after a restart."""
        if given_up:
            return
        with self._log.open("a") as log:
            log.write(json.dumps([letter.name, *letter.stamp]) + "\n")

    def _read_log(self) -> dict[str, Stamp]:
        """Reads the log, and rewrites it without files that were removed."""
        present = dict(list_files(self._root))
        kept: dict[str, Stamp] = {}
        if self._log.exists():
            for line in self._log.read_text().splitlines():
                try:
                    name, *stamp = json.loads(line)
                except ValueError:
                    continue  # a last line that a crash cut off
                if present.get(name) == tuple(stamp):
                    kept[name] = present[name]
        write_whole(self._log, "".join(json.dumps([name, *stamp]) + "\n" for name, stamp in kept.items()))
        return kept

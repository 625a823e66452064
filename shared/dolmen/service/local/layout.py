"""The directories of a local pipeline."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalLayout:
    """The directories of a local pipeline, as ``make up`` lays them out::

    .local/
      database/              the database
      landing/<table>/...    drop files here; they stay, unless their table says otherwise (ingest_landing: expire)
      queue/*.json           drop delete requests here; they go once they are applied
      rejected/<table>/...   files and rows that could not be read, with <name>.error.json beside each
      dead-letters/*.json    messages that failed again and again, with the reason
      state/                 what was handled already, the functions' log, the lock
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
        """The layout around given directories: the others stand beside the landing one."""
        place = Path(landing).expanduser().absolute()
        base = cls.under(place.parent, database)
        return cls(database, place, Path(queue).expanduser().absolute(), base.rejected, base.dead_letters, base.state)

    def make(self) -> None:
        """Makes the directories that are missing, but for the database's."""
        for directory in (self.landing, self.queue, self.rejected, self.dead_letters, self.state):
            directory.mkdir(parents=True, exist_ok=True)

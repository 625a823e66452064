"""What all processes of a soak are told: where things are, and what the tables look like."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

import dolmen
from dolmen import Database
from dolmen.service.local import LocalLayout

ROOT = Path(__file__).parents[2]
FUNCTIONS = ROOT / "functions"

ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("writer", pa.string()), ("value", pa.int64())])
EVENTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("file", pa.int64())])
LOG = pa.schema([("writer", pa.string()), ("step", pa.int64())])
COUNTERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])

TABLES = {"rows": (ROWS, "id"), "events": (EVENTS, "id"), "log": (LOG, None), "counters": (COUNTERS, "id")}
COUNTER_IDS = range(3)

SETTINGS = {"keep_versions": 10, "orphan_age": "10m", "root_bytes": "16KB"}
"""Few versions are kept, and entries leave the manifest soon. Orphans are kept for longer than any soak stops a
process: a commit that was stopped for so long must begin again, which is not what is looked at here."""


@dataclass(frozen=True)
class World:
    """One soak.

    Args:
        directory: holds all that is not on the server: journals, landing, queue, logs, the server's own files.
        url: of the database.
        seed: decides what actors do, and what is done to them.
        grace: seconds that versions are kept, and that their readers have then.
    """

    directory: str
    url: str
    seed: int
    grace: int

    @property
    def journals(self) -> Path:
        """The actors' journals."""
        return Path(self.directory, "journals")

    @property
    def layout(self) -> LocalLayout:
        """The local pipeline's directories."""
        return LocalLayout.under(Path(self.directory, "pipeline"), self.url)

    def save(self) -> Path:
        """Writes it where ``load`` finds it."""
        path = Path(self.directory, "world.json")
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: str) -> World:
        """As it was saved."""
        return cls(**json.loads(Path(path).read_text()))

    def open(self) -> Database:
        """The database."""
        return dolmen.open(self.url)

    def prepare(self) -> None:
        """Makes directories, settings and tables."""
        self.journals.mkdir(parents=True)
        self.layout.make()
        (self.layout.landing / "events").mkdir()
        db = self.open()
        db.set(**SETTINGS, retention=f"{self.grace}s", reader_grace=f"{self.grace}s")
        for name, (schema, key) in TABLES.items():
            db.create_table(name, schema, primary_key=key, properties={"target_file_bytes": "64KB"})
        db.table("counters").append([{"id": id_, "value": 0} for id_ in COUNTER_IDS])

"""Files of changes (CDC), a model of their result, and a database that applies them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import pyarrow as pa

from dolmen import Database, Transaction
from dolmen.format.ingest_properties import IngestSettings
from dolmen.ingest.batch import BatchRequest, BatchResult, Decision, apply_together
from dolmen.ingest.cdc.apply_changes import ingest_changes
from dolmen.ingest.drops.drop_outcomes import RowCounts
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect
from dolmen.ingest.formats.source_file import BadRow
from dolmen.transactions.transaction import unit_of
from support.aging import Place

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string()), ("seq", pa.int64())])


@dataclass(frozen=True)
class Change:
    """One change: ``value`` None deletes the key."""

    key: int
    seq: int
    value: str | None

    @property
    def flat(self) -> dict[str, Any]:
        """The change as a line of the envelope ``flat``."""
        if self.value is None:
            return {"Op": "D", "id": self.key, "seq": self.seq}
        return {"Op": "U", "id": self.key, "v": self.value, "seq": self.seq}


@dataclass(frozen=True)
class File:
    """A dropped file of changes."""

    id: str
    changes: tuple[Change, ...]

    @property
    def body(self) -> bytes:
        """The file's bytes."""
        return "".join(json.dumps(change.flat) + "\n" for change in self.changes).encode()


def model(files: Sequence[File]) -> dict[int, tuple[int, str]]:
    """The expected rows, as sequence and value by key: the change with the greatest sequence of each key wins."""
    newest: dict[int, Change] = {}
    for change in (change for file in files for change in file.changes):
        if change.key not in newest or newest[change.key].seq < change.seq:
            newest[change.key] = change
    return {key: (change.seq, change.value) for key, change in newest.items() if change.value is not None}


def history(rng: random.Random, changes: int, keys: int) -> list[Change]:
    """Makes changes of few keys, with sequences from 1 on, in order."""
    return [
        Change(rng.randrange(keys), seq, None if rng.random() < 0.3 else f"{seq}/{rng.randrange(100)}")
        for seq in range(1, changes + 1)
    ]


def cut(rng: random.Random, changes: Sequence[Change], files: int) -> list[File]:
    """Divides the changes into files, some of them into several, and out of order within a file."""
    made: list[list[Change]] = [[] for _ in range(files)]
    for place, change in enumerate(changes):
        home = min(files - 1, place * files // len(changes))
        homes = {home} if rng.random() < 0.6 else {home, rng.randrange(files)}
        if rng.random() < 0.1:
            homes = {rng.randrange(files)}
        for each in homes:
            made[each].append(change)
    for held in made:
        if rng.random() < 0.5:
            rng.shuffle(held)
    return [File(f"s3://landing/t/{number}", tuple(held)) for number, held in enumerate(made)]


@dataclass
class Feed:
    """A table that takes changes, with the outcomes of its files."""

    place: Place = field(default_factory=Place)
    table: str = "t"
    counts: dict[str, RowCounts] = field(default_factory=dict)
    bad: list[BadRow] = field(default_factory=list)
    quarantine: bool = False
    portion_rows: int = 500_000

    def create(
        self, schema: pa.Schema = COLUMNS, key: str | list[str] = "id", name: str | None = None, **properties: Any
    ) -> None:
        """Creates the table."""
        told = {"ingest_mode": "cdc", "cdc_envelope": "flat", "cdc_sequence": "seq", **properties}
        self.place.db.create_table(name or self.table, schema, primary_key=key, properties=told)

    def request(self, id: str, body: bytes, name: str = "t/changes.jsonl") -> BatchRequest:
        """Makes a request of one file."""

        def state(transaction: Transaction) -> Decision:
            self.bad = []
            settings = IngestSettings.of(unit_of(transaction).entry(self.table))
            self.counts[id] = ingest_changes(
                transaction,
                self.table,
                SourceFile(lambda: BytesIO(body), detect(name), name, ReadOptions.of(settings)),
                settings=settings,
                on_bad_row=self.bad.append if self.quarantine else None,
                request=id,
                portion_rows=self.portion_rows,
            )
            return "apply"

        return BatchRequest(id, id, state)

    def deliver(self, *files: File, database: Database | None = None) -> BatchResult:
        """Applies files in one batch; raises the error of a failed one."""
        return self.apply(*(self.request(file.id, file.body) for file in files), database=database)

    def drop(self, id: str, body: bytes, name: str = "t/changes.jsonl") -> RowCounts:
        """Applies one file."""
        self.apply(self.request(id, body, name))
        return self.counts[id]

    def apply(self, *requests: BatchRequest, database: Database | None = None) -> BatchResult:
        """Applies a batch; raises the error of a failed request."""
        folded = apply_together(database or self.place.db, "ingest", requests)
        for outcome in folded.outcomes:
            if outcome.error:
                raise outcome.error
        return folded

    def rows(self) -> dict[int, tuple[int, str]]:
        """The rows as sequence and value by key, like the model. Fails if a key has two rows."""
        found = self.place.db.table(self.table).to_arrow().to_pylist()
        by_key = {row["id"]: (row["seq"], row["v"]) for row in found}
        assert len(by_key) == len(found), "a key is there twice"
        return by_key

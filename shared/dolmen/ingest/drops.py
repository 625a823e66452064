"""Dropped files become rows: a batch of them is one commit, each file is in it once and whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

import pyarrow as pa

from dolmen.database import Database
from dolmen.errors import (
    InputError,
    ObjectChangedError,
    ObjectNotFoundError,
    TableExistsError,
    TableNotFoundError,
)
from dolmen.ingest.events import Drop
from dolmen.ingest.folding import Outcome, Request, apply_together
from dolmen.ingest.formats import detect, infer, read
from dolmen.ingest.landing import Landing, Place
from dolmen.ingest.rejects import Reject, reject, was_rejected
from dolmen.results import Commit
from dolmen.transaction import Transaction

Status = Literal["ingested", "duplicate", "rejected", "superseded", "ignored", "failed"]


@dataclass(frozen=True, slots=True)
class DropOutcome:
    """What became of a drop.

    Args:
        status: ``ingested``, with ``rows`` and ``version``; a ``duplicate`` of one that ``version`` ingested;
            ``rejected``, with ``reject`` and the ``error``; ``superseded``: gone, or overwritten by a newer object,
            which has an event of its own; ``ignored``: nothing that is to be ingested; ``failed``: for the moment,
            by ``error``, so it must be delivered again.
    """

    drop: Drop
    status: Status
    rows: int = 0
    version: int | None = None
    reject: Reject | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of a batch of drops: an outcome for each, in their order, and the commit, if there was one."""

    outcomes: list[DropOutcome]
    commit: Commit | None


def ingest_drops(
    database: Database,
    landing: Landing,
    drops: Sequence[Drop],
    *,
    auto_create: bool = False,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Ingested:
    """Ingests files into the tables that their places name, in ONE commit.

    A file that cannot be read (damaged, malformed, not of the table's schema, or for a table that does not exist)
    goes to the rejects, with the reason. What only fails for the moment is reported as failed, to be delivered again.

    Args:
        auto_create: create a table that does not exist, with the schema that its first readable file of the batch
            has. That is a commit of its own, before the rows: when two do it at once, both use what one committed.
        out_of_time: once it is true, files not begun yet fail.
    """
    outcomes: dict[int, DropOutcome] = {}
    ingestions: dict[int, _Ingestion] = {}
    for index, drop in enumerate(drops):
        place = landing.place(drop)
        if place is None:
            outcomes[index] = DropOutcome(drop, "ignored")
        else:
            ingestions[index] = _Ingestion(database, landing, drop, place)
    if auto_create and ingestions:
        _create_tables(database, list(ingestions.values()))
    requests = [Request(each.drop.id, each.drop.etag or each.drop.id, each.state) for each in ingestions.values()]
    folded = apply_together(database, "ingest", requests, out_of_time=out_of_time)
    for (index, ingestion), outcome in zip(ingestions.items(), folded.outcomes, strict=True):
        outcomes[index] = ingestion.outcome(outcome)
    return Ingested([outcomes[index] for index in range(len(drops))], folded.commit)


@dataclass(slots=True)
class _Ingestion:
    """One file on its way into its table."""

    database: Database
    landing: Landing
    drop: Drop
    place: Place
    rows: int = 0
    settled: DropOutcome | None = None
    no_table: Exception | None = field(default=None)
    """Why its table could not be created."""

    def state(self, transaction: Transaction) -> bool:
        """Adds the file's rows to the transaction; False if it is rejected or superseded instead."""
        drop = self.drop
        if before := self.rejected_before():
            self.settled = DropOutcome(drop, "rejected", reject=before)
            return False
        try:
            try:
                self._append(transaction)
            except (InputError, TableNotFoundError) as error:
                about = {"url": self.database.url, "version": self.database.version}
                rejected = reject(self.landing, drop, self.place, error, about)
                self.settled = DropOutcome(drop, "rejected", reject=rejected, error=error)
                return False
        except (ObjectNotFoundError, ObjectChangedError) as error:
            self.settled = DropOutcome(drop, "superseded", error=error)
            return False
        return True

    def rejected_before(self) -> Reject | None:
        """The reject of this very event. It is final: whoever reads the report drops the file again, which must not
        meet a late repetition of the first event that now succeeds too."""
        return was_rejected(self.landing, self.drop, self.place) if self.drop.sequencer else None

    def _append(self, transaction: Transaction) -> None:
        try:
            table = transaction.table(self.place.table)
        except TableNotFoundError:
            reason = f"no table {self.place.table!r}: create it, then drop the file again"
            raise self.no_table or TableNotFoundError(reason) from None
        reader = read(self.opened, detect(self.place.path), table.schema, name=self.place.path)
        self.rows = 0
        table.append(pa.RecordBatchReader.from_batches(reader.schema, self._counted(reader)), request=self.drop.id)

    def _counted(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            self.rows += batch.num_rows
            yield batch

    def opened(self) -> BinaryIO:
        """The dropped file, from its beginning."""
        return self.landing.open(self.drop)

    def outcome(self, outcome: Outcome) -> DropOutcome:
        """What became of it, given what became of its request."""
        match outcome.status:
            case "applied":
                return DropOutcome(self.drop, "ingested", self.rows, outcome.version)
            case "duplicate":
                return DropOutcome(self.drop, "duplicate", version=outcome.version)
            case "settled":
                assert self.settled is not None
                return self.settled
        return DropOutcome(self.drop, "failed", error=outcome.error)


def _create_tables(database: Database, ingestions: Sequence[_Ingestion]) -> None:
    """Creates the tables that are missing, each by the first file for it whose types can be told.

    Whoever loses against another creator of the same table uses what that one committed: rows are read by the
    committed schema alone.
    """
    transaction = database.transaction()
    there = set(transaction.manifest.tables)
    done = transaction.applied_before({ingestion.drop.id for ingestion in ingestions})
    for ingestion in ingestions:
        name = ingestion.place.path.partition("/")[0]
        if name in there or ingestion.drop.id in done:
            continue
        try:
            if ingestion.rejected_before():
                continue
            path = ingestion.place.path
            schema = infer(ingestion.opened, detect(path), name=path)
            database.create_table(ingestion.place.table, schema)
        except TableExistsError:
            pass  # another was faster
        except Exception as error:  # noqa: BLE001 - settles this file, where it finds that there is no table
            ingestion.no_table = error
            continue
        there.add(name)

"""One file on its way into its table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import pyarrow as pa

from dolmen.database import Database
from dolmen.errors import InputError, ObjectChangedError, ObjectNotFoundError, TableNotFoundError
from dolmen.format.ingest_properties import IngestSettings
from dolmen.ingest.events import Drop
from dolmen.ingest.folding import Outcome
from dolmen.ingest.formats import detect, read
from dolmen.ingest.landing import Landing, Place
from dolmen.ingest.modes import keys_required, upsert_in_portions
from dolmen.ingest.outcomes import NO_ROWS, DropOutcome, RowCounts
from dolmen.ingest.rejects import Reject, reject, was_rejected
from dolmen.transaction import Transaction, TransactionTable


@dataclass(slots=True)
class Ingestion:
    """One dropped file, and what was found out about it so far.

    Args:
        no_table: why its table could not be created.
        settings: its table's, once it was read by them.
    """

    database: Database
    landing: Landing
    drop: Drop
    place: Place
    no_table: Exception | None = None
    settings: IngestSettings | None = None
    counts: RowCounts = NO_ROWS
    settled: DropOutcome | None = None
    _rows: int = field(default=0, init=False)

    def state(self, transaction: Transaction) -> bool:
        """Adds the file's rows to the transaction; False if it is rejected or superseded instead."""
        drop = self.drop
        self.counts, self.settings = NO_ROWS, None
        if before := self.rejected_before():
            self.settled = DropOutcome(drop, "rejected", reject=before)
            return False
        try:
            try:
                with transaction.together():
                    self._ingest(transaction)
            except (InputError, TableNotFoundError) as error:
                rejected = reject(self.landing, drop, self.place, error, self._about())
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

    def opened(self) -> BinaryIO:
        """The dropped file, from its beginning."""
        return self.landing.open(self.drop)

    def outcome(self, outcome: Outcome) -> DropOutcome:
        """What became of it, given what became of its request."""
        match outcome.status:
            case "applied":
                return DropOutcome(self.drop, "ingested", self.counts, outcome.version)
            case "duplicate":
                return DropOutcome(self.drop, "duplicate", version=outcome.version)
            case "settled":
                assert self.settled is not None
                return self.settled
        return DropOutcome(self.drop, "failed", error=outcome.error)

    def _ingest(self, transaction: Transaction) -> None:
        try:
            table = transaction.table(self.place.table)
        except TableNotFoundError:
            reason = f"no table {self.place.table!r}: create it, then drop the file again"
            raise self.no_table or TableNotFoundError(reason) from None
        entry = transaction.entry(self.place.table)
        settings = IngestSettings.of(entry)
        settings.check(entry.schema, entry.primary_key)
        self.settings = settings
        if settings.mode == "upsert":
            upsert_in_portions(table, self._read(table, list(table.primary_key)), self.drop.id)
            self.counts = replace(self.counts, upserted=self._rows)
        else:
            table.append(self._read(table), request=self.drop.id)
            self.counts = replace(self.counts, appended=self._rows)

    def _read(self, table: TransactionTable, keys: list[str] | None = None) -> pa.RecordBatchReader:
        """The file's rows, counted as they are taken."""
        self._rows = 0
        schema = keys_required(table.schema, keys) if keys else table.schema
        reader = read(self.opened, detect(self.place.path), schema, name=self.place.path)

        def counted() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                self._rows += batch.num_rows
                yield batch

        return pa.RecordBatchReader.from_batches(reader.schema, counted())

    def _about(self) -> dict[str, Any]:
        """The database, for a report."""
        return {"url": self.database.url, "version": self.database.version}

"""Does the work of ``jobs/load.py --handed`` without Spark."""

from __future__ import annotations

from dolmen import Database
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.landing import Landing
from dolmen.service.handover.handover_records import HandoverRecords


def ingest_handed(database: Database, landing: Landing, records: HandoverRecords) -> list[str]:
    """Ingests all drops of all records, and settles them; returns their outcomes, in order."""
    statuses: list[str] = []
    for record in records.read_all():
        outcomes = ingest_drops(database, landing, record.drops).outcomes
        statuses += (outcome.status for outcome in outcomes)
        if all(outcome.status != "failed" for outcome in outcomes):
            records.remove(record)
    return statuses

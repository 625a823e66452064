"""Upkeep until erasures are gone from a copy of the database: their receipts say so, and no object holds the rows."""

from __future__ import annotations

import random
from dataclasses import replace
from io import BytesIO

import pyarrow.compute as pc
import pyarrow.parquet as pq

from dolmen.database import Database
from dolmen.maintenance.erasures.status import ErasureStatus
from dolmen.segments.live import LiveFiles
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.actors.aftermath import runtime_without_faults
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable
from dolmen_simulator.world.network import Network

SOON = {"erase_within": "1h", "erasure_memory": "1s", "orphan_age": "1h", "reader_grace": "10m"}
"""Settings by which erased rows leave the disk within hours."""

_HOUR_US = 3_600_000_000
_MOST_HOURS = 30


def see_erasures_gone(network: Network, bucket: MemoryBucket, rng: random.Random, key: int | None) -> None:
    """Lets hours pass, with upkeep in each. Raises ViolationError.

    Args:
        bucket: a copy of the database with erasures that were made under the settings ``SOON``.
        key: the key whose rows were erased from all tables; None if some tables still have such rows.
    """
    clock = [network.scheduler.now_us]
    later = MemoryBucket(lambda: clock[0], "simulation")
    later.objects.update(bucket.objects)
    runtime = replace(
        runtime_without_faults(network, rng), clock_us=lambda: clock[0], monotonic=lambda: clock[0] / 1_000_000
    )
    with raising_unreadable("upkeep until erasures are gone"):
        db = Database(MemoryStore(later, runtime), runtime)
        ids = [status.id for status in db.receipts()]
        for _ in range(_MOST_HOURS):
            clock[0] += _HOUR_US
            db.maintain()
            db.gc()
            if not db.receipts():
                break
        findings = [finding for id_ in ids for finding in db.verify_receipt(id_).findings]
        statuses = [db.receipt(id_) for id_ in ids]
        late = [status.next_step for status in statuses if status.state != "gone" and not _is_shared(db, status)]
    if late or findings:
        raise ViolationError(Never.KEPT, f"{_MOST_HOURS} hours after erasures: {late[:3]}, {findings[:3]}")
    for path, stored in later.objects.items() if key is not None else ():
        if path.startswith("data/"):
            table = pq.read_table(BytesIO(stored.body))
            if "k" in table.column_names and pc.any(pc.equal(table["k"], key)).as_py():
                raise ViolationError(
                    Never.KEPT, f"{path} holds rows with k = {key}, whose receipts say that it is gone"
                )
    network.counts["erasures seen gone"] += sum(status.state == "gone" for status in statuses)


def _is_shared(db: Database, status: ErasureStatus) -> bool:
    """Whether a table that an erasure does not reach has a file with its rows, as its receipt says."""
    manifest, reached = db.context.head.refresh().manifest, {table.uuid for table in status.receipt.tables}
    shared = {(file.path, uuid) for file in status.receipt.files for uuid in file.shared}
    live = {
        (file.path, entry.uuid)
        for entry in manifest.tables.values()
        if reached.isdisjoint(entry.lineage)
        for file in LiveFiles.of(entry, db.context.segments)
    }
    return bool(shared) and shared <= live

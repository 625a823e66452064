"""Upkeep until erasures are gone from a copy of the database: their receipts say so, and no object holds the rows."""

from __future__ import annotations

import random
from dataclasses import replace
from io import BytesIO

import pyarrow.compute as pc
import pyarrow.parquet as pq

from dolmen.database import Database
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.actors.aftermath import runtime_without_faults
from dolmen_simulator.judge.content import Content
from dolmen_simulator.judge.iceberg import PREFIX, IcebergReader
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
        for hour in range(_MOST_HOURS):
            clock[0] += _HOUR_US
            db.maintain()
            _publish(db, later)
            db.gc(full=hour % 6 == 5)  # also for what is left of publications of tables that were dropped
            if not db.receipts():
                break
        findings = [finding for id_ in ids for finding in db.verify_receipt(id_).findings]
        states = {db.receipt(id_).state for id_ in ids}
    if states != {"gone"} or findings:
        raise ViolationError(Never.KEPT, f"{_MOST_HOURS} hours after erasures: {sorted(states)}, {findings[:3]}")
        _check_publications(db, later, key)
    for path, stored in later.objects.items() if key is not None else ():
        if path.startswith("data/"):
            table = pq.read_table(BytesIO(stored.body))
            if "k" in table.column_names and pc.any(pc.equal(table["k"], key)).as_py():
                raise ViolationError(
                    Never.KEPT, f"{path} holds rows with k = {key}, whose receipts say that it is gone"
                )
    network.counts["erasures seen gone"] += len(ids)


def _publish(db: Database, bucket: MemoryBucket) -> None:
    """Publishes the tables that were ever published, whatever their settings are, as an operator would."""
    published = {path.split("/")[1] for path in bucket.objects if path.startswith(PREFIX)}
    for name, entry in db.context.head.refresh().manifest.tables.items():
        if entry.uuid in published:
            db.table(name).publish_iceberg()


def _check_publications(db: Database, bucket: MemoryBucket, key: int | None) -> None:
    """Checks that publications show the rows of their versions, and that none shows an erased row."""
    reader = IcebergReader(bucket, Content(bucket))
    manifest = db.context.head.refresh().manifest
    found = [(name, entry, table) for name, entry in manifest.tables.items() for table in reader.published(entry.uuid)]
    for name, entry, table in found:
        for snapshot in table.found["snapshots"]:
            version = snapshot["snapshot-id"]
            names = {field["name"]: field["id"] for field in table.schema(snapshot["schema-id"])}
            rows = reader.rows(table, snapshot)
            then = db.at(version=version)
            (called,) = [each for each, other in then.manifest.tables.items() if other.uuid == entry.uuid]
            if sorted(row[names["u"]] for row in rows) != sorted(
                then.table(called).scan(["u"]).to_arrow()["u"].to_pylist()
            ):
                raise ViolationError(
                    Never.MISPUBLISHED, f"after erasures, the publication of {name!r} shows other rows than {version}"
                )
            if key is not None and any(row[names["k"]] == key for row in rows):
                raise ViolationError(Never.SEEN, f"the publication of {name!r} shows rows with k = {key}")

"""Upkeep until erasures are gone from a copy of the database: their receipts say so, and no object holds the rows."""

from __future__ import annotations

import random
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.commit.head import context_of
from dolmen.entries.segments.live import LiveFiles
from dolmen.maintenance.erasures.status import ErasureStatus
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.actors.aftermath import runtime_without_faults
from dolmen_simulator.judge.chronicle import Chronicle
from dolmen_simulator.judge.content import Content
from dolmen_simulator.judge.iceberg import PREFIX, IcebergReader
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable
from dolmen_simulator.world.network import Network

SOON: dict[str, Any] = {"erase_within": "1h", "erasure_memory": "1s", "orphan_age": "1h", "reader_grace": "10m"}
"""Settings by which erased rows leave the disk within hours."""

_HOUR_US = 3_600_000_000
_ROUNDS_US = (*(_HOUR_US,) * 30, *(24 * _HOUR_US,) * 40)
"""The times between rounds of upkeep. Erasures of the history itself have 30 days, and often need less."""


def see_erasures_gone(network: Network, bucket: MemoryBucket, rng: random.Random, key: int | None) -> None:
    """Lets hours pass, with upkeep in each, and days if erasures need them. Raises ViolationError.

    Args:
        bucket: a copy of the database with more erasures, which were made under the settings ``SOON``.
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
        for number, pause_us in enumerate(_ROUNDS_US):
            clock[0] += pause_us
            db.maintain()
            _publish(db, later)
            db.gc(full=number % 6 == 5)  # also for the publications of dropped tables
            if all(_is_shared(db, status) for status in db.receipts()):
                break
        findings = [finding for id_ in ids for finding in db.verify_receipt(id_).findings]
        statuses = [db.receipt(id_) for id_ in ids]
        late = [status.next_step for status in statuses if status.state != "gone" and not _is_shared(db, status)]
    if late or findings:
        raise ViolationError(Never.KEPT, f"weeks after erasures: {late[:3]}, {findings[:3]}")
    gone = [status for status in statuses if status.state == "gone"]
    network.counts["erasures seen gone"] += len(gone)
    with raising_unreadable("publications after erasures"):
        _check_publications(db, later, key)
    numbers = pa.array(sorted(_erased_everywhere(network.ledger) if len(gone) == len(ids) else ()), pa.int64())
    for path, stored in later.objects.items():
        if not path.startswith("data/"):
            continue
        table = pq.read_table(BytesIO(stored.body))
        if key is not None and "k" in table.column_names and pc.any(pc.equal(table["k"], key)).as_py():
            raise ViolationError(Never.KEPT, f"{path} holds rows with k = {key}, whose receipts say that it is gone")
        if "u" in table.column_names and (held := table.filter(pc.is_in(table["u"], numbers))["u"].to_pylist()):
            raise ViolationError(Never.KEPT, f"{path} holds rows {held}, whose receipts say that they are gone")
    network.counts["erased rows sought on the disk"] += len(numbers)


def _erased_everywhere(chronicle: Chronicle) -> set[int]:
    """The numbers of the erased rows that no table shows in any version."""
    numbers = {number for _, number in chronicle.erased}
    for version in range(chronicle.version + 1):
        for table in chronicle.visible_state(version, chronicle.version).values():
            numbers.difference_update(row.u for row in table.rows)
    return numbers


def _is_shared(db: Database, status: ErasureStatus) -> bool:
    """Whether a table that an erasure does not reach has a file with its rows, as its receipt says."""
    manifest, reached = context_of(db).head.refresh().manifest, {table.uuid for table in status.receipt.tables}
    shared = {(file.path, uuid) for file in status.receipt.files for uuid in file.shared}
    live = {
        (file.path, entry.uuid)
        for entry in manifest.tables.values()
        if reached.isdisjoint(entry.lineage)
        for file in LiveFiles.of(entry, context_of(db).segments)
    }
    return bool(shared) and shared <= live


def _publish(db: Database, bucket: MemoryBucket) -> None:
    """Publishes the tables that were ever published, whatever their settings are, as an operator would."""
    published = {path.split("/")[1] for path in bucket.objects if path.startswith(PREFIX)}
    for name, entry in context_of(db).head.refresh().manifest.tables.items():
        if entry.uuid in published:
            db.table(name).publish_iceberg()


def _check_publications(db: Database, bucket: MemoryBucket, key: int | None) -> None:
    """Checks that publications show the rows of their versions, and that none shows an erased row."""
    reader = IcebergReader(bucket, Content(bucket))
    manifest = context_of(db).head.refresh().manifest
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

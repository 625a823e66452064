"""An erasure at the end of a history, on a copy: no kept version shows the rows, or changes in any other way."""

from __future__ import annotations

import random

from dolmen.api.database import Database
from dolmen.commit.head import context_of
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.actors.aftermath import runtime_without_faults
from dolmen_simulator.actors.leaving import SOON, see_erasures_gone
from dolmen_simulator.judge.model import Row, user_tables
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable
from dolmen_simulator.judge.seen import rows_from
from dolmen_simulator.world.network import Network

_VERSIONS = 6
"""The number of kept versions that are read, beside those of tags."""


def erase_in_copy(network: Network, rng: random.Random) -> None:
    """Erases the rows of a key, and reads kept versions before and after upkeep. Raises ViolationError."""
    scheduler, ledger = network.scheduler, network.ledger
    bucket = MemoryBucket(lambda: scheduler.now_us, "simulation")
    bucket.objects.update(network.bucket.objects)
    runtime = runtime_without_faults(network, rng)
    with raising_unreadable("an erasure without any faults"):
        db = Database(MemoryStore(bucket, runtime), runtime)
        kept = range(max(ledger.retention.horizon, 1), ledger.version + 1)
        versions = {*rng.sample(kept, min(_VERSIONS, len(kept))), *ledger.tags[-1].values()}
        states = [ledger.visible_state(version, ledger.version) for version in sorted(versions)]
        keys = sorted({row.k for state in states for rows in state.values() for row in rows.rows})
        if not keys:
            return
        key = rng.choice(keys)
        erased: set[str] = set()
        db.set(**SOON)
        for name in user_tables(db.tables()):
            if rng.random() < 0.7:
                erased.add(context_of(db).head.refresh().manifest.tables[name].uuid)
                db.table(name).erase({"k": key})
        if not erased:
            return
        _check(network, db, versions, key, erased)
        db.maintain()
        version = rng.choice(sorted(versions))
        db.restore(version)
        _check(network, db, versions, key, erased)
        _check_table_rows(network, db, db.version, version, key, erased)
    every = erased == {context_of(db).head.refresh().manifest.tables[name].uuid for name in user_tables(db.tables())}
    see_erasures_gone(network, bucket, rng, key if every else None)
    network.counts["erasures in a copy"] += 1


def _check(network: Network, db: Database, versions: set[int], key: int, erased: set[str]) -> None:
    for version in sorted(versions):
        _check_table_rows(network, db, version, version, key, erased)


def _check_table_rows(network: Network, db: Database, version: int, then: int, key: int, erased: set[str]) -> None:
    """Checks the rows of a version against those that version ``then`` had, less the erased ones."""
    snapshot = db.at(version=version)
    for name, table in network.ledger.visible_state(then, network.ledger.version).items():
        is_erased = bool(erased & set(snapshot.manifest.tables[name].lineage))
        expected = {row for row in table.rows if row.k != key or not is_erased}
        found = rows_from(snapshot.table(name).scan().to_arrow())
        if set(found) == expected and len(found) == len(expected):
            continue
        differences = sorted(set(found) ^ expected, key=_number)
        never = Never.SEEN if any(row.k == key and row in found for row in differences) else Never.LOST
        raise ViolationError(never, f"after an erasure of k = {key}, version {version} of {name!r}: {differences}")


def _number(row: Row) -> int:
    return row.u

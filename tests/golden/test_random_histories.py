"""The second reader shows the same rows as dolmen, in every kept version of random histories.

It was written from docs/format.md, so this holds the page, the reader and dolmen to each other.
"""

from __future__ import annotations

import os
import random

import pytest

from dolmen import Database
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.simulation import simulate
from support.aging import Place
from support.altered_history import in_memory
from support.random_predicates import random_predicate
from support.random_tables import FLAT, LISTS, STRUCTS, random_table
from support.second_reader import check_versions

LONG = bool(os.environ.get("DOLMEN_LONG"))
SEED = int(os.environ["DOLMEN_TEST_SEED"])
SIMULATED, ALTERED, DELETED = (400, 1_000, 400) if LONG else (1, 8, 4)
STEPS = 2_000
DELETES = 12


def objects(bucket: MemoryBucket, key: str) -> bytes:
    """The bytes of a key."""
    return bucket.objects[key].body


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SIMULATED))
def test_simulated_histories(number: int) -> None:
    """Many writers, upkeep, collection, changes of columns and of a source, erasures, tags, restores, clones."""
    last: list[tuple[Database, MemoryBucket]] = []

    def audit(db: Database, bucket: MemoryBucket, version: int) -> None:
        check_versions(db, lambda key: objects(bucket, key), [version])
        last[:] = [(db, bucket)]

    simulate(SEED + number, STEPS, audit=audit)
    for db, bucket in last:
        print(check_versions(db, lambda key, bucket=bucket: objects(bucket, key)))  # type: ignore[misc]


@pytest.mark.parametrize("number", range(ALTERED))
def test_histories_of_tables_whose_columns_change(number: int) -> None:
    history = in_memory(f"{SEED} {number}")
    history.run()
    assert check_versions(history.db, lambda key: history.db._context.store.get(key).body)["tables"]


@pytest.mark.parametrize("number", range(DELETED))
def test_deletes_by_random_predicates(number: int) -> None:
    """Whether a predicate is TRUE for a row is specified without a doubt."""
    rng = random.Random(f"{SEED} {number}")
    place = Place()
    data = random_table(rng, 12, (*FLAT, *STRUCTS, *rng.sample(list(LISTS), 4)))
    table = place.db.create_table("t", data.schema)
    table.append(data)
    version = place.db.version
    for _ in range(DELETES):
        with place.db.transaction() as tx:
            tx.table("t").restore(version)
            tx.table("t").delete(random_predicate(rng, data))
    check_versions(place.db, lambda key: objects(place.bucket, key))

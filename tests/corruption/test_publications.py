"""Damage of publications as Iceberg: verification reports it, or readers see the right rows; publishing mends it."""

from __future__ import annotations

import os
import random
from functools import cache

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError
from dolmen.iceberg.publication_directory import PREFIX
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryBucket, MemoryObject
from dolmen_simulator.interleavings.checks import undisturbed_database
from dolmen_simulator.judge.content import Content
from dolmen_simulator.judge.iceberg import HINT, IcebergReader

SEED = os.environ["DOLMEN_TEST_SEED"]
TRIALS = 4_000 if os.environ.get("DOLMEN_LONG") else 8
"""By format version, how many damages are tried."""
NOW_US = 1_760_000_000_000_000
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])

Rows = list[tuple[int, int]]


@cache
def published(version: str) -> dict[str, MemoryObject]:
    """A table that was published three times, the last time with carried manifests, and each time with hidden rows."""
    bucket = MemoryBucket(lambda: NOW_US, "place")
    db = undisturbed_database(bucket)
    table = db.create_table("t", SCHEMA, primary_key="k")
    db.set(root_bytes="4KB")
    table.set(iceberg=version, iceberg_snapshots="kept")
    for turn in range(30):
        table.append({"k": range(turn * 10, turn * 10 + 10), "v": [turn] * 10})
        if turn % 4 == 0:
            table.delete(f"k = {turn * 10 + 3}")
        if turn % 10 == 9:
            db.merge()
            table.publish_iceberg()
    return dict(bucket.objects)


def copy_of(objects: dict[str, MemoryObject]) -> MemoryBucket:
    bucket = MemoryBucket(lambda: NOW_US, "place")
    bucket.objects.update(objects)
    return bucket


def shown(bucket: MemoryBucket) -> list[Rows]:
    """The rows that readers see, by the newest metadata and by the hint."""
    reader = IcebergReader(bucket, Content(bucket))
    (entry,) = context_of(undisturbed_database(bucket)).head.refresh().manifest.tables.values()
    tables = reader.published(entry.uuid)
    return [sorted((row[1], row[2]) for row in reader.rows(table, table.current)) for table in tables]


def rows_of(db: Database) -> Rows:
    found = db.table("t").to_arrow()
    return sorted(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


def kind_of(key: str) -> str:
    name = key.rpartition("/")[2]
    return "metadata" if name.startswith("v") and name.endswith(".json") else name.partition("-")[0]


def damaged(rng: random.Random, body: bytes) -> bytes | None:
    """Other bytes than these: a flipped bit, a cut end, or more behind it; None for none at all."""
    how = rng.random()
    if how < 0.7:
        place = rng.randrange(len(body))
        return body[:place] + bytes([body[place] ^ 1 << rng.randrange(8)]) + body[place + 1 :]
    if how < 0.8:
        return body[: rng.randrange(len(body))]
    return body + rng.choice([b"\0", b"}", b"7", body]) if how < 0.9 else None


def damage(rng: random.Random, version: str, turn: int) -> tuple[MemoryBucket, str]:
    """A copy of the database in which one object of the newest publication is damaged, and its key.

    Its kind is one after the other, by ``turn``.
    """
    bucket = copy_of(published(version))
    reader = IcebergReader(bucket, Content(bucket))
    (entry,) = context_of(undisturbed_database(bucket)).head.refresh().manifest.tables.values()
    table = reader.published(entry.uuid)[-1]
    folder = f"{PREFIX}{entry.uuid}/metadata/"
    newest = {*reader.own_objects(table, table.current), f"{folder}v3.metadata.json", folder + HINT}
    kinds = sorted(set(map(kind_of, newest)))
    kind = kinds[turn % len(kinds)]
    key = rng.choice(sorted(key for key in newest if kind_of(key) == kind))
    body = damaged(rng, bucket.objects[key].body)
    if body is None:
        del bucket.objects[key]
    else:
        bucket.objects[key] = MemoryObject(body, f'"{hash(body)}"', bucket.objects[key].last_modified_us)
    return bucket, key


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_damage_of_a_publication_is_reported_and_the_next_one_mends_it(version: str) -> None:
    kinds = set[str]()
    for turn in range(TRIALS):
        rng = random.Random(f"{SEED} {version} {turn}")
        bucket, key = damage(rng, version, turn)
        kinds.add(kind_of(key))
        place = f"trial {turn} of seed {SEED}: {key}"
        db = undisturbed_database(bucket)
        report = verify(context_of(db))
        if not any(finding.kind.startswith("publication-") for finding in report.findings):
            assert kind_of(key) in ("metadata", "version"), place  # other spaces, or another digit of no meaning
            assert shown(bucket) == [rows_of(db)], place
        collect(context_of(db))  # does not fail, and deletes nothing that is needed
        db.table("t").append({"k": [-turn - 1], "v": [0]})
        try:
            found = db.table("t").publish_iceberg()
        except CorruptionError as error:
            raise AssertionError(f"{place}: {error}") from error
        assert found.is_new, place
        if left := verify(context_of(db)).findings:  # it carries over what it need not read
            assert all(finding.object == key and "--anew" in finding.repair for finding in left), place
            db.table("t").publish_iceberg(anew=True)
        assert verify(context_of(db)).findings == (), place
        assert shown(bucket) == [rows_of(db)], place
    assert len(kinds) == 6


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_a_healthy_publication_has_no_findings(version: str) -> None:
    bucket = copy_of(published(version))
    db = undisturbed_database(bucket)
    assert verify(context_of(db), deep=True).findings == ()
    assert shown(bucket) == [rows_of(db)]

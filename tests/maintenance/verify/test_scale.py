"""``verify`` of a table of 100,000 data files: a few listings, no request per object."""

from __future__ import annotations

import time
from zlib import crc32

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.segments import encode
from dolmen.maintenance.verify.verification import SAMPLED_FOOTERS
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from support.damaged import Damaged, copy_of

FILES = 100_000
PART = 50_000
BODY = b"PAR1" + bytes(60)
"""The body of every file: nobody reads them here."""


@pytest.fixture(scope="module")
def bucket() -> MemoryBucket:
    bucket = MemoryBucket()
    runtime = Runtime()
    db = Database(MemoryStore(bucket, runtime), runtime)
    db.create_table("t", pa.schema([("k", pa.int64())]))
    built = copy_of(bucket)
    manifest, entry = built.manifest, built.table()
    ts = manifest.commit_ts
    there = MemoryObject(BODY, '"1"', bucket.clock_us())
    segments = []
    for part in range(FILES // PART):
        files = [
            DataFile(
                f"data/t/2026/01/01/{n % 24:02}/{n * 7919 % FILES:032x}.parquet",
                len(BODY),
                10,
                (len(BODY) - 20, 20, crc32(BODY[-20:])),
                ts,
                applied_through=ts,
                stats={1: ColumnStats(n, n + 9, 0)},
            )
            for n in range(part * PART, (part + 1) * PART)
        ]
        bucket.objects.update((file.path, there) for file in files)
        segment, body = encode("files", files, f"segment/files/{part:032x}", entry.schema)
        bucket.objects[segment.object] = MemoryObject(body, '"2"', bucket.clock_us())
        segments.append(segment)
    edited = Damaged(bucket.objects, bucket.clock_us())
    edited.edit_table(segments=tuple(segments))
    bucket.objects[manifest.key] = edited.bucket.objects[manifest.key]
    return bucket


@pytest.mark.slow
def test_a_hundred_thousand_files_are_looked_for_with_one_listing(bucket: MemoryBucket) -> None:
    db = copy_of(bucket)
    lost = sorted(key for key in db.bucket.objects if key.startswith("data/"))[FILES // 2]
    db.lose(lost)
    began = time.perf_counter()
    report = db.verify()
    print(f"verified {FILES:,} entries in {time.perf_counter() - began:.1f} s")
    assert [found.object for found in report.findings if found.kind == "file-missing"] == [lost]
    assert {found.kind for found in report.findings} == {"file-missing", "footer-damaged"}  # they hold no Parquet
    assert report.checked["data files"] == FILES
    assert report.checked["objects referenced"] >= FILES - 1
    assert db.store.lists == 6  # one for each prefix, and one of the manifests that are newer than the pointer
    assert db.store.heads == 2  # of the pointer, and of the lost file
    assert db.store.gets <= SAMPLED_FOOTERS + 10

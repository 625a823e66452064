"""Publishers as processes on a real S3 server: killed before and after each request, and racing."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.format.layout import RESERVED_TAGS
from dolmen.iceberg.publication_directory import PublicationDirectory
from support.iceberg_readers import IcebergReaders, on_s3
from support.publishers import Publishers

pytestmark = pytest.mark.slow

DRAW = random.Random(os.environ["DOLMEN_TEST_SEED"])
EVERY = 1 if os.environ.get("DOLMEN_LONG") else 2
"""By default every second request is one that kills, from the first or the second on."""

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def publishers(minio_url: str) -> Iterator[Publishers]:
    found = Publishers()
    yield found
    found.close()


def directory_of(db: Database) -> PublicationDirectory:
    return PublicationDirectory(context_of(db).store, context_of(db).runtime, db.table("t")._entry.uuid)


def ids(readers: IcebergReaders, reader: str, location: str, endpoint: str) -> list[int]:
    return sorted(readers.read(reader, location, properties=on_s3(endpoint))["id"].to_pylist())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_request_readers_see_the_old_or_the_new_snapshot(
    after: bool, minio: str, minio_url: str, publishers: Publishers, readers: IcebergReaders
) -> None:
    db = dolmen.open(minio_url)
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append([{"id": number} for number in range(5)])
    table.publish_iceberg()
    directory = directory_of(db)
    seen: set[str] = set()
    requests = 1 + DRAW.randrange(EVERY)
    while True:
        old = sorted(table.to_arrow()["id"].to_pylist())
        table.append([{"id": 100 + requests}])
        table.delete(f"id = {old[0]}")
        new = [*old[1:], 100 + requests]
        if not publishers.publish_and_die(minio_url, requests, after=after):
            break
        newest = directory.newest()
        places = {directory.metadata_path(newest.hint), directory.metadata_path(newest.number)}
        for reader, location in (*(("pyiceberg", place) for place in places), ("duckdb", directory.location)):
            shown = ids(readers, reader, location, minio)
            assert shown in (old, new), f"{reader}, killed {'after' if after else 'before'} request {requests}"
            seen.add("old" if shown == old else "new")
        found = dolmen.open(minio_url).table("t").publish_iceberg()
        assert ids(readers, "pyiceberg", found.metadata_location, minio) == new
        tags = context_of(dolmen.open(minio_url)).head.refresh().manifest.tags.items()
        assert [tag.version for name, tag in tags if name.startswith(RESERVED_TAGS)] == [found.version]
        assert directory.newest().hint == directory.newest().number
        requests += EVERY
    assert seen == {"old", "new"}
    assert requests > 15


def test_of_three_racing_processes_none_is_lost_and_none_goes_back(
    minio: str, minio_url: str, publishers: Publishers, readers: IcebergReaders
) -> None:
    db = dolmen.open(minio_url)
    db.create_table("t", SCHEMA, primary_key="id").append([{"id": 0}])
    db.table("t").publish_iceberg()
    directory = directory_of(db)
    shown: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            newest = directory.newest()
            assert newest.metadata is not None
            shown.append(newest.metadata.current.version)

    watcher = threading.Thread(target=watch)
    watcher.start()
    rows = [[10 * number + round_ for round_ in range(1, 6)] for number in range(1, 4)]
    try:
        publishers.race(minio_url, rows)
    finally:
        over.set()
        watcher.join()
    assert shown == sorted(shown)
    expected = [0, *sorted(id_ for own in rows for id_ in own)]
    location = directory.metadata_path(directory.newest().number)
    assert ids(readers, "pyiceberg", location, minio) == expected
    assert ids(readers, "duckdb", directory.location, minio) == expected
    numbers = sorted(number for number, _ in directory.numbers())
    assert numbers == list(range(1, len(numbers) + 1))

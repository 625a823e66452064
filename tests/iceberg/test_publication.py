"""Publication: what it writes, when it writes nothing, and what happens beside others or after a crash."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.commit.statements.row_changes import Write
from dolmen.errors import SchemaError
from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.layout import RESERVED_TAGS
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.publication import _Publisher
from dolmen.iceberg.publication_directory import pin_version
from dolmen.store.local_store import LocalStore
from dolmen.store.memory import MemoryStore
from dolmen.transactions.transaction import unit_of
from dolmen_simulator.counting import CountingStore
from support.crashing_store import Countdown, Crash, CrashingStore
from support.iceberg_readers import READERS, IcebergReaders
from support.stores import run_in_threads
from support.tables import write_file

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("price", pa.float64())])


def rows(*ids: int) -> pa.Table:
    names = [f"name {id_}" for id_ in ids]
    return pa.table({"id": list(ids), "name": names, "price": [id_ / 2 for id_ in ids]}, SCHEMA)


@pytest.fixture
def db(tmp_path: Path) -> Database:
    found = dolmen.open(tmp_path / "a store")
    found.create_table("t", SCHEMA, primary_key="id").append(rows(*range(10)))
    return found


def metadata_of(location: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(location.removeprefix("file://")).read_text())
    return found


def ids(readers: IcebergReaders, location: str, reader: str = "pyiceberg", snapshot: int | None = None) -> list[int]:
    return sorted(readers.read(reader, location, snapshot=snapshot)["id"].to_pylist())


def pins(db: Database) -> list[int]:
    return [tag.version for name, tag in db.tags().items() if name.startswith(RESERVED_TAGS)]


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_the_snapshot_has_the_number_and_the_time_of_the_version(db: Database, version: str) -> None:
    table = db.table("t")
    table.set(iceberg=version)
    table.delete("id < 3")
    newest = db.refresh()
    found = table.publish_iceberg()
    assert (found.version, found.is_new, found.files, found.rows, found.deleted_rows) == (newest, True, 1, 10, 3)
    metadata = metadata_of(found.metadata_location)
    assert metadata["format-version"] == int(version[1])
    (snapshot,) = metadata["snapshots"]
    commit = db.history()[-newest + db.refresh()]
    assert snapshot["snapshot-id"] == metadata["current-snapshot-id"] == newest
    assert snapshot["timestamp-ms"] == (commit.created_at - EPOCH) // timedelta(milliseconds=1)
    assert snapshot["sequence-number"] == commit.commit_ts
    assert snapshot["summary"]["dolmen.commit-id"] == commit.commit_id
    assert metadata["location"] == (db._context.store.url + "/iceberg/" + db.table("t")._entry.uuid).replace("%20", " ")


def test_nothing_is_written_where_the_published_version_shows_the_same_rows(db: Database) -> None:
    table = db.table("t")
    first = table.publish_iceberg()
    version = db.refresh()
    again = table.publish_iceberg()
    assert not again.is_new
    assert (again.version, again.objects, again.metadata_location) == (first.version, 0, first.metadata_location)
    db.create_table("other", SCHEMA).append(rows(1))
    assert not table.publish_iceberg().is_new
    assert db.refresh() == version + 2


def test_a_dry_run_tells_whether_there_is_something_to_publish_and_writes_nothing(db: Database) -> None:
    table, version = db.table("t"), db.refresh()
    tried = table.publish_iceberg(dry_run=True)
    assert tried.is_new
    assert tried.facts() == [("to publish", "t, version 2, as Iceberg v2"), ("metadata", "none yet")]
    assert (db.refresh(), list(db._context.store.list("iceberg/"))) == (version, [])
    table.publish_iceberg()
    assert not table.publish_iceberg(dry_run=True).is_new
    table.append(rows(10))
    assert table.publish_iceberg(dry_run=True).is_new


def test_only_the_published_version_is_pinned(db: Database) -> None:
    table = db.table("t")
    for id_ in range(10, 14):
        table.append(rows(id_))
        assert pins(db) != [table.publish_iceberg().version] or len(pins(db)) == 1
        assert len(pins(db)) == 1
    assert table.publish_iceberg().version == pins(db)[0]


@pytest.mark.slow
def test_a_published_version_survives_collection_when_it_has_expired(db: Database, readers: IcebergReaders) -> None:
    table = db.table("t")
    db.set(retention="1s", keep_versions=1, reader_grace="1s", orphan_age="1s")
    table.delete("id < 3")
    found = table.publish_iceberg()
    table.overwrite(rows(77))
    for _ in range(3):
        time.sleep(1.1)
        db.gc(full=True)
    assert found.version < db.at(db.refresh()).manifest.horizon
    for reader in READERS:
        assert ids(readers, found.metadata_location, reader) == list(range(3, 10))


def test_readers_can_travel_to_versions_that_are_kept(db: Database, readers: IcebergReaders) -> None:
    table = db.table("t")
    table.set(iceberg_snapshots="kept")
    versions = []
    for id_ in range(3):
        table.delete(f"id = {id_}")
        found = table.publish_iceberg()
        versions.append(found.version)
    assert found.snapshots == 3
    for id_, version in enumerate(versions):
        for reader in READERS:
            assert ids(readers, found.metadata_location, reader, version) == list(range(id_ + 1, 10))
    table.set(iceberg_snapshots="newest")
    found = table.publish_iceberg()
    assert (found.is_new, found.snapshots) == (True, 1)


def test_what_another_writer_committed_is_noticed_and_published_anew(db: Database, readers: IcebergReaders) -> None:
    found = db.table("t").publish_iceberg()
    path = Path(found.metadata_location.removeprefix("file://"))
    foreign = metadata_of(found.metadata_location)
    foreign["properties"]["owner"] = "somebody else"
    path.with_name("v2.metadata.json").write_text(json.dumps(foreign))
    path.with_name("version-hint.text").write_text("2")
    again = db.table("t").publish_iceberg()
    assert (again.is_new, again.is_repaired) == (True, True)
    assert again.metadata_location.endswith("v3.metadata.json")
    assert "owner" not in metadata_of(again.metadata_location)["properties"]
    assert path.with_name("version-hint.text").read_text() == "3"
    assert ids(readers, again.metadata_location) == list(range(10))
    assert db.table("t").count() == 10


def test_publication_anew_puts_no_older_version_in_place_of_a_newer_one(db: Database) -> None:
    older = context_of(db).head.refresh().manifest
    db.table("t").append(rows(11))
    found = db.table("t").publish_iceberg()
    late = _Publisher(context_of(db), "t", older, None)
    assert late.run(anew=True, dry_run=False, lookup_bytes=None) is None
    assert db.table("t").publish_iceberg().metadata_location == found.metadata_location


@pytest.mark.parametrize("body", [None, "", "9", "none"])
def test_a_lost_or_damaged_hint_is_made_again(db: Database, body: str | None) -> None:
    found = db.table("t").publish_iceberg()
    hint = Path(found.metadata_location.removeprefix("file://")).with_name("version-hint.text")
    hint.unlink() if body is None else hint.write_text(body)
    assert not db.table("t").publish_iceberg().is_new
    assert hint.read_text() == "1"


def test_the_publication_of_a_copied_database_is_made_anew(
    db: Database, tmp_path: Path, readers: IcebergReaders
) -> None:
    db.table("t").publish_iceberg()
    shutil.copytree(tmp_path / "a store", tmp_path / "copy")
    shutil.rmtree(tmp_path / "a store")
    found = dolmen.open(tmp_path / "copy").table("t").publish_iceberg()
    assert found.is_repaired
    assert ids(readers, found.metadata_location) == list(range(10))


def test_a_table_of_which_readers_can_read_no_column_is_not_published(tmp_path: Path) -> None:
    db = dolmen.open(tmp_path / "db")
    table = db.create_table("t", pa.schema([("a", pa.uint64()), ("b", pa.time64("us"))]))
    table.append({"a": [1], "b": [None]})
    with pytest.raises(SchemaError, match=r"\(a: .*; b: "):
        table.publish_iceberg()
    assert not (tmp_path / "db" / "iceberg").exists()
    table.add_column("c", pa.int64())
    assert table.publish_iceberg().is_new


def test_columns_that_readers_cannot_take_are_left_out_and_named(tmp_path: Path, readers: IcebergReaders) -> None:
    db = dolmen.open(tmp_path / "db")
    schema = pa.schema([("id", pa.int64()), ("big", pa.uint64()), ("at", pa.time64("us"))])
    table = db.create_table("t", schema.append(pa.field("deep", pa.list_(pa.struct([("x", pa.uint8())])))))
    table.append([{"id": 1, "big": 2**64 - 1, "deep": [{"x": 1}]}])
    found = table.publish_iceberg()
    assert set(found.left_out or {}) == {"big", "at", "deep"}
    for reader in READERS:
        assert readers.read(reader, found.metadata_location).to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_an_empty_table_and_one_whose_rows_are_all_deleted_have_no_rows(
    tmp_path: Path, readers: IcebergReaders, version: str
) -> None:
    db = dolmen.open(tmp_path / "db")
    table = db.create_table("t", SCHEMA, primary_key="id", properties={"iceberg": version})
    empty = table.publish_iceberg()
    table.append(rows(1, 2))
    table.delete("id > 0")
    deleted = table.publish_iceberg()
    assert (empty.files, deleted.files, deleted.files_read) == (0, 0, 0)
    for found in (empty, deleted):
        for reader in READERS:
            assert ids(readers, found.metadata_location, reader) == []


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_row_groups_whose_rows_are_all_deleted_are_published_as_deleted(
    db: Database, readers: IcebergReaders, version: str
) -> None:
    table = db.create_table("groups", SCHEMA, properties={"iceberg": version})
    with db.transaction() as tx:
        entry = unit_of(tx).entry("groups")
        unit_of(tx).begin_upload()
        file = write_file(context_of(db).store, "groups", entry, rows(*range(40)), 10)
        unit_of(tx).add(Write("groups", entry.uuid, files=(file,)))
    table.delete("id BETWEEN 10 AND 19", mode="positions")
    table.delete("id = 35")
    assert ids(readers, table.publish_iceberg().metadata_location) == [*range(10), *range(20, 35), *range(36, 40)]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_request_shows_the_old_or_the_new_snapshot(
    tmp_path: Path, readers: IcebergReaders, version: str, after: bool
) -> None:
    requests, seen = 1, set[tuple[int, ...]]()
    while True:
        folder = tmp_path / f"{requests}"
        db = dolmen.open(folder)
        table = db.create_table("t", SCHEMA, primary_key="id")
        table.set(iceberg=version)
        table.append(rows(*range(6)))
        table.delete("id = 0")
        first = table.publish_iceberg()
        table.append(rows(6))
        table.delete("id IN (1, 6)")
        countdown = Countdown(requests, after=after)
        runtime = Runtime(threads=1)
        try:
            crashing = Database(CrashingStore(LocalStore(str(folder), runtime), countdown), runtime)
            crashing.table("t").publish_iceberg()
            break
        except Crash:
            pass
        root = Path(first.metadata_location.removeprefix("file://")).parent
        hint = int((root / "version-hint.text").read_text())
        shown = tuple(ids(readers, f"file://{root}/v{hint}.metadata.json"))
        assert shown in ((1, 2, 3, 4, 5), (2, 3, 4, 5))
        seen.add(shown)
        newest = max(int(path.name[1:].partition(".")[0]) for path in root.glob("v*.metadata.json"))
        assert ids(readers, f"file://{root}/v{newest}.metadata.json") in ([1, 2, 3, 4, 5], [2, 3, 4, 5])
        assert set(pins(db)) >= {metadata_of(f"file://{root}/v{newest}.metadata.json")["current-snapshot-id"]}
        found = dolmen.open(folder).table("t").publish_iceberg()
        assert ids(readers, found.metadata_location) == [2, 3, 4, 5]
        assert pins(dolmen.open(folder)) == [found.version]
        assert (root / "version-hint.text").read_text() == found.metadata_location.rpartition("/v")[2].partition(".")[0]
        requests += 1
    assert len(seen) == 2
    assert requests > 15


def test_of_racing_publishers_none_is_lost(db: Database, readers: IcebergReaders) -> None:
    store = db._context.store

    def publish(number: int) -> int:
        own = dolmen.open(store.url)
        for round_ in range(4):
            own.table("t").append(rows(100 + 10 * number + round_))
            found = own.table("t").publish_iceberg()
            assert found.version >= 1
        return found.version

    run_in_threads(publish, 3)
    found = db.table("t").publish_iceberg()
    expected = [*range(10), *(100 + 10 * number + round_ for number in range(3) for round_ in range(4))]
    assert ids(readers, found.metadata_location) == expected
    assert pins(db) == [found.version]
    keys = [info.key for info in store.list("iceberg/") if info.key.endswith(".metadata.json")]
    numbers = sorted(int(Path(key).name[1:].partition(".")[0]) for key in keys)
    assert numbers == list(range(1, len(keys) + 1))
    assert all(TableMetadata.decode(store.get(key).body) for key in keys)


def test_the_pin_of_a_publisher_that_lost_goes_with_the_next_publication(db: Database, readers: IcebergReaders) -> None:
    table = db.table("t")
    published = table.publish_iceberg()
    pin_version(context_of(db), context_of(db).head.refresh().manifest, table._entry.uuid)  # and another was faster
    assert pins(db) == [published.version, published.version + 1]
    found = table.publish_iceberg()
    assert pins(db) == [found.version]
    assert ids(readers, found.metadata_location) == [*range(10)]
    assert not table.publish_iceberg().is_new


def test_a_publication_after_a_small_commit_makes_few_requests() -> None:
    store = CountingStore(MemoryStore())
    db = Database(store, Runtime(threads=1))
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append(rows(*range(100)))
    table.publish_iceberg()
    table.append(rows(100))
    table.delete("id = 5")
    db.resolve("t")
    db.refresh()
    store.reset()
    found = table.publish_iceberg()
    # 2 commits of 2 PUTs each; manifests of data and of deletes, positions, manifest list, metadata and hint
    assert (store.puts, found.objects) == (10, 6)
    # the pointer; the hint and two metadata files, of which the second is not there; manifest list, manifest; a vector
    assert (store.gets, store.lists, store.heads) == (7, 0, 0)
    store.reset()
    assert not table.publish_iceberg().is_new
    assert (store.puts, store.gets, store.lists) == (0, 4, 0)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_a_small_commit_to_ten_thousand_files_is_published_in_proportion_to_it(version: str) -> None:
    store = CountingStore(MemoryStore())
    db = Database(store, Runtime(threads=1))
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.set(iceberg=version)
    with db.transaction() as tx:
        entry = unit_of(tx).entry("t")
        unit_of(tx).begin_upload()
        unit_of(tx).add(Write("t", entry.uuid, files=tuple(map(never_read, range(10_000)))))
    db.merge()
    table.append(rows(*range(-100, 0)))
    assert table.publish_iceberg().files == 10_001
    table.append(rows(-200))
    table.delete(keys=[-5])
    db.refresh()
    store.reset()
    found = table.publish_iceberg()
    assert (found.files, found.deleted_rows, found.files_read) == (10_002, 1, 1)
    assert (store.puts, store.lists, found.objects) == (10, 0, 6)
    assert store.gets <= 8
    assert store.bytes_up < 64 << 10
    assert store.bytes_down < 64 << 10


def never_read(number: int) -> DataFile:
    """An entry with ids that no delete of the test matches; there is no such object."""
    stats = {1: ColumnStats(number * 1_000, number * 1_000 + 999, 0), 2: ColumnStats("a", "b", 0)}
    path = f"data/t/2026/01/02/03/{number:032x}.parquet"
    return DataFile(path, 10**6, 1_000, (10**6 - 2_000, 2_000, 7), stats=stats)

"""The chain of versions: the last 64 commits in each manifest, all others in segments of history."""

from __future__ import annotations

import pytest

from dolmen.commit.head import Base
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.versions import commits, manifest_at_time, manifest_at_version
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import (
    CorruptionError,
    DatabaseNotFoundError,
    UnsettledTimestampError,
    VersionExpiredError,
    VersionNotFoundError,
)
from support.commit_world import START_US, World, Writer, append, table

MINUTE_US = 60_000_000
VERSIONS = 300


@pytest.fixture(scope="module")
def long() -> tuple[World, Writer]:
    world = World()
    writer = world.writer()
    entry = writer.create()
    world.pass_minutes(1)
    writer.head.refresh()
    submit(writer.head, "settings", [SetProperties(None, "", {"root_bytes": 24 << 10})])
    for number in range(VERSIONS - 2):
        world.pass_minutes(1)
        writer.head.refresh()  # for the server's time: a commit may use one of up to 4 minutes ago
        writer.commit(append(entry, f"f{number}"))
    return world, writer


@pytest.mark.slow
def test_a_manifest_holds_at_least_the_last_64_commits(long: tuple[World, Writer]) -> None:
    world, _ = long
    chain = world.chain()
    for index, manifest in enumerate(chain):
        told = manifest.history
        assert len(told) >= min(index, 64)
        assert list(told) == [earlier.as_history() for earlier in chain[index - len(told) : index]]


def test_the_whole_history_is_found_in_one_request_per_segment(long: tuple[World, Writer]) -> None:
    world, _ = long
    reader = world.writer()
    newest = reader.head.refresh().manifest
    reader.store.gets.clear()
    assert [entry.version for entry in commits(reader.head, newest)] == list(range(VERSIONS, 0, -1))
    assert len(reader.store.gets) == len(newest.segments_of("history")) > 1


@pytest.mark.parametrize(
    "version", [1, 2, VERSIONS - 130, VERSIONS // 2, VERSIONS - 65, VERSIONS - 64, VERSIONS - 1, VERSIONS]
)
def test_every_version_is_found_however_old(long: tuple[World, Writer], version: int) -> None:
    world, _ = long
    reader = world.writer()
    newest = reader.head.refresh().manifest
    found = manifest_at_version(reader.head, newest, version)
    assert found.version == version
    assert len(LiveFiles.of(found.tables["t"], reader.head.segments).find(["f0", "f1", f"f{version - 3}"])) == min(
        3, max(0, version - 2)
    )


@pytest.mark.parametrize("version", [0, -1, VERSIONS + 1])
def test_a_version_that_never_was_is_not_found(long: tuple[World, Writer], version: int) -> None:
    _, writer = long
    with pytest.raises(VersionNotFoundError, match=f"no version {version}"):
        manifest_at_version(writer.head, writer.head.refresh().manifest, version)


def test_an_empty_prefix_has_no_versions() -> None:
    reader = World().writer()
    with pytest.raises(DatabaseNotFoundError):
        manifest_at_version(reader.head, reader.head.refresh().manifest, 1)
    with pytest.raises(DatabaseNotFoundError):
        manifest_at_time(reader.head, reader.head.refresh(), START_US)


def test_nothing_is_listed_to_find_a_version(long: tuple[World, Writer]) -> None:
    world, _ = long
    reader = world.writer()
    reader.store.list = None  # type: ignore[method-assign, assignment]
    newest = reader.head.refresh().manifest
    assert manifest_at_version(reader.head, newest, 3).version == 3


def test_a_version_before_the_horizon_has_expired_and_is_not_corrupt() -> None:
    world = World()
    writer = world.writer()
    entry = writer.create()
    for number in range(9):
        writer.commit(append(entry, f"f{number}"))
    old_view = world.writer()
    newest = old_view.head.refresh().manifest
    world.put_by_hand(horizon=6)
    for manifest in world.chain()[:5]:
        del world.bucket.objects[manifest.key]
    with pytest.raises(VersionExpiredError):  # known by the horizon
        manifest_at_version(writer.head, writer.head.refresh().manifest, 3)
    with pytest.raises(VersionExpiredError):  # found out when the manifest is gone
        manifest_at_version(old_view.head, newest, 3)
    assert manifest_at_version(writer.head, writer.head.refresh().manifest, 6).version == 6
    assert [each.version for each in commits(writer.head, world.newest)] == [11, 10, 9, 8, 7, 6]


def test_a_missing_manifest_after_the_horizon_is_corruption() -> None:
    world = World()
    writer = world.writer()
    entry = writer.create()
    writer.commit(append(entry, "a"))
    writer.commit(append(entry, "b"))
    del world.bucket.objects[world.chain()[1].key]
    assert manifest_at_version(writer.head, writer.head.refresh().manifest, 2).version == 2, "it is in the cache"
    other = world.writer()
    with pytest.raises(CorruptionError, match="missing"):
        manifest_at_version(other.head, other.head.refresh().manifest, 2)


def at_time(writer: Writer, timestamp_us: int) -> int:
    return manifest_at_time(writer.head, writer.head.refresh(), timestamp_us).version


def test_a_time_between_two_versions_is_the_earlier_one(long: tuple[World, Writer]) -> None:
    _, writer = long
    assert at_time(writer, START_US + 7 * MINUTE_US) == 8
    assert at_time(writer, START_US + 7 * MINUTE_US + 1) == 8
    assert at_time(writer, START_US + 8 * MINUTE_US - 1) == 8
    assert at_time(writer, START_US + 8 * MINUTE_US) == 9


def test_a_time_before_the_first_version_is_not_found(long: tuple[World, Writer]) -> None:
    _, writer = long
    with pytest.raises(VersionNotFoundError, match="did not exist"):
        at_time(writer, START_US - 1)


def test_a_time_is_unsettled_until_twenty_minutes_have_passed_or_a_later_version_exists() -> None:
    world = World()
    writer = world.writer()
    entry = writer.create()
    world.pass_minutes(5)
    asked = world.now_us
    with pytest.raises(UnsettledTimestampError):
        at_time(writer, asked)
    world.pass_minutes(19.9)
    with pytest.raises(UnsettledTimestampError):
        at_time(writer, asked)
    world.pass_minutes(0.2)
    assert at_time(writer, asked) == 1
    with pytest.raises(UnsettledTimestampError):
        at_time(writer, world.now_us)
    world.pass_minutes(1)
    writer.head.refresh()
    writer.commit(append(entry, "a"))
    assert at_time(writer, world.now_us - 1) == 1
    with pytest.raises(UnsettledTimestampError):  # another commit may still get the very same created_at
        at_time(writer, world.now_us)


def test_a_time_in_the_future_is_unsettled(long: tuple[World, Writer]) -> None:
    world, writer = long
    with pytest.raises(UnsettledTimestampError):
        at_time(writer, world.now_us + 1)


def test_a_writer_far_behind_finds_its_base_again(long: tuple[World, Writer]) -> None:
    world = World()
    behind, other = world.writer(), world.writer()
    entry = behind.create()
    assert behind.head.cached == Base(world.newest, world.bucket.objects["_latest_manifest"].etag)
    for number in range(100):
        other.commit(append(entry, f"f{number}"))
    done = behind.commit(append(table(world), "late"))
    assert done.manifest is not None
    assert done.manifest.version == 102

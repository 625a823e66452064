"""Whose clock counts, how old its reading may be, and what timestamps come of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count, pairwise

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import STAMP_SECONDS
from dolmen.commit.versions import manifest_at_time
from dolmen.errors import ClockError, StoreUnavailableError, UnknownOutcomeError
from dolmen.store.base import PutOutcome
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.commit_world import (
    START_US,
    Perform,
    ScriptedStore,
    World,
    Writer,
    append,
    delete,
    lose_the_request,
    meanwhile,
    paths,
    table,
)

DAY_US = 86_400_000_000


def test_versions_are_dated_by_the_servers_clock_and_not_by_the_writers(world: World) -> None:
    writer = world.writer(local_off_us=-3 * 3_600_000_000)
    writer.commit(append(table(world), "a"))
    assert world.newest.created_at == world.now_us
    assert world.newest.commit_ts >= world.now_us


def test_created_at_never_decreases_though_clocks_go_back(world: World) -> None:
    for number, off_minutes in enumerate((0, 9, 3, -20, 8, 10, -3)):
        world.server_off_us = off_minutes * 60_000_000
        world.writer().commit(append(table(world), f"f{number}"))
    created = [manifest.created_at for manifest in world.chain()]
    assert created == sorted(created)
    assert created[-1] == START_US + 10 * 60_000_000


def test_commit_timestamps_increase_strictly_though_clocks_stand_still_or_go_back(world: World) -> None:
    for number in range(10):
        world.server_off_us = -number * 1_000_000
        world.writer().commit(append(table(world), f"f{number}"), delete(table(world)))
    stamps = [manifest.commit_ts for manifest in world.chain()]
    assert all(later >= earlier + 2 for earlier, later in pairwise(stamps[1:]))


def test_each_statement_has_its_own_timestamp_and_the_commit_the_last_ones(world: World) -> None:
    entry = table(world)
    before = world.newest.commit_ts
    world.writer().commit(append(entry, "a"), delete(entry), append(entry, "b", "c"))
    a, b, c = table(world).files
    (tombstone,) = table(world).tombstones
    assert before < a.row_ts < tombstone.ts < b.row_ts == c.row_ts == world.newest.commit_ts  # type: ignore[operator]
    assert [file.applied_through for file in (a, b, c)] == [file.row_ts for file in (a, b, c)]


def test_timestamps_stand_in_manifests_alone_so_a_rebase_uploads_only_its_manifest(world: World) -> None:
    writer, other = world.writer(), world.writer()
    writer.head.refresh()
    writer.store.script.append(meanwhile(lambda: other.commit(append(table(world), "b"))))
    before = len(writer.store.puts)
    assert writer.commit(append(table(world), "a"), delete(table(world))).attempts == 2
    kinds = [key.split("/")[0] for key in writer.store.puts[before:]]
    assert kinds == ["manifest", "_latest_manifest", "manifest", "_latest_manifest"]


def test_a_pointer_is_never_signed_more_than_four_minutes_after_its_stamp(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()
    sent_at: list[float] = []
    uploads = 0
    put = writer.store.put

    def slow(key: str, body: bytes, *, if_match: str | None = None) -> object:
        nonlocal uploads
        if key.startswith("manifest/"):
            uploads += 1
            outcome = put(key, body, if_match=if_match)
            world.pass_minutes(5 if uploads < 3 else 1)  # the answer's way back takes that long
            return outcome
        sent_at.append(world.now_us / 1e6)
        return put(key, body, if_match=if_match)

    writer.store.put = slow  # type: ignore[method-assign, assignment]
    done = writer.commit(append(table(world), "a"))
    assert (uploads, done.attempts, len(sent_at)) == (3, 1, 1)
    assert sent_at[0] - world.newest.created_at / 1e6 < STAMP_SECONDS


def test_a_resend_stops_when_the_stamp_is_four_minutes_old(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()
    writer.store.script += [meanwhile(lambda: world.pass_minutes(1.5), then=lose_the_request)] * 8
    with pytest.raises(UnknownOutcomeError):
        writer.commit(append(table(world), "a"))
    assert len(writer.store.pointer_puts) == 3


@pytest.mark.parametrize(
    ("rest", "manifests", "gets"),
    [
        pytest.param(lambda writer: writer.world.pass_minutes(1 / 60), 1, 0, id="a second"),
        pytest.param(lambda writer: writer.world.pass_minutes(3.9), 1, 0, id="almost four minutes"),
        pytest.param(lambda writer: writer.world.pass_minutes(60), 1, 1, id="an hour"),
        pytest.param(lambda writer: writer.freeze(1 / 30, clock_is_set=True), 1, 1, id="frozen for two seconds"),
        pytest.param(lambda writer: writer.freeze(3, clock_is_set=True), 1, 1, id="frozen"),
        pytest.param(lambda writer: writer.freeze(60, clock_is_set=True), 1, 1, id="frozen for an hour"),
        # Its own clocks show nothing of it. The answer to the first manifest does.
        pytest.param(lambda writer: writer.freeze(3, clock_is_set=False), 2, 0, id="frozen with all its clocks"),
        pytest.param(lambda writer: writer.freeze(60, clock_is_set=False), 2, 1, id="and for an hour"),
    ],
)
def test_no_commit_is_dated_before_it_was_asked_for(
    world: World, rest: Callable[[Writer], None], manifests: int, gets: int
) -> None:
    writer = world.writer()
    writer.commit(append(table(world), "a"))
    rest(writer)
    asked_us, before = world.now_us, len(writer.store.puts)
    writer.store.gets.clear()
    assert writer.commit(delete(table(world))).attempts == 1
    assert world.newest.created_at == asked_us
    assert manifest_at_time(writer.head, writer.head.refresh(), asked_us - 1).version == 2
    assert (len(writer.store.puts) - before, len(writer.store.gets)) == (manifests + 1, gets + 1)


@pytest.mark.parametrize("clock_is_set", [True, False])
def test_a_machine_that_is_frozen_before_a_repeated_pointer_does_not_send_it(world: World, clock_is_set: bool) -> None:
    writer = world.writer()
    writer.head.refresh()
    freeze = meanwhile(lambda: writer.freeze(60, clock_is_set=clock_is_set), then=lose_the_request)
    writer.store.script += [freeze] * 8
    with pytest.raises(UnknownOutcomeError):
        writer.commit(append(table(world), "a"))
    assert len(writer.store.pointer_puts) == 1


def test_servers_whose_clocks_disagree_hold_no_commit_back(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()

    def put_elsewhere(store: ScriptedStore, perform: Perform) -> PutOutcome:
        world.server_off_us = 60_000_000
        outcome = perform()
        world.server_off_us = 0
        return outcome

    writer.store.is_scripted, writer.store.script = (lambda key: True), deque([put_elsewhere] * 9)
    before = world.now_us
    assert writer.commit(append(table(world), "a")).attempts == 1
    assert len(writer.store.script) == 6  # a manifest twice, and a pointer
    assert world.newest.created_at == before + 60_000_000


def test_an_idle_writer_asks_for_the_time_before_it_commits(world: World) -> None:
    writer = world.writer()
    writer.commit(append(table(world), "a"))
    writer.store.gets.clear()
    writer.commit(append(table(world), "b"))
    assert writer.store.gets == []
    world.pass_minutes(60)
    writer.commit(append(table(world), "c"))
    assert len(writer.store.gets) == 1
    assert world.newest.created_at == world.now_us


def test_a_server_clock_a_day_away_from_everything_is_refused_unless_forced(world: World) -> None:
    world.server_off_us = 40 * DAY_US
    with pytest.raises(ClockError):
        world.writer().commit(append(table(world), "a"))
    assert world.newest.version == 1
    world.writer(trust_clock=True).commit(append(table(world), "a"))
    assert paths(table(world)) == ["a"]


def test_one_wrong_clock_of_three_is_borne(world: World) -> None:
    world.writer(local_off_us=400 * DAY_US).commit(append(table(world), "a"))  # the writer's own
    world.pass_minutes(60 * 24 * 30)
    world.writer().commit(append(table(world), "b"))  # the last commit is a month old
    assert paths(table(world)) == ["a", "b"]


def test_the_first_commit_of_a_database_has_only_the_local_clock_to_compare_with() -> None:
    world = World()
    with pytest.raises(ClockError):
        world.writer(local_off_us=2 * DAY_US).create()
    world.writer().create()


def test_clocks_that_never_agree_end_in_an_error_and_not_in_a_loop() -> None:
    ticks = count(1_767_225_600_000_000, 1_000_000)
    runtime = Runtime(clock_us=lambda: next(ticks), monotonic=lambda: 0.0, threads=1)
    db = Database(MemoryStore(MemoryBucket(clock_us=lambda: next(ticks)), runtime), runtime)
    with pytest.raises(StoreUnavailableError, match="clocks"):
        db.create_table("t", pa.schema([("id", pa.int64())]))

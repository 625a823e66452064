"""Turns: a writer that has lost again commits next, and nothing but the waiting depends on it."""

from __future__ import annotations

import msgspec
import pytest
from bench.competition import compete

from dolmen.commit.loop import LONGEST_SECONDS, LOSSES_BEFORE_TURN, turn_seconds
from dolmen.errors import AccessDeniedError, UnknownOutcomeError
from dolmen.format.layout import POINTER, Pointer, Turn
from dolmen.store.base import Stored
from dolmen.store.memory import MemoryStore
from support.commit_world import (
    Behaviour,
    World,
    Writer,
    append,
    deny,
    land_late,
    lose_the_request,
    lose_the_response,
    meanwhile,
    paths,
    succeed,
    table,
)


def pointer_of(world: World) -> Pointer:
    return Pointer.decode(world.bucket.objects[POINTER].body, POINTER)


def take_turn(world: World, ms: int = 800, id_: str = "ab" * 16) -> None:
    """Names a turn in the pointer, as another process does."""
    there = world.bucket.objects[POINTER]
    taken = msgspec.structs.replace(pointer_of(world), turn=Turn(id_, ms))
    assert isinstance(MemoryStore(world.bucket).put(POINTER, taken.encode(), if_match=there.etag), Stored)


def losing(world: World, rival: Writer, times: int) -> list[Behaviour]:
    """Behaviours by which each attempt loses to a commit of a rival."""
    return [
        meanwhile(lambda number=number: rival.commit(append(table(world), f"rival-{number}")))  # type: ignore[misc]
        for number in range(times)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("appenders", "deleters"), [(2, 0), (2, 2), (8, 0)])
@pytest.mark.parametrize(("latency", "spread"), [(0.02, 0.5), (0.03, 0.0)])
def test_no_process_starves_beside_others_that_commit_without_a_pause(
    appenders: int, deleters: int, latency: float, spread: float
) -> None:
    seconds, number = 6.0, appenders + deleters
    workers = compete(appenders, deleters, seconds=seconds, latency=latency, spread=spread)
    counts = [len(worker.waits) for worker in workers]
    trips = seconds / latency
    assert sum(counts) > trips / 6, "a commit takes six round trips at most, with all waiting"
    assert min(counts) * number * 2 > sum(counts), "each has half of its share at least"
    assert max(wait for worker in workers for wait in worker.waits) < 10 * number * latency + 0.5


def test_a_process_alone_takes_no_turn_and_asks_for_nothing_more(world: World) -> None:
    writer = world.writer()
    writer.commit(append(table(world), "a"))
    gets, puts = len(writer.store.gets), len(writer.store.puts)
    for name in "bcd":
        writer.commit(append(table(world), name))
    assert (len(writer.store.gets) - gets, len(writer.store.puts) - puts) == (0, 6)
    assert not pointer_of(world).turn
    assert b"turn" not in world.bucket.objects[POINTER].body


def test_a_writer_that_has_lost_twice_takes_a_turn_and_commits_on_it(world: World) -> None:
    writer, rival = world.writer(), world.writer()
    seen = list[Pointer]()
    writer.store.script += [
        *losing(world, rival, LOSSES_BEFORE_TURN),
        succeed,
        meanwhile(lambda: seen.append(pointer_of(world))),
    ]
    done = writer.commit(append(table(world), "own"))
    assert done.manifest is not None
    assert done.attempts == LOSSES_BEFORE_TURN + 1
    (taken,) = seen
    assert taken.version == done.manifest.version - 1
    assert taken.turn
    assert not pointer_of(world).turn, "its commit ends the turn"
    assert [each.version for each in world.chain()] == [1, 2, 3, 4], "a turn is no version"
    assert paths(table(world)) == ["rival-0", "rival-1", "own"]


def test_others_wait_while_a_turn_lasts_and_no_longer(world: World) -> None:
    writer = world.writer()
    take_turn(world, ms=800)
    began = world.now_us
    writer.commit(append(table(world), "a"))
    assert 0.8 <= (world.now_us - began) / 1e6 < 1.5, "whose turn it is never comes"
    assert paths(table(world)) == ["a"]


def test_others_go_on_when_the_version_changes(world: World) -> None:
    writer = world.writer()
    take_turn(world, ms=4_000)
    began, looks = world.now_us, 0

    def commit_meanwhile(key: str) -> bool:
        nonlocal looks
        looks += key == POINTER
        if looks == 4:
            looks += 1
            world.put_by_hand()
        return False

    writer.store.unreadable = commit_meanwhile
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert done.manifest.version == 3
    assert (world.now_us - began) / 1e6 < 1


def test_an_attempt_under_way_fails_by_a_turn_and_is_made_again(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()
    writer.store.script.append(meanwhile(lambda: take_turn(world)))
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert (done.manifest.version, done.attempts) == (2, 2)
    assert paths(table(world)) == ["a"]


@pytest.mark.parametrize("lost", [lose_the_request, land_late])
def test_a_put_without_answer_has_not_landed_if_a_turn_was_taken_since(world: World, lost: Behaviour) -> None:
    writer = world.writer()
    writer.head.refresh()

    def lose_beside_a_turn(store: object, perform: object) -> object:
        outcome = lost(writer.store, perform)  # type: ignore[arg-type]
        take_turn(world)
        return outcome

    writer.store.script.append(lose_beside_a_turn)  # type: ignore[arg-type]
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert done.manifest.version == 2
    while writer.store.under_way:
        writer.store.land()
    assert [each.version for each in world.chain()] == [1, 2]
    assert paths(table(world)) == ["a"], "once"


def test_a_commit_that_landed_before_a_turn_was_taken_is_found(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()

    def land_and_be_followed(store: object, perform: object) -> object:
        outcome = lose_the_response(writer.store, perform)  # type: ignore[arg-type]
        take_turn(world)
        return outcome

    writer.store.script.append(land_and_be_followed)  # type: ignore[arg-type]
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert (done.manifest.version, done.attempts) == (2, 1)
    assert paths(table(world)) == ["a"]


@pytest.mark.parametrize("lost", [lose_the_response, lose_the_request, land_late])
def test_a_turn_whose_answer_is_lost_costs_time_and_nothing_else(world: World, lost: Behaviour) -> None:
    writer, rival = world.writer(), world.writer()
    writer.store.script += [*losing(world, rival, LOSSES_BEFORE_TURN), lost]
    done = writer.commit(append(table(world), "own"))
    assert done.manifest is not None
    while writer.store.under_way:
        writer.store.land()
    assert paths(table(world)) == ["rival-0", "rival-1", "own"]
    assert [each.version for each in world.chain()] == [1, 2, 3, 4]
    rival.commit(append(table(world), "after"))
    assert world.newest.version == 5


def test_a_late_turn_is_no_version_and_ends_by_itself(world: World) -> None:
    writer, rival = world.writer(), world.writer()
    writer.store.script += [
        *losing(world, rival, LOSSES_BEFORE_TURN),
        land_late,
        meanwhile(lambda: writer.store.land(), deny),
    ]
    with pytest.raises((AccessDeniedError, UnknownOutcomeError)):
        writer.commit(append(table(world), "own"))
    assert world.newest.version == 3
    began = world.now_us
    rival.commit(append(table(world), "after"))
    assert (world.now_us - began) / 1e6 < LONGEST_SECONDS + 1
    assert paths(table(world)) == ["rival-0", "rival-1", "after"]


@pytest.mark.parametrize("ms", [-1, 0, 1 << 62])
def test_no_turn_holds_others_up_for_long_whatever_it_says(world: World, ms: int) -> None:
    writer = world.writer()
    take_turn(world, ms=ms)
    began = world.now_us
    writer.commit(append(table(world), "a"))
    assert (world.now_us - began) / 1e6 < LONGEST_SECONDS + 1
    assert turn_seconds(Turn("", ms)) <= LONGEST_SECONDS


def test_a_reader_of_a_turn_reads_no_manifest_again(world: World) -> None:
    reader = world.writer()
    before = reader.head.refresh()
    take_turn(world)
    reader.store.gets.clear()
    after = reader.head.refresh()
    assert reader.store.gets == [POINTER]
    assert after.manifest is before.manifest
    assert after.etag != before.etag

"""Commit ids, attempts and pointers: what is the same, and what never is."""

from __future__ import annotations

import pytest

from dolmen.base.runtime import POINTER_PUT
from dolmen.errors import UnknownOutcomeError
from dolmen.format.layout import POINTER, Pointer
from dolmen.store.memory import MemoryStore
from support.commit_world import World, append, is_refused, land_late, lose_the_request, meanwhile, paths, table


def test_no_two_pointers_ever_share_an_etag(world: World) -> None:
    etags = [world.bucket.objects[POINTER].etag]
    first, second = world.writer(), world.writer()
    for number in range(40):
        (first if number % 2 else second).commit(append(table(world), f"f{number}"))
        etags.append(world.bucket.objects[POINTER].etag)
    assert len(set(etags)) == len(etags)


def test_a_late_pointer_of_an_old_version_never_lands_again(world: World) -> None:
    writer, other = world.writer(), world.writer()
    writer.store.script += [land_late] + [lose_the_request] * (POINTER_PUT.tries - 1)
    with pytest.raises(UnknownOutcomeError):
        writer.commit(append(table(world), "a"))
    for number in range(3):
        other.commit(append(table(world), f"b{number}"))
    assert is_refused(writer.store.land())
    assert paths(table(world)) == ["b0", "b1", "b2"]


def test_all_attempts_of_a_change_have_one_commit_id_and_names_of_their_own(world: World) -> None:
    writer, other = world.writer(), world.writer()
    for number in range(3):  # two attempts, and a turn
        writer.store.script.append(meanwhile(lambda number=number: other.commit(append(table(world), f"b{number}"))))
    writer.head.refresh()
    before = len(writer.store.puts)
    done = writer.commit(append(table(world), "a"))
    assert done.attempts == 3
    pointers = [Pointer.decode(body, POINTER) for body in writer.store.pointer_puts]
    assert len({pointer.commit_id for pointer in pointers if not pointer.turn}) == 1
    manifests = [key for key in writer.store.puts[before:] if key.startswith("manifest/")]
    assert len(set(manifests)) == 3
    assert paths(table(world)) == ["b0", "b1", "b2", "a"]


def test_a_stalled_writer_cannot_revive_a_version_that_was_collected(world: World) -> None:
    stalled, other = world.writer(), world.writer()
    stalled.head.refresh()
    other.commit(append(table(world), "b"))
    collected = world.newest.key
    other.commit(append(table(world), "c"))
    MemoryStore(world.bucket).delete([collected])
    stalled.commit(append(table(world), "a"))
    assert collected not in world.bucket.objects
    assert not [key for key in stalled.store.puts if key == collected]
    assert paths(table(world)) == ["b", "c", "a"]


def test_the_losers_manifest_stays_and_is_named_by_nobody(world: World) -> None:
    writer, other = world.writer(), world.writer()
    writer.store.script.append(meanwhile(lambda: other.commit(append(table(world), "b"))))
    writer.commit(append(table(world), "a"))
    manifests = {key for key in world.bucket.objects if key.startswith("manifest/")}
    assert len(manifests - {manifest.key for manifest in world.chain()}) == 1


def test_every_object_but_the_pointer_is_created_and_never_replaced(world: World) -> None:
    bodies: dict[str, bytes] = {}
    first, second = world.writer(), world.writer()
    for number in range(20):
        (first if number % 2 else second).commit(append(table(world), f"f{number}"))
        for key, there in world.bucket.objects.items():
            if key != POINTER:
                assert bodies.setdefault(key, there.body) == there.body

"""The judge notices a version that breaks what it owes later ones, before anybody is harmed."""

from __future__ import annotations

import pytest

from dolmen.base.records import replace
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.resolution import resolve
from dolmen_simulator.judge import model
from dolmen_simulator.judge.never import Never, ViolationError
from simulation.judged import DAY_US, Document, Forgery, World, check_forgery, left


def check_rewriting(world: World, forgery: Forgery, told: str, never: Never = Never.REVIVED) -> None:
    """Lets a compaction land whose manifest is forged."""
    world.delete_positions(1)
    world.store.forgery = forgery
    options = CompactionOptions(deleted_share=0.01)
    with pytest.raises(ViolationError, match=told) as caught:
        world.upkeep("compact", lambda: compact(world.db._context, "left", options=options))
    assert caught.value.never is never, caught.value


def test_a_compaction_that_takes_its_own_time_is_found_before_a_delete_comes_in_between(world: World) -> None:
    def forgery(manifest: Document) -> None:
        for file in left(manifest)["files"]:
            file["applied_through"] = manifest["commit_ts"]

    check_rewriting(world, forgery, "deletes|pair")


def test_an_epoch_that_background_work_changes_is_found(world: World) -> None:
    check_rewriting(world, lambda manifest: left(manifest).update(epoch=manifest["version"]), "epoch")


def test_a_new_file_with_another_time_than_its_statement_is_found(world: World) -> None:
    def forgery(manifest: Document) -> None:
        file = left(manifest)["files"][-1]
        file["applied_through"] = file["row_ts"] - 1

    check_forgery(world, forgery, Never.REVIVED, "timestamp")


def test_a_new_tombstone_with_a_time_of_before_is_found(world: World) -> None:
    def forgery(manifest: Document) -> None:
        left(manifest)["tombstones"][-1]["ts"] -= 10_000_000
        left(manifest)["tombstones"][-1]["columns"] = [1, 2]

    world.store.forgery = forgery
    with pytest.raises(ViolationError, match="tombstone") as caught:
        world.do(
            "delete", [model.DeleteEffect("left", lambda row: False)], lambda: world.db.table("left").delete("k > 99")
        )
    assert caught.value.never is Never.REVIVED


def test_a_pair_that_gets_smaller_is_found_though_a_tombstone_hides_the_rows_still(world: World) -> None:
    world.delete_positions(5)
    world.delete(5)
    check_forgery(world, lambda manifest: left(manifest)["files"][1].pop("vector"), Never.REVIVED, "pair")


def test_a_delete_that_is_not_noted_would_be_a_lost_update(world: World) -> None:
    def forgery(manifest: Document) -> None:
        left(manifest)["last_delete_ts"] = 0

    world.store.forgery = forgery
    with pytest.raises(ViolationError, match="last delete") as caught:
        world.delete(2)
    assert caught.value.never is Never.HALF


def test_a_delete_without_a_tombstone_that_is_not_noted_would_be_a_lost_update(world: World) -> None:
    def forgery(manifest: Document) -> None:
        left(manifest)["unseen_delete_ts"] = 0

    world.store.forgery = forgery
    with pytest.raises(ViolationError, match="does not say so") as caught:
        world.delete_positions(2)
    assert caught.value.never is Never.HALF


def test_a_tombstone_that_is_dropped_and_not_noted_would_be_a_lost_update(world: World) -> None:
    world.delete(2)

    def forgery(manifest: Document) -> None:
        left(manifest)["unseen_delete_ts"] = 0

    world.store.forgery = forgery
    with pytest.raises(ViolationError, match="tombstone") as caught:
        world.upkeep("resolve", lambda: resolve(world.db._context, "left"))
    assert caught.value.never is Never.HALF


def test_a_commit_whose_objects_are_behind_the_fence_or_gone_is_found(world: World) -> None:
    def aged(manifest: Document) -> None:
        key = left(manifest)["files"][-1]["path"]
        there = world.bucket.objects[key]
        world.bucket.objects[key] = replace(there, last_modified_us=there.last_modified_us - 30 * DAY_US)

    world.set(retention="1d", keep_versions=2, reader_grace="1h", orphan_age="2d")
    world.now_us += 10 * DAY_US
    world.upkeep("gc", lambda: collect(world.db._context))
    check_forgery(world, aged, Never.COLLECTED, "fence")

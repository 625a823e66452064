"""The judge says what is wrong with a forged version, and which of the eight points that breaks."""

from __future__ import annotations

import msgspec
import pytest

from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.resolution import resolve
from dolmen_simulator.judge.never import Never, ViolationError
from simulation.judged import Document, World, check_forgery, left

# ---- what versions hold ----------------------------------------------------------------------------------------------


def test_a_history_without_forgeries_is_not_found_fault_with(world: World) -> None:
    world.delete(1)
    world.delete_positions(5)
    world.apply("a", 9)
    world.upkeep("resolve", lambda: resolve(world.db._context, "left"))
    world.upkeep("compact", lambda: compact(world.db._context, "left"))
    world.append(10)
    world.ledger.check_isolation()
    world.ledger.check_dates()


def test_a_file_that_a_version_leaves_out_is_a_lost_row(world: World) -> None:
    check_forgery(world, lambda manifest: left(manifest)["files"].pop(2), Never.LOST, r"Row\(k=7")


def test_a_file_that_stands_there_twice_is_a_row_there_twice(world: World) -> None:
    check_forgery(
        world, lambda manifest: left(manifest)["files"].append(left(manifest)["files"][2]), Never.LOST, "twice"
    )


def test_a_tombstone_that_is_dropped_too_early_is_a_revived_row(world: World) -> None:
    world.delete(4)
    check_forgery(world, lambda manifest: left(manifest).pop("tombstones"), Never.REVIVED, r"Row\(k=4")


def test_a_file_that_claims_to_know_more_deletes_than_it_does_is_a_revived_row(world: World) -> None:
    world.delete(4)

    def forgery(manifest: Document) -> None:
        left(manifest)["files"][1]["applied_through"] = manifest["commit_ts"]

    check_forgery(world, forgery, Never.REVIVED, r"Row\(k=4")


def test_a_vector_that_is_dropped_is_a_revived_row(world: World) -> None:
    world.delete_positions(5)
    check_forgery(world, lambda manifest: left(manifest)["files"][1].pop("vector"), Never.REVIVED, "k=5")


def test_an_older_vector_that_counts_again_is_a_revived_row(world: World) -> None:
    world.delete_positions(5)
    old = left({"tables": {"left": world.table}})["files"][1]["vector"]
    world.delete_positions(6)

    def forgery(manifest: Document) -> None:
        left(manifest)["files"][1]["vector"] = old

    check_forgery(world, forgery, Never.REVIVED, "k=6")


def test_a_vector_of_another_file_is_a_lost_row(world: World) -> None:
    world.delete_positions(5)

    def forgery(manifest: Document) -> None:
        files = left(manifest)["files"]
        files[0]["vector"] = files[1].pop("vector")

    check_forgery(world, forgery, Never.LOST, "k=2")


def test_a_file_whose_values_are_others_is_a_lost_row(world: World) -> None:
    path = world.table["files"][2]["path"]
    other = world.table["files"][1]["path"]
    world.bucket.objects[path], kept = world.bucket.objects[other], world.bucket.objects[path]
    assert kept.body != world.bucket.objects[path].body
    world.ledger.content._data.clear()
    world.ledger.content._rows_shown.clear()
    with pytest.raises(ViolationError, match="k=7") as caught:
        world.append(8)
    assert caught.value.never is Never.LOST


def test_a_row_whose_commit_timestamp_changes_is_found(world: World) -> None:
    def forgery(manifest: Document) -> None:
        left(manifest)["files"][0]["row_ts"] += 1

    check_forgery(world, forgery, Never.HALF, "_commit_ts")


def test_a_table_that_a_version_leaves_out_is_lost(world: World) -> None:
    check_forgery(world, lambda manifest: manifest["tables"].pop("left"), Never.LOST, "tables")


def test_settings_that_a_version_forgets_are_lost(world: World) -> None:
    world.set(keep_versions=5)
    check_forgery(world, lambda manifest: manifest.pop("properties"), Never.LOST, "settings")


def test_a_commit_that_hides_that_it_changed_rows_misreports(world: World) -> None:
    check_forgery(world, lambda manifest: manifest.update(data_change=False), Never.MISREPORTED, "did not")


# ---- the chain -------------------------------------------------------------------------------------------------------


def test_a_commit_timestamp_that_does_not_grow_is_found(world: World) -> None:
    check_forgery(world, lambda manifest: manifest.update(commit_ts=1), Never.REVIVED, "commit_ts")


def test_a_created_at_that_goes_back_is_found(world: World) -> None:
    check_forgery(world, lambda manifest: manifest.update(created_at=1), Never.UNREADABLE, "created_at")


def test_a_commit_that_is_dated_before_it_was_asked_for_is_found(world: World) -> None:
    world.now_us += 30_000_000
    before_us = world.ledger.chain[-1].created_at
    check_forgery(world, lambda manifest: manifest.update(created_at=before_us), Never.MISDATED, "31.0 s")


def test_a_version_that_follows_another_one_than_the_newest_loses_it(world: World) -> None:
    before = world.ledger.chain[-2].key
    check_forgery(world, lambda manifest: manifest.update(previous=before), Never.LOST, "follow")


def test_a_history_that_leaves_commits_out_is_found(world: World) -> None:
    check_forgery(world, lambda manifest: manifest["history"].pop(0), Never.MISREPORTED, "history")


def test_a_manifest_that_is_not_there_makes_its_version_unreadable(world: World) -> None:
    pointer = msgspec.json.encode({"version": 5, "manifest": "manifest/v5", "commit_id": "x"})
    world.begin("append")
    world.ledger.record_sent(pointer, world.store.run)
    with pytest.raises(ViolationError, match="not there") as caught:
        world.ledger.record_pointer(pointer, world.now_us)
    assert caught.value.never is Never.UNREADABLE


def test_a_version_whose_object_is_missing_is_unreadable(world: World) -> None:
    def forgery(manifest: Document) -> None:
        path = left(manifest)["files"][-1]["path"]
        del world.bucket.objects[path]

    check_forgery(world, forgery, Never.UNREADABLE, "data/left")

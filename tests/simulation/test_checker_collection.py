"""The judge notices what collection deletes too early, and versions that would make it do so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dolmen.format.layout import POINTER
from dolmen.maintenance.gc.collection import collect
from dolmen_simulator.actors.writers import arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.never import Never, ViolationError
from simulation.judged import DAY_US, Forgery, World, check_forgery


def check_deletion(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ViolationError, match=told) as caught:
        call()
    assert caught.value.never is Never.COLLECTED


def test_what_a_version_needs_may_not_be_deleted(expiring: World) -> None:
    path = expiring.table["files"][0]["path"]
    check_deletion(lambda: expiring.store.delete([path]), "version 5")
    check_deletion(lambda: expiring.store.delete([expiring.ledger.chain[1].key]), "version 1")
    check_deletion(lambda: expiring.store.delete([POINTER]), "was deleted")


def test_what_an_expired_version_needs_may_not_be_deleted_before_its_readers_are_gone(expiring: World) -> None:
    old = [file["path"] for file in expiring.table["files"]]
    rows = expiring.rows(1)
    overwrite = model.OverwriteEffect("left", rows, force=True)
    expiring.do("overwrite", [overwrite], lambda: expiring.db.table("left").overwrite(arrow(rows), force=True))
    expiring.append(2)
    expiring.now_us += 2 * DAY_US
    expiring.append(3)
    expiring.append(4)
    expiring.upkeep("gc", lambda: collect(expiring.db._context))
    assert expiring.ledger.retention.horizon > 6
    assert old[0] in expiring.bucket.objects
    check_deletion(lambda: expiring.store.delete(old[:1]), "grace")
    expiring.now_us += 7_200_000_000
    expiring.store.delete(old[:1])


def test_an_orphan_that_a_commit_may_still_name_may_not_be_deleted(expiring: World) -> None:
    expiring.store.put("data/left/2026/01/01/00/orphan.parquet", b"rows of a commit under way")
    check_deletion(lambda: expiring.store.delete(["data/left/2026/01/01/00/orphan.parquet"]), "land")


def test_a_fence_or_a_horizon_that_moves_too_far_or_back_is_found(expiring: World) -> None:
    now_us = expiring.now_us
    forgeries: list[tuple[Forgery, str]] = [
        (lambda manifest: manifest.update(orphan_cutoff=now_us), "fence"),
        (lambda manifest: manifest.update(horizon=3, horizon_at=manifest["created_at"]), "expires"),
        (lambda manifest: manifest.update(horizon=7, horizon_at=manifest["created_at"]), "kept"),
        (lambda manifest: manifest.update(freed=99), "99"),
    ]
    for forgery, told in forgeries:
        world = World()
        world.create()
        for k in range(4):
            world.append(k)
        world.set(retention="1d", keep_versions=2, reader_grace="1h", orphan_age="2d")
        check_forgery(world, forgery, Never.COLLECTED, told)


def test_what_a_version_lets_go_of_without_saying_so_is_found(expiring: World) -> None:
    rows = expiring.rows(1)
    overwrite = model.OverwriteEffect("left", rows, force=True)
    expiring.store.forgery = lambda manifest: manifest.pop("released")
    table = expiring.db.table("left")
    check_deletion(
        lambda: expiring.do("overwrite", [overwrite], lambda: table.overwrite(arrow(rows), force=True)), "data/left"
    )

"""The judge of publications sees what is wrong about them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dolmen.commit.head import context_of
from dolmen.iceberg import publication
from dolmen.iceberg.manifest_writer import DeletesWriter
from dolmen.iceberg.partition_specs import UNPARTITIONED
from dolmen.iceberg.publication import publish
from dolmen.iceberg.publication_directory import unpin_versions
from dolmen_simulator.judge import model
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.past import RestoreAllEffect
from simulation.judged import World

Document = dict[str, Any]


@pytest.fixture(params=["v2", "v3"])
def world(request: pytest.FixtureRequest) -> World:
    world = World()
    world.create()
    changes = {"iceberg": request.param}
    world.do("set", [model.SettingsEffect("left", changes)], lambda: world.db.table("left").set(**changes))
    world.append(1, 2, 3)
    world.delete(2)
    return world


def publish_left(world: World) -> None:
    world.upkeep("publish", lambda: publish(context_of(world.db), "left"))


def test_publications_that_are_right_pass(world: World) -> None:
    for key in (7, 8):
        publish_left(world)
        world.append(key)
        world.delete(3)
    world.upkeep("resolve", lambda: world.db.resolve("left"))
    publish_left(world)
    world.ledger.publications.check_all()
    assert world.ledger.counts["publications"] == 3
    assert world.ledger.publications.leftovers()  # the first two are of no use any more


def test_a_delete_file_without_the_partition_of_its_data_file_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"partition_by": "truncate[100](k)"}
    world.do("set", [model.SettingsEffect("left", changes)], lambda: world.db.table("left").set(**changes))
    publish_left(world)
    world.append(4, 5)
    world.delete(3)
    publish_left(world)
    world.ledger.publications.check_all()
    world.delete(4)
    right = DeletesWriter._positions
    monkeypatch.setattr(
        DeletesWriter, "_positions", lambda *args: ((*each[:2], UNPARTITIONED) for each in right(*args))
    )
    with pytest.raises(ViolationError, match="shows other rows"):
        publish_left(world)


def other_version(found: Document) -> None:
    (snapshot,) = found["snapshots"]
    snapshot["snapshot-id"] = found["current-snapshot-id"] = 3


def other_rows(found: Document) -> None:
    """The version before the delete, but for its manifest list."""
    other_version(found)
    (snapshot,) = found["snapshots"]
    snapshot["sequence-number"] = found["last-sequence-number"] = found["then"]["commit_ts"]
    snapshot["timestamp-ms"] = found["then"]["created_at"] // 1000
    snapshot["summary"]["dolmen.commit-id"] = found["then"]["commit_id"]


def other_columns(found: Document) -> None:
    found["schemas"][0]["fields"].pop()


def other_totals(found: Document) -> None:
    found["snapshots"][0]["summary"]["total-records"] = "4"


@pytest.mark.parametrize(
    ("forge", "told"),
    [
        (other_version, "commit"),
        (other_rows, "snapshot"),
        (other_columns, "has columns"),
        (other_totals, "total-records"),
    ],
)
def test_forged_metadata_is_seen(world: World, forge: Any, told: str) -> None:
    then = world.ledger.chain[3]

    def forgery(content: bytes) -> bytes:
        found = msgspec.json.decode(content)
        found["then"] = {"commit_ts": then.commit_ts, "created_at": then.created_at, "commit_id": then.commit_id}
        forge(found)
        return msgspec.json.encode(found)

    world.store.publication_forgery = forgery
    with pytest.raises(ViolationError, match=told) as caught:
        publish_left(world)
    assert caught.value.never is Never.MISPUBLISHED


def test_no_object_of_what_is_published_may_be_deleted(world: World) -> None:
    publish_left(world)
    needed = [key for key in world.bucket.objects if key.startswith(("iceberg/", "data/"))]
    assert len(needed) >= 6
    for key in needed:
        with pytest.raises(ViolationError, match="was deleted"):
            world.store.delete([key])


def test_the_pin_of_what_is_published_may_not_go(world: World) -> None:
    publish_left(world)
    uuid = world.table["uuid"]
    with pytest.raises(ViolationError, match="has no pin") as caught:
        world.upkeep("publish", lambda: unpin_versions(context_of(world.db), uuid, None))
    assert caught.value.never is Never.MISPUBLISHED


def test_a_publication_of_a_table_that_came_back_is_not_left_over(world: World) -> None:
    """History 20260121: its publisher ended after the drop, and a restore brought the table back."""
    publish_left(world)
    before = world.ledger.version
    world.do("drop", [model.DropEffect("left")], lambda: world.db.drop_table("left"))
    assert world.ledger.publications.leftovers()
    world.do("restore", [RestoreAllEffect(before, world.ledger)], lambda: world.db.restore(before))
    assert not world.ledger.publications.leftovers()


def test_an_earlier_version_of_a_table_that_came_back_is_needed_while_it_is_pinned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History 90000867: a publisher died before it removed the pin of the version before."""
    publish_left(world)
    earlier = set(world.bucket.objects)
    world.append(7)
    monkeypatch.setattr(publication, "unpin_versions", lambda *_: None)
    publish_left(world)
    before = world.ledger.version
    world.do("drop", [model.DropEffect("left")], lambda: world.db.drop_table("left"))
    world.do("restore", [RestoreAllEffect(before, world.ledger)], lambda: world.db.restore(before))
    assert not world.ledger.publications.leftovers()
    uuid = world.table["uuid"]
    world.upkeep("publish", lambda: unpin_versions(context_of(world.db), uuid, before))
    left = world.ledger.publications.leftovers()
    assert left
    assert left <= earlier


def test_what_is_pinned_is_needed_when_a_table_that_came_back_is_published_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History 96002121."""
    publish_left(world)
    before = world.ledger.version
    world.do("drop", [model.DropEffect("left")], lambda: world.db.drop_table("left"))
    world.do("restore", [RestoreAllEffect(before, world.ledger)], lambda: world.db.restore(before))
    world.append(7)
    monkeypatch.setattr(publication, "unpin_versions", lambda *_: None)
    publish_left(world)
    assert not world.ledger.publications.leftovers()

"""Erasures of rows in published tables: a receipt waits for what publications hold of them."""

from __future__ import annotations

import pytest

from dolmen.base.records import replace
from dolmen.format.receipts import Receipt, receipt_key
from support.aging import Place
from support.erased import SCHEMA, collect_own, holders, maintain, people

MARKER = "marker-anna"


def erased_place(snapshots: str = "newest", *, at_once: bool = True) -> tuple[Place, str]:
    """A place with a published table of which rows are erased, and the erasure's id.

    Args:
        at_once: whether the erasure is published, as its table still asks for it.
    """
    place = Place()
    place.db.set(erase_within="1s", erasure_memory="1s", orphan_age="1d")
    table = place.db.create_table("t", SCHEMA)
    table.append(people(MARKER, "bert"))
    table.append(people("carl"))
    table.set(iceberg="v2", iceberg_snapshots=snapshots)
    table.publish_iceberg()
    assert any(key.startswith("iceberg/") for key in holders(place, MARKER)), "bounds of files hold values"
    if not at_once:
        table.set(iceberg=None)
    return place, table.erase(f"who = '{MARKER}'").id


def says_gone(place: Place, id_: str) -> bool:
    stored = place.bucket.objects.get(receipt_key(id_))
    return stored is not None and Receipt.decode(stored.body, receipt_key(id_)).gone_at > 0


@pytest.mark.parametrize("snapshots", ["newest", "kept"])
def test_the_rows_leave_publications_before_the_receipt_says_gone(snapshots: str) -> None:
    place, id_ = erased_place(snapshots)
    for _ in range(60):
        place.pass_hours(6)
        place.open().maintain()
        collect_own(place)
        if says_gone(place, id_):
            break
    assert says_gone(place, id_)
    assert holders(place, MARKER) == []


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "copied"])
def test_a_publication_by_hand_goes_with_the_rows_and_until_then_the_status_names_it(foreign: bool) -> None:
    place, id_ = erased_place(at_once=False)
    if foreign:  # as of a copy of another database, whose paths are those of the other one
        for key, stored in place.bucket.objects.items():
            if key.endswith(".metadata.json"):
                place.bucket.objects[key] = replace(stored, body=stored.body.replace(b"memory://", b"memory://x"))
    steps = set()
    for _ in range(60):
        place.pass_hours(6)
        maintain(place)
        collected = collect_own(place)
        assert collected.errors == {}
        steps.add(place.open().receipt(id_).next_step)
        if says_gone(place, id_):
            break
    assert says_gone(place, id_)
    assert any("older Iceberg publications are deleted (t)" in step for step in steps)
    assert holders(place, MARKER) == []
    assert place.open().verify().ok
    table = place.open().table("t")
    assert table.publish_iceberg().is_new
    assert not table.publish_iceberg().is_new
    place.pass_hours(48)
    collect_own(place)
    assert any(key.endswith(".metadata.json") for key in place.bucket.objects), "a publication since stays"


def test_a_publication_by_hand_that_is_repeated_once_the_rows_are_rewritten_stays() -> None:
    place, id_ = erased_place(at_once=False)
    table = place.open().table("t")
    done = table.erase("who = 'bert'")
    assert done.publications.by_hand == ("t",)
    for number in range(60):
        place.pass_hours(6)
        maintain(place)
        if number == 2:  # no version that can be read needs the rows any more
            place.open().table("t").publish_iceberg()
        collect_own(place)
    assert says_gone(place, id_)
    assert holders(place, MARKER) == []
    assert any(tag.startswith("iceberg.") for tag in place.manifest.tags)


def test_gc_names_a_table_whose_publication_is_to_be_replaced_and_is_not() -> None:
    place, id_ = erased_place(at_once=False)
    errors: dict[str, str] = {}
    for _ in range(12):
        place.pass_hours(6)
        maintain(place)
        if place.manifest.leaving:
            place.open().table("t").set(iceberg="v2")
        errors |= collect_own(place).errors
    assert not says_gone(place, id_)
    [said] = errors.values()
    assert "table 't'" in said

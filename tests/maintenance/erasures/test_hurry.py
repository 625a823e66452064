"""Erasures that are hurried, and those with a deadline of their own."""

from __future__ import annotations

import pytest

from dolmen.errors import InputError, NotFoundError, VersionExpiredError
from support.aging import DAY_US, Place
from support.erased import SCHEMA, collect_own, days, holders, maintain, people

ANNA, BERT = "marker-anna", "marker-bert"


def place_with_rows(root_bytes: str = "256KB") -> Place:
    place = Place()
    place.db.set(root_bytes=root_bytes, erase_within="30d", erasure_memory="14d", orphan_age="1d", reader_grace="1h")
    for name in ("a", "b"):
        table = place.db.create_table(name, SCHEMA, properties={"subject": "who"})
        table.append(people(ANNA, BERT, "carl"))
    place.db.tag("old")
    return place


def hours_until_gone(place: Place, id_: str, most: int = 40 * 24) -> int:
    for hours in range(0, most, 6):
        if place.open().receipt(id_).state == "gone":
            return hours
        place.pass_hours(6)
        collect_own(place)
    return most


@pytest.mark.parametrize("root_bytes", ["256KB", "4KB"], ids=["inline", "spilled"])
def test_what_is_hurried_is_rewritten_now_and_gone_when_readers_and_orphans_allow(root_bytes: str) -> None:
    place = place_with_rows(root_bytes)
    id_ = place.db.forget(ANNA).id
    if root_bytes == "4KB":
        for each in range(30):
            place.db.forget(f"nobody {each}")
    version = place.db.version
    status = place.db.hurry_erasure(id_)
    assert status.state == "rewritten"
    assert status.receipt.tags == ("old",) or place.manifest.tags == {}
    with pytest.raises(VersionExpiredError):
        place.open().at(version).table("a").count()
    assert hours_until_gone(place, id_) <= 2 * 24
    assert holders(place, ANNA) == []
    receipt = place.open().receipt(id_).receipt
    assert receipt.due_at - receipt.requested_at == 30 * DAY_US, "the deadline stays what it was"
    assert place.open().verify_receipt(id_).ok
    assert place.open().verify(deep=True).ok
    again = place.open().hurry_erasure(id_)
    assert again.state == "gone"


def test_what_is_not_hurried_takes_its_time() -> None:
    place = place_with_rows()
    id_ = place.db.forget(ANNA).id
    maintain(place)
    collect_own(place)
    days(place, 5)
    assert place.open().receipt(id_).state == "hidden" or "old" in place.manifest.tags


def test_older_erasures_keep_the_value_in_the_list_and_nothing_else() -> None:
    place = place_with_rows()
    first, second = place.db.forget(ANNA).id, place.db.forget(BERT).id
    place.db.hurry_erasure(second)
    place.pass_hours(3)
    collect_own(place)
    assert not [key for key in holders(place, BERT) if not key.startswith(("manifest/", "tombstone/"))]
    assert "older erasures" in place.open().receipt(second).next_step
    place.open().hurry_erasure(first)
    assert max(hours_until_gone(place, id_) for id_ in (first, second)) <= 2 * 24
    assert holders(place, BERT) == holders(place, ANNA) == []


def test_an_erasure_that_has_left_the_list_is_hurried_too() -> None:
    place = place_with_rows()
    place.db.set(erasure_memory="1d")
    id_ = place.db.forget(ANNA).id
    for _ in range(60):
        place.pass_hours(12)
        maintain(place)
        collect_own(place)
        if place.manifest.leaving:
            break
    assert place.manifest.leaving
    place.open().hurry_erasure(id_)
    assert hours_until_gone(place, id_) <= 2 * 24


@pytest.mark.parametrize("form", ["erase", "forget"])
def test_a_deadline_of_its_own(form: str) -> None:
    place = place_with_rows()
    done = place.db.forget(ANNA, within="3d") if form == "forget" else place.db.table("a").erase("TRUE", within="3d")
    receipt = place.open().receipt(done.id).receipt
    assert receipt.due_at - receipt.requested_at == 3 * DAY_US
    for _ in range(12):
        place.pass_hours(6)
        maintain(place)
        collect_own(place)
    assert place.open().receipt(done.id).state == "gone"


def test_wrong_ids_and_times_are_refused() -> None:
    place = place_with_rows()
    with pytest.raises(NotFoundError):
        place.db.hurry_erasure("0" * 32)
    with pytest.raises(InputError):
        place.db.hurry_erasure("x")
    for within in ("soon", "-1d", ""):
        with pytest.raises(InputError):
            place.db.forget(ANNA, within=within)
    assert place.manifest.erasures == ()

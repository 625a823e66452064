"""Erasures of rows in published tables: a receipt waits for what publications hold of them."""

from __future__ import annotations

import pytest

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


def test_a_receipt_does_not_say_gone_while_nobody_publishes_the_table_again() -> None:
    place, id_ = erased_place(at_once=False)
    for _ in range(40):
        place.pass_hours(6)
        maintain(place)
        collect_own(place)
    assert not says_gone(place, id_)
    assert any(key.startswith("iceberg/") for key in holders(place, MARKER))
    place.open().table("t").publish_iceberg()
    for _ in range(12):
        place.pass_hours(6)
        collect_own(place)
    assert says_gone(place, id_)
    assert holders(place, MARKER) == []

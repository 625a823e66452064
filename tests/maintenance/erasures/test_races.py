"""Collections that are halted at each of their requests, while others restore, tag, clone and erase."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from dolmen import Database
from dolmen.errors import Error, VersionExpiredError
from dolmen.format.receipts import Receipt
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.verify.verification import verify
from dolmen.store.base import ObjectStore
from dolmen.store.memory import MemoryStore
from support.aging import Place
from support.crashing_store import VERBS
from support.erased import SCHEMA, days, holders, maintain, people

MARKER, OTHER = "marker-anna", "marker-bert"
EVERY = 1 if os.environ.get("DOLMEN_LONG") else 5
"""Each fifth request is tried by default."""


class HaltingStore:
    """A store that lets somebody else act before one of its requests."""

    def __init__(self, store: ObjectStore, at: int, act: Callable[[], None]) -> None:
        self._store, self._left, self._act = store, at, act

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in VERBS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self._act()
            return found(*args, **options)

        return call

    @property
    def has_halted(self) -> bool:
        """Whether there were so many requests."""
        return self._left <= 0


def prepared(rounds: int) -> tuple[Place, str]:
    """A place with an erasure, after some rounds of upkeep: the next collection notes, expires, forgets or closes."""
    place = Place()
    place.db.set(erase_within="2d", erasure_memory="1s", orphan_age="1d", retention="1d", keep_versions=1)
    table = place.db.create_table("t", SCHEMA)
    table.append(people(MARKER, "carl"))
    table.append(people(OTHER, "dora"))
    place.db.tag("golden")
    erased = table.erase(f"who = '{MARKER}'")
    place.pass_hours(2)
    for _ in range(rounds):
        maintain(place)
        collect(place.context())
        place.pass_hours(6)
    maintain(place)
    return place, erased.id


def restore(db: Database) -> None:
    db.table("t").restore(tag="golden")


def clone(db: Database) -> None:
    db.clone("t", "copy", tag="golden")


def tag(db: Database) -> None:
    db.tag("silver", db.at(tag="golden").version)


def erase(db: Database) -> None:
    db.table("t").erase(f"who = '{OTHER}'")


def drop_tag(db: Database) -> None:
    db.drop_tag("golden")


@pytest.mark.parametrize("action", [restore, clone, tag, erase, drop_tag], ids=lambda action: action.__name__)
@pytest.mark.parametrize("rounds", [0, 1, 2, 4, 6])
def test_whatever_happens_while_a_collection_is_halted_its_receipts_are_true(
    rounds: int, action: Callable[[Database], None]
) -> None:
    for at in count(1, EVERY):
        place, id_ = prepared(rounds)
        refused: list[Error] = []

        def act(place: Place = place, refused: list[Error] = refused) -> None:
            try:
                action(place.open())
            except Error as error:  # the tag may be gone
                refused.append(error)

        store = HaltingStore(MemoryStore(place.bucket, place.runtime()), at, act)
        try:
            collect(place.context(store))  # type: ignore[arg-type]
        except VersionExpiredError:
            assert store.has_halted
        if not store.has_halted:
            return
        check(place)
        days(place, 5, hours=12)
        check(place)
        assert place.open().receipt(id_).state == "gone"
        for table in place.open().tables():
            assert place.open().table(table).count(f"who = '{MARKER}'") == 0
        assert holders(place, MARKER) == []
        assert place.open().verify_receipt(id_).findings == ()
        assert verify(place.context(), deep=True).findings == ()


def check(place: Place) -> None:
    """No receipt says "gone" too early."""
    names = {1: MARKER, 2: OTHER}
    receipts = [
        Receipt.decode(stored.body, key) for key, stored in place.bucket.objects.items() if key.startswith("receipt/")
    ]
    for number, receipt in enumerate(sorted(receipts, key=lambda receipt: receipt.ts), 1):
        if receipt.gone_at:
            assert holders(place, names[number]) == []

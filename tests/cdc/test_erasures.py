"""An erasure by the key of a table that takes changes leaves no key in the memory of deletes, also of a clone."""

from __future__ import annotations

from support.changes import Change, Feed, File


def test_the_memory_forgets_erased_keys_however_many_there_are() -> None:
    feed = Feed()
    feed.create()
    feed.deliver(File("a", tuple(Change(key, key + 1, None if key % 2 else "v") for key in range(3_000))))
    db = feed.place.db
    db.clone("t", "c")
    before = db.version
    db.table("t").erase(keys=list(range(2_500)))  # too many to stand in the manifest
    tables = ("t", "t__deleted", "c", "c__deleted")
    assert [db.table(name).count() for name in tables] == [250] * 4
    assert [db.at(before).table(name).count() for name in tables] == [250] * 4
    db.table("t").erase(f"id IN ({', '.join(map(str, range(2_500, 2_900)))}) OR id = -1 AND id > 0")
    assert [db.table(name).count() for name in tables] == [50] * 4
    db.table("t").erase("v = 'v'")  # the memory has no such column
    assert [db.table(name).count() for name in tables] == [0, 50, 0, 50]
    db.maintain()
    assert [db.table(name).count() for name in tables] == [0, 50, 0, 50]
    assert db.verify(deep=True).ok

"""An erasure by the key of a table that takes changes leaves no key in the memory of deletes, also of a clone."""

from __future__ import annotations

import pyarrow as pa
import pytest

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


@pytest.mark.parametrize("way", ["restored", "restored, erased by many keys", "changed", "dropped", "cloned"])
def test_a_memory_of_an_older_version_comes_back_without_erased_keys(way: str) -> None:
    """The memory of then is another table than that of now, if there is one, and no erasure names it."""
    feed = Feed()
    feed.create()
    db = feed.place.db
    db.create_table("people", pa.schema([("id", pa.int64())]), properties={"subject": "id"})
    db.table("t").set(subject="id")
    early = db.version
    feed.deliver(File("a", (Change(5, 50, None), Change(6, 51, None), Change(7, 52, "v"))))
    late, name = db.version, "t"
    assert db.at(late).table("t__deleted").count() == 2
    if way in ("restored", "restored, erased by many keys", "changed"):
        db.table("t").restore(early)
        if way == "changed":
            feed.deliver(File("b", (Change(8, 90, None),)))
        db.table("t").erase(keys=[5, *range(100, 4_000)] if way.endswith("keys") else [5])
        db.table("t").restore(late)
    else:
        db.drop_table("t")
        db.forget(5)
        if way == "dropped":
            db.restore(late)
        else:
            name = "c"
            db.clone("t", name, late)
    assert db.table(f"{name}__deleted").to_arrow()["id"].to_pylist() == [6]
    assert db.at(late).table("t__deleted").to_arrow()["id"].to_pylist() == [6]
    db.table(name).erase(keys=[6])
    assert db.table(f"{name}__deleted").count() == 0
    assert db.at(late).table("t__deleted").to_arrow()["id"].to_pylist() == ([6] if way == "cloned" else [])
    db.maintain()
    assert db.table(f"{name}__deleted").count() == 0
    assert db.verify(deep=True).ok

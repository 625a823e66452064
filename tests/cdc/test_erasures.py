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


@pytest.mark.parametrize("erased", ["id = 2", "id = 2 AND v = 'v2'", "seq = 2"])
@pytest.mark.parametrize("column", ["id", "seq"])
def test_a_version_of_before_its_keys_became_wider_is_read_and_restored_seed_90000388(column: str, erased: str) -> None:
    """Without changes (CDC) a column may become wider; a version with them, in which it is narrow, comes back."""
    narrow = pa.schema([("id", pa.int32()), ("v", pa.string()), ("seq", pa.int32())])
    feed = Feed()
    feed.create(narrow)
    before = feed.place.db.refresh()
    feed.deliver(File("a", (Change(1, 1, "v1"), Change(2, 2, "v2"), Change(3, 3, None))))
    changed = feed.place.db.refresh()
    table = feed.place.db.table("t")
    table.restore(before)
    table.widen_column(column, pa.int64())
    table.erase(erased)

    left = [{"id": 1, "v": "v1", "seq": 1}]
    past = feed.place.open().at(version=changed)
    assert past.table("t").to_arrow().to_pylist() == left
    assert past.table("t__deleted").to_arrow().to_pylist() == [{"id": 3, "seq": 3}]

    table.restore(changed)
    assert feed.rows() == {1: (1, "v1")}
    database = feed.place.open()
    kinds = [database.table(name).schema.field(column).type for name in ("t", "t__deleted")]
    assert kinds == [pa.int64() if column in erased else pa.int32()] * 2
    feed.deliver(File("b", (Change(3, 2, "late"), Change(1, 2, None), Change(4, 9, "v9"))))
    feed.deliver(File("c", (Change(1, 1, "late"), Change(4, 10, "v10"), Change(5, 11, "v11"))))
    assert feed.rows() == {4: (10, "v10"), 5: (11, "v11")}
    assert database.verify(deep=True, all_versions=True).ok
    database.clone("t", "u", version=changed)
    assert database.table("u").to_arrow().to_pylist() == left

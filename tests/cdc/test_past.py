"""Tables of changes that are restored, cloned and renamed: their memory of deleted keys goes with them."""

from __future__ import annotations

import pytest

from dolmen.errors import TableExistsError
from dolmen.format.manifest import TableEntry
from dolmen.maintenance.verify.verification import verify
from support.changes import Change, Feed, File


@pytest.fixture
def feed() -> Feed:
    feed = Feed()
    feed.create()
    return feed


def deliver(feed: Feed, id: str, *changes: Change) -> None:
    feed.deliver(File(id, changes))


def put(key: int, seq: int) -> Change:
    return Change(key, seq, f"v{seq}")


def gone(key: int, seq: int) -> Change:
    return Change(key, seq, None)


def entry(feed: Feed, name: str) -> TableEntry:
    return feed.place.open()._context.head.refresh().manifest.table(name)


def remembered(feed: Feed, name: str = "t") -> list[tuple[int, int]]:
    rows = feed.place.open().table(f"{name}__deleted").to_arrow().to_pylist()
    return sorted((row["id"], row["seq"]) for row in rows)


def test_a_restored_table_knows_the_deleted_keys_of_then_and_no_later_ones(feed: Feed) -> None:
    deliver(feed, "a", put(1, 1), put(2, 2), gone(3, 3))
    version = feed.place.db.refresh()
    deliver(feed, "b", gone(1, 10), put(4, 11))
    feed.place.db.table("t").restore(version)
    assert feed.rows() == {1: (1, "v1"), 2: (2, "v2")}
    assert remembered(feed) == [(3, 3)]
    deliver(feed, "c", put(1, 5), put(3, 2), put(4, 4))
    assert feed.rows() == {1: (5, "v5"), 2: (2, "v2"), 4: (4, "v4")}
    assert verify(feed.place.context(), deep=True, all_versions=True).findings == ()


def test_a_table_that_is_restored_to_before_its_first_change_has_no_memory(feed: Feed) -> None:
    version = feed.place.db.refresh()
    deliver(feed, "a", put(1, 1), gone(2, 2))
    later = feed.place.db.refresh()
    feed.place.db.table("t").restore(version)
    assert feed.place.db.tables() == ["t"]
    assert entry(feed, "t").sequences is None
    deliver(feed, "b", put(2, 1))
    assert feed.rows() == {2: (1, "v1")}
    feed.place.db.table("t").restore(later)
    assert remembered(feed) == [(2, 2)]
    assert feed.rows() == {1: (1, "v1")}
    assert verify(feed.place.context(), deep=True, all_versions=True).findings == ()


@pytest.mark.parametrize("names", [["t", "t__deleted"], "t__deleted"])
def test_a_memory_that_was_made_anew_is_restored_with_its_table(feed: Feed, names: list[str] | str) -> None:
    first = feed.place.db.refresh()
    deliver(feed, "a", put(1, 1), gone(2, 2))
    version = feed.place.db.refresh()
    feed.place.db.table("t").restore(first)
    deliver(feed, "b", gone(3, 1))
    assert remembered(feed) == [(3, 1)]
    with pytest.raises(TableExistsError, match=r"'t'.*'t'"):
        feed.place.db.restore(version, tables=names)
    feed.place.db.restore(version, tables="t")
    assert (feed.rows(), remembered(feed)) == ({1: (1, "v1")}, [(2, 2)])
    assert verify(feed.place.context(), deep=True, all_versions=True).findings == ()


def test_a_clone_of_a_table_of_changes_has_a_memory_of_its_own(feed: Feed) -> None:
    deliver(feed, "a", put(1, 1), gone(3, 3))
    db = feed.place.db
    db.clone("t", "copy")
    assert db.tables() == ["copy", "copy__deleted", "t", "t__deleted"]
    sequences = entry(feed, "copy").sequences
    assert sequences is not None
    assert sequences.memory == entry(feed, "copy__deleted").uuid != entry(feed, "t__deleted").uuid
    assert entry(feed, "copy").source == entry(feed, "t").uuid
    assert entry(feed, "copy__deleted").source == entry(feed, "t__deleted").uuid
    deliver(feed, "b", gone(1, 10))
    assert (remembered(feed), remembered(feed, "copy")) == ([(1, 10), (3, 3)], [(3, 3)])
    db.drop_table("t")
    assert db.tables() == ["copy", "copy__deleted"]
    assert remembered(feed, "copy") == [(3, 3)]
    assert verify(feed.place.context(), deep=True, all_versions=True).findings == ()


def test_a_clone_is_refused_when_the_name_of_its_memory_is_taken(feed: Feed) -> None:
    deliver(feed, "a", put(1, 1), gone(3, 3))
    db = feed.place.db
    db.create_table("copy__deleted", db.table("t").schema)
    with pytest.raises(TableExistsError, match="copy__deleted"):
        db.clone("t", "copy")
    assert "copy" not in db.tables()


def test_a_restored_database_has_each_memory_beside_its_table(feed: Feed) -> None:
    deliver(feed, "a", put(1, 1), gone(3, 3))
    version = feed.place.db.refresh()
    feed.place.db.rename_table("t", "s")
    feed.place.db.drop_table("s")
    feed.place.db.restore(version)
    assert feed.place.db.tables() == ["t", "t__deleted"]
    assert remembered(feed) == [(3, 3)]
    feed.place.db.drop_table("t")
    feed.place.db.restore(version, tables="t")
    assert feed.place.db.tables() == ["t", "t__deleted"]
    assert remembered(feed) == [(3, 3)]

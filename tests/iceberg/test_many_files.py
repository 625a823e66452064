"""Publication of tables of very many files: in proportion to what changed."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.draft import Draft
from dolmen.commit.head import context_of
from dolmen.commit.loop import submit
from dolmen.format.manifest import TableEntry
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.many_files import many_files

SEGMENTS = 20
FILES = 1_000_000 if os.environ.get("DOLMEN_LONG") else 10_000


@dataclass(frozen=True)
class PutEntry:
    """Makes a table of an entry whose segments are in the store."""

    entry: TableEntry
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        draft.tables["t"] = self.entry


def opened(store: CountingStore) -> Database:
    """The database in a new process, whose opening is not counted."""
    found = Database(store, Runtime(threads=1))
    found.refresh()
    store.reset()
    return found


@pytest.mark.slow
def test_a_small_commit_to_a_table_of_segments_is_published_without_reading_them() -> None:
    store = CountingStore(MemoryStore())
    entry = many_files(store, SEGMENTS, FILES // SEGMENTS).tables["t"]
    submit(context_of(opened(store)).head, "test", [PutEntry(entry)])
    table = opened(store).table("t")
    assert (table.publish_iceberg().files, store.gets) == (FILES, SEGMENTS + 3)  # each segment once
    for step in range(2):
        opened(store).table("t").append([{"id": -step, "user": 1, "name": "x", "price": 0.5, "at": None}])
        table = opened(store).table("t")
        found = table.publish_iceberg()
        assert (found.files, found.files_read, store.lists, store.heads) == (FILES + step + 1, 0, 0, 0)
        # Two commits of 2 PUTs; a manifest of the files in dolmen's manifest, the list, the metadata and the hint.
        assert (store.puts, found.objects) == (8, 4)
        # The pointer; the hint, two metadata files, of which the second is not there; the list. Then also the manifest
        # of the files before.
        assert store.gets == 5 + step
        assert store.bytes_up < 64 << 10
        assert store.bytes_down < 32 << 10
    opened(store).table("t").delete("id = -1")
    table = opened(store).table("t")
    found = table.publish_iceberg()
    # Bounds tell that it hides all rows of one file, and none of any other.
    assert (found.files, found.files_read, store.puts, store.gets) == (FILES + 1, 0, 8, 6)
    assert store.bytes_down < 32 << 10

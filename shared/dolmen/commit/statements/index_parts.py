"""The statement that adds and replaces parts of a table's index, and what removes them all."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dolmen.commit.draft import Draft
from dolmen.format.manifest import INDEXES, Segment, TableEntry


@dataclass(frozen=True)
class PutIndexParts:
    """Adds parts to a table's index, in place of others.

    It has no effect if the index has changed since it was read, or if rows were erased since: their keys may be in the
    outputs.

    Args:
        seen: keys of all parts in the version that was read.
        through: ``commit_ts`` of that version.
        inputs: keys of the parts that go.
        outputs: the new parts.
    """

    name: str
    uuid: str
    epoch: int
    seen: frozenset[str]
    through: int
    inputs: tuple[str, ...]
    outputs: tuple[Segment, ...]
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Replaces the parts."""
        entry = draft.unchanged_table(self.name, self.uuid, self.epoch)
        if entry is None or {part.object for part in entry.segments_of("index")} != self.seen:
            return
        if draft.erasures_after(self.through):
            return
        kept = tuple(segment for segment in entry.segments if segment.object not in self.inputs)
        draft.release(self.inputs)
        draft.tables[self.name] = msgspec.structs.replace(entry, segments=(*kept, *self.outputs))
        draft.require([INDEXES])


def without_index(entry: TableEntry) -> TableEntry:
    """A table's whole entry without the parts of its index."""
    if not entry.segments_of("index"):
        return entry
    kept = tuple(segment for segment in entry.segments if segment.kind != "index")
    return msgspec.structs.replace(entry, segments=kept)

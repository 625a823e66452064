"""Tells by entries alone which erasures' rows a version's files may still hold."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from dolmen.entries.segments.reader import SegmentReader
from dolmen.format.entries import least_erasing
from dolmen.format.manifest import Segment, TableEntry

EVERY = 1
"""A timestamp before that of every commit."""


def least_held(tables: Iterable[TableEntry], reader: SegmentReader, timestamps: Container[int] | None = None) -> int:
    """The least timestamp of an erasure whose rows, or whose tombstones, these tables may still hold; 0 = of none.

    Rows of erasures with a lesser timestamp are in none of the tables' files, and in no bounds of their entries. In
    doubt the answer is less than it could be.

    Args:
        tables: all tables of a version; sections of idle ones are fetched.
        timestamps: those of the listed erasures; None takes every tombstone for one of an erasure.
    """
    every = tuple(tables)
    found = [EVERY] if any(stale_sections(every)) else []
    for stub in every:
        entry = reader.whole(stub)
        found += [file.erasing for file in entry.files]
        found += [segment.erasing for segment in entry.segments_of("files")]
        found += [segment.least for segment in entry.segments_of("tombstones")]
        found += [t.ts for t in entry.tombstones if timestamps is None or t.ts in timestamps]
    return least_erasing(found)


def stale_sections(tables: Iterable[TableEntry]) -> Iterator[Segment]:
    """Sections of idle tables that also hold an entry which is not its table's any more, with bounds of old files."""
    sections: dict[str, Segment] = {}
    users: dict[str, set[str]] = {}
    for stub in tables:
        if stub.section is not None:
            sections[stub.section.object] = stub.section
            users.setdefault(stub.section.object, set()).add(stub.uuid)
    for key, section in sections.items():
        if section.count > len(users[key]):
            yield section

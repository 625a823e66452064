"""The progress of a table's changes (CDC): the greatest sequence applied, and the statement that advances it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from dolmen.commit.draft import Draft
from dolmen.errors import ConflictError
from dolmen.format.entries import DataFile, bounds, column_stats
from dolmen.format.layout import memory_name
from dolmen.format.manifest import Mark, Segment, Sequences, TableEntry
from dolmen.format.schema import Field
from dolmen.format.types import Json, from_json, to_json

MARKS = 16
"""The parts of a table's memory of deleted keys. The oldest part is forgotten as a whole."""


def all_above(entry: TableEntry, field: Field, least: Any) -> bool:
    """Whether all sequences from ``least`` (a plain value) up are greater than any in the table.

    If so, changes can be applied without reading the table's rows. Compared are the greatest sequence committed and,
    for rows that were written in other ways, the statistics of data files. Statistics of long strings are cut; where a
    cut bound is no greater than that of the committed sequence, the committed sequence alone decides.
    """
    known: list[Any] = [] if entry.sequences is None else [from_json(entry.sequences.greatest, field.arrow_type)]
    cut = bounds(column_stats(known[0], known[0], 0), field.arrow_type).max if known else None
    parts: list[DataFile | Segment] = [*entry.files, *entry.segments_of("files")]
    for part in parts:
        of_part = bounds(part.stats.get(field.id), field.arrow_type)
        if of_part.max is None:
            if of_part.nulls != part.rows:
                return False  # nothing is known about its sequences
        elif cut is None or of_part.max > cut:  # type: ignore[operator]  # of one type
            known.append(of_part.max)
    return all(value < least for value in known)


def forgettable(sequences: Sequences | None, before_us: int) -> Json:
    """The sequence up to which deletes can be forgotten, because they were committed before a time; None if there is
    none."""
    old = [mark.greatest for mark in sequences.marks if mark.ts <= before_us] if sequences else []
    return old[-1] if old else None


@dataclass(frozen=True)
class Advance:
    """Notes that changes up to a sequence are applied. It comes before the statements that apply them.

    Raises ConflictError when the memory of deleted keys is missing: it was dropped, or a removed request of the same
    batch was to create it.

    Args:
        column: the id of the column that orders changes.
        greatest: the greatest sequence of these changes, as a plain value.
        above: the least sequence of these changes, if they were made without reading rows. Then any sequence in the
            table that is not less is a ConflictError. None when rows were read; claims guard those reads.
        memory: the uuid of the table that remembers deleted keys.
        memory_us: how long that table remembers them, in microseconds.
        forget: the sequence, in JSON form, up to which this commit deletes from that memory; None if it does not.
    """

    name: str
    uuid: str
    column: int
    greatest: Any
    above: Any
    memory: str
    memory_us: int
    forget: Json = None
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Advances the greatest sequence, and the one up to which keys are forgotten. Neither moves back."""
        entry = draft.table(self.name, self.uuid)
        field = entry.schema.by_id.get(self.column)
        if field is None:
            raise ConflictError(f"table {self.name!r}: the column that orders its changes was dropped meanwhile")
        if self.above is not None and not all_above(entry, field, self.above):
            raise ConflictError(
                f"table {self.name!r}: version {draft.base.version} or one before it has sequences as great as those "
                "of changes that were made without reading rows: repeat them"
            )
        memory = draft.tables.get(memory_name(self.name))
        if memory is None or memory.uuid != self.memory:
            raise ConflictError(
                f"table {memory_name(self.name)!r}, which remembers deleted keys, is not there any more"
            )
        draft.tables[self.name] = msgspec.structs.replace(entry, sequences=self._advance(entry.sequences, field, ts))

    def _advance(self, before: Sequences | None, field: Field, ts: int) -> Sequences:
        def later(one: Json, other: Json) -> Json:
            if one is None or other is None:
                return other if one is None else one
            first, second = (from_json(json, field.arrow_type) for json in (one, other))
            return other if first < second else one  # type: ignore[operator]  # of one type

        greatest = later(before.greatest if before else None, to_json(self.greatest))
        forgotten = later(before.forgotten_through if before else None, self.forget)
        marks = [mark for mark in (before.marks if before else ()) if later(forgotten, mark.greatest) != forgotten]
        if not marks or ts - marks[-1].ts >= self.memory_us // MARKS:
            marks.append(Mark(ts, greatest))
        return Sequences(greatest, self.memory, forgotten, tuple(marks))

"""The protocols of statements: each can be applied to a draft of the next version.

Changes and removes data files in a table's entry, whether the files' entries are inline or in segments.

A file in a segment is changed by an inline entry: an overlay gives it a newer pair (``applied_through``, vector), and
its uuid in ``removed`` takes it away. No segment is rewritten for that.

Drops tombstones: the one place where a commit decides that no data file needs a tombstone any more.

Resolution and compaction bring files up to a table's deletes, and call ``put_entry`` with the table's new entry.

Claims about the names of tables, and of columns, that a transaction has seen.

A statement that changes nothing: it makes the commit depend on settings and columns that its writer has seen.

A statement that changes nothing: it makes a commit of late rows depend on the erasures that were known to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import msgspec

from dolmen.commit.draft import Draft
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.erasures_in_force import reaches
from dolmen.entries.segments.row_bounds import may_match
from dolmen.errors import ConflictError
from dolmen.format.entries import DataFile, Overlay, Tombstone
from dolmen.format.manifest import Counts, Segment, TableEntry
from dolmen.format.schema import Schema, is_nested


class Statement(Protocol):
    """One step of a change."""

    @property
    def name(self) -> str | None:
        """The table's name at this point of the change; None for the database."""

    @property
    def uuid(self) -> str:
        """The table's uuid; "" for the database."""

    @property
    def request(self) -> str | None:
        """The request that this statement belongs to, if any."""

    def apply(self, draft: Draft, ts: int) -> None:
        """Changes the draft. Pure. Raises ConflictError, and the errors that the statement documents."""


class Prepared(Statement, Protocol):
    """A statement that must be fitted to a base version before it is applied to it."""

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Statement:
        """Returns the statement fitted to the draft's base. Reads what it needs for that."""


def is_prepared(statement: Statement) -> TypeGuard[Prepared]:
    """Whether a statement must be fitted. ``isinstance`` would check the whole protocol each time."""
    return hasattr(statement, "prepare")


def with_pairs(entry: TableEntry, files: Iterable[DataFile]) -> TableEntry:
    """The table's entry with the pairs of these files.

    ``applied_through`` never falls: a file of this very commit may have been prepared under an earlier timestamp.

    Args:
        files: effective entries of files that the table has.
    """
    changed = {file.uuid: file for file in files}
    if not changed:
        return entry
    inline: list[DataFile] = []
    for file in entry.files:
        newer = changed.pop(file.uuid, None)
        if newer is not None:
            through = max(file.applied_through, newer.applied_through)
            file = msgspec.structs.replace(file, applied_through=through, vector=newer.vector, erasing=newer.erasing)
        inline.append(file)
    kept = tuple(overlay for overlay in entry.overlays if overlay.file not in changed)
    added = tuple(Overlay(uuid, file.applied_through, file.vector, file.erasing) for uuid, file in changed.items())
    return msgspec.structs.replace(entry, files=tuple(inline), overlays=(*kept, *added))


def without_files(entry: TableEntry, uuids: Collection[str]) -> TableEntry:
    """The table's entry without these files. It must have all of them."""
    spilled = dict.fromkeys(uuids)
    inline: list[DataFile] = []
    for file in entry.files:
        if file.uuid in spilled:
            del spilled[file.uuid]
        else:
            inline.append(file)
    return msgspec.structs.replace(
        entry,
        files=tuple(inline),
        overlays=tuple(overlay for overlay in entry.overlays if overlay.file not in spilled),
        removed=(*entry.removed, *spilled),
    )


def put_entry(draft: Draft, name: str, before: TableEntry, after: TableEntry) -> None:
    """Puts a table's new entry into the draft, without the tombstones that its files do not need any more."""
    after, tombstones, segments = without_unneeded_tombstones(after)
    draft.release(tombstone.blob.object for tombstone in tombstones)
    for segment in segments:
        draft.release_tree(segment)
    draft.counts += Counts(tombstones_removed=len(tombstones) + sum(segment.count for segment in segments))
    if after != before:
        draft.tables[name] = after


def without_unneeded_tombstones(entry: TableEntry) -> tuple[TableEntry, list[Tombstone], list[Segment]]:
    """The table's entry without the tombstones that no live file needs.

    No live file needs a tombstone with timestamp T when each has ``applied_through`` >= T, or provably has no row that
    matches. A segment counts as one live file with the least ``applied_through`` of its files. Its overlays are not
    considered, so that nothing has to be loaded.

    Returns:
        The entry, the dropped inline tombstones, and the dropped segments of tombstones.
    """
    lagging: list[DataFile | Segment] = [*entry.segments_of("files"), *entry.files]
    settled = min((file.applied_through for file in lagging), default=None)
    dropped: list[Tombstone] = []
    kept: list[Tombstone] = []
    for tombstone in entry.tombstones:
        if settled is None or tombstone.ts <= settled:
            dropped.append(tombstone)
            continue
        needed = any(
            file.applied_through < tombstone.ts and may_match(tombstone, file, entry.schema) for file in lagging
        )
        (kept if needed else dropped).append(tombstone)
    gone = [s for s in entry.segments_of("tombstones") if settled is None or s.greatest <= settled]
    if not dropped and not gone:
        return entry, [], []
    unseen = max(entry.unseen_delete_ts, *(t.ts for t in dropped), *(s.greatest for s in gone))
    objects = {segment.object for segment in gone}
    return (
        msgspec.structs.replace(
            entry,
            tombstones=tuple(kept),
            segments=tuple(segment for segment in entry.segments if segment.object not in objects),
            unseen_delete_ts=unseen,
        ),
        dropped,
        gone,
    )


@dataclass(frozen=True)
class NamesClaim:
    """A read of the names of tables: the commit is valid only if no table was created, dropped or renamed since.

    Args:
        seen: those of the names that there were.
        among: the names that were looked for; None for all.
    """

    seen: frozenset[str]
    among: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The names that were looked for, for a message."""
        return "*" if self.among is None else ", ".join(sorted(self.among))

    @property
    def uuid(self) -> str:
        """That of no table."""
        return "*"

    def check(self, draft: Draft) -> None:
        """Raises ConflictError if the answer differs in this base."""
        names = frozenset(draft.base.tables)
        now = names if self.among is None else names & self.among
        if other := sorted(now ^ self.seen):
            raise ConflictError(
                f"table {other[0]!r} was created, dropped or renamed by version {draft.base.version} or one before it, "
                "after the transaction had looked for it: repeat the transaction"
            )


class ColumnsMovedError(ConflictError):
    """A column's name has another meaning than when the call used it: the caller must repeat the call."""


@dataclass(frozen=True)
class ColumnsClaim:
    """The names of a table's columns, as a call used them: it is valid only if they still name the same columns.

    Args:
        base_ts: ``commit_ts`` of the version in which they were looked up.
        schema: the table's columns in that version.
    """

    name: str
    uuid: str
    base_ts: int
    schema: Schema

    def check(self, draft: Draft) -> None:
        """Raises ColumnsMovedError if one was dropped or renamed, also inside of a column. New ones do not matter."""
        if draft.base.commit_ts == self.base_ts:
            return
        now = {(field.name, field.id): field for field in draft.table(self.name, self.uuid).schema.fields}
        for field in self.schema.fields:
            there = now.get((field.name, field.id))
            if there is None or (there.type != field.type and is_nested(there.arrow_type)):
                raise ColumnsMovedError(
                    f"column {field.name!r} of table {self.name!r} was dropped, renamed or replaced by version "
                    f"{draft.base.version} or one before it: repeat the call"
                )


@dataclass(frozen=True)
class Expect:
    """Requires that settings, and perhaps columns, are unchanged. Otherwise the whole commit fails.

    Args:
        name: the table's name; None for the database.
        uuid: the table's uuid.
        properties: the settings as the writer saw them.
        names: the settings to compare; all by default.
        request: the request that this belongs to; if it was applied before, nothing is compared.
        columns: the table's columns as the writer saw them, if it depends on them; None = they do not matter.
    """

    name: str | None
    uuid: str
    properties: Mapping[str, Any]
    names: Collection[str] | None = None
    request: str | None = None
    columns: Schema | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ConflictError if something has changed, TableNotFoundError if the table is gone."""
        if self.name is None:
            now = draft.properties
        else:
            entry = draft.table(self.name, self.uuid)
            now = entry.properties
            if self.columns is not None and _read_files_by(self.columns) != _read_files_by(entry.schema):
                raise ConflictError(
                    f"somebody changed columns of table {self.name!r} meanwhile, in version {draft.base.version} or "
                    "one before it: look at them again"
                )
        names = {*now, *self.properties} if self.names is None else self.names
        if changed := sorted(name for name in names if now.get(name) != self.properties.get(name)):
            what = "the database" if self.name is None else f"table {self.name!r}"
            raise ConflictError(
                f"somebody changed {', '.join(changed)} of {what} meanwhile, in version {draft.base.version} or one "
                "before it: look at the differences again"
            )


def _read_files_by(schema: Schema) -> list[tuple[Any, ...]]:
    """The facts about columns that decide how a file is read into them, and whether it fits."""
    return [(field.id, field.name, field.type, field.nullable, field.write_default) for field in schema.fields]


class ErasedMeanwhileError(ConflictError):
    """Rows were erased after those of a commit were compared with erasures. Made again, the commit leaves them out."""


@dataclass(frozen=True)
class ExpectErasures:
    """Requires that nothing was erased since that rows must be held against. Otherwise the commit fails.

    Args:
        name: the table's name.
        uuid: the table's uuid.
        seen_ts: commit timestamp of the version whose erasures the rows were held against.
        dropped_us: when the rows were dropped, the first of them, by the server's clock; None if that is not known.
        request: the request that this belongs to; if it was applied before, nothing is compared.
    """

    name: str
    uuid: str
    seen_ts: int
    dropped_us: int | None
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ErasedMeanwhileError if there is such an erasure, TableNotFoundError if the table is gone."""
        entry = draft.table(self.name, self.uuid)
        for erasure in draft.erasures_after(self.seen_ts):
            if erasure.is_later_than(self.dropped_us) and reaches(erasure, entry):
                raise ErasedMeanwhileError(
                    f"table {self.name!r}: version {erasure.version} erased rows meanwhile, which these may be: read "
                    "them again, and leave out what was erased"
                )

"""Statements of background work: they change how data is stored, and never what a reader sees.

Each leaves out work that other commits have made unnecessary, and none makes a writer's commit fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field
from pyroaring import BitMap

from dolmen.base.records import replace
from dolmen.commit.draft import DatabaseStatement, Draft
from dolmen.commit.statements.row_changes import with_pairs
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.row_bounds import RowBounds
from dolmen.entries.segments.tombstone_judge import TombstoneJudge
from dolmen.errors import ConflictError, InputError
from dolmen.format.column_history import changed_forms, widen_files, widen_stats
from dolmen.format.entries import DataFile, Overlay, Tombstone, Vector, least_erasing
from dolmen.format.ingest_properties import check_table_properties
from dolmen.format.layout import uuid_of
from dolmen.format.manifest import INDEXES, Counts, Segment, TableEffect, TableEntry
from dolmen.format.properties import DatabaseSettings, named_columns
from dolmen.format.schema import Schema


class Resolve(Struct, frozen=True):
    """Resolves the tombstones of a snapshot: adds the rows that they match to the files' deletion vectors."""

    name: str
    uuid: str
    # epoch, through: the table's epoch in the snapshot, and ``commit_ts`` of the snapshot
    epoch: int
    through: int
    # by path, the rows that tombstones up to ``through`` match; an empty bitmap for a file without matches. Files that
    # others replaced are left out.
    positions: Mapping[str, BitMap]
    segments: tuple[str, ...] = ()  # keys of segments whose live files are all resolved up to ``through``
    # paths of files whose vectors move into this commit's ``.del`` object even if they do not change
    gather: frozenset[str] = frozenset()
    # by path, the timestamp of the earliest erasure that matches any row of the file, hidden ones included
    erasing: Mapping[str, int] = field(default_factory=dict)
    # by path, a file's entry before and after; made by ``prepare``
    vectors: Mapping[str, tuple[DataFile, DataFile]] = field(default_factory=dict)
    # by key of a segment, the least ``erasing`` of its changed files; made by ``prepare``
    segment_erasing: Mapping[str, int] = field(default_factory=dict)
    request: str | None = None
    prepared_on: str = ""  # the key of the manifest that ``prepare`` read

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Resolve:
        """Merges the positions with the files' present vectors."""
        entry = draft.unchanged_table(self.name, self.uuid, self.epoch)
        if entry is None:
            return replace(self, vectors={}, segment_erasing={}, prepared_on=draft.base.key)
        live = LiveFiles(entry, draft.segments)
        covered = set(self.segments)
        vectors: dict[str, tuple[DataFile, DataFile]] = {}
        segment_erasing: dict[str, int] = {}
        for file in live.find([uuid_of(path) for path in self.positions]).values():
            vector = self._vector(file, uploads)
            through = max(file.applied_through, self.through)
            erasing = least_erasing((file.erasing, self.erasing.get(file.path, 0)))
            segment = live.segment_of(file.uuid)
            if (vector, erasing) == (file.vector, file.erasing) and segment in covered:
                continue  # the segment's resolved_through covers it
            if not file.is_older_than(through, vector):
                continue
            new = msgspec.structs.replace(file, applied_through=through, vector=vector, erasing=erasing)
            vectors[file.path] = file, new
            if segment is not None and erasing:
                segment_erasing[segment] = least_erasing((segment_erasing.get(segment, 0), erasing))
        return replace(self, vectors=vectors, segment_erasing=segment_erasing, prepared_on=draft.base.key)

    def _vector(self, file: DataFile, uploads: PendingUploads) -> Vector | None:
        positions, moves = self.positions[file.path], file.path in self.gather and file.applied_through < self.through
        if not positions and not moves:
            return file.vector
        before = self.vectors.get(file.path)
        if before and before[0].vector == file.vector:
            return before[1].vector
        merged = uploads.merge_positions(file, positions)
        if not merged or (file.vector and len(merged) == file.vector.cardinality and not moves):
            return file.vector
        return uploads.tombstone_object(self.name, self.uuid).add_vector(file.uuid, merged)

    def apply(self, draft: Draft, ts: int) -> None:
        """Replaces the pairs, and removes tombstones that no file needs any more."""
        draft.check_prepared(self.prepared_on)
        entry = draft.unchanged_table(self.name, self.uuid, self.epoch)
        if entry is None:
            return
        draft.release(
            old.vector.object for old, new in self.vectors.values() if old.vector and old.vector != new.vector
        )
        changed = with_pairs(entry, (new for _, new in self.vectors.values()))
        resolved = tuple(map(self._segment_after, changed.segments))
        if resolved != changed.segments:
            changed = msgspec.structs.replace(changed, segments=resolved)
        draft.counts += Counts(files_resolved=len(self.vectors))
        put_entry(draft, self.name, entry, changed)

    def _segment_after(self, segment: Segment) -> Segment:
        if segment.object in self.segments:
            through = max(segment.resolved_through, self.through)
            segment = msgspec.structs.replace(segment, resolved_through=through)
        if segment.object in self.segment_erasing:
            erasing = least_erasing((segment.erasing, self.segment_erasing[segment.object]))
            segment = msgspec.structs.replace(segment, erasing=erasing)
        return segment

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "resolve")


class Group(Struct, frozen=True):
    """A part of a compaction, which is committed as a whole or not at all; without outputs if no row is left."""

    inputs: tuple[DataFile, ...]
    outputs: tuple[DataFile, ...]


class Compact(Struct, frozen=True):
    """Replaces files by rewritten ones.

    A group is left out if one of its inputs was removed, or got another ``applied_through`` or vector: otherwise rows
    that others deleted would come back. A tombstone that was committed concurrently still hides rows of
    the outputs, because their ``applied_through`` is the snapshot's ``commit_ts``. ``fitting`` has the groups that are
    not left out; ``prepare`` makes it.
    """

    name: str
    uuid: str
    epoch: int
    groups: tuple[Group, ...]
    schema: Schema
    fitting: tuple[Group, ...] = ()
    request: str | None = None
    prepared_on: str = ""

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Compact:
        entry = draft.unchanged_table(self.name, self.uuid, self.epoch)
        if entry is None:
            return replace(self, fitting=(), prepared_on=draft.base.key)
        uuids = [file.uuid for group in self.groups for file in group.inputs]
        live = LiveFiles(entry, draft.segments).find(uuids)

        def is_unchanged(file: DataFile) -> bool:
            now = live.get(file.uuid)
            return now is not None and _pair(now) == _pair(file)

        fitting = tuple(group for group in self.groups if all(map(is_unchanged, group.inputs)))
        return replace(self, fitting=fitting, prepared_on=draft.base.key)

    def apply(self, draft: Draft, ts: int) -> None:
        draft.check_prepared(self.prepared_on)
        draft.counts += Counts(groups_dropped=len(self.groups) - len(self.fitting))
        entry = draft.unchanged_table(self.name, self.uuid, self.epoch)
        if entry is None or not self.fitting:
            return
        inputs = [file for group in self.fitting for file in group.inputs]
        outputs = [file for group in self.fitting for file in group.outputs]
        changed = without_files(entry, [file.uuid for file in inputs])
        written = widen_files(tuple(outputs), self.schema, entry.schema)
        changed = msgspec.structs.replace(changed, files=(*changed.files, *written))
        draft.release(file.path for file in inputs)
        draft.release(file.vector.object for file in inputs if file.vector)
        draft.counts += Counts(files_added=len(outputs), files_removed=len(inputs))
        put_entry(draft, self.name, entry, changed)

    def effect(self, draft: Draft) -> TableEffect | None:
        return TableEffect(self.name, "compact") if self.fitting else None


def _pair(file: DataFile) -> tuple[int, Vector | None, int]:
    return file.applied_through, file.vector, file.erasing


class MergeSegments(Struct, frozen=True):
    """Replaces several segments by merged ones."""

    name: str | None  # the table; None for the database's own segments
    uuid: str
    epoch: int
    inputs: tuple[str, ...]  # keys of the merged segments; all of them must still be there
    outputs: tuple[Segment, ...]
    removed: frozenset[str] = frozenset()  # uuids of removed files that the outputs no longer contain
    overlays: frozenset[Overlay] = frozenset()  # overlays whose pairs are in the outputs
    schema: Schema | None = None
    # ``erasing`` of each input of kind ``files`` when the merge was planned, by its key
    erasing: Mapping[str, int] = field(default_factory=dict)
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Replaces the segments. Removals and overlays that were added since the merge was planned stay."""
        if self.name is None:
            merged = self._replace_inputs(draft.own_segments, None)
            if merged is not None:
                draft.own_segments = merged
                draft.release(self.inputs)
            return
        entry = draft.unchanged_table(self.name, self.uuid, self.epoch)
        merged = self._replace_inputs(entry.segments, entry.schema) if entry else None
        if entry is None or merged is None:
            return
        draft.release(self.inputs)
        draft.tables[self.name] = msgspec.structs.replace(
            entry,
            segments=merged,
            removed=tuple(uuid for uuid in entry.removed if uuid not in self.removed),
            overlays=tuple(overlay for overlay in entry.overlays if overlay not in self.overlays),
        )

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name or "", "merge")

    def _replace_inputs(self, segments: tuple[Segment, ...], now: Schema | None) -> tuple[Segment, ...] | None:
        inputs = [segment for segment in segments if segment.object in self.inputs]
        if len(inputs) < len(self.inputs):
            return None
        resolved = min((s.resolved_through for s in inputs if s.kind == "files"), default=0)
        forms = changed_forms(self.schema, now) if self.schema and now else {}
        # Erasures since the merge was planned: the files' overlays stay, and the outputs have their bounds.
        since = least_erasing(s.erasing for s in inputs if s.erasing != self.erasing.get(s.object, 0))
        outputs = []
        for s in self.outputs:
            if s.kind == "files":
                erasing, stats = least_erasing((s.erasing, since)), widen_stats(s.stats, forms)
                s = msgspec.structs.replace(s, resolved_through=resolved, stats=stats, erasing=erasing)
            outputs.append(s)
        first = segments.index(inputs[0])
        rest = [segment for segment in segments[first:] if segment not in inputs]
        return (*segments[:first], *outputs, *rest)


class SetProperties(Struct, frozen=True):
    """Changes settings of a table, or of the database if ``name`` is None. The value None removes a setting.

    ``seen`` is the table when the settings were checked; None if they need no check.
    """

    name: str | None
    uuid: str
    changes: Mapping[str, Any]
    request: str | None = None
    seen: TableEntry | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ConflictError if a column that the settings name has changed, or they contradict other settings."""
        if self.name is None:
            draft.properties = self._apply_to(draft.properties)
            return
        entry = draft.table(self.name, self.uuid)
        if self.seen is not None and (self.seen.schema, self.seen.properties) != (entry.schema, entry.properties):
            self._check(self.seen, entry)
        changed = msgspec.structs.replace(entry, properties=self._apply_to(entry.properties))
        draft.require(changed.needed_features)
        draft.tables[self.name] = changed

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name or "", "set", tuple(self.changes))

    def _check(self, seen: TableEntry, now: TableEntry) -> None:
        ids_then = {field.name: field.id for field in seen.schema.fields}
        ids_now = {field.name: field.id for field in now.schema.fields}
        for column, setting in named_columns(self._apply_to({})).items():
            if ids_now.get(column) != ids_then.get(column):
                raise ConflictError(
                    f"column {column!r} of table {self.name!r}, which the setting {setting} names, was dropped, "
                    "renamed or replaced meanwhile: look at the columns again"
                )
        try:
            check_table_properties(self.changes, now.schema, now.primary_key, now.properties)
        except InputError as error:
            raise ConflictError(f"table {self.name!r} was changed meanwhile: {error}") from error

    def _apply_to(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        merged = {**properties, **self.changes}
        return {name: value for name, value in merged.items() if value is not None}


class MoveFence(DatabaseStatement, Struct, frozen=True):
    """Lets versions and uncommitted objects expire, before anything is deleted."""

    # the horizon and orphan_cutoff when this was planned; ConflictError if another fence came first
    seen: tuple[int, int]
    # horizon, orphan_cutoff: the new ones
    horizon: int
    orphan_cutoff: int
    revoke: tuple[str, ...] = ()  # txids of jobs that count as dead
    applied_before: int = 0  # segments of request ids are forgotten if all their ids were applied before this time
    # the settings of the plan; ConflictError if they have changed, so that a retention that was just prolonged keeps
    # what it covers. None if they do not matter.
    settings: DatabaseSettings | None = None
    now_us: int = 0  # the time of the plan, which decides about tags and cursors
    # versions before this one expire in any case, with their tags, because erased rows must leave the disk
    expire_before: int = 0

    def apply(self, draft: Draft, ts: int) -> None:
        base = draft.base
        if (base.horizon, base.orphan_cutoff) != self.seen:
            raise ConflictError(f"version {base.version} or one before it moved the fence: plan again")
        if self.settings is not None and self.settings != DatabaseSettings.of(base):
            raise ConflictError(f"version {base.version} or one before it changed the settings: plan again")
        cursor_versions = (cursor.version for cursor in base.cursors.values() if cursor.holds(self.now_us))
        draft.horizon = max(base.horizon, min([self.horizon, *cursor_versions]), self.expire_before)
        for name, tag in base.tags.items():
            if 0 < tag.until <= self.now_us or tag.version < self.expire_before:
                draft.put_tag(name, None)
        draft.orphan_cutoff = max(base.orphan_cutoff, self.orphan_cutoff)
        draft.revoked = tuple(txid for txid in self.revoke if txid not in base.revoked_intents)
        _remove_segments(
            draft,
            lambda segment: (
                (segment.kind == "history" and segment.greatest < draft.horizon)
                or (segment.kind == "applied" and segment.created_at < self.applied_before)
            ),
        )


class CollectionProgress(DatabaseStatement, Struct, frozen=True):
    """Records which objects collection has deleted: those released up to a version, and orphans older than a time."""

    freed: int
    swept: int

    def apply(self, draft: Draft, ts: int) -> None:
        draft.freed, draft.swept = max(draft.freed, self.freed), max(draft.swept, self.swept)
        unfreed = tuple(entry for entry in draft.released if entry.version > draft.freed)
        if len(unfreed) < len(draft.released):
            draft.released = unfreed
        _remove_segments(draft, lambda segment: segment.kind == "released" and segment.greatest <= draft.freed)


def _remove_segments(draft: Draft, is_obsolete: Callable[[Segment], bool]) -> None:
    """Removes segments of the database, and releases their objects."""
    obsolete = [segment for segment in draft.own_segments if is_obsolete(segment)]
    if obsolete:
        draft.own_segments = tuple(segment for segment in draft.own_segments if segment not in obsolete)
        draft.release(segment.object for segment in obsolete)


class PutIndexParts(Struct, frozen=True):
    """Adds parts to a table's index, in place of others (keys).

    It has no effect if the index has changed since it was read, or if rows were erased since: their keys may be in the
    outputs. ``seen`` has the keys of all parts in the version that was read, and ``through`` is its ``commit_ts``.
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
        entry = draft.unchanged_table(self.name, self.uuid, self.epoch)
        if entry is None or {part.object for part in entry.segments_of("index")} != self.seen:
            return
        if draft.erasures_after(self.through):
            return
        kept = tuple(segment for segment in entry.segments if segment.object not in self.inputs)
        draft.release(self.inputs)
        draft.tables[self.name] = msgspec.structs.replace(entry, segments=(*kept, *self.outputs))
        draft.require([INDEXES])

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "index")


def without_files(entry: TableEntry, uuids: Collection[str]) -> TableEntry:
    """The table's entry without these files; it must have all of them. Files in segments are added to ``removed``."""
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
    """Puts a table's new entry into the draft, without the tombstones that no live file needs any more."""
    after, tombstones, segments = _without_unneeded_tombstones(after)
    draft.release(tombstone.blob.object for tombstone in tombstones)
    for segment in segments:
        draft.release_tree(segment)
    draft.counts += Counts(tombstones_removed=len(tombstones) + sum(segment.count for segment in segments))
    if after != before:
        draft.tables[name] = after


def _without_unneeded_tombstones(entry: TableEntry) -> tuple[TableEntry, list[Tombstone], list[Segment]]:
    """A table's entry without tombstones that no live file needs (docs/format.md); the dropped tombstones and segments.

    A segment counts as one live file with the least ``applied_through`` of its files; overlays are not considered.
    """
    lagging: list[DataFile | Segment] = [*entry.segments_of("files"), *entry.files]
    settled = min((file.applied_through for file in lagging), default=None)
    newest = max((tombstone.ts for tombstone in entry.tombstones), default=0)
    judge, needed = TombstoneJudge(entry.tombstones, entry.schema), set[int]()
    for file in lagging:
        if len(needed) < len(entry.tombstones) and file.applied_through < newest:
            needed.update(judge.judge_rows(RowBounds.of(file, entry.schema, judge.ids)).indexes().tolist())
    kept = [tombstone for index, tombstone in enumerate(entry.tombstones) if index in needed]
    dropped = [tombstone for index, tombstone in enumerate(entry.tombstones) if index not in needed]
    unneeded = [s for s in entry.segments_of("tombstones") if settled is None or s.greatest <= settled]
    if not dropped and not unneeded:
        return entry, [], []
    changed = msgspec.structs.replace(
        entry,
        tombstones=tuple(kept),
        segments=tuple(segment for segment in entry.segments if segment not in unneeded),
        unseen_delete_ts=max(entry.unseen_delete_ts, *(t.ts for t in dropped), *(s.greatest for s in unneeded)),
    )
    return changed, dropped, unneeded

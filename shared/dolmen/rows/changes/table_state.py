"""One table in one version, seen through the columns of the feed's last version, and its files that a change concerns.

A version may lack columns of the feed that a later restore brought back. In such a version these columns are NULL in
all rows, whatever its files still hold. A column that was added later is not absent: older rows have its default.

``changing_commits`` reads few of the versions in a long chain. The effects in the history only choose the manifests
that are read first. A table's entries decide whether it differs between two versions: added rows have a greater
timestamp, a delete moves ``last_delete_ts``, an overwrite starts a new epoch, and a dropped column of the feed is
missing. If the entries disagree with the history, every version in between is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.commit.head import Context
from dolmen.commit.versions import history_between, manifest_of
from dolmen.entries.segments.erasures_in_force import with_erasures
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.row_bounds import RowBounds, may_match_mask
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.entries.segments.tombstone_judge import FileTombstones, TombstoneJudge
from dolmen.errors import SchemaError
from dolmen.format.column_history import changed_forms, fields_inside, wider_ids
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.evolution import widen_entry
from dolmen.format.manifest import Erasure, HistoryEntry, Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS_ID, Field, Schema
from dolmen.format.types import short_type
from dolmen.predicate.ast import Predicate, columns
from dolmen.predicate.prune import StatsVerdict
from dolmen.rows.scan.row_groups import FilePlan

AbsentColumns: TypeAlias = Mapping[int, frozenset[int]]
"""The ids that a version does not show, by column id: of the column, or of fields inside it."""

_AHEAD = 8  # manifests that are fetched at once, each of which takes some megabytes when it is decoded

_SAME_ROWS = frozenset(("resolve", "compact", "index", "merge", "set", "alter", "rename"))
"""Effects after which a scan returns the same rows, in the columns that it still has."""

_ON_OTHER_TABLES = frozenset(("erase", "forget"))  # effects that may change tables besides the one that they name


def absent_columns(own: Schema, commit_ts: int, fields: Iterable[Field]) -> AbsentColumns:
    """The columns of the feed, and fields inside them, that a version with these columns does not show.

    A table that was dropped and restored may give an id a second time, so the time of a column's addition counts too.
    """
    fields_by_id = {field.id: field for field in own.fields}
    absent: dict[int, frozenset[int]] = {}
    for field in fields:
        shown = fields_by_id.get(field.id)
        if shown == field:
            continue
        if shown is None or shown.added_ts != field.added_ts:
            if field.added_ts <= commit_ts or field.id < own.next_id:
                absent[field.id] = frozenset((field.id,))
            continue
        inner = {(inside.id, inside.added_ts) for inside in fields_inside(shown.type)}
        hidden = frozenset(
            inside.id
            for inside in fields_inside(field.type)
            if (inside.id, inside.added_ts) not in inner and (inside.added_ts <= commit_ts or inside.id < own.next_id)
        )
        if hidden:
            absent[field.id] = hidden
    return absent


class CommitStep(Struct, frozen=True):
    """A version that may have changed a table's rows, and the version before it (an earlier one for net changes)."""

    before: Manifest
    after: Manifest


def entry_of(manifest: Manifest, uuid: str) -> TableEntry | None:
    """The entry of the table with this uuid; None if the version has no such table."""
    name = manifest.name_of(uuid)
    return None if name is None else manifest.tables[name]


def may_differ(before: Manifest, after: Manifest, uuid: str, segments: SegmentReader, fields: Sequence[Field]) -> bool:
    """True if a table's rows may differ between two versions, or may have differed from both in between.

    Compares entries only. A version that does not show one of the feed's columns differs from one that does.
    """
    first, last = entry_of(before, uuid), entry_of(after, uuid)
    if first is None or last is None:
        return first is not last
    if (first.epoch, first.last_delete_ts) != (last.epoch, last.last_delete_ts):
        return True
    if last.section is not None and last.section == first.section:
        return False
    whole_entry = segments.whole(last)
    since = before.commit_ts
    if any(file.greatest_row_ts > since for file in whole_entry.files) or any(
        segment.greatest > since for segment in whole_entry.segments_of("files")
    ):
        return True
    earlier_schema = segments.whole(first).schema
    return absent_columns(earlier_schema, since, fields) != absent_columns(whole_entry.schema, after.commit_ts, fields)


def changing_commits(
    context: Context, newest: Manifest, since: Manifest, until: Manifest, uuid: str, fields: Sequence[Field]
) -> Iterator[CommitStep]:
    """Yields the commits after ``since`` and up to ``until`` that may have changed a table's rows, oldest first.

    Reads segments of history (``newest`` has that of ``until``), and the manifests of these commits and of the versions
    before them. Raises VersionExpiredError.
    """
    if since.version >= until.version:
        return
    history = history_between(context.head, newest, since.version + 1, until.version)
    names = {name for manifest in (since, until) if (name := manifest.name_of(uuid)) is not None}
    for before, after in pairwise(_manifests(context, since, until, _relevant_commits(history, names))):
        if not may_differ(before, after, uuid, context.segments, fields):
            continue
        if after.version == before.version + 1:
            yield CommitStep(before, after)
            continue
        entries = history_between(context.head, newest, before.version + 1, after.version - 1)
        for step in pairwise(_manifests(context, before, after, entries)):
            if may_differ(*step, uuid, context.segments, fields):
                yield CommitStep(*step)


def _manifests(
    context: Context, first: Manifest, last: Manifest, entries: Iterable[HistoryEntry]
) -> Iterator[Manifest]:
    manifests = context.runtime.map(lambda entry: manifest_of(context.head, entry), entries, ahead=_AHEAD)
    return chain([first], manifests, [last])


def _relevant_commits(history: Iterable[HistoryEntry], names: set[str]) -> Iterator[HistoryEntry]:
    """The commits that may have changed the table's rows, and the commit before each; without the last commit."""
    before: HistoryEntry | None = None
    is_before_relevant = False
    for entry in history:
        is_relevant = _may_change_rows(entry, names)
        if before is not None and (is_relevant or is_before_relevant):
            yield before
        before, is_before_relevant = entry, is_relevant


def _may_change_rows(entry: HistoryEntry, names: set[str]) -> bool:
    """True if a commit may have changed rows of a table with one of these names. Adds its new name to them."""
    for effect in entry.did:
        if effect.what == "rename" and effect.table in names:
            names.update(effect.over)
    return bool(entry.did_more) or any(
        effect.what in _ON_OTHER_TABLES or (effect.table in names and effect.what not in _SAME_ROWS)
        for effect in entry.did
    )


class FeedColumns(Struct, frozen=True, dict=True):
    """The columns that a feed reads: ``output``, and its ``key``'s, if any; ``where`` is bound to ``schema``."""

    schema: Schema
    output: tuple[Field, ...]
    key: tuple[Field, ...]
    where: Predicate | None

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result, followed by the other columns of the key."""
        output_ids = {field.id for field in self.output}
        return (*self.output, *(field for field in self.key if field.id not in output_ids))

    @cached_property
    def ids(self) -> frozenset[int]:
        return frozenset(field.id for field in self.fields)

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the rows that are read. A column is NULL in versions that do not show it."""
        return pa.schema([pa.field(field.name, field.arrow_type) for field in self.fields])

    @cached_property
    def filter_ids(self) -> frozenset[int]:
        return frozenset() if self.where is None else columns(self.where)

    @cached_property
    def inputs(self) -> tuple[Field, ...]:
        return tuple(field for field in self.schema.fields if field.id in self.ids | self.filter_ids)


class TableState:
    """A table in one version: its whole entry, its own columns, and the feed's columns that it does not show."""

    def __init__(
        self, context: Context, manifest: Manifest, name: str, entry: TableEntry, own: Schema, absent: AbsentColumns
    ) -> None:
        self.context, self.manifest, self.name, self.entry = context, manifest, name, entry
        self.own, self.absent = own, absent
        self.live = LiveFiles.of(entry, context.segments)

    @classmethod
    def of(
        cls,
        context: Context,
        manifest: Manifest,
        uuid: str,
        schema: Schema,
        erasures: Iterable[Erasure] = (),
        *,
        hides_absent: bool = True,
    ) -> TableState | None:
        """The table with this uuid; None if the version has no such table. Fetches the entry of an idle one.

        Raises SchemaError: a column has a wider type than in the feed's last version, so its values may not fit.

        Args:
            erasures: oldest first; rows that they erased after this version are hidden.
            hides_absent: whether columns that the version does not show are NULL; else they have the files' values.
        """
        stored_entry = entry_of(manifest, uuid)
        if stored_entry is None:
            return None
        younger = [erasure for erasure in erasures if erasure.ts > manifest.commit_ts]
        stored_entry = context.segments.whole(stored_entry)
        absent = absent_columns(stored_entry.schema, manifest.commit_ts, schema.fields) if hides_absent else {}
        entry = with_erasures(stored_entry, younger, context.segments)
        own = entry.schema
        _check_types(own, schema, manifest.version)
        entry = widen_entry(entry, changed_forms(own, schema))
        entry = msgspec.structs.replace(entry, schema=_add_dropped(schema, own))
        return cls(context, manifest, manifest.name_of(uuid) or "", entry, own, absent)

    def with_entry(self, entry: TableEntry) -> TableState:
        return TableState(self.context, self.manifest, self.name, entry, self.own, self.absent)

    def shows_same(self, other: TableState, columns: FeedColumns) -> bool:
        """True if both versions show the same parts of the feed's columns."""
        return all(self.absent.get(field.id) == other.absent.get(field.id) for field in columns.inputs)

    def where(self, columns: FeedColumns) -> Predicate | None:
        """The predicate, if files can be judged by it; None if it names a column that the version lacks."""
        return None if self.absent.keys() & columns.filter_ids else columns.where

    @property
    def commit_ts(self) -> int:
        """The version's commit timestamp; rows of later commits have greater ones."""
        return self.manifest.commit_ts

    @cached_property
    def tombstones(self) -> tuple[Tombstone, ...]:
        """Its unresolved deletes, oldest first. Those in segments are fetched."""
        return tombstones_of(self.entry, self.context.segments)

    def tombstones_since(self, commit_ts: int) -> tuple[Tombstone, ...]:
        """The inline deletes of later commits. Those of the version's own commit and of erasures are always inline."""
        return tuple(tombstone for tombstone in self.entry.tombstones if tombstone.ts > commit_ts)


def _check_types(own: Schema, last: Schema, version: int) -> None:
    last_fields = {field.id: field for field in last.fields}
    for field in own.fields:
        latest = last_fields.get(field.id)
        if latest is None or latest.added_ts != field.added_ts:  # another column, which got the id of a dropped one
            continue
        if latest.type != field.type and wider_ids(field.type, latest.type, field.id):
            raise SchemaError(
                f"column {field.name!r} is {short_type(field.arrow_type)} in version {version}, "
                f"but {short_type(latest.arrow_type)} in the last one, to which the table was restored: take the "
                "changes up to the restore apart, or widen the column again"
            )


def _add_dropped(schema: Schema, own: Schema) -> Schema:
    """The feed's schema with the dropped columns that the version's deletes may name."""
    ids = {field.id for field in schema.fields}
    dropped = {id_: field for id_, field in (own.by_id | schema.by_id).items() if id_ not in ids}
    dropped.pop(COMMIT_TS_ID, None)
    return Schema(
        schema.fields, schema.next_id, tuple(dropped.values()), schema.altered_ts, schema.mapping or own.mapping
    )


_FILES_AT_ONCE = 4096  # the most files of one version that are looked up in the other at once


class AffectedFile(Struct, frozen=True):
    """A file that may have lost rows: in the earlier version with its deletes, and its entry in the later version.

    ``tombstones`` are deletes that may have hidden rows of it, or None if one of them certainly hides all.
    """

    before: FilePlan
    after: DataFile
    tombstones: FileTombstones | None


class FilePlanner:
    """Plans the reading of one version's files, with some deletes instead of all."""

    def __init__(
        self, state: TableState, columns: FeedColumns, tombstones: tuple[Tombstone, ...] | None = None
    ) -> None:
        self._state, self._columns, self._tombstones = state, columns, tombstones
        self._where = state.where(columns)

    @property
    def tombstones(self) -> tuple[Tombstone, ...]:
        """The deletes that count, oldest first."""
        return self._state.tombstones if self._tombstones is None else self._tombstones

    @cached_property
    def judge(self) -> TombstoneJudge:
        return TombstoneJudge(self.tombstones, self._state.entry.schema)

    def plans(self, files: Iterable[DataFile]) -> Iterator[FilePlan]:
        return (plan for file in files if (plan := self.plan(file)) is not None)

    def plan(self, file: DataFile) -> FilePlan | None:
        """The file with the deletes that may hide rows of it; None if no row of it both matches and is visible."""
        if not file.live_rows:
            return None
        verdict = StatsVerdict.ALWAYS
        if self._where is not None:
            verdict = RowBounds.of(file, self._state.entry.schema, self._columns.filter_ids).judge(self._where)
        tombstones = None if verdict is StatsVerdict.NEVER else self.judge.of_file(file)
        return None if tombstones is None else FilePlan(file, verdict is StatsVerdict.MAYBE, tombstones)


def younger_files(state: TableState, columns: FeedColumns, commit_ts: int) -> Iterator[DataFile]:
    """Yields the files that may hold matching rows of commits after ``commit_ts``."""
    where = state.where(columns)
    requested = [segment for segment in state.live.segments_for(where) if segment.greatest > commit_ts]
    for each in state.live.live_segments(requested) if requested else ():
        positions = None if where is None else each.positions(may_match_mask(where, each.table))
        yield from (file for file in each.entries(positions) if file.greatest_row_ts > commit_ts)
    yield from (file for file in state.entry.files if file.greatest_row_ts > commit_ts)


def files_affected_by_commit(before: TableState, after: TableState, columns: FeedColumns) -> Iterator[AffectedFile]:
    """Yields the files of ``before`` that may have lost rows by the commit that made ``after``, from few segments."""
    older = FilePlanner(before, columns)
    deletes = [each for each in after.tombstones_since(before.commit_ts) if each.ts <= after.commit_ts]
    judge = TombstoneJudge(deletes, after.entry.schema)
    replaced = _replaced_vectors(before, after)
    for file in _judged_files(before, judge):
        later_file = replaced.pop(file.uuid, None)
        tombstones = judge.of_file(file)
        if later_file is None and tombstones is not None and not tombstones:
            continue
        if (plan := older.plan(file)) is not None:
            yield AffectedFile(plan, later_file or file, tombstones)
    for file in before.live.find(list(replaced)).values():
        if (plan := older.plan(file)) is not None:
            yield AffectedFile(plan, replaced[file.uuid], FileTombstones())


def files_affected_by_deletes(
    before: TableState, deletes: tuple[Tombstone, ...], schema: Schema, columns: FeedColumns
) -> Iterator[AffectedFile]:
    """Yields the files whose rows some deletes may hide; ``schema`` has all columns that the deletes name."""
    older, judge = FilePlanner(before, columns), TombstoneJudge(deletes, schema)
    for file in _judged_files(before, judge):
        tombstones = judge.of_file(file)
        if (tombstones is None or tombstones) and (plan := older.plan(file)) is not None:
            yield AffectedFile(plan, file, tombstones)


def files_affected_between(
    before: TableState, after: TableState, columns: FeedColumns, planner: FilePlanner
) -> Iterator[AffectedFile] | None:
    """Files of ``before`` that may have lost rows up to a later version of its epoch; None if some were replaced."""
    affected: list[AffectedFile] = []
    older = FilePlanner(before, columns)
    for some in _batches(before.live):
        later_files = after.live.find([file.uuid for file in some])
        for file in some:
            later_file = later_files.get(file.uuid)
            if later_file is None:
                if file.live_rows:
                    return None
                continue
            tombstones = planner.judge.of_file(later_file)
            if later_file.vector == file.vector and tombstones is not None and not tombstones:
                continue
            if (plan := older.plan(file)) is not None:
                affected.append(AffectedFile(plan, later_file, tombstones))
    return iter(affected)


def differing_files(state: TableState, other: TableState | None, columns: FeedColumns) -> Iterator[FilePlan]:
    """Yields the files whose visible rows may not be the same in the other version."""
    planner = FilePlanner(state, columns)
    others = None if other is None else FilePlanner(other, columns)
    for some in _batches(state.live):
        other_files = {} if other is None else other.live.find([file.uuid for file in some])
        for plan in planner.plans(some):
            other_file = other_files.get(plan.file.uuid)
            if others and other_file and plan.file.vector == other_file.vector:
                other_plan = others.plan(other_file)
                if other_plan is not None and tuple(other_plan.tombstones) == tuple(plan.tombstones):
                    continue
            yield plan


def _judged_files(state: TableState, judge: TombstoneJudge) -> Iterator[DataFile]:
    """The files whose rows some delete may hide, by the bounds of segments, and all inline files."""
    if not judge:
        return
    verdicts = {segment.object: judge.of_segment(segment) for segment in state.live.segments}
    requested = [segment for segment in state.live.segments if verdicts[segment.object]]
    for each in state.live.live_segments(requested) if requested else ():
        yield from each.entries(each.positions(verdicts[each.segment.object].file_mask(each)))
    yield from state.entry.files


def _replaced_vectors(before: TableState, after: TableState) -> dict[str, DataFile]:
    """Files of ``before`` whose vectors the next commit changed, by uuid: their entries after that commit.

    Changed vectors are inline: in an overlay, or in the file's own inline entry.
    """
    inline = {file.uuid: file.vector for file in before.entry.files}
    replaced = {file.uuid: file for file in after.entry.files if inline.get(file.uuid, file.vector) != file.vector}
    older = set(before.entry.overlays)
    if changed := [overlay.file for overlay in after.entry.overlays if overlay not in older]:
        earlier_files = before.live.find(changed)
        later_files = after.live.find(earlier_files)
        replaced |= {uuid: file for uuid, file in later_files.items() if earlier_files[uuid].vector != file.vector}
    return replaced


def _batches(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    iterator = iter(files)
    while some := list(islice(iterator, _FILES_AT_ONCE)):
        yield some

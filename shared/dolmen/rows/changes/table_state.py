"""One table in one version, seen through the columns of the feed's last version.

A version may lack columns of the feed that a later restore brought back. In such a version these columns are NULL in
all rows, whatever its files still hold. A column that was added later is not absent: older rows have its default.

``changing_commits`` finds the commits that changed a table's rows, with few requests: most versions of a long chain are
never read. The history lists the effects of each commit. They only choose the manifests that are read first. Whether a
table is the same in two versions follows from its entries: a commit that added rows left a younger timestamp, one that
took rows away moved ``last_delete_ts``, one that replaced all of them made a new epoch, and one that dropped a column
of the feed no longer shows it. Where the entries disagree with the history, every version in between is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeAlias

import msgspec
import pyarrow as pa

from dolmen.base.runtime import cached_property
from dolmen.commit.context import Context
from dolmen.commit.versions import history_between, manifest_of
from dolmen.entries.segments.erasures_in_force import with_erasures
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import SchemaError
from dolmen.format.column_history import changed_forms, fields_inside, nested_values, wider_ids
from dolmen.format.entries import Tombstone
from dolmen.format.evolution import widen_entry
from dolmen.format.manifest import Erasure, HistoryEntry, Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS_ID, Field, Schema
from dolmen.format.types import short_type
from dolmen.predicate import Predicate, columns
from dolmen.rows.scan.plan import FilePlan, ScanPlan
from dolmen.rows.scan.read.reading import PlanReader
from dolmen.rows.scan.read.row_groups import RowGroup, column_of

AbsentColumns: TypeAlias = Mapping[int, frozenset[int]]
"""By id of a column, the ids of it or of the fields inside it that a version does not show."""

_AHEAD = 8
"""Manifests that are fetched at once, each of which takes some megabytes when it is decoded."""

_SAME_ROWS = frozenset(("resolve", "compact", "index", "merge", "set", "alter", "rename"))
"""Effects after which a scan returns the same rows, in the columns that it still has."""

_REACHING = frozenset(("erase", "forget"))
"""Effects on more tables than the one that they name, if they name any."""


def absent_columns(own: Schema, commit_ts: int, fields: Iterable[Field]) -> AbsentColumns:
    """The columns, and fields inside them, that a version of the table does not show.

    A table that was dropped and restored may give an id a second time, so the time of a column's addition counts too.

    Args:
        own: the version's columns.
        commit_ts: its commit timestamp.
        fields: columns of the feed.
    """
    there = {field.id: field for field in own.fields}
    found: dict[int, frozenset[int]] = {}
    for field in fields:
        known = there.get(field.id)
        if known == field:
            continue
        if known is None or known.added_ts != field.added_ts:
            if field.added_ts <= commit_ts or field.id < own.next_id:
                found[field.id] = frozenset((field.id,))
            continue
        shown = {(inside.id, inside.added_ts) for inside in fields_inside(known.type)}
        gone = frozenset(
            inside.id
            for inside in fields_inside(field.type)
            if (inside.id, inside.added_ts) not in shown and (inside.added_ts <= commit_ts or inside.id < own.next_id)
        )
        if gone:
            found[field.id] = gone
    return found


@dataclass(frozen=True)
class CommitStep:
    """A version that may have changed a table's rows, and the version before it, or for net changes an earlier one."""

    before: Manifest
    after: Manifest


def entry_of(manifest: Manifest, uuid: str) -> TableEntry | None:
    """The entry of the table with this uuid, whatever its name is; None if the version has no such table."""
    name = manifest.name_of(uuid)
    return None if name is None else manifest.tables[name]


def may_differ(before: Manifest, after: Manifest, uuid: str, segments: SegmentReader, fields: Sequence[Field]) -> bool:
    """Whether a table's rows may differ between two versions, or may have differed from both in between.

    False is certain. It goes by the entries alone; an idle table's is fetched if it has become idle in between.

    Args:
        fields: columns of the feed: a version that does not show one of them differs from one that does.
    """
    first, last = entry_of(before, uuid), entry_of(after, uuid)
    if first is None or last is None:
        return first is not last
    if (first.epoch, first.last_delete_ts) != (last.epoch, last.last_delete_ts):
        return True
    if last.section is not None and last.section == first.section:
        return False
    whole = segments.whole(last)
    since = before.commit_ts
    if any(file.greatest_row_ts > since for file in whole.files) or any(
        segment.greatest > since for segment in whole.segments_of("files")
    ):
        return True
    was = segments.whole(first).schema
    return absent_columns(was, since, fields) != absent_columns(whole.schema, after.commit_ts, fields)


def changing_commits(
    context: Context, newest: Manifest, since: Manifest, until: Manifest, uuid: str, fields: Sequence[Field]
) -> Iterator[CommitStep]:
    """Yields the commits after ``since`` and up to ``until`` that may have changed a table's rows, oldest first.

    Reads segments of history, and the manifests of these commits and of the versions before them; several at once.

    Args:
        newest: a version that knows the history of ``until``.
        fields: columns of the feed.

    Raises:
        VersionExpiredError: a version has expired in the meantime.
    """
    if since.version >= until.version:
        return
    history = history_between(context.head, newest, since.version + 1, until.version)
    names = {name for manifest in (since, until) if (name := manifest.name_of(uuid)) is not None}
    for before, after in pairwise(_manifests(context, since, until, _worth_reading(history, names))):
        if not may_differ(before, after, uuid, context.segments, fields):
            continue
        if after.version == before.version + 1:
            yield CommitStep(before, after)
            continue
        between = history_between(context.head, newest, before.version + 1, after.version - 1)
        for step in pairwise(_manifests(context, before, after, between)):
            if may_differ(*step, uuid, context.segments, fields):
                yield CommitStep(*step)


def _manifests(
    context: Context, first: Manifest, last: Manifest, between: Iterable[HistoryEntry]
) -> Iterator[Manifest]:
    read = context.runtime.map(lambda entry: manifest_of(context.head, entry), between, ahead=_AHEAD)
    return chain([first], read, [last])


def _worth_reading(history: Iterable[HistoryEntry], names: set[str]) -> Iterator[HistoryEntry]:
    """The commits that say that they changed rows of the table, and those before them; the last one is left out."""
    before: HistoryEntry | None = None
    is_before_wanted = False
    for entry in history:
        is_wanted = _says_changes(entry, names)
        if before is not None and (is_wanted or is_before_wanted):
            yield before
        before, is_before_wanted = entry, is_wanted


def _says_changes(entry: HistoryEntry, names: set[str]) -> bool:
    """Whether a commit says that it changed rows of a table with one of these names. Adds its new name to them."""
    for deed in entry.did:
        if deed.what == "rename" and deed.table in names:
            names.update(deed.over)
    return bool(entry.did_more) or any(
        deed.what in _REACHING or (deed.table in names and deed.what not in _SAME_ROWS) for deed in entry.did
    )


@dataclass(frozen=True)
class FeedColumns:
    """The columns that are read of every version.

    Args:
        schema: the table's columns in the feed's last version.
        output: the columns of the result.
        key: the columns by which a deleted and an added row are the same row; none if there is no key.
        where: bound to ``schema``: only rows for which it is TRUE.
    """

    schema: Schema
    output: tuple[Field, ...]
    key: tuple[Field, ...]
    where: Predicate | None

    @cached_property
    def read(self) -> tuple[Field, ...]:
        """The columns of the result, and then those of the key that are not among them."""
        there = {field.id for field in self.output}
        return (*self.output, *(field for field in self.key if field.id not in there))

    @cached_property
    def ids(self) -> frozenset[int]:
        """Ids of the columns that are read."""
        return frozenset(field.id for field in self.read)

    @cached_property
    def filtered(self) -> frozenset[int]:
        """Ids of the columns that the predicate names."""
        return frozenset() if self.where is None else columns(self.where)

    @cached_property
    def needed(self) -> tuple[Field, ...]:
        """The columns that are read, and those that the predicate names."""
        return tuple(field for field in self.schema.fields if field.id in self.ids | self.filtered)


class TableState:
    """A table in one version.

    Args:
        entry: its whole entry, with the columns of the feed's last version.
        own: the columns that the version shows itself.
        absent: those of the feed's columns that it does not show.
    """

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
        hide: bool = True,
    ) -> TableState | None:
        """The table with this uuid; None if the version has no such table. An idle one's entry is fetched.

        Args:
            erasures: oldest first: the table is seen without the rows that younger ones than the version erased.
            hide: whether columns that the version does not show are NULL, and not what its files hold.

        Raises:
            SchemaError: a column has a wider type than in the feed's last version, so its values may not fit.
        """
        found = entry_of(manifest, uuid)
        if found is None:
            return None
        younger = [erasure for erasure in erasures if erasure.ts > manifest.commit_ts]
        found = context.segments.whole(found)
        absent = absent_columns(found.schema, manifest.commit_ts, schema.fields) if hide else {}
        entry = with_erasures(found, younger, context.segments)
        own = entry.schema
        _check_types(own, schema, manifest.version)
        entry = widen_entry(entry, changed_forms(own, schema))
        entry = msgspec.structs.replace(entry, schema=_with_dropped(schema, own))
        return cls(context, manifest, manifest.name_of(uuid) or "", entry, own, absent)

    def with_entry(self, entry: TableEntry) -> TableState:
        """The same version of the table with another entry."""
        return TableState(self.context, self.manifest, self.name, entry, self.own, self.absent)

    def shows_like(self, other: TableState, columns: FeedColumns) -> bool:
        """Whether two versions show the same of the columns that are needed."""
        return all(self.absent.get(field.id) == other.absent.get(field.id) for field in columns.needed)

    def where(self, columns: FeedColumns) -> Predicate | None:
        """The predicate, if files can be judged by it; None if it names a column that the version lacks."""
        return None if self.absent.keys() & columns.filtered else columns.where

    def column(self, group: RowGroup, field: Field, arrays: Mapping[int, pa.Array]) -> pa.Array:
        """A column of a row group as this version shows it, in the feed's type; all rows, deleted ones too.

        Args:
            arrays: by id, at least this column as it is in the file.
        """
        gone = self.absent.get(field.id)
        if gone is None:
            return column_of(group, field, arrays)
        if field.id in gone:
            is_older = field.added_ts <= self.commit_ts
            return pa.nulls(group.rows, field.arrow_type) if is_older else field.initial_values(group.rows)
        own = self.own.by_id[field.id]
        return nested_values(column_of(group, own, arrays), own.arrow_type, field.arrow_type)

    @property
    def commit_ts(self) -> int:
        """The version's commit timestamp: rows of later commits have greater ones."""
        return self.manifest.commit_ts

    @cached_property
    def tombstones(self) -> tuple[Tombstone, ...]:
        """Its unresolved deletes, oldest first. Those in segments are fetched."""
        return tombstones_of(self.entry, self.context.segments)

    def tombstones_since(self, commit_ts: int) -> tuple[Tombstone, ...]:
        """The inline deletes of later commits. Those of the version's own commit and of erasures are always inline."""
        return tuple(tombstone for tombstone in self.entry.tombstones if tombstone.ts > commit_ts)

    def reader(
        self, columns: FeedColumns, files: tuple[FilePlan, ...] = (), unresolved: tuple[Tombstone, ...] = ()
    ) -> PlanReader:
        """A reader of some of its files.

        Args:
            unresolved: the deletes among which the files' tombstones are.
        """
        plan = ScanPlan(
            table=self.name,
            version=self.manifest.version,
            entry=self.entry,
            output=columns.read,
            where=self.where(columns),
            limit=None,
            files=files,
            pruned={},
            unresolved=unresolved,
        )
        return PlanReader(self.context, plan)


def _check_types(own: Schema, last: Schema, version: int) -> None:
    there = {field.id: field for field in last.fields}
    for field in own.fields:
        now = there.get(field.id)
        if now is None or now.added_ts != field.added_ts:  # another column, which got the id of a dropped one
            continue
        if now.type != field.type and wider_ids(field.type, now.type, field.id):
            raise SchemaError(
                f"column {field.name!r} is {short_type(field.arrow_type)} in version {version}, "
                f"but {short_type(now.arrow_type)} in the last "
                "one, to which the table was restored: take the changes up to the restore apart, or widen the column "
                "again"
            )


def _with_dropped(schema: Schema, own: Schema) -> Schema:
    """The feed's columns, and the dropped columns that the version's deletes may name."""
    there = {field.id for field in schema.fields}
    dropped = {id_: field for id_, field in (own.by_id | schema.by_id).items() if id_ not in there}
    dropped.pop(COMMIT_TS_ID, None)
    return Schema(
        schema.fields, schema.next_id, tuple(dropped.values()), schema.altered_ts, schema.mapping or own.mapping
    )

"""One table in one version, seen through the columns of the feed's last version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from dolmen.base.cached import cached_property
from dolmen.commit.context import Context
from dolmen.entries.segments.erasures import with_erasures
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.errors import SchemaError
from dolmen.format.entries import Tombstone
from dolmen.format.erasures import Erasure
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.nested_values import nested_values
from dolmen.format.nesting import wider_ids
from dolmen.format.schema import COMMIT_TS_ID, Field, Schema
from dolmen.format.types import short_type
from dolmen.format.widening import changed_forms, widened_entry
from dolmen.predicate import Predicate, columns
from dolmen.rows.changes.commits import entry_of
from dolmen.rows.changes.hidden import Hidden, hidden_columns
from dolmen.rows.scan.plan import FilePlan, ScanPlan
from dolmen.rows.scan.read import PlanReader
from dolmen.rows.scan.row_groups import RowGroup
from dolmen.rows.scan.row_masks import column_of


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
        hidden: those of the feed's columns that it does not show.
    """

    def __init__(
        self, context: Context, manifest: Manifest, name: str, entry: TableEntry, own: Schema, hidden: Hidden
    ) -> None:
        self.context, self.manifest, self.name, self.entry = context, manifest, name, entry
        self.own, self.hidden = own, hidden
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
        hidden = hidden_columns(found.schema, manifest.commit_ts, schema.fields) if hide else {}
        entry = with_erasures(found, younger, context.segments)
        own = entry.schema
        _check_types(own, schema, manifest.version)
        entry = widened_entry(entry, changed_forms(own, schema))
        entry = msgspec.structs.replace(entry, schema=_with_dropped(schema, own))
        return cls(context, manifest, manifest.name_of(uuid) or "", entry, own, hidden)

    def with_entry(self, entry: TableEntry) -> TableState:
        """The same version of the table with another entry."""
        return TableState(self.context, self.manifest, self.name, entry, self.own, self.hidden)

    def hides_like(self, other: TableState, columns: FeedColumns) -> bool:
        """Whether two versions show the same of the columns that are needed."""
        return all(self.hidden.get(field.id) == other.hidden.get(field.id) for field in columns.needed)

    def where(self, columns: FeedColumns) -> Predicate | None:
        """The predicate, if files can be judged by it; None if it names a column that they hold and nobody sees."""
        return None if self.hidden.keys() & columns.filtered else columns.where

    def column(self, group: RowGroup, field: Field, arrays: Mapping[int, pa.Array]) -> pa.Array:
        """A column of a row group as this version shows it, in the feed's type; all rows, deleted ones too.

        Args:
            arrays: by id, at least this column as it is in the file.
        """
        gone = self.hidden.get(field.id)
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
        """The deletes of later commits that are inline, as those of the version's own commit and of erasures are."""
        return tuple(tombstone for tombstone in self.entry.tombstones if tombstone.ts > commit_ts)

    def reader(
        self, columns: FeedColumns, files: tuple[FilePlan, ...] = (), unresolved: tuple[Tombstone, ...] = ()
    ) -> PlanReader:
        """A reader of some of its files.

        Args:
            unresolved: the deletes among which the files' suspects are.
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
        if now is None or now.added_ts != field.added_ts:  # another column, which got the id of one of then
            continue
        if now.type != field.type and wider_ids(field.type, now.type, field.id):
            raise SchemaError(
                f"column {field.name!r} is {short_type(field.arrow_type)} in version {version}, "
                f"but {short_type(now.arrow_type)} in the last "
                "one, to which the table was restored: take the changes up to the restore apart, or widen the column "
                "again"
            )


def _with_dropped(schema: Schema, own: Schema) -> Schema:
    """The feed's columns, with those that the version's deletes may name beside them."""
    there = {field.id for field in schema.fields}
    dropped = {id_: field for id_, field in (own.by_id | schema.by_id).items() if id_ not in there}
    dropped.pop(COMMIT_TS_ID, None)
    return Schema(
        schema.fields, schema.next_id, tuple(dropped.values()), schema.altered_ts, schema.mapping or own.mapping
    )

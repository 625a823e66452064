"""One table in one version, seen through the columns of the feed's last version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from dolmen.cached import cached_property
from dolmen.changes.commits import entry_of
from dolmen.context import Context
from dolmen.errors import SchemaError
from dolmen.format.entries import Tombstone
from dolmen.format.erasures import Erasure
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.nesting import wider_ids
from dolmen.format.schema import COMMIT_TS_ID, Field, Schema
from dolmen.format.widening import changed_forms, widened_entry
from dolmen.predicate import Predicate, columns
from dolmen.scan.plan import FilePlan, ScanPlan
from dolmen.scan.read import PlanReader
from dolmen.segments.erasures import with_erasures
from dolmen.segments.live import LiveFiles, tombstones_of


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


class TableState:
    """A table in one version.

    Args:
        entry: its whole entry, with the columns of the feed's last version.
    """

    def __init__(self, context: Context, manifest: Manifest, name: str, entry: TableEntry) -> None:
        self.context, self.manifest, self.name, self.entry = context, manifest, name, entry
        self.live = LiveFiles.of(entry, context.segments)

    @classmethod
    def of(
        cls, context: Context, manifest: Manifest, uuid: str, schema: Schema, erasures: Iterable[Erasure] = ()
    ) -> TableState | None:
        """The table with this uuid; None if the version has no such table. An idle one's entry is fetched.

        Args:
            erasures: oldest first: the table is seen without the rows that younger ones than the version erased.

        Raises:
            SchemaError: a column has a wider type than in the feed's last version, so its values may not fit.
        """
        found = entry_of(manifest, uuid)
        if found is None:
            return None
        younger = [erasure for erasure in erasures if erasure.ts > manifest.commit_ts]
        entry = context.segments.whole(with_erasures(found, younger, context.segments))
        _check_types(entry.schema, schema, manifest.version)
        entry = widened_entry(entry, changed_forms(entry.schema, schema))
        entry = msgspec.structs.replace(entry, schema=_with_dropped(schema, entry.schema))
        return cls(context, manifest, manifest.name_of(uuid) or "", entry)

    def with_entry(self, entry: TableEntry) -> TableState:
        """The same version of the table with another entry."""
        return TableState(self.context, self.manifest, self.name, entry)

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
            where=columns.where,
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
        if now is not None and now.type != field.type and wider_ids(field.type, now.type, field.id):
            raise SchemaError(
                f"column {field.name!r} is {field.arrow_type} in version {version}, but {now.arrow_type} in the last "
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

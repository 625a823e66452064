"""The statement that changes a table's columns."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dolmen.commit.draft import Draft
from dolmen.entries.segments.widening import check_days_of_table
from dolmen.errors import ConflictError
from dolmen.format.column_names import record_names
from dolmen.format.evolution import SchemaChange, WidenColumn, needed_features
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema
from dolmen.format.widening import is_date_to_timestamp


@dataclass(frozen=True)
class AlterTable:
    """Changes columns, or the sort key.

    Args:
        known: the columns that its author saw; a table with other ones is a conflict.
        known_sort_key: the same for the ids of the sort key.
        changes: in order; each sees the effect of those before it.
    """

    name: str
    uuid: str
    known: Schema
    known_sort_key: tuple[int, ...]
    changes: tuple[SchemaChange, ...]
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Changes the table's entry. No file is touched."""
        entry = draft.table(self.name, self.uuid)
        if self._is_first(draft, entry.schema) and not self._is_as_known(entry):
            raise ConflictError(
                f"table {self.name!r}: somebody changed its columns meanwhile, in version {draft.base.version} or one "
                "before it: look at them again"
            )
        for change in self.changes:
            if isinstance(change, WidenColumn):
                field = next(
                    (field for field in entry.schema.fields if field.name.lower() == change.name.lower()), None
                )
                if field is not None and is_date_to_timestamp(field.arrow_type, change.type):
                    check_days_of_table(entry, field, draft.segments)
            changed = change.apply(entry, ts)
            schema = record_names(entry.schema, changed.schema, ts)
            entry = msgspec.structs.replace(changed, schema=schema)
        draft.require(needed_features(entry.schema))
        draft.tables[self.name] = entry
        draft.data_change = True

    def _is_first(self, draft: Draft, schema: Schema) -> bool:
        """Whether no earlier statement of this commit has changed the columns, or made the table."""
        own = draft.base.name_of(self.uuid)
        return own is not None and draft.segments.whole(draft.base.tables[own]).schema == schema

    def _is_as_known(self, entry: TableEntry) -> bool:
        known = self.known
        return (entry.schema.fields, entry.schema.next_id, entry.sort_key) == (
            known.fields,
            known.next_id,
            self.known_sort_key,
        )

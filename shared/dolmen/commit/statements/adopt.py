"""The statement that makes a table of files that others wrote."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dolmen.commit.draft import Draft
from dolmen.errors import TableExistsError
from dolmen.format.adopted import ADOPTED_FILES
from dolmen.format.evolution import needed_features
from dolmen.format.manifest import Counts, TableEntry
from dolmen.format.schema import Field


@dataclass(frozen=True)
class AdoptTable:
    """Creates a table with files that are there already. Raises TableExistsError when the name is taken.

    Args:
        entry: with the files; columns that have a narrower type in some of them have any ``widened_ts`` but 0.
    """

    name: str
    entry: TableEntry
    request: str | None = None

    @property
    def uuid(self) -> str:
        """The uuid of the new table."""
        return self.entry.uuid

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the table. Its files may lack columns, or have them under other names: ``altered_ts`` says so."""
        if self.name in draft.tables:
            raise TableExistsError(f"table {self.name!r} exists already")
        before = self.entry.schema
        fields = tuple(_stamped(field, ts) for field in before.fields)
        schema = msgspec.structs.replace(before, fields=fields, altered_ts=ts)
        files = tuple(file.stamped(ts) for file in self.entry.files)
        draft.tables[self.name] = msgspec.structs.replace(self.entry, epoch=draft.version, schema=schema, files=files)
        draft.require([ADOPTED_FILES, *needed_features(schema)])
        draft.counts += Counts(rows_added=sum(file.live_rows for file in files), files_added=len(files))
        draft.data_change = True


def _stamped(field: Field, ts: int) -> Field:
    return msgspec.structs.replace(field, widened_ts=ts) if field.widened_ts else field

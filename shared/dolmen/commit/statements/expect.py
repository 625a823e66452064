"""A statement that changes nothing: it makes the commit depend on settings and columns that its writer has seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dolmen.commit.draft import Draft
from dolmen.errors import ConflictError
from dolmen.format.schema import Schema


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

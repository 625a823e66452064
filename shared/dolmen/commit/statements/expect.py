"""A statement that changes nothing: it makes the commit depend on settings that its writer has seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dolmen.commit.draft import Draft
from dolmen.errors import ConflictError


@dataclass(frozen=True)
class Expect:
    """Requires that settings are unchanged. Otherwise the whole commit fails.

    Args:
        name: the table's name; None for the database.
        uuid: the table's uuid.
        properties: the settings as the writer saw them.
        names: the settings to compare; all by default.
        request: the request that this belongs to; if it was applied before, nothing is compared.
    """

    name: str | None
    uuid: str
    properties: Mapping[str, Any]
    names: Collection[str] | None = None
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ConflictError if the settings have changed, TableNotFoundError if the table is gone."""
        now = draft.properties if self.name is None else draft.table(self.name, self.uuid).properties
        names = {*now, *self.properties} if self.names is None else self.names
        if changed := sorted(name for name in names if now.get(name) != self.properties.get(name)):
            what = "the database" if self.name is None else f"table {self.name!r}"
            raise ConflictError(
                f"somebody changed {', '.join(changed)} of {what} meanwhile, in version {draft.base.version} or one "
                "before it: look at the differences again"
            )

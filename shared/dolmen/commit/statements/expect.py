"""A statement that changes nothing and only holds a commit to what its writer was shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dolmen.commit.draft import Draft
from dolmen.errors import ConflictError


@dataclass(frozen=True)
class Expect:
    """Settings must be as they were seen, or the commit that this is part of is refused.

    Args:
        name: the table; None for the database.
        uuid: of the table.
        properties: as they were seen.
        names: of the settings that are compared; all by default.
        request: the one that this is a part of; nothing is compared if that was applied before.
    """

    name: str | None
    uuid: str
    properties: Mapping[str, Any]
    names: Collection[str] | None = None
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ConflictError if the settings are others, TableNotFoundError if the table is gone."""
        now = draft.properties if self.name is None else draft.table(self.name, self.uuid).properties
        names = {*now, *self.properties} if self.names is None else self.names
        if changed := sorted(name for name in names if now.get(name) != self.properties.get(name)):
            what = "the database" if self.name is None else f"table {self.name!r}"
            raise ConflictError(
                f"somebody has set {', '.join(changed)} of {what} meanwhile, in version {draft.base.version} or one "
                "before it: look at the differences again"
            )

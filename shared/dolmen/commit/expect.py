"""A statement that changes nothing and only holds a commit to what its writer was shown."""

from __future__ import annotations

from collections.abc import Mapping
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
    """

    name: str | None
    uuid: str
    properties: Mapping[str, Any]
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ConflictError if the settings are others, TableNotFoundError if the table is gone."""
        now = draft.properties if self.name is None else draft.table(self.name, self.uuid).properties
        if dict(now) != dict(self.properties):
            what = "the database" if self.name is None else f"table {self.name!r}"
            changed = sorted(name for name in {*now, *self.properties} if now.get(name) != self.properties.get(name))
            raise ConflictError(
                f"somebody has set {', '.join(changed)} of {what} meanwhile, in version {draft.base.version} or one "
                "before it: look at the differences again"
            )

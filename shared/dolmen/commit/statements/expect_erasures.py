"""A statement that changes nothing: it makes a commit of late rows depend on the erasures that were known to it."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.commit.draft import Draft
from dolmen.entries.segments.erasures import reaches
from dolmen.errors import ConflictError


class ErasedMeanwhileError(ConflictError):
    """Rows were erased after those of a commit were compared with erasures. Made again, the commit leaves them out."""


@dataclass(frozen=True)
class ExpectErasures:
    """Requires that nothing was erased since that rows must be held against. Otherwise the commit fails.

    Args:
        name: the table's name.
        uuid: the table's uuid.
        seen_ts: commit timestamp of the version whose erasures the rows were held against.
        dropped_us: when the rows were dropped, the first of them, by the server's clock; None if that is not known.
        request: the request that this belongs to; if it was applied before, nothing is compared.
    """

    name: str
    uuid: str
    seen_ts: int
    dropped_us: int | None
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ErasedMeanwhileError if there is such an erasure, TableNotFoundError if the table is gone."""
        entry = draft.table(self.name, self.uuid)
        for erasure in draft.erasures_after(self.seen_ts):
            if erasure.is_later_than(self.dropped_us) and reaches(erasure, entry):
                raise ErasedMeanwhileError(
                    f"table {self.name!r}: version {erasure.version} erased rows meanwhile, which these may be: read "
                    "them again, and leave out what was erased"
                )

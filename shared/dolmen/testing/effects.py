"""More statements than ``model`` has: those that put the model's own together, or choose among them."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.testing.model import Append, Row, State, Upsert, rows_of


@dataclass(frozen=True)
class Ingest:
    """The good rows of a dropped file, in the way that their table had when it was looked at."""

    table: str
    rows: tuple[Row, ...]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        upserts = rows_of(seen, self.table).settings.get("ingest_mode") == "upsert"
        kind = Upsert if upserts else Append
        kind(self.table, self.rows).apply(state, seen, version)

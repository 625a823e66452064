"""The effect of a dropped file, which may give its table a new column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from dolmen_simulator.judge.altering import AddStep, AlterEffect
from dolmen_simulator.judge.columns import ModelColumn, fill
from dolmen_simulator.judge.erasing import LandedErasure
from dolmen_simulator.judge.model import AppendEffect, CreateEffect, Row, State, TableRows, UpsertEffect, rows_of
from dolmen_simulator.judge.never import Never, ViolationError


class DroppedColumn(NamedTuple):
    """A column that a file has beside those that all tables have.

    Args:
        number: of the column that the table gets, if it gets one.
        values: in the order of the rows.
        in_rows: whether each row names it (JSON), so that with ``quarantine`` each row is bad, and not the file.
    """

    number: int
    name: str
    values: tuple[int, ...]
    in_rows: bool


@dataclass(frozen=True)
class IngestEffect:
    """Adds the good rows of a dropped file, by append or upsert as the table's settings said when it was read.

    A row of JSON that lacks a column has NULL in it, so ``says_null``. Rows that were erased after the file was dropped
    are left out.

    Args:
        dropped_us: when it was dropped, by the server's clock, as its event says; None if that does not.
        erasures: all that have landed, as they land.
        creates: whether it creates its table, if that is not there.
    """

    table: str
    rows: tuple[Row, ...]
    request: str | None = None
    extra: DroppedColumn | None = None
    dropped_us: int | None = None
    erasures: Sequence[LandedErasure] = field(default=(), repr=False)
    creates: bool = False
    says_null: ClassVar[bool] = True

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if self.creates and self.table not in state:
            CreateEffect(self.table).apply(state, seen, version)
        settings = rows_of(seen, self.table).settings
        upserts = settings.get("ingest_mode") == "upsert"
        if self.extra and self.extra.in_rows and self._is_quarantined(settings) and self._find(seen) is None:
            return
        self._apply_extra(state, seen, version, settings.get("ingest_new_columns"))
        kind = UpsertEffect if upserts else AppendEffect
        kind(self.table, self.rows_left(rows_of(seen, self.table), version)).apply(state, seen, version)

    def rows_left(self, table: TableRows, version: int) -> tuple[Row, ...]:
        """The rows that are ingested as that version: they were not erased in versions before it."""
        rows = self.rows
        for erasure in self.erasures:
            if erasure.version < version and erasure.is_later_than(self.dropped_us):
                rows = erasure.reach.left(table, rows)
        return rows

    def _apply_extra(self, state: State, seen: State, version: int, setting: str | None) -> None:
        """Adds the file's column if the table lacks it and asks for that, and sets its values."""
        if self.extra is None:
            return
        there = self._find(seen)
        if there is None and setting == "ignore":
            return
        if there is None:
            if setting != "add":
                raise ViolationError(
                    Never.MISREPORTED, f"version {version} ingested a file for {self.table!r} whose column it lacks"
                )
            there = ModelColumn(self.extra.number, self.extra.name)
            AlterEffect(self.table, (AddStep(there),)).apply(state, seen, version)
        table = rows_of(state, self.table)
        if all(column.number != there.number for column in table.columns):
            raise ViolationError(Never.LOST, f"version {version} wrote a column of {self.table!r} that was dropped")
        added = table.added
        for row, value in zip(self.rows, self.extra.values, strict=True):
            added = fill(added, [row.u], {there.number: frozenset({value})})
        state[self.table] = table._replace(added=added)

    @staticmethod
    def _is_quarantined(settings: dict[str, Any]) -> bool:
        refused = settings.get("ingest_new_columns") not in ("add", "ignore")
        return refused and settings.get("ingest_on_bad_row") == "quarantine"

    def _find(self, seen: State) -> ModelColumn | None:
        columns = rows_of(seen, self.table).columns
        return next((column for column in columns if self.extra and column.name == self.extra.name), None)

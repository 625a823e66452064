"""Workbooks: what their readers give, and which sheet is meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dolmen.ingest.formats.sheet_cells import CellBlock


@dataclass(frozen=True, slots=True)
class SheetInfo:
    """A sheet of cells."""

    name: str
    is_visible: bool


class Workbook(Protocol):
    """An open workbook."""

    sheets: list[SheetInfo]

    def blocks(self, sheet: str) -> Iterator[CellBlock]:
        """The cells of a sheet, in blocks of rows that are not empty."""

    def has_rows(self, sheet: str) -> bool:
        """Whether a cell of the sheet has a value."""

"""What docs/predicates.md says that functions make of NULL, NaN and empty values, as conditions on three rows."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

PAGE = Path(__file__).parents[2] / "docs" / "predicates.md"
ROWS = pa.table(
    {
        "row": [0, 1, 2],
        "s": pa.array([None, None, ""], pa.string()),
        "x": [None, math.nan, -0.0],
        "n": pa.array([None, None, 0], pa.int64()),
        "t": pa.array([None, None, None], pa.timestamp("us")),
        "l": pa.array([None, [None, math.nan], []], pa.list_(pa.float64())),
        "y": [2.5, 2.5, 2.5],
    }
)
"""NULL, NaN, and an empty text or list, or zero."""


class Case(NamedTuple):
    """A condition that is TRUE, FALSE or NULL (None) for a row of ``ROWS``."""

    text: str
    row: int
    expected: bool | None


def cases() -> list[Case]:
    """The cells of the page's table."""
    table = PAGE.read_text().partition("<!-- particular values -->")[2].partition("\n\nExcept")[0]
    found = []
    for line in table.splitlines()[4:]:
        functions, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        for function in re.findall("`([^`]+)`", functions):
            found += [_case(function, row, cell.replace("`", "")) for row, cell in enumerate(cells) if cell]
    return found


def _case(function: str, row: int, cell: str) -> Case:
    text = re.sub(r"\bx\b(?=\s*%)", "n", function)
    if function.startswith(("starts_with", "ends_with", "contains", "isnan", "list_contains")):
        return Case(text, row, {"TRUE": True, "FALSE": False, "NULL": None}[cell])
    if cell == "NULL":
        return Case(f"({text}) IS NULL", row, True)
    value = "''" if "(s" in function and "''" in cell else {"NaN": "'nan'"}.get(cell, cell.rpartition(", ")[2])
    return Case(f"({text}) = {value}", row, True)

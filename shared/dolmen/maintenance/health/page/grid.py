"""Tables of figures that scroll by themselves where they do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dolmen.maintenance.health.page.markup import Html, element


@dataclass(frozen=True)
class GridColumn:
    """A column of a table.

    Args:
        name: its header.
        kind: class of its cells: number, time, words; "" for others.
    """

    name: str
    kind: str = ""


def grid(caption: str, columns: Sequence[GridColumn], rows: Iterable[Sequence[object]]) -> Html:
    """A table. The first cell of each row is its header.

    Args:
        caption: what its rows are.
        rows: texts, which are escaped, or HTML.
    """
    head = element("tr", *(element("th", each.name, scope="col", class_=each.kind or None) for each in columns))
    body = [
        element(
            "tr",
            *(
                element(
                    "th" if place == 0 else "td", cell, class_=column.kind or None, scope="row" if place == 0 else None
                )
                for place, (column, cell) in enumerate(zip(columns, row, strict=True))
            ),
        )
        for row in rows
    ]
    table = element("table", element("caption", caption), element("thead", head), element("tbody", *body))
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """A list of names and values."""
    parts = [part for name, value in pairs for part in (element("dt", name), element("dd", value))]
    return element("dl", *parts, class_="facts")

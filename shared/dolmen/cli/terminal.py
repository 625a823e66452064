"""Shows rows on a terminal: the first and last ones, and their number, in bounded memory.

Each cell is one short line. Control characters are shown escaped. Columns that do not fit the terminal are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types as t
from rich.table import Table as RichTable
from rich.text import Text

from dolmen.cli.output import console, print_text, printable
from dolmen.rows.scan.scan import Scan

SHOWN_ROWS = 20
"""The number of first rows, and of last rows, that are shown."""

LISTED_ROWS = 1_000
"""With a ``--limit`` up to this, all rows are shown."""

PLAN_COLUMNS = ["explain_key", "explain_value"]
"""The columns of EXPLAIN's result."""

_CELL_WIDTHS = range(48, 11, -4)
_BORDERS = 3


@dataclass(frozen=True)
class Ends:
    """The first rows, the last rows (none if the first are all), and the number of all rows."""

    first: pa.Table
    last: pa.Table
    rows: int


def show_scan(scan: Callable[[int | None], Scan], limit: int | None, *, sorts: bool) -> None:
    """Shows the first and last rows of a scan. Reads only the files that hold them, and what counting needs.

    Args:
        scan: makes the scan, given a limit.
        limit: the user's limit.
        sorts: whether the user asked for an order.
    """
    if sorts or limit is not None:
        show_ends(ends_of(scan(limit).to_reader(), limit))
        return
    first = scan(2 * SHOWN_ROWS + 1).to_arrow()
    if len(first) <= 2 * SHOWN_ROWS:
        show_ends(Ends(first, first.slice(len(first)), len(first)))
        return
    whole = scan(None)
    show_ends(Ends(first.slice(0, SHOWN_ROWS), _last_rows(whole), whole.count()))


def _last_rows(scan: Scan) -> pa.Table:
    """The last rows of a scan, read from its last files."""
    last = scan.schema.empty_table()
    for file in reversed(scan.plan.files):
        part = ends_of(scan.of_files({file.file.path}).to_reader(), None)
        last = pa.concat_tables([part.first, part.last, last])
        last = last.slice(max(0, len(last) - SHOWN_ROWS))
        if len(last) == SHOWN_ROWS:
            break
    return last


def ends_of(rows: pa.RecordBatchReader, limit: int | None) -> Ends:
    """The first and last rows of a stream. Holds no more than these.

    Args:
        limit: the user's limit, if there is one.
    """
    listed = limit if limit is not None and limit <= LISTED_ROWS else 2 * SHOWN_ROWS
    first, last, count = rows.schema.empty_table(), rows.schema.empty_table(), 0
    for batch in rows:
        count += batch.num_rows
        missing = listed - len(first)
        if missing:
            first = pa.concat_tables([first, pa.Table.from_batches([batch.slice(0, missing)])]).combine_chunks()
            batch = batch.slice(missing)
        last = pa.concat_tables([last, pa.Table.from_batches([batch])])
        last = _copy(last.slice(max(0, len(last) - SHOWN_ROWS)))
    if len(last):
        last = pa.concat_tables([first, last])
        last, first = last.slice(max(0, len(last) - SHOWN_ROWS)), first.slice(0, SHOWN_ROWS)
    return Ends(first, last, count)


def _copy(table: pa.Table) -> pa.Table:
    """A copy of the table: a slice would keep its whole batch in memory."""
    return table.take(pa.array(range(len(table)), pa.int64()))


def show_plan(rows: pa.RecordBatchReader) -> None:
    """Prints the result of EXPLAIN, which is formatted already."""
    for row in rows.read_all().to_pylist():
        print_text(str(row[PLAN_COLUMNS[1]]).rstrip())


def show_ends(ends: Ends) -> None:
    """Prints the first and last rows as one table, and the number of rows."""
    schema = ends.first.schema
    cells = [
        [list(_cells(part.column(place))) for part in (ends.first, ends.last)] for place in range(len(schema.names))
    ]
    names = [printable(name) for name in schema.names]
    cut, width = _columns_that_fit(names, cells)
    table = RichTable()
    for field, name in zip(list(schema)[:cut], names, strict=False):
        justify: Any = "right" if t.is_integer(field.type) or t.is_floating(field.type) else "left"
        table.add_column(Text(name), justify=justify, no_wrap=True, overflow="ellipsis", max_width=width)
    left_out = len(names) - cut
    if left_out:
        table.add_column(Text("…"))
    more = [Text("…")] if left_out else []
    for row in range(len(ends.first)):
        table.add_row(*(_display(column[0][row]) for column in cells[:cut]), *more)
    if len(ends.last):
        table.add_row(*(Text("…", style="dim") for _ in range(cut)), *more)
    for row in range(len(ends.last)):
        table.add_row(*(_display(column[1][row]) for column in cells[:cut]), *more)
    console.print(table)
    told = f"{ends.rows:,} row{'' if ends.rows == 1 else 's'}"
    if len(ends.last):
        told += f": the first and the last {SHOWN_ROWS} (--output FILE writes all, --format csv prints all)"
    if left_out:
        told += f"; {left_out:,} columns do not fit here"
    console.print(told, highlight=False, markup=False, soft_wrap=True)


def _columns_that_fit(names: list[str], cells: list[list[list[str | None]]]) -> tuple[int, int]:
    """The number of columns that fit into the terminal, and the width of a cell."""
    longest = [
        max([len(name), *(len(cell or "NULL") for part in parts for cell in part)])
        for name, parts in zip(names, cells, strict=True)
    ]
    for width in _CELL_WIDTHS:
        taken = [min(one, width) + _BORDERS for one in longest]
        if sum(taken) < console.width:
            return len(names), width
    room, fit = console.width - _BORDERS - 2, 0
    while fit < len(taken) and (room := room - taken[fit]) > 0:
        fit += 1
    return max(1, fit), width


def _cells(column: pa.ChunkedArray) -> Iterator[str | None]:
    """Values as short text on one line, None for NULL."""
    for value in column:
        yield None if not value.is_valid else printable(cell_text(value))[: _CELL_WIDTHS[0] + 1]


def cell_text(value: pa.Scalar) -> str:
    """A value that is not NULL, as text."""
    try:
        return str(value.as_py())
    except (ValueError, OverflowError):  # a time outside Python's range
        return " ".join(pa.array([value]).to_string().split())


def _display(cell: str | None) -> Text:
    return Text("NULL", style="dim") if cell is None else Text(cell)

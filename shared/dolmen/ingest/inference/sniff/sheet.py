"""Finds which sheet of a workbook is meant, where its table begins, what its columns are, and which texts are NULL.

- **The sheet** is the first visible one with two columns and two rows, or else the first with a value. If others have
  values, too, the dialect names it, and a loss names the others.
- **The table** begins with the first row that has a value, unless a wider row below names the columns: the rows above
  are titles. Names are weighed against values as in CSV (``header_evidence``).
- **NULL**: texts such as ``n/a``, and errors such as ``#N/A``, in a column that has a type without them, if no column
  of text has them as values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.units import count_text
from dolmen.errors import short_repr
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.sheets.sheet_cells import (
    BOOL,
    DATE,
    DATETIME,
    DURATION,
    EMPTY,
    ERROR,
    NUMBER,
    TEXT,
    TIME,
    CellColumn,
    SheetRemarks,
    Workbook,
)
from dolmen.ingest.formats.sheets.sheet_reader import (
    Sheet,
    SheetShape,
    observe_columns,
    open_workbook,
    rows_after,
    sheets_with_rows,
)
from dolmen.ingest.formats.source_file import SourceFile
from dolmen.ingest.inference.candidate import Candidate
from dolmen.ingest.inference.column_evidence import NULL_TEXTS
from dolmen.ingest.inference.header_evidence import TYPED, ColumnKind, HeaderEvidence, find_header, kind_of_cell
from dolmen.ingest.inference.sniff.delimited import note_numbered_names, note_odd_rows
from dolmen.ingest.inference.value_decision import Values

_ROWS, _COLUMNS = 200, 200
_MOST_TITLES = 50
_KINDS = {NUMBER: "numbers", BOOL: "Booleans", DATE: "dates", DATETIME: "timestamps", TIME: "times of day"}
_KINDS |= {TEXT: "texts", ERROR: "errors", DURATION: "durations"}
_NULLS = pa.array(NULL_TEXTS)


class _Head(Struct, frozen=True):
    """The first rows of a sheet: their numbers, and their texts by columns; and whether they are all."""

    numbers: list[int]
    rows: list[dict[int, str]]
    is_all: bool

    @classmethod
    def of(cls, book: Workbook, sheet: str, skipped: int) -> _Head:
        numbers, rows = list[int](), list[dict[int, str]]()
        for block in rows_after(book.blocks(sheet, SheetRemarks()), skipped):
            if len(rows) == _ROWS:
                return cls(numbers, rows, False)
            first = block.slice(0, _ROWS - len(rows))
            columns = {number: first.columns[number].as_text().to_pylist() for number in sorted(first.columns)}
            for index, row in enumerate(first.rows.tolist()):
                cells = {number: texts[index] for number, texts in columns.items() if (texts[index] or "").strip()}
                numbers.append(row)
                rows.append(cells)
            if len(first.rows) < len(block.rows):
                return cls(numbers, rows, False)
        return cls(numbers, rows, True)

    def table(self, start: int) -> list[list[str]]:
        """The cells from a row on, in the columns that have any."""
        columns = sorted({number for row in self.rows[start:] for number in row})[:_COLUMNS]
        return [[row.get(number, "") for number in columns] for row in self.rows[start:]]


def sniff_sheet(source: SourceFile, known: Mapping[str, Any]) -> list[Candidate]:
    """The ways in which a workbook may be meant, the best first. Raises InputError for another file, and for damage."""
    known_dialect = Dialect(**known)
    with open_workbook(source) as book:
        names = [known_dialect.sheet] if known_dialect.sheet is not None else sheets_with_rows(book)
        if not names or names[0] not in (sheet.name for sheet in book.sheets):
            return [Candidate("excel", known_dialect)]  # the reader says what is wrong
        heads = {name: _Head.of(book, name, known_dialect.skip_lines) for name in names}
    tables = [name for name, head in heads.items() if len(head.rows) > 1 and len(head.table(0)[0]) > 1]
    name = (tables or names)[0]
    head = heads[name]
    found: dict[str, Any] = {"sheet": name if len(names) > 1 else None}
    if not head.rows:
        return [Candidate("excel", known_dialect)]
    notes = list[str]()
    start = 0 if {"skip_lines", "header"} & known.keys() else _find_start(head)
    if start:
        found["skip_lines"] = skipped = head.numbers[start] - 1
        rows = "row is" if skipped == 1 else f"{skipped:,} rows are"
        notes.append(f"the first {rows} skipped: the table begins on row {skipped + 1:,}")
    table = head.table(start)
    notes += note_odd_rows(table, head.is_all)
    headers = HeaderEvidence(known_dialect.header, "proven") if "header" in known else find_header(table[0], table[1:])
    candidates = []
    for header, note in headers.choices(f"row {head.numbers[start]:,}"):
        own = notes if note is None else [*notes, note]
        names_rule = {}
        if header and (numbered := note_numbered_names(table[0])):
            names_rule, own = {"names": "number"}, [*own, numbered]
        dialect = Dialect(**(found | {"header": header} | names_rule | dict(known)))
        candidates.append(Candidate("excel", dialect, tuple(own)))
    return candidates


def _find_start(head: _Head) -> int:
    """The index of the first row of the table: above it are titles only."""
    below, alone = Counter(number for row in head.rows for number in row), 0
    while alone < len(head.rows) - 1 and all(below[number] == 1 for number in head.rows[alone]):
        below.subtract(head.rows[alone].keys())  # no other row has a value in its columns
        alone += 1
    filled = [len(row) for row in head.rows]
    wider = [at for at in range(1, min(len(filled), _MOST_TITLES)) if filled[at] > max(filled[:at])]
    for start in reversed(wider):
        names, *rows = head.table(start)
        evidence = find_header(names, rows)
        is_apart = head.numbers[start] > head.numbers[start - 1] + 1
        is_title = max(filled[:start]) == 1
        if evidence.header and (
            (evidence.certainty == "proven" and (is_apart or not _are_rows(head, start)))
            or (is_title and all(names))
            or (is_apart and 2 * max(filled[:start]) <= filled[start])
        ):
            return start
    if wider and filled[0] == 1 and head.numbers[1] > head.numbers[0] + 1:
        return wider[0]
    return alone if alone < len(head.rows) - 1 else 0


def _are_rows(head: _Head, start: int) -> bool:
    """Whether rows above a row have values of the kinds that the columns have below it."""
    columns = {number for row in head.rows[start:] for number in row}
    kinds = {number: ColumnKind.of([row.get(number, "") for row in head.rows[start + 1 :]]).kind for number in columns}
    typed = {number: kind for number, kind in kinds.items() if kind in TYPED}
    above = [row for row in head.rows[:start] if row.keys() & typed.keys()]
    return any(all(kind_of_cell(row[at]) == typed[at] for at in row.keys() & typed.keys()) for row in above)


class _ColumnEvidence(SheetShape):
    """The kinds of a column's cells without those that may be NULL, whose texts are ``nulls``."""

    nulls: set[str] = field(default_factory=set)
    errors: set[str] = field(default_factory=set)
    takes_nulls: bool = True

    def add(self, cells: CellColumn) -> None:
        is_error = cells.kinds == ERROR
        is_null = is_error | ((cells.kinds == TEXT) & pc.is_in(cells.texts, _NULLS).to_numpy(zero_copy_only=False))
        if self.takes_nulls and is_null.any():
            self.errors |= set(cells.texts.filter(pa.array(is_error)).to_pylist())
            self.nulls |= set(pc.unique(cells.texts.filter(pa.array(is_null))).to_pylist())
            cells = replace(cells, kinds=np.where(is_null, EMPTY, cells.kinds).astype(np.uint8))
        super().add(cells)

    @property
    def is_typed(self) -> bool:
        return bool(self.kinds) and not pa.types.is_string(self.arrow_type)


def infer_sheet(source: SourceFile, known: Mapping[str, Any], *, skip_bad_rows: bool) -> Values:
    """The dialect with the texts that are NULL, the columns, notes, and losses. Raises as ``formats.infer`` does."""
    dialect = source.options.dialect
    make: Callable[[], _ColumnEvidence] = partial(_ColumnEvidence, takes_nulls="nulls" not in known)
    sheet, columns = observe_columns(source, make, skip_bad_rows=skip_bad_rows)
    values = {text for each in columns.values() if not each.is_typed for text in each.nulls - each.errors}
    schema, notes, nulls = list[tuple[str, pa.DataType]](), list[str](), set[str]()
    for name, each in columns.items():
        shared = each.nulls & values
        is_typed = each.is_typed and not shared
        if is_typed:
            nulls |= each.nulls
        schema.append((name, each.arrow_type if is_typed else pa.string()))
        if each.is_typed and shared:
            notes.append(
                f"column {short_repr(name)} stays text: it would be {each.arrow_type} with {_words(shared)} as NULL, "
                "but another column has that as a value"
            )
        elif not is_typed and len(each.kinds) > 1:
            kinds = [_KINDS[kind] for kind in sorted(each.kinds)]
            notes.append(f"column {short_repr(name)} is text: it has {', '.join(kinds[:-1])} and {kinds[-1]}")
        elif each.kinds == {DURATION}:
            notes.append(f"column {short_repr(name)} is text: it has durations")
    dialect = replace(dialect, nulls=(*dialect.nulls, *sorted(nulls - set(dialect.nulls))))
    empty = [name for name, each in columns.items() if not each.kinds and not each.nulls]
    losses = [f"column {short_repr(name)} has no values: it is text" for name in empty]
    with open_workbook(source) as book:
        others = [other for other in book.sheets if other.name != sheet.name and book.has_rows(other.name)]
    return Values(dialect, pa.schema(schema), tuple(notes), (*losses, *_losses(sheet, others)))


def _losses(sheet: Sheet, others: Sequence[Any]) -> Iterator[str]:
    """Lists the content of a workbook that its rows do not hold."""
    remarks = sheet.remarks
    for sign in sorted(set(remarks.signs.values())):
        names = [name for number, name in sheet.names.items() if remarks.signs.get(number) == sign]
        if names:
            as_what = "a fraction: 12 % is 0.12" if sign == "%" else "the number alone"
            yield f"{_words(names)}: shown with {sign}, read as {as_what}"
    if remarks.formulas:
        yield f"{count_text(remarks.formulas, 'formula')}: the values saved with them are read"
    if merged := sum(row >= (sheet.header_row or 1) for row in remarks.merged):
        yield f"{count_text(merged, 'group')} of merged cells: each has its value in its first cell alone"
    if remarks.comments:
        yield f"{count_text(remarks.comments, 'comment')} on cells: not read"
    if others:
        names = [short_repr(each.name) + ("" if each.is_visible else " (hidden)") for each in others[:20]]
        yield f"not read: {count_text(len(others), 'other sheet')} with values: {', '.join(names)}"


def _words(texts: Sequence[str] | set[str]) -> str:
    return ", ".join(short_repr(text) for text in (sorted(texts) if isinstance(texts, set) else texts))

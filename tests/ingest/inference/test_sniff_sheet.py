"""Workbooks as people have them: titles, gaps, several sheets, formats, errors; the line says what rows do not hold."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable
from typing import Any

import openpyxl
import pytest
import xlsxwriter
from odf.office import Annotation
from odf.opendocument import OpenDocumentSpreadsheet
from odf.table import CoveredTableCell, Table, TableCell, TableRow
from odf.text import P
from openpyxl.comments import Comment

import dolmen
from dolmen.errors import InputError
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, read
from dolmen.ingest.inference.inference import Inference

DAY = dt.date(2024, 5, 6)
NAMES = ["id", "name", "price"]
ROWS = [[1, "a", 1.5], [2, "b", 2.5], [3, "c", 0.5]]


def book_of(
    rows: list[list[Any]], *more: tuple[str, list[list[Any]]], edit: Callable[[Any], None] | None = None
) -> bytes:
    book, sink = openpyxl.Workbook(), io.BytesIO()
    book.active.title = "Data"
    for title, cells in [("Data", rows), *more]:
        page = book[title] if title in book.sheetnames else book.create_sheet(title)
        for row in cells:
            page.append(row)
    if edit is not None:
        edit(book)
    book.save(sink)
    return sink.getvalue()


def infer(data: bytes, name: str = "a.xlsx", **given: Any) -> Inference:
    file = io.BytesIO(data)
    file.name = name
    return dolmen.infer(file, **given)


def rows_of(data: bytes, found: Inference, name: str = "a.xlsx") -> list[list[Any]]:
    source = SourceFile(lambda: io.BytesIO(data), found.file_format, name, ReadOptions(dialect=found.dialect))
    return [list(row.values()) for row in read(source, found.schema).read_all().to_pylist()]


@pytest.mark.parametrize(
    ("above", "skipped"),
    [
        ([], 0),
        ([[], []], 0),
        ([["Sales of January"], []], 2),
        ([["Sales of January"], [], []], 3),
        ([["Sales of January"]], 1),
        ([["Shop", "Bern"], ["Made by", "Ada"], []], 3),
        ([["Shop", "Bern"], ["Made by", "Ada"]], 2),
    ],
)
@pytest.mark.parametrize("left", [0, 2])
def test_the_table_begins_below_titles_and_empty_rows(above: list[list[Any]], skipped: int, left: int) -> None:
    data = book_of([*above, *([None] * left + row for row in [NAMES, *ROWS])])
    found = infer(data)
    assert found.schema.names == NAMES
    assert [str(type) for type in found.schema.types] == ["int64", "string", "double"]
    assert found.dialect.skip_lines == skipped
    assert ("skipped" in found.summary) == bool(skipped)
    assert rows_of(data, found) == ROWS


def test_rows_above_a_wider_row_are_no_titles_if_they_look_like_rows() -> None:
    data = book_of([["id", "name"], [1, "a"], [2, "b"], ["n/a", "c", "late"], [4, "d", "x"]])
    found = infer(data)
    assert not found.dialect.skip_lines
    assert found.schema.names == ["id", "name", "column_3"]
    assert len(rows_of(data, found)) == 4


def test_a_sheet_without_a_header_keeps_its_first_row() -> None:
    data = book_of([[None, *row] for row in ROWS])
    found = infer(data)
    assert found.schema.names == ["column_2", "column_3", "column_4"]
    assert rows_of(data, found) == ROWS
    texts = book_of([["Ada", "Bern"], ["Linus", "Oslo"]])
    assert "is assumed to be the header" in infer(texts).summary
    assert rows_of(texts, infer(texts, header=False)) == [["Ada", "Bern"], ["Linus", "Oslo"]]


def test_columns_without_a_name_are_numbered_even_beyond_the_rows_that_are_looked_at() -> None:
    rows: list[list[Any]] = [["id"], *([number] for number in range(300)), [300, "late"]]
    found = infer(book_of(rows))
    assert found.schema.names == ["id", "column_2"]
    assert "one has a value on row 302" in found.summary
    twice = infer(book_of([["id", "Id", None, "x"], [1, 2, 3, 4], [2, 3, 4, 5]]))
    assert twice.schema.names == ["id", "Id_2", "column_3", "x"]
    assert twice.properties == {"ingest_names": "number"}


def test_one_sheet_is_read_and_the_others_are_named() -> None:
    def hide(book: Any) -> None:
        book["Old"].sheet_state = "hidden"

    table = [NAMES, *ROWS]
    found = infer(book_of([["Read me first"]], ("Table", table), ("Old", table), ("Empty", []), edit=hide))
    assert found.properties == {"ingest_sheet": "Table"}
    assert found.losses == ("not read: 2 other sheets with values: 'Data', 'Old' (hidden)",)
    alone = infer(book_of(table, ("Empty", [])))
    assert alone.is_plain
    hidden = infer(book_of([], ("Old", table), edit=hide))
    assert hidden.schema.names == NAMES


def test_texts_and_errors_are_null_if_the_column_has_a_type_without_them() -> None:
    rows: list[list[Any]] = [["id", "share", "day"], [1, 0.5, DAY], ["n/a", "#N/A", DAY], [3, "#DIV/0!", "-"]]
    data = book_of(rows)
    found = infer(data)
    assert found.dialect.nulls == ("", "#DIV/0!", "#N/A", "-", "n/a")
    assert [str(type) for type in found.schema.types] == ["int64", "double", "date32[day]"]
    assert rows_of(data, found) == [[1, 0.5, DAY], [None, None, DAY], [3, None, None]]
    assert "NULL is" in found.summary
    contradicted = infer(book_of([["id", "mark"], [1, "x"], ["-", "-"], [3, "y"]]))
    assert [str(type) for type in contradicted.schema.types] == ["string", "string"]
    assert "'id' stays text: it would be int64 with '-' as NULL" in contradicted.summary
    assert infer(data, nulls=["", "n/a"]).schema.field("id").type == "int64"


def test_a_column_of_several_kinds_is_text_and_the_line_says_so() -> None:
    found = infer(book_of([["v", "w"], [1, True], ["about 2", 3], [DAY, False]]))
    assert [str(type) for type in found.schema.types] == ["string", "string"]
    assert "column 'v' is text: it has numbers, texts and dates" in found.notes
    assert "column 'w' is text: it has numbers and Booleans" in found.notes


def test_what_is_not_in_the_rows_is_a_loss() -> None:
    def edit(book: Any) -> None:
        page = book["Data"]
        page["A3"].comment = Comment("counted twice", "Ada")
        page["B3"].number_format, page["C3"].number_format, page["D3"].number_format = (
            "0%",
            "#,##0.00 [$€-407]",
            "$0.00",
        )
        page["B4"].number_format = "0%"
        page.merge_cells("A4:A5")
        page.merge_cells("A1:D1")

    rows: list[list[Any]] = [["Report"], ["a", "b", "c", "d"], [1, 0.12, 2.5, 3], [2, 0.5, 3.5, 4], [None, 1, 1.5, 5]]
    found = infer(book_of(rows, edit=edit))
    assert found.losses == (
        "'d': shown with $, read as the number alone",
        "'b': shown with %, read as a fraction: 12 % is 0.12",
        "'c': shown with €, read as the number alone",
        "1 group of merged cells: each has its value in its first cell alone",
        "1 comment on cells: not read",
    )
    sink = io.BytesIO()
    book = xlsxwriter.Workbook(sink, {"in_memory": True})
    page = book.add_worksheet("Data")
    page.write_row(0, 0, ["a", "b"])
    page.write_row(1, 0, [1, 2])
    page.write_formula(2, 0, "=A2+1", None, 2)
    page.write_formula(2, 1, "=B2+1", None, 3)
    book.close()
    assert infer(sink.getvalue()).losses == ("2 formulas: the values saved with them are read",)


def test_losses_of_opendocument() -> None:
    def cell(**attributes: Any) -> TableCell:
        return TableCell(**attributes)

    book, page = OpenDocumentSpreadsheet(), Table(name="Data")
    summed = cell(valuetype="float", value="3", formula="of:=1+2")
    for cells in (
        [cell(valuetype="string", stringvalue=name) for name in ("a", "b", "c")],
        [cell(valuetype="percentage", value="0.12"), cell(valuetype="currency", value="2.5", currency="EUR"), cell()],
        [cell(valuetype="float", value="1", numbercolumnsspanned=2), CoveredTableCell(), summed],
    ):  # fmt: skip
        row = TableRow()
        for each in cells:
            row.addElement(each)
        page.addElement(row)
    note = Annotation()
    note.addElement(P(text="counted"))
    cells[0].addElement(note)
    book.spreadsheet.addElement(page)
    sink = io.BytesIO()
    book.write(sink)
    assert infer(sink.getvalue(), "a.ods").losses == (
        "'a': shown with %, read as a fraction: 12 % is 0.12",
        "'b': shown with EUR, read as the number alone",
        "1 formula: the values saved with them are read",
        "1 group of merged cells: each has its value in its first cell alone",
        "1 comment on cells: not read",
    )


@pytest.mark.parametrize("name", ["a.xlsm", "a.xltx", "a.dat"])
def test_a_workbook_of_another_name_is_one(name: str) -> None:
    data = book_of([NAMES, *ROWS])
    found = infer(data, name)
    assert rows_of(data, found, name) == ROWS
    assert found.properties == ({"ingest_format": "excel"} if name == "a.dat" else {})


@pytest.mark.parametrize(
    ("start", "name", "message"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a.xls", r"Excel 97-2003 \(.xls\): save it as .xlsx"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a.xlsx", r"Excel 97-2003 \(.xls\): save it as .xlsx"),
    ],
)
def test_old_workbooks_are_refused_with_what_helps(start: bytes, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        infer(start + bytes(4000), name)

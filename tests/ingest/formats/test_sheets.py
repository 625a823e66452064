"""Workbooks of Excel and LibreOffice, as XlsxWriter, openpyxl, pandas, Polars and odfpy write them."""

from __future__ import annotations

import datetime as dt
import io
import os
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xlsxwriter
from odf.opendocument import OpenDocumentSpreadsheet
from odf.table import Table, TableCell, TableRow
from odf.text import P

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.formats import BadRow, ReadOptions, SourceFile, detect, infer, read, survey
from dolmen.ingest.formats.sheets import xlsx_cells
from dolmen.ingest.formats.sheets.xlsx import shown_as

DAY = dt.date(2024, 2, 29)
MOMENT = dt.datetime(2024, 2, 29, 13, 45, 1, 123000)


def source(data: bytes, name: str = "t.xlsx", **options: Any) -> SourceFile:
    dialect = Dialect(**{key: options.pop(key) for key in list(options) if key in Dialect.__struct_fields__})
    return SourceFile(lambda: io.BytesIO(data), detect(name), name, ReadOptions(dialect=dialect, **options))


def rows_of(data: bytes, schema: pa.Schema | None = None, name: str = "t.xlsx", **options: Any) -> list[dict[str, Any]]:
    table = read(source(data, name, **options), schema).read_all()
    table.validate(full=True)
    return table.to_pylist()


def workbook(fill: Callable[[Any, Any], None], **options: Any) -> bytes:
    """A workbook of XlsxWriter with one sheet, which ``fill`` writes."""
    sink = io.BytesIO()
    book = xlsxwriter.Workbook(sink, {"in_memory": True, **options})
    fill(book, book.add_worksheet("Data"))
    book.close()
    return sink.getvalue()


def sheet(*rows: list[Any], **options: Any) -> bytes:
    """A workbook with these rows; dates and times have their formats."""

    def fill(book: Any, page: Any) -> None:
        formats = {
            dt.date: book.add_format({"num_format": "yyyy-mm-dd"}),
            dt.datetime: book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss.000"}),
            dt.time: book.add_format({"num_format": "hh:mm:ss"}),
            dt.timedelta: book.add_format({"num_format": "[h]:mm:ss"}),
        }
        for row, cells in enumerate(rows):
            for column, value in enumerate(cells):
                if type(value) in formats:
                    page.write_datetime(row, column, value, formats[type(value)])
                elif isinstance(value, str):
                    page.write_string(row, column, value)
                elif value is not None:
                    page.write(row, column, value)

    return workbook(fill, **options)


NAMES = ["id", "price", "name", "paid", "day", "at", "time"]
ROWS = [
    [1, 1.5, "007", True, DAY, MOMENT, dt.time(13, 45)],
    [None] * 7,
    [2, 12, "x & <y>\n", False, dt.date(1900, 2, 28), dt.datetime(9999, 12, 31, 23, 59, 59), dt.time(0, 0, 1)],
    [3, None, None, None, None, None, None],
]
TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.float64()),
        ("name", pa.string()),
        ("paid", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("time", pa.time64("us")),
    ]
)


@pytest.mark.parametrize("date_1904", [False, True])
@pytest.mark.parametrize("slowly", [False, True])
def test_cells_become_the_types_that_they_are(date_1904: bool, slowly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if slowly:
        monkeypatch.setattr(xlsx_cells, "_match_cells", lambda *_: None)
    rows = [dict(zip(NAMES, row, strict=True)) for row in ROWS if row[0] is not None]
    if date_1904:
        rows[1]["day"] = dt.date(1904, 1, 2)
    data = sheet(NAMES, *([row[name] for name in NAMES] for row in rows), default_date_format="", date_1904=date_1904)
    assert infer(source(data)) == TYPES
    assert rows_of(data) == rows


def test_rows_without_a_value_are_skipped_and_errors_name_rows_of_the_sheet() -> None:
    data = sheet(["id", "n"], [1, 1], [None, None], [None, None], [2, 2.5])
    assert rows_of(data) == [{"id": 1, "n": 1.0}, {"id": 2, "n": 2.5}]
    with pytest.raises(RowError, match="B5 of sheet 'Data'") as error:
        rows_of(data, pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    assert (error.value.line, error.value.row, error.value.column) == (5, 2, "n")


def test_declared_columns_take_what_cells_hold_without_loss() -> None:
    data = sheet(["a"], [12], [2.5], ["3.25"])
    assert [row["a"] for row in rows_of(data, pa.schema([("a", pa.decimal128(5, 2))]))] == [12, Decimal("2.50"), 3.25]
    assert [row["a"] for row in rows_of(data, pa.schema([("a", pa.string())]))] == ["12", "2.5", "3.25"]
    assert [row["a"] for row in rows_of(data, pa.schema([("a", pa.float32())]))] == [12, 2.5, 3.25]
    tenths = sheet(["a"], [0.1 + 0.2])
    assert rows_of(tenths, pa.schema([("a", pa.decimal128(5, 2))])) == [{"a": Decimal("0.30")}]
    for kind in (pa.int64(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.list_(pa.int64())):
        with pytest.raises(RowError):
            rows_of(data, pa.schema([("a", kind)]))


def test_a_number_is_no_date_and_a_date_no_number() -> None:
    days = sheet(["a"], [DAY])
    assert rows_of(days, pa.schema([("a", pa.timestamp("us"))])) == [{"a": dt.datetime(2024, 2, 29)}]
    assert rows_of(days, pa.schema([("a", pa.string())])) == [{"a": "2024-02-29"}]
    with pytest.raises(RowError, match="'2024-02-29'"):
        rows_of(days, pa.schema([("a", pa.int64())]))
    with pytest.raises(RowError, match="UTC offset"):
        rows_of(days, pa.schema([("a", pa.timestamp("us", "UTC"))]))
    with pytest.raises(RowError, match="'45351'"):
        rows_of(sheet(["a"], [45351]), pa.schema([("a", pa.date32())]))
    with pytest.raises(RowError, match="2024-02-29 13:45"):
        rows_of(sheet(["a"], [MOMENT]), pa.schema([("a", pa.date32())]))


def test_a_pattern_for_text_does_not_turn_dates_around() -> None:
    data = sheet(["a"], [dt.date(2024, 2, 3)], ["2024-02-03"])
    swapped = rows_of(data, pa.schema([("a", pa.date32())]), timestamp_formats=("%Y-%d-%m",))
    assert swapped == [{"a": dt.date(2024, 2, 3)}, {"a": dt.date(2024, 3, 2)}]


def test_numbers_are_times_only_by_a_unit_that_the_table_sets() -> None:
    schema = pa.schema([("a", pa.timestamp("us", "UTC"))])
    data = sheet(["a"], [1_700_000_000_123])
    found = rows_of(data, schema, timestamp_formats=("epoch_ms",))
    assert found == [{"a": dt.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=dt.UTC)}]


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        ([1, "x"], ["1", "x"]),
        ([1.5, True], ["1.5", "true"]),
        ([DAY, 2], ["2024-02-29", "2"]),
        (["007", "12"], ["007", "12"]),
        (["2024-01-01"], ["2024-01-01"]),
        ([1, "12"], ["1", "12"]),
        ([dt.timedelta(hours=30, minutes=5), dt.timedelta(hours=1)], ["30:05:00", "01:00:00"]),
        ([12345678901234570, "x"], ["12345678901234570", "x"]),
        ([MOMENT, "later"], ["2024-02-29 13:45:01.123", "later"]),
    ],
)
def test_text_stays_text_and_a_column_with_one_text_is_text(cells: list[Any], texts: list[str]) -> None:
    data = sheet(["a"], *([cell] for cell in cells))
    assert infer(source(data)).field("a").type == pa.string()
    assert [row["a"] for row in rows_of(data)] == texts


def test_numbers_too_large_to_count_with_are_doubles() -> None:
    assert infer(source(sheet(["a"], [2**53]))).field("a").type == pa.int64()
    assert infer(source(sheet(["a"], [2**60]))).field("a").type == pa.float64()


def test_numbers_in_a_format_of_dates_that_are_none_stay_numbers() -> None:
    def fill(book: Any, page: Any) -> None:
        shown = book.add_format({"num_format": "yyyy-mm-dd"})
        page.write(0, 0, "a")
        for row, number in enumerate([-5, 0, 60, 3e6], 1):
            page.write_number(row, 0, number, shown)

    assert [row["a"] for row in rows_of(workbook(fill))] == [-5, 0, 60, 3_000_000]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("General", "number"),
        ("0.00%", "number"),
        ('#,##0.00 "days"', "number"),
        ("[Red]0.0;[Blue]-0.0", "number"),
        ("0.00E+00", "number"),
        ("yyyy-mm-dd", "date"),
        ("[$-409]d\\-mmm\\-yy;@", "date"),
        ("mmm", "date"),
        ("dd/mm/yyyy hh:mm AM/PM", "datetime"),
        ("hh:mm:ss", "time"),
        ("mm:ss.0", "time"),
        ("[h]:mm:ss", "duration"),
        ("[mm]:ss", "duration"),
    ],
)
def test_a_format_says_what_a_number_is(code: str, shown: str) -> None:
    assert shown_as(code) == shown


def test_errors_are_text_that_a_table_may_take_as_null() -> None:
    def fill(_: Any, page: Any) -> None:
        page.write_row(0, 0, ["a", "b"])
        page.write_formula(1, 0, "=NA()", None, "#N/A")
        page.write_formula(2, 0, "=1+1", None, 2)
        page.write_formula(2, 1, '="a"&"b"', None, "ab")

    data = workbook(fill)
    assert rows_of(data) == [{"a": "#N/A", "b": None}, {"a": "2", "b": "ab"}]
    with pytest.raises(RowError, match=r"A2 .*#N/A"):
        rows_of(data, pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert rows_of(data, nulls=("", "#N/A")) == [{"a": None, "b": None}, {"a": 2, "b": "ab"}]


def test_a_formula_without_a_saved_value_is_refused_not_null() -> None:
    book = openpyxl.Workbook()
    book.active.append(["a", "b"])
    book.active.append([1, "=A2+1"])
    sink = io.BytesIO()
    book.save(sink)
    with pytest.raises(RowError, match=r"B2 .*never saved"):
        infer(source(sink.getvalue()))
    bad: list[BadRow] = []
    reader = read(
        source(sink.getvalue()), pa.schema([("a", pa.int64()), ("b", pa.int64())]), on_bad_row=bad.append
    ).read_all()
    assert reader.num_rows == 0
    assert [(row.line, row.row, row.column) for row in bad] == [(2, 1, "b")]


def test_bad_rows_go_alone_and_keep_their_values() -> None:
    data = sheet(["id", "n", "day"], [1, 1, DAY], [2, "many", DAY], [None, None, None], [3, 3, None, "stray"], [4, 4])
    bad: list[BadRow] = []
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("day", pa.date32())])
    found = read(source(data), schema, on_bad_row=bad.append).read_all()
    assert found["id"].to_pylist() == [1, 4]
    assert [(row.line, row.row, row.column) for row in bad] == [(3, 2, "n"), (5, 3, None)]
    assert bad[0].text == b'{"id": "2", "n": "many", "day": "2024-02-29"}'
    assert "D5" in bad[1].reason


def two_sheets(*, hide: bool) -> bytes:
    def fill(book: Any, page: Any) -> None:
        page.write_column(0, 0, ["a", 1])
        other = book.add_worksheet("Other one")
        other.write_column(0, 0, ["b", 2])
        book.add_worksheet("Empty")
        if hide:
            other.hide()

    return workbook(fill)


def test_the_sheet_is_the_only_visible_one_with_rows_or_is_named() -> None:
    assert rows_of(two_sheets(hide=True)) == [{"a": 1}]
    assert rows_of(two_sheets(hide=True), sheet="Other one") == [{"b": 2}]
    assert rows_of(two_sheets(hide=False), sheet="Data") == [{"a": 1}]
    with pytest.raises(InputError, match=r"'Data', 'Other one'.*ingest_sheet"):
        rows_of(two_sheets(hide=False))
    with pytest.raises(InputError, match="no sheet 'data'; there are: 'Data', 'Other one', 'Empty'"):
        rows_of(two_sheets(hide=False), sheet="data")
    with pytest.raises(InputError, match="'Empty' is empty"):
        rows_of(two_sheets(hide=False), sheet="Empty")


def test_rows_before_the_header_are_skipped_as_the_table_says() -> None:
    data = sheet(["Report of 2024"], [], ["a", "b"], [1, 2])
    assert rows_of(data, skip_lines=2) == [{"a": 1, "b": 2}]
    with pytest.raises(RowError, match="B3"):
        rows_of(data)
    assert rows_of(data, skip_lines=2, header=False)[1] == {"column_1": "1", "column_2": "2"}
    assert rows_of(data, pa.schema([("x", pa.int8()), ("y", pa.int8())]), skip_lines=3, header=False) == [
        {"x": 1, "y": 2}
    ]


def test_a_table_may_begin_anywhere_and_have_gaps() -> None:
    data = sheet([], [None, "a", None, "b"], [None, 1, None, 2], [None, None, None, 3])
    assert rows_of(data) == [{"a": 1, "b": 2}, {"a": None, "b": 3}]


def test_names_are_there_once_or_are_numbered() -> None:
    data = sheet(["a", "A", None, "b"], [1, 2, 3, 4])
    with pytest.raises(SchemaError, match="differ in case"):
        rows_of(data)
    assert rows_of(data, names="number") == [{"a": 1, "A_2": 2, "column_3": 3, "b": 4}]
    columns = pa.schema([(name, pa.int64()) for name in ("column_3", "A_2", "b", "a")])
    assert rows_of(data, columns, names="number") == [{"column_3": 3, "A_2": 2, "b": 4, "a": 1}]
    with pytest.raises(RowError, match=r"B2 .*row 1 has no name"):
        rows_of(sheet(["a", None, "b"], [1, 3, 4]))


def test_other_columns_are_ignored_only_if_the_table_says_so() -> None:
    data = sheet(["id", "x", None], [1, "?", 5])
    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(SchemaError, match="no column 'x'"):
        rows_of(data, schema)
    assert rows_of(data, schema, extra="ignore") == [{"id": 1}]


def test_a_survey_finds_columns_without_a_value() -> None:
    assert survey(source(sheet(["a", "b"], [1, None])), skip_bad_rows=False) == pa.schema(
        [("a", pa.int64()), ("b", pa.null())]
    )


FRAME = {
    "i": [1, 2, 3],
    "f": [0.1, 1e300, -2.5],
    "s": ["a", "b & c", "  <d>"],
    "b": [True, False, True],
    "t": [MOMENT, dt.datetime(1999, 1, 1), dt.datetime(2050, 12, 31, 1)],
}


@pytest.mark.parametrize("engine", ["openpyxl", "xlsxwriter", "odf", "polars"])
def test_files_of_pandas_and_polars_come_back(engine: str, tmp_path: Path) -> None:
    name = "t.ods" if engine == "odf" else "t.xlsx"
    path = tmp_path / name
    if engine == "polars":
        pl.DataFrame(FRAME).write_excel(path)
    else:
        pd.DataFrame(FRAME).to_excel(path, index=False, engine=engine)
    expected = [dict(zip(FRAME, row, strict=True)) for row in zip(*FRAME.values(), strict=True)]
    assert rows_of(path.read_bytes(), name=name) == expected


def document(*rows: list[TableCell | None]) -> bytes:
    book = OpenDocumentSpreadsheet()
    page = Table(name="Data")
    book.spreadsheet.addElement(page)
    for cells in rows:
        row = TableRow()
        page.addElement(row)
        for cell in cells:
            row.addElement(cell or TableCell())
    sink = io.BytesIO()
    book.write(sink)
    return sink.getvalue()


def text_cell(text: str, **options: Any) -> TableCell:
    cell = TableCell(valuetype="string", **options)
    for line in text.split("\n"):
        cell.addElement(P(text=line))
    return cell


def test_cells_of_opendocument_are_what_they_say() -> None:
    head = [text_cell(name) for name in ("n", "s", "b", "d", "at", "t")]
    row = [
        TableCell(valuetype="currency", value="1.5", currency="EUR"),
        text_cell("two\nlines"),
        TableCell(valuetype="boolean", booleanvalue="true"),
        TableCell(valuetype="date", datevalue="2024-02-29"),
        TableCell(valuetype="date", datevalue="2024-02-29T13:45:01.123"),
        TableCell(valuetype="time", timevalue="PT13H45M00S"),
    ]
    found = {"n": 1.5, "s": "two\nlines", "b": True, "d": DAY, "at": MOMENT, "t": dt.time(13, 45)}
    assert rows_of(document(head, row), name="t.ods") == [found]


def test_repeated_cells_and_rows_of_opendocument_count() -> None:
    three = TableCell(valuetype="float", value="7", numbercolumnsrepeated="3")
    data = document([text_cell("a"), text_cell("b"), text_cell("c")], [three, TableCell(numbercolumnsrepeated="16000")])
    assert rows_of(data, name="t.ods") == [{"a": 7, "b": 7, "c": 7}]


def test_random_tables_come_back_from_every_writer() -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    seen, random_ = 0, random.Random(seed)
    makers: list[Callable[[], Any]] = [
        lambda: random_.choice([random_.randint(-9, 9), random_.randint(-(2**50), 2**50)]),
        lambda: random_.choice([random_.random(), random_.uniform(-1e12, 1e12), random_.random() * 1e-9]),
        lambda: "".join(random_.choices("aé0<&> \n\"'_x\U0001f600", k=random_.randint(1, 9))).strip() or "-",
        lambda: random_.random() < 0.5,
        lambda: dt.date(1950, 1, 1) + dt.timedelta(days=random_.randint(0, 50_000)),
        lambda: dt.datetime(1950, 1, 1) + dt.timedelta(milliseconds=random_.randint(0, 10**12)),
    ]
    for number in range(30):
        chosen = random_.choices(makers, k=random_.randint(1, 5))
        names = [f"c{index}" for index in range(len(chosen))]
        rows = [[make() if random_.random() < 0.9 else None for make in chosen] for _ in range(random_.randint(1, 50))]
        rows = [row for row in rows if any(value is not None for value in row)]
        if random_.random() < 0.5:
            data = sheet(names, *rows)
        else:
            book = openpyxl.Workbook()
            for row in [names, *rows]:
                book.active.append(row)
            sink = io.BytesIO()
            book.save(sink)
            data = sink.getvalue()
        for got, row in zip(rows_of(data), rows, strict=True):
            for value, expected in zip(got.values(), row, strict=True):
                same = value == expected or np.isclose(value, expected, rtol=1e-15, atol=0)
                assert same, (seed, number, value, expected)
                seen += 1
    assert seen > 500

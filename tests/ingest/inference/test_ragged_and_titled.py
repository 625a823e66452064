"""Files whose first lines, or some of whose rows, differ from the table: none is read as one column without need."""

from __future__ import annotations

import io
from typing import Any

import pytest

import dolmen
from dolmen.errors import RowError
from dolmen.ingest.inference.inference import Inference


def infer(text: str, name: str = "t.csv", **given: Any) -> Inference:
    source = io.BytesIO(text.encode())
    source.name = name
    return dolmen.infer(source, **given)


def test_rows_that_lack_fields_below_names_are_filled() -> None:
    found = infer("a,b\n1,2\n3\n4,5\n")
    assert found.schema.names == ["a", "b"]
    assert found.properties == {"ingest_ragged": "fill"}


def test_a_row_with_too_many_fields_below_names_is_an_error_of_that_row() -> None:
    with pytest.raises(RowError, match="3 fields where the header has 2") as caught:
        infer("wrong,b\n1,2\n1,2,3\n")
    assert caught.value.line == 3


@pytest.mark.parametrize("text", ["amount\n1,5\n2,5\n13,5\n", "remark\nwell, then\nno\nyes, but, no\n"])
def test_one_name_is_one_column(text: str) -> None:
    assert len(infer(text).schema) == 1


@pytest.mark.parametrize("title", ["Sales in January;;\n", "Sales;;\n;;\n", "Sales;;\nmade by hand;;\n\n"])
def test_titles_with_the_delimiters_of_the_table_are_skipped(title: str) -> None:
    found = infer(f"{title}day;who;amount\n2026-01-31;Ada;1,5\n2026-01-30;Linus;2,5\n")
    assert found.schema.names == ["day", "who", "amount"]
    assert found.dialect.skip_lines == title.count("\n")


def test_a_sparse_first_row_without_names_below_is_a_row() -> None:
    found = infer("x;;\n1;2;3\n4;5;6\n")
    assert found.dialect.skip_lines == 0


def test_a_quoted_text_is_no_null_of_a_typed_column() -> None:
    found = infer('a,b\n1,NA\n2,"NA"\n3,4\n')
    assert found.dialect.nulls == ("",)
    assert str(found.schema.field("b").type) == "string"
    assert infer("a,b\n1,NA\n2,NA\n3,4\n").dialect.nulls == ("", "NA")


def test_the_sheet_that_is_given_is_inferred() -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book, sink = openpyxl.Workbook(), io.BytesIO()
    book.active.title = "one"
    for row in (["a"], [1]), (["b"], ["x"]):
        sheet = book.active if row[0] == ["a"] else book.create_sheet("two")
        for cells in row:
            sheet.append(cells)
    book.save(sink)
    for sheet, names in ("one", ["a"]), ("two", ["b"]):
        source = io.BytesIO(sink.getvalue())
        source.name = "t.xlsx"
        assert dolmen.infer(source, sheet=sheet).schema.names == names
    found = dolmen.infer(source)
    assert found.dialect.sheet == "one"
    assert found.losses == ("not read: 1 other sheet with values: 'two'",)

"""Numbers and Booleans of CSV in another notation are read strictly: what the dialect says, and nothing else."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import RowError
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.formats import BadRow, ReadOptions, SourceFile, detect, infer, read

DOUBLE, INT, EXACT, FLOAT = pa.float64(), pa.int64(), pa.decimal128(20, 4), pa.float32()
NBSP, NARROW = "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}"
COMMA, GERMAN, ENGLISH = Dialect(decimal=","), Dialect(decimal=",", thousands="."), Dialect(thousands=",")
FRENCH, SWISS = Dialect(decimal=",", thousands=NARROW), Dialect(thousands="'")


def _source(cells: list[str], dialect: Dialect, block_bytes: int) -> SourceFile:
    data = "n\tc\n" + "".join(f"1\t{cell}\n" for cell in cells)
    return SourceFile(
        lambda: io.BytesIO(data.encode()), detect("t.tsv"), "t.tsv", ReadOptions(dialect), block_bytes=block_bytes
    )


def _values(cells: list[str], target: pa.DataType, dialect: Dialect) -> list[Any]:
    schema = pa.schema([("n", INT), ("c", target)])
    whole, each = (read(_source(cells, dialect, size), schema).read_all()["c"].to_pylist() for size in (1 << 20, 1))
    assert whole == each
    return each  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("dialect", "cell", "value"),
    [
        (COMMA, "1,5", Decimal("1.5")),
        (COMMA, "-,5", Decimal("-.5")),
        (COMMA, " +7, ", Decimal(7)),
        (COMMA, "1,5e3", Decimal(1500)),
        (COMMA, "15e-1", Decimal("1.5")),
        (GERMAN, "-1.234.567,25", Decimal("-1234567.25")),
        (GERMAN, "1234,5", Decimal("1234.5")),
        (GERMAN, "1.234", Decimal(1234)),
        (GERMAN, "0,123", Decimal("0.123")),
        (ENGLISH, "1,234.5", Decimal("1234.5")),
        (ENGLISH, "12,345,678", Decimal(12345678)),
        (ENGLISH, "1,234.5e1", Decimal(12345)),
        (FRENCH, f"1{NARROW}234,5", Decimal("1234.5")),
        (Dialect(thousands=" "), "1 234", Decimal(1234)),
        (Dialect(thousands=NBSP), f"1{NBSP}234", Decimal(1234)),
        (SWISS, "1'234.5", Decimal("1234.5")),
        (Dialect(thousands="_"), "1_234", Decimal(1234)),
    ],
)
def test_numbers_are_read_exactly_in_the_notation_of_the_dialect(dialect: Dialect, cell: str, value: Decimal) -> None:
    assert _values([cell, "", "1"], EXACT, dialect) == [value, None, 1]
    assert _values([cell, "-inf"], DOUBLE, dialect) == [float(value), float("-inf")]
    assert _values([cell, "2"], FLOAT, dialect) == [pa.scalar(float(value), FLOAT).as_py(), 2]
    if value == int(value):
        assert _values([cell, ""], INT, dialect) == [int(value), None]


@pytest.mark.parametrize(
    ("dialect", "cell"),
    [
        (COMMA, "1.5"),
        (COMMA, "1.234,5"),
        (COMMA, "1,2,3"),
        (GERMAN, "1.5"),
        (GERMAN, "1.2345"),
        (GERMAN, "1234.567"),
        (GERMAN, "0.123"),
        (GERMAN, "1,234.5"),
        (GERMAN, "1..234"),
        (ENGLISH, "1,23"),
        (ENGLISH, ",234"),
        (ENGLISH, "1,234,"),
        (ENGLISH, "1,5"),
        (ENGLISH, "1.5,234"),
        (FRENCH, "1 234"),
        (FRENCH, f"1{NBSP}234"),
        (Dialect(thousands=" "), "1  234"),
        (Dialect(thousands=" "), "- 1"),
        (SWISS, "1'23"),
        (COMMA, "0x1F"),
        (COMMA, "nan(1,5)"),
        (Dialect(), "1,5"),
    ],
)
@pytest.mark.parametrize("target", [DOUBLE, EXACT, INT, FLOAT])
def test_other_marks_are_refused_with_row_and_column(dialect: Dialect, cell: str, target: pa.DataType) -> None:
    for block_bytes in (1 << 20, 1):
        with pytest.raises(RowError) as caught:
            read(_source(["1", cell], dialect, block_bytes), pa.schema([("n", INT), ("c", target)])).read_all()
        assert (caught.value.row, caught.value.line, caught.value.column) == (2, 3, "c")
        assert repr(cell) in str(caught.value)


def test_a_refusal_says_which_marks_are_read() -> None:
    with pytest.raises(RowError, match=r"decimal mark is ',', and '\.' separates groups of three digits"):
        _values(["1.5"], DOUBLE, GERMAN)
    with pytest.raises(RowError, match=r"'1\.234,5' is not a valid int64: it does not fit without loss"):
        _values(["1.234,5"], INT, GERMAN)


def test_bad_rows_keep_their_text() -> None:
    bad: list[BadRow] = []
    schema = pa.schema([("n", INT), ("c", DOUBLE)])
    table = read(_source(["1,5", "1.5", "2,5"], COMMA, 1 << 20), schema, on_bad_row=bad.append).read_all()
    assert table["c"].to_pylist() == [1.5, 2.5]
    assert [(one.row, one.line, one.column, one.text) for one in bad] == [(2, 3, "c", b"1\t1.5")]


def test_booleans_are_read_in_any_case_beside_those_always_known() -> None:
    dialect = Dialect(booleans=(("Ja", "Nein"), ("да", "нет")))
    cells = ["ja", "NEIN", " Ja ", "ДА", "нет", "true", "FALSE", "1", "0", ""]
    assert _values(cells, pa.bool_(), dialect) == [True, False, True, True, False, True, False, True, False, None]
    for other in ("yes", "j", "2"):
        with pytest.raises(RowError, match="not a valid bool"):
            _values(["ja", other], pa.bool_(), dialect)
    assert _values(["Ja", "x"], pa.string(), dialect) == ["Ja", "x"]


@pytest.mark.parametrize(
    ("dialect", "cells", "kind"),
    [
        (COMMA, ["1,5", "2"], DOUBLE),
        (COMMA, ["1.5", "2,5"], pa.string()),
        (GERMAN, ["1.234", "56"], INT),
        (GERMAN, ["1.234", "5678"], pa.string()),
        (GERMAN, ["1,50", "1,5"], pa.string()),
        (ENGLISH, ["9,223,372,036,854,775,808"], pa.uint64()),
        (COMMA, ["007", "1,5"], pa.string()),
        (Dialect(booleans=(("ja", "nein"),)), ["JA", "nein", ""], pa.bool_()),
        (Dialect(timestamp_formats=("%d.%m.%Y", "%d.%m.%Y %H:%M")), ["1.2.2025", "1.2.2025 10:30"], pa.timestamp("us")),
    ],
)
def test_types_are_inferred_in_the_notation_of_the_dialect(
    dialect: Dialect, cells: list[str], kind: pa.DataType
) -> None:
    for block_bytes in (1 << 20, 1):
        assert infer(_source(cells, dialect, block_bytes)).field("c").type == kind

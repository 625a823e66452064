"""What a CSV file means: NULLs, quotes, line ends, and cells of declared types."""

from __future__ import annotations

import csv
import datetime as dt
import io
import os
import random
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.ingest.formats.delimited import csv_reader
from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.text_blocks import PIECE_BYTES

UTC = dt.UTC


def _read(data: bytes, schema: pa.Schema | None = None, *, name: str = "t.csv", block_bytes: int = 1 << 20) -> pa.Table:
    return read(SourceFile(lambda: io.BytesIO(data), detect(name), name, block_bytes=block_bytes), schema).read_all()


def _cells(text: str, target: pa.DataType) -> list[Any]:
    """The values of one-cell rows, as a column of this type."""
    data = "n,c\n" + "".join(f"1,{line}\n" for line in text.split("|"))
    values: list[Any] = _read(data.encode(), pa.schema([("n", pa.int64()), ("c", target)]))["c"].to_pylist()
    return values


def test_an_empty_field_is_null_and_a_quoted_one_the_empty_string() -> None:
    table = _read(b'a,b\n1,\n2,""\n3,x\n', pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert table["b"].to_pylist() == [None, "", "x"]


@pytest.mark.parametrize("sign", [";", "|", "\t"])
def test_a_file_with_another_delimiter_is_refused_by_the_name_of_its_column(sign: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(SchemaError, match=f"no column {re.escape(repr(f'a{sign}b'))}"):
        _read(f"a{sign}b\n1{sign}2\n".encode(), schema)


def test_a_quoted_empty_field_is_null_where_the_type_is_not_string() -> None:
    assert _cells('"1"|""|2|', pa.int64()) == [1, None, 2, None]
    assert _cells('"2024-01-01"|""| ', pa.date32()) == [dt.date(2024, 1, 1), None, None]


def test_words_for_null_are_text() -> None:
    assert _cells("NULL|NA|nan|None", pa.string()) == ["NULL", "NA", "nan", "None"]


def test_a_declared_string_column_keeps_its_text() -> None:
    assert _cells("007| x |1.50|TRUE|0x1F|+49", pa.string()) == ["007", " x ", "1.50", "TRUE", "0x1F", "+49"]


@pytest.mark.parametrize(
    ("text", "target", "values"),
    [
        ("007| 12 |-5|12.0|+3|1e3|-0", pa.int64(), [7, 12, -5, 12, 3, 1000, 0]),
        ("18446744073709551615", pa.uint64(), [2**64 - 1]),
        ("1.5|.5|5.|1e-3|-inf|Infinity| 2", pa.float64(), [1.5, 0.5, 5.0, 0.001, -float("inf"), float("inf"), 2.0]),
        ("0.1", pa.float32(), [0.10000000149011612]),
        ("true|FALSE|True|1|0|tRUE", pa.bool_(), [True, False, True, True, False, True]),
        ("1.2|1.20|1.2000|-0.01|1e2|+7", pa.decimal128(5, 2), [*[Decimal("1.20")] * 3, Decimal("-0.01"), 100, 7]),
        ("2024-02-29|0001-01-01|9999-12-31", pa.date32(), [dt.date(2024, 2, 29), dt.date.min, dt.date.max]),
        (
            "2024-02-29|2024-02-29T13:45|2024-02-29 13:45:10|2024-02-29T13:45:10.123456|2024-02-29T13:45:10.500000000",
            pa.timestamp("us"),
            [
                dt.datetime(2024, 2, 29),
                dt.datetime(2024, 2, 29, 13, 45),
                dt.datetime(2024, 2, 29, 13, 45, 10),
                dt.datetime(2024, 2, 29, 13, 45, 10, 123456),
                dt.datetime(2024, 2, 29, 13, 45, 10, 500000),
            ],
        ),
        (
            "2024-02-29T13:45:10Z|2024-02-29 13:45:10+02|2024-02-29T13:45:10-0130|2024-02-29T13:45:10.5+02:00",
            pa.timestamp("us", "UTC"),
            [
                dt.datetime(2024, 2, 29, 13, 45, 10, tzinfo=UTC),
                dt.datetime(2024, 2, 29, 11, 45, 10, tzinfo=UTC),
                dt.datetime(2024, 2, 29, 15, 15, 10, tzinfo=UTC),
                dt.datetime(2024, 2, 29, 11, 45, 10, 500000, tzinfo=UTC),
            ],
        ),
        ("13:45|13:45:10.5", pa.time64("us"), [dt.time(13, 45), dt.time(13, 45, 10, 500_000)]),
        ("aGVsbG8=|AP8=|YWJj|", pa.binary(), [b"hello", b"\x00\xff", b"abc", None]),
        ("YWI=|", pa.binary(2), [b"ab", None]),
        ('[]|"[1,null]"|', pa.list_(pa.int8()), [[], [1, None], None]),
        ('"{""x"":""2024-01-01""}"', pa.struct([("x", pa.date32())]), [{"x": dt.date(2024, 1, 1)}]),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_text_is_parsed_to_the_declared_type(text: str, target: pa.DataType, values: list[Any]) -> None:
    assert _cells(text, target) == values


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("1_000", pa.int64()), ("1,5", pa.int64()), ("12.5", pa.int64()), ("0x1F", pa.int64()), ("1e30", pa.int64()),
        ("NaN", pa.int64()), ("true", pa.int64()), ("-1", pa.uint8()), ("1e309", pa.float64()), ("1e39", pa.float32()),
        ("0x10", pa.float64()), ("1 2", pa.float64()), ("yes", pa.bool_()), ("t", pa.bool_()), ("2", pa.bool_()),
        ("1.234", pa.decimal128(5, 2)), ("1000", pa.decimal128(5, 2)), ("nan", pa.decimal128(5, 2)),
        ("2024-2-9", pa.date32()), ("2023-02-29", pa.date32()), ("2024-01-01T00:00:00", pa.date32()),
        ("10000-01-01", pa.date32()), ("2024-01-01T24:00:00", pa.timestamp("us")), ("1700000000", pa.timestamp("us")),
        ("2024-01-01T00:00:00Z", pa.timestamp("us")), ("2024-01-01T00:00:00.1234567", pa.timestamp("us")),
        ("2024-01-01T00:00:00", pa.timestamp("us", "UTC")), ("24:00:00", pa.time64("us")), ("1:00", pa.time64("us")),
        ("12:00:00Z", pa.time64("us")), ("YWI", pa.binary()), ("YW==Yg==", pa.binary()), ("Y===", pa.binary()),
        ("YW=i", pa.binary()), ("YW i", pa.binary()), ("YWJj", pa.binary(2)), ("1", pa.list_(pa.int8())),
        ("YWJj====", pa.binary()), ("YWJj=", pa.binary()),
        ("[1]x", pa.list_(pa.int8())), ("[300]", pa.list_(pa.int8())), ("[NaN]", pa.list_(pa.float64())),
    ],
    ids=str,
)  # fmt: skip
def test_text_that_is_not_of_the_declared_type_is_refused(text: str, target: pa.DataType) -> None:
    cell = '"' + text.replace('"', '""') + '"'
    with pytest.raises(RowError) as caught:
        _cells(f"|{cell}", target)
    assert (caught.value.line, caught.value.row, caught.value.column) == (3, 2, "c")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "not ended"])
@pytest.mark.parametrize("block_bytes", [1, 3, 8, 1 << 20])
def test_line_ends_quotes_and_a_byte_order_mark_are_read_right(newline: str, last: bool, block_bytes: int) -> None:
    lines = ["a,b", '1,"x,y"', '2,"he said ""hi"""', f'3,"two{newline}lines"', '4,""""', '5,5" screen', "6,"]
    data = b"\xef\xbb\xbf" + (newline.join(lines) + (newline if last else "")).encode()
    table = _read(data, pa.schema([("a", pa.int8()), ("b", pa.string())]), block_bytes=block_bytes)
    assert table["a"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert table["b"].to_pylist() == ["x,y", 'he said "hi"', f"two{newline}lines", '"', '5" screen', None]


def test_blank_lines_are_skipped_but_in_a_file_of_one_column() -> None:
    assert _read(b"\n\na,b\n\n1,2\n\r\n3,4\n\n").num_rows == 2
    assert _read(b"a\n1\n\n3\n\n")["a"].to_pylist() == [1, None, 3, None]
    assert _read(b"a\n\n\n")["a"].to_pylist() == [None, None]


def test_a_header_alone_has_no_rows() -> None:
    for data in (b"a,b", b"a,b\n", b'"a","b"\r\n\r\n'):
        table = _read(data)
        assert (table.column_names, table.num_rows) == (["a", "b"], 0)


def test_names_in_the_header_are_taken_exactly() -> None:
    assert _read(b'"a,b", c,"d\ne","f""g"\n1,2,3,4\n').column_names == ["a,b", " c", "d\ne", 'f"g']


def test_tabs_separate_in_tsv() -> None:
    assert _read(b'a\tb\n1,5\t"x\ty"\n', name="t.tsv").to_pylist() == [{"a": "1,5", "b": "x\ty"}]


def test_a_record_longer_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolmen.ingest.formats.text_blocks.MAX_RECORD_BYTES", 1000)
    with pytest.raises(RowError, match="quote") as caught:
        _read(b'a,b\n1,2\n3,"' + b"x\n" * 1000, block_bytes=100)
    assert caught.value.line == 3


def test_nothing_is_read_ahead_of_what_is_asked_for() -> None:
    rows = b"".join(b"%d\n" % n for n in range(10_000))
    file = io.BytesIO(b"a\n" + rows)
    reader = read(SourceFile(lambda: file, detect("t.csv"), "t.csv", block_bytes=100), pa.schema([("a", pa.int64())]))
    reader.read_next_batch()
    assert file.tell() <= 300


def test_text_that_looks_like_a_hexadecimal_number_does_not_disturb_the_integers_beside_it() -> None:
    table = _read(b"a,b\n7,0x07\n-8,0X\n", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert table.to_pylist() == [{"a": 7, "b": "0x07"}, {"a": -8, "b": "0X"}]


WORDS = ["", '""', "x", "1", "-5", "007", "2.5", "1e3", " 4 ", "true", "FALSE", "2024-01-01", "2024-01-01T10:00:00"]
WORDS += ["2024-01-01T10:00:00Z", "nan", "-inf", "1e400", "0x1f", "12.0", "9223372036854775808", "10:30", "YWI=", "300"]
TYPES = [pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.decimal128(5, 2), pa.date32()]
TYPES += [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string(), pa.time64("us"), pa.binary()]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("target", TYPES, ids=str)
def test_parsing_at_once_and_from_text_agree(word: str, target: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome() -> Any:
        try:
            return str(_cells(word, target))
        except InputError as error:
            return str(error)

    at_once = outcome()
    monkeypatch.setattr(csv_reader, "NATIVE", dict.fromkeys(csv_reader.NATIVE, False))
    assert outcome() == at_once


@pytest.mark.slow
def test_random_files_are_read_as_the_standard_library_reads_them() -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    chance = random.Random(seed)
    alphabet = ['"', ",", "\n", "\r\n", "a", "ß", " ", "1"]
    for _ in range(3000 if os.environ.get("DOLMEN_LONG") else 150):
        width = chance.randint(2, 4)
        rows = [["".join(chance.choices(alphabet, k=chance.randint(1, 6))) for _ in range(width)] for _ in range(9)]
        sink = io.StringIO()
        csv_records = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        names = [f"c{n}" for n in range(width)]
        csv.writer(sink, quoting=csv_records, lineterminator=chance.choice(["\n", "\r\n"])).writerows([names, *rows])
        schema = pa.schema([(name, pa.string()) for name in names])
        table = _read(sink.getvalue().encode(), schema, block_bytes=chance.choice([1, 5, 40, 1 << 20]))
        assert [list(row.values()) for row in table.to_pylist()] == rows


@pytest.mark.parametrize("offset", range(-16, 4))
def test_an_hour_alone_is_refused_wherever_in_a_block_it_is(offset: int) -> None:
    schema = pa.schema([("s", pa.string()), ("at", pa.timestamp("us"))])
    head, row = b"s,at\n", b"x,2024-02-29T13:45\n"
    end = PIECE_BYTES + offset  # where the row begins that is refused
    rows = head + row * ((end - len(head)) // len(row) - 1)
    rows += b"y" * (end - len(rows) - len(row) + 1) + row[1:]
    assert len(rows) == end
    whole = _read(rows + row, schema)
    assert whole["at"].null_count == 0
    with pytest.raises(RowError) as refused:
        _read(rows + b"x,2024-02-29T13\n" + row, schema)
    assert (refused.value.line, refused.value.column) == (whole.num_rows + 1, "at")


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        (None, "2024-02-29T13"),
        (None, "1969-12-31 23"),
        ("UTC", "2024-02-29T13Z"),
        ("UTC", "2024-02-29 13+01"),
        ("UTC", "2024-02-29T13+05:30"),
        ("UTC", "1969-12-31T23-0017"),
    ],
)
def test_an_hour_alone_is_refused_beside_any_times_and_with_any_offset(zone: str | None, text: str) -> None:
    schema = pa.schema([("s", pa.string()), ("at", pa.timestamp("us", zone)), ("other", pa.timestamp("us"))])
    row = f"x,2024-02-29T13:45:10.5{'Z' if zone else ''},2024-02-29T00:00\ny,,\n"
    assert _read(f"s,at,other\n{row}".encode(), schema).num_rows == 2
    with pytest.raises(RowError) as refused:
        _read(f"s,at,other\n{row}z,{text},\n{row}".encode(), schema)
    assert (refused.value.line, refused.value.column) == (4, "at")


@pytest.mark.parametrize("offset", range(-6, 2))
def test_a_hexadecimal_number_and_a_quoted_field_are_found_wherever_in_a_block_they_are(offset: int) -> None:
    schema = pa.schema([("s", pa.string()), ("n", pa.int64())])
    head, row = b"s,n\n", b"x,12\n"
    rows = head + row * ((PIECE_BYTES + offset - len(head)) // len(row) - 1)
    rows += b"y" * (PIECE_BYTES + offset - len(rows) - len(row) + 1) + row[1:]
    with pytest.raises(RowError) as refused:
        _read(rows + b"x,0x1F\n" + row, schema)
    assert (refused.value.line, refused.value.column) == (rows.count(b"\n") + 1, "n")
    assert _read(rows + b'"a,b\n""c""",7\n' + row, schema)["s"].to_pylist()[-2:] == ['a,b\n"c"', "x"]

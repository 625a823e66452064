"""What a file of JSON lines means."""

from __future__ import annotations

import datetime as dt
import io
import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import RowError, SchemaError
from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.json import json_values

UTC = dt.UTC


def _read(data: bytes, schema: pa.Schema | None = None, block_bytes: int = 1 << 20) -> pa.Table:
    return read(
        SourceFile(lambda: io.BytesIO(data), detect("t.jsonl"), "t.jsonl", block_bytes=block_bytes), schema
    ).read_all()


def _values(json_values: list[str], target: pa.DataType, block_bytes: int = 1 << 20) -> list[Any]:
    data = "".join(f'{{"c": {value}}}\n' for value in json_values).encode()
    values: list[Any] = _read(data, pa.schema([("c", target)]), block_bytes)["c"].to_pylist()
    return values


@pytest.mark.parametrize(
    ("json_values", "target", "values"),
    [
        (["1", "1.0", '"12"', "1e2", "null"], pa.int64(), [1, 1, 12, 100, None]),
        (["18446744073709551615"], pa.uint64(), [2**64 - 1]),
        (["1", "2.5", '"1e3"', '"Infinity"'], pa.float64(), [1.0, 2.5, 1000.0, float("inf")]),
        (["1.5", '"1.25"', "1.250", "7"], pa.decimal128(5, 2), [Decimal("1.5"), Decimal("1.25"), Decimal("1.25"), 7]),
        (["true", "false", '"TRUE"', "1"], pa.bool_(), [True, False, True, True]),
        (['"x"', "5", "2.50", "true"], pa.string(), ["x", "5", "2.50", "true"]),
        (['{"a": [1]}', '""', "null"], pa.string(), ['{"a":[1]}', "", None]),
        (['"2024-01-01"'], pa.date32(), [dt.date(2024, 1, 1)]),
        (['"2024-01-01T10:00:00+02:00"'], pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, 8, tzinfo=UTC)]),
        (['"10:00"'], pa.time64("us"), [dt.time(10)]),
        (['"AP8="'], pa.binary(), [b"\x00\xff"]),
        (['["AP8="]', "[]", "null"], pa.list_(pa.binary()), [[b"\x00\xff"], [], None]),
        (['{"d": "2024-01-01"}', "{}"], pa.struct([("d", pa.date32())]), [{"d": dt.date(2024, 1, 1)}, {"d": None}]),
        (['"\\u00e9\\ud83d\\ude00\\n"', '"é"'], pa.string(), ["é😀\n", "é"]),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_json_values_are_read_as_the_declared_type(
    json_values: list[str], target: pa.DataType, values: list[Any]
) -> None:
    assert _values(json_values, target) == values
    assert _values(json_values, target, block_bytes=1) == values


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("1.5", pa.int64()), ("true", pa.int64()), ('""', pa.int64()), ("[1]", pa.int64()), ("300", pa.int8()),
        ('"x"', pa.float64()), ("2", pa.bool_()), ("1", pa.date32()), ("5", pa.binary()),
        ("1.234", pa.decimal128(5, 2)), ("1000", pa.decimal128(5, 2)), ("[1000]", pa.list_(pa.decimal128(5, 2))),
        ("1", pa.list_(pa.int64())), ('["x"]', pa.list_(pa.int64())), ('{"b": 1}', pa.struct([("a", pa.int64())])),
        ('"[1"', pa.list_(pa.int64())), ('["x"]', pa.list_(pa.date32())),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_with_its_line(value: str, target: pa.DataType) -> None:
    with pytest.raises(RowError) as caught:
        _values(["null", "null", value, "null"], target)
    assert (caught.value.line, caught.value.row, caught.value.column) == (3, 3, "c")


def test_blank_lines_and_a_byte_order_mark_are_skipped() -> None:
    data = b'\xef\xbb\xbf\n{"a": 1}\r\n\r\n  \n {"a": 2} \n\n'
    for block_bytes in (1, 1 << 20):
        assert _read(data, pa.schema([("a", pa.int64())]), block_bytes)["a"].to_pylist() == [1, 2]


def test_an_empty_file_has_no_rows_of_a_declared_schema() -> None:
    assert _read(b"", pa.schema([("a", pa.int64())])).num_rows == 0


def test_a_line_longer_than_a_block_is_read() -> None:
    text = "x" * 100_000
    assert _read(json.dumps({"a": text}).encode() + b'\n{"a": "y"}', None, 1000)["a"].to_pylist() == [text, "y"]


def test_a_map_column_is_refused_before_any_row() -> None:
    with pytest.raises(SchemaError, match="maps"):
        _read(b'{"m": {}}\n', pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))


def test_of_several_faults_the_first_line_is_named() -> None:
    data = b'{"a": 1}\n{"a": "x"}\n{"a": NaN}\nxx\n'
    with pytest.raises(RowError) as caught:
        _read(data, pa.schema([("a", pa.int64())]))
    assert caught.value.line == 2


def test_columns_of_numbers_written_as_strings_are_soon_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[int] = []
    parse_line = json_values.parse_line
    monkeypatch.setattr(json_values, "parse_line", lambda *line: slow.append(1) or parse_line(*line))
    data = b"".join(b'{"a": "%d"}\n' % n for n in range(1000))
    table = _read(data, pa.schema([("a", pa.int64())]), block_bytes=1000)
    assert table["a"].to_pylist() == list(range(1000))
    assert len(slow) < 200


@pytest.mark.slow
def test_deep_nesting_does_not_take_the_process_down() -> None:
    """pyarrow's parser overflows the stack on it; strings that hold brackets do not hide it."""
    program = """
import io
from dolmen.errors import RowError
from dolmen.ingest.formats.formats import SourceFile, detect, infer
one_line = b'{"a": ' + b'["]",' * 100_000 + b'1' + b']' * 100_000 + b'}'
many_lines = b'{"a": ' + b'[\\n' * 100_000 + b'1' + b']' * 100_000 + b'}'
for deep in one_line, many_lines:
    try:
        infer(SourceFile(lambda: io.BytesIO(b'{"a": 1}\\n' + deep), detect("t.jsonl"), "t.jsonl"))
    except RowError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    one_line, many_lines = done.stdout.splitlines()
    assert "line 2, row 2: nested more than 200 deep" in one_line
    assert "line 2, row 2: not JSON" in many_lines


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"null\n", b' null\n{"a": 1}\n', b'{"a": 1}\nnull\n', b"null"])
def test_a_line_of_null_does_not_take_the_process_down(data: bytes) -> None:
    """pyarrow's parser does not survive text that begins with it."""
    program = """
import io, sys
import pyarrow as pa
from dolmen.errors import RowError
from dolmen.ingest.formats.formats import SourceFile, detect, read
schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])
for given in schema, None:
    try:
        read(SourceFile(lambda: io.BytesIO(eval(sys.argv[1])), detect("t.jsonl"), "t.jsonl"), given).read_all()
    except RowError as error:
        print(error.reason)
"""
    done = subprocess.run([sys.executable, "-c", program, repr(data)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["not a JSON object: each line holds one, with nothing around them"] * 2

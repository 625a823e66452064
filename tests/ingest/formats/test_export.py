"""What is written is read back equal: every type, every format, every awkward value; or it is refused, and no file is
there."""

from __future__ import annotations

import base64
import datetime as dt
import io
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dolmen.errors import InputError, SchemaError
from dolmen.ingest.formats.export import encode_base64, export_file, export_stream
from dolmen.ingest.formats.formats import Format, SourceFile, detect, infer, read

NAN, INF, UTC = math.nan, math.inf, dt.UTC
EDGES = [dt.datetime.min, dt.datetime.max, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]
FILES = (
    "rows.csv",
    "rows.tsv",
    "rows.jsonl",
    "rows.parquet",
    "rows.arrow",
    "rows.csv.gz",
    "rows.tsv.bz2",
    "rows.json.zst",
)
_DEEP = pa.struct(
    [
        ("date", pa.date32()),
        ("decimal", pa.decimal128(5, 2)),
        ("binary", pa.binary()),
        ("time", pa.time64("us")),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
_DEEP_ROW = {
    "date": dt.date(2024, 2, 29),
    "decimal": Decimal("1.10"),
    "binary": b"q",
    "time": dt.time(1),
    "at": dt.datetime(2024, 1, 1, 1, 1, 1, 5, UTC),
}
COLUMNS: dict[str, tuple[list[Any], pa.DataType]] = {
    "bool": ([True, False, None], pa.bool_()),
    "int8": ([-128, 127, None], pa.int8()),
    "int16": ([-(2**15), None], pa.int16()),
    "int32": ([2**31 - 1, None], pa.int32()),
    "int64": ([-(2**63), 2**63 - 1, None], pa.int64()),
    "uint8": ([255, None], pa.uint8()),
    "uint16": ([2**16 - 1, None], pa.uint16()),
    "uint32": ([2**32 - 1, None], pa.uint32()),
    "uint64": ([0, 2**64 - 1, None], pa.uint64()),
    "float32": ([0.1, 3.4028234663852886e38, 1e-45, -0.0, NAN, INF, -INF, None], pa.float32()),
    "float64": ([5e-324, 1.7976931348623157e308, 1 / 3, 1e16, -0.0, NAN, INF, -INF, None], pa.float64()),
    "decimal": ([Decimal("12345678901234567890123456789012345.678"), Decimal("-0.001"), None], pa.decimal128(38, 3)),
    "tiny": ([Decimal("0.0000000001"), Decimal("-1E-10"), Decimal("0E-10"), None], pa.decimal128(38, 10)),
    "fraction": ([Decimal(1).scaleb(-38), None], pa.decimal128(38, 38)),
    "string": (
        ["", "NULL", "null", "N/A", "nan", "a,b", "a\tb", 'q"q', '""', "l\nf", "c\rr", "cr\r\nlf", " sp ", "é☃𝄞", None,
         "\0", "\x01\x1f\x7f\x85\u2028", "\\back\\n", "'", "#", "\ufeffmark", '{"a": 1}', "=1+1", "007", "true"],
        pa.string(),
    ),
    "binary": ([b"", b"\0", b"ab", b"abc", b"abcd", bytes(range(256)), None], pa.binary()),
    "fixed": ([b"abcd", b"\0\xff\0\xff", None], pa.binary(4)),
    "date": ([dt.date.min, dt.date.max, dt.date(1969, 12, 31), None], pa.date32()),
    "time": ([dt.time.min, dt.time.max, None], pa.time64("us")),
    "naive": ([*EDGES, None], pa.timestamp("us")),
    "zoned": ([*(one.replace(tzinfo=UTC) for one in EDGES), None], pa.timestamp("us", "UTC")),
    "integers": ([[1, None, 2**62], [], None, [None]], pa.list_(pa.int64())),
    "floats": ([[1.5, NAN, INF, -INF, -0.0, None], [], None], pa.list_(pa.float64())),
    "strings": ([["", None, 'a"b\n', "\\", "é"], [], None], pa.list_(pa.string())),
    "binaries": ([[b"", None, b"xyz"], [], None], pa.list_(pa.binary())),
    "lists": ([[[1], [], None], [], None], pa.list_(pa.list_(pa.int8()))),
    "struct": (
        [{"a": 1, "b c\"d": None}, {"a": None, "b c\"d": None}, None, {"a": 2, "b c\"d": 'x,y"z'}],
        pa.struct([("a", pa.int32()), ('b c"d', pa.string())]),
    ),
    "never NULL inside": ([{"x": 1}, None, {"x": 2}], pa.struct([pa.field("x", pa.int64(), nullable=False)])),
    "deep": (
        [[{"x": [1.5, None], "y": _DEEP_ROW}], [], None, [None, {"x": [NAN], "y": dict.fromkeys(_DEEP_ROW)}]],
        pa.list_(pa.struct([("x", pa.list_(pa.float32())), ("y", _DEEP)])),
    ),
}  # fmt: skip
MAP = pa.map_(pa.string(), pa.int64())


def same(value: Any) -> Any:
    """A value of which equal ones are the same: NaN, and the sign of zero."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, list):
        return [same(one) for one in value]
    return {name: same(one) for name, one in value.items()} if isinstance(value, dict) else value


def stream(table: pa.Table, rows: int = 3) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(rows))


def read_again(file: Path, schema: pa.Schema) -> pa.Table:
    return read(SourceFile(lambda: file.open("rb"), detect(file.name), file.name), schema).read_all()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("column", COLUMNS)
def test_what_is_written_is_read_back_equal(tmp_path: Path, name: str, column: str) -> None:
    values = pa.array(*COLUMNS[column])
    sliced = pa.concat_arrays([values, values]).slice(1)
    for table in (
        pa.table({column: sliced}),
        pa.table({"id": range(len(sliced)), column: sliced, "last, of all": sliced}),
        pa.table({column: sliced.slice(0, 0)}),
    ):
        assert export_file(stream(table), tmp_path / name, detect(name)) == len(table)
        found = read_again(tmp_path / name, table.schema)
        assert found.schema == table.schema
        assert same(found.to_pylist()) == same(table.to_pylist())
        assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.slow
def test_all_columns_together_keep_their_order(tmp_path: Path) -> None:
    rows = max(len(values) for values, _ in COLUMNS.values())
    names = list(reversed(COLUMNS))
    table = pa.table([pa.array((COLUMNS[name][0] * rows)[:rows], COLUMNS[name][1]) for name in names], names)
    for name in FILES:
        export_file(stream(table), tmp_path / name, detect(name))
        assert same(read_again(tmp_path / name, table.schema).to_pylist()) == same(table.to_pylist())
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert file.readline() == ",".join(names) + "\n"


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_formats_that_hold_all_hold_maps_and_all_times(tmp_path: Path, name: str) -> None:
    table = pa.table(
        {
            "map": pa.array([[("a", 1), ("b", None)], [], None], MAP),
            "at": pa.array([-(2**63), 2**63 - 1, None], pa.timestamp("us", "UTC")),
            "day": pa.array([-(2**31), 2**31 - 1, None], pa.int32()).cast(pa.date32()),
        }
    )
    export_file(stream(table), tmp_path / name, detect(name))
    assert read_again(tmp_path / name, table.schema).equals(table)


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
@pytest.mark.parametrize("kind", [MAP, pa.list_(pa.struct([("m", MAP)]))])
def test_a_column_that_text_does_not_hold_is_refused_before_a_row_is_asked_for(
    tmp_path: Path, name: str, kind: pa.DataType
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        raise AssertionError("a row was asked for")
        yield

    asked = pa.RecordBatchReader.from_batches(pa.schema([("m", kind)]), rows())
    with pytest.raises(SchemaError, match="column 'm'"):
        export_file(asked, tmp_path / name, detect(name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_time_that_text_does_not_hold_leaves_what_was_there(tmp_path: Path, name: str, nested: bool) -> None:
    values = pa.array([0, 1, None, 2**62, 3], pa.timestamp("us"))
    if nested:
        values = pa.ListArray.from_arrays([0, 1, 2, 3, 4, 5], values)
    (tmp_path / name).write_text("before")
    with pytest.raises(InputError, match=r"row 4, column 'at': .* 1 to 9999"):
        export_file(stream(pa.table({"at": values})), tmp_path / name, detect(name))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "before")]


def test_rows_that_fail_to_come_leave_no_file(tmp_path: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise InputError("the rest is lost")

    for name in FILES:
        failing = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), rows())
        with pytest.raises(InputError):
            export_file(failing, tmp_path / name, detect(name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("table", "name", "message"),
    [
        (pa.table([[1], [2]], ["a", "a"]), "rows.csv", r"2 columns.*'a'"),
        (pa.table([[1]], [""]), "rows.csv", "''"),
        (pa.table({"i": pa.array([None], pa.month_day_nano_interval())}), "rows.parquet", "column 'i'"),
        (pa.table({"a": [1]}), "rows.avro", "Avro"),
        (pa.table({"a": [1]}), "rows.parquet.gz", "gzip"),
        (pa.table({"a": [1]}), "absent/rows.csv", "directory"),
    ],
)
def test_what_could_not_be_read_again_is_refused(tmp_path: Path, table: pa.Table, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        export_file(stream(table), tmp_path / name, detect(name))
    assert list(tmp_path.iterdir()) == []


def test_types_that_are_no_stored_ones_are_written_as_those_they_would_be_stored_as(tmp_path: Path) -> None:
    table = pa.table(
        {"kind": pa.array(["a", None, "b"]).dictionary_encode(), "at": pa.array([0, 1, None], pa.time32("s"))}
    )
    export_file(stream(table), tmp_path / "rows.csv", Format("csv"))
    assert (tmp_path / "rows.csv").read_text() == 'kind,at\n"a",00:00:00.000000\n,00:00:01.000000\n"b",\n'


def test_a_stream_of_arrow_needs_no_seeking() -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.written = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            self.written += bytes(data)
            return len(data)

    table = pa.table({"id": [1, 2, 3, 4]})
    pipe = Pipe()
    assert export_stream(stream(table), pipe, Format("arrow")) == 4  # type: ignore[arg-type]
    assert pa.ipc.open_stream(pipe.written).read_all().equals(table)


def test_a_written_file_of_strings_and_numbers_is_inferred_as_it_was(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2],
            "s": ["x", None],
            "at": pa.array([0, 1], pa.timestamp("us", "UTC")),
            "b": [True, None],
        }
    )
    for name in ("rows.csv", "rows.jsonl"):
        export_file(stream(table), tmp_path / name, detect(name))
        inferred = infer(SourceFile(lambda name=name: (tmp_path / name).open("rb"), detect(name), name))
        assert inferred.types == table.schema.types


def test_base64_is_that_of_rfc_4648() -> None:
    generator = np.random.default_rng(7)
    values = [generator.bytes(size) for size in range(100)] + [None, b""]
    array = pa.array(values, pa.binary())
    expected = [None if value is None else base64.b64encode(value).decode() for value in values]
    assert encode_base64(array).to_pylist() == expected
    assert encode_base64(array.slice(3, 90)).to_pylist() == expected[3:93]

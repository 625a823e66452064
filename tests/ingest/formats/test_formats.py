"""The same rows from every format, however compressed and however cut into blocks."""

from __future__ import annotations

import base64
import bz2
import csv
import datetime as dt
import gzip
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from dolmen.errors import InputError
from dolmen.format.schema import Schema
from dolmen.ingest.formats.formats import BadRow, Format, ReadOptions, SourceFile, detect, infer, read

TABLE = pa.table(
    {
        "i8": pa.array([1, -128, None, 127], pa.int8()),
        "i16": pa.array([1, -(2**15), None, 2**15 - 1], pa.int16()),
        "i32": pa.array([1, -(2**31), None, 2**31 - 1], pa.int32()),
        "i64": pa.array([1, -(2**63), None, 2**63 - 1], pa.int64()),
        "u8": pa.array([1, 0, None, 2**8 - 1], pa.uint8()),
        "u16": pa.array([1, 0, None, 2**16 - 1], pa.uint16()),
        "u32": pa.array([1, 0, None, 2**32 - 1], pa.uint32()),
        "u64": pa.array([1, 0, None, 2**64 - 1], pa.uint64()),
        "f32": pa.array([1.5, -0.0, None, 3.4e38], pa.float32()),
        "f64": pa.array([0.1, float("inf"), None, 5e-324], pa.float64()),
        "bool": pa.array([True, False, None, True]),
        "text": pa.array(["plain", 'a "quote", a comma\nand ünïcode 😀', None, "007"]),
        "date": pa.array([0, -719_162, None, 2_932_896], pa.date32()),
        "naive": pa.array([0, -1, None, 2**52], pa.timestamp("us")),
        "zoned": pa.array([0, -1, None, 2**52], pa.timestamp("us", "UTC")),
        "time": pa.array([0, 1, None, 86_399_999_999], pa.time64("us")),
        "decimal": pa.array([Decimal("1.20"), Decimal("-999.99"), None, Decimal("0.01")], pa.decimal128(5, 2)),
        "binary": pa.array([b"\x00\xff", b"x", None, bytes(range(256))]),
        "fixed": pa.array([b"ab", b"\x00\x00", None, b"zz"], pa.binary(2)),
        "list": pa.array([[1, None], [], None, [3]], pa.list_(pa.int32())),
        "struct": pa.array(
            [{"x": 1, "when": [0]}, {"x": None, "when": None}, None, {"x": 2, "when": [5, None]}],
            pa.struct([("x", pa.int64()), ("when", pa.list_(pa.timestamp("us")))]),
        ),
    }
)
SCHEMA = Schema.from_arrow(TABLE.schema).arrow


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and value in (float("inf"),):
        return "Infinity"
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)


def _json_lines() -> bytes:
    return b"".join(json.dumps(_plain(row)).encode() + b"\n" for row in TABLE.to_pylist())


def _csv() -> bytes:
    def cell(value: Any) -> str:
        plain = _plain(value)
        if plain is None:
            return ""
        text = plain if isinstance(plain, str) else json.dumps(plain)
        return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text

    rows = [TABLE.column_names, *([cell(value) for value in row.values()] for row in TABLE.to_pylist())]
    return "".join(",".join(row) + "\n" for row in rows).encode()


def _tsv() -> bytes:
    sink = io.StringIO()
    csv.writer(sink, delimiter="\t", lineterminator="\r\n").writerows(csv.reader(io.StringIO(_csv().decode())))
    return sink.getvalue().encode()


def _parquet() -> bytes:
    sink = io.BytesIO()
    parquet.write_table(TABLE, sink, row_group_size=3)
    return sink.getvalue()


def _arrow_file() -> bytes:
    sink = io.BytesIO()
    with ipc.new_file(sink, TABLE.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(TABLE, max_chunksize=3)
    return sink.getvalue()


def _arrow_stream() -> bytes:
    sink = io.BytesIO()
    with ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=1)
    return sink.getvalue()


_INTEGERS = {"i8": "int", "i16": "int", "i32": "int", "i64": "long", "u8": "int", "u16": "int", "u32": "long"}
_AVRO: dict[str, Any] = _INTEGERS | {
    "u64": {"type": "bytes", "logicalType": "decimal", "precision": 20},
    "f32": "float",
    "f64": "double",
    "bool": "boolean",
    "text": "string",
    "date": {"type": "int", "logicalType": "date"},
    "naive": {"type": "long", "logicalType": "local-timestamp-micros"},
    "zoned": {"type": "long", "logicalType": "timestamp-micros"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "decimal": {"type": "fixed", "name": "paid", "size": 3, "logicalType": "decimal", "precision": 5, "scale": 2},
    "binary": "bytes",
    "fixed": {"type": "fixed", "name": "two", "size": 2},
    "list": {"type": "array", "items": ["null", "int"]},
    "struct": {
        "type": "record",
        "name": "inner",
        "fields": [
            {"name": "x", "type": ["null", "long"]},
            {
                "name": "when",
                "type": [
                    "null",
                    {
                        "type": "array",
                        "items": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
                    },
                ],
            },
        ],
    },
}


def _avro() -> bytes:
    sink = io.BytesIO()
    fields = [{"name": name, "type": ["null", kind]} for name, kind in _AVRO.items()]
    columns = [
        TABLE[name].to_pylist() if name in ("u64", "decimal") else TABLE[name].cast(kind).to_pylist()
        for name, kind in zip(TABLE.column_names, map(_decoded, TABLE.schema.types), strict=True)
    ]
    rows = [dict(zip(TABLE.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    rows = [row | {"u64": None if row["u64"] is None else Decimal(row["u64"])} for row in rows]
    schema = {"type": "record", "name": "row", "fields": fields}
    fastavro.writer(sink, schema, rows, sync_interval=1)
    return sink.getvalue()


def _decoded(kind: pa.DataType) -> pa.DataType:
    """Times as the numbers that Avro writes: Python has no words for all of them."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _decoded(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_decoded(kind.value_type))
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) else kind


FILES = {
    "t.csv": _csv,
    "t.tsv": _tsv,
    "t.jsonl": _json_lines,
    "t.parquet": _parquet,
    "t.arrow": _arrow_file,
    "t.arrows": _arrow_stream,
    "t.avro": _avro,
}
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".GZ": lambda data: gzip.compress(data[:10]) + gzip.compress(data[10:]),
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
    ".bz2": bz2.compress,
    ".BZ2": lambda data: bz2.compress(data[:10]) + bz2.compress(data[10:]),
    ".ZST": lambda data: b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in (data[:10], data[10:])),
}


def _read(name: str, data: bytes, schema: pa.Schema | None, block_bytes: int = 1 << 20) -> pa.Table:
    return read(SourceFile(lambda: io.BytesIO(data), detect(name), name, block_bytes=block_bytes), schema).read_all()


@pytest.mark.parametrize("compressed", COMPRESSED)
@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_rows_of_every_type(name: str, compressed: str) -> None:
    table = _read(name + compressed, COMPRESSED[compressed](FILES[name]()), SCHEMA)
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert table.to_pylist() == TABLE.to_pylist()


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1000])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl"])
def test_rows_do_not_depend_on_where_blocks_end(name: str, block_bytes: int) -> None:
    assert _read(name, FILES[name](), SCHEMA, block_bytes).to_pylist() == TABLE.to_pylist()


@pytest.mark.parametrize("name", FILES)
def test_what_is_inferred_is_read_back_as_the_declared_schema_of_the_next_file(name: str) -> None:
    data = FILES[name]()
    inferred = infer(SourceFile(lambda: io.BytesIO(data), detect(name), name))
    assert Schema.from_arrow(inferred).arrow == inferred
    assert _read(name, data, inferred) == _read(name, data, None)


def test_columns_come_in_any_order_and_missing_ones_are_null() -> None:
    schema = pa.schema([("b", pa.string()), ("c", pa.float64()), ("a", pa.int64())])
    for name, data in (("t.csv", b"a,b\n1,x\n"), ("t.jsonl", b'{"a": 1, "b": "x"}\n')):
        assert _read(name, data, schema).to_pylist() == [{"b": "x", "c": None, "a": 1}]


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".jsonl")])
def test_a_column_that_a_file_lacks_has_its_default_though_it_is_not_nullable(name: str, tolerant: bool) -> None:
    added = [pa.field("source", pa.string(), nullable=False), pa.field("day", pa.date32()), pa.field("n", pa.int8())]
    options = ReadOptions(defaults={"source": "old", "day": 19_000})
    source = SourceFile(lambda: io.BytesIO(FILES[name]()), detect(name), name, options)
    bad: list[BadRow] = []
    rows = read(source, pa.schema([*SCHEMA, *added]), on_bad_row=bad.append if tolerant else None).read_all()
    assert rows.select(SCHEMA.names).to_pylist() == TABLE.to_pylist()
    assert rows.select(["source", "day", "n"]).to_pylist() == [
        {"source": "old", "day": dt.date(2022, 1, 8), "n": None}
    ] * len(TABLE)
    assert bad == []


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.csv", Format("csv")),
        ("folder.parquet/A.CSV.GZ", Format("csv", "gzip")),
        ("a.b.tsv.zst", Format("tsv", "zstd")),
        ("a.jsonl", Format("jsonl")),
        ("a.ndjson.gz", Format("jsonl", "gzip")),
        ("a.json", Format("jsonl")),
        ("a.parquet", Format("parquet")),
        ("a.csv.bz2", Format("csv", "bz2")),
        ("a.arrow", Format("arrow")),
        ("a.feather", Format("arrow")),
        ("a.arrows.zst", Format("arrow", "zstd")),
        ("a.ipc", Format("arrow")),
        ("a.Avro.gz", Format("avro", "gzip")),
        ("a.snappy.Parquet", Format("parquet")),
    ],
)
def test_the_name_says_the_format(name: str, format: Format) -> None:
    assert detect(name) == format


def test_a_declared_format_overrides_the_name_but_for_its_compression() -> None:
    assert detect("a.txt", "csv") == Format("csv")
    assert detect("part-00000.GZ", "avro") == Format("avro", "gzip")
    assert detect("a.parquet", "jsonl") == Format("jsonl")


@pytest.mark.parametrize("name", ["a", "a.txt", "csv", "a.gz", "a.csv.gz.zst", "a.csv.zst.gz", "a.parquet/part"])
def test_any_other_name_is_refused_with_what_is_supported(name: str) -> None:
    with pytest.raises(InputError, match=r"\.csv, \.tsv, .*\.parquet.*\.gz, \.zst, \.bz2 or \.zip"):
        detect(name)


@pytest.mark.parametrize("name", FILES)
def test_files_are_opened_when_rows_are_asked_for_and_closed_at_the_end(name: str) -> None:
    opened: list[BinaryIO] = []

    def open_file() -> BinaryIO:
        opened.append(io.BytesIO(FILES[name]()))
        return opened[-1]

    reader = read(SourceFile(open_file, detect(name), name), SCHEMA)
    assert opened == []
    reader.read_all()
    read(SourceFile(open_file, detect(name), name), None).read_all()
    assert len(opened) == 3
    assert all(file.closed for file in opened)


class _Unreachable(io.BytesIO):
    def read(self, *_: Any) -> bytes:
        raise ConnectionResetError(104, "reset by peer")


@pytest.mark.parametrize(
    "name", ["t.csv", "t.csv.gz", "t.jsonl", "t.parquet", "t.parquet.zst", "t.arrow", "t.avro", "t.avro.bz2"]
)
def test_a_file_that_cannot_be_read_is_not_called_malformed(name: str) -> None:
    with pytest.raises(ConnectionResetError):
        read(SourceFile(lambda: _Unreachable(b"x" * 100), detect(name), name), SCHEMA).read_all()

# ruff: noqa: E501
"""Malformed Arrow and Avro."""

from __future__ import annotations

import gzip
import io
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import ipc

from support.malformed_case import LINES, MalformedFile, flip_bit, value, whole
from support.malformed_parquet import NOT_UTF8, PARQUET

_ROWS = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"name {n}" for n in range(1000)]})


def _arrow(table: pa.Table, *, stream: bool = False, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = ipc.IpcWriteOptions(compression=compression)
    with (ipc.new_stream if stream else ipc.new_file)(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _column(name: str, array: Any) -> bytes:
    return _arrow(pa.table({"id": pa.array(range(1, 1 + len(array)), pa.int64()), name: array}))


def _strings(*offsets: int) -> pa.Array:
    """Strings whose offsets into two bytes are wrong."""
    return pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("<iii", *offsets)), pa.py_buffer(b"ab")]
    )


def _avro(fields: dict[str, Any], *rows: dict[str, Any], codec: str = "null") -> bytes:
    schema = {
        "type": "record",
        "name": "user",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }
    return _written(schema, list(rows), codec)


def _written(schema: Any, rows: list[Any], codec: str = "null") -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, rows, codec=codec, sync_marker=b"0123456789abcdef")
    return sink.getvalue()


_FILE, _STREAM = _arrow(_ROWS), _arrow(_ROWS, stream=True)
_MANY = [{"id": n, "name": f"name {n}"} for n in range(100)]
_AVRO = _avro({"id": "long", "name": ["null", "string"]}, *_MANY)
_DEFLATED = _avro({"id": "long", "name": ["null", "string"]}, *_MANY, codec="deflate")

MALFORMED_RECORDS: list[MalformedFile] = [
    # Arrow
    whole("damaged Arrow", "empty.arrow", b"", "Arrow"),
    whole("damaged Arrow", "magic-alone.arrow", b"ARROW1\0\0", "Arrow"),
    whole("damaged Arrow", "half.arrow", _FILE[: len(_FILE) // 2], "Arrow"),
    whole("damaged Arrow", "half.arrows", _STREAM[: len(_STREAM) // 2], "Arrow"),
    whole("damaged Arrow", "flipped-footer.arrow", flip_bit(_FILE, len(_FILE) - 10), "Arrow"),
    whole("damaged Arrow", "not-utf-8.arrow", _column("name", NOT_UTF8), "Arrow"),
    whole("damaged Arrow", "offsets-beyond.arrow", _column("name", _strings(0, 100, 2)), "Arrow"),
    whole("damaged Arrow", "offsets-below.arrow", _column("name", _strings(0, -5, 2)), "Arrow"),
    whole("damaged Arrow", "index-beyond.arrow", _column("name", pa.DictionaryArray.from_arrays(pa.array([5], pa.int32()), pa.array(["a"]), safe=False)), "Arrow"),
    whole("truncated", "footer-cut-off.arrow", _FILE[:-100], "truncated"),
    whole("truncated", "end-mark-missing.arrows", _STREAM[:-8], "truncated"),
    whole("wrong name", "text.arrow", LINES, "text.arrow' "),
    whole("wrong name", "parquet.arrow", PARQUET, "parquet.arrow' "),
    whole("wrong name", "arrow.parquet", _FILE, "Parquet"),
    whole("wrong name", "arrow.csv", _FILE, "Arrow"),
    whole("unsupported format", "first-version.feather", b"FEA1" + bytes(100) + b"FEA1", "Feather version 1"),
    whole("unknown column", "unknown-column.arrow", _column("nmae", ["a"]), "column 'nmae'"),
    whole("other kind", "string-as-integer.arrow", _arrow(pa.table({"id": ["1"]})), "text", column="id"),
    whole("stored", "interval.arrow", _arrow(pa.table({"i": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})), "stored", None),
    value("null-id.arrow", _arrow(pa.table({"id": pa.array([1, None], pa.int64())})), "not nullable", 2, "id", "null"),
    value("too-large-for-int8.arrow", _column("small", [127, 300]), "without loss", 2, "small"),
    # Avro
    whole("damaged Avro", "empty.avro", b"", "Avro"),
    whole("damaged Avro", "wrong-version.avro", b"Obj\x02" + _AVRO[4:], "Avro"),
    whole("damaged Avro", "magic-alone.avro", b"Obj\x01", "ends early"),
    whole("damaged Avro", "header-cut-off.avro", _AVRO[:30], "ends early"),
    whole("damaged Avro", "truncated.avro", _AVRO[:-30], "ends early"),
    whole("damaged Avro", "flipped-mark.avro", flip_bit(_AVRO, len(_AVRO) - 1), "damaged"),
    whole("damaged Avro", "garbage-after.avro", _AVRO + b"garbage", "damaged"),
    whole("damaged Avro", "flipped-block.avro", flip_bit(_DEFLATED, len(_DEFLATED) - 60), "damaged"),
    whole("damaged Avro", "schema-without-fields.avro", _AVRO.replace(b'"fields"', b'"fidles"', 1), "schema"),
    whole("damaged Avro", "unknown-codec.avro", _AVRO.replace(b"null", b"nulx", 1) if _AVRO.index(b"avro.codec") < _AVRO.index(b"null") else _AVRO.replace(b"\x08null", b"\x08nulx"), "codec 'nulx'"),
    whole("truncated", "truncated.avro.gz", gzip.compress(_AVRO, mtime=0)[:-20], "truncated"),
    whole("wrong name", "text.avro", LINES, "Avro"),
    whole("wrong name", "avro.csv", _AVRO, "Avro"),
    whole("stored", "numbers.avro", _written("long", [1, 2]), "not records"),
    whole("stored", "union.avro", _avro({"id": ["long", "string"]}, {"id": 1}, {"id": "a"}), "union"),
    whole("stored", "recursive.avro", _avro({"id": "long", "next": ["null", "user"]}, {"id": 1, "next": None}), "contains itself"),
    whole("unknown column", "unknown-column.avro", _avro({"id": "long", "nmae": "string"}, {"id": 1, "nmae": "a"}), "column 'nmae'"),
    whole("other kind", "string-as-integer.avro", _avro({"id": "string"}, {"id": "1"}), "text", column="id"),
    value("null-id.avro", _avro({"id": ["null", "long"]}, {"id": 1}, {"id": None}), "not nullable", 2, "id", "null"),
    value("too-large-for-int8.avro", _avro({"id": "long", "small": "int"}, {"id": 1, "small": 1}, {"id": 2, "small": 300}), "without loss", 2, "small"),
    value("third-place.avro", _avro({"id": "long", "paid": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}}, {"id": 1, "paid": Decimal("1.255")}), "without loss", 1, "paid"),
]  # fmt: skip

# ruff: noqa: E501
"""Malformed Parquet."""

from __future__ import annotations

import struct
from decimal import Decimal

import pyarrow as pa

from support.malformed_case import MalformedFile, as_parquet, flip_bit, value, whole

_ROWS = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"name {n}" for n in range(1000)]})
PARQUET = as_parquet(_ROWS, compression="none", use_dictionary=False, write_page_checksum=True)
_FOOTER = len(PARQUET) - 8 - int.from_bytes(PARQUET[-8:-4], "little")

NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")])
"""A string that is none."""


def _column(name: str, array: object) -> bytes:
    return as_parquet(pa.table({"id": pa.array([1], pa.int64()), name: array}))


def _decimals(text: str, precision: int, scale: int) -> pa.Array:
    return pa.array([Decimal(text)], pa.decimal128(precision, scale))


MALFORMED_PARQUET: list[MalformedFile] = [
    whole("damaged Parquet", "empty.parquet", b"", "Parquet"),
    whole("damaged Parquet", "truncated.parquet", PARQUET[:-100], "Parquet", None),
    whole("damaged Parquet", "beginning-cut-off.parquet", PARQUET[1000:], "Parquet"),
    whole("damaged Parquet", "flipped-page.parquet", flip_bit(PARQUET, 600), "Parquet"),
    whole("damaged Parquet", "flipped-footer.parquet", flip_bit(PARQUET, _FOOTER), "Parquet"),
    whole("other kind", "integer-as-string.parquet", as_parquet(pa.table({"id": [1], "name": [5]})), "string", column="name"),
    whole("other kind", "string-as-integer.parquet", as_parquet(pa.table({"id": ["1"]})), "text", column="id"),
    whole("other kind", "float-as-integer.parquet", as_parquet(pa.table({"id": [1.0]})), "int64", column="id"),
    whole("unknown column", "unknown-column.parquet", as_parquet(pa.table({"id": [1], "nmae": ["a"]})), "column 'nmae'"),
    whole("missing column", "no-id-column.parquet", as_parquet(pa.table({"name": ["a"]})), "'id' is missing"),
    value("too-large-for-int8.parquet", as_parquet(pa.table({"id": [1, 2], "small": [127, 128]})), "'128'", 2, "small"),
    value("null-id.parquet", as_parquet(pa.table({"id": [1, 2, None]})), "not nullable", 3, "id", "null"),
    # more of damage
    whole("damaged Parquet", "magic-alone.parquet", b"PAR1", "Parquet"),
    whole("damaged Parquet", "magic-twice.parquet", b"PAR1PAR1", "Parquet"),
    whole("damaged Parquet", "empty.parquet.gz", b"", "Parquet"),
    whole("damaged Parquet", "zeros.parquet", bytes(1000), "Parquet"),
    whole("damaged Parquet", "encrypted.parquet", b"PARE" + PARQUET[4:-4] + b"PARE", "encrypted"),
    whole("damaged Parquet", "footer-of-no-length.parquet", PARQUET[:-8] + bytes(4) + b"PAR1", "Parquet"),
    whole("damaged Parquet", "footer-beyond-the-file.parquet", PARQUET[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1", "Parquet"),
    whole("damaged Parquet", "footer-of-4-gigabytes.parquet", PARQUET[:-8] + bytes([255] * 4) + b"PAR1", "Parquet"),
    whole("damaged Parquet", "footer-of-zeros.parquet", PARQUET[:_FOOTER] + bytes(len(PARQUET) - 8 - _FOOTER) + PARQUET[-8:], "Parquet"),
    whole("damaged Parquet", "magic-of-the-end.parquet", PARQUET[:-1] + b"2", "Parquet"),
    whole("damaged Parquet", "page-checksum.parquet", flip_bit(PARQUET, 2000), "CRC"),
    whole("damaged Parquet", "zeros-in-a-page.parquet", PARQUET[:100] + bytes(500) + PARQUET[600:], "CRC"),
    whole("damaged Parquet", "one-and-a-half.parquet", PARQUET + PARQUET[:-50], "Parquet"),
    value("not-utf-8.parquet", _column("name", NOT_UTF8), "UTF", 1, "name"),
    # more of types
    whole("other kind", "zoned-as-naive.parquet", _column("local", pa.array([1], pa.timestamp("us", "UTC"))), "timestamp[us]", column="local"),
    whole("other kind", "naive-as-zoned.parquet", _column("seen", pa.array([1], pa.timestamp("us"))), "tz=UTC]", column="seen"),
    whole("other kind", "binary-as-string.parquet", _column("name", pa.array([b"\xff"])), "string", column="name"),
    whole("other kind", "list-as-string.parquet", _column("name", [["a"]]), "string", column="name"),
    whole("other kind", "bool-as-integer.parquet", as_parquet(pa.table({"id": [True]})), "int64", column="id"),
    whole("unknown column", "unknown-field-inside.parquet", _column("at", pa.array([{"z": 1}])), "column 'z'", column="at"),
    whole("columns alike", "columns-alike.parquet", as_parquet(pa.table({"ID": [1], "id": [1]})), "columns 'ID'", column="id"),
    whole("column twice", "column-twice.parquet", as_parquet(pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])), "column 'id'"),
    value("nanoseconds.parquet", _column("local", pa.array([1], pa.timestamp("ns"))), "without loss", 1, "local"),
    value("third-place.parquet", _column("paid", _decimals("1.255", 6, 3)), "without loss", 1, "paid"),
    value("too-many-digits.parquet", _column("paid", _decimals("123456.00", 9, 2)), "without loss", 1, "paid"),
    value("beyond-int64.parquet", as_parquet(pa.table({"id": pa.array([2**63], pa.uint64())})), "without loss", 1, "id"),
    value("column-of-nulls.parquet", as_parquet(pa.table({"id": pa.nulls(1)})), "not nullable", 1, "id", "null"),
]  # fmt: skip

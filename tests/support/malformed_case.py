"""What a malformed file is, and short ways to say one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import parquet


@dataclass(frozen=True)
class MalformedFile:
    """A file and the error it must give.

    Args:
        cause: what kind of fault it is; several files may share one.
        name: the file's name, unique among them, with the endings that say its format.
        data: its bytes.
        schema: the table's columns; None to infer them.
        reason: text that the error's message must contain.
        line, row, column: the place the error names; None where there is none.
    """

    cause: str
    name: str
    data: bytes
    schema: pa.Schema | None
    reason: str
    line: int | None = None
    row: int | None = None
    column: str | None = None

    def is_at(self, report: Mapping[str, Any]) -> bool:
        """Whether a report names this place. A fault of the whole file may name a column, if its reason does."""
        place = self.line, self.row, self.column
        named = report["column"] if self.column is not None or f"{report['column']!r}" not in report["reason"] else None
        return (report["line"], report["row"], named) == place


USERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("born", pa.date32()),
        pa.field("seen", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("score", pa.float64()),
        pa.field("paid", pa.decimal128(6, 2)),
        pa.field("small", pa.int8()),
        pa.field("ok", pa.bool_()),
        pa.field("raw", pa.binary()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
    ]
)
"""The schema of the table that most of the files were meant for; only ``id`` is not nullable."""


def text(cause: str, name: str, data: bytes | str, reason: str, line: int, row: int | None = None,
         column: str | None = None, schema: pa.Schema | None = USERS) -> MalformedFile:  # fmt: skip
    """A text file with one bad place in it."""
    return MalformedFile(cause, name, _bytes(data), schema, reason, line, row, column)


def cell(cause: str, name: str, column: str, value: str, reason: str = "") -> MalformedFile:
    """A file of one row, in which this cell of CSV, or value of JSON as it is written, is bad."""
    wrong = reason or f"'{value}' is not a valid"
    if name.endswith(".jsonl"):
        row = "{" + ("" if column == "id" else '"id": 1, ') + f'"{column}": {value}' + "}\n"
        return MalformedFile(cause, name, row.encode(), USERS, reason, 1, 1, column)
    row = f"id\n{value}\n" if column == "id" else f"id,{column}\n1,{value}\n"
    return MalformedFile(cause, name, row.encode(), USERS, wrong, 2, 1, column)


def whole(
    cause: str,
    name: str,
    data: bytes | str,
    reason: str,
    schema: pa.Schema | None = USERS,
    *,
    column: str | None = None,
) -> MalformedFile:
    """A file that is bad as a whole, because of one column if one is named."""
    return MalformedFile(cause, name, _bytes(data), schema, reason, column=column)


def value(name: str, data: bytes, reason: str, row: int, column: str, cause: str = "does not fit") -> MalformedFile:
    """A file of columns with one bad value in it."""
    return MalformedFile(cause, name, data, USERS, reason, row=row, column=column)


def as_parquet(table: pa.Table, **options: object) -> bytes:
    """A Parquet file."""
    sink = io.BytesIO()
    parquet.write_table(table, sink, **options)
    return sink.getvalue()


def flip_bit(data: bytes, place: int) -> bytes:
    """The bytes with those of one place turned over."""
    changed = bytearray(data)
    changed[place] ^= 0xFF
    return bytes(changed)


LINES = b"id,name\n" + b"".join(b"%d,name %d\n" % (n, n) for n in range(1000))
"""A thousand good rows of CSV."""


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data

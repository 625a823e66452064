"""Limits on the columns of a file, checked before they are made: a few bytes could otherwise take all memory."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as t

from dolmen.base.units import KIB, MIB
from dolmen.errors import LimitError
from dolmen.format.schema import is_nested, plain_type

MAX_FIXED_BYTES = 64 * KIB  # the widest values of fixed size in Avro: a NULL takes as much memory as a value
BATCH_ROWS = 65_536  # the most rows that are read at once
BYTES_AT_ONCE = 64 * MIB  # the most bytes of fixed-size values in these rows; wider rows come fewer at a time
MAX_LIST_BYTES = 256 * MIB
"""The memory for the lists of a row, or ``UNPACKING`` times their bytes in the file if that is more."""
MAX_GROUP_LIST_BYTES = 4096 * MIB
"""The same for all rows of a row group of Parquet, which does not say how many values a row has."""
UNPACKING = 16
_VALUE_BYTES = UNPACKING  # the least bytes of memory that a value counts as


def too_many_columns(most: int, where: str = "it") -> LimitError:
    """The error about more columns than ``most``; the caller adds the file's name."""
    return LimitError(
        f"{where} has more than {most:,} columns, counting the fields in columns: split it, or store keys and values "
        "as JSON text; for a table the setting ingest_max_columns allows more"
    )


def check_columns(count: int, max_columns: int, name: str) -> None:
    if count > max_columns:
        raise LimitError(f"file {name!r}: {too_many_columns(max_columns)}")


def count_columns(schema: pa.Schema, most: int) -> int:
    """Counts the columns without children; stops above ``most``."""
    leaves, pending = 0, [field.type for field in reversed(list(schema))]
    while pending and leaves <= most:
        kind = plain_type(pending.pop())
        if is_nested(kind):
            pending += [kind.field(index).type for index in range(kind.num_fields)]
        else:
            leaves += 1
    return leaves


def rows_at_once(schema: pa.Schema, name: str, most: int = BATCH_ROWS) -> int:
    """How many rows of a file to hold in memory at once, if all may be NULL: fewer for many columns."""
    widths = [width(field.type) for field in schema]
    if sum(widths) > BYTES_AT_ONCE:
        widest = schema.field(widths.index(max(widths)))
        raise LimitError(
            f"file {name!r}: a row of NULLs takes {sum(widths):,} bytes of memory, {max(widths):,} of them column "
            f"{widest.name!r}, and at most {BYTES_AT_ONCE:,} are read: write binary values of any length"
        )
    return max(1, min(most, BYTES_AT_ONCE // max(1, sum(widths))))


def width(kind: pa.DataType) -> int:
    """The bytes of memory that a NULL of this type takes, at least."""
    kind = plain_type(kind)
    if t.is_struct(kind):
        return sum(width(field.type) for field in kind)
    if t.is_fixed_size_list(kind):
        return max(_VALUE_BYTES, int(kind.list_size) * width(kind.value_type))
    return max(_VALUE_BYTES, int(kind.byte_width)) if t.is_fixed_size_binary(kind) else _VALUE_BYTES


def check_lists(size: int, stored: int, rows: int, what: str) -> None:
    """Checks the size of lists before they are made: a NULL or a repeated value takes at most a byte of the file.

    Args:
        size, stored: the bytes that they take in memory, and in the file.
        rows: how many rows these lists are in.
        what: the file, the position in it, and the column.
    """
    most = max(min(MAX_LIST_BYTES * rows, MAX_GROUP_LIST_BYTES), UNPACKING * stored)
    if size > most:
        raise LimitError(
            f"{what}: its lists take {size:,} bytes of memory and {stored:,} in the file, as NULLs and repeated values "
            f"do; at most {most:,} are read: leave NULLs out of lists, or write fewer rows at a time"
        )

"""Compares the rows of data files with the partitions that their table says they are of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.store.memory import MemoryBucket
from dolmen.transactions.readable_table import ReadableTable
from dolmen_simulator.judge.never import Never, ViolationError

_TERM = re.compile(r"(?:(bucket|truncate|hour)(?:\[(\d+)\])?\()?(\w+)\)?")
_NULL = "__HIVE_DEFAULT_PARTITION__"


def check_partitions(table: ReadableTable, bucket: MemoryBucket, what: str) -> int:
    """Returns the number of files that are of one partition. Raises ViolationError if a row in one is of another."""
    terms, shown, count = table.partition_by, table.files(), 0
    if not terms:
        return 0
    for path, claimed in zip(shown["path"].to_pylist(), shown["partition"].to_pylist(), strict=True):
        if claimed is None or path not in bucket.objects:
            continue
        rows = pq.read_table(pa.BufferReader(bucket.objects[path].body)).to_pylist()
        found = {"/".join(_name(term, row) for term in terms) for row in rows}
        if found != {claimed}:
            raise ViolationError(Never.MISPLACED, f"{what}: {path} is of {claimed}, and has rows of {sorted(found)}")
        count += 1
    return count


def _name(term: str, row: Mapping[str, Any]) -> str:
    found = _TERM.fullmatch(term)
    assert found is not None, term
    transform, size, column = found[1], int(found[2] or 0), found[3]
    value, word = row[column], {"bucket": "_bucket", "truncate": "_trunc", "hour": "_hour", None: ""}[transform]
    if value is None:
        return f"{column}{word}={_NULL}"
    if transform == "hour":
        assert isinstance(value, datetime)
        return f"{column}{word}={value:%Y-%m-%d-%H}"
    if transform == "truncate":
        value -= value % size
    if transform == "bucket":
        value = (_murmur3(value.to_bytes(8, "little", signed=True)) & 0x7FFFFFFF) % size
    return f"{column}{word}={value}"


def _murmur3(body: bytes) -> int:
    """The 32-bit hash of whole words."""
    value = 0
    for start in range(0, len(body), 4):
        word = int.from_bytes(body[start : start + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        value ^= (word << 15 | word >> 17) * 0x1B873593 & 0xFFFFFFFF
        value = ((value << 13 | value >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
    value ^= len(body)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ value >> shift) * factor & 0xFFFFFFFF
    return value

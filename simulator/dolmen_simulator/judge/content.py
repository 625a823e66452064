"""Computes the rows of a version from its objects, independently of the code under test.

A tombstone hides the rows that it matches in files that it is newer than, and a vector hides its positions. This
module implements that rule again, in plain Python over rows that pyarrow reads and bitmaps that pyroaring reads.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.stored import StoredBlob, StoredFile, StoredTable, StoredTombstone, StoredVector

COMMIT_TS = "_commit_ts"
_OWN_COLUMNS = 5
"""The columns that all tables have are the first ones: ids from 1 on."""

Values: TypeAlias = dict[int, Any]
"""A row: values by column id. Times are microseconds."""

Ternary: TypeAlias = bool | None


class StoredRow(NamedTuple):
    """A visible row of a version.

    Args:
        values: values of the columns that all tables have, in the order of their ids.
        ts: commit timestamp.
    """

    values: tuple[Any, ...]
    ts: int


class _Data(NamedTuple):
    """A decoded data file: its rows as tuples and by column id, and their commit timestamps if the file has them."""

    rows: list[tuple[Any, ...]]
    values: list[Values]
    timestamps: list[int] | None


class Content:
    """Reads the rows of tables. Keeps the decoded content of immutable objects.

    Args:
        bucket: the bucket, read directly and not through a store.
    """

    def __init__(self, bucket: MemoryBucket) -> None:
        self._bucket = bucket
        self._data: dict[str, _Data] = {}
        self._matched: dict[tuple[StoredBlob, str], frozenset[int]] = {}
        self._tests: dict[StoredBlob, Callable[[Values], bool]] = {}
        self._rows_shown: dict[str, tuple[Any, tuple[StoredRow, ...]]] = {}

    def rows(self, table: StoredTable) -> list[StoredRow]:
        """The table's rows, in no order. KeyError names an object that is missing."""
        times = [tombstone.ts for tombstone in table.tombstones]
        rows: list[StoredRow] = []
        for file in table.files:
            newer = table.tombstones[bisect.bisect_right(times, file.applied_through) :]
            rows += self._of_file(file, newer)
        return rows

    def positions(self, vector: StoredVector) -> set[int]:
        """Deleted positions. KeyError names an object that is missing."""
        return set(BitMap.deserialize(self._bytes(vector)))

    def values(self, path: str) -> list[Values]:
        """All rows of a data file, the hidden ones included. KeyError if it is missing."""
        self._bucket.objects[path]
        return self._read(path).values

    def _of_file(self, file: StoredFile, newer: tuple[StoredTombstone, ...]) -> tuple[StoredRow, ...]:
        key = file.row_ts, file.vector, tuple(tombstone.blob for tombstone in newer)
        known = self._rows_shown.get(file.path)
        if known is not None and known[0] == key:
            return known[1]
        data = self._read(file.path)
        gone = self.positions(file.vector) if file.vector else set()
        gone = gone.union(*(self._matches(tombstone, file.path) for tombstone in newer))
        timestamps = data.timestamps or [file.row_ts or 0] * len(data.rows)
        shown = tuple(StoredRow(row, timestamps[index]) for index, row in enumerate(data.rows) if index not in gone)
        self._rows_shown[file.path] = key, shown
        return shown

    def _matches(self, tombstone: StoredTombstone, path: str) -> frozenset[int]:
        """Positions of a file's rows that a tombstone matches."""
        key = tombstone.blob, path
        if key not in self._matched:
            test = self._tests.get(tombstone.blob)
            if test is None:
                test = self._tests[tombstone.blob] = self._test(tombstone)
            self._matched[key] = frozenset(i for i, row in enumerate(self._read(path).values) if test(row))
        return self._matched[key]

    def _test(self, tombstone: StoredTombstone) -> Callable[[Values], bool]:
        if tombstone.kind == "where":
            truth = compile_predicate(tombstone.predicate or msgspec.json.decode(self._bytes(tombstone.blob)))
            return lambda row: truth(row) is True
        columns = tombstone.columns
        if tombstone.values is not None:
            keys = set(zip(*tombstone.values, strict=True))
        else:
            table = pq.ParquetFile(pa.BufferReader(self._bytes(tombstone.blob))).read(use_threads=False)
            keys = set(zip(*(_plain(table[str(column)]) for column in columns), strict=True))
        return lambda row: tuple(row.get(column) for column in columns) in keys

    def _read(self, path: str) -> _Data:
        if path not in self._data:
            table = pq.ParquetFile(pa.BufferReader(self._bucket.objects[path].body)).read(use_threads=False)
            timestamps = table[COMMIT_TS].to_pylist() if COMMIT_TS in table.column_names else None
            columns = {
                int(field.metadata[b"PARQUET:field_id"]): _plain(table[field.name])
                for field in table.schema
                if field.name != COMMIT_TS
            }
            for field in (field for field in table.schema if pa.types.is_struct(field.type)):
                for part in field.type:
                    structs = table[field.name].to_pylist()
                    values_of_part = [None if struct is None else struct[part.name] for struct in structs]
                    columns[int(part.metadata[b"PARQUET:field_id"])] = values_of_part
            own = [columns[id_] for id_ in sorted(columns) if id_ <= _OWN_COLUMNS]
            rows = list(zip(*own, strict=True))
            values = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            self._data[path] = _Data(rows, values, timestamps)
        return self._data[path]

    def _bytes(self, place: StoredBlob | StoredVector) -> bytes:
        return self._bucket.objects[place.object].body[place.offset : place.offset + place.length]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    plain: list[Any] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return plain


# ---- predicates ------------------------------------------------------------------------------------------------------

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def compile_predicate(node: dict[str, Any]) -> Callable[[Values], Ternary]:
    """Compiles a predicate's JSON to a function of a row that returns TRUE, FALSE or NULL.

    Supports integers and times, the only types of histories.
    """
    match node["kind"]:
        case "constant":
            value = node["value"]
            return lambda row: value
        case "compare":
            return _compare(node)
        case "in":
            column, values, null = node["column"]["id"], frozenset(node["values"]), node.get("null", False)
            return lambda row: None if row.get(column) is None else row[column] in values or (None if null else False)
        case "is_null":
            column = node["column"]["id"]
            return lambda row: row.get(column) is None
        case "not":
            arg = compile_predicate(node["arg"])
            return lambda row: None if (truth := arg(row)) is None else not truth
        case "and" | "or":
            args, decides = [compile_predicate(arg) for arg in node["args"]], node["kind"] == "or"
            return lambda row: _combine([arg(row) for arg in args], decides)
    raise NotImplementedError(f"histories have no predicates of kind {node['kind']!r}")


def _compare(node: dict[str, Any]) -> Callable[[Values], Ternary]:
    compare, left, right = _COMPARISONS[node["op"]], node["left"]["id"], node["right"]
    literal = right["kind"] == "literal"

    def truth(row: Values) -> Ternary:
        a, b = row.get(left), right["value"] if literal else row.get(right["id"])
        return None if a is None or b is None else compare(a, b)

    return truth


def _combine(truths: list[Ternary], decides: bool) -> Ternary:
    """AND or OR: one deciding value decides, otherwise NULL leaves the result NULL."""
    if decides in truths:
        return decides
    return None if None in truths else not decides

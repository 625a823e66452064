"""Checks data files against their entries: the footers of a sample of files, or all bytes of all files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.commit.context import Context
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.column_history import widening_problem
from dolmen.format.entries import Bounds, DataFile, bounds, constant_bounds
from dolmen.format.layout import file_label
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import COMMIT_TS_FIELD, COMMIT_TS_ID, is_nested
from dolmen.format.types import Plain, short_type, to_plain
from dolmen.maintenance.verify.verify_report import FindingLog
from dolmen.rows.scan.data_objects import DataFileFooter, coalesce, data_object, first_request, local_path
from dolmen.rows.scan.file_bytes import FileBytes
from dolmen.rows.scan.row_groups import filters_range
from dolmen.rows.write.conform import first_invalid


@dataclass(frozen=True)
class Opened:
    """A data file with its footer; ``body`` has all its bytes if they came with the footer."""

    file: DataFile
    footer: DataFileFooter
    body: bytes | None


@dataclass
class Facts:
    """Bounds and counts of the values of some rows, by column id.

    Args:
        rows: number of rows decoded.
        found: (kind, reason) of faults that were found while decoding.
        invalid: ids of columns with values that are invalid for their type, and so have no bounds.
    """

    rows: int = 0
    known: dict[int, Bounds] = field(default_factory=dict)
    found: list[tuple[str, str]] = field(default_factory=list)
    invalid: set[int] = field(default_factory=set)

    def add(self, other: Facts) -> None:
        """Adds the facts of more rows of the same columns."""
        for id_, more in other.known.items():
            own = self.known.get(id_)
            self.known[id_] = more if own is None else _join_bounds(own, more)
        self.rows += other.rows
        self.found += other.found
        self.invalid |= other.invalid


class DataCheck:
    """Checks data files of one table.

    Args:
        name: the table's name.
        entry: the table's entry, with a schema.
        skip: keys of files that are missing or have a wrong size.
    """

    def __init__(self, context: Context, name: str, entry: TableEntry, log: FindingLog, skip: set[str]) -> None:
        self._context, self._name, self._entry, self._log, self._skip = context, name, entry, log, skip
        self._types = {id_: column.arrow_type for id_, column in entry.schema.by_id.items()}

    def check_footers(self, files: Iterator[DataFile], total: int) -> None:
        """Opens the files: one request each."""
        for _ in self._open_all(files, total):
            pass

    def check_data(self, files: Iterator[DataFile], total: int) -> None:
        """Reads the files whole, one row group per processor at a time."""
        groups = ((one, group) for one in self._open_all(files, total) for group in range(len(one.footer.firsts)))
        decoded = self._context.runtime.compute(self._decode, groups)
        for file, some in groupby(decoded, key=lambda item: item[0]):
            facts = Facts()
            for _, more in some:
                self._log.count("row groups")
                facts.add(more)
            self._judge(file, facts)

    def _add_finding(self, kind: str, file: DataFile, reason: str) -> None:
        self._log.add(kind, file_label(file.path), reason, table=self._name, rows=file.rows)

    # ---- footers

    def _open_all(self, files: Iterator[DataFile], total: int) -> Iterator[Opened]:
        sound = (file for file in files if file.path not in self._skip)
        for file, opened in self._context.runtime.map(self._open, sound):
            self._log.count("footers", total=total)
            if isinstance(opened, tuple):
                self._add_finding(opened[0], file, opened[1])
                continue
            for reason in self._columns(opened):
                self._add_finding("file-columns", file, reason)
            yield opened

    def _open(self, file: DataFile) -> tuple[DataFile, Opened | tuple[str, str]]:
        wanted = first_request(file)
        try:
            there = data_object(self._context.store, file.path)
            body = there.store.get(there.key, wanted).body
        except ObjectNotFoundError:
            return file, ("file-missing", "it is missing")
        except CorruptionError as error:
            return file, ("file-missing", error.reason)
        tail = body[file.footer[0] - wanted.start :]
        if len(body) != file.size - wanted.start:
            return file, ("file-size", f"{len(body) + wanted.start:,} bytes, not {file.size:,}")
        if len(tail) != file.footer[1] or crc32(tail) != file.footer[2]:
            return file, ("footer-damaged", "the footer's length or checksum is not that of the entry")
        try:
            footer = DataFileFooter.parse(tail, file, self._entry.schema.mapping)
        except CorruptionError as error:
            return file, ("row-count" if " rows, not the " in error.reason else "footer-damaged", error.reason)
        return file, Opened(file, footer, body if wanted.start == 0 else None)

    def _columns(self, opened: Opened) -> Iterator[str]:
        there = opened.footer.columns
        if (opened.file.row_ts is None) != (COMMIT_TS_ID in there):
            yield f"_commit_ts is{'' if COMMIT_TS_ID in there else ' not'} there, and row_ts {opened.file.row_ts}"
        for column in self._entry.schema.fields:
            own = there.get(column.id)
            if own is None and not column.nullable and column.initial_default is None:
                yield f"column {column.name!r}, which can't be NULL, is not there"
            elif own is not None and not _fits(own.type, column.arrow_type):
                yield f"column {column.name!r} is {short_type(own.type)}, which is no {short_type(column.arrow_type)}"
        if opened.footer.is_adopted:
            return  # other writers have columns of their own, which no table has
        schema = self._entry.schema
        known = {COMMIT_TS_ID, *schema.by_id}
        if strange := sorted(id_ for id_ in there if id_ >= schema.next_id and id_ not in known):
            yield f"columns with ids {strange}, never given out"

    # ---- data

    def _decode(self, item: tuple[Opened, int]) -> tuple[DataFile, Facts]:
        opened, group = item
        file, footer = opened.file, opened.footer
        place = f"row group {group}: "
        facts = Facts()
        if not group:
            facts.found += self._check_other_bytes(opened)
        ids = frozenset(footer.columns)
        try:
            table = self._source(opened, group, ids).read(group, footer.leaves(ids))
        except (OSError, pa.ArrowException, ObjectNotFoundError) as error:
            facts.found.append(("data-damaged", place + str(error)))
            facts.rows = footer.rows(group)
            return file, facts
        facts.rows = table.num_rows
        columns = dict(zip(footer.columns, table.columns, strict=True))
        for id_, column in columns.items():
            if id_ != COMMIT_TS_ID and id_ not in self._types:
                continue
            if fault := _first_invalid(column):
                reason = f"{place}row {fault[0] + 1} of it, column {self._column_label(id_)}: {fault[1]}"
                facts.found.append(("value-invalid", reason))
                facts.invalid.add(id_)
                continue
            wanted = pa.int64() if id_ == COMMIT_TS_ID else self._types[id_]
            alike = column.type == wanted or is_nested(wanted)
            facts.known[id_] = found = _bounds(column if alike else column.cast(wanted))
            field = COMMIT_TS_FIELD if id_ == COMMIT_TS_ID else self._entry.schema.by_id[id_]
            claimed = footer.bounds(group, field, file.stats[id_].nans if id_ in file.stats else None)
            if wrong := _untrue(claimed, found):
                facts.found.append(("stats-untrue", f"{place}footer, column {self._column_label(id_)}: {wrong}"))
        by_leaf = {column.leaves[0]: id_ for id_, column in footer.columns.items()}
        # its own: the table's sort key may have changed since. Other writers have orders that dolmen has not
        order = () if footer.is_adopted else footer.metadata.row_group(group).sorting_columns
        keys = [columns[by_leaf[sorted_.column_index]] for sorted_ in order if sorted_.column_index in by_leaf]
        if keys and not _is_sorted(keys):
            facts.found.append(("row-order", place + "rows are not in the order that the file claims"))
        return file, facts

    def _check_other_bytes(self, opened: Opened) -> Iterator[tuple[str, str]]:
        """Checks bytes outside of column chunks: a scan does without Bloom filters that are damaged, silently."""
        file, footer = opened.file, opened.footer
        place = filters_range(footer)
        if file.filters and (place is None or place.start != file.filters):
            yield "index-damaged", f"there are no Bloom filters at byte {file.filters:,}, where the entry has them"
        for start, end, states in footer.sums.others(footer.metadata) if footer.sums else ():
            if opened.body is not None:
                body = opened.body[start:end]
            else:
                body = self._context.store.get(file.path, (start, end)).body
            if not states.fit(body):
                yield "index-damaged", f"bytes {start:,} to {end:,}: checksum differs"

    def _source(self, opened: Opened, group: int, ids: frozenset[int]) -> FileBytes:
        file, footer, store = opened.file, opened.footer, self._context.store
        if opened.body is not None:
            return FileBytes.from_ranges([(0, opened.body)], file.size, footer)
        if path := local_path(store, file.path):
            return FileBytes.from_path(path, footer)
        there, parts = data_object(store, file.path), []
        for wanted in coalesce(footer.ranges(group, ids)):
            body = there.store.get(there.key, wanted).body
            if len(body) != wanted.length:
                raise OSError(f"{len(body)} bytes at {wanted.start}, not {wanted.length}")
            parts.append((wanted.start, body))
        return FileBytes.from_ranges(parts, file.size, footer)

    def _judge(self, file: DataFile, facts: Facts) -> None:
        """Compares all values of a file with its entry."""
        for kind, reason in facts.found:
            self._add_finding(kind, file, reason)
        if any(kind == "data-damaged" for kind, _ in facts.found):
            return  # data that was not read cannot be judged
        if facts.rows != file.rows:
            self._add_finding("row-count", file, f"{facts.rows:,} rows, not {file.rows:,}")
        for id_, raw in file.stats.items():
            arrow_type = self._types.get(id_)
            if arrow_type is None or id_ in facts.invalid:
                continue
            claimed = Bounds(nulls=raw.nulls) if is_nested(arrow_type) else bounds(raw, arrow_type)
            field = self._entry.schema.by_id[id_]
            lacking = constant_bounds(field.initial_default, arrow_type, facts.rows)
            wrong = _untrue(claimed, facts.known.get(id_, lacking))
            if wrong:
                self._add_finding("stats-untrue", file, f"column {self._column_label(id_)}: {wrong}")
        if file.row_ts is None and file.row_ts_bounds and COMMIT_TS_ID in facts.known:
            own, (least, greatest) = facts.known[COMMIT_TS_ID], file.row_ts_bounds
            if own.nulls or _untrue(Bounds(least, greatest), own):
                reason = f"rows of {own.min!r} to {own.max!r}, {own.nulls} without; the entry: {least} to {greatest}"
                self._add_finding("row-timestamps", file, reason)

    def _column_label(self, id_: int) -> str:
        return "_commit_ts" if id_ == COMMIT_TS_ID else repr(self._entry.schema.by_id[id_].name)


def _first_invalid(column: pa.ChunkedArray) -> tuple[int, str] | None:
    """Place and reason of the first value that is invalid for the column's type."""
    start = 0
    for chunk in column.chunks:
        if fault := first_invalid(chunk):
            return start + fault[0], fault[1]
        start += len(chunk)
    return None


def _bounds(column: pa.ChunkedArray) -> Bounds:
    """Exact bounds of all values, without NaN."""
    if is_nested(column.type):
        return Bounds(nulls=column.null_count)
    nans = 0
    if pa.types.is_floating(column.type):
        nans = pc.sum(pc.is_nan(column), min_count=0).as_py()
    ends = pc.min_max(column)  # ignores NULL, and ignores NaN where there are other values
    least, greatest = to_plain(pa.array([ends["min"], ends["max"]], column.type))
    if isinstance(least, float) and math.isnan(least):
        least = greatest = None
    return Bounds(least, greatest, column.null_count, nans)


def _join_bounds(a: Bounds, b: Bounds) -> Bounds:
    def pick(choose: Any, *values: Plain) -> Plain:
        there = [value for value in values if value is not None]
        return choose(there) if there else None

    nulls = None if a.nulls is None or b.nulls is None else a.nulls + b.nulls
    nans = None if a.nans is None or b.nans is None else a.nans + b.nans
    return Bounds(pick(min, a.min, b.min), pick(max, a.max, b.max), nulls, nans)


def _untrue(claimed: Bounds, found: Bounds) -> str:
    """How the exact bounds ``found`` contradict the claimed ones; "" if they do not."""
    least: Any = found.min
    greatest: Any = found.max
    if claimed.min is not None and least is not None and least < claimed.min:
        return f"a value of {least!r}, and the least is said to be {claimed.min!r}"
    if claimed.max is not None and greatest is not None and claimed.max < greatest:
        return f"a value of {greatest!r}, and the greatest is said to be {claimed.max!r}"
    if claimed.nulls is not None and claimed.nulls != found.nulls:
        return f"{found.nulls} NULL, said to be {claimed.nulls}"
    if claimed.nans is not None and found.nans is not None and claimed.nans != found.nans:
        return f"{found.nans} NaN, said to be {claimed.nans}"
    return ""


def _is_sorted(keys: list[pa.ChunkedArray]) -> bool:
    """Whether a stable sort (NULLs last, NaN before them) leaves every row in its place."""
    names = [str(place) for place in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names), sort_keys=[(name, "ascending") for name in names])
    places = order.to_numpy()
    return bool((np.diff(places.astype(np.int64)) > 0).all())


def _fits(own: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of the file's type is a value of the table's type."""
    return (is_nested(own) and is_nested(wanted)) or not widening_problem(own, wanted)

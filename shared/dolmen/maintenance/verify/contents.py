"""Checks the bytes of data files and of ``.del`` objects against their entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import SEEK_END, BytesIO
from itertools import groupby
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.units import MIB
from dolmen.commit.head import Context
from dolmen.entries.partitions import recorded_values
from dolmen.entries.segments.row_bounds import recorded_predicate
from dolmen.errors import CorruptionError, Error, ObjectNotFoundError, UnsupportedFormatError
from dolmen.format.column_history import widen, widening_problem
from dolmen.format.column_terms import SortTerm
from dolmen.format.del_object import (
    BlobInfo,
    Keys,
    TombstoneFooter,
    decode_keys,
    decode_keys_in_parts,
    decode_vector,
    inline_keys,
    plain_values,
    read_footer,
)
from dolmen.format.entries import Blob, Bounds, DataFile, KeysTombstone, Tombstone, Vector, bounds, constant_bounds
from dolmen.format.layout import file_label
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import COMMIT_TS_FIELD, COMMIT_TS_ID, is_nested, type_from_json
from dolmen.format.transforms import Transform
from dolmen.format.types import Plain, short_type, to_json, to_plain
from dolmen.maintenance.verify.findings import FindingLog
from dolmen.predicate.ast import from_builtins
from dolmen.rows.scan.bloom_probes import filters_range
from dolmen.rows.scan.data_objects import DataFileFooter, coalesce, data_object, first_request, local_path
from dolmen.rows.scan.file_bytes import FileBytes
from dolmen.rows.write.conform import first_invalid
from dolmen.rows.write.row_order import KeyArray, term_keys


@dataclass(frozen=True)
class OpenedFile:
    """A data file with its footer; ``body`` has all its bytes if they came with the footer."""

    file: DataFile
    footer: DataFileFooter
    body: bytes | None


@dataclass
class ColumnFigures:
    """Bounds and counts of the values of some rows, by column id."""

    rows: int = 0
    bounds: dict[int, Bounds] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)  # (kind, reason) of problems in decoding
    # ids of columns without bounds, because a value is invalid for its type
    invalid: set[int] = field(default_factory=set)

    def add(self, other: ColumnFigures) -> None:
        for id_, added in other.bounds.items():
            previous = self.bounds.get(id_)
            self.bounds[id_] = added if previous is None else _join_bounds(previous, added)
        self.rows += other.rows
        self.problems += other.problems
        self.invalid |= other.invalid


class DataCheck:
    """Checks data files of one table, except the paths to skip, which are missing or have a wrong size."""

    def __init__(self, context: Context, name: str, entry: TableEntry, log: FindingLog, skip: set[str]) -> None:
        self._context, self._name, self._entry, self._log, self._skip = context, name, entry, log, skip
        self._types = {id_: column.arrow_type for id_, column in entry.schema.by_id.items()}

    def check_footers(self, files: Iterator[DataFile], total: int) -> None:
        for _ in self._open_all(files, total):
            pass

    def check_data(self, files: Iterator[DataFile], total: int) -> None:
        """Reads the files whole, one row group per processor at a time."""
        groups = ((one, group) for one in self._open_all(files, total) for group in range(len(one.footer.firsts)))
        decoded = self._context.runtime.compute(self._decode, groups)
        for file, parts in groupby(decoded, key=lambda item: item[0]):
            figures = ColumnFigures()
            for _, part in parts:
                self._log.count("row groups")
                figures.add(part)
            self._judge(file, figures)

    def _add_finding(self, kind: str, file: DataFile, reason: str) -> None:
        self._log.add(kind, file_label(file.path), reason, table=self._name, rows=file.rows)

    # ---- footers

    def _open_all(self, files: Iterator[DataFile], total: int) -> Iterator[OpenedFile]:
        present = (file for file in files if file.path not in self._skip)
        for file, opened in self._context.runtime.map(self._open, present):
            self._log.count("footers", total=total)
            if isinstance(opened, tuple):
                self._add_finding(opened[0], file, opened[1])
                continue
            for reason in self._find_column_problems(opened):
                self._add_finding("file-columns", file, reason)
            yield opened

    def _open(self, file: DataFile) -> tuple[DataFile, OpenedFile | tuple[str, str]]:
        expected = first_request(file)
        try:
            location = data_object(self._context.store, file.path)
            body = location.store.get(location.key, expected).body
        except ObjectNotFoundError:
            return file, ("file-missing", "it is missing")
        except CorruptionError as error:
            return file, ("file-missing", error.reason)
        tail = body[file.footer[0] - expected.start :]
        if len(body) != file.size - expected.start:
            return file, ("file-size", f"{len(body) + expected.start:,} bytes, not {file.size:,}")
        if len(tail) != file.footer[1] or crc32(tail) != file.footer[2]:
            return file, ("footer-damaged", "the footer's length or checksum is not that of the entry")
        try:
            footer = DataFileFooter.parse(tail, file, self._entry.schema.mapping)
        except CorruptionError as error:
            return file, ("row-count" if " rows, not the " in error.reason else "footer-damaged", error.reason)
        return file, OpenedFile(file, footer, body if expected.start == 0 else None)

    def _find_column_problems(self, opened: OpenedFile) -> Iterator[str]:
        columns = opened.footer.columns
        if (opened.file.row_ts is None) != (COMMIT_TS_ID in columns):
            yield f"_commit_ts is{'' if COMMIT_TS_ID in columns else ' not'} there, and row_ts {opened.file.row_ts}"
        for column in self._entry.schema.fields:
            own, constant = columns.get(column.id), opened.footer.constants.get(column.id)
            # Rows of files from before the column are all deleted where it is not nullable and has no default.
            is_null_before = column.initial_default is None and not column.added_ts
            lacks = is_null_before if constant is None else constant.value is None
            if constant is not None and not _can_become(type_from_json(constant.type), column.arrow_type):
                yield f"constant {column.name!r} is {constant.type}, which is not {short_type(column.arrow_type)}"
            if own is None and not column.nullable and lacks:
                yield f"column {column.name!r}, which can't be NULL, is not there"
            elif own is not None and not _can_become(own.type, column.arrow_type):
                yield f"column {column.name!r} is {short_type(own.type)}, which is not {short_type(column.arrow_type)}"
        if opened.footer.is_adopted:
            return  # other writers have columns of their own, which no table has
        schema = self._entry.schema
        known_ids = {COMMIT_TS_ID, *schema.by_id}
        if unknown_ids := sorted(id_ for id_ in columns if id_ >= schema.next_id and id_ not in known_ids):
            yield f"columns with ids {unknown_ids}, never given out"

    # ---- data

    def _decode(self, item: tuple[OpenedFile, int]) -> tuple[DataFile, ColumnFigures]:
        opened, group = item
        file, footer = opened.file, opened.footer
        label = f"row group {group}: "
        figures = ColumnFigures()
        if not group:
            figures.problems += self._check_other_bytes(opened)
        ids = frozenset(footer.columns)
        try:
            table = self._source(opened, group, ids).read(group, footer.leaves(ids))
        except (OSError, pa.ArrowException, ObjectNotFoundError) as error:
            figures.problems.append(("data-damaged", label + str(error)))
            figures.rows = footer.rows(group)
            return file, figures
        figures.rows = table.num_rows
        columns = dict(zip(footer.columns, table.columns, strict=True))
        self._check_columns(opened, group, columns, figures)
        figures.problems += (
            ("stats-untrue", label + each) for each in self._check_recorded_values(file, columns, figures)
        )
        if (keys := self._claimed_order(opened, group, columns)) and not _is_sorted(keys):
            figures.problems.append(("row-order", label + "rows are not in the order that the file claims"))
        return file, figures

    def _check_columns(
        self, opened: OpenedFile, group: int, columns: Mapping[int, pa.ChunkedArray], figures: ColumnFigures
    ) -> None:
        """Checks the values of each column, and the bounds that the footer claims."""
        file, footer, label = opened.file, opened.footer, f"row group {group}: "
        for id_, column in columns.items():
            if id_ != COMMIT_TS_ID and id_ not in self._types:
                continue
            if problem := _first_invalid(column):
                reason = f"{label}row {problem[0] + 1} of it, column {self._column_label(id_)}: {problem[1]}"
                figures.problems.append(("value-invalid", reason))
                figures.invalid.add(id_)
                continue
            expected = pa.int64() if id_ == COMMIT_TS_ID else self._types[id_]
            is_same_type = column.type == expected or is_nested(expected)
            figures.bounds[id_] = actual = _bounds(column if is_same_type else column.cast(expected))
            field = COMMIT_TS_FIELD if id_ == COMMIT_TS_ID else self._entry.schema.by_id[id_]
            claimed = footer.bounds(group, field, file.stats[id_].nans if id_ in file.stats else None)
            if wrong := _find_contradiction(claimed, actual):
                figures.problems.append(("stats-untrue", f"{label}footer, column {self._column_label(id_)}: {wrong}"))

    def _check_recorded_values(
        self, file: DataFile, columns: Mapping[int, pa.ChunkedArray], figures: ColumnFigures
    ) -> Iterator[str]:
        """Checks the values of transforms that all rows of a file are said to have."""
        for transform, id_, value in recorded_values(file):
            if (column := columns.get(id_)) is not None and id_ not in figures.invalid:
                found = transform.array(pc.unique(column.combine_chunks()))
                if other := next((each for each in map(to_json, to_plain(found)) if each != value), None):
                    yield f"{transform} of column {self._column_label(id_)} is {other!r}, said to be {value!r}"

    def _claimed_order(self, opened: OpenedFile, group: int, columns: Mapping[int, pa.ChunkedArray]) -> list[KeyArray]:
        """The keys by which a file claims that its rows are sorted.

        It is the file's own order, because the table's sort key may have changed. Other writers have other orders.
        """
        footer = opened.footer
        by_leaf = {column.leaves[0]: id_ for id_, column in footer.columns.items()}
        order = () if footer.is_adopted else footer.metadata.row_group(group).sorting_columns
        return [
            key
            for by in order
            if (by_id := by_leaf.get(by.column_index)) is not None
            for key in term_keys(SortTerm(by_id, Transform(), by.descending, by.nulls_first), columns[by_id])
        ]

    def _check_other_bytes(self, opened: OpenedFile) -> Iterator[tuple[str, str]]:
        """Checks bytes outside of column chunks, because a scan silently ignores damaged Bloom filters."""
        file, footer = opened.file, opened.footer
        filters = filters_range(footer)
        if file.filters and (filters is None or filters.start != file.filters):
            yield "index-damaged", f"there are no Bloom filters at byte {file.filters:,}, where the entry has them"
        for start, end, states in footer.sums.other_bytes(footer.metadata) if footer.sums else ():
            if opened.body is not None:
                body = opened.body[start:end]
            else:
                body = self._context.store.get(file.path, (start, end)).body
            if not states.match(body):
                yield "index-damaged", f"bytes {start:,} to {end:,}: checksum differs"

    def _source(self, opened: OpenedFile, group: int, ids: frozenset[int]) -> FileBytes:
        file, footer, store = opened.file, opened.footer, self._context.store
        if opened.body is not None:
            return FileBytes.from_ranges([(0, opened.body)], file.size, footer)
        if path := local_path(store, file.path):
            return FileBytes.from_path(path, footer)
        location, parts = data_object(store, file.path), []
        for expected in coalesce(footer.ranges(group, ids)):
            body = location.store.get(location.key, expected).body
            if len(body) != expected.length:
                raise OSError(f"{len(body)} bytes at {expected.start}, not {expected.length}")
            parts.append((expected.start, body))
        return FileBytes.from_ranges(parts, file.size, footer)

    def _judge(self, file: DataFile, figures: ColumnFigures) -> None:
        for kind, reason in figures.problems:
            self._add_finding(kind, file, reason)
        if any(kind == "data-damaged" for kind, _ in figures.problems):
            return  # without its data, nothing else can be judged
        if figures.rows != file.rows:
            self._add_finding("row-count", file, f"{figures.rows:,} rows, not {file.rows:,}")
        for id_, raw in file.stats.items():
            arrow_type = self._types.get(id_)
            if arrow_type is None or id_ in figures.invalid:
                continue
            claimed = Bounds(nulls=raw.nulls) if is_nested(arrow_type) else bounds(raw, arrow_type)
            field = self._entry.schema.by_id[id_]
            value = field.initial_default
            if constant := file.constants.get(id_):
                value = widen(constant.value, type_from_json(constant.type), arrow_type)
            defaults = constant_bounds(value, arrow_type, figures.rows)
            contradiction = _find_contradiction(claimed, figures.bounds.get(id_, defaults))
            if contradiction:
                self._add_finding("stats-untrue", file, f"column {self._column_label(id_)}: {contradiction}")
        if file.row_ts is None and file.row_ts_bounds and COMMIT_TS_ID in figures.bounds:
            own, (least, greatest) = figures.bounds[COMMIT_TS_ID], file.row_ts_bounds
            if own.nulls or _find_contradiction(Bounds(least, greatest), own):
                reason = f"rows of {own.min!r} to {own.max!r}, {own.nulls} without; the entry: {least} to {greatest}"
                self._add_finding("row-timestamps", file, reason)

    def _column_label(self, id_: int) -> str:
        return "_commit_ts" if id_ == COMMIT_TS_ID else repr(self._entry.schema.by_id[id_].name)


def _first_invalid(column: pa.ChunkedArray) -> tuple[int, str] | None:
    """Index and reason of the first value that is invalid for the column's type."""
    start = 0
    for chunk in column.chunks:
        if problem := first_invalid(chunk):
            return start + problem[0], problem[1]
        start += len(chunk)
    return None


def _bounds(column: pa.ChunkedArray) -> Bounds:
    """Exact bounds of all values, without NaN: found without the code of ``rows.write``, which they check."""
    if is_nested(column.type):
        return Bounds(nulls=column.null_count)
    values, nans = column, 0
    if pa.types.is_floating(column.type):
        values = column.filter(pc.invert(pc.is_nan(column)))  # leaves out NULL too
        nans = len(column) - column.null_count - len(values)
    ends = pc.min_max(values)  # ignores NULL
    least, greatest = to_plain(pa.array([ends["min"], ends["max"]], column.type))
    return Bounds(least, greatest, column.null_count, nans)


def _join_bounds(a: Bounds, b: Bounds) -> Bounds:
    def pick(choose: Any, *values: Plain) -> Plain:
        present = [value for value in values if value is not None]
        return choose(present) if present else None

    nulls = None if a.nulls is None or b.nulls is None else a.nulls + b.nulls
    nans = None if a.nans is None or b.nans is None else a.nans + b.nans
    return Bounds(pick(min, a.min, b.min), pick(max, a.max, b.max), nulls, nans)


def _find_contradiction(claimed: Bounds, actual: Bounds) -> str:
    """How the actual bounds contradict the claimed ones; "" if they do not."""
    least: Any = actual.min
    greatest: Any = actual.max
    if claimed.min is not None and least is not None and least < claimed.min:
        return f"a value of {least!r}, and the least is said to be {claimed.min!r}"
    if claimed.max is not None and greatest is not None and claimed.max < greatest:
        return f"a value of {greatest!r}, and the greatest is said to be {claimed.max!r}"
    if claimed.nulls is not None and claimed.nulls != actual.nulls:
        return f"{actual.nulls} NULL, said to be {claimed.nulls}"
    if claimed.nans is not None and actual.nans is not None and claimed.nans != actual.nans:
        return f"{actual.nans} NaN, said to be {claimed.nans}"
    return ""


def _is_sorted(keys: list[KeyArray]) -> bool:
    """Whether a stable sort (NULLs last, NaN before them) moves no row."""
    names = [str(index) for index in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names), sort_keys=[(name, "ascending") for name in names])
    indexes = order.to_numpy()
    return bool((np.diff(indexes.astype(np.int64)) > 0).all())


def _can_become(own: pa.DataType, expected: pa.DataType) -> bool:
    """Whether every value of the file's type is a value of the table's type."""
    return (is_nested(own) and is_nested(expected)) or not widening_problem(own, expected)


WHOLE_BYTES = 32 * MIB  # objects larger than this, in bytes, are read blob by blob and not held in memory as a whole


@dataclass
class DeleteObject:
    """The parts of one ``.del`` object that a version needs; each vector with its data file's uuid and physical rows.

    ``uuid`` is "" for a clone, whose objects may belong to any table in its lineage.
    """

    key: str
    table: str
    uuid: str
    tombstones: list[Tombstone] = field(default_factory=list)
    vectors: list[tuple[Vector, str, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        ends = [t.blob.offset + t.blob.length for t in self.tombstones]
        return max([*ends, *(v.offset + v.length for v, _, _ in self.vectors)])

    @property
    def rows(self) -> int:
        """Rows that its vectors delete, and that would come back without it."""
        return sum(vector.cardinality for vector, _, _ in self.vectors)


class DeleteObjects:
    """Collects the ``.del`` objects that a version needs, over all tables."""

    def __init__(self) -> None:
        self.by_key: dict[str, DeleteObject] = {}
        self._seen: set[tuple[str, int, str]] = set()

    def _object_of(self, key: str, table: str, entry: TableEntry) -> DeleteObject:
        uuid = "" if entry.source else entry.uuid
        object_ = self.by_key.setdefault(key, DeleteObject(key, table, uuid))
        object_.uuid = object_.uuid or uuid
        return object_

    def add_tombstone(self, tombstone: Tombstone, table: str, entry: TableEntry) -> None:
        """Adds a tombstone. A table and its clone may have the same."""
        object_ = self._object_of(tombstone.blob.object, table, entry)
        if is_first(self._seen, (object_.key, tombstone.blob.offset, "")):
            object_.tombstones.append(tombstone)

    def add_vector(self, file: DataFile, table: str, entry: TableEntry) -> None:
        """Adds a data file's vector, unless its entry is contradictory."""
        if file.vector and file.vector.cardinality <= file.rows:
            self.add_vector_of(file.vector, file.uuid, file.rows, table, entry)

    def add_vector_of(self, vector: Vector, file: str, rows: int, table: str, entry: TableEntry) -> None:
        """Adds the vector of a file with this number of rows. A table and its clone may have the same."""
        object_ = self._object_of(vector.object, table, entry)
        if is_first(self._seen, (object_.key, vector.offset, file)):
            object_.vectors.append((vector, file, rows))


def is_first(seen: set[Any], key: Any) -> bool:
    """Whether a key is seen for the first time; adds it."""
    size_before = len(seen)
    seen.add(key)
    return len(seen) > size_before


def check_deletes(context: Context, objects: Iterable[DeleteObject], total: int, log: FindingLog) -> None:
    """Reads the objects, a few at a time, and checks the needed parts. Missing objects are reported elsewhere."""

    def check(one: DeleteObject) -> tuple[DeleteObject, FindingLog]:
        own = FindingLog(oldest=log.oldest, newest=log.newest)
        try:
            if one.end <= WHOLE_BYTES:
                with BytesIO(context.store.get(one.key).body) as body:
                    _check_object(body, one, own)
            else:
                with context.store.open_input(one.key) as body:
                    _check_object(body, one, own)
        except ObjectNotFoundError:
            pass
        return one, own

    for one, own in context.runtime.map(check, objects, ahead=max(2, context.runtime.threads // 4)):
        log.count(".del objects", total=total)
        log.count("vectors", len(one.vectors))
        log.merge(own)


def _read_blob(body: BinaryIO, blob: Blob | Vector | BlobInfo) -> bytes:
    body.seek(blob.offset)
    return body.read(blob.length)


def _check_object(body: BinaryIO, one: DeleteObject, log: FindingLog) -> None:
    footer = _footer(body, one, log)
    blobs = {info.offset: info for info in footer.blobs} if footer else {}
    for tombstone in one.tombstones:
        blob = tombstone.blob
        try:
            _check_tombstone(_read_blob(body, blob), tombstone)
        except CorruptionError as error:
            log.add("tombstone-damaged", one.key, error.reason, table=one.table)
        except Error as error:
            log.add("tombstone-damaged", one.key, f"at byte {blob.offset}: {error}", table=one.table)
        kind = "keys" if isinstance(tombstone, KeysTombstone) else "where"
        _check_info(blobs.get(blob.offset), blob, kind, one, footer, log)
    for vector, file, rows in one.vectors:
        info = blobs.get(vector.offset)
        reason = ""
        try:
            decode_vector(_read_blob(body, vector), vector, rows)
        except CorruptionError as error:
            reason = f"file {file}: {error.reason}"
        if info and info.file != file:
            reason = f"the vector at byte {vector.offset} is of file {info.file}, not of {file}"
        if reason:
            log.add("vector-damaged", one.key, reason, table=one.table, rows=rows)
        else:
            _check_info(info, vector, "vector", one, footer, log)
    needed = {t.blob.offset for t in one.tombstones} | {vector.offset for vector, _, _ in one.vectors}
    for info in footer.blobs if footer else ():
        if info.offset not in needed and crc32(_read_blob(body, info)) != info.crc32:
            reason = f"the {info.kind} at byte {info.offset}, which this version does not need: checksum differs"
            log.add("delete-footer", one.key, reason, table=one.table)


def _footer(body: BinaryIO, one: DeleteObject, log: FindingLog) -> TombstoneFooter | None:
    size = body.seek(0, SEEK_END)
    body.seek(max(0, size - 8))
    length = int.from_bytes(body.read(4), "little")
    start = max(4, size - 8 - length)
    body.seek(0)
    first = body.read(4)
    body.seek(start)
    try:
        footer = read_footer(first + body.read(), one.key)
    except CorruptionError as error:
        log.add("delete-footer", one.key, error.reason, table=one.table)
        return None
    except UnsupportedFormatError as error:
        log.add("newer-format", one.key, str(error), table=one.table)
        return None
    end = max((info.offset + info.length for info in footer.blobs), default=4)
    if end != start:
        reason = f"its blobs end at byte {end}, and the footer begins at {start}"
        log.add("delete-footer", one.key, reason, table=one.table)
    if one.uuid and footer.table not in ("", one.uuid):
        reason = f"it is of table {footer.table}, not of {one.uuid}"
        log.add("delete-footer", one.key, reason, table=one.table)
    return footer


def _check_info(
    info: BlobInfo | None,
    blob: Blob | Vector,
    kind: str,
    one: DeleteObject,
    footer: TombstoneFooter | None,
    log: FindingLog,
) -> None:
    if footer is None:
        return
    cardinality = blob.cardinality if isinstance(blob, Vector) else 0
    expected = (kind, blob.length, blob.crc32, cardinality)
    if info is None or (info.kind, info.length, info.crc32, info.cardinality) != expected:
        actual = "nothing" if info is None else f"a {info.kind} of {info.length} bytes, CRC-32 {info.crc32}"
        reason = f"at byte {blob.offset} the footer has {actual}; the manifest: {kind}, {blob.length}, {blob.crc32}"
        log.add("delete-footer", one.key, reason, table=one.table)


def _check_tombstone(body: bytes, tombstone: Tombstone) -> None:
    label = f"at byte {tombstone.blob.offset}: "
    if isinstance(tombstone, KeysTombstone):
        inline = inline_keys(tombstone)
        if inline is not None and not inline.equals(decode_keys(body, tombstone)):
            raise CorruptionError(tombstone.blob.object, f"{label}its keys differ from those in the manifest")
        for part in decode_keys_in_parts(body, tombstone):
            _check_keys(part, tombstone, label)
        return
    recorded = recorded_predicate(body, tombstone.blob)
    if tombstone.predicate is not None and from_builtins(tombstone.predicate) != recorded:
        raise CorruptionError(tombstone.blob.object, f"{label}its predicate differs from that in the manifest")


def _check_keys(keys: Keys, tombstone: KeysTombstone, label: str) -> None:
    for column, name, ends_json in zip(keys.columns, tombstone.types, tombstone.bounds, strict=True):
        if not len(column):
            continue
        ends = pc.min_max(column)
        least, greatest = to_plain(pa.array([ends["min"], ends["max"]], column.type))
        low, high = plain_values(list(ends_json), type_from_json(name))
        if (low is not None and least < low) or (high is not None and high < greatest):  # type: ignore[operator]
            raise CorruptionError(tombstone.blob.object, f"{label}it has keys outside the bounds in the manifest")

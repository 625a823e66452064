"""Checks deletes against their entries. Every ``.del`` object that a version needs is read once, as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from io import SEEK_END, BytesIO
from typing import BinaryIO
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.units import MIB
from dolmen.commit.context import Context
from dolmen.errors import CorruptionError, Error, ObjectNotFoundError, UnsupportedFormatError
from dolmen.format.delete_object import (
    BlobInfo,
    Keys,
    TombstoneFooter,
    check_blob,
    decode_keys,
    decode_keys_in_parts,
    decode_vector,
    inline_keys,
    plain_values,
    read_footer,
)
from dolmen.format.entries import Blob, DataFile, KeysTombstone, Tombstone, Vector
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import type_from_json
from dolmen.format.types import to_plain
from dolmen.maintenance.verify.verify_report import FindingLog
from dolmen.predicate import from_builtins, from_json

WHOLE_BYTES = 32 * MIB
"""Objects larger than this, in bytes, are read blob by blob and not held in memory as a whole."""


@dataclass
class DeleteObject:
    """The parts of one ``.del`` object that a version needs.

    Args:
        table: the table's name.
        uuid: the table's uuid; "" for a clone, whose objects may be of any table that it comes from.
        vectors: vectors with (uuid, physical rows) of their data files.
    """

    key: str
    table: str
    uuid: str
    tombstones: list[Tombstone] = field(default_factory=list)
    vectors: list[tuple[Vector, str, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The least size that the object must have."""
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

    def _of(self, key: str, table: str, entry: TableEntry) -> DeleteObject:
        uuid = "" if entry.source else entry.uuid
        one = self.by_key.setdefault(key, DeleteObject(key, table, uuid))
        one.uuid = one.uuid or uuid
        return one

    def add_tombstone(self, tombstone: Tombstone, table: str, entry: TableEntry) -> None:
        """Adds a tombstone. A table and its clone may have the same."""
        one = self._of(tombstone.blob.object, table, entry)
        if self._is_new(one.key, tombstone.blob.offset, ""):
            one.tombstones.append(tombstone)

    def add_vector(self, file: DataFile, table: str, entry: TableEntry) -> None:
        """Adds a data file's vector, unless its entry is contradictory."""
        if file.vector and file.vector.cardinality <= file.rows:
            self.add_vector_of(file.vector, file.uuid, file.rows, table, entry)

    def add_vector_of(self, vector: Vector, file: str, rows: int, table: str, entry: TableEntry) -> None:
        """Adds the vector of a file with this number of rows. A table and its clone may have the same."""
        one = self._of(vector.object, table, entry)
        if self._is_new(one.key, vector.offset, file):
            one.vectors.append((vector, file, rows))

    def _is_new(self, key: str, offset: int, file: str) -> bool:
        known = len(self._seen)
        self._seen.add((key, offset, file))
        return len(self._seen) > known


def check_deletes(context: Context, objects: Iterable[DeleteObject], total: int, log: FindingLog) -> None:
    """Reads the objects, a few at a time, and checks the parts that are needed. Missing objects are found elsewhere."""

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


def _piece(body: BinaryIO, blob: Blob | Vector | BlobInfo) -> bytes:
    body.seek(blob.offset)
    return body.read(blob.length)


def _check_object(body: BinaryIO, one: DeleteObject, log: FindingLog) -> None:
    footer = _footer(body, one, log)
    blobs = {info.offset: info for info in footer.blobs} if footer else {}
    for tombstone in one.tombstones:
        blob = tombstone.blob
        try:
            _check_tombstone(_piece(body, blob), tombstone)
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
            decode_vector(_piece(body, vector), vector, rows)
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
        if info.offset not in needed and crc32(_piece(body, info)) != info.crc32:
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
    wanted = (kind, blob.length, blob.crc32, cardinality)
    if info is None or (info.kind, info.length, info.crc32, info.cardinality) != wanted:
        told = "nothing" if info is None else f"a {info.kind} of {info.length} bytes, CRC-32 {info.crc32}"
        reason = f"at byte {blob.offset} the footer has {told}; the manifest: {kind}, {blob.length}, {blob.crc32}"
        log.add("delete-footer", one.key, reason, table=one.table)


def _check_tombstone(body: bytes, tombstone: Tombstone) -> None:
    """Raises CorruptionError if the record is not that of the entry."""
    place = f"at byte {tombstone.blob.offset}: "
    if isinstance(tombstone, KeysTombstone):
        inline = inline_keys(tombstone)
        if inline is not None and not inline.equals(decode_keys(body, tombstone)):
            raise CorruptionError(tombstone.blob.object, f"{place}its keys differ from those in the manifest")
        for part in decode_keys_in_parts(body, tombstone):
            _check_keys(part, tombstone, place)
        return
    recorded = from_json(check_blob(body, tombstone.blob))
    if tombstone.predicate is not None and from_builtins(tombstone.predicate) != recorded:
        raise CorruptionError(tombstone.blob.object, f"{place}its predicate differs from that in the manifest")


def _check_keys(keys: Keys, tombstone: KeysTombstone, place: str) -> None:
    for column, name, ends_json in zip(keys.columns, tombstone.types, tombstone.bounds, strict=True):
        if not len(column):
            continue
        ends = pc.min_max(column)
        least, greatest = to_plain(pa.array([ends["min"], ends["max"]], column.type))
        low, high = plain_values(list(ends_json), type_from_json(name))
        if (low is not None and least < low) or (high is not None and high < greatest):  # type: ignore[operator]
            raise CorruptionError(tombstone.blob.object, f"{place}it has keys outside the bounds in the manifest")

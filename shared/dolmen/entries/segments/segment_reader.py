"""Reads segments: each object is fetched once, checked, decoded, and cached. Also reads the blobs of tombstones.

A segment of files is a ``FileTable``, which decodes only the columns that are asked for; a ``LiveSegment`` adds what
has changed since it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime, cached_property
from dolmen.base.units import MIB
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format import bloom_filters
from dolmen.format.column_history import widen_bounds
from dolmen.format.del_object import check_blob
from dolmen.format.entries import Blob, DataFile, Overlay, Tombstone
from dolmen.format.layout import check_reference, uuid_of
from dolmen.format.manifest import (
    AppliedId,
    Erasure,
    HistoryEntry,
    Manifest,
    Released,
    Segment,
    TableEntry,
    check_constants,
)
from dolmen.format.schema import Schema
from dolmen.format.segments import (
    BASE_COLUMNS,
    CONSTANTS,
    OPTIONAL_COLUMNS,
    PARTITIONS,
    check,
    check_bloom,
    decode,
    stats_columns,
    stats_ids,
    to_entries,
)
from dolmen.format.types import one_array
from dolmen.store.base import ObjectStore
from dolmen.store.cache import CacheKey, ObjectCache

Codes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
_Choice = tuple[frozenset[int], frozenset[tuple[int, pa.DataType]]]

_UUID_CHARS = 32
_SUFFIX = ".parquet"
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64
)  # odd, so that no bit of a word is lost
_UNKNOWN = -1

_FEW = 512
"""The most entries of a segment that is decoded as a whole: opening the object costs as much as all its entries."""

_MOST_DECODED = 8  # the most choices of bounds for which the entries of such a segment are cached

_ENTRY_BYTES, _STATS_BYTES = 800, 200  # about the bytes of a decoded entry, and of the bounds of one of its columns


class Uuids:
    """Uuids to look for, and a 64-bit code of each. Files are found by the code, and then by the name itself."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def codes(self) -> Codes:
        return _codes([name[-_UUID_CHARS:].encode() for name in self.names])


def _codes_of_paths(paths: pa.Array) -> Codes:
    """The codes of the uuids of data files. Names end in 32 hexadecimal digits and a suffix; others take longer."""
    raw = paths.cast(pa.binary())
    tails = pc.binary_slice(raw, -_UUID_CHARS - len(_SUFFIX), None)
    usual = pc.and_(
        pc.ends_with(paths, _SUFFIX),
        pc.and_(
            pc.equal(pc.binary_length(tails), _UUID_CHARS + len(_SUFFIX)), pc.invert(pc.match_substring(tails, "/"))
        ),
    )
    if len(paths) and pc.all(usual).as_py():
        values = np.frombuffer(b"".join(pc.binary_slice(tails, 0, _UUID_CHARS).to_pylist()), f"S{_UUID_CHARS}")
        return _mix(values)
    return _codes([uuid_of(path)[-_UUID_CHARS:].encode() for path in paths.to_pylist()])


def _codes(tails: list[bytes]) -> Codes:
    return _mix(np.array(tails, f"S{_UUID_CHARS}"))


def _mix(values: npt.NDArray[np.bytes_]) -> Codes:
    words = np.frombuffer(np.ascontiguousarray(values).tobytes(), "<u8").reshape(-1, _UUID_CHARS // 8)
    with np.errstate(over="ignore"):
        mixed = (words * _FACTORS).sum(axis=1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(29)
        codes: Codes = mixed * _FACTORS[0]
    return codes


class FileTable:
    """The entries of a segment of kind ``files``. ``on_growth`` is called when the table takes more memory.

    Raises CorruptionError if it is not Parquet with the columns of a segment, or has another number of entries.
    """

    def __init__(self, segment: Segment, body: bytes, on_growth: Callable[[FileTable], None] = lambda _: None) -> None:
        self.segment, self._body, self._on_growth = segment, body, on_growth
        self._columns: dict[str, pa.Array] = {}
        self._whole: pa.Table | None = None
        self._uuids: list[str] | None = None
        self._decoded: dict[_Choice, list[DataFile]] = {}
        self.nbytes = len(body)
        try:
            parquet = pq.ParquetFile(pa.BufferReader(body))
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(segment.object, f"not a segment of files: {error}") from error
        self._names = frozenset(parquet.schema_arrow.names)
        if missing := set(BASE_COLUMNS) - self._names:
            raise CorruptionError(segment.object, f"not a segment of files: no columns {sorted(missing)}")
        self.ids = frozenset(stats_ids(self._names))
        self._metadata = parquet.metadata
        if self._metadata.num_rows != segment.count:
            raise CorruptionError(segment.object, f"it has {self._metadata.num_rows} entries, not {segment.count}")
        self.nbytes += self._metadata.serialized_size * 4
        self._is_small = len(self) <= _FEW and self._metadata.num_row_groups <= 1

    def __len__(self) -> int:
        return self.segment.count

    def column(self, name: str) -> pa.Array | None:
        """A column; None if there is no such column."""
        column = self._columns.get(name)
        if column is None and name in self._names:
            column = one_array(self._read([name])[name])
            self._columns[name] = column
            self.nbytes += column.nbytes
            self._on_growth(self)
        return column

    def numbers(self, name: str) -> Positions:
        """A column of integers; -1 for NULL."""
        column = self.column(name)
        if column is None:
            return np.full(len(self), _UNKNOWN, np.int64)
        numbers: Positions = column.fill_null(_UNKNOWN).to_numpy()
        return numbers

    @cached_property
    def sorted_uuids(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
        """The codes of its files' uuids, ascending, and the position of each file."""
        paths = one_array(self._read(["path"])["path"])
        for path in pc.filter(paths, pc.invert(pc.match_substring_regex(paths, r"^data/[A-Za-z0-9_./-]{1,200}$"))):
            check_reference(path.as_py(), self.segment.object)
        codes = _codes_of_paths(paths)
        order = np.argsort(codes, kind="stable").astype(np.int32)
        self.nbytes += 12 * len(order)
        self._on_growth(self)
        return codes[order], order

    def find(self, uuids: Uuids) -> tuple[Positions, Positions]:
        """The entries of these files: their positions here, ascending, and the position of each in ``uuids``."""
        codes, order = self.sorted_uuids
        first, last = np.searchsorted(codes, uuids.codes, "left"), np.searchsorted(codes, uuids.codes, "right")
        matched = np.flatnonzero(last > first)
        if not len(matched):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        lengths = (last - first)[matched]
        which = np.repeat(matched, lengths)
        offsets = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = order[first[which] + offsets].astype(np.int64)
        names = self._names_of(positions)
        same = np.fromiter(
            (name == uuids.names[position] for name, position in zip(names, which, strict=True)), np.bool_, len(names)
        )
        positions, which = positions[same], which[same]
        ascending = np.argsort(positions, kind="stable")
        return positions[ascending], which[ascending]

    def entries(
        self,
        positions: Positions | None = None,
        ids: Collection[int] | None = None,
        types: Mapping[int, pa.DataType] | None = None,
    ) -> Iterator[list[DataFile]]:
        """Yields the entries as they are stored, in batches.

        Args:
            positions: ascending; all by default.
            ids: columns whose bounds the entries have; all by default.
            types: the present types of columns, by id; bounds are converted to them.
        """
        requested = self.ids if ids is None else self.ids & frozenset(ids)
        if not self._is_small:
            yield from self._decode(positions, requested, types or {})
            return
        choice = requested, frozenset(item for item in (types or {}).items() if item[0] in requested)
        entries = self._decoded.get(choice)
        if entries is None:
            entries = [entry for some in self._decode(None, requested, types or {}) for entry in some]
            if len(self._decoded) < _MOST_DECODED:
                self._decoded[choice] = entries
                self.nbytes += len(entries) * (_ENTRY_BYTES + _STATS_BYTES * len(requested))
                self._on_growth(self)
        if positions is None or len(positions):
            yield entries if positions is None else [entries[position] for position in positions.tolist()]

    def _decode(
        self, positions: Positions | None, requested: Collection[int], types: Mapping[int, pa.DataType]
    ) -> Iterator[list[DataFile]]:
        optional = [name for name in (*OPTIONAL_COLUMNS, CONSTANTS, PARTITIONS) if name in self._names]
        names = [*BASE_COLUMNS, *optional, *(name for id_ in sorted(requested) for name in stats_columns(id_))]
        for group, first, last in self._groups():
            own = None
            if positions is not None:
                own = positions[np.searchsorted(positions, first) : np.searchsorted(positions, last)] - first
                if not len(own):
                    continue
            table = _widen(self._read(names, [group]), types)
            try:
                entries = to_entries(table if own is None else table.take(pa.array(own)))
            except msgspec.DecodeError as error:
                raise CorruptionError(self.segment.object, f"not a segment of files: {error}") from error
            check_constants(entries, self.segment.object)
            for entry in entries:  # by hand: ``check_references`` would take a fifth of the time of a plan
                check_reference(entry.path, self.segment.object)
                if entry.vector:
                    check_reference(entry.vector.object, self.segment.object)
            yield entries

    def _groups(self) -> Iterator[tuple[int, int, int]]:
        """The number, the first row and the end of each row group."""
        first = 0
        for group in range(self._metadata.num_row_groups):
            rows = self._metadata.row_group(group).num_rows
            yield group, first, first + rows
            first += rows

    def _names_of(self, positions: Positions) -> list[str]:
        if self._is_small:
            if self._uuids is None:
                self._uuids = list(map(uuid_of, self._read(["path"])["path"].to_pylist()))
            return [self._uuids[position] for position in positions.tolist()]
        found: list[str] = []
        order = np.argsort(positions, kind="stable")
        ascending = positions[order]
        for group, first, last in self._groups():
            own = ascending[np.searchsorted(ascending, first) : np.searchsorted(ascending, last)] - first
            if len(own):
                found += map(uuid_of, one_array(self._read(["path"], [group])["path"]).take(pa.array(own)).to_pylist())
        names = [""] * len(found)
        for position, name in zip(order.tolist(), found, strict=True):
            names[position] = name
        return names

    def _read(self, names: Sequence[str], groups: Sequence[int] | None = None) -> pa.Table:
        if self._is_small:
            if self._whole is None:
                self._whole = self._fetch(None, None)
                self.nbytes += self._whole.nbytes
                self._on_growth(self)
            return self._whole.select(list(names))
        return self._fetch(list(names), groups)

    def _fetch(self, names: list[str] | None, groups: Sequence[int] | None) -> pa.Table:
        try:
            parquet = pq.ParquetFile(pa.BufferReader(self._body), metadata=self._metadata)
            if groups is None:
                return parquet.read(names, use_threads=False)
            return parquet.read_row_groups(list(groups), names, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(self.segment.object, f"not a segment of files: {error}") from error


def _widen(table: pa.Table, types: Mapping[int, pa.DataType]) -> pa.Table:
    """The table with bounds that were written under a narrower type in the form of the column's present type."""
    for id_ in types.keys() & set(stats_ids(table.column_names)):
        for name in stats_columns(id_)[:2]:
            ends = one_array(table[name])
            changed = widen_bounds(ends, types[id_])
            if changed is not ends:
                table = table.set_column(table.column_names.index(name), name, changed)
    return table


_DECODED_FACTOR = 10  # decoded entries take about this many times the bytes of their compressed JSON
_AHEAD_BYTES = 16 * MIB  # the most bytes of segments that are fetched at once, the last one excepted


class FetchTally(Struct):
    """A count of fetches: requests and bytes."""

    requests: int = 0
    bytes: int = 0


class SegmentReader(Struct, frozen=True):
    """Reads segments of one database. Safe to use from several threads.

    All methods raise CorruptionError, which names the object, when it is missing or differs from its reference.
    """

    store: ObjectStore
    runtime: Runtime
    cache: ObjectCache
    tally: FetchTally = field(default_factory=FetchTally)

    def with_tally(self) -> SegmentReader:
        """The same reader with a tally of its own, for the fetches of one piece of work."""
        return replace(self, tally=FetchTally())

    def files(self, segment: Segment) -> FileTable:
        found: FileTable | None = self.cache.get(_key(segment))
        return self._keep_table(segment, self._fetch(segment)) if found is None else found

    def _keep_table(self, segment: Segment, body: bytes) -> FileTable:
        key = _key(segment)
        table = FileTable(segment, body, lambda table: self.cache.put(key, table, table.nbytes))
        self.cache.put(key, table, table.nbytes)
        return table

    def map_files(self, segments: Iterable[Segment], ahead: int | None = None) -> Iterator[tuple[Segment, FileTable]]:
        """``files`` of several segments in order. ``ahead`` are fetched at once, by default ``_AHEAD_BYTES``."""
        return self.runtime.map(
            lambda s: (s, self.files(s)), segments, ahead=ahead, size=lambda s: s.size, most=_AHEAD_BYTES
        )

    def overlays(self, segment: Segment) -> tuple[Overlay, ...]:
        return self._entries(segment)

    def removed(self, segment: Segment) -> tuple[str, ...]:
        return self._entries(segment)

    def tombstones(self, segment: Segment) -> tuple[Tombstone, ...]:
        """Unresolved deletes, oldest first."""
        return self._entries(segment)

    def applied(self, segment: Segment, ids: Collection[str] | None = None) -> tuple[AppliedId, ...]:
        """Ids of applied requests: some of them, or all. If the Bloom filter has none, only the filter is fetched."""
        if ids is None:
            return self._entries(segment)
        if segment.bloom and _key(segment) not in self.cache and not self._may_have_applied(segment, ids):
            return ()
        requested = frozenset(ids)
        return tuple(entry for entry in self._entries(segment) if entry.id in requested)

    def released(self, segment: Segment) -> tuple[Released, ...]:
        return self._entries(segment)

    def history(self, segment: Segment) -> tuple[HistoryEntry, ...]:
        return self._entries(segment)

    def erasures(self, segment: Segment) -> tuple[Erasure, ...]:
        return self._entries(segment)

    def tables(self, segment: Segment) -> tuple[TableEntry, ...]:
        return self._entries(segment)

    def keep(self, segment: Segment, body: bytes) -> None:
        """Caches a segment that this process has just written."""
        self.cache.put_on_disk(_key(segment), body)
        if segment.kind == "files":
            self._keep_table(segment, body)
        else:
            self.cache.put(_key(segment), decode(segment, body), segment.size * _DECODED_FACTOR)

    def manifest(self, key: str) -> Manifest:
        """The manifest of an expired version that a tag keeps, or kept. Raises CorruptionError."""
        try:
            return Manifest.decode(self.store.get(key).body, key)
        except ObjectNotFoundError as error:
            raise CorruptionError(key, "the manifest is missing") from error

    def whole(self, entry: TableEntry) -> TableEntry:
        """The whole entry of a table; an idle table's is fetched."""
        if entry.section is None:
            return entry
        found = next((found for found in self.tables(entry.section) if found.uuid == entry.uuid), None)
        if found is None:
            raise CorruptionError(entry.section.object, f"table {entry.uuid} is not in it")
        return msgspec.structs.replace(
            found, epoch=entry.epoch, last_delete_ts=entry.last_delete_ts, unseen_delete_ts=entry.unseen_delete_ts
        )

    def _entries(self, segment: Segment) -> tuple[Any, ...]:
        found: tuple[Any, ...] | None = self.cache.get(_key(segment))
        if found is None:
            found = decode(segment, self._fetch(segment))
            self.cache.put(_key(segment), found, segment.size * _DECODED_FACTOR)
        return found

    def _fetch(self, segment: Segment) -> bytes:
        return self.cache.get_or_fetch(_key(segment), lambda: self._get(segment), partial(check, segment))

    def _may_have_applied(self, segment: Segment, ids: Collection[str]) -> bool:
        assert segment.bloom is not None
        offset, length, _ = segment.bloom
        key = ("bloom", segment.object, *segment.bloom)
        body: bytes | None = self.cache.get(key)
        if body is None:
            body = self.cache.get_or_fetch(
                key, lambda: self._get(segment, (offset, offset + length)), partial(check_bloom, segment)
            )
            self.cache.put(key, body, len(body))
        return bool(bloom_filters.possible_ids(body, list(ids)))

    def _get(self, segment: Segment, byte_range: tuple[int, int] | None = None) -> bytes:
        self.tally.requests += 1
        try:
            body = self.store.get(segment.object, byte_range).body
        except ObjectNotFoundError as error:
            raise CorruptionError(segment.object, f"the segment of {segment.kind} is missing") from error
        self.tally.bytes += len(body)
        return body


def fetch_deletes(store: ObjectStore, key: str, start: int, end: int) -> bytes:
    """Reads a range of an object that records deletes, unchecked. Raises CorruptionError if it is missing."""
    try:
        return store.get(key, (start, end)).body
    except ObjectNotFoundError as error:
        raise CorruptionError(key, "it is missing, and a delete is recorded in it") from error


def read_blob(store: ObjectStore, blob: Blob) -> bytes:
    """Reads a blob with the content of a tombstone. Raises CorruptionError if it is missing or damaged."""
    return check_blob(fetch_deletes(store, blob.object, blob.offset, blob.offset + blob.length), blob)


def _key(segment: Segment) -> CacheKey:
    return ("segment", segment.object, segment.size, segment.crc32)


def with_newest_pair(file: DataFile, overlay: Overlay | None, resolved_through: int) -> DataFile:
    """A file's entry with its newest pair."""
    through, vector, erasing = file.applied_through, file.vector, file.erasing
    if overlay is not None and file.is_older_than(overlay.applied_through, overlay.vector):
        through, vector, erasing = overlay.applied_through, overlay.vector, overlay.erasing
    through = max(through, resolved_through)
    if (through, erasing) == (file.applied_through, file.erasing) and vector is file.vector:
        return file
    return msgspec.structs.replace(file, applied_through=through, vector=vector, erasing=erasing)


class Totals(Struct, frozen=True):
    """Sums over live files: their number, physical rows, rows that vectors delete, and bytes."""

    files: int = 0
    rows: int = 0
    deleted: int = 0
    bytes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.files + other.files, self.rows + other.rows, self.deleted + other.deleted, self.bytes + other.bytes
        )


class LiveSegment(Struct, frozen=True):
    """A segment of files, and the changes of these files since it was written."""

    segment: Segment
    table: FileTable
    live: npt.NDArray[np.bool_] | None  # a mask of the entries whose files are still there; None = all
    overlays: dict[int, Overlay]  # newer pairs of some of them, by position
    schema: Schema

    @property
    def files(self) -> int:
        return len(self.table) if self.live is None else int(np.count_nonzero(self.live))

    def positions(self, mask: npt.NDArray[np.bool_] | None = None) -> Positions:
        """Positions of the live files, or of those in ``mask``."""
        if mask is None:
            mask = self.live
        elif self.live is not None:
            mask = mask & self.live
        return np.arange(len(self.table)) if mask is None else np.flatnonzero(mask)

    def entries(self, positions: Positions | None = None, ids: Collection[int] | None = None) -> Iterator[DataFile]:
        """Effective entries of live files. Arguments: see ``FileTable.entries``."""
        requested = self.positions() if positions is None else positions
        remaining = iter(requested.tolist())
        for some in self.table.entries(requested, ids, self.schema.widened_types):
            for file in some:
                yield with_newest_pair(file, self.overlays.get(next(remaining)), self.segment.resolved_through)

    def totals(self, positions: Positions | None = None) -> Totals:
        """Sums over live files, or over those at these positions."""
        segment = self.segment
        if positions is None and self.live is None and not self.overlays:
            return Totals(segment.count, segment.rows, segment.deleted, segment.bytes)
        requested = self.positions() if positions is None else positions
        columns = (self.table.numbers("rows"), self.cardinalities(), self.table.numbers("size"))
        return Totals(len(requested), *(int(column[requested].sum()) for column in columns))

    def cardinalities(self) -> npt.NDArray[np.int64]:
        """By position, the number of rows that the file's newest vector deletes."""
        own = np.maximum(self.table.numbers("vector_cardinality"), 0)
        through = self.table.numbers("applied_through")
        for position, overlay in self.overlays.items():
            cardinality = overlay.vector.cardinality if overlay.vector else 0
            if (overlay.applied_through, cardinality) > (int(through[position]), int(own[position])):
                own[position] = cardinality
        return own

    def applied_through(self) -> npt.NDArray[np.int64]:
        """By position, the file's effective ``applied_through``."""
        through = np.maximum(self.table.numbers("applied_through"), self.segment.resolved_through)
        for position, overlay in self.overlays.items():
            through[position] = max(int(through[position]), overlay.applied_through)
        return through


def erasures_of(manifest: Manifest, reader: SegmentReader, after: int = 0) -> tuple[Erasure, ...]:
    """The erasures in a version's list, spilled and inline, oldest first, with timestamps greater than ``after``."""
    return listed_erasures(manifest.segments_of("erasures"), manifest.erasures, reader, after)


def listed_erasures(
    segments: Iterable[Segment], inline: Sequence[Erasure], reader: SegmentReader, after: int = 0
) -> tuple[Erasure, ...]:
    """``erasures_of`` for a list in parts."""
    spilled = [segment for segment in segments if segment.greatest > after]
    listed = (*(erasure for some in reader.runtime.map(reader.erasures, spilled) for erasure in some), *inline)
    return tuple(sorted((erasure for erasure in listed if erasure.ts > after), key=lambda erasure: erasure.ts))

"""One segment of data-file entries as a table, which decodes only the columns that are asked for.

Files are found by uuid: by a 64-bit code of each, and then by the name itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dolmen.base.runtime import cached_property
from dolmen.errors import CorruptionError
from dolmen.format.column_history import widen_bounds
from dolmen.format.entries import DataFile
from dolmen.format.layout import check_reference, uuid_of
from dolmen.format.manifest import Segment
from dolmen.format.segments import BASE_COLUMNS, OPTIONAL_COLUMNS, stats_columns, stats_ids, to_entries
from dolmen.format.types import one_array

Codes = npt.NDArray[np.uint64]
_LENGTH = 32
_SUFFIX = ".parquet"
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64
)  # odd, so that no bit of a word is lost
_UNKNOWN = -1

_FEW = 512
"""Segments with at most so many entries are decoded once: opening the object costs as much as all that it holds."""

_MOST_DECODED = 8
"""Choices of bounds with which the entries of such a segment are kept."""

_ENTRY_BYTES, _STATS_BYTES = 800, 200
"""The bytes of a decoded entry, about, and of the bounds of one of its columns."""


class Uuids:
    """Uuids to look for."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def codes(self) -> Codes:
        """The 64-bit code of each."""
        return _codes([name[-_LENGTH:].encode() for name in self.names])


def codes_of_paths(paths: pa.Array) -> Codes:
    """The codes of the uuids of data files, by their keys.

    Names end in 32 hexadecimal digits and a suffix; any other makes this slower and not wrong.
    """
    raw = paths.cast(pa.binary())
    tails = pc.binary_slice(raw, -_LENGTH - len(_SUFFIX), None)
    usual = pc.and_(
        pc.ends_with(paths, _SUFFIX),
        pc.and_(pc.equal(pc.binary_length(tails), _LENGTH + len(_SUFFIX)), pc.invert(pc.match_substring(tails, "/"))),
    )
    if len(paths) and pc.all(usual).as_py():
        values = np.frombuffer(b"".join(pc.binary_slice(tails, 0, _LENGTH).to_pylist()), f"S{_LENGTH}")
        return _mixed(values)
    return _codes([uuid_of(path)[-_LENGTH:].encode() for path in paths.to_pylist()])


def _codes(tails: list[bytes]) -> Codes:
    return _mixed(np.array(tails, f"S{_LENGTH}"))


def _mixed(values: npt.NDArray[np.bytes_]) -> Codes:
    words = np.frombuffer(np.ascontiguousarray(values).tobytes(), "<u8").reshape(-1, _LENGTH // 8)
    with np.errstate(over="ignore"):
        mixed = (words * _FACTORS).sum(axis=1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(29)
        codes: Codes = mixed * _FACTORS[0]
    return codes


Positions = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]
_Choice = tuple[frozenset[int], frozenset[tuple[int, pa.DataType]]]


class FileTable:
    """The entries of a segment of kind ``files``.

    Args:
        segment: its reference in the manifest.
        body: the object, checked.
        grown: called whenever it takes more memory than before.

    Raises:
        CorruptionError: it is not Parquet with the columns of a segment, or has another number of entries.
    """

    def __init__(self, segment: Segment, body: bytes, grown: Callable[[FileTable], None] = lambda _: None) -> None:
        self.segment, self._body, self._grown = segment, body, grown
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
        """A whole column; None if there is no such column."""
        found = self._columns.get(name)
        if found is None and name in self._names:
            found = one_array(self._read([name])[name])
            self._columns[name] = found
            self.nbytes += found.nbytes
            self._grown(self)
        return found

    def numbers(self, name: str) -> Numbers:
        """A whole column of integers; -1 where it is NULL."""
        column = self.column(name)
        if column is None:
            return np.full(len(self), _UNKNOWN, np.int64)
        numbers: Numbers = column.fill_null(_UNKNOWN).to_numpy()
        return numbers

    @cached_property
    def sorted_uuids(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
        """Codes of its files' uuids, ascending, and the position of each file."""
        paths = one_array(self._read(["path"])["path"])
        for path in pc.filter(paths, pc.invert(pc.match_substring_regex(paths, r"^data/[A-Za-z0-9_./-]{1,200}$"))):
            check_reference(path.as_py(), self.segment.object)
        codes = codes_of_paths(paths)
        order = np.argsort(codes, kind="stable").astype(np.int32)
        self.nbytes += 12 * len(order)
        self._grown(self)
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
        """Entries as the object has them, some at a time.

        Args:
            positions: positions of the requested entries, ascending; all by default.
            ids: columns whose bounds the entries have; all by default. The others are unknown then.
            types: by id, types that columns have now and in whose form bounds are requested.
        """
        requested = self.ids if ids is None else self.ids & frozenset(ids)
        if not self._is_small:
            yield from self._decode(positions, requested, types or {})
            return
        choice = requested, frozenset((id_, known) for id_, known in (types or {}).items() if id_ in requested)
        found = self._decoded.get(choice)
        if found is None:
            found = [entry for some in self._decode(None, requested, types or {}) for entry in some]
            if len(self._decoded) < _MOST_DECODED:
                self._decoded[choice] = found
                self.nbytes += len(found) * (_ENTRY_BYTES + _STATS_BYTES * len(requested))
                self._grown(self)
        if positions is None or len(positions):
            yield found if positions is None else [found[position] for position in positions.tolist()]

    def _decode(
        self, positions: Positions | None, requested: Collection[int], types: Mapping[int, pa.DataType]
    ) -> Iterator[list[DataFile]]:
        optional = [name for name in OPTIONAL_COLUMNS if name in self._names]
        names = [*BASE_COLUMNS, *optional, *(name for id_ in sorted(requested) for name in stats_columns(id_))]
        for group, first, last in self._groups():
            own = None
            if positions is not None:
                own = positions[np.searchsorted(positions, first) : np.searchsorted(positions, last)] - first
                if not len(own):
                    continue
            table = _widened(self._read(names, [group]), types)
            found = to_entries(table if own is None else table.take(pa.array(own)))
            for entry in found:
                check_reference(entry.path, self.segment.object)
                if entry.vector:
                    check_reference(entry.vector.object, self.segment.object)
            yield found

    def _groups(self) -> Iterator[tuple[int, int, int]]:
        """Number, first and end of each row group."""
        rows = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        ends = np.cumsum([0, *rows]).tolist()
        for group, (first, last) in enumerate(pairwise(ends)):
            yield group, first, last

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
                self._grown(self)
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


def _widened(table: pa.Table, types: Mapping[int, pa.DataType]) -> pa.Table:
    """The table with the bounds of columns that were written under a narrower type in the form of their type now."""
    for id_ in types.keys() & set(stats_ids(table.column_names)):
        for name in stats_columns(id_)[:2]:
            ends = one_array(table[name])
            changed = widen_bounds(ends, types[id_])
            if changed is not ends:
                table = table.set_column(table.column_names.index(name), name, changed)
    return table

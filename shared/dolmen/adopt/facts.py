"""Facts of a Parquet file by its footer: rows, columns, bounds. One request reads it, or two for a large footer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.adopt.locations import FilePlace
from dolmen.base.units import KIB
from dolmen.errors import AdoptionError, Error, ObjectNotFoundError, SchemaError
from dolmen.format.adopted_files import JULIAN, julian_leaves, key_fault
from dolmen.format.checksums import crc32
from dolmen.format.entries import Bounds, ColumnStats, column_stats
from dolmen.format.schema import Field, field_id, is_nested
from dolmen.rows.scan.read.footers import (
    AdoptedColumn,
    DataFileFooter,
    FileColumn,
    adopted_column,
    leaf_count,
    microseconds_per_unit,
)

TAIL_BYTES = 64 * KIB
"""The end of a file that is read first: most footers are smaller."""
MOST_STATISTICS = 64
"""Bounds of so many columns are taken, as of files that dolmen writes."""

_OLD_LZ4 = "UNKNOWN"
"""pyarrow reads the LZ4 frames of Hadoop, the codec that Parquet calls LZ4, but has no name for them."""

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_END = 8
_MOST_ROWS = 2**32 - 1
_SMALLEST = len(_MAGIC) + _END


class ShapeFault(NamedTuple):
    """A column that cannot be read: its name, the reason, and its field id if it has one."""

    name: str
    reason: str
    id: int | None


@dataclass(frozen=True)
class FileShape:
    """The columns of a file. Files of one writer mostly have the same.

    Args:
        columns: those of types that dolmen has, in the file's order.
        faults: the others, and why they cannot be read.
    """

    columns: tuple[AdoptedColumn, ...]
    faults: tuple[ShapeFault, ...] = ()

    @property
    def key(self) -> str:
        """A text that is equal for equal shapes: types of Arrow do not compare the ids in them."""
        fields = [pa.field(column.name, column.type, column.nullable) for column in self.columns]
        ids = [column.id for column in self.columns]
        return f"{ids} {self.faults} {pa.schema(fields).to_string(truncate_metadata=False)}"


@dataclass(frozen=True)
class FileFacts:
    """One file.

    Args:
        place: where it is.
        size: in bytes.
        rows: the number of rows.
        footer: as in ``DataFile``.
        shape: its columns.
        stats: bounds by the name of the column.
    """

    place: FilePlace
    size: int
    rows: int
    footer: tuple[int, int, int]
    shape: FileShape
    stats: dict[str, ColumnStats]


def read_facts(place: FilePlace, size: int | None, keys: Collection[str] = ()) -> FileFacts:
    """Reads a file's footer.

    Args:
        size: its size in bytes, if it is known; otherwise it is asked for.
        keys: columns whose bounds matter most.

    Raises:
        AdoptionError: the file cannot be adopted as it is. Its columns may be the reason, too: see ``FileShape``.
    """
    if fault := key_fault(place.key):
        raise AdoptionError(place.label, [fault])
    try:
        size = place.store.head(place.key).size if size is None else size
        body, start = _end_of(place, size)
    except ObjectNotFoundError:
        raise AdoptionError(place.label, ["there is no such file"]) from None
    offset = size - len(body) + start
    try:
        metadata = pq.read_metadata(pa.BufferReader(body[start:]))
    except (pa.ArrowException, OSError) as error:
        raise AdoptionError(place.label, [f"its Parquet footer cannot be read: {error}"]) from None
    if metadata.serialized_size != len(body) - start - _END:  # a signature, by which columns are known to be encrypted
        raise AdoptionError(place.label, ["its columns are encrypted"])
    faults = list(_file_faults(metadata))
    if faults:
        raise AdoptionError(place.label, faults)
    shape, readable = _shape(metadata)
    firsts = tuple(accumulate(_rows(metadata), initial=0))[:-1]
    footer = DataFileFooter(metadata, dict(enumerate(readable)), firsts, sums=None, columns_by="names")
    stats = _stats(footer, shape.columns, keys)
    return FileFacts(place, size, metadata.num_rows, (offset, size - offset, crc32(body[start:])), shape, stats)


def _end_of(place: FilePlace, size: int) -> tuple[bytes, int]:
    """The end of a file, and where in it the footer begins. Raises AdoptionError."""
    if size < _SMALLEST:
        raise AdoptionError(place.label, ["it is no Parquet file: it is too short"])
    first = max(0, size - TAIL_BYTES)
    found = place.store.get(place.key, (first, size + 1))
    body = found.body
    if len(body) != size - first:
        raise AdoptionError(place.label, [f"it has another size than the {size:,} bytes that are said of it"])
    if body[-4:] != _MAGIC:
        reason = "its footer is encrypted" if body[-4:] == _ENCRYPTED else "it is no Parquet file"
        raise AdoptionError(place.label, [reason])
    length = int.from_bytes(body[-_END:-4], "little") + _END
    if length > size - len(_MAGIC):
        raise AdoptionError(place.label, ["its Parquet footer is damaged"])
    if length > len(body):
        body = place.store.get(place.key, (size - length, first), etag=found.etag).body + body
    return body, len(body) - length


def _rows(metadata: pq.FileMetaData) -> list[int]:
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _file_faults(metadata: pq.FileMetaData) -> list[str]:
    faults = []
    if metadata.num_rows > _MOST_ROWS:
        faults.append(f"it has {metadata.num_rows:,} rows, and a file may have {_MOST_ROWS:,}")
    if sum(_rows(metadata)) != metadata.num_rows:
        faults.append("its footer tells of more or fewer rows than its row groups have")
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    if any(group.num_columns and group.column(0).file_path for group in groups):
        faults.append("its rows are in other files, as those of a summary (_metadata) are")
    codecs = {
        metadata.row_group(group).column(leaf).compression
        for group in range(metadata.num_row_groups)
        for leaf in range(metadata.num_columns)
    }
    faults += _count_faults(metadata)
    for codec in sorted(codecs - {"UNCOMPRESSED", _OLD_LZ4}):
        try:
            known = pa.Codec.is_available(codec.lower())
        except ValueError:
            known = False
        if not known:
            faults.append(f"it is compressed by {codec}, which cannot be read")
    return faults


def _count_faults(metadata: pq.FileMetaData) -> Iterator[str]:
    """The first column chunk that cannot have the rows of its row group, by the number of its values."""
    flat = [leaf for leaf in range(metadata.num_columns) if not metadata.schema.column(leaf).max_repetition_level]
    for number, rows in enumerate(_rows(metadata)):
        group = metadata.row_group(number)
        for leaf in flat:
            values = group.column(leaf).num_values
            if values != rows:
                path = metadata.schema.column(leaf).path
                yield f"its row group {number} says it has {rows:,} rows, but {values:,} values of {path!r}"
                return


def _shape(metadata: pq.FileMetaData) -> tuple[FileShape, list[FileColumn]]:
    """The columns of a file, and the same as a reader of footers takes them."""
    columns, readable, faults, leaf = list[AdoptedColumn](), list[FileColumn](), list[ShapeFault](), 0
    julian = julian_leaves(metadata)
    schema = metadata.schema.to_arrow_schema()
    for field in map(_without_ids, schema) if _has_ids_of_structs(schema) else schema:
        leaves = tuple(range(leaf, leaf + leaf_count(field.type)))
        leaf += len(leaves)
        reason = next((found for each in leaves if (found := _leaf_fault(metadata, each))), "")
        if reason or not julian.isdisjoint(leaves):
            reason = reason or f"{JULIAN}: let Spark write the file anew"
            faults.append(ShapeFault(field.name, reason, field_id(field)))
            continue
        try:
            column = adopted_column(field, leaves)
        except SchemaError as error:
            faults.append(ShapeFault(field.name, str(error), field_id(field)))
            continue
        columns.append(column)
        times = pa.types.is_temporal(column.type)
        unit = microseconds_per_unit(metadata, leaves[0]) if times else 1
        readable.append(FileColumn(column.type, leaves, unit))
    return FileShape(tuple(columns), tuple(faults)), readable


def _has_ids_of_structs(schema: pa.Schema) -> bool:
    """Whether field ids are unique inside their struct only: those of a message, as writers of Protocol Buffers use.

    They do not find a column of the table, so the columns of such a file are found by their names.
    """

    def ids(fields: Iterable[pa.Field]) -> Iterator[list[int]]:
        some = list(fields)
        yield [id_ for id_ in map(field_id, some) if id_ is not None and id_ >= 0]
        for field in some:
            kind = field.type
            yield from ids(kind.field(i) for i in range(kind.num_fields))

    levels = list(ids(schema))
    every = [id_ for level in levels for id_ in level]
    return len(set(every)) < len(every) and all(len(set(level)) == len(level) for level in levels)


def _without_ids(field: pa.Field) -> pa.Field:
    """The field, and the fields inside it, without field ids."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_without_ids(each) for each in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_without_ids(kind.key_field), _without_ids(kind.item_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_without_ids(kind.value_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_without_ids(kind.value_field))
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_without_ids(kind.value_field), kind.list_size)
    return pa.field(field.name, kind, field.nullable)


def _leaf_fault(metadata: pq.FileMetaData, leaf: int) -> str:
    column = metadata.schema.column(leaf)
    if column.physical_type == "INT96":
        return "its times are of Parquet's old type INT96, which counts nanoseconds, and dolmen counts microseconds"
    if '"timeUnit":"nanoseconds"' in column.logical_type.to_json().replace(" ", ""):
        return "its times count nanoseconds, and dolmen counts microseconds"
    return ""


def _stats(footer: DataFileFooter, columns: Sequence[AdoptedColumn], keys: Collection[str]) -> dict[str, ColumnStats]:
    """Bounds of a file's columns over all its row groups."""
    places = sorted(range(len(columns)), key=lambda place: columns[place].name not in keys)
    found = {}
    for place in places[:MOST_STATISTICS]:
        column = columns[place]
        if is_nested(column.type):
            continue
        field = Field(id=place, name=column.name, type=str(column.type))
        groups = [footer.bounds(group, field, None) for group in range(len(footer.firsts))]
        known = _joined(groups, [footer.rows(group) for group in range(len(footer.firsts))])
        if known != Bounds(nans=known.nans):
            found[column.name] = column_stats(*known)
    return found


def _joined(groups: Sequence[Bounds], rows: Sequence[int]) -> Bounds:
    """Bounds over row groups; unknown where those of one are, unless it has no value."""
    valued = [one for one, count in zip(groups, rows, strict=True) if count and one.nulls != count]
    least = [one.min for one in valued]
    greatest = [one.max for one in valued]
    nulls, nans = [one.nulls for one in groups], [one.nans for one in groups]
    return Bounds(
        min(least) if least and None not in least else None,  # type: ignore[type-var]  # of one type
        max(greatest) if greatest and None not in greatest else None,  # type: ignore[type-var]
        None if None in nulls else sum(filter(None, nulls)),
        None if None in nans else sum(filter(None, nans)),
    )


def reasons(error: Error) -> Sequence[str]:
    """The reasons in an error of ``read_facts``."""
    return error.reasons if isinstance(error, AdoptionError) else [str(error)]

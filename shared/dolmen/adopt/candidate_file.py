"""Files to adopt: their locations, and the rows, columns and bounds in their footers.

One request reads a footer, or two if it is large.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from dolmen.base import arguments
from dolmen.base.runtime import cached_property
from dolmen.base.units import KIB
from dolmen.errors import AdoptionError, InputError, ObjectNotFoundError, SchemaError
from dolmen.format.chunk_locations import PARQUET_MAGIC
from dolmen.format.entries import Bounds, ColumnStats, column_stats
from dolmen.format.layout import OWN_SCHEME, AdoptedPath, ColumnsBy, key_problem
from dolmen.format.parquet_footer import JULIAN, julian_leaves
from dolmen.format.schema import field_id, is_nested, leaf_count
from dolmen.format.types import change_fields
from dolmen.rows.scan.data_objects import (
    AdoptedColumn,
    FileColumn,
    FooterSchema,
    adopted_column,
    check_same_kind,
    chunk_bounds,
    microseconds_per_unit,
    parquet_reader,
)
from dolmen.rows.scan.file_bytes import CheckedFile
from dolmen.store.base import FILE, SCHEMES, ObjectInfo, ObjectStore, own_name, unquoted_url

RESERVED = frozenset({
    "data", "handed", "iceberg", "index", "intent", "landing", "manifest", "receipt", "rejected", "segment",
    "tombstone",
})  # fmt: skip
"""The top folders of a database in which dolmen moves or deletes objects."""

HIDDEN = ("_", ".")  # the first characters of names of files and folders without rows, such as ``_SUCCESS``


class FileLocation(Struct, frozen=True, eq=False, gc=False):
    """A file, or a folder of files: its store, and the parts of an ``AdoptedPath``."""

    store: ObjectStore
    scheme: str
    root: str
    key: str

    def __eq__(self, other: object) -> bool:
        parts = (self.scheme, self.root, self.key)
        return isinstance(other, FileLocation) and parts == (other.scheme, other.root, other.key)

    def __hash__(self) -> int:
        return hash((self.scheme, self.root, self.key))

    @property
    def label(self) -> str:
        """The location for messages."""
        return AdoptedPath("ids", self.scheme, self.root, self.key, "").label

    def with_key(self, key: str) -> FileLocation:
        """Another key in the same store."""
        return FileLocation(self.store, self.scheme, self.root, key)

    def path(self, columns_by: ColumnsBy, uuid: str) -> str:
        """The path of the adopted file in its entry."""
        return AdoptedPath(columns_by, self.scheme, self.root, self.key, uuid).encode()

    @property
    def is_reserved(self) -> bool:
        """True for an object of the database, which dolmen may delete."""
        return self.scheme == OWN_SCHEME and self.key.partition("/")[0] in RESERVED

    @property
    def is_data_of_iceberg(self) -> bool:
        """True for the folder ``data`` of an Iceberg table. Costs one LIST for a folder of that name."""
        folder, _, name = self.key.rpartition("/")
        if name != "data":
            return False
        return any(info.key.endswith(".metadata.json") for info in self.store.list(f"{folder}/metadata/".lstrip("/")))

    def files(self) -> Iterator[tuple[ObjectInfo, tuple[str, ...]]]:
        """The files below this folder, and the parts of their paths from here. Costs one LIST."""
        prefix = f"{self.key}/" if self.key else ""
        for info in self.store.list(prefix):
            parts = tuple(info.key[len(prefix) :].split("/"))
            if parts[-1]:
                yield info, parts


def parse_location(store: ObjectStore, url: str, *, is_quoted: bool = True) -> FileLocation:
    """The location that a URL, an absolute path, or a key in the database's store names. Raises InputError.

    ``is_quoted`` says whether ``file://`` URLs are percent-encoded; in Iceberg's metadata they are not.
    """
    text = arguments.text("source", url)
    if text.startswith("file:/") and not text.startswith("file://"):  # Hadoop's form
        text = f"file://{text.removeprefix('file:')}"
    database_url = unquoted_url(store.url)
    scheme, separator, location = text.partition("://")
    if not separator:
        if not text.startswith("/"):
            return FileLocation(store, OWN_SCHEME, "", _key(text, url))
        scheme, location = FILE.name, text
    elif scheme == FILE.name:
        path = location[location.find("/") :] if "/" in location else location
        location = unquote(path) if is_quoted else path
    scheme = own_name(scheme)
    full_url = f"{scheme}://{location}"
    if full_url.startswith(f"{database_url.rstrip('/')}/"):
        return FileLocation(store, OWN_SCHEME, "", _key(full_url[len(database_url.rstrip("/")) + 1 :], url))
    check_same_kind(store, scheme, url)
    if scheme == FILE.name:
        return FileLocation(store.sibling(""), scheme, "", _key(location.lstrip("/"), url))
    root, _, key = location.partition("/")
    if not root or not SCHEMES[scheme].is_bucket(root):
        raise InputError(f"{url!r} has no name of a {'bucket' if SCHEMES[scheme].has_buckets else 'store'}")
    return FileLocation(store.sibling(root), scheme, root, _key(key, url))


def _key(text: str, url: str) -> str:
    key = text.strip("/")
    if {".", ".."} & set(key.split("/")):
        raise InputError(f"{url!r}: a path may not contain '.' or '..'")
    return key


TAIL_BYTES = 64 * KIB  # the size of the first read, from the end of the file: most footers are smaller
MOST_STATISTICS = 64  # the most columns whose bounds are stored, as for files that dolmen writes

_OLD_LZ4 = "UNKNOWN"  # pyarrow's name for Hadoop's LZ4 frames (Parquet's codec LZ4), which it can read

_ENCRYPTED = b"PARE"
_END = 8
_MOST_ROWS = 2**32 - 1
_SMALLEST = len(PARQUET_MAGIC) + _END


class UnreadableColumn(NamedTuple):
    """A column that cannot be read: its name, the reason, and its field id, if any."""

    name: str
    reason: str
    id: int | None


@dataclass(frozen=True)
class FileShape:
    """The columns of a file, in its order. Files of one writer mostly have the same shape."""

    columns: tuple[AdoptedColumn, ...]
    unreadable: tuple[UnreadableColumn, ...] = ()

    @cached_property
    def key(self) -> str:
        """A text that is equal for equal shapes. Arrow's types cannot be compared, because they ignore field ids."""
        fields = [pa.field(column.name, column.type, column.nullable) for column in self.columns]
        ids = [column.id for column in self.columns]
        return f"{ids} {self.unreadable} {pa.schema(fields).to_string(truncate_metadata=False)}"


class CandidateFile(Struct, frozen=True, gc=False):
    """One file, with its footer as in ``DataFile``. Bounds are by column name."""

    location: FileLocation
    size: int
    rows: int
    footer: tuple[int, int, int]
    shape: FileShape
    stats: dict[str, ColumnStats]


class FooterColumns(NamedTuple):
    """The columns in a file's footer, for the table and for the reader of footers."""

    schema: FooterSchema
    shape: FileShape
    is_flat: list[bool]  # by Parquet column, whether it has as many values as there are rows
    bounded: list[tuple[str, FileColumn]]  # the columns whose bounds are stored, with their names


def read_candidate(
    location: FileLocation,
    size: int | None,
    keys: Collection[str],
    like: FooterColumns | None,
    *,
    whole_if_small: bool = False,
) -> tuple[CandidateFile, FooterColumns]:
    """Reads a file's footer, with bounds of ``keys`` before other columns. Without a size, requests it.

    Args:
        like: the columns of another file, which probably has the same; saves time.
        whole_if_small: whether a file without a size is read at once, instead of its size; for local files.

    Raises AdoptionError if the file cannot be adopted. Unreadable columns raise no error: the shape lists them.
    """
    if reason := key_problem(location.key):
        raise AdoptionError(location.label, [reason])
    try:
        footer, size = _read_footer(location, size, whole_if_small=whole_if_small)
    except ObjectNotFoundError:
        raise AdoptionError(location.label, ["there is no such file"]) from None
    try:
        metadata = parquet_reader(pa.BufferReader(footer)).metadata
    except (pa.ArrowException, OSError) as error:
        raise AdoptionError(location.label, [f"its Parquet footer cannot be read: {error}"]) from None
    if metadata.serialized_size != len(footer) - _END:  # a signature: columns are encrypted
        raise AdoptionError(location.label, ["its columns are encrypted"])
    columns = _columns(metadata, footer, keys, like)
    survey = _FooterSurvey.of(metadata, columns)
    if survey.refusals:
        raise AdoptionError(location.label, survey.refusals)
    end = (size - len(footer), len(footer), crc32(footer))
    return CandidateFile(location, size, metadata.num_rows, end, columns.shape, survey.stats(columns)), columns


def _read_footer(location: FileLocation, size: int | None, *, whole_if_small: bool) -> tuple[bytes, int]:
    """Reads a file's footer. Returns it, and the size of the file. Raises AdoptionError."""
    response = None
    if size is None and whole_if_small:
        response = location.store.get(location.key, (0, TAIL_BYTES + 1))
        size = len(response.body) if len(response.body) <= TAIL_BYTES else None
    if size is None:
        response, size = None, location.store.head(location.key).size
    if size < _SMALLEST:
        raise AdoptionError(location.label, ["it is not a Parquet file: it is too short"])
    first = max(0, size - TAIL_BYTES)
    if response is None:
        response = location.store.get(location.key, (first, size + 1))
    body = response.body
    if len(body) != size - first:
        raise AdoptionError(location.label, [f"it does not have the expected size of {size:,} bytes"])
    if body[-4:] != PARQUET_MAGIC:
        reason = "its footer is encrypted" if body[-4:] == _ENCRYPTED else "it is not a Parquet file"
        raise AdoptionError(location.label, [reason])
    length = int.from_bytes(body[-_END:-4], "little") + _END
    if length > size - len(PARQUET_MAGIC):
        raise AdoptionError(location.label, ["its Parquet footer is damaged"])
    if length > len(body):
        body = location.store.get(location.key, (size - length, first), etag=response.etag).body + body
    return body[len(body) - length :], size


class _FooterSurvey(NamedTuple):
    """A survey of the row groups in a footer, in one pass: their rows, bounds, and reasons against the file.

    ``bounds`` are those of ``FooterColumns.bounded``, by row group.
    """

    rows: list[int]
    bounds: list[list[Bounds]]
    refusals: list[str]

    @classmethod
    def of(cls, metadata: pq.FileMetaData, columns: FooterColumns) -> _FooterSurvey:
        """Looks at all row groups."""
        rows, bounds, codecs, counts, is_elsewhere = list[int](), list[list[Bounds]](), set[str](), "", False
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunks = [group.column(leaf) for leaf in range(len(columns.is_flat))]
            count = group.num_rows
            is_elsewhere |= bool(chunks and chunks[0].file_path)
            for chunk, is_flat in zip(chunks, columns.is_flat, strict=True):
                codecs.add(chunk.compression)
                if is_flat and chunk.num_values != count and not counts:
                    values = f"{chunk.num_values:,} values of {chunk.path_in_schema!r}"
                    counts = f"its row group {number} has {count:,} rows, but {values}"
            rows.append(count)
            bounds.append([chunk_bounds(chunks[each.leaves[0]], count, each, None) for _, each in columns.bounded])
        refusals = _codec_refusals(codecs)
        if counts:
            refusals.insert(0, counts)
        if is_elsewhere:
            refusals.insert(0, "its rows are in other files, as for a summary file (_metadata)")
        if sum(rows) != metadata.num_rows:
            refusals.insert(0, "the number of rows in its footer differs from that of its row groups together")
        if metadata.num_rows > _MOST_ROWS:
            refusals.insert(0, f"it has {metadata.num_rows:,} rows; a file may have at most {_MOST_ROWS:,}")
        return cls(rows, bounds, refusals)

    def stats(self, columns: FooterColumns) -> dict[str, ColumnStats]:
        """Bounds of the file's columns over all its row groups."""
        stats = {}
        for (name, _), own in zip(columns.bounded, zip(*self.bounds, strict=True), strict=False):
            least, greatest, nulls, nans = _merge_bounds(own, self.rows)
            if least is not None or greatest is not None or nulls is not None:
                stats[name] = column_stats(least, greatest, nulls, nans)
        return stats


def _codec_refusals(codecs: Collection[str]) -> list[str]:
    refusals = []
    for codec in sorted({*codecs} - {"UNCOMPRESSED", _OLD_LZ4}):
        try:
            can_read = pa.Codec.is_available(codec.lower())
        except ValueError:
            can_read = False
        if not can_read:
            refusals.append(f"it is compressed by {codec}, which cannot be read")
    return refusals


def _columns(
    metadata: pq.FileMetaData, footer: bytes, keys: Collection[str], like: FooterColumns | None
) -> FooterColumns:
    if like and not like.shape.unreadable and like.schema.is_in(footer, metadata) and not julian_leaves(metadata):
        return like
    shape, readable = _shape(metadata)
    is_flat = [not metadata.schema.column(leaf).max_repetition_level for leaf in range(metadata.num_columns)]
    indexes = sorted(range(len(readable)), key=lambda index: shape.columns[index].name not in keys)
    bounded = [
        (shape.columns[index].name, readable[index])
        for index in indexes[:MOST_STATISTICS]
        if not is_nested(readable[index].type)
    ]
    return FooterColumns(FooterSchema.of(footer, metadata), shape, is_flat, bounded)


def _shape(metadata: pq.FileMetaData) -> tuple[FileShape, list[FileColumn]]:
    """The columns of a file, for the table and for the reader of footers."""
    columns, readable, unreadable, leaf = list[AdoptedColumn](), list[FileColumn](), list[UnreadableColumn](), 0
    julian = julian_leaves(metadata)
    schema = metadata.schema.to_arrow_schema()
    for field in map(strip_ids, schema) if _has_ids_of_structs(schema) else schema:
        leaves = tuple(range(leaf, leaf + leaf_count(field.type)))
        leaf += len(leaves)
        try:
            if reason := next(filter(None, (_leaf_refusal(metadata, each) for each in leaves)), ""):
                raise SchemaError(reason)
            if not julian.isdisjoint(leaves):
                raise SchemaError(f"{JULIAN}: rewrite the file with Spark")
            column = adopted_column(field, leaves)
        except SchemaError as error:
            unreadable.append(UnreadableColumn(field.name, str(error), field_id(field)))
            continue
        columns.append(column)
        unit = microseconds_per_unit(metadata, leaves[0]) if pa.types.is_temporal(column.type) else 1
        readable.append(FileColumn(column.type, leaves, unit))
    return FileShape(tuple(columns), tuple(unreadable)), readable


def _has_ids_of_structs(schema: pa.Schema) -> bool:
    """True if field ids are unique only inside their struct, as from Protocol Buffers: then names find columns."""

    def ids(fields: Sequence[pa.Field]) -> Iterator[list[int]]:
        yield [id_ for id_ in map(field_id, fields) if id_ is not None and id_ >= 0]
        for kind in (field.type for field in fields):
            yield from ids([kind.field(index) for index in range(kind.num_fields)])

    levels = list(ids(list(schema)))
    every = [id_ for level in levels for id_ in level]
    return len(set(every)) < len(every) and all(len(set(level)) == len(level) for level in levels)


def strip_ids(field: pa.Field) -> pa.Field:
    """A field without field ids, and the same for the fields inside it."""
    return pa.field(field.name, change_fields(field.type, strip_ids), field.nullable)


def _leaf_refusal(metadata: pq.FileMetaData, leaf: int) -> str:
    column = metadata.schema.column(leaf)
    if column.physical_type == "INT96":
        return "its times have Parquet's old type INT96, which counts nanoseconds, and dolmen counts microseconds"
    if '"timeUnit":"nanoseconds"' in column.logical_type.to_json().replace(" ", ""):
        return "its times count nanoseconds, and dolmen counts microseconds"
    return ""


def _merge_bounds(groups: Sequence[Bounds], rows: Sequence[int]) -> Bounds:
    """Bounds over row groups; unknown if the bounds of a row group with values are unknown."""
    if len(groups) == 1 and rows[0] and groups[0].nulls != rows[0]:
        return groups[0]
    with_values = [one for one, count in zip(groups, rows, strict=True) if count and one.nulls != count]
    least, greatest = [one.min for one in with_values], [one.max for one in with_values]
    nulls, nans = [one.nulls for one in groups], [one.nans for one in groups]
    return Bounds(
        min(least) if least and None not in least else None,  # type: ignore[type-var]  # of one type
        max(greatest) if greatest and None not in greatest else None,  # type: ignore[type-var]
        None if None in nulls else sum(filter(None, nulls)),
        None if None in nans else sum(filter(None, nans)),
    )


class _StoredFile(CheckedFile):
    """An object as a file. Each read is a request."""

    def __init__(self, location: FileLocation, size: int) -> None:
        super().__init__(size)
        self._location = location

    def _take(self, start: int, length: int) -> pa.Buffer:
        return pa.py_buffer(self._location.store.get(self._location.key, (start, start + length)).body)


def read_column(one: CandidateFile, column: AdoptedColumn) -> Iterator[pa.ChunkedArray]:
    """Reads a column of a file, one row group at a time, in the file's type."""
    file = pq.ParquetFile(pa.PythonFile(_StoredFile(one.location, one.size), mode="r"))
    for group in range(file.metadata.num_row_groups):
        yield file.reader.read_row_group(group, column_indices=list(column.leaves), use_threads=False).column(0)

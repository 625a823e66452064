"""The objects of data files: which ones they are, the byte ranges that one request fetches, and their footers.

The bytes of a data file are under its path in the database's store or, if it was adopted, where it was. The store of an
adopted file is of the same kind as the database's: a manifest cannot make a reader of a bucket open files of the
reader's machine. Columns of adopted files are cast to the types that tables have (``dolmen.format.schema``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from types import MappingProxyType
from typing import NamedTuple, TypeAlias
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.base.units import KIB, MIB
from dolmen.errors import CorruptionError, Error, InputError, ObjectNotFoundError, SchemaError
from dolmen.format.chunk_locations import ChunkLocations
from dolmen.format.column_history import widen
from dolmen.format.entries import UNKNOWN, Bounds, ConstantColumn, DataFile, constant_bounds
from dolmen.format.layout import OWN_SCHEME, AdoptedPath, ColumnsBy, is_adopted
from dolmen.format.page_locations import ChunkSums, PageLocations, chunk_range
from dolmen.format.parquet_footer import schema_part
from dolmen.format.schema import (
    Field,
    MappedColumn,
    field_id,
    field_id_metadata,
    is_nested,
    leaf_count,
    stored_type,
    type_from_json,
)
from dolmen.format.types import Plain
from dolmen.store.base import ObjectStore, scheme_of
from dolmen.store.cache import CacheKey, ObjectCache

Pending: TypeAlias = Callable[[str, int, int], bytes | None]
"""(key, offset, length) -> these bytes of an object that a transaction has not uploaded yet; None for others."""

GAP_BYTES = MIB
"""Ranges at most this far apart are fetched together: on S3 a request costs more, if nothing else is in flight."""

REQUEST_BYTES = 128 * KIB  # the cost in bytes of one request of 32 that are in flight at once

PAGE_GAP_BYTES = 64 * KIB
"""Pages at most this far apart are fetched together: a look-up makes few requests, and waits for all at once."""

MERGED_BYTES = 8 * MIB  # no request asks for more than this, unless one column chunk alone is larger


class Range(NamedTuple):
    """The bytes ``start`` <= i < ``end`` of an object."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def coalesce(ranges: Iterable[Range], gap: int = GAP_BYTES, most: int = MERGED_BYTES) -> list[Range]:
    """Joins ranges that are at most ``gap`` bytes apart into requests of at most ``most`` bytes, in ascending order.

    The ranges may overlap, and be in any order.
    """
    merged: list[Range] = []
    for requested in sorted(ranges):
        last = merged[-1] if merged else None
        if last and requested.start <= last.end + gap and max(requested.end, last.end) - last.start <= most:
            merged[-1] = Range(last.start, max(requested.end, last.end))
        else:
            merged.append(requested)
    return merged


class DataObject(Struct, frozen=True):
    """The object of a data file: its store, its key there, and the parsed path of an adopted file."""

    store: ObjectStore
    key: str
    adopted: AdoptedPath | None = None

    @property
    def label(self) -> str:
        return self.adopted.label if self.adopted else self.key


def data_object(store: ObjectStore, path: str) -> DataObject:
    """Finds the object of a data file. Raises CorruptionError for an adopted file in another kind of store."""
    if not is_adopted(path):
        return DataObject(store, path)
    adopted = AdoptedPath.parse(path)
    if adopted is None:
        raise CorruptionError(path, "it is not a path of an adopted file")
    if adopted.scheme == OWN_SCHEME:
        return DataObject(store, adopted.key, adopted)
    kind = scheme_of(store.url)
    if kind is None or kind.name != adopted.scheme:
        raise CorruptionError(adopted.label, f"a database at {store.url} cannot have adopted it")
    return DataObject(store.sibling(adopted.root), adopted.key, adopted)


def local_path(store: ObjectStore, path: str) -> str | None:
    """A data file's path on this machine; None for an adopted file, which other programs may replace."""
    return None if is_adopted(path) else store.local_path(path)


def is_local(store: ObjectStore) -> bool:
    return store.local_path("any") is not None


def missing_file_error(store: ObjectStore, file: DataFile, table: str) -> CorruptionError:
    location = data_object(store, file.path)
    if location.adopted:
        return CorruptionError(
            location.label, f"it is missing, and table {table!r} has adopted it: put it back, or delete its rows"
        )
    return CorruptionError(file.path, f"it is missing, and is a data file of table {table!r}")


def changed_file_error(store: ObjectStore, file: DataFile, table: str, reason: str) -> Error:
    location = data_object(store, file.path)
    if location.adopted:
        return CorruptionError(
            location.label,
            f"it was changed since table {table!r} adopted it ({reason}): put the adopted file back, or drop the table "
            "and adopt the files again",
        )
    return CorruptionError(file.path, reason)


def check_same_kind(store: ObjectStore, scheme: str, url: str) -> None:
    """Raises InputError unless a database in this store can adopt files of this scheme."""
    kind = scheme_of(store.url)
    if kind is None or kind.name != scheme:
        raise InputError(f"{url!r}: a database at {store.url} can adopt files in stores of its own kind only")


_NO_ID = -1  # the id of fields that the table never had, inside columns. No column has it.
_US = {"milliseconds": 1_000, "microseconds": 1}

_PARSED_FACTOR = 4  # the memory of a parsed footer, in multiples of its encoded size


class AdoptedColumn(NamedTuple):
    """One column of an adopted file, in the type in which it is read; without id if the table never had it."""

    name: str
    id: int | None
    type: pa.DataType
    nullable: bool
    leaves: tuple[int, ...]


def adopted_column(
    field: pa.Field, leaves: tuple[int, ...], mapping: Sequence[MappedColumn] | None = None
) -> AdoptedColumn:
    """One column, with ids from ``mapping``, or from the file if that is None. Raises SchemaError."""
    if mapping is None:
        return AdoptedColumn(field.name, field_id(field), _with_ids(field.type, None), field.nullable, leaves)
    mapped = find_mapped_column(mapping, field.name)
    kind = _with_ids(field.type, mapped.fields if mapped else ())
    return AdoptedColumn(field.name, mapped.id if mapped else None, kind, field.nullable, leaves)


def find_mapped_column(mapping: Sequence[MappedColumn], name: str) -> MappedColumn | None:
    return next((each for each in mapping if name in each.names), None)


def microseconds_per_unit(metadata: pq.FileMetaData, leaf: int) -> int | None:
    """Microseconds per unit of a column of times in statistics; None for nanoseconds."""
    logical = json.loads(metadata.schema.column(leaf).logical_type.to_json())
    if logical["Type"] == "Date":
        return 1
    return _US.get(logical.get("timeUnit", ""))


def _with_ids(file_type: pa.DataType, mapping: Sequence[MappedColumn] | None) -> pa.DataType:
    """The type in which values are read, with the ids of its fields (``mapping``: see ``adopted_column``)."""

    def inner(field: pa.Field, mapped: MappedColumn | None) -> pa.Field:
        id_ = field_id(field) if mapping is None else mapped.id if mapped else None
        kind = _with_ids(field.type, None if mapping is None else mapped.fields if mapped else ())
        return pa.field(field.name, kind, field.nullable, field_id_metadata(_NO_ID if id_ is None else id_))

    target = stored_type(file_type)
    if not is_nested(target):
        return target
    if isinstance(file_type, pa.BaseExtensionType):
        return _with_ids(file_type.storage_type, mapping)
    if pa.types.is_struct(target):
        fields = [file_type.field(index) for index in range(file_type.num_fields)]
        return pa.struct([inner(field, find_mapped_column(mapping or (), field.name)) for field in fields])
    first, second = [*(mapping or ()), None, None][:2]
    if pa.types.is_map(target):
        return pa.map_(inner(file_type.key_field, first), inner(file_type.item_field, second))
    return pa.list_(inner(file_type.value_field, first))


class FileColumn(Struct, frozen=True):
    """A column as one file has it, in the type in which it is read.

    ``unit_us`` is the unit of times in the footer's statistics, in microseconds; None for nanoseconds.
    """

    type: pa.DataType
    leaves: tuple[int, ...]
    unit_us: int | None = 1

    def type_of(self, leaves: frozenset[int]) -> pa.DataType:
        """The type with only those fields of structs that have some of these Parquet columns."""
        return self.type if leaves.issuperset(self.leaves) else _pick_fields(self.type, iter(self.leaves), leaves)


def _pick_fields(kind: pa.DataType, own: Iterator[int], leaves: frozenset[int]) -> pa.DataType | None:
    if not pa.types.is_struct(kind):
        return None if leaves.isdisjoint(list(islice(own, leaf_count(kind)))) else kind
    picked = [(field, _pick_fields(field.type, own, leaves)) for field in kind]
    fields = [field.with_type(inner) for field, inner in picked if inner is not None]
    return pa.struct(fields) if fields else None


class FooterSchema(Struct, frozen=True):
    """The parts of a file's footer from which its columns follow, as bytes."""

    start: bytes  # up to the end of Parquet's schema; empty if that is not where writers put it
    arrow: bytes | None  # Arrow's schema, which pyarrow stores beside it

    @classmethod
    def of(cls, footer: bytes, metadata: pq.FileMetaData) -> FooterSchema:
        """The parts in a footer, with the bytes before and after its Thrift metadata."""
        return cls(schema_part(footer[_thrift_start(footer) :]), _arrow_schema(metadata))

    def is_in(self, footer: bytes, metadata: pq.FileMetaData) -> bool:
        """True if a file with this footer surely has the same columns, with the same names, types and ids."""
        is_same = bool(self.start) and footer.startswith(self.start, _thrift_start(footer))
        return is_same and _arrow_schema(metadata) == self.arrow


def _thrift_start(footer: bytes) -> int:
    return len(footer) - 8 - int.from_bytes(footer[-8:-4], "little")


def _arrow_schema(metadata: pq.FileMetaData) -> bytes | None:
    found: bytes | None = (metadata.metadata or {}).get(b"ARROW:schema")
    return found


class DataFileFooter(Struct, frozen=True, dict=True):
    """A data file's footer."""

    metadata: pq.FileMetaData
    columns: dict[int, FileColumn]  # by field id, in the file's order
    firsts: tuple[int, ...]  # position of each row group's first row in the file
    sums: ChunkSums | None  # checksums of the column chunks; None for files without
    etag: str | None = None  # an adopted file's ETag when the footer was read
    # how the columns of an adopted file are found; None for the database's own files
    columns_by: ColumnsBy | None = None
    page_block: bytes = b""  # encoded locations of pages
    # columns with one value, by field id; they are not in ``columns``
    constants: Mapping[int, ConstantColumn] = {}
    schema: FooterSchema | None = None  # None for a footer that is made of locations

    @classmethod
    def parse(
        cls, body: bytes, file: DataFile, mapping: Sequence[MappedColumn] = (), etag: str | None = None
    ) -> DataFileFooter:
        """Parses the footer of an entry. Raises CorruptionError if it is another one."""
        check_footer(body, file)
        return cls.of(open_reader(body, file).metadata, body, file, mapping, etag)

    @classmethod
    def of(
        cls,
        metadata: pq.FileMetaData,
        body: bytes,
        file: DataFile,
        mapping: Sequence[MappedColumn],
        etag: str | None,
        like: DataFileFooter | None = None,
    ) -> DataFileFooter:
        """The footer with this metadata; other arguments: see ``parse`` and ``open_file``."""
        if metadata.num_rows != file.rows:
            raise CorruptionError(file.path, f"{metadata.num_rows} rows, not the {file.rows} of its entry")
        adopted = AdoptedPath.parse(file.path)
        columns_by = adopted.columns_by if adopted else None
        is_alike = like is not None and (like.columns_by, like.constants.keys()) == (columns_by, file.constants.keys())
        if like and like.schema and is_alike and like.schema.is_in(body, metadata):
            columns, schema = like.columns, like.schema
        else:
            by_name = mapping if columns_by == "names" else None
            columns = _adopted_columns(metadata, by_name) if adopted else _own_columns(metadata)
            columns = {id_: column for id_, column in columns.items() if id_ not in file.constants}
            schema = FooterSchema.of(body, metadata)
        rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups - 1)]
        firsts = (*accumulate(rows, initial=0),) if metadata.num_row_groups else ()
        sums = None if adopted else ChunkSums.decode(body, file.footer[0], metadata, file.path)
        block = body[: sums.before] if sums else b""
        return cls(metadata, columns, firsts, sums, etag, columns_by, block, file.constants, schema)

    @classmethod
    def of_locations(cls, locations: ChunkLocations, groups: list[int]) -> DataFileFooter:
        """A footer of some row groups (ascending), from the locations of their column chunks; it has no statistics."""
        picked = locations.pick(groups)
        return cls(picked.metadata, _own_columns(picked.metadata), picked.firsts, ChunkSums(picked.states, 0, 0))

    @property
    def is_adopted(self) -> bool:
        return self.columns_by is not None

    @cached_property
    def pages(self) -> PageLocations | None:
        """The locations of pages; None in files without. Raises CorruptionError."""
        chunks = self.metadata.num_row_groups * self.metadata.num_columns
        return PageLocations.decode(self.page_block, chunks)

    def rows(self, group: int) -> int:
        count: int = self.metadata.row_group(group).num_rows
        return count

    def leaves(self, ids: frozenset[int], own: Mapping[int, tuple[int, ...]] = MappingProxyType({})) -> list[int]:
        """The Parquet columns of these columns, in order; ``own``: those of some columns, by id, instead of all."""
        return [leaf for id_, each in self.columns.items() if id_ in ids for leaf in own.get(id_, each.leaves)]

    def ranges(
        self, group: int, ids: frozenset[int], own: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    ) -> list[Range]:
        row_group = self.metadata.row_group(group)
        chunks = (chunk_range(row_group.column(leaf)) for leaf in self.leaves(ids, own))
        return [Range(start, start + length) for start, length in chunks]

    def bounds(self, group: int, field: Field, nans: int | None) -> Bounds:
        """The bounds of a column in one row group; ``nans`` is the number of NaN in the whole file, if known."""
        row_group = self.metadata.row_group(group)
        column = self.columns.get(field.id)
        if constant := self.constants.get(field.id):
            value = widen(constant.value, type_from_json(constant.type), field.arrow_type)
            return constant_bounds(value, field.arrow_type, row_group.num_rows)
        if column is None:  # it was written before the column was added
            return constant_bounds(field.initial_default, field.arrow_type, row_group.num_rows)
        if is_nested(column.type):
            return UNKNOWN
        own = self.leaf_bounds(group, column, nans)
        if column.type == field.arrow_type:
            return own
        least, greatest = (widen(end, column.type, field.arrow_type) for end in (own.min, own.max))
        return Bounds(least, greatest, own.nulls, own.nans)

    def leaf_bounds(self, group: int, column: FileColumn, nans: int | None) -> Bounds:
        """The bounds of a column without children, or of a field of a struct, in the file's type. See ``bounds``."""
        row_group = self.metadata.row_group(group)
        return chunk_bounds(row_group.column(column.leaves[0]), row_group.num_rows, column, nans)

    @cached_property
    def struct_fields(self) -> dict[int, FileColumn]:
        """The fields of structs that have no children themselves, by field id; none inside of lists and maps."""
        found: dict[int, FileColumn] = {}
        for column in self.columns.values():
            _add_struct_fields(column.type, column.leaves, self.metadata, found)
        return found


def chunk_bounds(chunk: pq.ColumnChunkMetaData, rows: int, column: FileColumn, nans: int | None) -> Bounds:
    """See ``DataFileFooter.leaf_bounds``."""
    statistics = chunk.statistics
    if statistics is None:
        return UNKNOWN
    nulls = statistics.null_count if statistics.has_null_count else None
    is_uncertain = nans != 0 and pa.types.is_floating(column.type) and nulls != rows
    least, greatest = _ends(statistics, column) if statistics.has_min_max else (None, None)
    return Bounds(least, greatest, nulls, None if is_uncertain else 0)


def _fields(metadata: pq.FileMetaData) -> Iterator[tuple[pa.Field, tuple[int, ...]]]:
    leaf = 0
    for field in metadata.schema.to_arrow_schema():
        leaves = tuple(range(leaf, leaf + leaf_count(field.type)))
        leaf += len(leaves)
        yield field, leaves


def _own_columns(metadata: pq.FileMetaData) -> dict[int, FileColumn]:
    columns = ((field_id(field), FileColumn(field.type, leaves)) for field, leaves in _fields(metadata))
    return {id_: column for id_, column in columns if id_ is not None}


def _adopted_columns(metadata: pq.FileMetaData, mapping: Sequence[MappedColumn] | None) -> dict[int, FileColumn]:
    """The columns of an adopted file that the table has, all of which dolmen has a type for."""
    columns: dict[int, FileColumn] = {}
    for field, leaves in _fields(metadata):
        with suppress(SchemaError):
            column = adopted_column(field, leaves, mapping)
            if column.id is not None:
                unit = microseconds_per_unit(metadata, leaves[0]) if pa.types.is_temporal(column.type) else 1
                columns[column.id] = FileColumn(column.type, leaves, unit)
    return columns


def _add_struct_fields(
    arrow_type: pa.DataType, leaves: tuple[int, ...], metadata: pq.FileMetaData, found: dict[int, FileColumn]
) -> None:
    for field in arrow_type if pa.types.is_struct(arrow_type) else ():
        own, leaves = leaves[: leaf_count(field.type)], leaves[leaf_count(field.type) :]
        id_ = field_id(field)
        if is_nested(field.type):
            _add_struct_fields(field.type, own, metadata, found)
        elif id_ is not None and id_ != _NO_ID:
            unit = microseconds_per_unit(metadata, own[0]) if pa.types.is_temporal(field.type) else 1
            found[id_] = FileColumn(field.type, own, unit)


def _ends(statistics: pq.Statistics, column: FileColumn) -> tuple[Plain, Plain]:
    """The bounds in a footer's statistics, in plain form; None if unknown."""
    if pa.types.is_temporal(column.type):  # plain values of times are Parquet's own integers
        if column.unit_us is None:
            return None, None
        return statistics.min_raw * column.unit_us, statistics.max_raw * column.unit_us
    try:
        least, greatest = statistics.min, statistics.max
    except UnicodeDecodeError:  # bounds of text that other writers have cut inside of a character
        return None, None
    if isinstance(least, float) and (least != least or greatest != greatest):  # other writers have NaN for a bound
        return None, None
    return least, greatest


def open_reader(body: bytes, file: DataFile, *, verify_pages: bool = False) -> ParquetReader:
    """A reader of a file, or of its metadata if the body is only its end. Raises CorruptionError."""
    try:
        return parquet_reader(pa.BufferReader(body), verify_pages=verify_pages)
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(file.path, f"footer: {error}") from error


ParquetReader: TypeAlias = pq.core.ParquetReader
"""The reader inside of a ``ParquetFile``, which would collect the paths of all columns of each file."""


def parquet_reader(
    source: pa.NativeFile, *, metadata: pq.FileMetaData | None = None, verify_pages: bool = False
) -> ParquetReader:
    """Opens a file; with its metadata, its footer is not read."""
    reader = ParquetReader()
    reader.open(
        source,
        metadata=metadata,
        pre_buffer=False,
        page_checksum_verification=verify_pages,
        arrow_extensions_enabled=True,
    )
    return reader


def check_footer(body: bytes, file: DataFile) -> None:
    """Compares a footer with the file's entry. Raises CorruptionError."""
    if len(body) != file.footer[1] or crc32(body) != file.footer[2]:
        raise CorruptionError(file.path, "the footer's length or checksum differs from its entry")


def first_request(file: DataFile) -> Range:
    """The range to fetch to open a file: its footer, or all of a small file. One byte more shows if it is longer."""
    return Range(0 if file.size <= GAP_BYTES else file.footer[0], file.size + 1)


class FetchedFooter(Struct, frozen=True):
    """The footer of a file, and what came with it."""

    footer: DataFileFooter
    body: bytes | None = None  # the whole file if it was fetched with the footer
    parquet: ParquetReader | None = None  # a reader of ``body``, unless it would verify no checksum
    filters: bytes | None = None  # the bytes from ``DataFile.filters`` to the footer if they were fetched with it
    requested: int | None = None  # bytes that were fetched; None if the footer was in the cache


def footer_key(file: DataFile) -> CacheKey:
    """The key in the cache of a file's footer."""
    return ("footer", file.path, *file.footer)


def bytes_key(file: DataFile, range_: Range) -> CacheKey:
    """The key in the cache of a range of a file, such as a column chunk."""
    return ("bytes", file.path, *range_, file.footer[2])


def open_file(
    store: ObjectStore,
    cache: ObjectCache,
    file: DataFile,
    table: str,
    mapping: Sequence[MappedColumn] = (),
    *,
    caches_bytes: bool = False,
    refetch: bool = False,
    with_filters: bool = False,
    like: DataFileFooter | None = None,
) -> FetchedFooter:
    """Gets a file's footer from the cache, or with one request.

    Raises CorruptionError: the file is missing, or not the one its entry describes.

    Args:
        caches_bytes: whether all bytes of a small file are cached, and come from the cache; never of an adopted one.
        with_filters: fetch its Bloom filters with the footer, but not the rest of a small file.
        like: the footer of another file, which probably has the same columns; saves time.
    """
    key, whole_key = footer_key(file), bytes_key(file, Range(0, file.size))
    location = data_object(store, file.path)
    caches_bytes = caches_bytes and file.size <= GAP_BYTES and not location.adopted
    footer: DataFileFooter | None = None if refetch else cache.get(key)
    cached = None if footer or location.adopted else cache.get_from_disk(key, lambda body: check_footer(body, file))
    if cached is not None:
        footer = DataFileFooter.parse(cached, file)
        cache.put(key, footer, file.footer[1] * _PARSED_FACTOR)
    if footer is not None:
        return FetchedFooter(footer, cache.get_bytes(whole_key) if caches_bytes else None)
    target = Range(file.filters, file.size + 1) if with_filters else first_request(file)
    try:
        response = location.store.get(location.key, target)
    except ObjectNotFoundError as error:
        raise missing_file_error(store, file, table) from error
    body = response.body
    if len(body) != file.size - target.start:
        missing = f"{len(body) + target.start}{' or more' if len(body) == target.length else ''} bytes"
        reason = f"it has {missing}, not the {file.size} of its entry in table {table!r}"
        raise changed_file_error(store, file, table, reason)
    end = body[file.footer[0] - target.start :]
    if crc32(end) != file.footer[2] or len(end) != file.footer[1]:
        if location.adopted:
            raise changed_file_error(store, file, table, "its footer is another one")
        check_footer(end, file)
    is_whole = target.start == 0
    parquet = open_reader(body if is_whole else end, file, verify_pages=location.adopted is not None)
    footer = DataFileFooter.of(parquet.metadata, end, file, mapping, response.etag if location.adopted else None, like)
    cache.put(key, footer, file.footer[1] * _PARSED_FACTOR)
    if not location.adopted:  # others may replace an adopted file, so its footer is not kept on disk
        cache.put_on_disk(key, end)
    if is_whole:
        if caches_bytes:
            cache.put_bytes(whole_key, body)
        verifies = bool(footer.sums or location.adopted)
        return FetchedFooter(footer, body, parquet if verifies else None, requested=len(body))
    filters = body[: file.footer[0] - target.start] if with_filters else None
    return FetchedFooter(footer, filters=filters, requested=len(body))

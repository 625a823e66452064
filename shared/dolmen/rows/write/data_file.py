"""Writes data files in bounded memory: from a stream of record batches, or put together of row groups of others.

A stream is cut into pieces of bounded size. Sorted and measured, a piece is a run, which is encoded as row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Generic, Self, TypeAlias, TypeVar
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyarrow import types as t

from dolmen.base.runtime import Runtime
from dolmen.entries.partitions import Partition, PartitionSpec
from dolmen.errors import SchemaError
from dolmen.format.chunk_locations import (
    PARQUET_MAGIC,
    GroupSums,
    SpliceSource,
    file_without_rows,
    move_sums,
    thrift_metadata,
)
from dolmen.format.entries import DataFile
from dolmen.format.layout import data_key
from dolmen.format.manifest import TableEntry
from dolmen.format.page_locations import ChunkSums
from dolmen.format.parquet_footer import FooterParts, MovedGroup, move_groups
from dolmen.format.properties import partition_files
from dolmen.format.schema import COMMIT_TS_FIELD
from dolmen.rows.write.conform import check_rows
from dolmen.rows.write.encodings import TRIAL_ROWS
from dolmen.rows.write.partitioning import Piece, RowDivision
from dolmen.rows.write.runs import (
    DEFAULT,
    EncodedRun,
    Extent,
    Run,
    WriteOptions,
    WritePlan,
    commit_output,
    cut,
    encode,
    file_entry,
    finish_object,
    has_filters,
    make_run,
    write_object,
)
from dolmen.store.base import ObjectOutput, ObjectStore, StreamedOutput

Output = TypeVar("Output", bound=StreamedOutput)


class CopiedGroup(Struct, frozen=True):
    """A row group to copy into another file, with the size of its column chunks and extents of columns."""

    index: int
    rows: int
    size: int
    extents: Mapping[int, Extent]


class CopiedGroups(Struct, frozen=True):
    """Consecutive row groups of one file to copy into others. The file's frame is that of ``written_footer``."""

    source: SpliceSource
    groups: tuple[CopiedGroup, ...]


class EncodedGroups(Struct, frozen=True):
    """A run whose row groups become part of a file: magic and column chunks, with their locations and checksums."""

    body: Sequence[bytes]
    source: SpliceSource
    rows: int
    extents: Mapping[int, Extent]

    @classmethod
    def of(cls, run: Run, entry: TableEntry, plan: WritePlan) -> EncodedGroups:
        body: list[bytes] = []
        return cls.of_encoded(body, encode(body.append, entry, plan, run))

    @classmethod
    def of_encoded(cls, body: Sequence[bytes], encoded: EncodedRun) -> EncodedGroups:
        tail, size = encoded.tail, encoded.size
        source = SpliceSource.parse("", "", tail + encoded.footer, size, size + len(tail))
        if source is None:
            raise AssertionError("the Parquet writer has written a file of another kind")
        return cls(body, source, encoded.rows, encoded.extents)


def written_metadata(schema: pa.Schema) -> pq.FileMetaData:
    """The footer of a file of these columns without rows, as it is written now."""
    return pq.read_metadata(pa.BufferReader(file_without_rows(schema)))


def written_footer(schema: pa.Schema) -> FooterParts:
    """The footer of a file of these columns without rows, in its parts, as it is written now.

    Only row groups of files with the same frame may be put together.
    """
    return FooterParts.parse(thrift_metadata(file_without_rows(schema)))


class SplicedObject(Generic[Output]):
    """Puts row groups together as one Parquet object. Used as a context: leaving it uncommitted aborts the upload.

    Column chunks keep their bytes, and their checksums are derived from the existing ones, so that readers still find
    damage in a source.
    """

    def __init__(self, output: Output, path: str, entry: TableEntry) -> None:
        self._output, self._path, self._entry = output, path, entry
        self._footer = written_footer(entry.schema.arrow)
        self._position = self._crc = 0  # bytes so far, and their CRC-32
        self._groups: list[MovedGroup] = []
        self._sums: list[GroupSums] = []
        self._differences: list[int] = []  # for each of them: the CRC-32 before it here, XOR that in its source
        self._extents: dict[int, Extent] = {}
        self._unbounded: set[int] = set()  # columns whose bounds are unknown in some rows
        self._rows = 0
        self._has_filters = False

    @property
    def size(self) -> int:
        return self._position

    def copy(self: SplicedObject[ObjectOutput], copied: CopiedGroups) -> None:
        source = copied.source
        groups = range(copied.groups[0].index, copied.groups[-1].index + 1)
        first, end = source.byte_range(groups)
        if not self._position and first == len(PARQUET_MAGIC):  # all files begin with the same magic
            self._output.copy(source.key, (0, end), source.etag)
            self._position, self._crc = first, crc32(PARQUET_MAGIC)
        else:
            self._begin()
            self._output.copy(source.key, (first, end), source.etag)
        self._add(source, groups)
        for group in copied.groups:
            self._add_rows(group.rows, group.extents)

    def write(self, encoded: EncodedGroups) -> None:
        self._begin()
        skipped = len(PARQUET_MAGIC)
        for part in encoded.body:
            self._output.write(part[skipped:])
            skipped = 0
        self._add(encoded.source, range(encoded.source.metadata.num_row_groups))
        self._add_rows(encoded.rows, encoded.extents)

    def commit(self) -> DataFile:
        """Finishes the file and makes the object visible; returns its entry, still without commit timestamps."""
        start = self._position
        tail, encoded = move_groups(self._groups, start)
        states, pages = move_sums(self._sums, self._differences)
        footer = pages.encode() if len(pages.lengths) else b""
        footer += ChunkSums(tuple(states), crc32(tail, self._crc), start + len(tail)).encode()
        metadata = self._footer.fill(self._rows, encoded)
        footer += metadata + len(metadata).to_bytes(4, "little") + PARQUET_MAGIC
        self._output.write(tail + footer)
        size = commit_output(self._output, self._path, start + len(tail) + len(footer))
        filters = start if self._has_filters else 0
        extents = {
            id_: extent._replace(least=None, greatest=None) if id_ in self._unbounded else extent
            for id_, extent in self._extents.items()
        }
        return file_entry(self._path, size, self._rows, footer, extents, filters, self._entry)

    def __enter__(self) -> Self:
        self._output.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._output.__exit__(*exception)

    def _begin(self) -> None:
        if not self._position:
            self._output.write(PARQUET_MAGIC)
            self._position, self._crc = len(PARQUET_MAGIC), crc32(PARQUET_MAGIC)

    def _add_rows(self, rows: int, extents: Mapping[int, Extent]) -> None:
        self._rows += rows
        for id_, extent in extents.items():
            self._extents[id_] = self._extents[id_].merge(extent) if id_ in self._extents else extent
        self._unbounded |= {
            id_ for id_, extent in extents.items() if extent.least is None and extent.nulls + extent.nans < rows
        }

    def _add(self, source: SpliceSource, groups: range) -> None:
        """Adds the locations and checksums of row groups whose bytes were appended."""
        if source.footer.frame != self._footer.frame:
            raise AssertionError(f"{source.key} has other columns than {self._path}, or another writer")
        first, end = source.byte_range(groups)
        self._groups += source.moved_groups(groups, self._position - first)
        self._has_filters |= has_filters(source.metadata)
        sums = source.group_sums(groups)
        difference = self._crc ^ sums.start
        self._sums.append(sums)
        self._differences.append(difference)
        self._position, self._crc = self._position + end - first, sums.end(difference)


RowsSource: TypeAlias = CopiedGroups | Iterable[pa.RecordBatch]
"""Rows of the files to write: row groups of other files, or batches."""

_MOST_ENCODERS = 8  # the most processors that encode: each encodes a run of its own, which takes memory
_MOST_UPLOADS = 8  # the most small files of partitions that are uploaded at once


class _DividedRun(Struct, frozen=True):
    """An encoded run of one partition, or of several (None). With ``is_alone`` there is no other one."""

    partition: Partition | None
    is_alone: bool
    body: Sequence[bytes]
    encoded: EncodedRun


def write_data_files(
    store: ObjectStore,
    table_name: str,
    table: TableEntry,
    batches: Iterable[pa.RecordBatch],
    runtime: Runtime,
    options: WriteOptions = DEFAULT,
    name: Callable[[], str] | None = None,
    beat: Callable[[], None] = lambda: None,
    open_output: Callable[[str], StreamedOutput] | None = None,
) -> list[DataFile]:
    """Writes rows into as many data files as they need; without rows it writes no file. Files are of one partition.

    It reads the batches and uploads in the calling thread; runs are sorted and encoded on all processors. An error
    aborts the current file; finished ones are left as orphans. Raises RowError: a check of the table refuses a row;
    StoreUnavailableError, AccessDeniedError: from the upload; and whatever ``batches`` raises.

    Args:
        table_name: part of the objects' keys.
        table: its schema may end with the hidden column ``_commit_ts`` (``with_commit_ts``).
        batches: of exactly ``table.schema.arrow``.
        name: gives each object a universally unique name; a fresh uuid by default.
        beat: called after each run, to show that the job is alive.
        open_output: opens the object of a key to write into; the store's by default.

    Returns:
        Their entries, in the order of the rows, without commit timestamps, except for the bounds of ``_commit_ts``.
    """
    batches = check_rows(batches, table.schema) if table.schema.checks else batches
    keys = partial(_key, store, table_name, name or runtime.uuid)
    files = _Files(open_output or store.open_output, keys, table, options, runtime, beat)
    if spec := PartitionSpec.of(table):
        most = options.partition_files or partition_files(table)
        division = RowDivision(spec, table.schema.arrow, options, most, runtime)
        with files:
            files.write_divided(division.divide(batches), spec)
            return files.finish()
    pieces = cut(batches, table.schema.arrow, options.run_bytes, options.run_rows)
    first, second = next(pieces, None), next(pieces, None)
    if first is None:
        return []
    if second is None:
        return [files.write_one(make_run(first, table))]
    with files:
        files.write(chain([first, second], pieces))
        return files.finish()


def write_spliced_files(
    store: ObjectStore,
    table_name: str,
    table: TableEntry,
    sources: Iterable[RowsSource],
    runtime: Runtime,
    options: WriteOptions,
    name: Callable[[], str],
    beat: Callable[[], None],
) -> list[DataFile]:
    """Writes the rows of several sources, one after the other. See ``write_data_files``."""
    with _Files(store.open_output, partial(_key, store, table_name, name), table, options, runtime, beat) as files:
        for source in sources:
            if isinstance(source, CopiedGroups):
                files.copy(source)
            else:
                files.write(cut(source, table.schema.arrow, options.run_bytes, options.run_rows))
        return files.finish()


def with_commit_ts(table: TableEntry) -> TableEntry:
    """The table with a hidden last column, for files whose rows have different commit timestamps."""
    schema = msgspec.structs.replace(table.schema, fields=(*table.schema.fields, COMMIT_TS_FIELD))
    return msgspec.structs.replace(table, schema=schema)


def _key(store: ObjectStore, table_name: str, name: Callable[[], str]) -> str:
    return data_key(table_name, store.clock.now_us, name())


class _Files(Generic[Output]):
    """The files of one write: the finished ones, and the current one."""

    def __init__(
        self,
        open_output: Callable[[str], Output],
        key: Callable[[], str],
        table: TableEntry,
        options: WriteOptions,
        runtime: Runtime,
        beat: Callable[[], None],
    ) -> None:
        self._open_output, self._key, self._table = open_output, key, table
        self._options, self._runtime, self._beat = options, runtime, beat
        self._encoders = min(runtime.cores, _MOST_ENCODERS)
        self._runs = 0
        self._on_exit = ExitStack()
        self._current: SplicedObject[Output] | None = None
        self._plan: WritePlan | None = None
        self._done: list[DataFile] = []

    def write_one(self, run: Run) -> DataFile:
        """Writes a run into a file of its own, without the millisecond that putting runs together takes."""
        key = self._key()
        file = write_object(self._open_output(key), key, self._table, self._plan_of(run), run)
        self._beat()
        return file

    def write(self, pieces: Iterator[list[pa.ChunkedArray]]) -> None:
        """Appends rows: each piece becomes a run, which is encoded by itself."""
        with closing(self._encode_pieces(pieces)) as runs:
            for run in runs:
                self._file().write(run)
                del run  # before the next one is waited for
                self._end_if_full()
                self._runs += 1
                if self._runs % self._encoders == 0:  # takes a fifth off the peak; slow after each run
                    pa.default_memory_pool().release_unused()
                self._beat()

    def _encode_pieces(self, pieces: Iterator[list[pa.ChunkedArray]]) -> Generator[EncodedGroups, None, None]:
        """Encodes the rows of each piece, several pieces ahead of the one that is written."""
        piece = next(pieces, None)
        if piece is None:
            return
        table, first = self._table, make_run(piece, self._table)
        plan = self._plan = self._plan_of(first)

        def encode(run: Run | list[pa.ChunkedArray]) -> EncodedGroups:
            return EncodedGroups.of(run if isinstance(run, Run) else make_run(run, table), table, plan)

        runs: Iterator[Run | list[pa.ChunkedArray]] = chain([first], pieces)
        del first  # frees its memory early
        yield from self._runtime.compute(encode, runs, ahead=self._encoders + 1)

    def write_divided(self, pieces: Iterable[Piece], spec: PartitionSpec) -> None:
        """Writes the rows of each partition into files of their own, whose entries say which partition it is."""

        def write(item: tuple[Partition | None, DataFile | Callable[[], DataFile]]) -> DataFile:
            partition, file = item
            written = file if isinstance(file, DataFile) else file()
            return written if partition is None else spec.record(written, partition)

        with closing(self._encode_divided(iter(pieces))) as runs:
            for file in self._runtime.map(write, self._files_of(runs), ahead=_MOST_UPLOADS):
                self._done.append(file)
                self._beat()

    def _files_of(
        self, runs: Iterable[_DividedRun]
    ) -> Iterator[tuple[Partition | None, DataFile | Callable[[], DataFile]]]:
        """The files of each partition; a small one is still to be uploaded, by a function."""
        last: Partition | None = None
        for run in runs:
            if self._current and (run.partition != last or self._current.size >= self._options.file_bytes):
                yield last, self._pop()
            last = run.partition
            if run.is_alone and self._current is None:
                key = self._key()
                yield last, partial(self._write_whole, self._open_output(key), key, run)
            else:
                self._file().write(EncodedGroups.of_encoded(run.body, run.encoded))
        if self._current:
            yield last, self._pop()

    def _write_whole(self, output: Output, key: str, run: _DividedRun) -> DataFile:
        with output:
            for part in run.body:
                output.write(part)
            return finish_object(output, key, self._table, run.encoded)

    def _pop(self) -> DataFile:
        """Ends the current file."""
        self._end()
        return self._done.pop()

    def _encode_divided(self, pieces: Iterator[Piece]) -> Generator[_DividedRun, None, None]:
        table, options = self._table, self._options

        def plan_of(run: Run) -> WritePlan:
            return WritePlan.of(run, options, table)

        def planned() -> Iterator[tuple[Piece, Run | None, WritePlan | None]]:
            plan = None
            for piece in pieces:
                if plan is None and len(piece.columns[0]) >= TRIAL_ROWS:  # for all, as trials of encodings take time
                    run = make_run(piece.columns, table)
                    plan = plan_of(run)
                    yield piece, run, plan
                else:
                    yield piece, None, plan

        def encode_piece(item: tuple[Piece, Run | None, WritePlan | None]) -> _DividedRun:
            piece, run, plan = item
            run = run or make_run(piece.columns, table)
            body: list[bytes] = []
            return _DividedRun(
                piece.partition, piece.is_alone, body, encode(body.append, table, plan or plan_of(run), run)
            )

        yield from self._runtime.compute(encode_piece, planned(), ahead=self._encoders + 1)

    def copy(self: _Files[ObjectOutput], copied: CopiedGroups) -> None:
        """Appends row groups as they are, cut where a file is full."""
        groups: list[CopiedGroup] = []
        size = self._current.size if self._current else 0
        for group in copied.groups:
            groups.append(group)
            size += group.size
            if size < self._options.file_bytes and group is not copied.groups[-1]:
                continue
            self._file().copy(CopiedGroups(copied.source, tuple(groups)))
            self._end_if_full()
            self._beat()
            groups, size = [], 0

    def finish(self) -> list[DataFile]:
        self._end()
        return self._done

    def _plan_of(self, run: Run) -> WritePlan:
        if self._plan is None or self._plan.encodings.row_bytes is None:  # made from too few rows
            return WritePlan.of(run, self._options, self._table)
        return self._plan

    def _file(self) -> SplicedObject[Output]:
        if self._current is None:
            key = self._key()
            self._current = self._on_exit.enter_context(SplicedObject(self._open_output(key), key, self._table))
        return self._current

    def _end_if_full(self) -> None:
        if self._current and self._current.size >= self._options.file_bytes:
            self._end()

    def _end(self) -> None:
        if self._current:
            self._done.append(self._current.commit())
            self._on_exit.close()
            self._current = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._on_exit.__exit__(*exception)  # type: ignore[arg-type]


def check_storable(entry: TableEntry) -> None:
    """Writes two rows in memory and reads them back. Raises SchemaError if pyarrow can't store these columns."""
    key = TableEntry(
        uuid="", epoch=0, schema=entry.schema, primary_key=entry.primary_key, sort_key=entry.sort_key, properties={}
    )
    _check_storable(msgspec.json.encode(key))


@lru_cache(256)
def _check_storable(encoded: bytes) -> None:
    entry = msgspec.json.decode(encoded, type=TableEntry)
    schema = entry.schema.arrow
    try:
        examples = [(field, _example(field.type)) for field in schema]
        columns = [pa.array([each, None if field.nullable else each], field.type) for field, each in examples]
        rows = pa.table(columns, schema)
        run = make_run(list(rows.columns), entry)
        body: list[bytes] = []
        written = encode(body.append, entry, WritePlan.of(run, DEFAULT), run)
        file_entry("", 0, written.rows, written.footer, written.extents, 0, entry)  # statistics, too, can be written
        body += written.tail, written.footer
        table = pq.ParquetFile(pa.BufferReader(b"".join(body))).read(use_threads=False)
        if not table.cast(schema).equals(run.table):
            raise pa.ArrowInvalid("the rows that were read are not those that were written")
    except (pa.ArrowException, OSError, OverflowError, ValueError, RecursionError) as error:
        raise SchemaError(f"a table of these columns cannot be stored: {error}") from error


def _example(kind: pa.DataType) -> Any:
    if t.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if t.is_map(kind):
        return [(_example(kind.key_type), _example(kind.item_type))]
    if t.is_list(kind):
        return [_example(kind.value_type)]
    if t.is_string(kind):
        return "a"
    if t.is_fixed_size_binary(kind):
        return b"a" * kind.byte_width
    return b"a" if t.is_binary(kind) else True if t.is_boolean(kind) else 0

"""Writes a stream of record batches as data files, in bounded memory whatever the input's size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from typing import Generic, Self, TypeAlias

import msgspec
import pyarrow as pa

from dolmen.base.runtime import Runtime
from dolmen.format.entries import DataFile
from dolmen.format.layout import data_key
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import has_index
from dolmen.format.schema import COMMIT_TS_FIELD
from dolmen.rows.write.encodings import DEFAULT, WriteOptions
from dolmen.rows.write.parquet_object import WritePlan, write_object
from dolmen.rows.write.runs import Run, cut, prepare
from dolmen.rows.write.spliced_object import CopiedGroup, CopiedGroups, EncodedGroups, Output, SplicedObject
from dolmen.store.base import ObjectOutput, ObjectStore, StreamedOutput

Segment: TypeAlias = CopiedGroups | Iterable[pa.RecordBatch]
"""Rows of the files to write: row groups of other files, or batches."""

_MOST_ENCODERS = 8
"""More processors are left to others: each encodes a run of its own, which takes memory."""


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
    """Writes rows into as many data files as they need; no rows, no file.

    The batches are taken, and what is encoded uploaded, in the calling thread. Runs are sorted and encoded on all
    processors. On any error the file under way is given up; finished ones are left as orphans.

    Args:
        table_name: part of the objects' keys.
        table: its schema may end with the hidden column ``_commit_ts`` (``with_commit_ts``).
        batches: of exactly ``table.schema.arrow``.
        name: gives each object a name that is unique in the world; a fresh uuid by default.
        beat: called after each run, to show that the job is alive.
        open_output: opens the object of a key to write into; the store's by default.

    Returns:
        Their entries, in the order of the rows, not yet stamped. Those of files with ``_commit_ts`` have no
        ``row_ts``, but the bounds of that column.

    Raises:
        StoreUnavailableError, AccessDeniedError: from the upload; and whatever ``batches`` raises.
    """
    keys = partial(_key, store, table_name, name or runtime.uuid)
    files = _Files(open_output or store.open_output, keys, table, options, runtime, beat)
    pieces = cut(batches, table.schema.arrow, options.run_bytes, options.run_rows)
    first, second = next(pieces, None), next(pieces, None)
    if first is None:
        return []
    if second is None:
        return [files.write_one(prepare(first, table))]
    with files:
        files.write(chain([first, second], pieces))
        return files.finish()


def write_spliced_files(
    store: ObjectStore,
    table_name: str,
    table: TableEntry,
    segments: Iterable[Segment],
    runtime: Runtime,
    options: WriteOptions,
    name: Callable[[], str],
    beat: Callable[[], None],
) -> list[DataFile]:
    """Writes segments one after the other into as many data files as they need. See ``write_data_files``.

    Args:
        segments: batches are of exactly ``table.schema.arrow``.
    """
    with _Files(store.open_output, partial(_key, store, table_name, name), table, options, runtime, beat) as files:
        for segment in segments:
            if isinstance(segment, CopiedGroups):
                files.copy(segment)
            else:
                files.write(cut(segment, table.schema.arrow, options.run_bytes, options.run_rows))
        return files.finish()


def with_commit_ts(table: TableEntry) -> TableEntry:
    """The table as its files are written whose rows have different commit timestamps: with the last, hidden column."""
    schema = msgspec.structs.replace(table.schema, fields=(*table.schema.fields, COMMIT_TS_FIELD))
    return msgspec.structs.replace(table, schema=schema)


def _key(store: ObjectStore, table_name: str, name: Callable[[], str]) -> str:
    return data_key(table_name, store.clock.now_us, name())


class _Files(Generic[Output]):
    """The files of one write: those that are finished, and the one under way.

    Args:
        open_output: opens the object of a key to write into.
        key: makes the key of the next one.
        beat: called after each step, to show that the job is alive.
    """

    def __init__(
        self,
        open_output: Callable[[str], Output],
        key: Callable[[], str],
        table: TableEntry,
        options: WriteOptions,
        runtime: Runtime,
        beat: Callable[[], None],
    ) -> None:
        self._open, self._key, self._table = open_output, key, table
        self._options, self._runtime, self._beat = options, runtime, beat
        self._encoders = min(runtime.cores, _MOST_ENCODERS)
        self._runs = 0
        self._opened = ExitStack()
        self._current: SplicedObject[Output] | None = None
        self._plan: WritePlan | None = None
        self._done: list[DataFile] = []

    def write_one(self, run: Run) -> DataFile:
        """Writes a run into a file of its own: there is nothing to put together, which would take a millisecond."""
        key = self._key()
        file = write_object(self._open(key), key, self._table, self._plan_of(run), run)
        self._beat()
        return file

    def write(self, pieces: Iterator[list[pa.ChunkedArray]]) -> None:
        """Appends rows: each piece is sorted and encoded by itself."""
        with closing(self._encoded(pieces)) as runs:
            for run in runs:
                self._file().write(run)
                del run  # before the next one is waited for
                self._end_if_full()
                self._give_memory_back()
                self._beat()

    def _give_memory_back(self) -> None:
        """Lets Arrow's allocator return freed memory, a fifth of the peak; after each run that would be slow."""
        self._runs += 1
        if self._runs % self._encoders == 0:
            pa.default_memory_pool().release_unused()

    def _encoded(self, pieces: Iterator[list[pa.ChunkedArray]]) -> Generator[EncodedGroups, None, None]:
        """The rows of each piece, encoded; the next ones are encoded in the meantime."""
        piece = next(pieces, None)
        if piece is None:
            return
        table, first = self._table, prepare(piece, self._table)
        plan = self._plan = self._plan_of(first)

        def encode(run: Run | list[pa.ChunkedArray]) -> EncodedGroups:
            return EncodedGroups.of(run if isinstance(run, Run) else prepare(run, table), table, plan)

        runs: Iterator[Run | list[pa.ChunkedArray]] = chain([first], pieces)
        del first  # it is not needed for long
        yield from self._runtime.compute(encode, runs, ahead=self._encoders + 1)

    def copy(self: _Files[ObjectOutput], copied: CopiedGroups) -> None:
        """Appends row groups as they are."""
        for piece in self._pieces(copied):
            self._file().copy(piece)
            self._end_if_full()
            self._beat()

    def finish(self) -> list[DataFile]:
        """Ends the last file. Returns the entries of all of them."""
        self._end()
        return self._done

    def _plan_of(self, run: Run) -> WritePlan:
        if self._plan is None or self._plan.encodings.row_bytes is None:  # of too few rows to try encodings on them
            return WritePlan.of(run, self._options, looked_up=has_index(self._table))
        return self._plan

    def _pieces(self, copied: CopiedGroups) -> Iterator[CopiedGroups]:
        """Cuts row groups where a file is full."""
        piece: list[CopiedGroup] = []
        size = self._current.size if self._current else 0
        for group in copied.groups:
            piece.append(group)
            size += group.size
            if size >= self._options.target_file_bytes:
                yield CopiedGroups(copied.source, tuple(piece))
                piece, size = [], 0
        if piece:
            yield CopiedGroups(copied.source, tuple(piece))

    def _file(self) -> SplicedObject[Output]:
        if self._current is None:
            key = self._key()
            self._current = self._opened.enter_context(SplicedObject(self._open(key), key, self._table))
        return self._current

    def _end_if_full(self) -> None:
        if self._current and self._current.size >= self._options.target_file_bytes:
            self._end()

    def _end(self) -> None:
        if self._current:
            self._done.append(self._current.commit())
            self._opened.close()
            self._current = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.__exit__(*exception)  # type: ignore[arg-type]

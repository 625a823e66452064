"""Writes data files of which parts are row groups of other files, copied as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import TypeAlias

import pyarrow as pa

from dolmen.format.entries import DataFile
from dolmen.format.layout import data_key
from dolmen.format.manifest import TableEntry
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectStore
from dolmen.write.data_file import prepared_runs
from dolmen.write.options import WriteOptions
from dolmen.write.parquet_object import WritePlan
from dolmen.write.runs import Run
from dolmen.write.spliced_object import CopiedGroup, CopiedGroups, SplicedObject

Segment: TypeAlias = CopiedGroups | Iterable[pa.RecordBatch]
"""Rows of the files to write: row groups of other files, or batches."""


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
        name: gives each object a name that is unique in the world.
        beat: called after each step, to show that the job is alive.
    """
    with _Files(store, table_name, table, options, name) as files:
        for segment in segments:
            if isinstance(segment, CopiedGroups):
                for piece in files.pieces(segment):
                    files.copy(piece)
                    beat()
            else:
                with closing(prepared_runs(table, segment, runtime, options)) as runs:
                    for run in runs:
                        files.write(run)
                        del run  # before the next one is made
                        beat()
        return files.finish()


class _Files:
    """The files of one write: those that are finished, and the one under way."""

    def __init__(
        self, store: ObjectStore, table_name: str, table: TableEntry, options: WriteOptions, name: Callable[[], str]
    ) -> None:
        self._store, self._table_name, self._table, self._options, self._name = store, table_name, table, options, name
        self._opened = ExitStack()
        self._current: SplicedObject | None = None
        self._plan: WritePlan | None = None
        self._done: list[DataFile] = []

    def pieces(self, copied: CopiedGroups) -> Iterator[CopiedGroups]:
        """Cuts row groups where a file is full."""
        held: list[CopiedGroup] = []
        size = self._current.size if self._current else 0
        for group in copied.groups:
            held.append(group)
            size += group.size
            if size >= self._options.target_file_bytes:
                yield CopiedGroups(copied.source, tuple(held))
                held, size = [], 0
        if held:
            yield CopiedGroups(copied.source, tuple(held))

    def copy(self, copied: CopiedGroups) -> None:
        """Appends row groups."""
        self._file().copy(copied)
        self._end_if_full()

    def write(self, run: Run) -> None:
        """Appends rows."""
        if self._plan is None or self._plan.encodings.row_bytes is None:  # of too few rows to try encodings on them
            self._plan = WritePlan.of(run, self._options)
        self._file().write(run, self._plan)
        self._end_if_full()

    def finish(self) -> list[DataFile]:
        """Ends the last file. Returns the entries of all of them."""
        self._end()
        return self._done

    def _file(self) -> SplicedObject:
        if self._current is None:
            key = data_key(self._table_name, self._store.clock.now_us, self._name())
            output = self._store.open_output(key)
            self._current = self._opened.enter_context(SplicedObject(output, key, self._table))
        return self._current

    def _end_if_full(self) -> None:
        if self._current and self._current.size >= self._options.target_file_bytes:
            self._end()

    def _end(self) -> None:
        if self._current:
            self._done.append(self._current.commit())
            self._opened.close()
            self._current = None

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.__exit__(*exception)  # type: ignore[arg-type]

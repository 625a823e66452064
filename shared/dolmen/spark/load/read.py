"""Reads landing files in the tasks of a load, by the same readers and rules as ingest.

A file is loaded whole or not at all. The rows of a small file are held back until its end was seen, so that a file that
cannot be read leaves nothing behind. The rows of a large file are yielded while it is read. If its end turns out to be
bad, its task reports that, and what was made of its rows is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from dolmen.errors import StoreUnavailableError
from dolmen.format.file_formats import FileKind
from dolmen.format.manifest import TableEntry
from dolmen.ingest.announcements import Drop
from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.options import ReadOptions
from dolmen.ingest.landing import Landing


class FileReport(msgspec.Struct, frozen=True):
    """The report of a task on one file.

    Args:
        place: the place of the drop in its portion.
        rows: number of rows that were yielded.
        whole: whether these are all rows; if not, this task cannot read the file.
    """

    place: int
    rows: int
    whole: bool


@dataclass(frozen=True)
class DropRows:
    """Rows of drops. They count only if the drop at ``place`` can be read; None if they count in any case."""

    place: int | None
    batch: pa.RecordBatch


@dataclass(frozen=True)
class ReadDrops:
    """The files that a job reads, with the way to read them.

    Args:
        entry: entry of their table, without files and deletes, encoded.
        format: their format, whatever their names say.
        drops: the drops of the portion.
        groups: for each task, the places of its drops.
        held_bytes: the most bytes of a file's rows that are held back until its end was seen.
    """

    landing: Landing
    entry: bytes
    format: FileKind | None
    options: ReadOptions
    drops: tuple[Drop, ...]
    groups: tuple[tuple[int, ...], ...]
    held_bytes: int

    def table(self) -> TableEntry:
        """The table's entry."""
        return msgspec.json.decode(self.entry, type=TableEntry)

    def rows(self, group: int, reports: list[FileReport]) -> Iterator[DropRows]:
        """Yields the rows of a group's files, and adds a report on each file when it is done.

        Raises:
            StoreUnavailableError: a file could not be read for the moment: the task is to be tried again.
        """
        schema = self.table().schema.arrow
        for place in self.groups[group]:
            yield from self._rows_of(schema, place, reports)

    def _rows_of(self, schema: pa.Schema, place: int, reports: list[FileReport]) -> Iterator[DropRows]:
        held: list[pa.RecordBatch] | None = []
        size = rows = 0
        batches = self._batches(schema, self.drops[place])
        while True:
            try:
                batch = next(batches, None)
            except StoreUnavailableError:
                raise
            except Exception:  # noqa: BLE001 - whatever it is, ingest finds it again, and says what becomes of the file
                reports.append(FileReport(place, 0 if held is not None else rows, False))
                return
            if batch is None:
                break
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if held is None:
                yield DropRows(place, batch)
                continue
            held.append(batch)
            if size > self.held_bytes:
                yield from (DropRows(place, each) for each in held)
                held = None
        if held is not None:
            yield from (DropRows(None, each) for each in held)
        reports.append(FileReport(place, rows, True))

    def _batches(self, schema: pa.Schema, drop: Drop) -> Iterator[pa.RecordBatch]:
        """Yields a file's batches. Opens the file on first use, so that all errors of a file come from there."""
        found = self.landing.place(drop)
        assert found is not None
        format = detect(found.path, self.format)
        source = SourceFile(lambda: self.landing.open(drop), format, found.path, self.options)
        yield from self.landing.runtime.ahead(read(source, schema))

"""Reading landing files in tasks of a load: the same readers and rules as in ingest, several files a task.

A file counts whole or not at all. Rows of a small one are held back until its end was seen, so that one that cannot
be read leaves nothing behind. A large one is handed on while it is read; should its end turn out bad, its task says
so, and what was made of its rows is not used.
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
    """What a task tells of one file.

    Args:
        place: of the drop, in its portion.
        rows: that were handed on.
        whole: whether that is all of it, or else the file cannot be read by this task.
    """

    place: int
    rows: int
    whole: bool


@dataclass(frozen=True)
class Rows:
    """Some rows. ``place`` is that of the drop they stand or fall with, None if they count in any case."""

    place: int | None
    batch: pa.RecordBatch


@dataclass(frozen=True)
class ReadDrops:
    """Which files a job reads, and how.

    Args:
        entry: of their table, without files and deletes, encoded.
        format: what they are, whatever their names say.
        drops: of the portion.
        groups: for each task the places of its drops.
        held_bytes: files of up to so many bytes of rows are held back until their end was seen.
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

    def rows(self, group: int, reports: list[FileReport]) -> Iterator[Rows]:
        """The rows of a group's files; what is to be told of each file is added to ``told`` once it is through.

        Raises:
            StoreUnavailableError: a file could not be read for the moment: the task is to be tried again.
        """
        schema = self.table().schema.arrow
        for place in self.groups[group]:
            yield from self._rows_of(schema, place, reports)

    def _rows_of(self, schema: pa.Schema, place: int, reports: list[FileReport]) -> Iterator[Rows]:
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
                yield Rows(place, batch)
                continue
            held.append(batch)
            if size > self.held_bytes:
                yield from (Rows(place, each) for each in held)
                held = None
        if held is not None:
            yield from (Rows(None, each) for each in held)
        reports.append(FileReport(place, rows, True))

    def _batches(self, schema: pa.Schema, drop: Drop) -> Iterator[pa.RecordBatch]:
        """Begins with the first batch asked for, so that all errors of a file come from there."""
        found = self.landing.place(drop)
        assert found is not None
        format = detect(found.path, self.format)
        source = SourceFile(lambda: self.landing.open(drop), format, found.path, self.options)
        yield from self.landing.runtime.ahead(read(source, schema))

"""Rows that wait in temporary files, in parts by a number of each row, so that equal rows are in the same part."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.errors import LimitError
from dolmen.rows.write.row_hashes import Hashes

PARTS_BITS = 5
PARTS = 1 << PARTS_BITS
_BUFFERED = 4 * MIB
"""Rows of all parts are collected up to so many bytes before they are written."""


class SpilledRows:
    """Rows in files, one for each part. Use it as a context: the files go at its end.

    Args:
        schema: the rows' columns.
        level: which bits of a row's number choose its part; rows of one part are divided further on the next level.
    """

    def __init__(self, schema: pa.Schema, level: int) -> None:
        self._schema, self._shift = schema, np.uint64(64 - PARTS_BITS * (level + 1))
        self._stack = ExitStack()
        self._held: list[list[pa.RecordBatch]] = [[] for _ in range(PARTS)]
        self._writers: list[Any] = [None] * PARTS
        self._bytes = 0

    def __enter__(self) -> SpilledRows:
        self._directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="dolmen-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._held = []
        self._stack.close()

    def add(self, batch: pa.RecordBatch, hashes: Hashes) -> None:
        """Adds rows with the number of each. Raises LimitError if the disk is full."""
        part_of = (hashes >> self._shift) & np.uint64(PARTS - 1)
        order = np.argsort(part_of, kind="stable")
        sorted_rows = batch.take(pa.array(order))
        ends = np.searchsorted(part_of[order], np.arange(PARTS + 1, dtype=np.uint64))
        for part in np.flatnonzero(np.diff(ends)).tolist():
            self._held[part].append(sorted_rows.slice(ends[part], ends[part + 1] - ends[part]))
        self._bytes += batch.nbytes
        if self._bytes > _BUFFERED:
            self._write()

    def finish(self) -> None:
        """Ends the files. Raises LimitError if the disk is full."""
        self._write()
        with _explaining_full_disks():
            for writer in self._writers:
                if writer is not None:
                    writer.close()

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        """Streams the rows of one part."""
        if self._writers[part] is None:
            return
        with pa.memory_map(str(self._path(part))) as file, pa.ipc.open_stream(file) as rows:
            yield from rows

    def _path(self, part: int) -> Path:
        return self._directory / f"{part}.arrow"

    def _write(self) -> None:
        with _explaining_full_disks():
            for part, batches in enumerate(self._held):
                if not batches:
                    continue
                if self._writers[part] is None:
                    target = self._stack.enter_context(pa.OSFile(str(self._path(part)), "wb"))
                    self._writers[part] = self._stack.enter_context(pa.ipc.new_stream(target, self._schema))
                for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                    self._writers[part].write_batch(batch)
                batches.clear()
        self._bytes = 0


@contextmanager
def _explaining_full_disks() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise LimitError(
            "the temporary directory is full of changed rows that don't fit into memory: make room, or ask for fewer "
            "versions"
        ) from error

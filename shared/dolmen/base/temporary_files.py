"""Data that outgrows memory, in temporary files. A full disk is a LimitError that says what to do."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Literal, Self

import pyarrow as pa

from dolmen.errors import LimitError


@contextmanager
def explaining_full_disk(what: str, advice: str = "", directory: str | None = None) -> Iterator[None]:
    """Raises LimitError for writes that the disk has no room for: a retry would not fit either.

    Args:
        what: the first words of the message, such as ``there are more rows``.
        advice: what to do about it; to set TMPDIR by default.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        advice = advice or "set TMPDIR to a directory that has more"
        raise LimitError(f"{what} than there is room for in {directory or tempfile.gettempdir()}: {advice}") from error


class BatchFile:
    """Record batches in a temporary file: written first, then read in any order. The file goes with this object.

    ``what`` and ``advice`` are for the error of a full disk. Compressed batches are decompressed by each read; others
    are mapped into memory.
    """

    def __init__(
        self,
        schema: pa.Schema,
        what: str,
        advice: str = "",
        *,
        compression: Literal["lz4"] | None = None,
        directory: str | None = None,
    ) -> None:
        self._is_mapped, self._count = compression is None, 0
        self._full_disk = partial(explaining_full_disk, what, advice, directory)
        with self._full_disk():
            file, self._path = tempfile.mkstemp(".arrow", "dolmen-", directory)
            os.close(file)
            self._remove = weakref.finalize(self, _remove, self._path)
        with self._writing():
            self._sink = pa.OSFile(self._path, "wb")
            options = pa.ipc.IpcWriteOptions(compression=compression)
            self._writer = pa.ipc.new_file(self._sink, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> int:
        """Adds a batch and returns its number. Raises LimitError if the disk is full."""
        with self._writing():
            self._writer.write_batch(batch)
        self._count += 1
        return self._count - 1

    def finish(self) -> Self:
        """Ends the file, so that it can be read. Raises LimitError if the disk is full."""
        with self._writing():
            self._writer.close()
            self._sink.close()
        source = pa.memory_map(self._path) if self._is_mapped else pa.OSFile(self._path)
        self.size_bytes = source.size()
        self._reader = pa.ipc.open_file(source)
        self._remove()  # the space is free once the reader is
        return self

    def read(self, number: int) -> pa.RecordBatch:
        return self._reader.get_batch(number)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._full_disk():
                yield
        except BaseException:
            self._remove()  # at once: the exception may keep this object
            raise

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches in their order."""
        return map(self.read, range(self._count))


def _remove(path: str) -> None:
    with suppress(OSError):  # another process may clean the directory
        os.unlink(path)

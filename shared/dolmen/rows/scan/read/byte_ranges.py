"""Byte ranges of objects: those that one request fetches, and the file that Parquet reads them from.

The bytes of a data file are under its path in the database's store or, if it was adopted, where it was. The store of an
adopted file is of the same kind as the database's: a manifest cannot make a reader of a bucket open files of the
reader's machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from dolmen.base.units import KIB, MIB
from dolmen.errors import CorruptionError, Error, InputError
from dolmen.format.entries import DataFile
from dolmen.format.layout import OWN_SCHEME, AdoptedPath, is_adopted
from dolmen.format.page_locations import ChunkRange, States
from dolmen.store.base import ObjectStore, scheme_of

T = TypeVar("T")

GAP_BYTES = MIB
"""Ranges that are at most so far apart are fetched together: on S3 a request costs more than so many bytes."""

REQUEST_BYTES = 128 * KIB
"""A request more is worth so many bytes less. It waits 20 to 60 ms for the first byte, in which a connection of 90 MB/s
brings 1.8 to 5.4 MB; but 32 requests wait at once, so that leaves 56 to 170 KB. It takes 0.7 ms of a processor
(measured over HTTP), in which 60 KB come."""

PAGE_GAP_BYTES = 64 * KIB
"""Pages so far apart are fetched together. It is less, since a look-up makes few requests, and waits for all of
them at once."""

MERGED_BYTES = 8 * MIB
"""No request asks for more than this, unless one column chunk alone is larger."""


class Range(NamedTuple):
    """The bytes ``start`` <= i < ``end`` of an object."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.end - self.start


def coalesce(ranges: Iterable[Range], gap: int = GAP_BYTES, most: int = MERGED_BYTES) -> list[Range]:
    """The requests that cover ``ranges`` (in any order, overlaps allowed), in ascending order."""
    merged: list[Range] = []
    for requested in sorted(ranges):
        last = merged[-1] if merged else None
        if last and requested.start <= last.end + gap and max(requested.end, last.end) - last.start <= most:
            merged[-1] = Range(last.start, max(requested.end, last.end))
        else:
            merged.append(requested)
    return merged


def cut_by_size(
    items: Iterable[T], size: Callable[[T], int], most: int, count: int | None = None
) -> Iterator[Sequence[T]]:
    """Cuts items into runs of at most ``count`` items and ``most`` bytes together; a larger item is alone."""
    run: list[T] = []
    total = 0
    for item in items:
        own = size(item)
        if run and (total + own > most or len(run) == count):
            yield run
            run, total = [], 0
        run.append(item)
        total += own
    if run:
        yield run


def verify(expected: Mapping[ChunkRange, States], body: bytes) -> None:
    """Compares column chunks of a whole file with their checksums. Raises OSError."""
    view = memoryview(body)
    for (start, length), states in expected.items():
        _verify(states, view[start : start + length], start)


def _verify(states: States, body: Any, start: int) -> None:
    if not states.fit(body):
        raise OSError(f"the checksum of the column chunk at byte {start} differs")


class CheckedFile:
    """A file for pyarrow to read column chunks from, each of which is compared with its checksum when it is read.

    One position, so one reader at a time; instances over the same bytes cost nothing.

    Args:
        size: of the whole object.

    Attributes:
        expected: by (offset, length), the checksums of column chunks; each goes when it was read and found right.
    """

    closed = False
    mode = "rb"

    def __init__(self, size: int) -> None:
        self.expected: dict[ChunkRange, States] = {}
        self._size, self._position = size, 0

    def _take(self, start: int, length: int) -> pa.Buffer:
        """These bytes, or fewer if there are no more."""
        raise NotImplementedError

    def read_buffer(self, length: int) -> pa.Buffer:
        """The next ``length`` bytes, without copying.

        Raises:
            OSError: they are a column chunk, and its checksum differs.
        """
        start = self._position
        body = self._take(start, length)
        states = self.expected.pop((start, length), None)
        if states:
            _verify(states, body, start)
        self._position += body.size
        return body

    def read(self, length: int = -1) -> bytes:
        """The next ``length`` bytes, copied."""
        if length < 0:
            length = self._size - self._position
        body: bytes = self.read_buffer(length).to_pybytes()
        return body

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves to ``offset`` from the start (0), from here (1) or from the end (2)."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def writable(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Does nothing: the file is closed with the last reference to it."""

    def open(self) -> Any:
        """This file as pyarrow takes it."""
        return pa.PythonFile(self, mode="r")


class FetchedFile(CheckedFile):
    """The fetched ranges of an object, as a file that has holes where nothing was fetched.

    Reading into a hole is a bug of the planning above and raises AssertionError.

    Args:
        parts: (offset, bytes), ascending and not overlapping.
        size: of the whole object.
    """

    def __init__(self, parts: Sequence[tuple[int, bytes]], size: int) -> None:
        super().__init__(size)
        self._starts = [start for start, _ in parts]
        self._bodies = [body for _, body in parts]

    def _take(self, start: int, length: int) -> pa.Buffer:
        part = bisect_right(self._starts, start) - 1
        offset = start - self._starts[part] if part >= 0 else 0
        if part < 0 or offset + length > len(self._bodies[part]):
            raise AssertionError(f"bytes {start} to {start + length} were not fetched")
        return pa.py_buffer(self._bodies[part]).slice(offset, length)


class LocalFile(CheckedFile):
    """A file of this machine.

    Raises:
        FileNotFoundError: there is none.
    """

    def __init__(self, path: str) -> None:
        self._file = pa.OSFile(path)
        super().__init__(self._file.size())

    def _take(self, start: int, length: int) -> pa.Buffer:
        self._file.seek(start)
        return self._file.read_buffer(length)


@dataclass(frozen=True, slots=True)
class DataObject:
    """The object that a data file is.

    Args:
        store: the store that it is in.
        key: its key there.
        adopted: what its path says; None for the database's own files.
    """

    store: ObjectStore
    key: str
    adopted: AdoptedPath | None = None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.adopted.label if self.adopted else self.key


def data_object(store: ObjectStore, path: str) -> DataObject:
    """Finds the object of a data file.

    Args:
        store: the database's.
        path: the file's path in its entry.

    Raises:
        CorruptionError: the path is that of an adopted file in a store of another kind than the database's.
    """
    if not is_adopted(path):
        return DataObject(store, path)
    adopted = AdoptedPath.parse(path)
    if adopted is None:
        raise CorruptionError(path, "it is no path of an adopted file")
    if adopted.scheme == OWN_SCHEME:
        return DataObject(store, adopted.key, adopted)
    kind = scheme_of(store.url)
    if kind is None or kind.name != adopted.scheme:
        raise CorruptionError(adopted.label, f"a database at {store.url} cannot have adopted it")
    return DataObject(store.sibling(adopted.root), adopted.key, adopted)


def local_path(store: ObjectStore, path: str) -> str | None:
    """A data file's path on this machine if no other program replaces it. Others may replace an adopted one.

    Args:
        store: the database's.
        path: the file's path in its entry.
    """
    return None if is_adopted(path) else store.local_path(path)


def is_local(store: ObjectStore) -> bool:
    """Whether the objects of a store are files of this machine."""
    return store.local_path("any") is not None


def missing_file_error(store: ObjectStore, file: DataFile, table: str) -> CorruptionError:
    """The error for a data file that is not there."""
    found = data_object(store, file.path)
    if found.adopted:
        return CorruptionError(
            found.label, f"it is missing, and table {table!r} has adopted it: put it back, or delete its rows"
        )
    return CorruptionError(file.path, f"it is missing, and is a data file of table {table!r}")


def changed_file_error(store: ObjectStore, file: DataFile, table: str, reason: str) -> Error:
    """The error for a data file that is another one than its entry says.

    Args:
        reason: the difference, as the error for one of the database's own files gives it.
    """
    found = data_object(store, file.path)
    if found.adopted:
        return CorruptionError(
            found.label,
            f"it was changed since table {table!r} adopted it ({reason}): put the adopted file back, or drop the table "
            "and adopt the files again",
        )
    return CorruptionError(file.path, reason)


def check_same_kind(store: ObjectStore, scheme: str, url: str) -> None:
    """Raises InputError unless a database in this store can adopt files of this scheme."""
    kind = scheme_of(store.url)
    if kind is None or kind.name != scheme:
        raise InputError(f"{url!r}: a database at {store.url} can adopt files in stores of its own kind only")

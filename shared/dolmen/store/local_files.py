"""The files behind a LocalStore: unfinished ones, and pinned readers."""

from __future__ import annotations

import errno
import fcntl
import io
import os
from contextlib import suppress
from typing import BinaryIO, Self

from dolmen.base.units import HOUR_US, MIB
from dolmen.errors import ObjectChangedError
from dolmen.store.base import Buffer

#: A left-over must be this old to be swept: a file just made is not locked yet.
SWEEP_AGE_US = HOUR_US

_NO_COPY_IN_KERNEL = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}
"""The file systems, or the kernel, do not copy between these files."""


class TemporaryFile:
    """A file that is not an object yet. Its writer holds a lock on it, so that left-overs can be told."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            written += os.write(self.fd, view[written:])
        return written

    def copy(self, fd: int, first: int, end: int) -> bool:
        """Appends a range of another open file, within the kernel if it can. Returns whether the file was that long."""
        while first < end:
            copied = self._copy_some(fd, first, end - first)
            if not copied:
                return False
            first += copied
        return True

    def _copy_some(self, fd: int, first: int, count: int) -> int:
        if hasattr(os, "copy_file_range"):  # Linux
            try:
                return os.copy_file_range(fd, self.fd, count, first)
            except OSError as error:
                if error.errno not in _NO_COPY_IN_KERNEL:
                    raise
        return self.write(os.pread(fd, min(count, MIB), first))

    def finish(self, mtime_ns: int) -> None:
        """Puts the content on the disk, last modified at ``mtime_ns``."""
        os.utime(self.fd, ns=(mtime_ns, mtime_ns))
        os.fsync(self.fd)

    @property
    def closed(self) -> bool:
        return self.fd < 0

    def close(self) -> None:
        """Removes the temporary name; the object, if it became one, has its own."""
        if not self.closed:
            with suppress(FileNotFoundError):
                os.unlink(self.path)
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def sweep(directory: str, now_us: int) -> None:
    """Removes temporary files that are old and whose writer is dead, which is when nobody holds their lock."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # another sweeper was faster, or the lock is held
                if entry.stat().st_mtime_ns // 1_000 > now_us - SWEEP_AGE_US:
                    continue
                fd = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)
                finally:
                    os.close(fd)


class _PinnedFile(io.FileIO):
    """A file that says so when something else wrote to it since it was opened."""

    def __init__(self, fd: int, key: str, stamp: tuple[int, int]) -> None:
        super().__init__(fd, "rb")
        self._key, self._stamp = key, stamp

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]
        taken = super().readinto(buffer)
        self._check()
        return taken

    def readall(self) -> bytes:
        body = super().readall()
        self._check()
        return body

    def _check(self) -> None:
        stat = os.fstat(self.fileno())
        if (stat.st_mtime_ns, stat.st_size) != self._stamp:
            raise ObjectChangedError(self._key)


def open_pinned_file(fd: int, key: str, stamp: tuple[int, int]) -> BinaryIO:
    """Takes over ``fd``; ``stamp`` is the (mtime_ns, size) that the file must keep."""
    return io.BufferedReader(_PinnedFile(fd, key, stamp), MIB)

"""An object store in a local directory, for several processes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from stat import S_ISDIR
from typing import BinaryIO, Self
from urllib.parse import quote

from dolmen.base.runtime import DIRECTORY, Runtime, attempts, cached_property, shared_runtime
from dolmen.base.units import HOUR_US, MIB, SECOND_US
from dolmen.errors import (
    AccessDeniedError,
    CorruptionError,
    Error,
    InputError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from dolmen.store.base import (
    FILE,
    TEMPORARY,
    Buffer,
    ByteRange,
    Deleted,
    Identity,
    Object,
    ObjectInfo,
    ObjectOutput,
    PreconditionFailed,
    PutOutcome,
    ServerClock,
    Stored,
    Unknown,
    beyond_end,
    check_key,
    check_range,
)

CONTENT_ETAG_BYTES = 4096
"""Files up to this size have the MD5 of their content as ETag, larger ones (inode, mtime, size): see ``etag_of``."""
SWEEP_AGE_US = HOUR_US  # only left-over files of this age are swept: a new file is not locked yet
_ASIDE = ".dolmen-expiring-"
"""Prefix of the name of a file that is set aside before its removal. Names of drops never begin with a dot."""
_NOT_A_NAME = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EILSEQ, errno.EINVAL}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}

_NO_COPY_IN_KERNEL = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}
"""The file systems, or the kernel, do not copy between these files."""


class TemporaryFile:
    """A file that is not an object yet. Its writer locks it, so it can be distinguished from left-overs."""

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
        """Appends a range of another open file, within the kernel if it can. Returns False if the file is too short."""
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
        """Syncs the content to the disk, last modified at ``mtime_ns``."""
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
    """Removes temporary files that are old and whose writer is dead, because then they are not locked."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # another sweeper was faster, or the file is locked
                if entry.stat().st_mtime_ns // 1_000 > now_us - SWEEP_AGE_US:
                    continue
                with closing_fd(os.open(entry.path, os.O_RDWR | os.O_CLOEXEC)) as fd:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)


class _PinnedFile(io.FileIO):
    """A file whose reads raise ObjectChangedError once its (mtime_ns, size) has changed."""

    def __init__(self, fd: int, key: str, stamp: tuple[int, int]) -> None:
        super().__init__(fd, "rb")
        self._key, self._stamp = key, stamp

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]
        size = super().readinto(buffer)
        self._check()
        return size

    def readall(self) -> bytes:
        body = super().readall()
        self._check()
        return body

    def _check(self) -> None:
        if _stamp(os.fstat(self.fileno())) != self._stamp:
            raise ObjectChangedError(self._key)


class LocalStore:
    """Objects as files under one directory, safe among the processes of ONE machine.

    An object is created by writing a temporary file, fsync and link(2), which fails if the name exists; it is
    replaced under flock(2) of its directory by fsync and rename(2). The directory is synced before a put returns. So
    readers see an object whole or not at all, and it survives a crash once the put has returned. A later writer removes
    the files of a killed writer in ``.dolmen-tmp``; they are not objects, and not listed.

    flock and link are not reliable between machines, so network file systems are not for several machines at once.

    ``a`` and ``a/b`` cannot both be objects here, as they could on S3. Symbolic links to files are read, those to
    directories are not followed by listings. The server's clock is this machine's. There are no older versions.
    ``path``: the root; made by the first put.
    """

    def __init__(self, path: str | os.PathLike[str], runtime: Runtime | None = None) -> None:
        self.root = os.path.abspath(os.fspath(path))
        self.runtime = runtime or shared_runtime()
        self.clock = ServerClock(self.runtime)
        self._temporary = os.path.join(self.root, TEMPORARY)
        self._swept = False

    @cached_property
    def url(self) -> str:
        return f"{FILE.name}://{quote(self.root)}"

    @property
    def identity(self) -> Identity:
        return (FILE.name, self.root)  # if the directory is made again, its objects have other names

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, etag: str | None = None, version: str | None = None
    ) -> Object:
        with self.verb(key):
            fd, stat = self._open_fd(key, version)
            try:
                current = _check_etag(fd, stat, key, etag)
                first, end = check_range(key, byte_range or (0, stat.st_size))
                body = _read(fd, first, min(end, stat.st_size))
                _check_unchanged(fd, stat, key)
            finally:
                os.close(fd)
            return Object(body, current)

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        with self.verb(key):
            fd, stat = self._open_fd(key, version)
            with closing_fd(fd):
                return _info(key, fd, stat)

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        with self.verb(key):
            if self._etag_now(key) != if_match:
                return PreconditionFailed()
            with self._new_file() as temporary:
                temporary.write(body)
                return self.link(key, temporary) if if_match is None else self._replace(key, temporary, if_match)

    def link(self, key: str, temporary: TemporaryFile) -> PutOutcome:
        """Gives a finished temporary file its name, unless the name exists."""
        temporary.finish(self.runtime.clock_us() * 1_000)
        directory, name = os.path.split(self._path(key))
        for _ in attempts(self.runtime, DIRECTORY):
            with suppress(FileNotFoundError), open_directory(directory, make=True) as directory_fd:
                try:
                    os.link(temporary.path, name, dst_dir_fd=directory_fd)
                except FileExistsError:
                    return PreconditionFailed()
                except OSError as error:
                    if error.errno in _NO_LINKS:
                        raise InputError(
                            f"{self.root}: this file system has no hard links, or {key!r} crosses to another"
                        ) from error
                    raise
                return self._sync_name(temporary, directory_fd)
        raise StoreUnavailableError(f"other processes keep removing {directory} while {key!r} is put there")

    def _replace(self, key: str, temporary: TemporaryFile, if_match: str) -> PutOutcome:
        directory, name = os.path.split(self._path(key))
        with suppress(FileNotFoundError), open_directory(directory) as directory_fd:
            fcntl.flock(directory_fd, fcntl.LOCK_EX)  # held until the directory is closed
            with closing_fd(os.open(name, os.O_RDONLY, dir_fd=directory_fd)) as fd:
                stat = os.fstat(fd)
                if etag_of(fd, stat) != if_match:
                    return PreconditionFailed()
            temporary.finish(max(self.runtime.clock_us() * 1_000, stat.st_mtime_ns + 1))
            os.rename(temporary.path, name, dst_dir_fd=directory_fd)
            return self._sync_name(temporary, directory_fd)
        return PreconditionFailed()

    def _sync_name(self, temporary: TemporaryFile, directory_fd: int) -> PutOutcome:
        try:
            os.fsync(directory_fd)
        except OSError as error:
            return Unknown(f"{self.root}: the new name could not be synced: {error}")
        return Stored(etag_of(temporary.fd, os.fstat(temporary.fd)))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        start = prefix.rpartition("/")[0]
        if start and set(start.split("/")) & {"", ".", "..", TEMPORARY}:
            return  # no key has such a part
        with self.verb(prefix):
            yield from _walk(os.path.join(self.root, start), start + "/" if start else "", prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        return [self._delete(key) for key in keys]

    def _delete(self, key: str) -> Deleted:
        try:
            with self.verb(key):
                directory, name = os.path.split(self._path(key))
                with suppress(FileNotFoundError, NotADirectoryError), open_directory(directory) as directory_fd:
                    fcntl.flock(directory_fd, fcntl.LOCK_EX)
                    os.unlink(name, dir_fd=directory_fd)
                with suppress(OSError):  # stops at the first directory that is not empty
                    while len(directory) > len(self.root):
                        os.rmdir(directory)
                        directory = os.path.dirname(directory)
        except (Error, IsADirectoryError) as error:
            return Deleted(key, str(error))
        return Deleted(key)

    def open_input(self, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
        with self.verb(key):
            fd, stat = self._open_fd(key, version)
            try:
                _check_etag(fd, stat, key, etag)
            except BaseException:
                os.close(fd)
                raise
            return io.BufferedReader(_PinnedFile(fd, key, _stamp(stat)), MIB)

    def open_output(self, key: str) -> LocalOutput:
        with self.verb(key):
            self._path(key)
            return LocalOutput(self, key, self._new_file())

    def copy_into(self, temporary: TemporaryFile, key: str, byte_range: ByteRange, etag: str) -> int:
        """Appends a range of an object to a temporary file. See ``ObjectOutput.copy``."""
        first, end = check_range(key, byte_range)
        with self.verb(key):
            fd, stat = self._open_fd(key, None)
            with closing_fd(fd):
                _check_etag(fd, stat, key, etag)
                if end > stat.st_size or not temporary.copy(fd, first, end):
                    raise beyond_end(key, end)
                _check_unchanged(fd, stat, key)
        return end - first

    def delete_if_match(self, key: str, etag: str) -> None:
        """See ``MatchingDeleteStore``. Sets the file aside before it reads the ETag: it may be replaced at any time."""
        folder = key.rpartition("/")[0]
        aside_key = f"{folder}/{_ASIDE}{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        path, aside = (os.path.join(self.root, *one.split("/")) for one in (key, aside_key))
        with self.verb(key), suppress(FileNotFoundError):
            _restore_name(aside, path)  # after a crash between the next two steps
            os.rename(path, aside)
            if self.head(aside_key).etag == etag:
                os.unlink(aside)
            else:
                _restore_name(aside, path)

    def local_path(self, key: str) -> str | None:
        return self._path(key)

    def sibling(self, root: str) -> LocalStore:
        return self._whole_machine

    @cached_property
    def _whole_machine(self) -> LocalStore:
        other = LocalStore("/", self.runtime)
        other.clock = self.clock
        return other

    def _path(self, key: str) -> str:
        return os.path.join(self.root, check_key(key))

    def _open_fd(self, key: str, version: str | None) -> tuple[int, os.stat_result]:
        """A descriptor of the object's file, which stays the same file if the name gets another one."""
        if version is not None:
            raise ObjectNotFoundError(key)
        try:
            fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectNotFoundError(key) from error
        stat = os.fstat(fd)
        if S_ISDIR(stat.st_mode):
            os.close(fd)
            raise ObjectNotFoundError(key)
        return fd, stat

    def _etag_now(self, key: str) -> str | None:
        try:
            return self.head(key).etag
        except ObjectNotFoundError:
            if os.path.isdir(self._path(key)):
                raise InputError(f"{self._path(key)} is a directory, and {key!r} cannot be an object") from None
            return None

    def _new_file(self) -> TemporaryFile:
        path = os.path.join(self._temporary, f"{os.getpid()}-{self.runtime.uuid()}")
        if self._swept:
            with suppress(FileNotFoundError):  # the whole directory was removed meanwhile
                return TemporaryFile(path)
        make_directories(self._temporary)
        sweep(self._temporary, self.runtime.clock_us())
        self._swept = True
        return TemporaryFile(path)

    def verb(self, key: str) -> _Verb:
        """Observes the clock, and translates errors of the operating system."""
        self.clock.observe(self.runtime.clock_us(), uncertainty_us=SECOND_US)
        return _Verb(self.root, key)


class _Verb:
    """Translates errors of the operating system. Scans of many files enter it often, so it is not a generator."""

    __slots__ = ("_key", "_root")

    def __init__(self, root: str, key: str) -> None:
        self._root, self._key = root, key

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, OSError):
            return
        if isinstance(error, PermissionError):
            raise AccessDeniedError(f"{self._root}: {self._key!r}: {error.strerror}") from error
        if error.errno == errno.EROFS:
            raise AccessDeniedError(f"{self._root} is on a read-only file system") from error
        if error.errno in _NOT_A_NAME:
            raise InputError(f"{self._root}: {self._key!r} cannot be the name of a file: {error.strerror}") from error
        raise StoreUnavailableError(f"{self._root}: {self._key!r}: {error.strerror or error}") from error


def etag_of(fd: int, stat: os.stat_result) -> str:
    """The ETag of an open file.

    For a small file it is the MD5 of the content, so it does not depend on inode numbers and time stamps: no two
    pointers are equal. Larger files would be slow to hash, and dolmen never replaces them; (inode, mtime, size) shows
    whether another program did. ``put`` makes the mtime of a replaced object grow strictly.
    """
    if stat.st_size <= CONTENT_ETAG_BYTES:
        return hashlib.md5(_read(fd, 0, stat.st_size), usedforsecurity=False).hexdigest()
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _restore_name(aside: str, path: str) -> None:
    """Gives a file its name again, unless a newer file has it."""
    with suppress(FileNotFoundError):
        with suppress(FileExistsError):
            os.link(aside, path)
        os.unlink(aside)


def _check_etag(fd: int, stat: os.stat_result, key: str, etag: str | None) -> str:
    """Returns the ETag of an open file. Raises ObjectChangedError if it must have another one."""
    current = etag_of(fd, stat)
    if etag is not None and current != etag:
        raise ObjectChangedError(key)
    return current


def _check_unchanged(fd: int, before: os.stat_result, key: str) -> None:
    if _stamp(os.fstat(fd)) != _stamp(before):
        raise ObjectChangedError(key)


def _stamp(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_mtime_ns, stat.st_size


def _read(fd: int, first: int, end: int) -> bytes:
    """Bytes [first, end), fewer where the file ends."""
    parts = []
    while first < end and (part := os.pread(fd, end - first, first)):
        parts.append(part)
        first += len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]


def _info(key: str, fd: int, stat: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, stat.st_size, etag_of(fd, stat), stat.st_mtime_ns // 1_000)


def _walk(path: str, parent: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Objects under ``path``, whose keys start with ``parent``, in key order.

    A directory sorts by its name with a ``/``, like the keys in it. Only one directory of each level is in memory.
    """
    try:
        with os.scandir(path) as entries:
            children = sorted(
                (parent + entry.name + "/" if entry.is_dir(follow_symlinks=False) else parent + entry.name, entry)
                for entry in entries
                if entry.name != TEMPORARY
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for key, entry in children:
        if key.endswith("/"):
            is_before_start = start_after >= key and not start_after.startswith(key)
            if (key.startswith(prefix) or prefix.startswith(key)) and not is_before_start:
                yield from _walk(entry.path, key, prefix, start_after)
        elif key.startswith(prefix) and key > start_after:
            with suppress(FileNotFoundError):  # deleted since
                if entry.is_file():
                    with closing_fd(os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
                        info = _info(key, fd, os.fstat(fd))
                    yield info


def make_directories(path: str) -> None:
    """Makes ``path`` and the missing directories above it, and syncs each name into its parent."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directories(parent)
    with suppress(FileExistsError):
        os.mkdir(path)
    with open_directory(parent) as parent_fd:
        os.fsync(parent_fd)


@contextmanager
def open_directory(path: str, *, make: bool = False) -> Iterator[int]:
    """Opens a directory. Raises FileNotFoundError, also if another process has just removed it again."""
    if make:
        make_directories(path)
    with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        yield fd


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


class LocalOutput(ObjectOutput):
    """A streamed file, which gets its name at the end."""

    def __init__(self, store: LocalStore, key: str, temporary: TemporaryFile) -> None:
        self._store, self._key, self._temporary, self._size = store, key, temporary, 0

    def write(self, data: Buffer, /) -> int:
        self._check_open()
        with self._store.verb(self._key):
            self._size += (written := self._temporary.write(data))
        return written

    def copy(self, key: str, byte_range: ByteRange, etag: str) -> int:
        self._check_open()
        self._size += (copied := self._store.copy_into(self._temporary, key, byte_range, etag))
        return copied

    def commit(self) -> int:
        self._check_open()
        with self._store.verb(self._key), self._temporary as temporary:
            match self._store.link(self._key, temporary):
                case PreconditionFailed():
                    raise CorruptionError(self._key, "another object has this name")
                case Unknown(reason):
                    raise StoreUnavailableError(f"cannot create {self._key!r}: {reason}")
        return self._size

    def abort(self) -> None:
        self._temporary.close()

    def _check_open(self) -> None:
        if self._temporary.closed:
            raise ValueError(f"output of {self._key!r} is over")

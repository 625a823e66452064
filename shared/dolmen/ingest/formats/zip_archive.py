"""Zip archives: a member is read as a stream, its size and checksum checked. No file ever gets a member's name.

The archive's directory is limited before it is read, because its entries take far more memory than bytes. Members are
stored or deflated: other methods could take memory without a limit.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from dolmen.base.units import MIB
from dolmen.errors import InputError, LimitError, short_repr

MAX_DIRECTORY_BYTES = 4 * MIB  # of an archive's directory: some 40,000 entries
_READ_BYTES = MIB
_SHOWN_MEMBERS = 5
_ENCRYPTED = 0x1
_DAMAGE = (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error)
_NO_ROWS = re.compile(r"(^|/)(__MACOSX/|\.)")  # members that hold no rows: what macOS adds, and hidden files


def too_many_bytes(name: str, max_bytes: int) -> LimitError:
    return LimitError(
        f"file {name!r} unpacks to more than the {max_bytes:,} bytes that one file may hold: "
        "split it into smaller files"
    )


class ZipArchive:
    """An open archive; ``name`` is what errors call the file."""

    def __init__(self, file: BinaryIO, name: str, max_bytes: int) -> None:
        self._name, self._max_bytes = name, max_bytes
        with self._report_damage():
            self._zip = ZipFile(cast(BinaryIO, _LimitedFile(file, name)))
        self.members = {info.filename: info for info in self._zip.infolist() if not info.is_dir()}

    @contextmanager
    def open(self, member: str | ZipInfo) -> Iterator[ZipStream]:
        """Opens a member for reading. Raises InputError if it is missing, encrypted or damaged, also from ``read``."""
        info = self.members.get(member) if isinstance(member, str) else member
        if info is None:
            raise InputError(f"file {self._name!r} is damaged: it lacks {short_repr(member)}")
        what = f"file {self._name!r}: its member {short_repr(info.filename)}"
        if info.flag_bits & _ENCRYPTED:
            raise InputError(f"{what} is encrypted with a password: write it without")
        if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise InputError(f"{what} is compressed by method {info.compress_type}: use Deflate")
        if info.file_size > self._max_bytes:  # never more than that is read
            raise too_many_bytes(self._name, self._max_bytes)
        with self._report_damage():
            opened = self._zip.open(info)
        with opened:
            yield ZipStream(self, opened, info.file_size)

    def only_member(self) -> ZipInfo:
        """The member with the rows. Raises InputError if there are several, or none."""
        members = [info for name, info in self.members.items() if not _NO_ROWS.search(name)]
        if len(members) == 1:
            return members[0]
        if not members:
            raise InputError(f"file {self._name!r} is a zip archive without a file in it")
        shown = ", ".join(short_repr(info.filename) for info in members[:_SHOWN_MEMBERS])
        more = ", ..." if len(members) > _SHOWN_MEMBERS else ""
        raise InputError(
            f"file {self._name!r} is a zip archive of {len(members):,} files ({shown}{more}): unpack it, and give each "
            "file alone"
        )

    def check_size(self) -> None:
        """Raises LimitError if all members together are larger than the limit."""
        if sum(info.file_size for info in self.members.values()) > self._max_bytes:
            raise too_many_bytes(self._name, self._max_bytes)

    @contextmanager
    def _report_damage(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"file {self._name!r} is not a readable zip archive: {error or 'it ends early'}"
            ) from error

    def read(self, stream: IO[bytes], size: int, remaining: int) -> bytes:
        """The next bytes of a member, which should have ``remaining`` more."""
        with self._report_damage():
            data = stream.read(min(size, _READ_BYTES))
            if not data and size and remaining:
                raise EOFError
        return data


class ZipStream:
    """The bytes of a member."""

    def __init__(self, archive: ZipArchive, stream: IO[bytes], size: int) -> None:
        self._archive, self._stream, self._remaining = archive, stream, size

    def read(self, size: int, /) -> bytes:
        """The next bytes; empty only at the end, once the size and the checksum are those of the directory."""
        data = self._archive.read(self._stream, size, self._remaining)
        self._remaining -= len(data)
        return data


class _LimitedFile:
    """A file as ``zipfile`` reads it: its directory in one piece, of limited size; members in small ones."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self.seek, self.tell = file.seek, file.tell

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise LimitError(
                f"file {self._name!r} is a zip archive whose directory has {size:,} bytes, more than "
                f"{MAX_DIRECTORY_BYTES:,}: it holds too many files"
            )
        parts = []
        while size and (data := self._file.read(size if size > 0 else _READ_BYTES)):
            parts.append(data)
            size -= len(data) if size > 0 else 0
        return b"".join(parts)

"""Finds the format of a file from its first bytes, whatever its name says."""

from __future__ import annotations

import re
import struct
import zlib

from dolmen.errors import InputError
from dolmen.format.ingest_properties import Compression, FileKind, split_name
from dolmen.ingest.formats.source_file import Format

_FORMATS: tuple[tuple[bytes, FileKind], ...] = (
    (b"PAR1", "parquet"),
    (b"ARROW1\0\0", "arrow"),
    (b"\xff\xff\xff\xff", "arrow"),  # a stream
    (b"FEA1", "arrow"),  # Feather version 1, which the reader refuses by name
    (b"Obj\x01", "avro"),
    (b"ORC", "orc"),
)
_COMPRESSIONS: tuple[tuple[bytes, Compression], ...] = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
)
_REFUSED = (
    (b"\xfd7zXZ\x00", "is compressed by xz: unpack it, or compress it with gzip or Zstandard"),
    (b"7z\xbc\xaf\x27\x1c", "is an archive of 7-Zip: unpack it, and give each file alone"),
    (b"Rar!\x1a\x07", "is an archive of RAR: unpack it, and give each file alone"),
    (b"\x04\x22\x4d\x18", "is compressed by LZ4: unpack it, or compress it with gzip or Zstandard"),
    (b"PK\x05\x06", "is a zip archive without a file in it"),
    (b"PK\x07\x08", "is a zip archive in several parts: join them"),
    (b"%PDF-", "is a PDF: export its tables as CSV"),
    (b"SQLite format 3\x00", "is a database of SQLite: export its tables as CSV or Parquet"),
    (b"\x89HDF\r\n\x1a\n", "is HDF5: write its tables as Parquet"),
)
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)")
_ZIP, _COMPOUND = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_LOCAL = struct.Struct("<4s5H3L2H")
_WORKBOOK = re.compile(rb"\[Content_Types\]\.xml|_rels/|docProps/|xl/|xl\\|META-INF/|customXml/")
_ODS_TYPE = b"application/vnd.oasis.opendocument.spreadsheet"
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_PLAUSIBLE_MESSAGE = 1 << 28


def sniff_container(head: bytes, name: str) -> Format | None:
    """The format of a file that begins with ``head``, if its first bytes show it; None for text and anything unknown.

    What is inside a compression that ``head`` begins with is found in the same way, or by ``name``: its kind is that of
    the name if the bytes inside show none, and the result is None if the name shows none either.

    Args:
        head: at least a few hundred bytes, if the file has them.

    Raises InputError for what is never read: xz, 7z, RAR, LZ4, encrypted and old workbooks, PDF, SQLite, HDF5.
    """
    for magic, reason in _REFUSED:
        if head.startswith(magic):
            raise InputError(f"file {name!r} {reason}")
    if head.startswith(_COMPOUND):
        return Format("excel")  # the reader says whether it is encrypted, or too old
    if head.startswith(_ZIP):
        return _sniff_zip(head, name)
    codec = compression_of(head)
    kind = _kind_of(head) if codec is None else _kind_inside(head, codec) or split_name(name)[1]
    return None if kind is None else Format(kind, codec)


def compression_of(head: bytes) -> Compression | None:
    """The compression of a file that begins with these bytes; None if they show none, and for zip archives."""
    found = next((codec for magic, codec in _COMPRESSIONS if head.startswith(magic)), None)
    return None if found == "bz2" and not _BZIP2.match(head) else found


def _kind_of(head: bytes) -> FileKind | None:
    for magic, kind in _FORMATS:
        if head.startswith(magic):
            if magic.isalnum() and not _BINARY.search(head):
                return None  # text, whose first column has such a name
            if magic == b"\xff\xff\xff\xff" and not 0 < int.from_bytes(head[4:8], "little") < _PLAUSIBLE_MESSAGE:
                return None
            return kind
    return None


def _sniff_zip(head: bytes, name: str) -> Format | None:
    """A workbook, or an archive of a file whose name is in its first header."""
    first = _member_name(head)
    if first == b"mimetype":
        return Format("excel") if _ODS_TYPE in head[: _LOCAL.size + 256] else None
    if first and _WORKBOOK.match(first):
        return Format("excel")
    _, kind, packed = split_name((first or b"").decode("utf-8", "replace"))
    if packed is not None or kind is None:
        kind = split_name(name)[1]
    return None if kind is None else Format(kind, "zip")


def _member_name(head: bytes) -> bytes | None:
    if len(head) < _LOCAL.size:
        return None
    length = _LOCAL.unpack_from(head)[9]
    return head[_LOCAL.size : _LOCAL.size + length]


def _kind_inside(head: bytes, codec: Compression) -> FileKind | None:
    """The kind that unpacked bytes show; only those of gzip, which can be cut off anywhere."""
    if codec != "gzip":
        return None
    try:
        return _kind_of(zlib.decompressobj(wbits=31).decompress(head, 64))
    except zlib.error:
        return None

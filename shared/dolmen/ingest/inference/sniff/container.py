"""Finds the format of a file from its first bytes, whatever its name says."""

from __future__ import annotations

import re
import struct
import zlib

from dolmen.errors import InputError
from dolmen.format.ingest_properties import Compression, FileKind, split_name
from dolmen.ingest.formats.source_file import Format
from dolmen.ingest.formats.text_blocks import ARROW_STREAM, COMPOUND, MAGIC, ZIP, Magic

_PACKED = re.compile(rb"\x1f\x8b\x08|BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)")
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
    magic = _magic_of(head)
    if magic is not None and magic.advice:
        raise InputError(f"file {name!r} is {magic.what}: {magic.advice}")
    if head.startswith(COMPOUND):
        return Format("excel")  # the reader says whether it is encrypted, or too old
    if head.startswith(ZIP):
        return _sniff_zip(head, name)
    codec = compression_of(head)
    kind = _kind_of(head) if codec is None else _kind_inside(head, codec) or split_name(name)[1]
    return None if kind is None else Format(kind, codec)


def compression_of(head: bytes) -> Compression | None:
    """The compression of a file that begins with these bytes; None if they show none, and for zip archives."""
    magic = _magic_of(head)
    found = None if magic is None else magic.compression
    return None if found in ("gzip", "bz2") and not _PACKED.match(head) else found


def _magic_of(head: bytes) -> Magic | None:
    return next((each for each in MAGIC if head.startswith(each.start)), None)


def _kind_of(head: bytes) -> FileKind | None:
    if head.startswith(ARROW_STREAM):
        return "arrow" if 0 < int.from_bytes(head[4:8], "little") < _PLAUSIBLE_MESSAGE else None
    magic = _magic_of(head)
    if magic is None or (magic.start.isalnum() and not _BINARY.search(head)):
        return None  # or text, whose first column has such a name
    return magic.kind


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

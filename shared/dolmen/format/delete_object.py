"""The ``.del`` object: what one commit deletes from one table.

::

    "DEL1"                          4 bytes
    blob, blob, ...                 back to back; which is which and where is said by the footer
    footer                          sealed JSON: {"format_version", "table", "blobs": [{"kind", "offset", ...}]}
    length of the footer            uint32, little endian
    "DEL1"                          4 bytes

A ``where`` blob is the predicate's JSON, a ``keys`` blob a Parquet file (format/keys.py), a ``vector`` blob a
portable Roaring bitmap. Manifest entries name blobs by offset, so readers never need the footer; it makes the object
complete in itself, for verification and recovery.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap

from dolmen.errors import CorruptionError
from dolmen.format import vectors
from dolmen.format.checksums import crc32, prepare, seal, unseal
from dolmen.format.entries import Blob, Vector
from dolmen.format.pointer import FORMAT_VERSION, check_format_version

MAGIC = b"DEL1"


class BlobInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A blob as the footer tells of it. ``file`` is the data file's uuid of a vector."""

    kind: str
    offset: int
    length: int
    crc32: int
    columns: tuple[int, ...] = ()
    file: str = ""
    cardinality: int = 0


class TombstoneFooter(msgspec.Struct, frozen=True):
    """The footer: the table's uuid and the blobs in order."""

    format_version: int
    table: str
    blobs: tuple[BlobInfo, ...]


class TombstoneObject:
    """A ``.del`` object being built.

    Args:
        key: where it will be stored.
        table: uuid of the table.
    """

    def __init__(self, key: str, table: str) -> None:
        self.key, self.table = key, table
        self._body = bytearray(MAGIC)
        self._blobs: list[BlobInfo] = []

    def add_where(self, predicate: bytes, columns: tuple[int, ...]) -> Blob:
        """Adds a predicate's JSON."""
        return self._add("where", predicate, columns=columns)

    def add_keys(self, parquet: bytes, columns: tuple[int, ...]) -> Blob:
        """Adds a list of keys."""
        return self._add("keys", parquet, columns=columns)

    def add_vector(self, file: str, positions: BitMap) -> Vector:
        """Adds the deletion vector of the data file with this uuid."""
        cardinality = len(positions)
        blob = self._add("vector", vectors.encode(positions), file=file, cardinality=cardinality)
        return Vector(blob.object, blob.offset, blob.length, blob.crc32, cardinality)

    def _add(
        self, kind: str, body: bytes, *, columns: tuple[int, ...] = (), file: str = "", cardinality: int = 0
    ) -> Blob:
        blob = Blob(self.key, len(self._body), len(body), crc32(body))
        self._blobs.append(BlobInfo(kind, blob.offset, blob.length, blob.crc32, columns, file, cardinality))
        self._body += body
        return blob

    def encode(self) -> bytes:
        """The whole object."""
        footer = seal(msgspec.json.encode(TombstoneFooter(FORMAT_VERSION, self.table, tuple(self._blobs))))
        return b"".join((self._body, footer, len(footer).to_bytes(4, "little"), MAGIC))


def read_footer(body: bytes, key: str) -> TombstoneFooter:
    """The footer of a whole ``.del`` object. Raises CorruptionError or UnsupportedFormatError."""
    if len(body) < 12 or body[:4] != MAGIC or body[-4:] != MAGIC:
        raise CorruptionError(key, "not a .del object (truncated?)")
    length = int.from_bytes(body[-8:-4], "little")
    if length > len(body) - 12:
        raise CorruptionError(key, f"a footer of {length} bytes in {len(body)}")
    document = unseal(body[-8 - length : -8], key)
    check_format_version(document, key)
    try:
        return msgspec.json.decode(document, type=TombstoneFooter)
    except msgspec.DecodeError as error:
        raise CorruptionError(key, f"footer: {error}") from error


def check_blob(body: bytes, blob: Blob | Vector) -> bytes:
    """Returns the bytes of a blob if they are what its entry says. Raises CorruptionError."""
    if len(body) != blob.length or crc32(body) != blob.crc32:
        raise CorruptionError(blob.object, f"blob at byte {blob.offset}: checksum differs")
    return body


prepare(TombstoneFooter)

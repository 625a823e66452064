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

Deletion vectors: which positions of one data file are gone.

A position is the physical number of a row in its file: rows before its row group plus its place in it, counted
before any filter. Stored as the portable Roaring serialisation of 32-bit integers
(https://github.com/RoaringBitmap/RoaringFormatSpec), run-optimised, so that whole row groups cost a few bytes.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from dolmen.errors import CorruptionError
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
        blob = self._add("vector", encode_vector(positions), file=file, cardinality=cardinality)
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


def encode_vector(positions: BitMap) -> bytes:
    """Portable Roaring bytes."""
    compact = positions.copy()
    compact.run_optimize()
    return bytes(compact.serialize())


def decode_vector(body: bytes, vector: Vector, rows: int) -> BitMap:
    """Reads a vector and checks all that can be: CRC, cardinality, and that it points into its file.

    Args:
        rows: physical rows of the data file.

    Raises:
        CorruptionError: names the ``.del`` object.
    """
    place = f"vector at byte {vector.offset}: "
    if len(body) != vector.length or crc32(body) != vector.crc32:
        raise CorruptionError(vector.object, place + "checksum differs")
    try:
        positions = BitMap.deserialize(body)
    except ValueError as error:
        raise CorruptionError(vector.object, place + str(error)) from error
    if len(positions) != vector.cardinality:
        raise CorruptionError(vector.object, f"{place}{len(positions)} positions, not {vector.cardinality}")
    if positions and positions.max() >= rows:
        raise CorruptionError(vector.object, f"{place}position {positions.max()} in a file of {rows} rows")
    return positions


def vector_of_mask(mask: npt.NDArray[np.bool_], first: int) -> BitMap:
    """Positions of the True values of ``mask``, whose first value is for position ``first``."""
    if mask.all():
        return BitMap(range(first, first + len(mask)))
    return BitMap((np.flatnonzero(mask) + first).astype(np.uint32))


def keep_mask(positions: BitMap, first: int, rows: int) -> npt.NDArray[np.bool_]:
    """True for each of the ``rows`` positions from ``first`` on that is NOT gone."""
    keep = np.ones(rows, dtype=np.bool_)
    gone = positions & BitMap(range(first, first + rows))
    keep[np.asarray(gone.to_array(), dtype=np.int64) - first] = False
    return keep

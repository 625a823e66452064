"""The root block at the end of an index object: what the tree is of, and its root page.

::

    length of the JSON       uint32, little endian
    length of the frame      uint32, little endian
    frame                    one Zstandard frame: sealed JSON (format/checksum.py)
    root page                the rest (index/pages.py)

The JSON is ``{"format_version": 1, "columns": [...], "kinds": [...], "files": [...]}``, and, if the places of column
chunks are known of some files, ``"schemas": [...], "chunks": [...]`` (format/chunk_places.py).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec
import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.entries.index.pages import InnerPage, LeafPage, decode_page
from dolmen.errors import CorruptionError
from dolmen.format.checksum import crc32, seal, unseal
from dolmen.format.chunk_places import ChunkPlaces
from dolmen.format.decoding import prepare
from dolmen.format.manifest import Segment
from dolmen.format.pointer import FORMAT_VERSION, check_format_version

_HEAD = struct.Struct("<II")
_MOST_BYTES = 64 * MIB
"""JSON longer than this is no root block's: guards against a forged length."""
MOST_CHUNKS = 24_576
"""The most column chunks whose places are in a block: they take about 6 bytes each, and a request is worth 128 KB."""


class IndexHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """Columns and files of a tree.

    Args:
        columns: ids of the columns of its keys, in the order in which they are encoded.
        kinds: how each of them is encoded (``KeyEncoding``).
        files: uuids of the data files, by their number in entries.
        schemas: Parquet footers without row groups, of files with different columns.
        chunks: for each file the number of its schema and its encoded ``ChunkPlaces``, if they are there.
    """

    format_version: int
    columns: tuple[int, ...]
    kinds: tuple[str, ...]
    files: tuple[str, ...]
    schemas: tuple[bytes, ...] = ()
    chunks: tuple[tuple[int, bytes] | None, ...] = ()

    def chunk_places(self, number: int) -> ChunkPlaces | None:
        """Where the column chunks of a file are, by its number; None if the block does not say."""
        known = self.chunks[number] if self.chunks else None
        return None if known is None else ChunkPlaces.decode(self.schemas[known[0]], known[1])

    def all_places(self) -> dict[str, ChunkPlaces]:
        """Those of all files of which they are there, by their uuid."""
        found = ((uuid, self.chunk_places(number)) for number, uuid in enumerate(self.files))
        return {uuid: places for uuid, places in found if places is not None}

    @property
    def nbytes(self) -> int:
        """About the bytes in memory."""
        return 100 * len(self.files) + sum(len(known[1]) for known in self.chunks if known)

    def check(self) -> None:
        """Raises ValueError if a place of chunks can't be read."""
        if len(self.chunks) not in (0, len(self.files)):
            raise ValueError(f"chunks of {len(self.chunks)} files, not of {len(self.files)}")
        if not all(known is None or 0 <= known[0] < len(self.schemas) for known in self.chunks):
            raise ValueError("there is no such schema")
        self.all_places()


def encode_root(
    columns: tuple[int, ...],
    kinds: tuple[str, ...],
    files: tuple[str, ...],
    root: bytes,
    places: Mapping[str, ChunkPlaces],
) -> bytes:
    """The block's bytes.

    Args:
        places: of column chunks, by the uuid of a file. As many files have theirs in the block as take little of it.
    """
    schemas: dict[bytes, int] = {}
    chunks: list[tuple[int, bytes] | None] = []
    count = 0
    for uuid in files:
        known = places.get(uuid)
        if known is None or count + known.states.size > MOST_CHUNKS:
            chunks.append(None)
            continue
        count += known.states.size
        chunks.append((schemas.setdefault(known.schema, len(schemas)), known.encode()))
    head = IndexHead(FORMAT_VERSION, columns, kinds, files, tuple(schemas), tuple(chunks) if count else ())
    document = seal(msgspec.json.encode(head))
    frame: bytes = pa.Codec("zstd").compress(document, asbytes=True)
    return _HEAD.pack(len(document), len(frame)) + frame + root


def place(part: Segment) -> tuple[int, int, int]:
    """Offset, length and CRC-32 of a part's root block. Raises CorruptionError if its reference lacks them."""
    if part.root is None:
        raise CorruptionError(part.object, "its reference does not say where the root block is")
    return part.root


def decode_root(body: bytes, part: Segment) -> tuple[IndexHead, LeafPage | InnerPage]:
    """Reads a block: the columns and files of a tree, and its root.

    Raises:
        CorruptionError: the bytes are not what the segment's reference says.
        UnsupportedFormatError: written by a newer dolmen.
    """
    _, length, checksum = place(part)
    if len(body) != length or crc32(body) != checksum:
        raise CorruptionError(part.object, "root block: checksum differs")
    try:
        document_bytes, frame_bytes = _HEAD.unpack_from(body)
        if document_bytes > _MOST_BYTES:
            raise ValueError(f"{document_bytes} bytes of JSON")
        end = _HEAD.size + frame_bytes
        document = unseal(
            pa.decompress(memoryview(body)[_HEAD.size : end], document_bytes, codec="zstd", asbytes=True), part.object
        )
        check_format_version(document, part.object)
        head = msgspec.json.decode(document, type=IndexHead)
        head.check()
        return head, decode_page(body[end:])
    except (ValueError, struct.error, OSError, pa.ArrowInvalid) as error:
        raise CorruptionError(part.object, f"root block: {error}") from error


prepare(IndexHead)

"""The root block at the end of an index object: what the tree is of, and its root page.

::

    length of the JSON       uint32, little endian
    length of the frame      uint32, little endian
    frame                    one Zstandard frame: sealed JSON (format/checksum.py)
    root page                the rest (index/pages.py)

The JSON is ``{"format_version": 1, "columns": [...], "kinds": [...], "files": [...]}``.
"""

from __future__ import annotations

import struct

import msgspec
import pyarrow as pa

from dolmen.errors import CorruptionError
from dolmen.format.checksum import crc32, seal, unseal
from dolmen.format.decoding import prepare
from dolmen.format.manifest import Segment
from dolmen.format.pointer import FORMAT_VERSION, check_format_version
from dolmen.index.pages import InnerPage, LeafPage, decode_page
from dolmen.units import MIB

_HEAD = struct.Struct("<II")
_MOST_BYTES = 64 * MIB
"""JSON longer than this is no root block's: guards against a forged length."""


class IndexHead(msgspec.Struct, frozen=True):
    """Columns and files of a tree.

    Args:
        columns: ids of the columns of its keys, in the order in which they are encoded.
        kinds: how each of them is encoded (``KeyEncoding``).
        files: uuids of the data files, by their number in entries.
    """

    format_version: int
    columns: tuple[int, ...]
    kinds: tuple[str, ...]
    files: tuple[str, ...]


def encode_root(columns: tuple[int, ...], kinds: tuple[str, ...], files: tuple[str, ...], root: bytes) -> bytes:
    """The block's bytes."""
    document = seal(msgspec.json.encode(IndexHead(FORMAT_VERSION, columns, kinds, files)))
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
        return head, decode_page(body[end:])
    except (ValueError, struct.error, OSError, pa.ArrowInvalid) as error:
        raise CorruptionError(part.object, f"root block: {error}") from error


prepare(IndexHead)

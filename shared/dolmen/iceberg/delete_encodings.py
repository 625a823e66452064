"""Puffin files with one deletion vector each (https://iceberg.apache.org/puffin-spec/, "deletion-vector-v1" blob).

There is one vector to a file, because DuckDB 1.5 returns wrong rows, without an error, for a file with several. The
footer names the data file by its absolute path, because pyiceberg and Polars find it there, not in the manifest.

Position-delete files of Iceberg v2: Parquet with pairs of a data file and a position.

See "Position Delete Files" of https://iceberg.apache.org/spec/. One file may serve any number of data files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from dolmen.format.checksums import crc32
from dolmen.format.vectors import encode

BLOB_OFFSET = 4
"""Where the blob begins: after the magic."""


_MAGIC = b"PFA1"


_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


_ROW_POSITION_ID = 2147483645
"""Reserved field id of a row's position ("Reserved Field IDs")."""


def vector_blob(positions: BitMap) -> bytes:
    """A deletion vector: length, magic, one 64-bit Roaring bitmap of one 32-bit bitmap, and CRC-32."""
    body = _VECTOR_MAGIC + struct.pack("<QI", 1, 0) + encode(positions)
    return struct.pack(">I", len(body)) + body + struct.pack(">I", crc32(body))


def vector_in(body: bytes, offset: int, length: int) -> BitMap:
    """The positions in a deletion vector of a Puffin file. Raises ValueError if it is damaged."""
    blob = body[offset : offset + length]
    inner = blob[4:-4]
    if len(blob) != length or inner[:4] != _VECTOR_MAGIC or blob[-4:] != struct.pack(">I", crc32(inner)):
        raise ValueError("the deletion vector's checksum differs")
    return BitMap.deserialize(inner[16:])


def puffin_file(blob: bytes, data_file: str, cardinality: int) -> bytes:
    """A Puffin file with one deletion vector.

    Args:
        blob: as ``vector_blob`` makes it.
        data_file: absolute path of the file whose rows it deletes, as the manifest names it.
        cardinality: number of positions.
    """
    payload = msgspec.json.encode(
        {
            "blobs": [
                {
                    "type": "deletion-vector-v1",
                    "fields": [_ROW_POSITION_ID],
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": BLOB_OFFSET,
                    "length": len(blob),
                    "properties": {"referenced-data-file": data_file, "cardinality": str(cardinality)},
                }
            ],
            "properties": {"created-by": "dolmen"},
        }
    )
    return b"".join([_MAGIC, blob, _MAGIC, payload, struct.pack("<II", len(payload), 0), _MAGIC])


FILE_PATH_ID = 2147483546
"""Reserved field id of the column ``file_path``."""


POSITION_ID = 2147483545
"""Reserved field id of the column ``pos``."""


_ROW_GROUP = 1 << 20


_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


def position_delete_file(positions: Mapping[str, BitMap]) -> bytes:
    """The bytes of a position-delete file, sorted by path and position, as the format asks for.

    Args:
        positions: by the absolute path of their data file, as manifests name it.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _SCHEMA, compression="zstd", use_dictionary=["file_path"], store_schema=False) as out:
        for path in sorted(positions):
            numbers = np.asarray(positions[path].to_array(), np.int64)
            for start in range(0, len(numbers), _ROW_GROUP):
                own = numbers[start : start + _ROW_GROUP]
                out.write_batch(pa.record_batch([pa.repeat(path, len(own)), pa.array(own)], schema=_SCHEMA))
    return bytes(sink.getvalue())

"""Position-delete files of Iceberg v2: Parquet with pairs of a data file and a position.

See "Position Delete Files" of https://iceberg.apache.org/spec/. One file may serve any number of data files.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

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

"""Deleted rows of an Iceberg snapshot, as positions in its data files.

See "Delete Formats" and "Scan Planning" of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from dolmen.adopt.faults import AdoptionFaults
from dolmen.adopt.iceberg.manifests import IcebergFile
from dolmen.base.runtime import Runtime
from dolmen.errors import ObjectNotFoundError
from dolmen.format.checksum import crc32

_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_EMPTY = 16

ReadRange = Callable[[str, tuple[int, int]], bytes]
"""(URL, first and end byte) -> these bytes."""


def deleted_positions(
    deletes: Sequence[IcebergFile],
    data: Mapping[str, IcebergFile],
    label: Callable[[str], str],
    read: ReadRange,
    runtime: Runtime,
    faults: AdoptionFaults,
) -> dict[str, BitMap]:
    """The deleted positions by data file.

    A deletion vector replaces the position deletes of its file. Position deletes count in files whose sequence number
    is not greater than theirs.

    Args:
        deletes: position deletes and deletion vectors.
        data: data files by label.
        label: the label of a file by its URL.
    """
    found: dict[str, BitMap] = {}
    vectors = [file for file in deletes if file.blob is not None]

    def positions(file: IcebergFile) -> tuple[IcebergFile, dict[str, BitMap] | str]:
        try:
            if file.blob is not None:
                start, length = file.blob
                return file, {file.data_file: _vector(read(file.path, (start, start + length)), length)}
            return file, dict(_position_deletes(read(file.path, (0, file.size)), file.size))
        except ObjectNotFoundError:
            return file, "it is missing"
        except (ValueError, KeyError, pa.ArrowException, OSError) as error:
            return file, str(error)

    with_vectors = {label(file.data_file) for file in vectors}
    for file, some in runtime.map(positions, deletes):
        if isinstance(some, str):
            faults.add(file.path, f"the deletes in it cannot be read: {some}")
            continue
        for path, own in some.items():
            name = label(path)
            there = data.get(name)
            if there is None or there.sequence > file.sequence or (file.blob is None and name in with_vectors):
                continue
            if own and own.max() >= there.rows:
                faults.add(file.path, f"it deletes row {own.max():,} of a file with {there.rows:,} rows")
                continue
            found[name] = found[name] | own if name in found else own
    return found


def _vector(body: bytes, length: int) -> BitMap:
    """A deletion vector of a Puffin file ("deletion-vector-v1"). Raises ValueError if it is damaged."""
    inner = body[4:-4]
    if len(body) != length or inner[:4] != _VECTOR_MAGIC or int.from_bytes(body[-4:], "big") != crc32(inner):
        raise ValueError("the deletion vector's checksum differs")
    count = int.from_bytes(inner[4:12], "little")
    if count == 0:
        return BitMap()
    if count > 1 or inner[12:_EMPTY] != bytes(4):
        raise ValueError("the deletion vector has positions beyond 4,294,967,295")
    return BitMap.deserialize(inner[_EMPTY:])


def _position_deletes(body: bytes, size: int) -> Iterator[tuple[str, BitMap]]:
    """The positions in a file of position deletes, by the URL of the data file. Raises ValueError."""
    if len(body) != size:
        raise ValueError(f"it has not the {size:,} bytes that its manifest tells of")
    file = pq.ParquetFile(pa.BufferReader(body))
    table = file.read(["file_path", "pos"], use_threads=False)
    rows = sum(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
    if table.num_rows != rows:
        raise ValueError(f"it holds {table.num_rows:,} rows, not the {rows:,} of its footer")
    if not table.num_rows:
        return
    paths = table["file_path"].combine_chunks().cast(pa.string()).dictionary_encode()
    positions = table["pos"].to_numpy()
    if positions.min() < 0 or positions.max() > 2**32 - 1:
        raise ValueError("a position is negative, or beyond 4,294,967,295")
    codes = paths.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(paths.dictionary)), side="right")
    for path, some in zip(paths.dictionary.to_pylist(), np.split(positions[order], ends[:-1]), strict=True):
        yield path, BitMap(some.astype(np.uint32))

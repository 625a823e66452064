"""Deletion vectors: which positions of one data file are gone.

A position is the physical number of a row in its file: rows before its row group plus its place in it, counted
before any filter. Stored as the portable Roaring serialisation of 32-bit integers
(https://github.com/RoaringBitmap/RoaringFormatSpec), run-optimised, so that whole row groups cost a few bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from dolmen.errors import CorruptionError
from dolmen.format.checksums import crc32
from dolmen.format.entries import Vector


def encode(positions: BitMap) -> bytes:
    """Portable Roaring bytes."""
    compact = positions.copy()
    compact.run_optimize()
    return bytes(compact.serialize())


def decode(body: bytes, vector: Vector, rows: int) -> BitMap:
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


def from_mask(mask: npt.NDArray[np.bool_], first: int) -> BitMap:
    """Positions of the True values of ``mask``, whose first value stands for position ``first``."""
    if mask.all():
        return BitMap(range(first, first + len(mask)))
    return BitMap((np.flatnonzero(mask) + first).astype(np.uint32))


def keep_mask(positions: BitMap, first: int, rows: int) -> npt.NDArray[np.bool_]:
    """True for each of the ``rows`` positions from ``first`` on that is NOT gone."""
    keep = np.ones(rows, dtype=np.bool_)
    gone = positions & BitMap(range(first, first + rows))
    keep[np.asarray(gone.to_array(), dtype=np.int64) - first] = False
    return keep

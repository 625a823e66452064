"""Arrow arrays and numpy masks: a chunked column as one array, and Boolean arrays as masks and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]
"""One byte for each row."""


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values of a column as one array; copies only if there are several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def to_mask(array: Any) -> Mask:
    """The mask of a Boolean array, or chunked array, without NULLs."""
    mask: Mask = array.to_numpy(zero_copy_only=False) if isinstance(array, pa.Array) else array.to_numpy()
    return mask


def to_boolean_array(mask: Mask) -> pa.BooleanArray:
    """The Boolean array of a mask, several times faster than ``pa.array``."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits])

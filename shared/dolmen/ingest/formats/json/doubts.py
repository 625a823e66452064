"""Numbers in JSON that a parser changes without a word: found in its text, a block at a time."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.ingest.formats.text.infer import changes_digits
from dolmen.ingest.formats.text.times import NUMBER

_NEGATIVE_ZERO = re.compile(rb"-0(?<=[:,\[\s]-0)[,\]}\s]")
_SURE_BYTES = 15
"""Numbers without an exponent that are not longer keep their digits in a double."""
_IN_NUMBER = np.zeros(256, bool)
_IN_NUMBER[list(b"0123456789+-.eE")] = True
_QUOTE, _LOWER_CASE = ord('"'), 0x20


def has_negative_zero(data: bytes) -> bool:
    """Whether a number may be ``-0``, which parsers take for the integer 0."""
    return _NEGATIVE_ZERO.search(data) is not None


def has_changing_floats(data: bytes) -> bool:
    """Whether a number that is no integer may have other digits as a double. What is in strings may count, too."""
    array = np.frombuffer(data, np.uint8)
    edges = np.flatnonzero(np.diff(_IN_NUMBER[array], prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    doubtful = ends - starts > _SURE_BYTES
    exponents = np.flatnonzero((array[1:] == ord("-")) & (array[:-1] | _LOWER_CASE == ord("e")))
    doubtful[np.searchsorted(starts, exponents, "right") - 1] = True
    doubtful &= array[np.maximum(starts, 1) - 1] != _QUOTE
    text = _slices(array, starts[doubtful], ends[doubtful])
    text = text.filter(pc.and_(pc.match_substring_regex(text, NUMBER), pc.match_substring_regex(text, "[.eE]")))
    return changes_digits(text, text.cast(pa.float64()))


def _slices(array: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Parts of ASCII text."""
    sizes = ends - starts
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    characters = array[np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])]
    return pa.StringArray.from_buffers(
        len(sizes), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(characters.tobytes())
    )

"""Finds files among many by their uuid: looks up a 64-bit code of each, and compares the name itself on a hit."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.cached import cached_property
from dolmen.format.layout import uuid_of

Codes = npt.NDArray[np.uint64]

_LENGTH = 32
_SUFFIX = ".parquet"
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64
)  # odd, so that no bit of a word is lost


class Uuids:
    """Uuids to look for."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def codes(self) -> Codes:
        """The 64-bit code of each."""
        return _codes([name[-_LENGTH:].encode() for name in self.names])


def codes_of_paths(paths: pa.Array) -> Codes:
    """The codes of the uuids of data files, by their keys.

    Names end in 32 hexadecimal digits and a suffix; any other makes this slower and not wrong.
    """
    raw = paths.cast(pa.binary())
    tails = pc.binary_slice(raw, -_LENGTH - len(_SUFFIX), None)
    usual = pc.and_(
        pc.ends_with(paths, _SUFFIX),
        pc.and_(pc.equal(pc.binary_length(tails), _LENGTH + len(_SUFFIX)), pc.invert(pc.match_substring(tails, "/"))),
    )
    if len(paths) and pc.all(usual).as_py():
        values = np.frombuffer(b"".join(pc.binary_slice(tails, 0, _LENGTH).to_pylist()), f"S{_LENGTH}")
        return _mixed(values)
    return _codes([uuid_of(path)[-_LENGTH:].encode() for path in paths.to_pylist()])


def _codes(tails: list[bytes]) -> Codes:
    return _mixed(np.array(tails, f"S{_LENGTH}"))


def _mixed(values: npt.NDArray[np.bytes_]) -> Codes:
    words = np.frombuffer(np.ascontiguousarray(values).tobytes(), "<u8").reshape(-1, _LENGTH // 8)
    with np.errstate(over="ignore"):
        mixed = (words * _FACTORS).sum(axis=1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(29)
        codes: Codes = mixed * _FACTORS[0]
    return codes

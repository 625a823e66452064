"""Where the rows are that an update or a merge replaces: their files and positions, a step at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from pyroaring import BitMap

from dolmen.base.units import MIB

STEP_ROWS, STEP_BYTES = 65_536, 64 * MIB  # the most rows that are changed at once

HiddenRows: TypeAlias = dict[str, BitMap]  # positions of rows to hide, by the path of their file
_FileRows: TypeAlias = tuple[pa.RecordBatch, str, npt.NDArray[np.int64]]  # rows, the path of their file, and positions


class RowLocations(Struct, frozen=True):
    """The files (by index among ``paths``, ascending) and positions of some rows."""

    paths: Sequence[str]
    files: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]

    def take(self, indices: npt.NDArray[np.int64]) -> RowLocations:
        """The locations of some of the rows; the indices ascend."""
        return RowLocations(self.paths, self.files[indices], self.positions[indices])

    def hide(self, hidden: HiddenRows) -> None:
        """Adds the rows to ``hidden``."""
        if len(self.files) == 0:
            return
        starts = np.append(0, np.flatnonzero(np.diff(self.files)) + 1)
        by_file = np.split(self.positions.astype(np.uint32), starts[1:])
        for file, positions in zip(self.files[starts], by_file, strict=True):
            hidden.setdefault(self.paths[file], BitMap()).update(BitMap(positions))


def cut_into_steps(batches: Iterable[_FileRows]) -> Iterator[tuple[pa.RecordBatch, RowLocations]]:
    parts: list[_FileRows] = []
    rows = size = 0
    for batch, path, positions in batches:
        for start in range(0, batch.num_rows, STEP_ROWS):
            part = batch.slice(start, STEP_ROWS)
            if parts and (rows + part.num_rows > STEP_ROWS or size + part.nbytes > STEP_BYTES):
                yield _join(parts)
                parts, rows, size = [], 0, 0
            parts.append((part, path, positions[start : start + STEP_ROWS]))
            rows += part.num_rows
            size += part.nbytes
    if parts:
        yield _join(parts)


def _join(parts: Sequence[_FileRows]) -> tuple[pa.RecordBatch, RowLocations]:
    rows = parts[0][0] if len(parts) == 1 else pa.concat_batches([rows for rows, _, _ in parts])
    files = np.repeat(np.arange(len(parts)), [part.num_rows for part, _, _ in parts])
    positions = np.concatenate([positions for _, _, positions in parts])
    return rows, RowLocations([path for _, path, _ in parts], files, positions)

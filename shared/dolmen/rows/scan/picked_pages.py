"""The pages of a column chunk in which some of its rows are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.format.page_places import ChunkPages
from dolmen.rows.scan.footers import DataFileFooter, FileColumn
from dolmen.rows.scan.page_file import fits
from dolmen.rows.scan.ranges import Range

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PickedPages:
    """Some pages of a column chunk.

    Args:
        chunk: all of its pages.
        pages: the numbers of the picked data pages, ascending, of which 0 is the first that is no dictionary.
        at: the places of the wanted rows among the rows of these pages.
    """

    chunk: ChunkPages
    pages: Rows
    at: pa.Array

    @property
    def rows(self) -> int:
        """Rows of the pages together."""
        firsts = self.chunk.firsts
        return int((firsts[self.pages + 1] - firsts[self.pages]).sum())

    @property
    def numbers(self) -> list[int]:
        """The numbers of all pages that are needed in the chunk: the dictionary's, if there is one, and the picked."""
        numbers: list[int] = (self.pages + self.chunk.has_dictionary).tolist()
        return [0, *numbers] if self.chunk.has_dictionary else numbers

    def ranges(self) -> list[Range]:
        """The bytes of each of them."""
        starts = self.chunk.starts
        return [Range(int(starts[page]), int(starts[page + 1])) for page in self.numbers]


def picked_pages(footer: DataFileFooter, group: int, column: FileColumn, rows: Rows) -> PickedPages | None:
    """The pages of a column with some rows of a row group; None if the whole chunks have to be read.

    Args:
        rows: numbers of rows in the row group, ascending.
    """
    if footer.pages is None or footer.sums is None or len(column.leaves) != 1:
        return None
    leaf, metadata = column.leaves[0], footer.metadata
    chunk = footer.pages.of_chunk(metadata, footer.sums, group, leaf)
    if chunk is None or not fits(metadata.row_group(group).column(leaf), metadata.schema.column(leaf), column.type):
        return None
    own = np.searchsorted(chunk.firsts, rows, "right") - 1
    pages, place = np.unique(own, return_inverse=True)
    lengths = chunk.firsts[pages + 1] - chunk.firsts[pages]
    before = np.cumsum(lengths) - lengths
    return PickedPages(chunk, pages, pa.array(before[place] + rows - chunk.firsts[own]))

"""Single pages of a column chunk as a Parquet file of their own, which pyarrow decodes.

pyarrow reads whole column chunks only. So what a footer would say of a file with these pages is written here: the
schema as pyarrow writes it for the column's type, and one row group of one chunk.

The pages of a column chunk in which some of its rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.format.chunk_locations import CODECS, PHYSICAL_TYPES
from dolmen.format.page_locations import ChunkPages
from dolmen.format.parquet_footer import BINARY, I32, I64, LIST, STRUCT, EmptyFooter, array, binary, integer, struct
from dolmen.rows.scan.read.byte_ranges import Range
from dolmen.rows.scan.read.footers import DataFileFooter, FileColumn

_MAGIC = b"PAR1"
_NAME = "c"


@dataclass(frozen=True)
class _Template:
    """The part of a footer that is the same for all files with one column of a type.

    Args:
        footer: without row groups.
        column: what the schema says of the column.
    """

    footer: EmptyFooter
    column: pq.ColumnSchema


def fits(chunk: pq.ColumnChunkMetaData, column: pq.ColumnSchema, own: pa.DataType) -> bool:
    """Whether pages of a chunk can be read as those of a file that pyarrow writes now.

    Args:
        column: what the chunk's own file says of the column.
        own: its type there.
    """
    if column.max_definition_level > 1 or column.max_repetition_level:
        return False
    now = _template(own, bool(column.max_definition_level)).column
    facts = [(each.physical_type, each.length) for each in (now, column)]
    return facts[0] == facts[1] and chunk.compression in CODECS


def read_pages(
    pages: Sequence[pa.Buffer],
    rows: int,
    chunk: pq.ColumnChunkMetaData,
    column: pq.ColumnSchema,
    own: pa.DataType,
    *,
    has_dictionary: bool,
) -> pa.ChunkedArray:
    """Decodes pages whose checksums were found right.

    Args:
        pages: with their headers, in the order of the chunk.
        rows: how many they have together.
        chunk, column, own: of which ``fits`` is true.
        has_dictionary: whether the first page is the chunk's dictionary.

    Raises:
        OSError, pyarrow.ArrowException: the pages hold something else.
    """
    template = _template(own, bool(column.max_definition_level))
    start = len(_MAGIC)
    first = start + (pages[0].size if has_dictionary else 0)
    length = sum(page.size for page in pages)
    facts = [
        (1, I32, integer(PHYSICAL_TYPES.index(chunk.physical_type))),
        (2, LIST, array(I32, [integer(0)])),
        (3, LIST, array(BINARY, [binary(_NAME.encode())])),
        (4, I32, integer(CODECS[chunk.compression])),
        (5, I64, integer(rows)),
        (6, I64, integer(length)),
        (7, I64, integer(length)),
        (9, I64, integer(first)),
        *([(11, I64, integer(start))] if has_dictionary else ()),
    ]
    whole = struct([(2, I64, integer(start)), (3, STRUCT, struct(facts))])
    group = struct([(1, LIST, array(STRUCT, [whole])), (2, I64, integer(length)), (3, I64, integer(rows))])
    footer = template.footer.filled(rows, [group])
    parts = [_MAGIC, *pages, footer, len(footer).to_bytes(4, "little"), _MAGIC]
    file = pq.ParquetFile(pa.BufferReader(b"".join(parts)), pre_buffer=False)
    found = file.reader.read_row_group(0, column_indices=[0], use_threads=False).column(0)
    if len(found) != rows:
        raise pa.ArrowInvalid(f"{len(found)} rows were decoded, not {rows}")
    return found


@lru_cache(maxsize=256)
def _template(own: pa.DataType, nullable: bool) -> _Template:
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, pa.schema([pa.field(_NAME, own, nullable)])).close()
    body = sink.getvalue().to_pybytes()
    footer = body[-8 - int.from_bytes(body[-8:-4], "little") : -8]
    column = pq.read_metadata(pa.BufferReader(body)).schema.column(0)
    return _Template(EmptyFooter.split(footer), column)


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

"""Checks, by statistics alone, that files written under a narrower type of a column fit its wider one."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dolmen.entries.segments.judging import column_bounds
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.reader import SegmentReader
from dolmen.errors import SchemaError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Segment, TableEntry
from dolmen.format.schema import Field
from dolmen.format.widening import LAST_DAY


def check_days(files: Iterable[DataFile], field: Field) -> None:
    """Checks that the midnights of all days in some files are timestamps.

    Args:
        field: the column as long as it has days.

    Raises:
        SchemaError: one is not, or the statistics do not tell.
    """
    for file in files:
        if not _is_in_range(file, field):
            least, greatest, *_ = column_bounds(file, field)
            raise SchemaError(
                f"column {field.name!r} can't become a timestamp: "
                + (
                    f"the statistics of {file.path} don't tell its days"
                    if least is None or greatest is None
                    else f"a day in {file.path} is before -290308 or after 294247, the years that timestamps have"
                )
            )


def check_days_of_table(entry: TableEntry, field: Field, reader: SegmentReader) -> None:
    """Checks this for all live files of a table. Reads segments only where their bounds in the root do not tell."""
    check_days(entry.files, field)
    live = LiveFiles.of(entry, reader)
    unclear = [segment for segment in live.segments if not _is_in_range(segment, field)]
    for each in live.live_segments(unclear):
        check_days(each.entries(ids=(field.id,)), field)


def _is_in_range(file: DataFile | Segment, field: Field) -> bool:
    known = column_bounds(file, field)
    if known.nulls == file.rows:
        return True
    least, greatest = known.min, known.max
    return isinstance(least, int) and isinstance(greatest, int) and least >= -LAST_DAY and greatest <= LAST_DAY


def rounds_otherwise(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether a predicate that was bound to the narrower type may mean other rows in files of the wider one.

    A comparison of floats rounds its other side to the nearest float of their width; those of exact numbers, and of
    days with their midnights, do not depend on the width.
    """
    return bool(pa.types.is_floating(narrow)) and narrow != wide

"""Options for reading a file, and the report of a row that cannot be read.

Reports bad rows one by one, while the good ones around them are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base.units import GIB
from dolmen.errors import InputError, RowError
from dolmen.format.ingest_properties import MAX_COLUMNS, IngestSettings
from dolmen.format.schema import Schema
from dolmen.format.types import Json
from dolmen.ingest.formats.text.times import TimeFormat

CLOSED = {b"dolmen": b"closed"}
"""Metadata of a field in whose structs nothing that is extra is skipped, whatever the options say."""


_MARK = "\ue000"
"""Begins the name of a field that marks another one; no column is likely to have it."""


MAX_BYTES = 64 * GIB


MAX_TEMPORARY_BYTES = 8 * GIB


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a file. A format ignores those that do not concern it.

    Args:
        delimiter: what separates the fields of CSV and TSV, one ASCII character; None: comma or tab, by the format.
        header: whether the first record of CSV and TSV names the columns. Without it, the fields of a record are the
            table's columns in their order.
        nulls: unquoted fields of CSV and TSV that are NULL. A blank field of a column that is no string always is.
        timestamp_format: how times are written in text, beside ISO 8601, which is always understood: ``epoch_s``,
            ``epoch_ms``, ``epoch_us`` or a pattern (see ``times``).
        extra: ``ignore``: columns, keys and struct fields that the table does not have are skipped.
        null_lines: ``skip``: lines of JSON that say ``null`` are no rows, as little as blank ones.
        max_bytes: what one file may hold once it is unpacked, bytes: a small file can unpack to terabytes.
        max_temporary_bytes: the same for compressed Parquet and Arrow files, which are unpacked into a temporary file:
            what fits the disk for these.
        max_columns: the most columns that a file may have, fields in columns counted.
        defaults: JSON forms of the values of columns that a file lacks, by name; NULL by default. In JSON lines each
            row may lack others, so a key that is missing is NULL there.
        placeholders: texts of CSV and TSV that are no values. A column whose mark is asked for (``mark_name``) is NULL
            there, and its mark is not.

    Raises:
        InputError: the delimiter or the time format is none.
    """

    delimiter: str | None = None
    header: bool = True
    nulls: tuple[str, ...] = ("",)
    timestamp_format: str | None = None
    extra: Literal["reject", "ignore"] = "reject"
    null_lines: Literal["reject", "skip"] = "reject"
    max_bytes: int = MAX_BYTES
    max_temporary_bytes: int = MAX_TEMPORARY_BYTES
    max_columns: int = MAX_COLUMNS
    defaults: Mapping[str, Json] = field(default_factory=dict, hash=False)
    placeholders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        delimiter = self.delimiter
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
            raise InputError(f"{delimiter!r} is no delimiter: one ASCII character, but no quote or line end")
        TimeFormat.of(self.timestamp_format)

    @classmethod
    def of(cls, settings: IngestSettings, schema: Schema | None = None) -> ReadOptions:
        """The options that a table's properties ask for.

        Args:
            schema: the table's columns, whose defaults are the values of those that a file lacks; None = NULL is.
        """
        return cls(
            delimiter=settings.delimiter,
            header=settings.header,
            nulls=settings.nulls,
            timestamp_format=settings.timestamp_format,
            max_columns=settings.max_columns,
            extra="ignore" if settings.new_columns == "ignore" else "reject",
            defaults={} if schema is None else schema.write_defaults,
        )

    @property
    def times(self) -> TimeFormat | None:
        """How times are written, beside ISO 8601."""
        return TimeFormat.of(self.timestamp_format)

    @property
    def ignore_extra(self) -> bool:
        """Whether columns and fields that the table does not have are skipped."""
        return self.extra == "ignore"


def mark_name(column: str) -> str:
    """The name of the field that marks where a column has a placeholder."""
    return f"{_MARK}{column}"


def is_mark(name: str) -> bool:
    """Whether a field marks another one."""
    return name.startswith(_MARK)


def is_closed(field: pa.Field) -> bool:
    """Whether a field is marked as ``CLOSED``."""
    return bool(field.metadata) and CLOSED.items() <= field.metadata.items()


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, or does not fit the table.

    Args:
        reason: what is wrong, without the place.
        row: its 1-based number among the rows of the file, bad ones included.
        line: the 1-based line of the file to look at; None where files have no lines.
        column: the column to blame, if one is.
        text: the row as it stands in the file, without its line end; of a file that is no text, the row as a JSON
            object, or None where JSON does not hold it.
    """

    reason: str
    row: int | None
    line: int | None
    column: str | None
    text: bytes | None


OnBadRow: TypeAlias = Callable[[BadRow], None]
"""Called with each bad row, in the order of the file. If it raises, reading ends with its exception."""


_ROWS_AFTER_BAD = 64


class BlockRows(Protocol):
    """The rows of one block, by their place in it."""

    def __len__(self) -> int: ...

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """Converts the rows from ``start`` to before ``stop``.

        Raises:
            RowError: for the first that is bad; its ``row`` is its number in the file.
        """

    def text(self, place: int) -> bytes | None:
        """One row, as ``BadRow`` wants it."""


def good_rows(rows: BlockRows, first_row: int, on_bad_row: OnBadRow) -> list[pa.RecordBatch]:
    """Returns the good rows of a block in order, and reports the bad ones.

    After a bad row a few rows are tried, then more and more: so a row is converted a few times at most, however many of
    its neighbours are bad.

    Args:
        first_row: the 1-based number in the file of the block's first row.
    """
    made: list[pa.RecordBatch] = []
    start, count = 0, len(rows)
    while start < len(rows):
        stop = min(start + count, len(rows))
        try:
            made.append(rows.convert(start, stop))
            start, count = stop, 2 * count
            continue
        except RowError as error:
            fault = error
        assert fault.row is not None
        place = fault.row - first_row
        assert start <= place < stop, (start, place, stop)
        if place > start:
            made.append(rows.convert(start, place))
        on_bad_row(BadRow(fault.reason, fault.row, fault.line, fault.column, rows.text(place)))
        start, count = place + 1, _ROWS_AFTER_BAD
    return made


class RowNumbers:
    """Numbers the good rows of a file, from 1, between the bad ones.

    Args:
        on_bad_row: called with each bad row; None: the first one is an error of the reader.
    """

    def __init__(self, on_bad_row: OnBadRow | None) -> None:
        self._on_bad_row = on_bad_row
        self._next = 1
        self._skipped: set[int] = set()

    @property
    def for_reader(self) -> OnBadRow | None:
        """The function that the reader calls with each row that it cannot read."""
        return None if self._on_bad_row is None else self.add

    def add(self, bad: BadRow) -> None:
        """Adds a row that could not be read."""
        assert self._on_bad_row is not None
        if bad.row is not None:
            self._skipped.add(bad.row)
        self._on_bad_row(bad)

    def next(self, count: int) -> npt.NDArray[np.int64]:
        """The numbers in the file of the next ``count`` rows that could be read."""
        numbers = np.arange(self._next, self._next + count + len(self._skipped))
        if self._skipped:
            numbers = numbers[~np.isin(numbers, list(self._skipped))]
        numbers = numbers[:count]
        if count:
            self._next = int(numbers[-1]) + 1
            self._skipped = {row for row in self._skipped if row >= self._next}
        return numbers

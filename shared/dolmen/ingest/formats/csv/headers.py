"""Finds the columns of delimited text: by a header, or by their places.

A column that is ignored has no name here: None.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import csv

from dolmen.errors import RowError, SchemaError
from dolmen.format.schema import own_names
from dolmen.ingest.formats.csv.quoting import Records
from dolmen.ingest.formats.limits import check_columns
from dolmen.ingest.formats.text.blocks import Block


def columns_by_place(fields: int, wanted: list[str] | None) -> tuple[Sequence[str | None], str]:
    """The columns of a file whose first record has ``fields`` fields, and the words for what sets that number.

    Args:
        wanted: the table's columns, where others are ignored; None to make names up.
    """
    if wanted is None:
        return [f"column_{place}" for place in range(1, fields + 1)], "the first line"
    if fields > len(wanted):
        return [*wanted, *[None] * (fields - len(wanted))], "the first line"
    return wanted, "the table"


def columns_by_name(
    header: Block, delimiter: str, name: str, wanted: list[str] | None, ignored: bool, most: int
) -> Sequence[str | None]:
    """The columns that a header names.

    Args:
        name: of the file, for errors.
        wanted: the table's columns, which are found in any case; None to infer them.
        ignored: whether other columns are ignored.
        most: the most columns that there may be.

    Raises:
        LimitError: there are more.
        RowError: the header is not UTF-8.
        SchemaError: a column has no name, or is there twice, or none is wanted.
    """
    where = f"file {name!r}, line {header.line}"
    try:
        header.data.decode()
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: {error.reason}", file=name, line=header.line) from None
    count = int(Records.of(header.data, delimiter, blank_lines_count=True).fields[0])
    check_columns(count, most, name)
    places = [str(place) for place in range(count)]
    cells = csv.read_csv(
        pa.BufferReader(header.data),
        csv.ReadOptions(column_names=places, block_size=len(header.data) + 1, use_threads=False),
        csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        csv.ConvertOptions(column_types=dict.fromkeys(places, pa.string()), strings_can_be_null=False),
    )
    given: list[str] = [column[0].as_py() for column in cells.columns]
    names = own_names(given, wanted or ())
    known = set(wanted or ()) if ignored else None
    kept: list[str | None] = [column if known is None or column in known else None for column in names]
    if not any(column is not None for column in kept):
        raise SchemaError(f"{where}: no column is one of the table's; there are: {', '.join(wanted or ())}")
    seen: dict[str, str] = {}
    for place, (column, spelled) in enumerate(zip(kept, given, strict=True), 1):
        if column == "":
            hint = " (an index that pandas wrote? leave it out with index=False)" if place == 1 else ""
            raise SchemaError(f"{where}: column {place} has no name{hint}")
        if column in seen and seen[column] != spelled:
            reason = f"columns {seen[column]!r} and {spelled!r} differ in case only: rename one, or drop it"
            raise SchemaError(f"{where}: {reason}", column=column)
        if column in seen:
            raise SchemaError(f"{where}: column {column!r} is there twice", column=column)
        if column is not None:
            seen[column] = spelled
    return kept

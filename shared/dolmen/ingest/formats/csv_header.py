"""The columns of delimited text, from the names in its header or the order of its fields."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import csv

from dolmen.errors import RowError, SchemaError
from dolmen.format.dialect import ColumnNames
from dolmen.format.schema import NUMBER_THEM, no_common_column, number_names, own_names, same_names, same_names_problem
from dolmen.ingest.formats.column_limits import check_columns
from dolmen.ingest.formats.csv_for_pyarrow import end_line, parse_options
from dolmen.ingest.formats.csv_records import Records, Signs
from dolmen.ingest.formats.text_blocks import Block, undecodable_reason


def columns_by_name(
    header: Block,
    signs: Signs,
    name: str,
    table: list[str] | None,
    ignore_others: bool,
    max_columns: int,
    rule: ColumnNames = "strict",
) -> list[str | None]:
    """The columns that a header names; None for one that is ignored. Raises LimitError, RowError, SchemaError.

    ``table`` has the table's columns, which match in any case; None infers them.
    """
    where = f"file {name!r}, line {header.line}"
    try:
        header.data.decode()
    except UnicodeDecodeError as error:
        raise RowError(undecodable_reason(error), file=name, line=header.line, problem="not UTF-8") from None
    count = int(Records.of(header.data, signs, blank_lines_count=True).fields[0])
    check_columns(count, max_columns, name)
    numbers = [str(number) for number in range(count)]
    data = end_line(header.data, signs)
    cells = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(column_names=numbers, block_size=len(data) + 1, use_threads=False),
        parse_options(data, signs),
        csv.ConvertOptions(column_types=dict.fromkeys(numbers, pa.string()), strings_can_be_null=False),
    )
    spellings: list[str] = [column[0].as_py() for column in cells.columns]
    if rule == "number":
        spellings = number_names(spellings)
    names = own_names(spellings, table or ())
    columns = [None if ignore_others and column not in (table or ()) else column for column in names]
    if columns.count(None) == len(columns):
        raise no_common_column(where, table or ())
    if "" in columns:
        number = columns.index("") + 1
        hint = " (an index that pandas wrote? leave it out with index=False)" if number == 1 else ""
        raise SchemaError(f"{where}: column {number} has no name{hint}; {NUMBER_THEM}")
    used = [(spelling, column) for spelling, column in zip(spellings, columns, strict=True) if column is not None]
    if pair := same_names(*zip(*used, strict=True)):
        raise SchemaError(f"{where}: {same_names_problem(pair)}; {NUMBER_THEM}", column=pair[0])
    return columns


def columns_by_position(fields: int, table: list[str] | None) -> tuple[Sequence[str | None], str]:
    """The columns of a file whose first record has ``fields`` fields, and what fixes that number, in words.

    ``table`` has the table's columns, if others are ignored; None invents names.
    """
    if table is None:
        return [f"column_{number}" for number in range(1, fields + 1)], "the first line"
    if fields > len(table):
        return [*table, *[None] * (fields - len(table))], "the first line"
    return table, "the table"

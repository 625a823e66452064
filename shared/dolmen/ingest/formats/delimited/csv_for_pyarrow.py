"""Prepares delimited text for pyarrow's CSV reader, so that pyarrow reads it as its dialect means it.

pyarrow knows delimiters, quotes and escapes. Before it parses a block, the rest is rewritten: spaces around fields and
comments are removed, short records filled, and fields such as ``\\N`` protected from its treatment of escapes.

The header, which has rules of its own for names, is read here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from pyarrow import csv

from dolmen.errors import RowError, SchemaError
from dolmen.format.dialect import ColumnNames
from dolmen.format.schema import NUMBER_THEM, no_common_column, number_names, own_names, same_names, same_names_problem
from dolmen.ingest.formats.column_limits import check_columns
from dolmen.ingest.formats.delimited.csv_records import Bytes, Mask, Offsets, Records, Signs, find_layout, record_ends
from dolmen.ingest.formats.text_blocks import Block, undecodable_reason


def parse_options(data: bytes, signs: Signs, *, skip_blank_lines: bool = True) -> csv.ParseOptions:
    """The options by which pyarrow's reader parses ``data``."""
    return csv.ParseOptions(
        delimiter=signs.delimiter,
        quote_char=signs.quote or False,
        escape_char=signs.escape or False,
        newlines_in_values=signs.has_quote(data) or signs.has_escape(data),
        ignore_empty_lines=skip_blank_lines,
    )


def end_line(data: bytes, signs: Signs) -> bytes:
    """Adds a missing line end, without which pyarrow takes an empty last field after a quoted one for quoted, too."""
    if data.endswith((b"\n", b"\r")) and (signs.escape is None or signs.without_line_end(data) != data):
        return data
    return data + b"\n"


def trim_fields(data: bytes, signs: Signs) -> bytes:
    """The bytes without the spaces around fields, except for those without which a record would become a comment."""
    array, layout = np.frombuffer(data, np.uint8).copy(), find_layout(data, signs, True)
    is_space = (array == ord(" ")) & ~mask_ranges(len(data), layout.opens, layout.closes)
    is_separator = signs.separates.take(array)
    if layout.literal is not None:
        is_space &= ~layout.literal[:-1]
        is_separator &= ~layout.literal[:-1]
    steps = np.diff(is_space.astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    # Past either end of the bytes there is a separator, too.
    is_separator = np.append(is_separator, True)
    is_outer = is_separator[starts - 1] | is_separator[ends]
    if signs.comment is not None:
        sign = signs.comment.encode()
        for index in np.flatnonzero((starts == 0) | np.isin(array[starts - 1], (ord("\n"), ord("\r")))).tolist():
            is_outer[index] &= not data.startswith(sign, int(ends[index]))
    _end_with_feeds(array, record_ends(data, layout, False) - 1)
    trimmed = array[~mask_ranges(len(data), starts[is_outer], ends[is_outer])].tobytes()
    # A last line of spaces alone remains an empty one.
    return trimmed + b"\n" if data.endswith(b" ") and trimmed[-1:] in (b"", b"\n", b"\r") else trimmed


def without_comments(data: bytes, signs: Signs) -> bytes:
    """The bytes without lines that are comments."""
    if not data or not signs.has_comment(data):
        return data
    layout, array = find_layout(data, signs, True), np.frombuffer(data, np.uint8).copy()
    _end_with_feeds(array, record_ends(data, layout, False) - 1)
    return array[~mask_ranges(len(data), layout.comments, layout.comment_ends)].tobytes()


def _end_with_feeds(array: Bytes, ends: Offsets) -> None:
    """Makes each CR that ends a record an LF: when what follows is removed, CR and LF could become one line end."""
    array[ends[array[ends] == ord("\r")]] = ord("\n")


def blank_comments(data: bytes, signs: Signs) -> bytes:
    """The bytes with every comment replaced by spaces."""
    if not data or not signs.has_comment(data):
        return data
    layout, array = find_layout(data, signs, True), np.frombuffer(data, np.uint8).copy()
    array[mask_ranges(len(data), layout.comments, layout.comment_ends)] = ord(" ")
    return array.tobytes()


def mask_ranges(size: int, starts: Offsets, ends: Offsets) -> Mask:
    """Marks the offsets from each start up to its end."""
    steps = np.zeros(size + 1, np.int64)
    np.add.at(steps, starts, 1)
    np.add.at(steps, ends, -1)
    mask: Mask = np.cumsum(steps[:-1]) > 0
    return mask


def fill_records(data: bytes, signs: Signs, fields: int, null: bytes) -> bytes:
    """Adds ``null`` fields to the ends of records that lack fields; returns the same object if none does."""
    records = Records.of(data, signs, blank_lines_count=fields == 1)
    missing = np.maximum(fields - records.fields, 0)
    if not missing.any():
        return data
    array = np.frombuffer(data, np.uint8)
    field = np.frombuffer(signs.delimiter.encode() + null, np.uint8)
    short = np.flatnonzero(missing)
    ends = records.text_ends(array)[short]
    runs = np.zeros(2 * len(short) + 1, np.int64)  # the lengths of old and new text, in turn
    runs[0::2] = np.diff(ends, prepend=0, append=len(data))
    runs[1::2] = missing[short] * len(field)
    is_new = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    filled = np.empty(len(is_new), np.uint8)
    filled[~is_new] = array
    filled[is_new] = np.tile(field, int(missing.sum()))
    return filled.tobytes()


def unused_text(data: bytes) -> str:
    """A text that does not occur in the bytes, and has no ASCII character, so no sign of a dialect."""
    text = "\ue000"
    while text.encode() in data:
        text += "\ue000"
    return text


def protect_nulls(data: bytes, signs: Signs, nulls: Iterable[str], *, blank_lines_count: bool) -> tuple[bytes, Signs]:
    r"""Rewrites fields with escapes, because pyarrow resolves escapes before it looks for texts that mean NULL.

    With the escape ``\`` and the text ``\N`` for NULL, the field ``\N`` is NULL, but ``\\N`` is the string ``\N``. So
    each escape in a field that is NULL is escaped, and other fields with escapes are quoted. Also returns the signs of
    the new text, in which fields may be quoted.
    """
    assert signs.escape is not None
    records = Records.of(data, signs, blank_lines_count=blank_lines_count)
    array, literal = np.frombuffer(data, np.uint8), records.layout.literal
    if literal is None:
        return data, signs
    quote = signs.quote or next(sign for sign in "\"'`" if sign not in (signs.delimiter, signs.escape))
    escaped = np.flatnonzero(literal)
    escaped = escaped[~records.layout.is_quoted(escaped)]
    record = np.searchsorted(records.starts, escaped, side="right") - 1
    is_in_row = (record >= 0) & (escaped < records.ends[record])
    escaped, record = escaped[is_in_row], record[is_in_row]
    # The fields with escapes: from the delimiter before, or the record's start, to the delimiter after, or its end.
    bounds = np.concatenate(([-1], records.delimiters, [len(data)]))
    after = np.searchsorted(bounds, escaped)
    starts, kept = np.unique(np.maximum(bounds[after - 1] + 1, records.starts[record]), return_index=True)
    ends = np.minimum(bounds[after], records.text_ends(array)[record])[kept]
    is_null = np.zeros(len(starts), bool)
    for null in {text.encode() for text in nulls if signs.escape in text}:
        same = np.flatnonzero(ends - starts == len(null))
        windows = array[starts[same][:, None] + np.arange(len(null))]
        is_null[same[(windows == np.frombuffer(null, np.uint8)).all(axis=1)]] = True
    in_null = mask_ranges(len(data), starts[is_null], ends[is_null])
    in_other = mask_ranges(len(data), starts[~is_null], ends[~is_null])
    to_escape = in_null & (array == ord(signs.escape))
    quotes = (array == ord(quote)) & ~literal[:-1]
    to_escape |= quotes if signs.quote is None else quotes & in_other
    offsets = np.concatenate((np.flatnonzero(to_escape), starts[~is_null], ends[~is_null]))
    values = np.repeat(
        np.frombuffer((signs.escape + quote).encode(), np.uint8), (to_escape.sum(), 2 * (~is_null).sum())
    )
    # At one offset, a quote that closes or opens a field comes before an escape.
    order = np.lexsort((values == ord(signs.escape), offsets))
    protected = np.insert(array, offsets[order], values[order]).tobytes()
    return protected, Signs(signs.delimiter, quote, signs.escape)


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
        raise SchemaError(f"{where}: {same_names_problem(pair)}; {NUMBER_THEM}", column=dict(used)[pair[0]])
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

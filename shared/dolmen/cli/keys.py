"""Keys on the command line: texts, which say values as in predicates."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.arguments import short_repr
from dolmen.errors import InputError, PredicateError
from dolmen.format.values import to_array
from dolmen.predicate.constants import from_text
from dolmen.transactions.row_statements import key_fields


def parse_keys(database: Database, table: str, texts: str, on: Sequence[str] | None) -> pa.Table:
    """Parses keys of one column, with commas between them.

    Args:
        on: the key's column; the primary key by default.

    Raises:
        InputError: the key has several columns, or a text is no value of its column.
    """
    fields = key_fields(database.transaction().entry(table), on)
    if len(fields) != 1:
        raise InputError("--keys takes values of one column; give --keys-file for keys of several")
    return key_rows(pa.schema([(fields[0].name, fields[0].arrow_type)]), [[text.strip()] for text in texts.split(",")])


def key_rows(schema: pa.Schema, rows: Sequence[Sequence[str]]) -> pa.Table:
    """Converts texts to keys: ``7`` is a number only in a column of numbers.

    Args:
        schema: the columns of the key.
        rows: a text for each column.

    Raises:
        InputError: a text is no value of its column.
    """
    columns = zip(*rows, strict=True)
    return pa.table([_array(texts, field) for texts, field in zip(columns, schema, strict=True)], schema=schema)


def _array(texts: Sequence[str], field: pa.Field) -> pa.Array:
    return pa.concat_arrays([_value(text, field) for text in texts])


def _value(text: str, field: pa.Field) -> pa.Array:
    try:
        return to_array([from_text(text, field.type).value], field.type)  # type: ignore[list-item]  # no interval
    except PredicateError as error:
        is_number = pa.types.is_integer(field.type) or pa.types.is_decimal(field.type)
        reason = "" if is_number else f": {error.reason}"
        raise InputError(_misfit(text, field) + reason) from error
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise InputError(_misfit(text, field)) from error


def _misfit(text: str, field: pa.Field) -> str:
    return f"the key {short_repr(text)} does not fit column {field.name!r} of type {field.type}"

"""Defaults of columns as text: read as predicates read a literal in quotes, and written so that they are read again."""

from __future__ import annotations

import pyarrow as pa

from dolmen.base import arguments
from dolmen.errors import InputError, PredicateError
from dolmen.format.schema import Field, is_nested, storable
from dolmen.format.types import short_type
from dolmen.format.values import Json, from_json
from dolmen.predicate.constants import scalar_from_text
from dolmen.predicate.domain import Domain, domain_of
from dolmen.predicate.text import plain_text

_FORMS = {
    Domain.BOOLEAN: "write true or false",
    Domain.BYTES: "write bytes as \\xAA, ASCII as it is",
    Domain.DATE: "write YYYY-MM-DD",
    Domain.TIME: "write HH:MM:SS, with up to 6 digits of fraction",
    Domain.NAIVE: "write YYYY-MM-DD HH:MM:SS, without an offset",
    Domain.ZONED: "write YYYY-MM-DD HH:MM:SS, and an offset such as Z or +02:00",
}


def parse_default(column: pa.Field, text: str) -> pa.Scalar:
    """The value of a default that is written as text.

    Numbers lose nothing, but that those of a column of floats are taken to the nearest float. Timestamps without an
    offset are UTC in a column with a zone.

    Raises:
        InputError: it is no value of the column's type, or the type can have no default.
    """
    stored = storable(column.type)
    if is_nested(stored):
        raise InputError(f"column {column.name!r} of type {short_type(stored)} can have no default but NULL")
    text, domain = arguments.text("default", text), domain_of(stored)
    try:
        return scalar_from_text(text, stored)
    except PredicateError:
        form = _FORMS.get(domain, "write a number that it holds")  # type: ignore[arg-type]  # not nested
        raise InputError(f"{arguments.short_repr(text)} is no {short_type(stored)}: {form}") from None


def default_text(value: Json, column: Field) -> str | None:
    """A default as ``parse_default`` reads it; None if it is NULL."""
    return None if value is None else plain_text(from_json(value, column.arrow_type), column.arrow_type)

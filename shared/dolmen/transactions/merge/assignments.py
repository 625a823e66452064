"""The new values of an update: constants, and SQL expressions over the columns of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from dolmen.base.arguments import short_repr, text
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.rows.write.conform import conform
from dolmen.rows.write.lossless import lossless
from dolmen.rows.write.row_digest import RowDigest
from dolmen.rows.write.rows import as_batches
from dolmen.transactions.merge.clauses import check_updatable
from dolmen.transactions.merge.row_template import Expression, Same

NewValues: TypeAlias = Mapping[str, Any]
"""New values by column: Python values, which are the same in all rows, or ``Expression``."""


@dataclass(frozen=True)
class Assignments:
    """The new values of an update, by column."""

    terms: Mapping[str, Expression | Same]

    @classmethod
    def of(cls, entry: TableEntry, values: NewValues) -> Assignments:
        """Reads the argument ``set`` of an update.

        Raises:
            InputError: it is no mapping, or a value is none of its column's type.
            SchemaError: there is no such column, or it is part of the primary key or orders changes (CDC).
            RowError: NULL for a column that is not nullable.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"set={short_repr(values)} is no mapping of columns to values")
        if not values:
            raise InputError("an update that changes nothing: say which columns change, set={...}")
        terms: dict[str, Expression | Same] = {}
        for name, value in values.items():
            field = entry.schema.field(text("set", name))
            check_updatable(entry, field)
            if field.name in terms:
                raise InputError(f"set names column {field.name!r} twice")
            if isinstance(value, Expression):
                terms[field.name] = Expression(text(f"set: {name}", value.sql))
            else:
                terms[field.name] = Same(_constant(field, value))
        return cls(terms)

    @property
    def texts(self) -> list[str]:
        """The SQL expressions."""
        return [term.sql for term in self.terms.values() if isinstance(term, Expression)]

    def content(self) -> list[Any]:
        """The content for the digest of a request; the order of columns makes no difference."""
        return sorted([name, *_content(name, term)] for name, term in self.terms.items())


def _constant(field: Field, value: Any) -> pa.Array:
    schema = pa.schema([pa.field(field.name, field.arrow_type, field.nullable)])
    try:
        [batch] = conform(as_batches([{field.name: value}], schema), schema, lossless)
    except RowError as error:
        raise RowError(error.reason, column=field.name) from None
    except SchemaError as error:
        told = f"set: value {short_repr(value)} of column {field.name!r}: {error}"
        if isinstance(value, str):
            told += f"; SQL over the row's columns is dolmen.Expression({short_repr(value)})"
        raise InputError(told) from error
    return batch.column(0)


def _content(name: str, term: Expression | Same) -> list[str]:
    if isinstance(term, Expression):
        return ["sql", term.sql]
    digest = RowDigest(pa.schema([(name, term.value.type)]))
    digest.update(pa.record_batch([term.value], [name]))
    return ["value", digest.hexdigest()]

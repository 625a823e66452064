"""Templates of rows: which column of a new row is taken from where, and which is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from dolmen.errors import RowError
from dolmen.format.schema import Schema
from dolmen.rows.scan.expressions import Evaluator, Sides
from dolmen.rows.write.conform import CastPlan, conform_batch, plan_conform
from dolmen.rows.write.lossless import FindCast, lossless
from dolmen.rows.write.validity import check_values
from dolmen.transactions.merge.computed_casts import casts_of


@dataclass(frozen=True)
class SideColumn:
    """A column as one side has it."""

    side: str
    name: str


@dataclass(frozen=True)
class Expression:
    """An SQL expression in DuckDB's dialect over the columns of a row: ``Expression("price * 1.1")``.

    It sees the columns of its row by their names. Subqueries, aggregates and window functions are refused. It needs
    DuckDB (``pip install 'dolmen[sql]'``).

    Args:
        sql: the text.
    """

    sql: str


@dataclass(frozen=True)
class Same:
    """The same value in all rows.

    Args:
        value: an array of this one value, in the column's type.
    """

    value: pa.Array


Term: TypeAlias = SideColumn | Expression | Same
"""Where the values of a column come from."""


class RowTemplate:
    """Makes rows of a table.

    Args:
        schema: the table's.
        terms: by column of the table; columns without one have their default.
        sides: the columns of each side.
        evaluator: for expressions.
        find: how values that are not computed are cast to the table's types.

    Raises:
        InputError: DuckDB refuses an expression.
        SchemaError: values are of another kind than their column.
    """

    def __init__(
        self,
        schema: Schema,
        terms: Mapping[str, Term],
        sides: Mapping[str, pa.Schema],
        evaluator: Evaluator | None,
        find: FindCast = lossless,
    ) -> None:
        self._terms, self._evaluator = dict(terms), evaluator
        self._texts = list(dict.fromkeys(term.sql for term in terms.values() if isinstance(term, Expression)))
        types = dict(zip(self._texts, evaluator.types(self._texts, sides) if evaluator else (), strict=True))
        fields = [pa.field(name, _type(term, sides, types)) for name, term in self._terms.items()]
        finds = {
            name: casts_of(evaluator.literals(term.sql, sides))
            for name, term in self._terms.items()
            if isinstance(term, Expression) and evaluator
        }
        self._plan: CastPlan = plan_conform(pa.schema(fields), schema, find, finds=finds)

    def make(self, sides: Sides) -> pa.RecordBatch:
        """The rows of some sides.

        Raises:
            InputError: an expression fails.
            RowError: a value does not fit its column, is none of its own type (DuckDB has a time 24:00:00), or is NULL
                where none is allowed.
        """
        found = self._evaluator.evaluate(self._texts, sides) if self._evaluator else []
        computed = dict(zip(self._texts, found, strict=True))
        rows = next(iter(sides.values())).num_rows
        arrays = [self._values(term, sides, computed, rows) for term in self._terms.values()]
        try:
            for name, term in self._terms.items():
                if isinstance(term, Expression):
                    check_values(pa.record_batch([computed[term.sql]], [name]))
            return conform_batch(pa.RecordBatch.from_arrays(arrays, names=list(self._terms)), self._plan)
        except RowError as error:  # its row is one of a batch, which tells nobody anything
            raise RowError(error.reason, column=error.column) from None

    @staticmethod
    def _values(term: Term, sides: Sides, computed: Mapping[str, pa.Array], rows: int) -> pa.Array:
        match term:
            case SideColumn(side, name):
                return sides[side][name]
            case Expression(sql):
                return computed[sql]
            case Same(value):
                return value.take(pa.repeat(pa.scalar(0, pa.int32()), rows))


def _type(term: Term, sides: Mapping[str, pa.Schema], types: Mapping[str, pa.DataType]) -> pa.DataType:
    match term:
        case SideColumn(side, name):
            return sides[side].field(name).type
        case Expression(sql):
            return types[sql]
        case Same(value):
            return value.type

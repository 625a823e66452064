"""Templates of rows: which column of a new row is taken from where, and which is computed.

Casts of computed values: those of ``lossless_cast``, and more for literals, whose types are DuckDB's guess.

==========================  ==================================================================================
from                        to
==========================  ==================================================================================
decimal                     float: the nearest one, if it reads as the same number (0.1, not 16777217.0 in a FLOAT)
a literal float             float, decimal, integer: if it reads as the same number (1e3, 0.1e0)
a literal text              any type but a nested one: as predicates read it (``'2026-01-05'``), no digit lost
NULL                        any type
==========================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.errors import PredicateError, RowError, SchemaError
from dolmen.format.schema import Schema
from dolmen.format.types import is_text
from dolmen.predicate.constants import scalar_from_text
from dolmen.predicate.domains import domain_of
from dolmen.rows.scan.engines.expressions import Evaluator, Literals, Sides
from dolmen.rows.write.casts import Cast, FindCast, Misfit, lossless_cast, misfit_error, short_value
from dolmen.rows.write.conform import CastPlan, check_values, conform_batch, plan_conform

NO_LITERALS = Literals(every=False, texts=False, null=False)


def casts_of(literals: Literals) -> FindCast:
    """How the values of an expression are cast, given its literals."""
    return partial(_find, literals)


def _find(literals: Literals, source: pa.DataType, target: pa.DataType) -> Cast | None:
    if literals.every and t.is_floating(source) and _is_number(target) and source != target:
        return _if_same(_as_read, target)
    try:
        return lossless_cast(source, target)
    except SchemaError:
        if t.is_decimal(source) and t.is_floating(target):
            return _if_same(_nearest, target)
        if literals.texts and is_text(source) and domain_of(target) is not None:
            return partial(_parse, target=target)
        if literals.null and t.is_int32(source):
            return partial(_nulls, target=target)
        raise


def _is_number(kind: pa.DataType) -> bool:
    return bool(t.is_floating(kind) or t.is_decimal(kind) or t.is_integer(kind))


def _if_same(make: Callable[[pa.Array, pa.DataType], pa.Array | None], target: pa.DataType) -> Cast:
    """A cast that refuses what ``make`` refuses, or makes another number of."""

    def cast(array: pa.Array) -> pa.Array:
        try:
            made = make(array, target)
        except pa.ArrowInvalid:
            made = None
        if made is None:
            raise _not_same(array, target)
        return made

    return cast


def _nearest(array: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Decimals as floats. Text is the only way on which Arrow makes the nearest float of each."""
    wide = pa.decimal256(76, array.type.scale)
    made = array.cast(pa.string()).cast(target)
    exact = array.cast(wide)
    if made.cast(pa.string()).cast(wide).equals(exact) or made.cast(wide).equals(exact):
        return made
    return None


def _as_read(array: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Floats as the numbers that their shortest text says."""
    text = array.cast(pa.string())
    if not t.is_floating(target):
        return text.cast(pa.decimal256(76, target.scale if t.is_decimal(target) else 0)).cast(target)
    made = text.cast(target)
    same = made.cast(pa.string()).cast(array.type)
    return made if pc.all(pc.or_(pc.equal(same, array), pc.is_nan(array))).as_py() is not False else None


def _parse(array: pa.Array, target: pa.DataType) -> pa.Array:
    coded = array.dictionary_encode()
    texts = coded.dictionary.to_pylist()
    try:
        values = pa.array([scalar_from_text(text, target) for text in texts], target)
    except PredicateError:
        raise Misfit(f"{short_value(array[0].as_py())} is no {target}" if len(array) == 1 else "") from None
    if t.is_floating(target) and not all(map(_says, texts, values.cast(pa.string()).to_pylist())):
        raise _not_same(array, target)
    return values.take(coded.indices)


def _says(text: str, shortest: str) -> bool:
    """Whether a text says the number that the shortest text of a float says."""
    meant = Decimal(text)
    return meant.is_nan() or meant == Decimal(shortest)


def _nulls(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The NULLs of DuckDB 1, which are integers."""
    if array.null_count < len(array):
        raise misfit_error(array, target)
    return pa.nulls(len(array), target)


def _not_same(array: pa.Array, target: pa.DataType) -> Misfit:
    misfit = misfit_error(array, target)
    return Misfit(f"{misfit}: round it") if str(misfit) else misfit


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
        find: FindCast = lossless_cast,
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

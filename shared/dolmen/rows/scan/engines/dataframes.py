"""Rows as data frames of pandas and Polars, with every value as it is stored, or an error; scans as lazy frames.

Polars passes the condition on a lazy frame as a typed expression, which can be written as JSON. A closed list of forms
is understood. Polars itself applies the whole condition to the rows, so that other forms only cost more reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from dolmen.base import pc
from dolmen.base.late_imports import optional
from dolmen.errors import InputError, PredicateError, short_repr
from dolmen.format.schema import Field, Schema, is_nested
from dolmen.format.types import type_of
from dolmen.predicate import bind
from dolmen.predicate.ast import Constant, Predicate
from dolmen.predicate.bind import ConditionReader, Connective, UnsupportedConditionError
from dolmen.predicate.constants import NULL, Value
from dolmen.predicate.domains import Domain, Op, domain_of, nearest_float32

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


_NOT_A_TIME = -(2**63)
_COMPARISONS: dict[str, Op] = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_BETWEEN: dict[str, tuple[Op, Op]] = {
    "Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<"),
}  # fmt: skip


def to_pandas(rows: pa.Table, **options: Any) -> pd.DataFrame:
    """The rows as a pandas frame, from which the same rows can be made again.

    Integers with NULLs become ``Int64`` and the like, where Arrow would make floats; floats with NaN ``Float64``, which
    distinguishes NaN from NULL; nested values with NULL numbers lists and dicts of Python. ``options``: for
    ``pyarrow.Table.to_pandas``, which then makes the whole frame. Raises InputError: a type, or a date or time, that
    Python or pandas does not have; its column is named.
    """
    pandas = optional("pandas", "pandas")
    if options:
        return rows.to_pandas(**options)
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            columns[name] = _series(column, pandas)
        except pa.ArrowNotImplementedError as error:
            raise InputError(
                f"column {name!r}: pandas does not take {column.type}; to_arrow() has all types"
            ) from error
        except (OverflowError, ValueError) as error:
            raise InputError(
                f"column {name!r} holds dates or times outside of Python's years 1 to 9999 ({error}): "
                "to_pandas(date_as_object=False) makes datetime64 of dates, to_arrow() and to_polars() hold all of them"
            ) from error
    frame = pandas.DataFrame(dict(enumerate(columns.values())), index=pandas.RangeIndex(rows.num_rows), copy=False)
    frame.columns = list(columns)
    return frame


def _series(column: pa.ChunkedArray, pandas: Any) -> Any:
    t, arrow_type = pa.types, column.type
    if t.is_integer(arrow_type) and column.null_count:
        return _nullable_series(column, pandas)
    if t.is_floating(arrow_type) and arrow_type != pa.float16() and pc.any(pc.is_nan(column)).as_py():
        return _nullable_series(column, pandas)
    if t.is_nested(arrow_type) and any(map(_has_null_numbers, column.chunks)):
        return pandas.Series(column.to_pylist(), dtype=object)
    if t.is_timestamp(arrow_type) and pc.any(pc.equal(column.cast(pa.int64()), _NOT_A_TIME)).as_py():
        raise ValueError("the least timestamp is pandas' NaT")
    return column.to_pandas()


def _nullable_series(column: pa.ChunkedArray, pandas: Any) -> Any:
    """A series of the nullable type of pandas: Int8, UInt64, Float32."""
    kind = "Float" if pa.types.is_floating(column.type) else "UInt" if str(column.type)[0] == "u" else "Int"
    dtype = getattr(pandas, f"{kind}{column.type.bit_width}Dtype")()
    return pandas.Series(dtype.__from_arrow__(column))


def _has_null_numbers(array: pa.Array) -> bool:
    """True if numbers inside nested values are NULL, which Arrow's frames make NaN."""
    t = pa.types
    if t.is_integer(array.type) or t.is_floating(array.type):
        return bool(array.null_count)
    if t.is_struct(array.type):
        return any(_has_null_numbers(child) for child in array.flatten())
    if t.is_map(array.type):
        return _has_null_numbers(array.keys) or _has_null_numbers(array.items)
    return isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)) and _has_null_numbers(
        array.flatten()
    )


def to_dicts(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python objects. Raises InputError for a date or time that Python does not have."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.to_pylist()
        except (OverflowError, ValueError) as error:
            raise InputError(
                f"column {name!r} holds a date or time outside of Python's years 1 to 9999: get_many and to_arrow "
                "return it, or leave the column out (columns=[...])"
            ) from error
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def to_polars(rows: pa.Table) -> pl.DataFrame:
    """The rows as a Polars frame. Raises InputError for a type that Polars does not have."""
    polars = optional("polars", "polars")
    try:
        frame: pl.DataFrame = polars.from_arrow(rows)
    except (polars.exceptions.PolarsError, TypeError, ValueError) as error:
        raise InputError(
            f"Polars does not take {rows.schema.to_string()}: {error}; to_arrow() has all types"
        ) from error
    return frame


_ReadLiteral: TypeAlias = Callable[[Any, Field], Any]


class NarrowScan(Protocol):
    """Makes a scan of some columns, of the rows that fulfil another condition, up to a limit."""

    def __call__(self, columns: Sequence[str], where: Predicate | None, limit: int | None = None) -> RowSource: ...


def lazy_frame(schema: pa.Schema, stored: Schema, narrow: NarrowScan, *, filters: bool) -> pl.LazyFrame:
    """A lazy frame that scans whenever it is collected; with ``filters`` conditions may be added to the scan."""
    plugins = optional("polars.io.plugins", "polars")

    def read(
        columns: list[str] | None, condition: pl.Expr | None, rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        requested = list(schema.names) if columns is None else columns
        read_too = [] if condition is None else [n for n in condition.meta.root_names() if n not in requested]
        # Rows are counted before the condition: the scan can't apply both.
        where = None if condition is None or rows is not None or not filters else predicate_of(condition, stored)
        part = narrow([*requested, *read_too], where, rows)
        is_empty = True
        for batch in part.to_batches():
            frame = to_polars(pa.table(batch))
            is_empty = False
            yield (frame if condition is None else frame.filter(condition)).select(requested)
        if is_empty:
            yield to_polars(part.schema.empty_table()).select(requested)

    empty_frame = to_polars(schema.empty_table())
    frame: pl.LazyFrame = plugins.register_io_source(read, schema=empty_frame.schema, is_pure=True)
    return frame


def predicate_of(condition: pl.Expr, stored: Schema) -> Predicate | None:
    """The predicate of the parts of a condition that are understood; None if none is."""
    polars = optional("polars", "polars")
    try:
        tree = _tree(condition)
    except (polars.exceptions.PolarsError, ValueError):  # functions of Python, for one, can't be written
        return None
    return _ExpressionReader(stored).read(tree).predicate


def _tree(condition: pl.Expr) -> Any:
    """The nodes of an expression. Chains of AND are as deep as they are long, too deep for Python's decoder."""
    text: str = condition.meta.serialize(format="json")
    try:
        return json.loads(text)
    except RecursionError:
        pass
    top: list[Any] = []
    open_nodes: list[Any] = [top]
    name: Any = None
    for word in (found[0] for found in _JSON_WORD.finditer(text)):
        if word in "}]":
            open_nodes.pop()
            continue
        value: Any = {} if word == "{" else [] if word == "[" else json.loads(word)
        if isinstance(node := open_nodes[-1], list):
            node.append(value)
        elif name is None:
            name = value
            continue
        else:
            node[name], name = value, None
        if word in "{[":
            open_nodes.append(value)
    return top[0]


_JSON_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\]:,"]+')


class _ExpressionReader(ConditionReader[Any]):
    """Reads the nodes of Polars's expressions, as JSON."""

    node_errors = (InputError, KeyError, TypeError, ValueError, pa.ArrowException)  # nodes may have an unknown shape

    def __init__(self, stored: Schema) -> None:
        self._stored = stored

    def connective(self, node: Any) -> tuple[Connective, Sequence[Any]] | None:
        match node:
            case {"BinaryExpr": {"op": "And" | "Or" as op, "left": left, "right": right}}:
                return ("and" if op == "And" else "or"), [left, right]
            case {"Function": {"function": {"Boolean": "Not"}, "input": [operand]}}:
                return "not", [operand]
        return None

    def atom(self, node: Any) -> Predicate:
        match node:
            case {"Column": _}:
                return bind.truth(self._field(node))
            case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _COMPARISONS:
                is_left = "Column" in left
                field = self._field(left if is_left else right)
                operands = (field, self._value(right, field)) if is_left else (self._value(left, field), field)
                return bind.compare(_COMPARISONS[op], *operands)
            case {"Function": {"function": {"Boolean": name}, "input": inputs}}:
                return self._function(name, inputs)
        raise UnsupportedConditionError

    def _function(self, name: Any, inputs: list[Any]) -> Predicate:
        field = self._field(inputs[0])
        match name:
            case "IsNull":
                return bind.is_null(field)
            case "IsNotNull":
                return bind.negation(bind.is_null(field))
            case "IsNan":
                return bind.compare("=", field, Value(domain_of(field.arrow_type), float("nan")))
            case {"IsBetween": {"closed": closed}}:
                least, greatest = _BETWEEN[closed]
                low, high = (self._value(bound, field) for bound in inputs[1:])
                return bind.conjunction([bind.compare(least, field, low), bind.compare(greatest, field, high)])
            case {"IsIn": {"nulls_equal": False}}:
                return bind.one_of(field, _members(inputs[1], field))
        raise UnsupportedConditionError

    def _field(self, node: Any) -> Field:
        field = self._stored.field(node["Column"])
        if is_nested(field.arrow_type):
            raise UnsupportedConditionError
        return field

    def _value(self, node: Any, field: Field) -> Value:
        """A literal of the column's own type."""
        ((kind, value),) = node["Literal"]["Scalar"].items()
        column_type, domain = type_of(field.arrow_type), domain_of(field.arrow_type)
        if column_type is None or domain is None or column_type.polars != kind:
            raise UnsupportedConditionError
        return Value(domain, LITERALS[kind](value, field))


def read_expression(condition: pl.Expr, schema: Schema) -> Predicate:
    """The predicate that is TRUE for the rows that Polars keeps. Raises PredicateError, which names what has none."""
    polars = optional("polars", "polars")
    try:
        return _UserExpressionReader(schema).read_whole(_tree(condition))
    except polars.exceptions.PolarsError as error:
        raise PredicateError(f"{short_repr(str(condition))} can't be read: {error}") from error


class _UserExpressionReader(_ExpressionReader):
    """Reads the nodes of Polars's expressions that users write: their literals may have no type yet."""

    def atom(self, node: Any) -> Predicate:
        match node:
            case {"Literal": {"Scalar": {"Boolean": bool() as value}}}:
                return Constant(value)
            case {"BinaryExpr": {"op": "EqValidity" | "NotEqValidity" as op, "left": left, "right": right}}:
                field = self._field(left)
                differ = bind.distinct_from(field, self._value(right, field))
                return differ if op == "NotEqValidity" else bind.negation(differ)
            case {"BinaryExpr": {"op": op, "left": {"Column": _} as left, "right": {"Column": _} as right}}:
                field, other = self._field(left), self._field(right)
                if op not in _COMPARISONS or field.arrow_type != other.arrow_type:
                    raise UnsupportedConditionError
                return bind.compare(_COMPARISONS[op], field, other)
            case {"Function": {"function": {"StringExpr": "StartsWith" | "EndsWith" as name}, "input": [column, text]}}:
                pattern = Value(Domain.TEXT, text["Literal"]["Scalar"]["String"])
                return bind.text_match(name.lower(), self._field(column), pattern)
        return super().atom(node)

    def show(self, node: Any) -> str:
        polars = optional("polars", "polars")
        try:
            return str(polars.Expr.deserialize(BytesIO(json.dumps(node).encode()), format="json"))
        except (polars.exceptions.PolarsError, RecursionError):  # too deep
            return "the expression"

    def _value(self, node: Any, field: Field) -> Value:
        """A literal that Polars compares with a column as dolmen does."""
        kind = field.arrow_type
        match node:
            case {"Literal": {"Scalar": {"Null": _}}}:
                return NULL
            case {"Literal": {"Dyn": {"Int": int() as number}}} if domain_of(kind) in _NUMBERS:
                return Value(Domain.EXACT, number)
            case {"Literal": {"Dyn": {"Float": int() | float() as number}}} if pa.types.is_float32(kind):
                return Value(Domain.FLOAT32, nearest_float32(float(number)))
            case {"Literal": {"Dyn": {"Float": int() | float() as number}}}:
                if pa.types.is_decimal(kind) or domain_of(kind) not in _NUMBERS:
                    raise UnsupportedConditionError
                return Value(Domain.FLOAT64, float(number))
            case {"Literal": {"Scalar": scalar}} if pa.types.is_integer(kind):
                ((name, number),) = scalar.items()
                if _INTEGER.fullmatch(name):
                    return Value(Domain.EXACT, number)
        return super()._value(node, field)


_NUMBERS = (Domain.EXACT, Domain.FLOAT32, Domain.FLOAT64)
_INTEGER = re.compile("U?Int(8|16|32|64)")


def _members(node: Any, field: Field) -> list[Value]:
    """The values of a list, which is an Arrow stream of one column."""
    with pa.ipc.open_stream(bytes(node["Literal"]["Scalar"]["List"])) as stream:
        column = stream.read_all().column(0)
    texts = pa.types.is_string_view(column.type) or pa.types.is_large_string(column.type)
    column = column.cast(pa.string()) if texts else column
    exact = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
    if column.type != field.arrow_type or not exact or column.null_count:
        raise UnsupportedConditionError
    domain = domain_of(column.type)
    assert domain is not None
    return [Value(domain, value) for value in column.to_pylist()]


def _literal_reader(python_type: type) -> _ReadLiteral:
    def read(value: Any, field: Field) -> Any:
        if type(value) is not python_type:
            raise UnsupportedConditionError
        return value

    return read


def _decimal(value: Any, field: Field) -> Decimal:
    unscaled, _, scale = value
    return Decimal(unscaled).scaleb(-scale)


def _number(value: Any, field: Field) -> float:
    if not isinstance(value, (int, float)):
        raise UnsupportedConditionError
    return float(value)


def _time(value: Any, field: Field) -> int:
    if type(value) is not int or value % 1000:  # nanoseconds
        raise UnsupportedConditionError
    return value // 1000


def _timestamp(value: Any, field: Field) -> Any:
    number, unit, zone = value
    if unit != "Microseconds" or (zone is None) != (field.arrow_type.tz is None):
        raise UnsupportedConditionError
    return number


LITERALS: dict[str, _ReadLiteral] = {
    "Boolean": _literal_reader(bool),
    **{f"{sign}Int{bits}": _literal_reader(int) for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "Decimal": _decimal,
    "Float64": _number,
    "Float32": lambda value, field: nearest_float32(_number(value, field)),
    "String": _literal_reader(str),
    "Binary": lambda value, field: bytes(value),
    "Date": _literal_reader(int),
    "Time": _time,
    "Datetime": _timestamp,
}
"""By Polars's name of a type, reads the plain value of a literal."""


class RowSource(Protocol):
    """A ``Scan``, into which DuckDB and Polars push columns and conditions."""

    schema: pa.Schema

    def to_batches(self) -> Iterator[pa.RecordBatch]: ...

    def explain(self) -> object: ...

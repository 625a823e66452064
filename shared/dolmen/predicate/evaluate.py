"""Evaluates a predicate on Arrow columns: whole arrays, with one or two kernels for a comparison with a literal.

Columns have the types of their file, which may be narrower than the types the predicate was bound to. If possible, the
literal is converted to the file's type: it converts exactly, or the comparison is decided without reading values.
Otherwise the column is cast to the wider type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.units import DAY_US, HOUR_US, MINUTE_US
from dolmen.errors import Error, PredicateError, SchemaError
from dolmen.format.column_history import field_values
from dolmen.format.types import one_array, to_array, to_mask, to_scalar
from dolmen.predicate import ast, domains, like
from dolmen.predicate.ast import Predicate, Term
from dolmen.predicate.constants import Interval, civil_from_days, days_from_months
from dolmen.predicate.domains import Domain, Function, Op, domain_of, kernel
from dolmen.predicate.prune import judge

_ARROWS_DAYS = (-719_162, 2_932_897)  # the days of the years 1 to 9999, for which Arrow's calendar is correct


def compute(function: Function, args: Sequence[Any], target: pa.DataType) -> Any:
    """The values of a function of arrays, and scalars for literals; ``target`` is ``result_of`` their types."""
    if function in ("lower", "upper"):
        return like.lower(args[0]) if function == "lower" else pc.utf8_upper(like.repair_utf8(args[0]))
    if function in domains.PARTS:
        return _part(function, args[0])
    if function == "length":
        return pc.utf8_length(like.repair_utf8(args[0])).cast(target)
    if function == "coalesce":
        return pc.coalesce(*(_in_type(arg, target) for arg in args))
    if function == "add_interval":
        return _add_interval(args[0], Interval(*(arg.as_py() for arg in args[1:])), target)
    if function == "cast":
        return _cast_array(args[0], target)
    if function == "%":
        return _modulo(*args)
    if pa.types.is_floating(target):
        floats = [to_floats(arg, target) for arg in args]
        return kernel(function)(*floats)
    if len(args) == 1:
        return kernel(function)(args[0].cast(_working_type(target))).cast(target)
    if pa.types.is_integer(target) or _stays_small(function, args):
        return kernel(function)(*(arg.cast(pa.int64()) for arg in args))
    return kernel(function)(*map(_decimal256, args)).cast(target)


def _in_type(arg: Any, target: pa.DataType) -> Any:
    if pa.types.is_floating(target):
        return to_floats(arg, target)
    if pa.types.is_date32(arg.type) and pa.types.is_timestamp(target):
        return arg.cast(target) if isinstance(arg, pa.Scalar) else _common(arg, arg, Domain.NAIVE)
    return arg if arg.type == target else arg.cast(target)


def _add_interval(array: Any, span: Interval, target: pa.DataType) -> pa.Array:
    """Dates, from their midnight on, and timestamps after an interval: NULL outside the range of timestamps."""
    array = one_array(array)
    of_dates = pa.types.is_date32(array.type)
    raw = array.view(pa.int32() if of_dates else pa.int64()).cast(pa.int64())
    values = raw.fill_null(0).to_numpy(zero_copy_only=False)
    days, time = (values, 0 * values) if of_dates else np.divmod(values, DAY_US)
    if span.months:
        year, month, day = civil_from_days(days)
        years, month0 = np.divmod(month - 1 + span.months, 12)
        first, following = (days_from_months(12 * (year + years) + month0 + more) for more in (0, 1))
        days = np.minimum(first + day, following) - 1
    more_days, us = divmod(span.us, DAY_US)
    days, time = days + span.days + more_days + (time + us) // DAY_US, (time + us) % DAY_US
    (first, least), (last, greatest) = (divmod(end, DAY_US) for end in (-(2**63), 2**63 - 1))
    before = (days < first) | ((days == first) & (time < least))
    beyond = (days > last) | ((days == last) & (time > greatest))
    mask = to_mask(raw.is_null()) | before | beyond
    return pa.array(days * DAY_US + time, pa.int64(), mask=mask).view(target)


def _stays_small(function: Function, args: Sequence[Any]) -> bool:
    """Whether the results for these integers fit 64 bits, though results for other values of their types may not."""
    if not all(pa.types.is_integer(arg.type) for arg in args):
        return False
    bounds = []
    for arg in args:
        ends = [arg.as_py()] if isinstance(arg, pa.Scalar) else list(pc.min_max(arg).as_py().values())
        bounds.append(max(abs(end or 0) for end in ends))
    most = bounds[0] * bounds[1] if function == "*" else sum(bounds)
    return bool(max(most, *bounds) < 2**63)


def _working_type(target: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_integer(target) else pa.decimal256(target.precision, target.scale)


def _decimal256(array: Any) -> Any:
    return array.cast(pa.decimal256(domains.precision_of(array.type), domains.scale_of(array.type)))


def to_floats(array: Any, target: pa.DataType) -> Any:
    if array.type == target:
        return array
    if pa.types.is_decimal(array.type):
        return array.cast(pa.string()).cast(target)  # Arrow's direct cast rounds more than once
    return array.cast(target, safe=False) if isinstance(array, pa.Scalar) else pc.cast(array, target, safe=False)


def _modulo(x: Any, y: Any) -> Any:
    """The remainder, with the dividend's sign; NULL where the divisor is 0."""
    x, y = x.cast(pa.int64()), y.cast(pa.int64())
    y = pc.if_else(pc.equal(y, 0), pa.scalar(None, pa.int64()), y)
    y = pc.if_else(pc.equal(y, -1), pa.scalar(1, pa.int64()), y)  # the least integer has no quotient by -1
    return pc.subtract(x, pc.multiply(pc.divide(x, y), y))


def _cast_array(array: Any, target: pa.DataType) -> Any:
    to = domain_of(target)
    if to in (Domain.FLOAT32, Domain.FLOAT64):
        return to_floats(array, target)
    if to is not Domain.EXACT:
        return array.cast(target)
    own, cells = domains.grid(array.type, Domain.EXACT), domains.grid(target, Domain.EXACT)
    if own.unit == cells.unit == 1 and pa.types.is_integer(array.type) and pa.types.is_integer(target):
        least, greatest = max(own.least, cells.least), min(own.greatest, cells.greatest)
        if (least, greatest) != (own.least, own.greatest):
            fits = pc.and_(
                pc.greater_equal(array, pa.scalar(least, array.type)),
                pc.less_equal(array, pa.scalar(greatest, array.type)),
            )
            array = pc.if_else(fits, array, pa.scalar(None, array.type))
        return array.cast(target)
    digits = len(str(max(-own.least, own.greatest))) - domains.scale_of(array.type) + domains.scale_of(target)
    wide = _decimal256(array).cast(pa.decimal256(max(digits, 1), domains.scale_of(target)))
    if own.least * own.unit < cells.least * cells.unit or own.greatest * own.unit > cells.greatest * cells.unit:
        most = 10**wide.type.precision - 1
        least, greatest = (
            pa.scalar(domains.plain_of(raw, wide.type), wide.type)
            for raw in (max(cells.least, -most), min(cells.greatest, most))
        )
        fits = pc.and_(pc.greater_equal(wide, least), pc.less_equal(wide, greatest))
        wide = pc.if_else(fits, wide, pa.scalar(None, wide.type))
    return wide.cast(target)


def _part(function: str, array: Any) -> pa.Array:
    """A part of dates and times in the proleptic Gregorian calendar, in UTC, over the whole stored range."""
    array = one_array(array)
    of_dates = pa.types.is_date32(array.type)
    ends = pc.min_max(array.view(pa.int32() if of_dates else pa.int64())).as_py()
    step = 1 if of_dates else DAY_US
    if ends["min"] is None or _ARROWS_DAYS[0] * step <= ends["min"] <= ends["max"] < _ARROWS_DAYS[1] * step:
        plain = array if of_dates else array.view(pa.int64()).view(pa.timestamp("us"))
        return getattr(pc, function)(plain).cast(pa.int64())
    raw = array.view(pa.int32() if of_dates else pa.int64()).cast(pa.int64())
    values = raw.fill_null(0).to_numpy(zero_copy_only=False)
    if function in ("hour", "minute"):
        step = HOUR_US if function == "hour" else MINUTE_US
        part = values % DAY_US // step % (24 if function == "hour" else 60)
    else:
        part = civil_from_days(values if of_dates else values // DAY_US)[("year", "month", "day").index(function)]
    return pa.array(part, pa.int64(), mask=to_mask(raw.is_null()))


Columns: TypeAlias = Mapping[int, pa.Array | pa.ChunkedArray]

_OPPOSITE: dict[Op, Op] = {">": "<=", ">=": "<"}

_FEW = 16  # up to this number of members of an IN, comparing with each is faster than hashing

_NULL, _TRUE, _FALSE = pa.Array.from_buffers(pa.bool_(), 3, [pa.py_buffer(b"\x06"), pa.py_buffer(b"\x02")])
"""Not made by ``pa.scalar``, which would import pandas each time that dolmen is imported."""


def evaluate(p: Predicate, columns: Columns, length: int) -> pa.BooleanArray:
    """TRUE, FALSE or NULL (unknown) for every row.

    ``columns``: by id, the columns that the predicate names, in any type that widens to the bound one. Dictionaries and
    arrays of type null are allowed. For a field of a struct either its own values or the struct, whose type has ids.
    Raises SchemaError: a column's type does not support the predicate's comparison.
    """
    result = _evaluate(p, columns)
    if isinstance(result, pa.Scalar):
        return pa.repeat(result, length)
    result = one_array(result)
    assert len(result) == length, f"{len(result)} rows in columns that should have {length}"
    return result


def matches(p: Predicate, columns: Columns, length: int) -> pa.BooleanArray:
    """A mask of the rows for which the predicate is TRUE: WHERE keeps them, DELETE removes them."""
    mask = evaluate(p, columns, length)
    return mask.fill_null(False) if mask.null_count else mask


def _evaluate(p: Predicate, columns: Columns) -> Any:
    match p:
        case ast.Compare():
            return _compare(p, columns)
        case ast.And():
            return _fold(pc.and_kleene, _FALSE, p.args, columns)
        case ast.Or():
            return _fold(pc.or_kleene, _TRUE, p.args, columns)
        case ast.Not():
            return pc.invert(_evaluate(p.arg, columns))
        case ast.In():
            return _in(p, columns)
        case ast.IsNull():
            return pc.is_null(values_of(p.column, columns))
        case ast.Like():
            return like.match(_values_in(Domain.TEXT, p.column, columns), p.pattern, p.escape, p.ignore_case)
        case ast.Truth():
            return _values_in(Domain.BOOLEAN, p.column, columns)
        case ast.Constant():
            return pa.scalar(p.value, pa.bool_())


def _fold(kernel: Any, final: pa.Scalar, args: tuple[Predicate, ...], columns: Columns) -> Any:
    result = _evaluate(args[0], columns)
    for arg in args[1:]:
        if isinstance(result, pa.Scalar) and result == final:
            break
        result = kernel(result, _evaluate(arg, columns))
    return result


def values_of(column: Term, columns: Columns) -> Any:
    """The values of a column or call, without dictionary encoding."""
    if isinstance(column, ast.Call):
        return _call_values(column, columns)
    array = columns[column.id] if column.id in columns else _inside(column, columns)
    if pa.types.is_dictionary(array.type):
        return array.cast(array.type.value_type)
    return array.cast(column.arrow_type) if pa.types.is_null(array.type) else array


def _inside(column: ast.Column, columns: Columns) -> Any:
    assert column.path, f"column {column.id} is missing"
    return field_values(columns[column.column_id], column.path)


def with_fields(columns: Columns, used: Iterable[ast.Column]) -> dict[int, Any]:
    """The columns, and by their own ids the fields of structs among ``used``. Columns of files differ in these ids."""
    missing = {each for each in used if each.id not in columns}
    return {**columns, **{each.id: _inside(each, columns) for each in missing}}


def _call_values(call: ast.Call, columns: Columns) -> Any:
    """The values of a call. Their type depends on the columns' types in this file, not on the bound types."""
    if call.function == "list_contains":
        return _list_contains(call, columns)
    args = [_argument(arg, columns) for arg in call.args]
    try:
        target = domains.result_of(call.function, [arg.type for arg in args], call.arrow_type)
    except PredicateError as error:
        raise SchemaError(f"{call.function}, bound to {call.type}: {error.reason}") from error
    return compute(call.function, args, target)


def _list_contains(call: ast.Call, columns: Columns) -> pa.BooleanArray:
    lists, literal = call.args
    assert isinstance(lists, ast.ListColumn)
    assert isinstance(literal, ast.Literal)
    array = one_array(values_of(lists, columns))
    if not hasattr(array.type, "value_field"):
        raise _other_type(lists, array)
    elements = pc.list_flatten(array)  # leaves out what is in lists that are NULL
    rows = np.repeat(np.arange(len(array)), pc.list_value_length(array).fill_null(0))
    is_equal = ast.Compare("=", ast.Column(lists.id, lists.type), literal)
    found = np.zeros(len(array), bool)
    found[rows[to_mask(matches(is_equal, {lists.id: elements}, len(elements)))]] = True
    return pa.array(found, mask=to_mask(array.is_null()))


def _argument(arg: Term | ast.Literal, columns: Columns) -> Any:
    if isinstance(arg, ast.Literal):
        return to_scalar(arg.plain, arg.arrow_type)
    array = values_of(arg, columns)
    domain, own = _domain(arg, array, array.type), arg.arrow_type
    if array.type == own:
        return array
    if domain.is_float:
        return _floats(array, domain)
    if domain is Domain.EXACT:
        if _holds(own, array.type):
            return array.cast(own)
        return array if _holds(array.type, own) else array.cast(_exact_common(array.type, own))
    return _common(array, array, domain)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    a, b = domains.grid(wide, Domain.EXACT), domains.grid(narrow, Domain.EXACT)
    in_steps = (b.unit / a.unit).denominator == 1
    return in_steps and a.least * a.unit <= b.least * b.unit and a.greatest * a.unit >= b.greatest * b.unit


def _values_in(domain: Domain, column: Term, columns: Columns) -> Any:
    """The values of a column that must have this domain in the file."""
    array = values_of(column, columns)
    if domain_of(array.type) is not domain:
        raise _other_type(column, array)
    return array


def _other_type(column: Term, array: Any) -> SchemaError:
    ids = ", ".join(str(each.id) for each in ast.columns_in(column))
    return SchemaError(f"column {ids}, bound as {column.type}, is {array.type} in this file")


def _domain(column: Term, array: Any, other: pa.DataType) -> Domain:
    """The domain of a comparison: at least as wide as the column's bound type and its type in the file."""
    domain = domains.join(domain_of(column.arrow_type), domain_of(array.type), domain_of(other))
    if domain is None:
        raise _other_type(column, array)
    return domain


def _compare(p: ast.Compare, columns: Columns) -> Any:
    left = values_of(p.left, columns)
    if not isinstance(p.right, ast.Literal):
        right = values_of(p.right, columns)
        domain = domains.join(_domain(p.left, left, left.type), _domain(p.right, right, right.type))
        if domain is None:
            raise SchemaError(f"columns of types {left.type} and {right.type} do not compare")
        return _compare_columns(p.op, _common(left, right, domain), _common(right, left, domain), domain)
    domain = _domain(p.left, left, p.right.arrow_type)
    value = domains.convert(p.right.plain, domain_of(p.right.arrow_type), domain)
    if domain.is_float:
        return _compare_float(p.op, left, value, domain)
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        array = _plain_bytes(left)
        return kernel(p.op)(array, pa.scalar(value, array.type))
    return _compare_exact(p.op, left, value, domain)


def _compare_exact(op: Op, array: Any, value: Any, domain: Domain) -> Any:
    fitted = domains.fit(op, value, domains.grid(array.type, domain))
    if isinstance(fitted, bool):
        return _constant_unless_null(array, fitted)
    op, raw = fitted
    return kernel(op)(array, to_scalar(domains.plain_of(raw, array.type), array.type))


def _compare_float(op: Op, array: Any, value: float, domain: Domain) -> Any:
    """Compares with a float. Arrow's kernels are FALSE for NaN, which is the greatest value: invert the opposite."""
    if not pa.types.is_floating(array.type):
        return _compare_rounded(op, array, value, domain)
    array = _floats(array, domain)
    if math.isnan(value):
        if op in ("<=", ">"):
            return _constant_unless_null(array, op == "<=")
        is_nan = pc.is_nan(array)
        return is_nan if op in ("=", ">=") else pc.invert(is_nan)
    scalar = pa.scalar(value, array.type)
    if op in _OPPOSITE:
        return pc.invert(kernel(_OPPOSITE[op])(array, scalar))
    return kernel(op)(array, scalar)


def _compare_rounded(op: Op, array: Any, value: float, domain: Domain) -> Any:
    """Compares integers and decimals with a float, as their nearest floats but without a cast."""
    if op in ("=", "<>"):
        equal = pc.and_kleene(*(_compare_rounded(side, array, value, domain) for side in (">=", "<=")))
        return equal if op == "=" else pc.invert(equal)
    fitted = domains.fit_float(op, value, domain)
    if isinstance(fitted, bool):
        return _constant_unless_null(array, fitted)
    return _compare_exact(fitted[0], array, fitted[1], Domain.EXACT)


def _compare_columns(op: Op, left: Any, right: Any, domain: Domain) -> Any:
    if not domain.is_float:
        return kernel(op)(left, right)
    if op in (">", ">="):
        return _compare_columns("<" if op == ">" else "<=", right, left, domain)
    if op in ("<>", "<="):
        return pc.invert(_compare_columns("=", left, right, domain) if op == "<>" else _less(right, left))
    return _less(left, right) if op == "<" else pc.or_(
        pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right))
    )  # fmt: skip


def _less(left: Any, right: Any) -> Any:
    return pc.or_(pc.less(left, right), pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))


def _common(array: Any, other: Any, domain: Domain) -> Any:
    """A column in a type with the values of both columns."""
    if domain.is_float:
        return _floats(array, domain)
    if domain is Domain.EXACT:
        return array if array.type == other.type else array.cast(_exact_common(array.type, other.type))
    if domain is Domain.NAIVE and pa.types.is_date32(array.type):
        # The range of dates is wider than that of timestamps: dates beyond it are clipped to its first or last day.
        last = (2**63 - 1) // DAY_US
        days = pc.min_element_wise(array.cast(pa.int32()), pa.scalar(last, pa.int32()), skip_nulls=False)
        days = pc.max_element_wise(days, pa.scalar(-last, pa.int32()), skip_nulls=False)
        return days.cast(pa.date32()).cast(pa.timestamp("us"))
    return _plain_bytes(array)


def _exact_common(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(a) and pa.types.is_integer(b) and not {a, b} & {pa.uint64()}:
        return pa.int64()
    scale = max(domains.scale_of(a), domains.scale_of(b))
    precision = scale + max(
        domains.precision_of(a) - domains.scale_of(a), domains.precision_of(b) - domains.scale_of(b)
    )
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _floats(array: Any, domain: Domain) -> Any:
    return to_floats(array, pa.float64() if domain is Domain.FLOAT64 else pa.float32())


def _plain_bytes(array: Any) -> Any:
    return array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _constant_unless_null(array: Any, value: bool) -> Any:
    if array.null_count == 0:
        return _TRUE if value else _FALSE
    return pc.or_kleene(pc.is_valid(array), _NULL) if value else pc.and_kleene(pc.is_null(array), _NULL)


def _in(p: ast.In, columns: Columns) -> Any:
    array = values_of(p.column, columns)
    domain = _domain(p.column, array, p.arrow_type)
    if domain.is_float and not (pa.types.is_integer(array.type) and _all_exact(p, domain)):
        array = _floats(array, domain)
    elif domain is Domain.BYTES:
        array = _plain_bytes(array)
    values = p.prepared.get((array.type, domain))
    if values is None:
        values = p.prepared[array.type, domain] = _value_set(p, array.type, domain)
    if not len(values):
        result = _constant_unless_null(array, False)
    elif len(values) <= _FEW:
        result = reduce(pc.or_, (pc.equal(array, value) for value in values))
    else:
        result = pc.is_in(array, value_set=values)
        if array.null_count:
            result = pc.if_else(pc.is_valid(array), result, _NULL)
    if pa.types.is_floating(array.type) and p.plain[-1] != p.plain[-1]:
        result = pc.or_(result, pc.is_nan(array))
    return pc.or_kleene(result, _NULL) if p.null else result


def equal_values(term: Term, literal: ast.Literal, arrow_type: pa.DataType) -> pa.Array | None:
    """The value of this type that equals a literal: an array of one value, or an empty one if there is none.

    None if equal values of the type can differ in their bytes, as floats can.
    """
    domain = domains.join(domain_of(term.arrow_type), domain_of(arrow_type), domain_of(literal.arrow_type))
    if domain is None or domain.is_float or pa.types.is_fixed_size_binary(arrow_type):
        return None
    return _value_set(ast.In(term, literal.type, (literal.value,)), arrow_type, domain)


def _all_exact(p: ast.In, domain: Domain) -> bool:
    return all(domains.is_exact_float(value, domain) for value in p.plain)  # type: ignore[arg-type]


def _value_set(p: ast.In, arrow_type: pa.DataType, domain: Domain) -> pa.Array:
    """The members that this type has."""
    own = domain_of(p.arrow_type)
    values = [domains.convert(value, own, domain) for value in p.plain]
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        return to_array(values, arrow_type)
    if pa.types.is_floating(arrow_type):
        if 0.0 in values:
            values.append(-0.0)  # equal to 0.0, but with another hash
        return to_array(values, arrow_type)
    return to_array(domains.keep_valid(values, arrow_type, Domain.EXACT if domain.is_float else domain), arrow_type)


_SAMPLES: dict[Domain | None, Any] = {Domain.BOOLEAN: True, Domain.TEXT: "a", Domain.BYTES: b"a"}


def check_evaluates(p: Predicate) -> None:
    """Stores, reads back, evaluates and judges a predicate like readers: on no rows, a row of NULLs, and values.

    Raises PredicateError if one of these steps fails.
    """
    try:
        stored = ast.from_json(ast.to_json(p))
        types = {column.id: column.arrow_type for column in ast.all_columns(p)}
        evaluate(stored, {id_: pa.array([], arrow_type) for id_, arrow_type in types.items()}, 0)
        evaluate(stored, {id_: pa.nulls(1, arrow_type) for id_, arrow_type in types.items()}, 1)
        evaluate(stored, {id_: _sample(arrow_type) for id_, arrow_type in types.items()}, 1)
        judge(stored, {}, 1)
    except (Error, pa.ArrowException, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        reason = error.reason if isinstance(error, PredicateError) else str(error)
        raise PredicateError(f"no reader could evaluate this predicate: {reason}") from error
    if stored != p:
        raise PredicateError("this predicate would be read back as another one")


def _sample(arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_list(arrow_type):
        return pa.ListArray.from_arrays([0, 1], _sample(arrow_type.value_type))
    sample = _SAMPLES.get(domain_of(arrow_type), 0)
    if pa.types.is_fixed_size_binary(arrow_type):
        sample = bytes(arrow_type.byte_width)
    return to_array([sample], arrow_type)

"""Evaluates a predicate on Arrow columns: whole arrays, with one or two kernels for a comparison with a literal.

Columns have the types of their file, which may be narrower than the types the predicate was bound to. Where possible,
the literal is converted to the file's type: it converts exactly, or the comparison is decided without reading values.
Otherwise the column is cast, always to the wider type.

``check_evaluates`` tries a predicate before a commit: a predicate that no reader can evaluate must never hide rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.units import DAY_US
from dolmen.errors import Error, PredicateError, SchemaError
from dolmen.format.types import one_array, to_array, to_scalar
from dolmen.predicate import like
from dolmen.predicate.ast import (
    And,
    Call,
    Compare,
    Constant,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Predicate,
    Term,
    Truth,
    all_columns,
    columns_in,
    from_json,
    to_json,
)
from dolmen.predicate.constants import (
    HOLDS,
    Domain,
    Op,
    domain_of,
    exact_float,
    fit,
    grid,
    into,
    join,
    order,
    plain_of,
    representable,
    rounds_to,
)
from dolmen.predicate.functions import compute, precision_of, result_of, scale_of, to_floats
from dolmen.predicate.prune import judge

Columns: TypeAlias = Mapping[int, pa.Array | pa.ChunkedArray]

_KERNELS = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_OPPOSITE: dict[Op, Op] = {">": "<=", ">=": "<"}

_FEW = 16
"""Up to this number of members of an IN, comparing with each is faster than hashing."""

_NULL, _TRUE, _FALSE = pa.Array.from_buffers(pa.bool_(), 3, [pa.py_buffer(b"\x06"), pa.py_buffer(b"\x02")])
"""Not made by ``pa.scalar``, which would import pandas each time that dolmen is imported."""


def evaluate(p: Predicate, columns: Columns, length: int) -> pa.BooleanArray:
    """TRUE, FALSE or NULL (unknown) for every row.

    Args:
        columns: by id, the columns that the predicate names, in any type that widens to the bound one. Dictionaries and
            arrays of type null are allowed.
        length: number of rows.

    Raises:
        SchemaError: a column's type does not support the predicate's comparison.
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
        case Compare():
            return _compare(p, columns)
        case And():
            return _fold(pc.and_kleene, _FALSE, p.args, columns)
        case Or():
            return _fold(pc.or_kleene, _TRUE, p.args, columns)
        case Not():
            return pc.invert(_evaluate(p.arg, columns))
        case In():
            return _in(p, columns)
        case IsNull():
            return pc.is_null(values_of(p.column, columns))
        case Like():
            return like.match(_only(Domain.TEXT, p.column, columns), p.pattern, p.escape, p.ignore_case)
        case Truth():
            return _only(Domain.BOOLEAN, p.column, columns)
        case Constant():
            return pa.scalar(p.value, pa.bool_())


def _fold(kernel: Any, final: pa.Scalar, args: tuple[Predicate, ...], columns: Columns) -> Any:
    """AND or OR; stops once a constant decides the result."""
    result = _evaluate(args[0], columns)
    for arg in args[1:]:
        if isinstance(result, pa.Scalar) and result == final:
            break
        result = kernel(result, _evaluate(arg, columns))
    return result


def values_of(column: Term, columns: Columns) -> Any:
    """The values of a column or call, without dictionary encoding."""
    if isinstance(column, Call):
        return _computed(column, columns)
    array = columns[column.id]
    if pa.types.is_dictionary(array.type):
        return array.cast(array.type.value_type)
    return array.cast(column.arrow_type) if pa.types.is_null(array.type) else array


def _computed(call: Call, columns: Columns) -> Any:
    """The values of a call. Their type follows from the columns' types in this file, not from the bound types."""
    args = [_argument(arg, columns) for arg in call.args]
    try:
        target = result_of(call.function, [arg.type for arg in args], call.arrow_type)
    except PredicateError as error:
        raise SchemaError(f"{call.function}, bound to {call.type}: {error.reason}") from error
    return compute(call.function, args, target)


def _argument(arg: Term | Literal, columns: Columns) -> Any:
    if isinstance(arg, Literal):
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
    """Whether an exact type has all values of another one."""
    a, b = grid(wide, Domain.EXACT), grid(narrow, Domain.EXACT)
    in_steps = (b.unit / a.unit).denominator == 1
    return in_steps and a.least * a.unit <= b.least * b.unit and a.greatest * a.unit >= b.greatest * b.unit


def _only(domain: Domain, column: Term, columns: Columns) -> Any:
    """The values of a column that must have this domain in the file, too."""
    array = values_of(column, columns)
    if domain_of(array.type) is not domain:
        raise _other_type(column, array)
    return array


def _other_type(column: Term, array: Any) -> SchemaError:
    ids = ", ".join(str(each.id) for each in columns_in(column))
    return SchemaError(f"column {ids}, bound as {column.type}, is {array.type} in this file")


def _domain(column: Term, array: Any, other: pa.DataType) -> Domain:
    """The domain of a comparison: at least as wide as the column's bound type and its type in the file."""
    domain = join(domain_of(column.arrow_type), domain_of(array.type), domain_of(other))
    if domain is None:
        raise _other_type(column, array)
    return domain


def _compare(p: Compare, columns: Columns) -> Any:
    left = values_of(p.left, columns)
    if not isinstance(p.right, Literal):
        right = values_of(p.right, columns)
        domain = join(_domain(p.left, left, left.type), _domain(p.right, right, right.type))
        if domain is None:
            raise SchemaError(f"columns of types {left.type} and {right.type} do not compare")
        return _compare_columns(p.op, _common(left, right, domain), _common(right, left, domain), domain)
    domain = _domain(p.left, left, p.right.arrow_type)
    value = into(p.right.plain, domain_of(p.right.arrow_type), domain)
    if domain.is_float:
        return _compare_float(p.op, left, value, domain)
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        array = _plain_bytes(left)
        return _KERNELS[p.op](array, pa.scalar(value, array.type))
    return _compare_exact(p.op, left, value, domain)


def _compare_exact(op: Op, array: Any, value: Any, domain: Domain) -> Any:
    fitted = fit(op, value, grid(array.type, domain))
    if isinstance(fitted, bool):
        return _constant_where_known(array, fitted)
    op, raw = fitted
    return _KERNELS[op](array, to_scalar(plain_of(raw, array.type), array.type))


def _compare_float(op: Op, array: Any, value: float, domain: Domain) -> Any:
    """Compares with a float. Arrow's kernels are FALSE for NaN, which is the greatest value: invert the opposite."""
    if not pa.types.is_floating(array.type):
        return _compare_rounded(op, array, value, domain)
    array = _floats(array, domain)
    if math.isnan(value):
        if op in ("<=", ">"):
            return _constant_where_known(array, op == "<=")
        is_nan = pc.is_nan(array)
        return is_nan if op in ("=", ">=") else pc.invert(is_nan)
    scalar = pa.scalar(value, array.type)
    if op in _OPPOSITE:
        return pc.invert(_KERNELS[_OPPOSITE[op]](array, scalar))
    return _KERNELS[op](array, scalar)


def _compare_rounded(op: Op, array: Any, value: float, domain: Domain) -> Any:
    """Compares integers and decimals with a float, as their nearest floats but without a cast."""
    if not abs(value) < 2e38:  # beyond all of them, or NaN
        return _constant_where_known(array, order(0.0, value) in HOLDS[op])
    least, greatest, inclusive = rounds_to(value, domain)
    if op in ("=", "<>"):
        equal = pc.and_kleene(*(_compare_rounded(side, array, value, domain) for side in (">=", "<=")))
        return equal if op == "=" else pc.invert(equal)
    if op in (">=", "<"):
        op = (">=" if inclusive else ">") if op == ">=" else ("<" if inclusive else "<=")
        return _compare_exact(op, array, least, Domain.EXACT)
    op = ("<=" if inclusive else "<") if op == "<=" else (">" if inclusive else ">=")
    return _compare_exact(op, array, greatest, Domain.EXACT)


def _compare_columns(op: Op, left: Any, right: Any, domain: Domain) -> Any:
    if not domain.is_float:
        return _KERNELS[op](left, right)
    if op in (">", ">="):
        return _compare_columns("<" if op == ">" else "<=", right, left, domain)
    if op in ("<>", "<="):
        return pc.invert(_compare_columns("=", left, right, domain) if op == "<>" else _less(right, left))
    return _less(left, right) if op == "<" else pc.or_(
        pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right))
    )  # fmt: skip


def _less(left: Any, right: Any) -> Any:
    """``left < right`` with NaN as the greatest."""
    return pc.or_(pc.less(left, right), pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))


def _common(array: Any, other: Any, domain: Domain) -> Any:
    """A column in a type that has the values of both columns."""
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
    """The narrowest type for the values of two integer or decimal types."""
    if pa.types.is_integer(a) and pa.types.is_integer(b) and not {a, b} & {pa.uint64()}:
        return pa.int64()
    scale = max(scale_of(a), scale_of(b))
    precision = scale + max(precision_of(a) - scale_of(a), precision_of(b) - scale_of(b))
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _floats(array: Any, domain: Domain) -> Any:
    return to_floats(array, pa.float64() if domain is Domain.FLOAT64 else pa.float32())


def _plain_bytes(array: Any) -> Any:
    return array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _constant_where_known(array: Any, value: bool) -> Any:
    """``value`` where the column is not NULL."""
    if array.null_count == 0:
        return _TRUE if value else _FALSE
    return pc.or_kleene(pc.is_valid(array), _NULL) if value else pc.and_kleene(pc.is_null(array), _NULL)


def _in(p: In, columns: Columns) -> Any:
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
        found = _constant_where_known(array, False)
    elif len(values) <= _FEW:
        found = reduce(pc.or_, (pc.equal(array, value) for value in values))
    else:
        found = pc.is_in(array, value_set=values)
        if array.null_count:
            found = pc.if_else(pc.is_valid(array), found, _NULL)
    if pa.types.is_floating(array.type) and p.plain[-1] != p.plain[-1]:
        found = pc.or_(found, pc.is_nan(array))
    return pc.or_kleene(found, _NULL) if p.null else found


def equal_values(term: Term, literal: Literal, arrow_type: pa.DataType) -> pa.Array | None:
    """The value of this type that equals a literal: an array of one value, or an empty one if there is none.

    None if equal values of the type can differ in their bytes, as floats can.
    """
    domain = join(domain_of(term.arrow_type), domain_of(arrow_type), domain_of(literal.arrow_type))
    if domain is None or domain.is_float or pa.types.is_fixed_size_binary(arrow_type):
        return None
    return _value_set(In(term, literal.type, (literal.value,)), arrow_type, domain)


def _all_exact(p: In, domain: Domain) -> bool:
    return all(exact_float(value, domain) for value in p.plain)  # type: ignore[arg-type]


def _value_set(p: In, arrow_type: pa.DataType, domain: Domain) -> pa.Array:
    """The members that this type has, in this type."""
    own = domain_of(p.arrow_type)
    values = [into(value, own, domain) for value in p.plain]
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        return to_array(values, arrow_type)
    if pa.types.is_floating(arrow_type):
        if 0.0 in values:
            values.append(-0.0)  # equal to 0.0, but with another hash
        return to_array(values, arrow_type)
    return to_array(representable(values, arrow_type, Domain.EXACT if domain.is_float else domain), arrow_type)


_SAMPLES: dict[Domain | None, Any] = {Domain.BOOLEAN: True, Domain.TEXT: "a", Domain.BYTES: b"a"}


def check_evaluates(p: Predicate) -> None:
    """Stores, reads back, evaluates and judges a predicate as readers will: on no rows, a row of NULLs, and values.

    Raises:
        PredicateError: one of these steps fails.
    """
    try:
        stored = from_json(to_json(p))
        types = {column.id: column.arrow_type for column in all_columns(p)}
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
    sample = _SAMPLES.get(domain_of(arrow_type), 0)
    if pa.types.is_fixed_size_binary(arrow_type):
        sample = bytes(arrow_type.byte_width)
    return to_array([sample], arrow_type)

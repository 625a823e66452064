"""Functions of columns: their values, and the types of their results.

All functions are total, so no row stops a reader. Integers and decimals compute as in mathematics, in types wide enough
for all values of the arguments' types. If a result could need more than 38 digits, the predicate is refused when it is
parsed. Floats compute by IEEE 754. A cast to a type that lacks the value gives NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from typing import Literal as Choice

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.units import DAY_US, HOUR_US, MINUTE_US
from dolmen.errors import PredicateError
from dolmen.format.types import one_array, to_mask
from dolmen.predicate import like
from dolmen.predicate.constants import MAX_DIGITS, Domain, domain_of, grid, join, plain_of
from dolmen.predicate.temporal import civil_from_days

Function: TypeAlias = Choice[
    "+", "-", "*", "/", "%", "negate", "lower", "upper", "cast", "year", "month", "day", "hour", "minute"
]

_KERNELS = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}
_ARROWS_DAYS = (-719_162, 2_932_897)
"""The days of the years 1 to 9999, for which Arrow's calendar is correct."""
_TIMES = (Domain.NAIVE, Domain.ZONED)
_PARTS: dict[str, tuple[Domain, ...]] = {
    "year": (Domain.DATE, *_TIMES), "month": (Domain.DATE, *_TIMES), "day": (Domain.DATE, *_TIMES),
    "hour": _TIMES, "minute": _TIMES,
}  # fmt: skip
PARTS = tuple(_PARTS)
NAMES = ("lower", "upper", *PARTS)
"""Functions of columns that predicates call by name."""


def result_of(function: Function, types: Sequence[pa.DataType], target: pa.DataType | None = None) -> pa.DataType:
    """The type of a function's result.

    Args:
        types: of its arguments.
        target: the type to cast to, for a cast.

    Raises:
        PredicateError: the function does not take these types.
    """
    domains = [domain_of(arrow_type) for arrow_type in types]
    if len(types) != (2 if function in ("+", "-", "*", "/", "%") else 1):
        raise PredicateError(f"{function} does not take {len(types)} arguments")
    if function == "cast":
        if target is None or not _has_cast(types[0], target):
            raise PredicateError(
                f"a column of type {types[0]} cannot be cast to {target}: engines do not agree on the result; "
                "integers can be cast to numbers and VARCHAR, timestamps to DATE, and numbers to types that keep "
                "every digit"
            )
        return target
    if function in ("lower", "upper"):
        if domains[0] is not Domain.TEXT:
            raise PredicateError(f"{function} is for strings, not for {types[0]}")
        return pa.string()
    if function in _PARTS:
        if domains[0] not in _PARTS[function]:
            raise PredicateError(f"{function} is for {' and '.join(d.value for d in _PARTS[function])}, not {types[0]}")
        return pa.int64()
    domain = join(*domains)
    if domain is None or not (domain is Domain.EXACT or domain.is_float):
        raise PredicateError(f"can't compute {f' {function} '.join(map(str, types))}: + - * / % are for numbers")
    if function == "%":
        if not all(pa.types.is_signed_integer(t) or (pa.types.is_integer(t) and t != pa.uint64()) for t in types):
            raise PredicateError("% is for integers of up to 64 bits with sign")
        return _exact_type(min(_bound(types[0]), _bound(types[1]) - 1), 0)
    if domain.is_float or function == "/":
        return pa.float32() if domain is Domain.FLOAT32 else pa.float64()
    bounds, scales = [_bound(t) for t in types], [scale_of(t) for t in types]
    if function == "negate":
        return _exact_type(bounds[0], scales[0])
    if function == "*":
        return _exact_type(bounds[0] * bounds[1], sum(scales))
    scale = max(scales)
    return _exact_type(sum(bound * 10 ** (scale - own) for bound, own in zip(bounds, scales, strict=True)), scale)


def _bound(arrow_type: pa.DataType) -> int:
    """The greatest absolute value of a type, without the decimal point."""
    cells = grid(arrow_type, Domain.EXACT)
    return max(-cells.least, cells.greatest)


def scale_of(arrow_type: pa.DataType) -> int:
    """The number of digits after the point, for an integer or decimal type."""
    return int(arrow_type.scale) if pa.types.is_decimal(arrow_type) else 0


def precision_of(arrow_type: pa.DataType) -> int:
    """The number of digits that hold all values of an integer or decimal type."""
    return int(arrow_type.precision) if pa.types.is_decimal(arrow_type) else len(str(2**arrow_type.bit_width))


def _exact_type(bound: int, scale: int) -> pa.DataType:
    if scale == 0:
        for candidate in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
            if bound < 2 ** (candidate.bit_width - 1):
                return candidate
    digits = max(len(str(bound)), scale)
    if digits > MAX_DIGITS:
        raise PredicateError(
            f"the result may have {digits} digits, and at most {MAX_DIGITS} are supported: "
            "compute with fewer or smaller numbers, or with a double, as in 2e0 * n"
        )
    return pa.decimal128(digits, scale)


def _has_cast(own: pa.DataType, target: pa.DataType) -> bool:
    kind, to = domain_of(own), domain_of(target)
    if kind is Domain.EXACT:
        if to is Domain.EXACT:
            return scale_of(target) >= scale_of(own) and not (pa.types.is_decimal(own) and pa.types.is_integer(target))
        return to in (Domain.FLOAT32, Domain.FLOAT64) or (to is Domain.TEXT and pa.types.is_integer(own))
    allowed: dict[Domain | None, tuple[Domain, ...]] = {
        Domain.FLOAT32: (Domain.FLOAT64,),
        Domain.BOOLEAN: (Domain.TEXT,),
        Domain.NAIVE: (Domain.DATE, Domain.ZONED),
        Domain.ZONED: (Domain.DATE, Domain.NAIVE),
    }
    return to in allowed.get(kind, ())


def compute(function: Function, args: Sequence[Any], target: pa.DataType) -> Any:
    """The values of a function of columns; NULL for NULL.

    Args:
        args: arrays, and scalars for literals, at least one an array.
        target: ``result_of`` their types.
    """
    if function in ("lower", "upper"):
        return like.lower(args[0]) if function == "lower" else pc.utf8_upper(like.repair_utf8(args[0]))
    if function in _PARTS:
        return _part(function, args[0])
    if function == "cast":
        return _cast(args[0], target)
    if function == "%":
        return _modulo(*args)
    if pa.types.is_floating(target):
        floats = [to_floats(arg, target) for arg in args]
        return pc.negate(floats[0]) if function == "negate" else _KERNELS[function](*floats)
    if function == "negate":
        return pc.subtract(pa.scalar(0, _working(target)), args[0].cast(_working(target))).cast(target)
    if pa.types.is_integer(target) or _stays_small(function, args):
        return _KERNELS[function](*(arg.cast(pa.int64()) for arg in args))
    return _KERNELS[function](*map(_decimal256, args)).cast(target)


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


def _working(target: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_integer(target) else pa.decimal256(target.precision, target.scale)


def _decimal256(array: Any) -> Any:
    return array.cast(pa.decimal256(precision_of(array.type), scale_of(array.type)))


def to_floats(array: Any, target: pa.DataType) -> Any:
    """The nearest floats of numbers."""
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


def _cast(array: Any, target: pa.DataType) -> Any:
    to = domain_of(target)
    if to in (Domain.FLOAT32, Domain.FLOAT64):
        return to_floats(array, target)
    if to is not Domain.EXACT:
        return array.cast(target)
    own, cells = grid(array.type, Domain.EXACT), grid(target, Domain.EXACT)
    if own.unit == cells.unit == 1 and pa.types.is_integer(array.type) and pa.types.is_integer(target):
        least, greatest = max(own.least, cells.least), min(own.greatest, cells.greatest)
        if (least, greatest) != (own.least, own.greatest):
            fits = pc.and_(
                pc.greater_equal(array, pa.scalar(least, array.type)),
                pc.less_equal(array, pa.scalar(greatest, array.type)),
            )
            array = pc.if_else(fits, array, pa.scalar(None, array.type))
        return array.cast(target)
    digits = len(str(max(-own.least, own.greatest))) - scale_of(array.type) + scale_of(target)
    wide = _decimal256(array).cast(pa.decimal256(max(digits, 1), scale_of(target)))
    if own.least * own.unit < cells.least * cells.unit or own.greatest * own.unit > cells.greatest * cells.unit:
        most = 10**wide.type.precision - 1
        least, greatest = (
            pa.scalar(plain_of(raw, wide.type), wide.type)
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
        found = values % DAY_US // step % (24 if function == "hour" else 60)
    else:
        found = civil_from_days(values if of_dates else values // DAY_US)[("year", "month", "day").index(function)]
    return pa.array(found, pa.int64(), mask=to_mask(raw.is_null()))

"""Turns a dolmen predicate into a Spark column with the same truth for every row.

Literals are moved to the column's own type, as in evaluation on Arrow (``predicate.evaluate``), so Spark casts nothing
and its Parquet reader can skip row groups. Spark agrees with dolmen on NaN (equal to itself, greatest), on -0.0 and on
strings (by their bytes). Where it does not, or has no type for the comparison, the predicate is ``Unsupported``, and
the caller reads another way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.errors import Error
from dolmen.predicate.ast import And, Compare, Constant, In, IsNull, Like, Literal, Not, Or, Predicate, Term, Truth
from dolmen.predicate.ast import Column as ColumnOf
from dolmen.predicate.constants import HOLDS, Domain, Op, domain_of, fit, grid, into, join, order, plain_of, rounds_to
from dolmen.predicate.like import pattern
from dolmen.spark.spark_types import spark_type

FindColumn: TypeAlias = Callable[[int], Column]
"""Returns the Spark column for a column's id."""
_MOST_PIECES = 200
_EPOCH = datetime(1970, 1, 1)
_NULL_TRUTH = "CAST(NULL AS BOOLEAN)"
_KERNELS: dict[Op, Callable[[Column, Column], Column]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


class Unsupported(Error):  # noqa: N818 - no failure: the caller reads another way
    """Spark has no expression that is TRUE, FALSE or NULL for the same rows."""


def to_column(predicate: Predicate, column: FindColumn) -> Column:
    """The predicate over Spark's columns of ``spark_type``. Raises Unsupported: read the rows by the core."""
    match predicate:
        case Compare():
            return _compare(predicate, column)
        case In():
            return _in(predicate, column)
        case And():
            return reduce(and_, (to_column(arg, column) for arg in predicate.args))
        case Or():
            return reduce(or_, (to_column(arg, column) for arg in predicate.args))
        case Not():
            return ~to_column(predicate.arg, column)
        case IsNull():
            return _column(predicate.column, column).isNull()
        case Like():
            return _like(predicate, column)
        case Truth():
            return _column(predicate.column, column)
        case Constant():
            return F.expr(_NULL_TRUTH) if predicate.value is None else F.lit(predicate.value)


def _column(term: Term, column: FindColumn) -> Column:
    if isinstance(term, ColumnOf):
        return column(term.id)
    raise Unsupported("Spark computes otherwise where numbers are too large, and changes case in another way")


def _compare(p: Compare, column: FindColumn) -> Column:
    left = _column(p.left, column)
    if not isinstance(p.right, Literal):
        if p.left.type != p.right.type:
            raise Unsupported(f"columns of types {p.left.type} and {p.right.type} are compared")
        return _KERNELS[p.op](left, _column(p.right, column))
    return _compare_value(p.op, left, p.left.arrow_type, p.right.plain, p.right.arrow_type)


def _compare_value(op: Op, left: Column, own: pa.DataType, value: Any, of: pa.DataType) -> Column:
    """A column of type ``own`` compared with a plain value of type ``of``."""
    domain = join(domain_of(own), domain_of(of))
    if domain is None:
        raise Unsupported(f"a column of type {own} is compared with a value of type {of}")
    value = into(value, domain_of(of), domain)
    if domain is Domain.TIME:
        raise Unsupported("times of day are compared")
    if domain.is_float:
        return _compare_float(op, left, own, float(value), domain)
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        return _KERNELS[op](left, F.lit(bytearray(value) if isinstance(value, bytes) else value))
    return _compare_fitted(op, left, own, value, domain)


def _compare_float(op: Op, left: Column, own: pa.DataType, value: float, domain: Domain) -> Column:
    if not pa.types.is_floating(own):
        return _compare_rounded(op, left, own, value, domain)
    if domain is Domain.FLOAT32:
        return _KERNELS[op](left, F.lit(value).cast("float"))
    return _KERNELS[op](left.cast("double"), F.lit(value))


def _compare_rounded(op: Op, left: Column, own: pa.DataType, value: float, domain: Domain) -> Column:
    """Compares integers or decimals with a float, as the floats next to them, but without a cast."""
    if not abs(value) < 2e38:  # beyond all numbers of these types, or NaN
        return _constant_unless_null(left, order(0.0, value) in HOLDS[op])
    least, greatest, inclusive = rounds_to(value, domain)
    if op in ("=", "<>"):
        at_least, at_most = (_compare_rounded(side, left, own, value, domain) for side in (">=", "<="))
        return at_least & at_most if op == "=" else ~(at_least & at_most)
    if op in (">=", "<"):
        return _compare_fitted(
            (">=" if inclusive else ">") if op == ">=" else ("<" if inclusive else "<="), left, own, least
        )
    return _compare_fitted(
        ("<=" if inclusive else "<") if op == "<=" else (">" if inclusive else ">="), left, own, greatest
    )


def _compare_fitted(op: Op, left: Column, own: pa.DataType, value: Any, domain: Domain = Domain.EXACT) -> Column:
    fitted = fit(op, value, grid(own, domain))
    if isinstance(fitted, bool):
        return _constant_unless_null(left, fitted)
    op, raw = fitted
    return _KERNELS[op](left, literal_of(raw, own))


def _constant_unless_null(left: Column, truth: bool) -> Column:
    return F.when(left.isNotNull(), F.lit(truth))


def literal_of(raw: Any, own: pa.DataType) -> Column:
    """A value of a type's grid, as Spark's literal of that type. Raises Unsupported."""
    t = pa.types
    if t.is_uint64(own):
        return F.lit(Decimal(raw)).cast("decimal(20,0)")
    if t.is_integer(own):
        return F.lit(raw).cast(spark_type(own).simpleString())
    if t.is_decimal(own):
        return F.lit(plain_of(raw, own)).cast(f"decimal({own.precision},{own.scale})")
    if t.is_date(own):
        return F.expr(f"date_from_unix_date({raw})")
    if t.is_timestamp(own) and own.tz:
        return F.expr(f"timestamp_micros({raw})")
    if t.is_timestamp(own):
        try:
            moment = _EPOCH + timedelta(microseconds=raw)
        except OverflowError:
            raise Unsupported("a timestamp beyond the year 9999") from None
        return F.expr(f"timestamp_ntz '{moment.isoformat(sep=' ', timespec='microseconds')}'")
    raise Unsupported(f"a literal of type {own}")


def _in(p: In, column: FindColumn) -> Column:
    """IN as a disjunction of its members: Spark's own IN compares floats by their bits."""
    left, own, of = _column(p.column, column), p.column.arrow_type, p.arrow_type
    parts = [_compare_value("=", left, own, value, of) for value in p.plain]
    if p.null:
        parts.append(F.expr(_NULL_TRUTH))
    return _any(parts) if parts else _constant_unless_null(left, False)


def _any(parts: list[Column]) -> Column:
    """OR as a balanced tree: a chain of thousands would exhaust Spark's stack."""
    while len(parts) > 1:
        parts = [reduce(or_, parts[index : index + 2]) for index in range(0, len(parts), 2)]
    return parts[0]


def _like(p: Like, column: FindColumn) -> Column:
    if p.ignore_case:
        raise Unsupported("ILIKE folds case character by character, Spark does not")
    left = _column(p.column, column)
    found = pattern(p.pattern, p.escape)
    if found.is_text:
        return left == F.lit(found.prefix)
    if found.is_prefix:
        return left.startswith(found.prefix) if found.prefix else F.when(left.isNotNull(), F.lit(True))
    if len(found.pieces) > _MOST_PIECES:
        raise Unsupported("a LIKE pattern of many pieces, for which Java's regular expressions take a deep stack")
    return left.rlike(_regex(found.runs))


def _regex(runs: Sequence[Sequence[str | bool]]) -> str:
    """A pattern for Java.

    A run between two ``%`` matches only where it first occurs: trying each later position takes long in a long text.
    """
    first, *others = ("".join(_quoted(piece) if isinstance(piece, str) else "." for piece in run) for run in runs)
    if not others:
        return rf"(?s)\A{first}\z"
    return rf"(?s)\A{first}{''.join(f'(?>.*?{run})' for run in others[:-1])}.*{others[-1]}\z"


def _quoted(text: str) -> str:
    """Quotes text for Java's regular expressions."""
    return re.sub(r"([\x00-/:-@\[-`{-\x7f])", r"\\\1", text)

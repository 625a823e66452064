"""Turns sqlglot's trees of conditions into bound predicates.

Only the nodes that are listed here are supported, with the arguments that are listed. Everything else is refused, so
no construct is mistaken for a similar one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dolmen.base.units import DAY_US
from dolmen.errors import LimitError, PredicateError
from dolmen.format.schema import Field, Schema
from dolmen.format.types import TYPES
from dolmen.predicate import bind, constants
from dolmen.predicate.ast import FALSE, MAX_CONDITIONS, MAX_MEMBERS, Constant, Predicate, check_count
from dolmen.predicate.bind import ColumnOperand, Side
from dolmen.predicate.constants import LISTS, Interval, Value, from_python
from dolmen.predicate.domains import MAX_DIGITS, NAMES, Domain, Op
from dolmen.predicate.names import Name, find_column

if TYPE_CHECKING:
    from sqlglot import exp


_SIZE = re.compile("[0-9]{1,9}")
_COMPARISONS: dict[str, Op] = {"eq": "=", "neq": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/", "intdiv": "//", "mod": "%"}
_FUNCTIONS = {**{name: name for name in NAMES}, "dayofmonth": "day"}  # functions of columns, by sqlglot's names
_NOW = {
    "now": Domain.ZONED, "get_current_timestamp": Domain.ZONED, "transaction_timestamp": Domain.ZONED,
    "currenttimestamp": Domain.ZONED, "currentdate": Domain.DATE, "localtimestamp": Domain.NAIVE,
    "current_localtimestamp": Domain.NAIVE,
}  # fmt: skip
_CASTS = {token: each.stored for each in TYPES for token in each.sql_tokens}


class TreeReader:
    """Turns sqlglot's tree into a bound predicate. A node's ``key`` is its kind.

    Args:
        parameters: values of placeholders, by the identity of their nodes.
        literals: other texts for the tree's literals, by the identity of their nodes.
    """

    def __init__(
        self,
        schema: Schema,
        now_us: int,
        parameters: Mapping[int, Any],
        literals: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.schema, self.now_us, self.parameters, self.literals = schema, now_us, parameters, literals
        self.conditions = 0

    def predicate(self, node: exp.Expression) -> Predicate:
        self.conditions += 1
        if self.conditions > MAX_CONDITIONS:
            raise LimitError(f"more than {MAX_CONDITIONS:,} conditions in a predicate: write IN (...) instead of OR")
        with add_position(node):
            if read := _CONDITIONS.get(node.key):
                return read(self, node)
            if node.key in _COMPARISONS:
                return self._compare(node, _COMPARISONS[node.key])
            if (
                node.key in ("column", "dot", "literal", "null", "boolean", "coalesce", "arraycontains")
                or node.key in _ARITHMETIC
            ):
                side = self.side(node)
                if not isinstance(side, Value):
                    return bind.truth(side)
                if side.kind in (None, Domain.BOOLEAN):
                    return Constant(side.value)  # type: ignore[arg-type]
                raise PredicateError(
                    f"{side.name} is not a condition: repeat the column, as in n = 1 OR n = 2, or write n IN (1, 2)"
                )
            raise refusal(node)

    def _paren(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this")
        return self.predicate(node.this)

    def _and(self, node: exp.Expression) -> Predicate:
        return bind.conjunction([self.predicate(arg) for arg in _chain(node)])

    def _or(self, node: exp.Expression) -> Predicate:
        return bind.disjunction([self.predicate(arg) for arg in _chain(node)])

    def _not(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this")
        return bind.negation(self.predicate(node.this))

    def _compare(self, node: exp.Expression, op: Op) -> Predicate:
        _allow_only(node, "this", "expression")
        if node.this.key == "tuple" and op == "=":
            return self._tuples(node.this, [node.expression])
        if "null" in (node.this.key, node.expression.key):
            instead = "IS NOT NULL" if op == "<>" else "IS NULL"
            raise PredicateError(f"{op} NULL is TRUE for no row: write {instead}")
        return bind.compare(op, self.side(node.this), self.side(node.expression))

    def _tuples(self, left: exp.Expression, rows: Sequence[exp.Expression]) -> Predicate:
        fields = []
        for name in left.expressions:
            field = self.side(name)
            if not isinstance(field, Field):
                raise PredicateError("tuples compare columns with constants, as in (a, b) = (1, 2)", is_mistake=False)
            fields.append(field)
        members = []
        for row in rows:
            if row.key != "tuple" or len(row.expressions) != len(fields):
                raise PredicateError("tuples that are compared have the same length, as in (a, b) = (1, 2)")
            members.append([self.constant(member) for member in row.expressions])
            if constants.NULL in members[-1]:
                raise PredicateError("tuples are compared with constants that are not NULL", is_mistake=False)
        return bind.one_of_tuples(fields, members)

    def _in(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expressions", "field")
        if node.this.key == "tuple":
            _allow_only(node, "this", "expressions")
            return self._tuples(node.this, node.expressions)
        side = self.side(node.this)
        members = self._list_parameter(node.args["field"]) if node.args.get("field") else []
        members += [self.constant(member) for member in node.expressions]
        if not isinstance(side, Value):
            return bind.one_of(side, members)
        equal = bind.disjunction([bind.compare("=", side, member) for member in members])
        return equal if members else FALSE

    def _list_parameter(self, node: exp.Expression) -> list[Value]:
        value = self.parameters.get(id(node))
        if not isinstance(value, LISTS):
            raise PredicateError("IN takes a list in parentheses, IN (1, 2), or a parameter that is a list, IN ?")
        check_count(len(value), MAX_MEMBERS, "members of a list", "split it")
        return [constants.NULL if member is None else from_python(member) for member in value]

    def _between(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "low", "high")
        return bind.between(self.side(node.this), self.side(node.args["low"]), self.side(node.args["high"]))

    def _is(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expression")
        side, tested = self.side(node.this), node.expression
        if tested.key == "null":
            return Constant(side.kind is None) if isinstance(side, Value) else bind.is_null(side)
        if _is_nan(tested) and not isinstance(side, Value):
            return bind.is_nan(side)
        if tested.key == "boolean":
            if isinstance(side, Value):
                raise PredicateError("IS TRUE and IS FALSE need a boolean column")
            holds = bind.truth(side) if tested.this else bind.negation(bind.truth(side))
            return bind.conjunction([holds, bind.negation(bind.is_null(side))])
        raise PredicateError("IS is followed by NULL, TRUE, FALSE, NAN or DISTINCT FROM")

    def _nullsafeneq(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expression")
        return bind.distinct_from(self.side(node.this), self.side(node.expression))

    def _nullsafeeq(self, node: exp.Expression) -> Predicate:
        return bind.negation(self._nullsafeneq(node))

    def _like(self, node: exp.Expression, escape: str | None = None) -> Predicate:
        _allow_only(node, "this", "expression", "negate")
        side = self.side(node.this)
        if isinstance(side, Value):
            raise PredicateError("LIKE needs a column on its left", is_mistake=False)
        p = bind.like(side, self.constant(node.expression), escape or None, node.key == "ilike")
        return bind.negation(p) if node.args.get("negate") else p

    def _isnan(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this")
        return bind.is_nan(self._column(node.this, "isnan"))

    def _text_match(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expression")
        return bind.text_match(node.key, self._column(node.this, node.key), self.constant(node.expression))

    def _list_contains(self, node: exp.Expression) -> Side:
        _allow_only(node, "this", "expression")
        names = _names_in(node.this)
        if not names:
            raise PredicateError("list_contains is for columns that are lists", is_mistake=False)
        return bind.list_contains(find_column(names, self.schema, is_list=True), self.constant(node.expression))

    def _column(self, node: exp.Expression | None, function: str) -> ColumnOperand:
        if node is None:  # sqlglot reads @ by itself as abs()
            raise PredicateError(f"{function} takes a column", is_mistake=False)
        side = self.side(node)
        if isinstance(side, Value):
            raise PredicateError(
                f"{function} is for columns: instead of a call with a constant, write its result", is_mistake=False
            )
        return side

    def _escape(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expression")
        negated = node.this.key == "not"
        inner, escape = node.this.this if negated else node.this, self.constant(node.expression)
        if inner.key not in ("like", "ilike") or escape.kind is not Domain.TEXT:
            raise PredicateError("ESCAPE belongs to LIKE, with one character in single quotes")
        p = self._like(inner, str(escape.value))
        return bind.negation(p) if negated else p

    def side(self, node: exp.Expression) -> Side:
        while node.key == "paren":
            _allow_only(node, "this")
            node = node.this
        with add_position(node):
            names = _names_in(node)
            return find_column(names, self.schema) if names else self._call(node)

    def _call(self, node: exp.Expression) -> Side:
        if node.key in _ARITHMETIC:
            _allow_only(node, "this", "expression", "safe", "typed")
            operator = _ARITHMETIC[node.key]
            a, b = self.side(node.this), self.side(node.expression)
            if operator == "+" and isinstance(a, Value) and isinstance(a.value, Interval):
                a, b = b, a
            if operator in "+-" and isinstance(b, Value) and isinstance(b.value, Interval) and not isinstance(a, Value):
                return bind.add_interval(a, b.value if operator == "+" else b.value.times(-1))
            if isinstance(a, Value) and isinstance(b, Value):
                return constants.arithmetic(operator, a, b)
            if operator == "//":
                raise PredicateError("// is for constants only: engines do not agree on its result", is_mistake=False)
            return bind.compute(operator, (a, b))  # type: ignore[arg-type]
        if node.key == "neg":
            _allow_only(node, "this")
            a = self.side(node.this)
            return constants.negate(a) if isinstance(a, Value) else bind.compute("negate", (a,))
        if node.key == "coalesce":
            _allow_only(node, "this", "expressions")
            return bind.coalesce([self.side(arg) for arg in (node.this, *node.expressions)])
        if node.key == "arraycontains":
            return self._list_contains(node)
        if node.key in ("cast", "trycast"):
            _allow_only(node, "this", "to", "safe")
            a, target = self.side(node.this), _cast_target(node)
            if not isinstance(a, Value):
                return bind.compute("cast", (a,), target)
            if node.key == "trycast":
                raise refusal(node)
            return constants.cast(a, target)
        if node.key == "extract":
            _allow_only(node, "this", "expression")
            return self._function(node.this.name.lower(), node.expression, node)
        if node.key in _FUNCTIONS:
            _allow_only(node, "this")
            return self._function(_FUNCTIONS[node.key], node.this, node)
        return self._constant(node)

    def _function(self, name: str, arg: exp.Expression, node: exp.Expression) -> Side:
        if name not in NAMES:
            raise refusal(node)
        return bind.compute(name, (self._column(arg, name),))  # type: ignore[arg-type]

    def constant(self, node: exp.Expression) -> Value:
        side = self.side(node)
        if not isinstance(side, Value):
            with add_position(node):
                raise refusal(node)
        return side

    def _constant(self, node: exp.Expression) -> Value:
        with add_position(node):
            match node.key:
                case "null":
                    return constants.NULL
                case "placeholder":
                    value = self.parameters[id(node)]
                    if isinstance(value, LISTS):
                        raise PredicateError("a parameter that is a list goes with IN, as in id IN ?")
                    return constants.NULL if value is None else from_python(value)
                case "boolean":
                    return Value(Domain.BOOLEAN, bool(node.this))
                case "literal":
                    text = self.literals.get(id(node), node.name)
                    return Value(Domain.TEXT, text) if node.is_string else constants.number(text)
                case "interval":
                    return self._interval(node)
                case "timestamptrunc" | "datetrunc":
                    return self._date_trunc(node)
            name = node.name.lower() if node.key == "anonymous" else node.key
            domain = _NOW.get(name)
            if domain is None or any(node.args.get(arg) for arg in ("expressions", "expression")):
                raise refusal(node)
            return Value(domain, self.now_us // DAY_US if domain is Domain.DATE else self.now_us)

    def _interval(self, node: exp.Expression) -> Value:
        _allow_only(node, "this", "unit")
        if node.this is None:
            raise refusal(node)
        amount, unit = self.constant(node.this), node.args.get("unit")
        if unit is None:
            return Value(Interval, constants.parse_interval(str(amount.value)))
        if unit.key != "var" or not isinstance(amount.value, (int, str)):
            raise PredicateError("an interval is a whole number of one unit, such as INTERVAL 90 DAY")
        return Value(Interval, constants.parse_interval(f"{amount.value} {unit.name}"))

    def _date_trunc(self, node: exp.Expression) -> Value:
        _allow_only(node, "this", "unit")
        value = self.constant(node.this)
        if value.kind not in (Domain.NAIVE, Domain.ZONED):
            raise PredicateError("date_trunc is for constant timestamps only, such as now()", is_mistake=False)
        return Value(value.kind, constants.truncate(value.value, node.args["unit"].name))  # type: ignore[arg-type]


def _chain(node: exp.Expression) -> list[exp.Expression]:
    """The operands of a chain of one connective, without recursion, because chains can be long."""
    operands, pending = [], [node]
    while pending:
        top = pending.pop()
        if top.key == node.key:
            _allow_only(top, "this", "expression")
            pending += (top.expression, top.this)
        else:
            operands.append(top)
    return operands


def _names_in(node: exp.Expression) -> list[Name]:
    """The parts of a column's name; none for another node."""
    parts = []
    while node.key == "dot":
        parts.append(node.expression)
        node = node.this
    if node.key == "column":
        parts += [part for name in ("this", "table", "db", "catalog") if (part := node.args.get(name)) is not None]
    elif parts:
        parts.append(node)
    if any(part.key != "identifier" for part in parts):
        raise refusal(node)
    return [Name(part.name, bool(part.args.get("quoted"))) for part in reversed(parts)]


def _is_nan(node: exp.Expression) -> bool:
    return node.key == "column" and node.name.upper() == "NAN" and not node.this.args.get("quoted")


def _cast_target(node: exp.Expression) -> pa.DataType:
    target = node.args["to"]
    name = target.this.name if hasattr(target.this, "name") else str(target.this)
    if name == "DECIMAL":
        decimal = decimal_type(target)
        if decimal is None:
            raise PredicateError(f"DECIMAL takes {DECIMAL_LIMITS}")
        return decimal
    if name not in _CASTS or target.expressions:
        raise PredicateError(
            f"cannot cast to {target.sql('duckdb')}; there are: {', '.join(_CASTS)}, DECIMAL(p, s)", is_mistake=False
        )
    return _CASTS[name]


DECIMAL_LIMITS = f"a precision of 1 to {MAX_DIGITS} digits, and a scale of at most the precision"


def decimal_type(kind: exp.Expression) -> pa.DataType | None:
    """The type of a DECIMAL in sqlglot's tree; None beyond the limits."""
    sizes = [int(size.name) if _SIZE.fullmatch(size.name) else -1 for size in kind.expressions]
    precision, scale = (*sizes, 0)[:2] if sizes else (18, 3)  # DuckDB's default
    if len(sizes) > 2 or not 0 <= scale <= precision <= MAX_DIGITS or precision == 0:
        return None
    return pa.decimal128(precision, scale)


def _allow_only(node: exp.Expression, *allowed: str) -> None:
    """Refuses a node with other arguments."""
    if any(value and name not in allowed for name, value in node.args.items()):
        raise refusal(node)


_CONDITIONS: dict[str, Callable[[TreeReader, Any], Predicate]] = {
    "paren": TreeReader._paren, "and": TreeReader._and, "or": TreeReader._or, "not": TreeReader._not,
    "in": TreeReader._in, "between": TreeReader._between, "is": TreeReader._is, "like": TreeReader._like,
    "ilike": TreeReader._like, "escape": TreeReader._escape, "nullsafeneq": TreeReader._nullsafeneq,
    "nullsafeeq": TreeReader._nullsafeeq, "isnan": TreeReader._isnan,
    **dict.fromkeys(bind.AROUND, TreeReader._text_match),
}  # fmt: skip


def refusal(node: exp.Expression) -> PredicateError:
    text = node.sql("duckdb")
    if len(text) > 80:
        text = text[:77] + "..."
    parts = {part.key for part in node.walk()}
    if parts & {"select", "subquery", "exists"}:
        advice = "subqueries are not supported: read the values first, and pass them as a parameter, 'id IN ?'"
    elif parts & {"regexplike", "regexpilike", "similarto", "glob"}:
        advice = "regular expressions are not supported: write LIKE 'a%'"
    elif parts & {"arrayoverlaps", "bitwiseand", "bitwiseor", "dpipe", "concat", "xor"}:
        advice = "join conditions by AND and OR, and members of a list by commas; texts cannot be concatenated"
    elif parts & {"sum", "count", "max", "min", "avg"}:
        advice = "a predicate is about one row: aggregate with db.sql"
    elif node.key in _COMPARISONS:
        advice = "comparisons cannot be chained: write 1 < n AND n < 5, or BETWEEN"
    elif "column" in parts:
        named = ("coalesce", "isnan", "starts_with", "ends_with", "contains", "list_contains", *NAMES)
        advice = f"with columns you can use + - * / %, CAST, INTERVAL, {', '.join(named)}"
    else:
        advice = "constants consist of literals, CAST, + - * / // %, now(), current_date, date_trunc and INTERVAL"
    reason = f"{text} is not supported in a predicate; {advice}"
    is_chained = node.key in _COMPARISONS and getattr(node.parent, "key", "") != "paren"
    return PredicateError(reason, position=position_of(node), is_mistake=is_chained)


def position_of(node: exp.Expression) -> int | None:
    """The least position of the node and all nodes in it."""
    return min((part.meta["start"] for part in node.walk() if "start" in part.meta), default=None)


@contextmanager
def add_position(node: exp.Expression) -> Iterator[None]:
    """Adds the node's position to errors that have none."""
    try:
        yield
    except PredicateError as error:
        if error.position is not None:
            raise
        raise PredicateError(error.reason, position=position_of(node), is_mistake=error.is_mistake) from None

"""From what users write to a bound predicate: SQL text in DuckDB's dialect, or a mapping of columns to values.

sqlglot reads the text; of its nodes a closed list is understood and everything else refused, down to unknown
arguments of known nodes, so that no construct is ever taken for a similar one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from dolmen.errors import LimitError, PredicateError
from dolmen.format.schema import Field, Schema
from dolmen.format.types import TYPES
from dolmen.predicate import bind, constants, temporal
from dolmen.predicate.ast import FALSE, Constant, Predicate, columns
from dolmen.predicate.bind import Side, find_column
from dolmen.predicate.constants import Value
from dolmen.predicate.domain import Domain, Op
from dolmen.predicate.limits import (
    MAX_CONDITIONS,
    MAX_DEPTH,
    MAX_MEMBERS,
    MAX_NESTING,
    MAX_NUMBER,
    MAX_OPERATORS,
    MAX_PREFIXES,
    MAX_TEXT,
    MAX_TOKENS,
    MAX_WORDS,
    check_characters,
    check_count,
    shown,
)
from dolmen.predicate.mapping import LISTS, from_python, parse_mapping
from dolmen.predicate.temporal import Interval
from dolmen.units import DAY_US

if TYPE_CHECKING:
    from sqlglot import exp

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
Where: TypeAlias = str | Mapping[str, Any] | tuple[str, Parameters] | Predicate | None
"""A predicate as users give it: SQL text (``"user_id = 42 AND price > 3"``), a mapping of columns to values, a pair of
text and the values of its parameters, or a bound one (docs/predicates.md); None where there is none."""

_SIZE = re.compile("[0-9]{1,9}")
_TOKEN = re.compile(r"\d+\.\d*|\w+|[^\w\s]")
_TOKEN_OR_LITERAL = re.compile(rf"""'[^']*'|"[^"]*"|{_TOKEN.pattern}""")
_INSTEAD = "give many values as a mapping, {'id': [...]}, or delete by keys=[...]"
_COMPARISONS: dict[str, Op] = {"eq": "=", "neq": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/", "intdiv": "//", "mod": "%"}
_FUNCTIONS = {
    "lower": "lower", "upper": "upper", "year": "year", "month": "month", "day": "day", "dayofmonth": "day",
    "hour": "hour", "minute": "minute",
}  # fmt: skip
"""Functions of columns, by sqlglot's names."""
_NOW = frozenset(("now", "get_current_timestamp", "transaction_timestamp"))
_CASTS = {token: known.stored for known in TYPES for token in known.sql_tokens}


def parse(source: Where, schema: Schema, *, now_us: int) -> Predicate:
    """Binds a predicate to a table's schema.

    Args:
        source: SQL text such as ``"user_id = 42 AND event_time < now() - INTERVAL 90 DAY"``; or a mapping such as
            ``{"user_id": 42, "country": ["de", "fr"], "email": None}``: equality, IN and IS NULL, all of which must
            hold; or ``{"amount": {">=": 3, "<": 9}}`` with operators. Texts in it mean what a quoted literal means in
            SQL, floats what their digits mean. Or a pair of text and the values of its parameters, as in
            ``("user_id = ?", [42])`` or ``("user_id = :id", {"id": 42})``. What is bound to this schema already is
            returned as it is.
        schema: columns are looked up here without regard to case; exactly when a quoted name stands there exactly.
        now_us: microseconds since the epoch for ``now()``, ``current_timestamp`` and ``current_date`` (UTC).

    Raises:
        PredicateError: it cannot be read or does not fit the schema; with the position when it is text.
        LimitError: it is larger than the limits (limits.py).
    """
    if isinstance(source, str):
        return _parse_text(source, schema, now_us, ())
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], str):
        return _parse_text(source[0], schema, now_us, source[1])
    if isinstance(source, Mapping):
        return parse_mapping(source, schema)
    if isinstance(source, Predicate):
        return _bound_to(source, schema)
    raise PredicateError(f"a predicate is SQL text or a mapping of columns to values, not {type(source).__name__}")


def _bound_to(p: Predicate, schema: Schema) -> Predicate:
    try:
        foreign = columns(p) - schema.by_id.keys()
    except RecursionError:
        raise PredicateError(f"nested too deeply: a stored predicate has at most {MAX_DEPTH} levels") from None
    if foreign:
        raise PredicateError(f"a predicate of another table: this one has no column of id {min(foreign)}")
    return p


def with_parameters(source: Any, parameters: Parameters | None) -> Any:
    """A predicate together with the values of its parameters. Raises PredicateError if it is no text."""
    if parameters is None:
        return source
    if not isinstance(source, str):
        raise PredicateError("parameters go with a predicate's text, as in where='user_id = ?', parameters=[42]")
    return source, parameters


def _parse_text(text: str, schema: Schema, now_us: int, parameters: Parameters) -> Predicate:
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ParseError, TokenError
    from sqlglot.tokens import TokenType

    check_count(len(text), MAX_TEXT, "characters", _INSTEAD)
    check_characters(text)
    check_count(_bound_of_tokens(text), MAX_TOKENS, "words, numbers and signs", _INSTEAD)
    duckdb = Dialect.get_or_raise("duckdb")
    try:
        tokens = duckdb.tokenize(text)
        _check_tokens(tokens)
        trees = duckdb.parser().parse_into(exp.Condition, tokens, text)
        if not trees or trees[0] is None:
            raise PredicateError("an empty predicate names no rows; to mean every row, write TRUE")
        if len([tree for tree in trees if tree is not None]) > 1:
            behind = next(token.start for token in tokens if token.token_type is TokenType.SEMICOLON)
            raise PredicateError("there is more behind the semicolon: join conditions by AND or OR", position=behind)
        return _Reader(schema, now_us, _values_of(trees[0], parameters)).predicate(trees[0])
    except ParseError as error:
        raise _syntax_error(text, error.errors) from None
    except TokenError:
        raise PredicateError(
            f"can't read {shown(text)}: is a quote or a comment left open? (A quote in a text stands twice: 'it''s')"
        ) from None
    except RecursionError:
        raise PredicateError("nested too deeply: write it with fewer NOT, minus signs or parentheses") from None


def _values_of(tree: exp.Expression, parameters: Parameters) -> dict[int, Any]:
    """The value of each placeholder, by the identity of its node. Raises PredicateError."""
    if not isinstance(parameters, (list, tuple, Mapping)):
        raise PredicateError(f"parameters are a list, or a mapping of names to values, not {type(parameters).__name__}")
    places = [node for node in tree.walk(bfs=False) if node.key == "placeholder"]
    names = [str(node.args.get("this") or "") for node in places]
    if isinstance(parameters, Mapping):
        if "" in names:
            raise PredicateError("? takes its value from a list; of a mapping name it, as in user_id = :user_id")
        known: dict[str, Any] = {str(name): value for name, value in parameters.items()}
    else:
        counted = iter(range(1, len(places) + 1))
        names = [name or str(next(counted)) for name in names]
        known = {str(number): value for number, value in enumerate(parameters, 1)}
    if missing := [name for name in names if name not in known]:
        raise PredicateError(
            f"no value for parameter {shown(missing[0])}: {len(set(names))} are asked for, {len(known)} were given"
        )
    if unused := known.keys() - set(names):
        raise PredicateError(f"parameter {shown(min(unused))} stands nowhere in the text")
    return {id(node): known[name] for node, name in zip(places, names, strict=True)}


def _check_tokens(tokens: Sequence[Any]) -> None:
    """Refuses what would take long to read, or more of the stack than there may be."""
    from sqlglot.tokens import TokenType

    opens, closes, nots = TokenType.L_PAREN, TokenType.R_PAREN, TokenType.NOT
    signs = frozenset((TokenType.DASH, TokenType.PLUS))
    operators = frozenset(
        (TokenType.STAR, TokenType.SLASH, TokenType.DIV, TokenType.MOD, TokenType.DCOLON, TokenType.DOT)
    )
    ends_side = frozenset((TokenType.NUMBER, TokenType.STRING, TokenType.VAR, TokenType.IDENTIFIER, closes))
    cheap = ends_side | signs | {TokenType.COMMA, TokenType.NULL, TokenType.TRUE, TokenType.FALSE}
    nesting = words = computed = prefixes = 0
    previous = None
    for token in tokens:
        kind = token.token_type
        if kind in (TokenType.L_BRACKET, TokenType.L_BRACE):
            raise PredicateError(
                "lists and structs are not understood; write IN (1, 2), and give values as parameters, 'id = ?'",
                position=token.start,
            )
        if previous is TokenType.INTERVAL and len(token.text) > MAX_NUMBER:
            # sqlglot reads such a text itself, and not in linear time.
            raise PredicateError(f"an interval of more than {MAX_NUMBER} characters", position=token.start)
        nesting += (kind is opens) - (kind is closes)
        if nesting > MAX_NESTING:
            raise PredicateError(f"more than {MAX_NESTING} parentheses in each other", position=token.start)
        is_prefix = kind is nots or (kind in signs and previous not in ends_side)
        prefixes = prefixes + 1 if is_prefix else 0
        if prefixes > MAX_PREFIXES:
            raise PredicateError(f"more than {MAX_PREFIXES} NOTs or signs one after the other", position=token.start)
        words += kind not in cheap
        computed += kind in operators or (kind in signs and not is_prefix)
        previous = kind
    check_count(words, MAX_WORDS, "operators, keywords and parentheses", _INSTEAD)
    check_count(computed, MAX_OPERATORS, "arithmetic operators, casts and dots", "compute constants before")


def _bound_of_tokens(text: str) -> int:
    """At least as many as the text has tokens, found without reading it: a long text may be one literal, or many."""
    if len(text) <= MAX_TOKENS:
        return len(text)
    whole_literals = not any(sign in text for sign in ("--", "/*", "$", "\\", "{"))
    return sum(1 for _ in (_TOKEN_OR_LITERAL if whole_literals else _TOKEN).finditer(text))


def _syntax_error(text: str, errors: Sequence[Mapping[str, Any]]) -> PredicateError:
    if not errors or not errors[0].get("line"):
        return PredicateError(f"can't read {shown(text)} as a condition")
    first = errors[0]
    before = sum(len(line) for line in text.splitlines(keepends=True)[: first["line"] - 1])
    position = max(0, before + first["col"] - len(first["highlight"]))
    problem = first["description"]
    if "Required keyword" in problem or problem.startswith("Expecting"):
        problem = f"something is missing around {shown(first['highlight'])}"
    else:
        problem = f"unexpected {shown(first['highlight'])}"
    return PredicateError(f"{problem}; {_advice_on_syntax(text, first)}", position=position)


def _advice_on_syntax(text: str, error: Mapping[str, Any]) -> str:
    near = f"{error['start_context'][-3:]}{error['highlight']}{error['end_context'][:2]}"
    word = error["highlight"].upper()
    if any(quote in text for quote in "\u2018\u2019\u201c\u201d"):
        return "texts stand in straight single quotes, 'like this'"
    if "=>" in near or "=<" in near:
        return "write >= or <="
    if word in ("WHERE", "SELECT", "FROM", "ORDER BY", "GROUP BY", "LIMIT"):
        return "a predicate is only what stands behind WHERE, such as id = 1 AND name = 'a'"
    if "," in near:
        return "a list stands in parentheses, IN (1, 2), and decimals have a point, 0.5"
    if "%" in near:
        return "texts and patterns stand in single quotes, LIKE 'a%'; values from elsewhere are parameters, 'id = ?'"
    return "a predicate is what stands behind WHERE in DuckDB's SQL, with texts in single quotes"


class _Reader:
    """Turns sqlglot's tree into a bound predicate. Nodes are dispatched on by their (stable) ``key``."""

    def __init__(self, schema: Schema, now_us: int, parameters: Mapping[int, Any]) -> None:
        self.schema, self.now_us, self.parameters = schema, now_us, parameters
        self.conditions = 0

    def predicate(self, node: exp.Expression) -> Predicate:
        """A condition."""
        self.conditions += 1
        if self.conditions > MAX_CONDITIONS:
            raise LimitError(f"more than {MAX_CONDITIONS:,} conditions in a predicate: write IN (...) instead of OR")
        with _at(node):
            if read := _CONDITIONS.get(node.key):
                return read(self, node)
            if node.key in _COMPARISONS:
                return self._compare(node, _COMPARISONS[node.key])
            if node.key in ("column", "literal", "null", "boolean") or node.key in _ARITHMETIC:
                return self._bare(self.side(node))
            raise _refusal(node)

    def _bare(self, side: Side) -> Predicate:
        if not isinstance(side, Value):
            return bind.truth(side)
        if side.kind in (None, Domain.BOOLEAN):
            return Constant(side.value)  # type: ignore[arg-type]
        raise PredicateError(
            f"{side.name} is not a condition: repeat the column, as in n = 1 OR n = 2, or write n IN (1, 2)"
        )

    def _paren(self, node: exp.Expression) -> Predicate:
        _only(node, "this")
        return self.predicate(node.this)

    def _and(self, node: exp.Expression) -> Predicate:
        return bind.conjunction([self.predicate(arg) for arg in _chain(node)])

    def _or(self, node: exp.Expression) -> Predicate:
        return bind.disjunction([self.predicate(arg) for arg in _chain(node)])

    def _not(self, node: exp.Expression) -> Predicate:
        _only(node, "this")
        return bind.negation(self.predicate(node.this))

    def _compare(self, node: exp.Expression, op: Op) -> Predicate:
        _only(node, "this", "expression")
        if node.this.key == "tuple" and op == "=":
            return self._tuples(node.this, [node.expression])
        if "null" in (node.this.key, node.expression.key):
            wanted = "IS NOT NULL" if op == "<>" else "IS NULL"
            raise PredicateError(f"{op} NULL is TRUE for no row: write {wanted}")
        return bind.compare(op, self.side(node.this), self.side(node.expression))

    def _tuples(self, left: exp.Expression, rows: Sequence[exp.Expression]) -> Predicate:
        fields = []
        for name in left.expressions:
            field = self.side(name)
            if not isinstance(field, Field):
                raise PredicateError("tuples compare columns with constants, as in (a, b) = (1, 2)")
            fields.append(field)
        members = []
        for row in rows:
            if row.key != "tuple" or len(row.expressions) != len(fields):
                raise PredicateError("a tuple equals a tuple of the same length only, as in (a, b) = (1, 2)")
            members.append([self.constant(member) for member in row.expressions])
            if constants.NULL in members[-1]:
                raise PredicateError("tuples compare with constants that are not NULL")
        return bind.one_of_tuples(fields, members)

    def _in(self, node: exp.Expression) -> Predicate:
        _only(node, "this", "expressions", "field")
        if node.this.key == "tuple":
            _only(node, "this", "expressions")
            return self._tuples(node.this, node.expressions)
        side = self.side(node.this)
        members = self._listed(node.args["field"]) if node.args.get("field") else []
        members += [self.constant(member) for member in node.expressions]
        if not isinstance(side, Value):
            return bind.one_of(side, members)
        equal = bind.disjunction([bind.compare("=", side, member) for member in members])
        return equal if members else FALSE

    def _listed(self, node: exp.Expression) -> list[Value]:
        """The members that a parameter gives: ``id IN ?``."""
        value = self.parameters.get(id(node))
        if not isinstance(value, LISTS):
            raise PredicateError("IN takes a list in parentheses, IN (1, 2), or a parameter that is a list, IN ?")
        check_count(len(value), MAX_MEMBERS, "members of a list", "split it")
        return [constants.NULL if member is None else from_python(member) for member in value]

    def _between(self, node: exp.Expression) -> Predicate:
        _only(node, "this", "low", "high")
        return bind.between(self.side(node.this), self.side(node.args["low"]), self.side(node.args["high"]))

    def _is(self, node: exp.Expression) -> Predicate:
        _only(node, "this", "expression")
        side, what = self.side(node.this), node.expression
        if what.key == "null":
            return Constant(side.kind is None) if isinstance(side, Value) else bind.is_null(side)
        if what.key == "boolean":
            if isinstance(side, Value):
                raise PredicateError("IS TRUE and IS FALSE need a boolean column")
            holds = bind.truth(side) if what.this else bind.negation(bind.truth(side))
            return bind.conjunction([holds, bind.negation(bind.is_null(side))])
        raise PredicateError("IS is followed by NULL, TRUE, FALSE or DISTINCT FROM")

    def _nullsafeneq(self, node: exp.Expression) -> Predicate:
        _only(node, "this", "expression")
        return bind.distinct_from(self.side(node.this), self.side(node.expression))

    def _nullsafeeq(self, node: exp.Expression) -> Predicate:
        return bind.negation(self._nullsafeneq(node))

    def _like(self, node: exp.Expression, escape: str | None = None) -> Predicate:
        _only(node, "this", "expression", "negate")
        side = self.side(node.this)
        if isinstance(side, Value):
            raise PredicateError("LIKE needs a column on its left")
        p = bind.like(side, self.constant(node.expression), escape or None, node.key == "ilike")
        return bind.negation(p) if node.args.get("negate") else p

    def _escape(self, node: exp.Expression) -> Predicate:
        _only(node, "this", "expression")
        negated = node.this.key == "not"
        inner, escape = node.this.this if negated else node.this, self.constant(node.expression)
        if inner.key not in ("like", "ilike") or escape.kind is not Domain.TEXT:
            raise PredicateError("ESCAPE belongs to LIKE, with one character in single quotes")
        p = self._like(inner, str(escape.value))
        return bind.negation(p) if negated else p

    def side(self, node: exp.Expression) -> Side:
        """One side of a comparison: a column or a constant."""
        while node.key == "paren":
            _only(node, "this")
            node = node.this
        with _at(node):
            if node.key != "column":
                return self._computed(node)
            _only(node, "this")
            if node.this.key != "identifier":
                raise _refusal(node)
            return find_column(node.name, self.schema, quoted=bool(node.this.args.get("quoted")))

    def _computed(self, node: exp.Expression) -> Side:
        """A constant, or what is computed of columns."""
        if node.key in _ARITHMETIC:
            _only(node, "this", "expression", "safe", "typed")
            operator = _ARITHMETIC[node.key]
            a, b = self.side(node.this), self.side(node.expression)
            if isinstance(a, Value) and isinstance(b, Value):
                return constants.arithmetic(operator, a, b)
            if operator == "//":
                raise PredicateError("// is for constants only: engines don't agree on it")
            return bind.compute(operator, (a, b))  # type: ignore[arg-type]
        if node.key == "neg":
            _only(node, "this")
            a = self.side(node.this)
            return constants.negate(a) if isinstance(a, Value) else bind.compute("negate", (a,))
        if node.key in ("cast", "trycast"):
            _only(node, "this", "to", "safe")
            a, target = self.side(node.this), _cast_target(node)
            if not isinstance(a, Value):
                return bind.compute("cast", (a,), target)
            if node.key == "trycast":
                raise _refusal(node)
            return constants.cast(a, target)
        if node.key == "extract":
            _only(node, "this", "expression")
            return self._function(node.this.name.lower(), node.expression, node)
        if node.key in _FUNCTIONS:
            _only(node, "this")
            return self._function(_FUNCTIONS[node.key], node.this, node)
        return self._constant(node)

    def _function(self, name: str, arg: exp.Expression, node: exp.Expression) -> Side:
        if name not in _FUNCTIONS.values():
            raise _refusal(node)
        side = self.side(arg)
        if isinstance(side, Value):
            raise PredicateError(f"{name} is for columns: write what it gives of a constant")
        return bind.compute(name, (side,))  # type: ignore[arg-type]

    def constant(self, node: exp.Expression) -> Value:
        """A constant expression, folded."""
        side = self.side(node)
        if not isinstance(side, Value):
            with _at(node):
                raise _refusal(node)
        return side

    def _constant(self, node: exp.Expression) -> Value:
        """A constant that is no arithmetic."""
        with _at(node):
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
                    return Value(Domain.TEXT, node.name) if node.is_string else constants.number(node.name)
                case "interval":
                    return self._interval(node)
                case "timestamptrunc" | "datetrunc":
                    return self._truncated(node)
            name = node.name.lower() if node.key == "anonymous" else node.key
            if not any(node.args.get(arg) for arg in ("expressions", "expression")):
                if name in _NOW or name == "currenttimestamp":
                    return Value(Domain.ZONED, self.now_us)
                if name == "currentdate":
                    return Value(Domain.DATE, self.now_us // DAY_US)
                if name in ("localtimestamp", "current_localtimestamp"):
                    return Value(Domain.NAIVE, self.now_us)
            raise _refusal(node)

    def _interval(self, node: exp.Expression) -> Value:
        _only(node, "this", "unit")
        if node.this is None:
            raise _refusal(node)
        amount, unit = self.constant(node.this), node.args.get("unit")
        if unit is None:
            return Value(Interval, temporal.parse_interval(str(amount.value)))
        if unit.key != "var" or not isinstance(amount.value, (int, str)):
            raise PredicateError("an interval is a whole number of one unit, such as INTERVAL 90 DAY")
        return Value(Interval, temporal.parse_interval(f"{amount.value} {unit.name}"))

    def _truncated(self, node: exp.Expression) -> Value:
        _only(node, "this", "unit")
        value = self.constant(node.this)
        if value.kind not in (Domain.NAIVE, Domain.ZONED):
            raise PredicateError("date_trunc is understood for constant timestamps only, such as now()")
        return Value(value.kind, temporal.truncate(value.value, node.args["unit"].name))  # type: ignore[arg-type]


def _chain(node: exp.Expression) -> list[exp.Expression]:
    """The operands of a chain of the same connective, without recursion: chains are long."""
    operands, pending = [], [node]
    while pending:
        top = pending.pop()
        if top.key == node.key:
            _only(top, "this", "expression")
            pending += (top.expression, top.this)
        else:
            operands.append(top)
    return operands


def _cast_target(node: exp.Expression) -> pa.DataType:
    target = node.args["to"]
    name = target.this.name if hasattr(target.this, "name") else str(target.this)
    if name == "DECIMAL":
        sizes = [int(param.name) if _SIZE.fullmatch(param.name) else -1 for param in target.expressions] or [18, 3]
        precision, scale = (*sizes, 0)[:2]
        if len(sizes) > 2 or not 0 <= scale <= precision <= constants.MAX_DIGITS or precision == 0:
            raise PredicateError(f"DECIMAL takes 1 to {constants.MAX_DIGITS} digits and no more of them as fraction")
        return pa.decimal128(precision, scale)
    if name not in _CASTS or target.expressions:
        raise PredicateError(f"no cast to {target.sql('duckdb')} here; there are {', '.join(_CASTS)}, DECIMAL(p, s)")
    return _CASTS[name]


def _only(node: exp.Expression, *known: str) -> None:
    """Refuses a node with arguments that are not understood."""
    if any(value and name not in known for name, value in node.args.items()):
        raise _refusal(node)


def _refusal(node: exp.Expression) -> PredicateError:
    text = node.sql("duckdb")
    if len(text) > 80:
        text = text[:77] + "..."
    parts = {part.key for part in node.walk()}
    if parts & {"select", "subquery", "exists"}:
        advice = "there are no subqueries: read the values first, and give them as a parameter, 'id IN ?'"
    elif parts & {"regexplike", "regexpilike", "similarto", "glob"}:
        advice = "there are no regular expressions: write LIKE 'a%'"
    elif parts & {"arrayoverlaps", "bitwiseand", "bitwiseor", "dpipe", "concat", "xor"}:
        advice = "join conditions by AND and OR, and the members of a list by commas; texts are not joined"
    elif parts & {"sum", "count", "max", "min", "avg"}:
        advice = "a predicate looks at one row: aggregate with db.sql"
    elif node.key in _COMPARISONS:
        advice = "a comparison is not compared again: write 1 < n AND n < 5, or BETWEEN"
    elif node.key == "column" and node.args.get("table"):
        advice = "write the column's name alone"
    elif "column" in parts:
        advice = f"of columns there are + - * / %, CAST and {', '.join(dict.fromkeys(_FUNCTIONS.values()))}"
    else:
        advice = "only literals, CAST, + - * / // %, now(), current_date, date_trunc and INTERVAL make constants"
    return PredicateError(f"{text} is not understood in a predicate; {advice}", position=_position(node))


def _position(node: exp.Expression) -> int | None:
    """Where the node begins: the least position that it or anything in it has."""
    return min((part.meta["start"] for part in node.walk() if "start" in part.meta), default=None)


@contextmanager
def _at(node: exp.Expression) -> Iterator[None]:
    """Adds the node's position to errors that have none."""
    try:
        yield
    except PredicateError as error:
        if error.position is not None:
            raise
        raise PredicateError(error.reason, position=_position(node)) from None


_CONDITIONS: dict[str, Callable[[_Reader, Any], Predicate]] = {
    "paren": _Reader._paren, "and": _Reader._and, "or": _Reader._or, "not": _Reader._not, "in": _Reader._in,
    "between": _Reader._between, "is": _Reader._is, "like": _Reader._like, "ilike": _Reader._like,
    "escape": _Reader._escape, "nullsafeneq": _Reader._nullsafeneq, "nullsafeeq": _Reader._nullsafeeq,
}  # fmt: skip

"""The tokens of a predicate's text, refused if they would take long to read, or more stack than there may be.

Errors for texts that are not understood as predicates: what was found, where, and what to write instead.

Texts that differ in their literals only are parsed once: thousands of deletes say the same of other values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dolmen.errors import PredicateError
from dolmen.predicate.functions import NAMES
from dolmen.predicate.limits import (
    MAX_NESTING,
    MAX_NUMBER,
    MAX_OPERATORS,
    MAX_PREFIXES,
    MAX_TEXT,
    MAX_TOKENS,
    MAX_WORDS,
    check_characters,
    check_count,
    short_repr,
)

if TYPE_CHECKING:
    from sqlglot import exp


_TOKEN = re.compile(r"\d+\.\d*|\w+|[^\w\s]")


_TOKEN_OR_LITERAL = re.compile(rf"""'[^']*'|"[^"]*"|{_TOKEN.pattern}""")


_ADVICE = "give many values as a mapping, {'id': [...]}, or delete by keys=[...]"


def tokenize(text: str) -> list[Any]:
    """sqlglot's tokens of a text.

    Raises:
        LimitError, PredicateError: the text is larger than the limits (limits.py).
        sqlglot.errors.TokenError: a quote or a comment is left open.
    """
    from sqlglot.dialects.dialect import Dialect

    check_count(len(text), MAX_TEXT, "characters", _ADVICE)
    check_characters(text)
    check_count(_token_bound(text), MAX_TOKENS, "words, numbers and signs", _ADVICE)
    tokens: list[Any] = Dialect.get_or_raise("duckdb").tokenize(text)
    _check_tokens(tokens)
    return tokens


def _check_tokens(tokens: Sequence[Any]) -> None:
    """Raises LimitError or PredicateError for tokens beyond the limits."""
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
    check_count(words, MAX_WORDS, "operators, keywords and parentheses", _ADVICE)
    check_count(computed, MAX_OPERATORS, "arithmetic operators, casts and dots", "compute constants before")


def _token_bound(text: str) -> int:
    """An upper bound of the number of tokens, found without tokenizing: a long text may be one literal, or many."""
    if len(text) <= MAX_TOKENS:
        return len(text)
    whole_literals = not any(sign in text for sign in ("--", "/*", "$", "\\", "{"))
    return sum(1 for _ in (_TOKEN_OR_LITERAL if whole_literals else _TOKEN).finditer(text))


_COMPARISONS = frozenset(("eq", "neq", "lt", "lte", "gt", "gte"))
"""sqlglot's names of comparisons."""


def syntax_error(text: str, errors: Sequence[Mapping[str, Any]]) -> PredicateError:
    """The error for what sqlglot could not read.

    Args:
        errors: as sqlglot tells them.
    """
    if not errors or not errors[0].get("line"):
        return PredicateError(f"can't read {short_repr(text)} as a condition")
    first = errors[0]
    before = sum(len(line) for line in text.splitlines(keepends=True)[: first["line"] - 1])
    position = max(0, before + first["col"] - len(first["highlight"]))
    problem = first["description"]
    if "Required keyword" in problem or problem.startswith("Expecting"):
        problem = f"something is missing around {short_repr(first['highlight'])}"
    else:
        problem = f"unexpected {short_repr(first['highlight'])}"
    return PredicateError(f"{problem}; {_syntax_advice(text, first)}", position=position)


def _syntax_advice(text: str, error: Mapping[str, Any]) -> str:
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


def refusal(node: exp.Expression) -> PredicateError:
    """The error for a node that predicates do not have."""
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
        advice = f"of columns there are + - * / %, CAST and {', '.join(NAMES)}"
    else:
        advice = "only literals, CAST, + - * / // %, now(), current_date, date_trunc and INTERVAL make constants"
    return PredicateError(f"{text} is not understood in a predicate; {advice}", position=position_of(node))


def position_of(node: exp.Expression) -> int | None:
    """Where the node begins: the least position that it or anything in it has."""
    return min((part.meta["start"] for part in node.walk() if "start" in part.meta), default=None)


@contextmanager
def adding_position(node: exp.Expression) -> Iterator[None]:
    """Adds the node's position to errors that have none."""
    try:
        yield
    except PredicateError as error:
        if error.position is not None:
            raise
        raise PredicateError(error.reason, position=position_of(node)) from None


MAX_CHARACTERS = 1_000
"""Longer texts are parsed each time."""


_FIRST = 1_000


_OPERATOR = r"(?:=|<>|!=|<=|>=|<|>)"


_LITERAL = r"(?:[0-9]{1,18}(?:\.[0-9]{1,18})?|'[^'\\]*')"


_CONDITION = rf"[A-Za-z_][A-Za-z0-9_]*\s*{_OPERATOR}\s*{_LITERAL}"


_SIMPLE = re.compile(rf"\s*{_CONDITION}(?:\s+(?i:AND|OR)\s+{_CONDITION})*\s*")


_COMPARED = re.compile(rf"({_OPERATOR}\s*)({_LITERAL})")
"""In a simple text an operator stands before each literal, and nowhere else but in texts."""


@dataclass(frozen=True)
class ParsedShape:
    """The tree of all texts that differ in literals only.

    Args:
        tree: sqlglot's, of one of them.
        places: which literal, counted from 0, a node of the tree is, by its identity.
    """

    tree: exp.Expression
    places: Mapping[int, int]


def parse_shape(text: str) -> tuple[ParsedShape, Mapping[int, str]] | None:
    """The tree of a text and what its literals say, by the identity of their nodes; None for other texts than columns
    compared with literals, joined by AND and OR."""
    if len(text) > MAX_CHARACTERS or not _SIMPLE.fullmatch(text):
        return None
    literals = [literal[1:-1] if literal[0] == "'" else literal for _, literal in _COMPARED.findall(text)]
    # Each literal is one of its kind that occurs once, so that its node is told from the others.
    counted = iter(range(_FIRST, _FIRST + len(literals)))
    shape = _parse(_COMPARED.sub(lambda found: f"{found[1]}{_like(found[2], next(counted))}", text))
    if shape is None or len(shape.places) != len(literals):
        return None
    return shape, {node: literals[place] for node, place in shape.places.items()}


def _like(literal: str, number: int) -> str:
    return f"'{number}'" if literal[0] == "'" else str(number)


@lru_cache(maxsize=256)
def _parse(text: str) -> ParsedShape | None:
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ParseError, TokenError

    duckdb = Dialect.get_or_raise("duckdb")
    try:
        trees = duckdb.parser().parse_into(exp.Condition, duckdb.tokenize(text), text)
    except (ParseError, TokenError):
        return None
    if len(trees) != 1 or trees[0] is None:
        return None
    literals = [node for node in trees[0].walk(bfs=False) if node.key == "literal"]
    places = {id(node): int(node.name) - _FIRST for node in literals}
    return ParsedShape(trees[0], places) if sorted(places.values()) == list(range(len(literals))) else None

"""Parses SQL text into sqlglot's trees.

A text that would take long to parse, or too much stack, is refused by its tokens. Texts that differ only in their
literals are parsed once: thousands of deletes differ only in their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dolmen.errors import PredicateError, short_repr
from dolmen.predicate.ast import check_count
from dolmen.predicate.constants import MAX_NUMBER, check_characters

if TYPE_CHECKING:
    from sqlglot import exp

MAX_TEXT = 1_000_000  # characters of a predicate's text
MAX_TOKENS = 100_000  # names, literals and signs in a predicate's text: about twice as many as an IN has members
MAX_WORDS = 25_000  # the most operators, keywords and opening parentheses, which take longest to parse
MAX_OPERATORS = 5_000  # ``+ - * / // % ::`` and dots between two sides, without signs
MAX_PREFIXES = 20  # consecutive NOTs and signs
MAX_NESTING = 20  # levels of nested parentheses, which sqlglot can parse within Python's stack from any caller

_TOKEN = re.compile(r"\d+\.\d*|\w+|[^\w\s]")
_TOKEN_OR_LITERAL = re.compile(rf"""'[^']*'|"[^"]*"|{_TOKEN.pattern}""")
_ADVICE = "give many values as a mapping, {'id': [...]}, or delete by keys=[...]"


def tokenize(text: str) -> list[Any]:
    """The tokens of a text, by sqlglot.

    Raises LimitError, PredicateError: the text exceeds the limits above; sqlglot.errors.TokenError: a quote or a
    comment is left open.
    """
    from sqlglot.dialects.dialect import Dialect

    check_count(len(text), MAX_TEXT, "characters", _ADVICE)
    check_characters(text)
    check_count(_token_bound(text), MAX_TOKENS, "words, numbers and signs", _ADVICE)
    tokens: list[Any] = Dialect.get_or_raise("duckdb").tokenize(text)
    _check_tokens(tokens)
    return tokens


def _check_tokens(tokens: Sequence[Any]) -> None:
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
                "lists and structs are not supported; write IN (1, 2), pass values as parameters, 'id = ?', and write "
                "the field of a struct as address.zip",
                position=token.start,
                is_mistake=False,
            )
        if previous is TokenType.INTERVAL and len(token.text) > MAX_NUMBER:
            # sqlglot parses such a text itself, and not in linear time.
            raise PredicateError(f"an interval has more than {MAX_NUMBER} characters", position=token.start)
        nesting += (kind is opens) - (kind is closes)
        if nesting > MAX_NESTING:
            raise PredicateError(f"more than {MAX_NESTING} nested parentheses", position=token.start)
        is_prefix = kind is nots or (kind in signs and previous not in ends_side)
        prefixes = prefixes + 1 if is_prefix else 0
        if prefixes > MAX_PREFIXES:
            raise PredicateError(f"more than {MAX_PREFIXES} NOTs or signs in a row", position=token.start)
        words += kind not in cheap
        computed += kind in operators or (kind in signs and not is_prefix)
        previous = kind
    check_count(words, MAX_WORDS, "operators, keywords and parentheses", _ADVICE)
    check_count(computed, MAX_OPERATORS, "arithmetic operators, casts and dots", "compute constants first")


def _token_bound(text: str) -> int:
    """An upper bound of the number of tokens, without tokenizing: a long text may be one literal or many."""
    if len(text) <= MAX_TOKENS:
        return len(text)
    whole_literals = not any(sign in text for sign in ("--", "/*", "$", "\\", "{"))
    return sum(1 for _ in (_TOKEN_OR_LITERAL if whole_literals else _TOKEN).finditer(text))


MAX_CHARACTERS = 1_000  # longer texts are parsed each time
_FIRST_PLACEHOLDER = 1_000
_OPERATOR = r"(?:=|<>|!=|<=|>=|<|>)"
_LITERAL = r"(?:[0-9]{1,18}(?:\.[0-9]{1,18})?|'[^'\\]*')"
_COLUMN = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_CONDITION = rf"{_COLUMN}\s*{_OPERATOR}\s*{_LITERAL}"
_SIMPLE = re.compile(rf"\s*{_CONDITION}(?:\s+(?i:AND|OR)\s+{_CONDITION})*\s*")
_COMPARED = re.compile(rf"({_OPERATOR}\s*)({_LITERAL})")
"""In a simple text, operators occur only before literals and inside quoted texts."""


class ParsedShape(Struct, frozen=True):
    """sqlglot's tree of texts that differ only in their literals, and each literal's index by its node's identity."""

    tree: exp.Expression
    literals: Mapping[int, int]


def parse_shape(text: str) -> tuple[ParsedShape, Mapping[int, str]] | None:
    """The tree of a text, and its literals by the identity of their nodes. None unless the text only compares columns
    with literals, joined by AND and OR."""
    if len(text) > MAX_CHARACTERS or not _SIMPLE.fullmatch(text):
        return None
    literals = [literal[1:-1] if literal[0] == "'" else literal for _, literal in _COMPARED.findall(text)]
    # Each literal is replaced by a unique one of its kind, which identifies its node in the tree.
    counted = iter(range(_FIRST_PLACEHOLDER, _FIRST_PLACEHOLDER + len(literals)))
    shape = _parse(_COMPARED.sub(lambda found: f"{found[1]}{_unique(found[2], next(counted))}", text))
    if shape is None or len(shape.literals) != len(literals):
        return None
    return shape, {node: literals[index] for node, index in shape.literals.items()}


def _unique(literal: str, number: int) -> str:
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
    indexes = {id(node): int(node.name) - _FIRST_PLACEHOLDER for node in literals}
    return ParsedShape(trees[0], indexes) if sorted(indexes.values()) == list(range(len(literals))) else None


def syntax_error(text: str, errors: Sequence[Mapping[str, Any]]) -> PredicateError:
    """The error for a text that sqlglot could not parse, by the errors that sqlglot reports."""
    if not errors or not errors[0].get("line"):
        return PredicateError(f"can't read {short_repr(text)} as a condition", is_mistake=False)
    first = errors[0]
    before = sum(len(line) for line in text.splitlines(keepends=True)[: first["line"] - 1])
    position = max(0, before + first["col"] - len(first["highlight"]))
    problem = first["description"]
    if "Required keyword" in problem or problem.startswith("Expecting"):
        problem = f"something is missing around {short_repr(first['highlight'])}"
    else:
        problem = f"unexpected {short_repr(first['highlight'])}"
    return PredicateError(f"{problem}; {_syntax_advice(text, first)}", position=position, is_mistake=False)


def _syntax_advice(text: str, error: Mapping[str, Any]) -> str:
    near = f"{error['start_context'][-3:]}{error['highlight']}{error['end_context'][:2]}"
    word = error["highlight"].upper()
    if any(quote in text for quote in "\u2018\u2019\u201c\u201d"):
        return "write texts in straight single quotes, 'like this'"
    if "=>" in near or "=<" in near:
        return "write >= or <="
    if word in ("WHERE", "SELECT", "FROM", "ORDER BY", "GROUP BY", "LIMIT"):
        return "write only the condition after WHERE, such as id = 1 AND name = 'a'"
    if "," in near:
        return "write lists in parentheses, IN (1, 2), and decimals with a point, 0.5"
    if "%" in near:
        return "write texts and patterns in single quotes, LIKE 'a%', and other values as parameters, 'id = ?'"
    return "write a condition as after WHERE in DuckDB's SQL, with texts in single quotes"

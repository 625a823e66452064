"""The tokens of a predicate's text, refused if they would take long to read, or more stack than there may be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dolmen.errors import PredicateError
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
)

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

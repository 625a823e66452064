"""Reads predicates as users write them: SQL text in DuckDB's dialect, or a mapping of columns to values.

sqlglot parses the text. A text that would take it long, or too much stack, is refused by its tokens. Texts that differ
only in their literals are parsed once: thousands of deletes differ only in their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from dolmen.base import pc
from dolmen.errors import LimitError, PredicateError, short_repr
from dolmen.format.schema import Schema
from dolmen.predicate.ast import MAX_DEPTH, Predicate, check_count, columns
from dolmen.predicate.constants import MAX_NUMBER, check_characters
from dolmen.predicate.mapping_reader import parse_mapping
from dolmen.predicate.tree_reader import TreeReader

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

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
Where: TypeAlias = "str | Mapping[str, Any] | tuple[str, Parameters] | Predicate | pc.Expression | None"
"""A predicate as users write it: SQL text (``"user_id = 42 AND price > 3"``), a mapping of columns to values, a pair of
text and the values of its parameters, an expression of pyarrow or Polars (which ``read_predicate`` reads), or a bound
predicate (docs/predicates.md); None for no predicate."""


def parse(source: Where, schema: Schema, *, now_us: int) -> Predicate:
    """Parses a predicate, and binds it to a table's columns.

    Args:
        source: SQL text such as ``"user_id = 42 AND event_time < now() - INTERVAL 90 DAY"``; or a mapping such as
            ``{"user_id": 42, "country": ["de", "fr"], "email": None}``: equality, IN and IS NULL, joined by AND; or
            ``{"amount": {">=": 3, "<": 9}}`` with operators. A text in a mapping means the same as a quoted literal in
            SQL, and a float means its decimal digits. Or a pair of text and the values of its parameters, as in
            ``("user_id = ?", [42])`` or ``("user_id = :id", {"id": 42})``. A predicate that is already bound to this
            schema is returned as it is.
        schema: the table's columns. Names ignore case, but a quoted name prefers a column with exactly that name.
        now_us: microseconds since the epoch for ``now()``, ``current_timestamp`` and ``current_date`` (UTC).

    Raises:
        PredicateError: the predicate cannot be parsed or does not match the schema; for text, it has the position.
        LimitError: the predicate exceeds the limits (docs/predicates.md).
    """
    if isinstance(source, str):
        return _parse_text(source, schema, now_us, ())
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], str):
        return _parse_text(source[0], schema, now_us, source[1])
    if isinstance(source, Mapping):
        return parse_mapping(source, schema)
    if isinstance(source, Predicate):
        return _check_bound(source, schema)
    raise PredicateError(f"a predicate is SQL text or a mapping of columns to values, not {type(source).__name__}")


def _check_bound(p: Predicate, schema: Schema) -> Predicate:
    try:
        foreign = columns(p) - schema.by_id.keys()
    except RecursionError:
        raise PredicateError(f"nested too deeply: a stored predicate has at most {MAX_DEPTH} levels") from None
    if foreign:
        raise PredicateError(f"the predicate was bound to another table: this one has no column with id {min(foreign)}")
    return p


def with_parameters(source: Any, parameters: Parameters | None) -> Any:
    """A predicate with the values of its parameters. Raises PredicateError if the predicate is not text."""
    if parameters is None:
        return source
    if not isinstance(source, str):
        raise PredicateError("parameters go with a predicate's text, as in where='user_id = ?', parameters=[42]")
    return source, parameters


def _parse_text(text: str, schema: Schema, now_us: int, parameters: Parameters) -> Predicate:
    if isinstance(parameters, tuple) and not parameters and (found := parse_shape(check_characters(text))):
        shape, literals = found
        with suppress(PredicateError, LimitError):  # raised again below, with their position
            return TreeReader(schema, now_us, {}, literals).predicate(shape.tree)
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ParseError, TokenError
    from sqlglot.tokens import TokenType

    try:
        tokens = _tokenize(text)
        trees = Dialect.get_or_raise("duckdb").parser().parse_into(exp.Condition, tokens, text)
        if not trees or trees[0] is None:
            raise PredicateError("an empty predicate names no rows; to mean every row, write TRUE")
        if len([tree for tree in trees if tree is not None]) > 1:
            behind = next(token.start for token in tokens if token.token_type is TokenType.SEMICOLON)
            raise PredicateError("there is text after the semicolon: join conditions by AND or OR", position=behind)
        return TreeReader(schema, now_us, _values_of(trees[0], parameters)).predicate(trees[0])
    except ParseError as error:
        raise _syntax_error(text, error.errors) from None
    except TokenError:
        raise PredicateError(
            f"can't read {short_repr(text)}: a quote or a comment is left open; in a text write a quote twice: 'it''s'"
        ) from None
    except RecursionError:
        raise PredicateError("nested too deeply: write it with fewer NOT, minus signs or parentheses") from None


def _values_of(tree: exp.Expression, parameters: Parameters) -> dict[int, Any]:
    """The value of each placeholder, by the identity of its node. Raises PredicateError."""
    if not isinstance(parameters, (list, tuple, Mapping)):
        raise PredicateError(f"parameters are a list, or a mapping of names to values, not {type(parameters).__name__}")
    placeholders = [node for node in tree.walk(bfs=False) if node.key == "placeholder"]
    names = [str(node.args.get("this") or "") for node in placeholders]
    if isinstance(parameters, Mapping):
        if "" in names:
            raise PredicateError("? takes its value from a list; for a mapping, write a name, as in user_id = :user_id")
        values: dict[str, Any] = {str(name): value for name, value in parameters.items()}
    else:
        counted = iter(range(1, len(placeholders) + 1))
        names = [name or str(next(counted)) for name in names]
        values = {str(number): value for number, value in enumerate(parameters, 1)}
    if missing := [name for name in names if name not in values]:
        raise PredicateError(
            f"no value for parameter {short_repr(missing[0])}: the text needs {len(set(names))}, and "
            f"{len(values)} were given"
        )
    if unused := values.keys() - set(names):
        raise PredicateError(f"parameter {short_repr(min(unused))} is not in the text")
    return {id(node): values[name] for node, name in zip(placeholders, names, strict=True)}


def _tokenize(text: str) -> list[Any]:
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
    shape = _parse_template(_COMPARED.sub(lambda found: f"{found[1]}{_unique(found[2], next(counted))}", text))
    if shape is None or len(shape.literals) != len(literals):
        return None
    return shape, {node: literals[index] for node, index in shape.literals.items()}


def _unique(literal: str, number: int) -> str:
    return f"'{number}'" if literal[0] == "'" else str(number)


@lru_cache(maxsize=256)
def _parse_template(text: str) -> ParsedShape | None:
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


def _syntax_error(text: str, errors: Sequence[Mapping[str, Any]]) -> PredicateError:
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

"""Reads predicates as users write them: SQL text in DuckDB's dialect, or a mapping of columns to values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from dolmen.base import pc
from dolmen.errors import LimitError, PredicateError, short_repr
from dolmen.format.schema import Schema
from dolmen.predicate.ast import MAX_DEPTH, Predicate, columns
from dolmen.predicate.constants import check_characters
from dolmen.predicate.mapping_reader import parse_mapping
from dolmen.predicate.sql_parser import parse_shape, syntax_error, tokenize
from dolmen.predicate.tree_reader import TreeReader

if TYPE_CHECKING:
    from sqlglot import exp


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
        tokens = tokenize(text)
        trees = Dialect.get_or_raise("duckdb").parser().parse_into(exp.Condition, tokens, text)
        if not trees or trees[0] is None:
            raise PredicateError("an empty predicate names no rows; to mean every row, write TRUE")
        if len([tree for tree in trees if tree is not None]) > 1:
            behind = next(token.start for token in tokens if token.token_type is TokenType.SEMICOLON)
            raise PredicateError("there is text after the semicolon: join conditions by AND or OR", position=behind)
        return TreeReader(schema, now_us, _values_of(trees[0], parameters)).predicate(trees[0])
    except ParseError as error:
        raise syntax_error(text, error.errors) from None
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

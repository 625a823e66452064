"""From what users write to a bound predicate: SQL text in DuckDB's dialect, or a mapping of columns to values.

sqlglot reads the text, and ``dolmen.predicate.grammar`` the tree that sqlglot makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from dolmen.errors import LimitError, PredicateError
from dolmen.format.schema import Schema
from dolmen.predicate.ast import Predicate, columns
from dolmen.predicate.grammar import TreeReader
from dolmen.predicate.lexing import parse_shape, syntax_error, tokenize
from dolmen.predicate.limits import MAX_DEPTH, check_characters, short_repr
from dolmen.predicate.mapping import parse_mapping

if TYPE_CHECKING:
    from sqlglot import exp


Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
Where: TypeAlias = str | Mapping[str, Any] | tuple[str, Parameters] | Predicate | None
"""A predicate as users give it: SQL text (``"user_id = 42 AND price > 3"``), a mapping of columns to values, a pair of
text and the values of its parameters, or a bound one (docs/predicates.md); None where there is none."""


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
    if isinstance(parameters, tuple) and not parameters and (known := parse_shape(check_characters(text))):
        shape, literals = known
        with suppress(PredicateError, LimitError):  # which are told below, with their position
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
            raise PredicateError("there is more behind the semicolon: join conditions by AND or OR", position=behind)
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
            f"no value for parameter {short_repr(missing[0])}: {len(set(names))} are asked for, {len(known)} were given"
        )
    if unused := known.keys() - set(names):
        raise PredicateError(f"parameter {short_repr(min(unused))} is not in the text")
    return {id(node): known[name] for node, name in zip(places, names, strict=True)}

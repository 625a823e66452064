"""Errors for texts that are not understood as predicates: what was found, where, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dolmen.errors import PredicateError
from dolmen.predicate.functions import NAMES
from dolmen.predicate.limits import short_repr

if TYPE_CHECKING:
    from sqlglot import exp

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

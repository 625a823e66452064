"""Predicates, generated together with what they mean in Python: SQL's logic of three values, None being NULL."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from machine.columns import Column

Row = Mapping[str, Any]
Truth = bool | None

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """A predicate.

    Args:
        where: as dolmen takes it, text or a mapping.
        truth: what it says of a row.
    """

    where: str | dict[str, Any]
    truth: Callable[[Row], Truth]

    def holds(self, row: Row) -> bool:
        """Whether it is TRUE; NULL is not."""
        return self.truth(row) is True

    def __repr__(self) -> str:
        return repr(self.where)


def negation(truth: Truth) -> Truth:
    """SQL's NOT."""
    return None if truth is None else not truth


def conjunction(truths: Sequence[Truth]) -> Truth:
    """SQL's AND."""
    if False in truths:
        return False
    return None if None in truths else True


def disjunction(truths: Sequence[Truth]) -> Truth:
    """SQL's OR."""
    return negation(conjunction([negation(truth) for truth in truths]))


def texts(columns: Sequence[Column]) -> st.SearchStrategy[Condition]:
    """Predicates as SQL text."""
    return st.recursive(st.sampled_from(columns).flatmap(lambda column: _leaf(column, columns)), _joined, max_leaves=4)


def conditions(columns: Sequence[Column]) -> st.SearchStrategy[Condition]:
    """Predicates in all forms in which dolmen takes them."""
    text, mapping = texts(columns), st.sampled_from(columns).flatmap(_mapping)
    return st.integers(0, 12).flatmap(lambda kind: st.just(EVERYTHING) if kind == 12 else mapping if kind > 8 else text)


EVERYTHING = Condition("TRUE", lambda row: True)


def _joined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    return st.one_of(
        st.builds(lambda a, b: _both("AND", conjunction, a, b), inner, inner),
        st.builds(lambda a, b: _both("OR", disjunction, a, b), inner, inner),
        st.builds(lambda a: Condition(f"NOT ({a.where})", lambda row: negation(a.truth(row))), inner),
    )


def _both(word: str, truth: Callable[[Sequence[Truth]], Truth], a: Condition, b: Condition) -> Condition:
    return Condition(f"({a.where}) {word} ({b.where})", lambda row: truth([a.truth(row), b.truth(row)]))


def _mapping(column: Column) -> st.SearchStrategy[Condition]:
    def build(value: Any) -> Condition:
        name = column.name
        if value is None:
            return Condition({name: None}, lambda row: row[name] is None)
        return Condition(
            {name: column.kind.python(value)}, lambda row: _compared(column, operator.eq, row[name], value)
        )

    return st.builds(build, st.none() | column.kind.values)


def _compared(column: Column, compare: Callable[[Any, Any], bool], a: Any, b: Any) -> Truth:
    if a is None or b is None:
        return None
    return compare(column.kind.order(a), column.kind.order(b))


def _leaf(column: Column, columns: Sequence[Column]) -> st.SearchStrategy[Condition]:
    name, literal = column.name, column.kind.literal
    value = column.kind.values
    maybe = st.none() | value

    def sql(value: Any) -> str:
        return "NULL" if value is None else literal(value)

    def compare(word: str, value: Any) -> Condition:
        meaning = OPERATORS[word]
        return Condition(f"{name} {word} {sql(value)}", lambda row: _compared(column, meaning, row[name], value))

    def distinct(negated: bool, value: Any) -> Condition:
        def truth(row: Row) -> bool:
            same = _compared(column, operator.eq, row[name], value)
            same = row[name] is None and value is None if same is None else same
            return same if negated else not same

        return Condition(f"{name} IS {'NOT ' if negated else ''}DISTINCT FROM {sql(value)}", truth)

    def null(negated: bool) -> Condition:
        return Condition(f"{name} IS {'NOT ' if negated else ''}NULL", lambda row: (row[name] is None) != negated)

    def one_of(negated: bool, members: list[Any]) -> Condition:
        def truth(row: Row) -> Truth:
            found = disjunction([_compared(column, operator.eq, row[name], member) for member in members])
            return negation(found) if negated else found

        return Condition(f"{name} {'NOT ' if negated else ''}IN ({', '.join(map(sql, members))})", truth)

    def between(negated: bool, low: Any, high: Any) -> Condition:
        def truth(row: Row) -> Truth:
            bounds = [(operator.ge, low), (operator.le, high)]
            found = conjunction([_compared(column, compare, row[name], bound) for compare, bound in bounds])
            return negation(found) if negated else found

        return Condition(f"{name} {'NOT ' if negated else ''}BETWEEN {sql(low)} AND {sql(high)}", truth)

    def columns_compared(word: str, other: Column) -> Condition:
        meaning = OPERATORS[word]
        return Condition(
            f"{name} {word} {other.name}", lambda row: _compared(column, meaning, row[name], row[other.name])
        )

    words = st.sampled_from(list(OPERATORS))
    forms = [
        st.builds(compare, words, value),
        st.builds(one_of, st.booleans(), st.lists(maybe, min_size=1, max_size=3)),
        st.builds(between, st.booleans(), value, value),
        st.builds(null, st.booleans()),
        st.builds(distinct, st.booleans(), value),
        st.builds(columns_compared, words, st.sampled_from([c for c in columns if c.kind is column.kind])),
    ]
    if column.kind.name == "string":
        forms.append(st.builds(lambda negated, pattern: _like(name, negated, pattern), st.booleans(), _PATTERNS))
    return st.one_of(forms)


_PATTERNS = st.lists(st.sampled_from(["%", "_", "a", "ä", "日", "🙂", "'", "x"]), max_size=3).map("".join)


def _like(name: str, negated: bool, pattern: str) -> Condition:
    regex = re.compile("".join({"%": ".*", "_": "."}.get(sign, re.escape(sign)) for sign in pattern), re.DOTALL)

    def truth(row: Row) -> Truth:
        found = None if row[name] is None else regex.fullmatch(row[name]) is not None
        return negation(found) if negated else found

    text = pattern.replace("'", "''")
    return Condition(f"{name} {'NOT ' if negated else ''}LIKE '{text}'", truth)

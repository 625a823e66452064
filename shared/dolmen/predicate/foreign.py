"""Conditions of other engines (DuckDB, Polars, Spark) as predicates that mean the same for every row.

Each engine hands over a tree of its own. Its reader says which nodes are AND, OR and NOT, and what every other node
means. What follows for the whole condition is decided here: a conjunct that has no predicate is left to the engine,
and the others still narrow what is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

from dolmen.errors import InputError
from dolmen.predicate import bind
from dolmen.predicate.ast import Predicate

Node = TypeVar("Node")
Connective: TypeAlias = Literal["and", "or", "not"]


class UnsupportedConditionError(Exception):
    """No predicate surely means the same."""


@dataclass(frozen=True)
class ForeignCondition:
    """The predicate of a condition.

    Args:
        predicate: TRUE for every row for which the condition is TRUE; None if no conjunct has a predicate.
        is_exact: the predicate is TRUE for these rows only, so the engine need not evaluate its condition.
    """

    predicate: Predicate | None
    is_exact: bool


class ConditionReader(ABC, Generic[Node]):
    """Reads the conditions of one engine. A subclass knows the engine's nodes."""

    misfits: ClassVar[tuple[type[Exception], ...]] = (InputError,)
    """Errors by which ``atom`` says that a node has no predicate, besides UnsupportedConditionError."""

    @abstractmethod
    def connective(self, node: Node) -> tuple[Connective, Sequence[Node]] | None:
        """The operands of AND, OR or NOT; None for any other node."""

    @abstractmethod
    def atom(self, node: Node) -> Predicate:
        """The predicate that is TRUE, FALSE or NULL where any other node is. Raises what ``misfits`` says."""

    def predicate(self, node: Node) -> Predicate:
        """The predicate that is TRUE, FALSE or NULL where the condition is. Raises as ``atom`` does."""
        found = self.connective(node)
        if found is None:
            return self.atom(node)
        connective, operands = found
        predicates = [self.predicate(operand) for operand in operands]
        if connective == "not":
            return bind.negation(*predicates)
        return bind.conjunction(predicates) if connective == "and" else bind.disjunction(predicates)

    def find(self, node: Node) -> Predicate | None:
        """The same; None if there is none."""
        misfits: tuple[type[Exception], ...] = (UnsupportedConditionError, *self.misfits)
        try:
            return self.predicate(node)
        except misfits:
            return None

    def read(self, node: Node) -> ForeignCondition:
        """The predicate of all conjuncts that have one."""
        predicates = [self.find(conjunct) for conjunct in self._conjuncts(node)]
        found = [predicate for predicate in predicates if predicate is not None]
        return ForeignCondition(bind.conjunction(found) if found else None, len(found) == len(predicates))

    def _conjuncts(self, node: Node) -> Iterator[Node]:
        match self.connective(node):
            case ("and", operands):
                for operand in operands:
                    yield from self._conjuncts(operand)
            case _:
                yield node

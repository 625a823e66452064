"""Texts that differ in their literals only are parsed once: thousands of deletes say the same of other values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp

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

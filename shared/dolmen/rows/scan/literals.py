"""The literals among the results of SQL expressions, which DuckDB gives a type before it knows their column's.

``0.5`` is a DECIMAL(2, 1), ``1e3`` a DOUBLE, ``'2026-01-05'`` a VARCHAR, and NULL an INTEGER up to DuckDB 1.5. What is
written so may become a value of another type; what is read from a column, or computed, may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dolmen.format.types import is_text

Node = Mapping[str, Any]
"""A node of the tree that DuckDB parses an expression to."""

_MADE_OF_ARGUMENTS = {"list_value", "array_value", "struct_pack", "row", "map", "ifnull", "if"}
_ARITHMETIC = {"+", "-", "*", "/", "//", "%", "**", "^"}


@dataclass(frozen=True)
class Literals:
    """The literals among the results of an expression.

    Args:
        every: every result is a literal.
        texts: every result that is a text is a literal.
        null: NULL or an empty list is among the results.
    """

    every: bool
    texts: bool
    null: bool

    @classmethod
    def of(cls, tree: Node, columns: Mapping[str, list[pa.DataType]]) -> Literals:
        """Finds the literals of an expression.

        Args:
            tree: of the expression.
            columns: the types of all columns that may be meant by a name, in lower case.
        """
        found = list(_results(tree))
        others = [node for node in found if node["class"] != "CONSTANT" and not _is_empty(node)]
        null = any(_is_empty(node) or _is_null(node) for node in found)
        return cls(not others, not any(_may_be_text(node, columns) for node in others), null)


def _results(node: Node) -> Iterator[Node]:
    """The nodes of which the value is one, or is made."""
    inner: list[Node] | None = None
    if node["class"] == "CASE":
        inner = [*(check["then_expr"] for check in node["case_checks"]), node["else_expr"]]
    elif node["type"] == "OPERATOR_COALESCE":
        inner = _arguments(node)
    elif node["class"] == "FUNCTION":
        name = node["function_name"]
        if name in _MADE_OF_ARGUMENTS:
            inner = _arguments(node)[name == "if" :] or None
        elif name in ("+", "-") and len(_arguments(node)) == 1:
            inner = _arguments(node)
    if inner is None:
        yield node
    for each in inner or ():
        yield from _results(each)


def _arguments(node: Node) -> list[Node]:
    """The arguments of a function; DuckDB 2.0 gives each a name beside it."""
    given = node.get("arguments") or node.get("children") or ()
    return [each.get("expression", each) for each in given]


def _is_empty(node: Node) -> bool:
    """Whether it makes a list or a map of nothing."""
    return node["class"] == "FUNCTION" and node["function_name"] in _MADE_OF_ARGUMENTS and not _arguments(node)


def _is_null(node: Node) -> bool:
    if node["class"] != "CONSTANT":
        return False
    literal = node.get("literal")
    return bool(node["value"]["is_null"]) if literal is None else literal["kind"] == "NULL_LITERAL"


def _may_be_text(node: Node, columns: Mapping[str, list[pa.DataType]]) -> bool:
    if node["class"] == "COLUMN_REF":
        return any(_has_text(kind) for name in node["column_names"] for kind in columns.get(name.lower(), ()))
    return not (node["class"] == "FUNCTION" and node["function_name"] in _ARITHMETIC)


def _has_text(kind: pa.DataType) -> bool:
    return is_text(kind) or any(_has_text(kind.field(place).type) for place in range(kind.num_fields))

"""House rules on names and docstrings, checked over the whole of ``shared/`` and ``simulator/``."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PARTICIPLES = frozenset(("told", "handed", "named", "settled", "marked", "attended"))
"""Words that are neither a verb in the imperative nor a noun: they do not say what a function does."""

OPENINGS = ("Of ", "Who ", "What ", "So many", "Nor ")
"""Words that no docstring begins with: it says what the thing does or is."""

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def definitions() -> list[tuple[str, Definition]]:
    """Every module, class and function, each with its place."""
    return [
        (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", node)
        for top in ("shared", "simulator")
        for path in sorted((ROOT / top).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Definition)
    ]


def test_names_of_classes_are_unique() -> None:
    places = defaultdict[str, list[str]](list)
    for place, node in definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_function_is_named_by_a_bare_participle() -> None:
    found = [
        f"{place}: {node.name}"
        for place, node in definitions()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.strip("_") in PARTICIPLES
    ]
    assert found == []


def test_docstrings_begin_with_what_the_thing_does_or_is() -> None:
    found = [
        f"{place}: {docstring.splitlines()[0]}"
        for place, node in definitions()
        if (docstring := ast.get_docstring(node)) and docstring.startswith(OPENINGS)
    ]
    assert found == []

"""A test without an assertion passes whatever the code does: each has one, or calls a helper that is named for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PYTEST = {"raises", "fail", "warns"}
HELPERS = ("check", "assert")
"""How the name of a helper begins that asserts something, or of what it is a method of."""


def names(function: ast.expr) -> Iterator[str]:
    """The names in a dotted name."""
    while isinstance(function, ast.Attribute):
        yield function.attr
        function = function.value
    if isinstance(function, ast.Name):
        yield function.id


def asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return any(name in PYTEST or name.lstrip("_").startswith(HELPERS) for name in names(node.func))
    return isinstance(node, ast.Assert)


def without_assertion(source: str) -> list[str]:
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    tests = (node for node in functions if node.name.startswith("test_"))
    return [test.name for test in tests if not any(asserts(node) for node in ast.walk(test))]


def test_every_test_asserts_something() -> None:
    files = sorted(TESTS.rglob("test_*.py"))
    assert [f"{file}: {name}" for file in files for name in without_assertion(file.read_text())] == []


def test_a_test_that_only_calls_is_found() -> None:
    source = "def test_a():\n    work()\ndef test_b():\n    self.check_work()\ndef test_c():\n    assert work()\n"
    assert without_assertion(source) == ["test_a"]

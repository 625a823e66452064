"""ARCHITECTURE.md and the packages' own descriptions name what is there, and leave no package out."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
SOURCES = {"dolmen": "shared", "pyspark_dolmen": "shared", "dolmen_simulator": "simulator"}
NAME = r"(?:dolmen|dolmen_simulator|pyspark_dolmen)(?:\.\w+)*"


def folder_of(package: str) -> Path:
    return ROOT / SOURCES[package.partition(".")[0]] / package.replace(".", "/")


def packages() -> list[str]:
    return sorted(
        ".".join(path.parent.relative_to(ROOT / source).parts)
        for source in set(SOURCES.values())
        for path in (ROOT / source).rglob("__init__.py")
    )


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def members(body: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """What a module or class defines: its names, with the bodies of classes."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            found[statement.name] = statement.body
        elif isinstance(statement, ast.FunctionDef):
            found[statement.name] = []
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = []
        elif isinstance(statement, ast.Assign):
            found |= {target.id: [] for target in statement.targets if isinstance(target, ast.Name)}
    return found


def exists(name: str) -> bool:
    """Whether a dotted name is a package, a module, or something that a module defines."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        place = folder_of(".".join(parts[:length]))
        package = place / "__init__.py"
        module = package if package.exists() else place.with_suffix(".py")
        if not module.exists():
            continue
        body: list[ast.stmt] = tree_of(module).body
        for part in parts[length:]:
            found = members(body)
            if part not in found:
                return False
            body = found[part]
        return True
    return False


@pytest.mark.slow
def test_every_name_of_the_code_on_the_page_exists() -> None:
    named = set(re.findall(rf"`({NAME})`", PAGE))
    assert named
    assert sorted(name for name in named if not exists(name)) == []


def test_every_path_on_the_page_exists() -> None:
    paths = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|/[a-z_]+\.py|\.toml|\.yaml))`", PAGE))
    assert paths
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_handler_on_the_page_is_in_its_file() -> None:
    handlers = re.findall(r"`(functions/\w+/app\.py)` `(\w+)`", PAGE)
    assert handlers
    for path, function in handlers:
        assert function in members(tree_of(ROOT / path).body), path


def test_every_package_has_its_line() -> None:
    lines = re.findall(rf"^\| `({NAME})` \| \S.*\|$", PAGE, re.MULTILINE)
    assert sorted(lines) == packages()


@pytest.mark.parametrize(("package", "picture"), [("dolmen", 0), ("dolmen_simulator", 1)])
def test_the_picture_has_the_layers_of_the_contract_in_their_order(package: str, picture: int) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each.get("containers") == [package]]
    promised = [{name for name in re.findall(r"\w+", layer) if exists(f"{package}.{name}")} for layer in layers]
    drawn = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[picture].partition("---\n")
    lines = re.findall(r"^  ((?:\| )?\w+(?: [|:] \w+)*)(?:  |$)", drawn[2] or drawn[0], re.MULTILINE)
    found: list[set[str]] = []
    for line in lines:
        found += [] if line.startswith("|") else [set()]
        found[-1].update(re.findall(r"\w+", line))
    expected = [layer for layer in promised if layer and layer != {"__main__"}]
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("package", packages())
def test_a_package_describes_itself_by_names_that_exist(package: str) -> None:
    text = ast.get_docstring(tree_of(folder_of(package) / "__init__.py"))
    assert text
    assert [name for name in re.findall(rf"``({NAME})``", text) if not exists(name)] == []

"""The arrows between the rooms of shared/dolmen, as import-linter checks them (contracts: pyproject.toml)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

from dolmen.base.late_imports import HIGHER_FUNCTIONS

ROOT = Path(__file__).resolve().parents[2]


def test_imports_point_inwards() -> None:
    source = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", source, "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for type checkers count: what cannot be read without the other is one file."""
    graph = import_graph(ROOT / "shared", ROOT / "simulator")
    assert len(graph) > 300
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(reversed(error.args[1]))) from None


def test_only_the_top_of_the_package_names_its_modules_in_strings() -> None:
    """An import by a string is one that no contract sees; ``base.late_imports`` says what is done instead."""
    graph, package = import_graph(ROOT / "shared"), ROOT / "shared" / "dolmen"
    found = {
        (path.relative_to(package).as_posix(), node.value)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in graph and node.value != "dolmen"
    }
    assert {path for path, _ in found} == {"__init__.py"}
    above = {module for module, _ in HIGHER_FUNCTIONS.values()}
    assert above < {module for _, module in found}
    assert above == {"dolmen.ingest.copy_statement", "dolmen.sql.text", "dolmen.spark", "dolmen.spark.frame_types"}


@cache
def import_graph(*roots: Path) -> dict[str, set[str]]:
    """The modules of some packages, and which of the others each one's file names in an import, wherever it stands."""
    files = {_module_name(path.relative_to(root)): path for root in roots for path in root.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} imports by a relative name"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found.update(name if name in files else str(node.module) for name in names)
            elif isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
        graph[module] = found & files.keys()
    return graph


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_importing_dolmen_loads_no_optional_dependency() -> None:
    # pyarrow loads pandas by itself, where it is installed, as soon as a value is made: nothing may do so at import.
    optional = ["pandas", "boto3", "aws_lambda_powertools", "duckdb", "polars", "pyspark", "typer", "rich"]
    source = f"import sys, dolmen; print([name for name in {optional} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_command_starts_without_pandas() -> None:
    source = "import sys, dolmen.cli.run as c; c.command_line(); print('pandas' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_what_pages_and_programs_inside_tests_import_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.py")]
    pattern = re.compile(r"^ *from (dolmen[\w.]*) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)$", re.MULTILINE)
    missing = set()
    for page in pages:
        for module, names in pattern.findall(page.read_text()):
            for name in names.split(", "):
                if not _is_there(module, name.partition(" as ")[0]):
                    missing.add(f"{page.relative_to(ROOT)}: from {module} import {name}")
    assert not missing


def _is_there(module: str, name: str) -> bool:
    try:
        if hasattr(import_module(module), name):
            return True
        import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True

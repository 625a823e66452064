"""The arrows between the rooms of shared/dolmen, as import-linter checks them (contracts: pyproject.toml)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_imports_point_inwards() -> None:
    source = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", source, "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_dolmen_loads_no_optional_dependency() -> None:
    # pyarrow loads pandas by itself, where it is installed, as soon as a value is made: nothing may do so at import.
    optional = ["pandas", "boto3", "aws_lambda_powertools", "duckdb", "polars", "pyspark", "typer", "rich"]
    source = f"import sys, dolmen; print([name for name in {optional} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_command_starts_without_pandas() -> None:
    source = "import sys, dolmen.cli; print('pandas' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"

"""The oldest DuckDB that dolmen takes, for processes: that of the readers of Iceberg (locks/iceberg.in)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.iceberg_readers import ROOT


def run_with_older_duckdb(arguments: list[str], folder: Path) -> str:
    """Runs Python with that DuckDB instead of the one that is installed, and returns what it prints.

    Args:
        arguments: of the interpreter.
        folder: where links to the package are made; an empty one.

    Raises:
        AssertionError: it failed. The message is what it wrote to standard error.
    """
    (packages,) = (ROOT / ".venv-iceberg" / "lib").glob("python*/site-packages")
    for found in [*packages.glob("duckdb"), *packages.glob("_duckdb*"), *packages.glob("duckdb-*.dist-info")]:
        (folder / found.name).symlink_to(found)
    path = os.pathsep.join([str(folder), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

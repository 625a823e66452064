"""scripts/spark_jars.sh keeps no jar but those that it knows.

A ``java`` of our own stands in for Ivy, and a file of our own for Hadoop's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.spark_jars import SCRIPT

TOOLS = ("bash", "cut", "dirname", "env", "grep", "mkdir", "mktemp", "mv", "rm", "sed", "tail")


class Machine:
    """One with the usual tools and PySpark, and a ``java`` if it is given one; its cache is its own."""

    def __init__(self, folder: Path) -> None:
        self.tools, self.cache = folder / "bin", folder / "cache"
        self.tools.mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            assert found, name
            (self.tools / name).symlink_to(found)

    def give_java(self, fetches: str) -> None:
        """One that says it is there, and runs ``fetches`` in place of Ivy."""
        java = self.tools / "java"
        java.write_text(f'#!{self.tools / "bash"}\nif [ "$1" = -version ]; then exit; fi\n{fetches}\n')
        java.chmod(0o755)

    def run(self, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.tools), "XDG_CACHE_HOME": str(self.cache), "PYTHON": python}
        return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)

    def left(self) -> list[str]:
        """Files in the cache."""
        return sorted(path.name for path in self.cache.rglob("*") if path.is_file())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.slow
def test_a_jar_that_is_not_the_one_it_should_be_is_not_kept(machine: Machine) -> None:
    fetched = '"${@: -1}"'  # .../[artifact]-[revision].[ext]
    machine.give_java(f'pattern={fetched}; echo evil >"${{pattern%/*}}/hadoop-aws-3.4.2.jar"')
    result = machine.run("install")
    assert result.returncode == 1
    assert "hadoop-aws-3.4.2.jar" in result.stderr
    assert machine.left() == []

"""scripts/minio.sh says plainly what is missing, and builds the server once. A ``go`` of our own stands in for Go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.minio import SCRIPT

TOOLS = ("bash", "cat", "dirname", "env", "mkdir", "mktemp", "mv", "rm", "sed", "touch", "chmod")
BUILDS = 'touch "$GOBIN/minio" && chmod +x "$GOBIN/minio" && echo "built" >>"$GOBIN/../../builds"'


class Machine:
    """One with the usual tools, and a ``go`` if it is given one; its cache is its own."""

    def __init__(self, folder: Path) -> None:
        self.tools, self.cache = folder / "bin", folder / "cache"
        self.tools.mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            assert found, name
            (self.tools / name).symlink_to(found)

    def give_go(self, version: str, install: str) -> None:
        go = self.tools / "go"
        go.write_text(f'#!/bin/sh\nif [ "$1" = env ]; then echo go{version}; exit; fi\n{install}\n')
        go.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.tools), "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)

    def left(self) -> list[str]:
        """Files in the cache."""
        return sorted(path.name for path in self.cache.rglob("*") if path.is_file())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("command", ["install", "path", "start"])
def test_without_go_it_says_what_to_install(machine: Machine, command: str) -> None:
    result = machine.run(command)
    assert result.returncode == 1
    assert "Go 1.24" in result.stderr
    assert "https://go.dev/dl" in result.stderr


@pytest.mark.parametrize(("version", "enough"), [("1.21.3", False), ("1.9", False), ("1.24.0", True), ("2.0", True)])
def test_a_go_that_is_too_old_is_named(machine: Machine, version: str, enough: bool) -> None:
    machine.give_go(version, BUILDS)
    result = machine.run("install")
    assert (result.returncode == 0) is enough, result.stderr
    assert enough or f"is {version}." in result.stderr


def test_tests_do_without_it_where_it_cannot_be_built(machine: Machine) -> None:
    assert machine.run("install", "--try").returncode == 0
    machine.give_go("1.26.0", "echo 'no network' >&2; exit 1")
    tried = machine.run("install", "--try")
    assert (tried.returncode, "left out" in tried.stdout, "no network" in tried.stderr) == (0, True, True)
    assert machine.run("install").returncode == 1
    assert machine.left() == []


def test_it_is_built_once(machine: Machine) -> None:
    machine.give_go("1.26.0", BUILDS)
    for _ in range(3):
        assert machine.run("install").returncode == 0
    found = machine.run("path")
    assert (found.returncode, Path(found.stdout.strip()).name) == (0, "minio")
    assert machine.left() == ["builds", "minio"]
    [builds] = machine.cache.rglob("builds")
    assert builds.read_text() == "built\n"

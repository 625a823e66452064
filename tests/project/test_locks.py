"""The lock files agree with pyproject.toml, are hashed, and tell nothing of the machine that made them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import Environment, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ["3.11", "3.12", "3.13"]


def locked_entries(lock: Path) -> list[tuple[Requirement, list[str]]]:
    """Every pinned requirement of a lock file, with its hashes."""
    entries: list[tuple[Requirement, list[str]]] = []
    for line in lock.read_text().splitlines():
        text = line.strip().rstrip("\\").strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("--hash="):
            entries[-1][1].append(text)
        else:
            entries.append((Requirement(text), []))
    return entries


def environment(python: str) -> Environment:
    return {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}  # type: ignore[typeddict-item]


def versions(lock: Path, python: str) -> dict[str, Version]:
    """What installing the lock with that Python installs, by canonical name."""
    found: dict[str, Version] = {}
    for requirement, _ in locked_entries(lock):
        if requirement.marker is None or requirement.marker.evaluate(environment(python)):
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} is pinned twice for Python {python}"
            found[name] = Version(pin.version)
    return found


def declared(*extras: str) -> Iterator[Requirement]:
    """The project's requirements with those extras (an extra may name others), and its build system's."""
    project = PYPROJECT["project"]
    pending = [*project["dependencies"], *PYPROJECT["build-system"]["requires"]]
    for extra in extras:
        pending += project["optional-dependencies"][extra]
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.name == project["name"]:
            for extra in requirement.extras:
                pending += project["optional-dependencies"][extra]
        else:
            yield requirement


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("lock", "extras"), [("dev", ["dev"]), ("demo", ["demo"]), ("dbt", ["dbt"])])
def test_a_lock_holds_every_declared_requirement_at_a_version_that_satisfies_it(
    lock: str, extras: list[str], python: str
) -> None:
    pinned = versions(ROOT / "locks" / f"{lock}.txt", python)
    for requirement in declared(*extras):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{requirement} is not in locks/{lock}.txt: run make lock"
        assert requirement.specifier.contains(pinned[name]), f"{requirement}, but {pinned[name]} is locked: make lock"


@pytest.mark.parametrize("lock", ["layer", "sam", "dbt"])
def test_a_lock_holds_what_its_input_file_asks_for(lock: str) -> None:
    lines = (ROOT / "locks" / f"{lock}.in").read_text().splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = versions(ROOT / "locks" / f"{lock}.txt", "3.13")
    assert wanted
    for requirement in wanted:
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])


def test_the_layers_lock_leaves_nothing_to_the_machine_that_builds_it() -> None:
    """pip judges markers by the Python that runs it, not by the one it fetches for."""
    assert [
        str(requirement) for requirement, _ in locked_entries(ROOT / "locks" / "layer.txt") if requirement.marker
    ] == []


@pytest.mark.parametrize(("lock", "python"), [*(("demo", python) for python in PYTHONS), ("layer", "3.13")])
def test_what_is_shipped_is_what_the_tests_ran_on(lock: str, python: str) -> None:
    tested = versions(ROOT / "locks" / "dev.txt", python)
    shipped = versions(ROOT / "locks" / f"{lock}.txt", python)
    assert {name: version for name, version in shipped.items() if tested.get(name, version) != version} == {}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_entry_is_pinned_and_hashed(lock: Path) -> None:
    entries = locked_entries(lock)
    assert len(entries) >= 10
    for requirement, hashes in entries:
        assert [pin.operator for pin in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in hashes), requirement


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_no_index_and_no_path_of_a_machine(lock: Path) -> None:
    for line in lock.read_text().splitlines():
        assert "://" not in line
        assert not re.search(
            r"(^|\s)(-i|--index-url|--extra-index-url|--find-links|-f|-e|--editable|--trusted-host)\b", line
        )
        assert not re.search(r"(^|[\s@])(/|~/|\.\./)", line), line


def test_locked_setuptools_satisfies_the_build_system() -> None:
    (setuptools,) = (Requirement(text) for text in PYPROJECT["build-system"]["requires"])
    for name in ("dev", "demo"):
        assert setuptools.specifier.contains(versions(ROOT / "locks" / f"{name}.txt", "3.11")["setuptools"])

"""``make dist`` builds two distributions that hold what they should, say who they are, and work when installed."""

from __future__ import annotations

import re
import tarfile
import tomllib
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml

import dolmen
from support.distributions import Built, Environment, build_into, metadata, names_in

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://git.example/owner/dolmen"
VERSION = dolmen.__version__


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_into(tmp_path_factory.mktemp("dist"), REPOSITORY)


def packages(wheel: Path) -> set[str]:
    """The folders at the top of a wheel, but for its metadata."""
    return {top for name in names_in(wheel) if not (top := name.partition("/")[0]).endswith(".dist-info")}


def test_a_wheel_and_a_source_distribution_are_built_of_each(built: Built) -> None:
    assert [path.name for path in built.files] == [
        f"dolmen-{VERSION}.tar.gz",
        f"dolmen-{VERSION}-py3-none-any.whl",
        f"dolmen_simulator-{VERSION}.tar.gz",
        f"dolmen_simulator-{VERSION}-py3-none-any.whl",
    ]


def test_dolmens_wheel_holds_neither_simulator_nor_tests(built: Built) -> None:
    # pyspark_dolmen is how Spark finds the data source
    assert packages(built.dolmen) == {"dolmen", "pyspark_dolmen"}
    assert [
        name for name in names_in(built.dolmen) if re.search(r"simulator|(^|/)tests?/|conftest|(^|/)test_", name)
    ] == []


def test_the_simulators_wheel_holds_nothing_but_the_simulator(built: Built) -> None:
    assert packages(built.simulator) == {"dolmen_simulator"}


def test_both_wheels_hold_every_module_and_say_that_they_are_typed(built: Built) -> None:
    for wheel, package in [
        (built.dolmen, ROOT / "shared" / "dolmen"),
        (built.simulator, ROOT / "simulator" / "dolmen_simulator"),
    ]:
        files = [*package.rglob("*.py"), *package.rglob("*.css")]
        assert {path.relative_to(package.parent).as_posix() for path in files} - set(names_in(wheel)) == set()
        assert f"{package.name}/py.typed" in names_in(wheel)
        assert any(name.endswith("/licenses/LICENSE") for name in names_in(wheel))


def test_the_metadata_name_authors_addresses_and_the_pythons_that_are_supported(built: Built) -> None:
    for wheel in (built.dolmen, built.simulator):
        headers = HeaderParser().parsestr(metadata(wheel))
        assert headers["Author"] == "dolmen contributors"
        assert headers["License-Expression"] == "Apache-2.0"
        assert headers["Keywords"]
        assert f"Source, {REPOSITORY}" in headers.get_all("Project-URL", [])
        classifiers = headers.get_all("Classifier", [])
        assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(classifiers)


def test_no_link_of_a_description_is_relative(built: Built) -> None:
    """The index shows the description beside no file of the checkout."""
    for wheel in (built.dolmen, built.simulator):
        description = metadata(wheel).partition("\n\n")[2]
        links = re.findall(r"\]\(([^)\s]+)\)", description)
        assert links
        assert [link for link in links if not link.startswith(("https://", "#"))] == []
        for path in (link.removeprefix(f"{REPOSITORY}/blob/v{VERSION}/") for link in links if REPOSITORY in link):
            assert (ROOT / path.partition("#")[0]).exists(), path


def test_the_source_distribution_holds_no_file_of_this_machine(built: Built) -> None:
    for archive in (path for path in built.files if path.name.endswith(".tar.gz")):
        with tarfile.open(archive) as tar:
            assert [name for name in tar.getnames() if re.search(r"__pycache__|\.pyc$|\.venv|\.aws-sam", name)] == []


@pytest.mark.slow
def test_dolmen_alone_says_its_version_and_what_simulate_needs(built: Built, tmp_path: Path) -> None:
    alone = Environment.make(tmp_path / "alone", built.dolmen)
    assert alone.run("dolmen", "--version").stdout.strip() == f"dolmen {VERSION}"
    refused = alone.run("dolmen", "simulate", "--seed", "1")
    assert refused.returncode == 2
    assert "pip install dolmen-simulator" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_with_both_installed_simulate_runs_a_history(built: Built, tmp_path: Path) -> None:
    both = Environment.make(tmp_path / "both", built.dolmen, built.simulator)
    done = both.run("dolmen", "simulate", "--seed", "1", "--steps", "30")
    assert done.returncode == 0, done.stderr
    where = both.run("python", "-c", "import dolmen_simulator as s, dolmen as d; print(s.__file__, d.__file__)")
    for path in where.stdout.split():
        assert path.startswith(str(tmp_path / "both"))


def test_all_places_that_name_the_version_agree() -> None:
    project, simulator = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "simulator")
    )
    assert project["version"] == simulator["version"] == VERSION
    assert f"dolmen[aws]=={VERSION}" in simulator["dependencies"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    assert re.search(rf"^###? \[?{re.escape(VERSION)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

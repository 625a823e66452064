"""``make test AREA=...`` and the processes that share out the tests know the tests that there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import areas, sharing_out

ROOT = Path(__file__).parents[2]
MODULES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


def test_every_part_of_the_package_is_an_area() -> None:
    assert set(areas.parts()) <= set(areas.areas())


def test_no_area_is_left_over() -> None:
    assert set(areas.ELSEWHERE) <= set(areas.parts()) - set(areas.folders())


@pytest.mark.parametrize("area", areas.areas())
def test_an_area_has_tests(area: str) -> None:
    paths = areas.paths_of([area])
    assert all((ROOT / path).exists() for path in paths)
    assert len(paths) > 1 or area == "project"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_a_page_names_areas_that_are_there(page: str) -> None:
    named = re.findall(r'AREA="?([a-z_ ]+?)"?[`\s]', (ROOT / page).read_text())
    assert named
    for names in named:
        areas.paths_of(names.split())


def test_make_runs_an_area_and_refuses_what_is_none() -> None:
    """As far as the command that it would run."""
    command = [sys.executable, "tests/support/areas.py"]
    done = subprocess.run([*command, "scan", "write"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == ["tests/scan", "tests/write"]
    done = subprocess.run([*command, "scam"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("there is no area scam; there are: adopt ")


@pytest.mark.parametrize(
    ("words", "all_run"), [([], False), (["SLOW=1"], True), (["AREA=scan"], True), (["AREA=scan", "SLOW="], False)]
)
def test_make_leaves_out_what_is_slow_unless_an_area_or_all_is_asked_for(words: list[str], all_run: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"SLOW", "AREA", "MAKEFLAGS"}}
    command = ["make", "--dry-run", "test", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert ('-m "not slow"' not in done.stdout) is all_run


def test_what_is_shared_out_by_name_is_there() -> None:
    for path in (*sharing_out.SPARK, *sharing_out.TOGETHER, *sharing_out.LONGEST_FIRST):
        assert any(module.startswith(path) for module in MODULES), path


def test_modules_that_take_the_spark_session_go_where_it_is() -> None:
    taking = {
        module
        for module in MODULES
        if re.search(r"^def \w+\([^)]*\bspark: ", (ROOT / module).read_text(), re.MULTILINE)
        or "spark_on_s3" in (ROOT / module).read_text()
    } - {"tests/project/test_areas.py"}
    assert taking
    assert not {module for module in taking if not sharing_out.needs_spark(sharing_out.share_of(module))}


def test_one_process_takes_all_of_spark_and_what_takes_longest_begins() -> None:
    assert sharing_out.share_of("tests/spark/read/test_reads.py::test_a[x::y]") == "tests/spark/read/test_reads.py"
    assert sharing_out.share_of("tests/deploy/test_deployed.py::test_a") == "tests/deploy/"
    assert sharing_out.share_of("tests/spark_s3/test_workers.py::test_a") == "tests/spark_s3/test_workers.py"
    assert sharing_out.place_of("tests/deploy/") == 0
    assert sharing_out.place_of("tests/api/test_tables.py") > sharing_out.place_of("tests/spark/test_races.py")
    assert [sharing_out.count_workers(cores) for cores in (1, 2, 4, 64)] == [3, 4, 6, 8]


def test_processes_share_out_the_tests_and_a_failure_says_the_seed_that_all_had(tmp_path: Path) -> None:
    """By this project's own hooks, on modules that are not its own."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    for name in ("first", "second"):
        (tmp_path / f"test_{name}.py").write_text(
            "import os\nimport pytest\n\n@pytest.mark.parametrize('n', [os.environ['DOLMEN_TEST_SEED']])\n"
            "def test_it(n): pass\n\n"
            "def test_of_a_process_that_dies(): os._exit(9)\n\n"
            "def test_of_the_one_in_its_place(): pass\n"
        )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DOLMEN_", "PYTEST_"))}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "2",
            "--rootdir",
            str(tmp_path),
            "-p",
            "no:cacheprovider",
            str(tmp_path),
        ],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": f"{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert len(re.findall(r"^Random tests: DOLMEN_TEST_SEED=\d+$", done.stdout, re.MULTILINE)) == 2

"""CI runs the slow tests that a commit needs: too many where that is not known, never too few."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.areas import areas, areas_touched_by
from support.lanes import EIGHTHS, slow_tests, words_for_ci

NOW = 1_800_000_000
HOUR = 3600


def git(folder: Path, *arguments: str, at: int = NOW) -> str:
    date = f"{at} +0000"
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c", "GIT_COMMITTER_NAME": "a"}
    environment = {**os.environ, **identity, "GIT_COMMITTER_EMAIL": "a@b.c", "GIT_COMMITTER_DATE": date}
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Three commits, each with a file of its own: 30 hours old, 2 hours old, and of now."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    git(checkout, "init", "--quiet")
    for path, hours in (("shared/dolmen/index/a.py", 30), ("docs/a.md", 2), ("shared/dolmen/cdc/a.py", 0)):
        (checkout / path).parent.mkdir(parents=True)
        (checkout / path).write_text("")
        git(checkout, "add", ".")
        git(checkout, "commit", "--quiet", "-m", path, at=NOW - hours * HOUR)
    return checkout


def chosen(checkout: Path, base: str | None = None) -> set[str]:
    """The words, without the eighth of the others, of which there is always one."""
    words, why = words_for_ci(checkout, base)
    found = set(words.split())
    if found == {"1"}:
        assert why.startswith("all slow tests: ")
        return found
    (eighth,) = (word for word in found if word.endswith(f"/{EIGHTHS}"))
    return found - {eighth}


def test_the_areas_of_the_last_day_are_tested_or_those_since_a_commit_that_passed(checkout: Path) -> None:
    assert chosen(checkout) == {"docs", "cdc"}
    assert chosen(checkout, "HEAD~1") == {"cdc"}
    git(checkout, "update-ref", "refs/ci/passed", "HEAD~1")
    assert chosen(checkout) == {"cdc"}
    assert chosen(checkout, "HEAD~2") == {"docs", "cdc"}


def test_changes_that_are_not_committed_count(checkout: Path) -> None:
    (checkout / "docs/a.md").write_text("changed")
    (checkout / "shared/dolmen/transactions/merge").mkdir(parents=True)
    (checkout / "shared/dolmen/transactions/merge/new.py").write_text("")
    git(checkout, "mv", "shared/dolmen/index/a.py", "docs/b.md")
    assert chosen(checkout, "HEAD") == {"docs", "transactions", "merge", "index"}


def test_all_slow_tests_run_where_no_commit_is_known_to_have_passed(checkout: Path, tmp_path: Path) -> None:
    assert chosen(checkout, "no-such-commit") == {"1"}
    git(tmp_path, "clone", "--quiet", "--depth", "2", checkout.as_uri(), "shallow")
    assert chosen(tmp_path / "shallow") == {"1"}
    assert chosen(tmp_path) == {"1"}  # no repository at all


@pytest.mark.parametrize("path", ["pyproject.toml", "locks/dev.txt", "tests/conftest.py", "tests/support/proxy.py"])
def test_what_belongs_to_no_area_or_to_all_touches_all(path: str) -> None:
    assert areas_touched_by(path) == set(areas())


def test_a_path_touches_the_areas_that_it_names_and_those_whose_slow_tests_kill_or_deploy_it() -> None:
    assert areas_touched_by("shared/dolmen/index/build.py") == {"index"}
    assert areas_touched_by("shared/dolmen/errors.py") == {"errors"}
    assert {"store", "minio", "packaged"} <= areas_touched_by("shared/dolmen/store/s3.py")


def test_a_module_of_tests_touches_itself_and_those_that_import_it() -> None:
    assert areas_touched_by("tests/iceberg/test_histories.py") == {"tests/iceberg/test_histories.py"}
    assert areas_touched_by("tests/api/test_insert.py") == {"tests/api/test_insert.py", "tests/api/test_skip_equal.py"}
    assert areas_touched_by("tests/iceberg/conftest.py") == {"iceberg"}
    assert areas_touched_by("tests/scan/test_that_was_deleted.py") == set()


def test_a_helper_a_page_and_a_script_touch_the_tests_that_name_them() -> None:
    assert "tests/iceberg/test_histories.py" in areas_touched_by("tests/support/published_history.py")
    assert "tests/deploy" not in str(areas_touched_by("tests/support/published_history.py"))
    assert "tests/isolation/test_processes.py" in areas_touched_by("tests/support/isolation_workers.py")
    assert areas_touched_by("tests/support/trees.py") >= {"tests/index/test_tree.py"}
    assert areas_touched_by("docs/spark-catalog.md") >= {"docs", "tests/spark/sql/test_catalog_jar.py"}
    assert "spark" not in areas_touched_by("docs/spark-catalog.md")
    assert areas_touched_by("scripts/spark-package.py") == {"tests/handover/test_package.py"}


def test_settings_of_the_checks_touch_the_tests_that_read_them(checkout: Path) -> None:
    settings = checkout / "pyproject.toml"
    settings.write_text("[project]\nname = 'a'\n[tool.ruff]\nline-length = 120\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "settings")
    settings.write_text(settings.read_text().replace("120", "100"))
    assert "tests/project/test_rooms.py" in chosen(checkout, "HEAD")
    assert not any(word.startswith("tests/deploy") for word in chosen(checkout, "HEAD"))
    settings.write_text(settings.read_text().replace("'a'", "'b'"))
    assert chosen(checkout, "HEAD") == {"1"}


def test_eight_commits_in_a_row_of_eighths_run_every_slow_test_once() -> None:
    modules = [f"tests/scan/test_{number}.py::test_it" for number in range(100)]
    eighths = [slow_tests([f"{number}/{EIGHTHS}"]) for number in range(EIGHTHS)]
    assert all(sum(is_asked_for(module) for is_asked_for in eighths) == 1 for module in modules)
    assert slow_tests(["scan"])("tests/scan/test_sql.py::test_it")
    assert not slow_tests(["scan"])("tests/scanner/test_sql.py::test_it")
    assert not slow_tests([])("tests/scan/test_sql.py::test_it")
    assert slow_tests(["tests/scan/test_sql.py"])("tests/scan/test_sql.py::test_it")
    assert not slow_tests(["tests/scan/test_sql.py"])("tests/scan/test_keys.py::test_it")
    with pytest.raises(ValueError, match="no area scam"):
        slow_tests(["scam"])

"""Which of the tests that are marked slow are run: ``pytest --slow "spark iceberg 3/8"``, and those that CI needs.

    python tests/support/lanes.py    prints the words for ``make test SLOW="..."`` with which CI tests this checkout

CI runs the slow tests of the areas that were touched since the last commit that it passed, and an eighth of the
others, which the commit chooses. If nothing says which commit that was, it runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

if __name__ == "__main__":  # it is a script, too
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.areas import areas, areas_touched_by, paths_of, tests_that_name
from support.sharing_out import share_of

ALL = "1"
EIGHTHS = 8
DAY = 24 * 60 * 60
PASSED = "refs/ci/passed"
SETTINGS = "pyproject.toml"
CHECKS = ("importlinter", "mypy", "ruff")
"""Tables of ``SETTINGS`` that only ``make check`` reads, and tests that name the file."""


def slow_tests(words: list[str]) -> Callable[[str], bool]:
    """Says of a slow test whether these words ask for it: areas, paths of modules, ``3/8``, ``1`` for all.

    Raises:
        ValueError: a word is none of these.
    """
    eighths = {int(word[0]) for word in words if word in {f"{number}/{EIGHTHS}" for number in range(EIGHTHS)}}
    names = [word for word in words if word != ALL and "/8" not in word]
    paths = tuple(path if path.endswith(".py") else f"{path}/" for path in paths_of(names))
    return lambda test: (
        ALL in words or test.startswith(paths) or zlib.crc32(share_of(test).encode()) % EIGHTHS in eighths
    )


def words_for_ci(root: Path, base: str | None = None) -> tuple[str, str]:
    """The words that ask for the slow tests of this checkout, and a sentence that says why.

    Args:
        root: the checkout; changes that are not committed count, too.
        base: a commit that CI passed. By default what ``.ci/run`` noted in this repository, else the last commit
            that is a day older than this one.
    """
    found = _base(root, base)
    if isinstance(found, str):
        return ALL, f"all slow tests: {found}"
    commit, why = found
    changed = _git(root, "diff", "--name-only", "--no-renames", "-z", commit) or ""
    added = _git(root, "ls-files", "--others", "--exclude-standard", "-z") or ""
    files = [path for path in (changed + added).split("\0") if path]
    touched = set[str]().union(*(areas_touched_by(path) for path in files if path != SETTINGS))
    if SETTINGS in files:
        before, now = _git(root, "show", f"{commit}:{SETTINGS}"), root / SETTINGS
        is_of_checks = before and now.exists() and _without_checks(before) == _without_checks(now.read_text())
        touched |= tests_that_name(f'/ "{SETTINGS}"') if is_of_checks else areas_touched_by(SETTINGS)
    if touched >= set(areas()):
        return ALL, f"all slow tests: every area was touched since {commit[:10]} ({why})"
    eighth = f"{int((_git(root, 'rev-parse', 'HEAD') or '0')[:8], 16) % EIGHTHS}/{EIGHTHS}"
    return (
        " ".join([*sorted(touched), eighth]),
        f"{eighth} of the slow tests, and those of the areas touched since {commit[:10]} ({why}): "
        + (" ".join(sorted(touched)) or "none"),
    )


def _without_checks(settings: str) -> dict[str, object]:
    content = tomllib.loads(settings)
    return {**content, "tool": {name: table for name, table in content.get("tool", {}).items() if name not in CHECKS}}


def _base(root: Path, named: str | None) -> tuple[str, str] | str:
    """A commit that passed, and how that is known; or why there is none."""
    if named:
        found = _commit(root, named)
        return (found, "which was named") if found else f"there is no commit {named} here"
    if found := _commit(root, PASSED):
        return found, "which passed here"
    moment = _git(root, "log", "-1", "--format=%ct")
    before = moment and _git(
        root, "log", "-1", "--first-parent", "--format=%H", f"--before={int(moment.strip()) - DAY}"
    )
    if before and before.strip():
        return before.strip(), "the last that is a day older"
    return "which commit passed is not known, and none that is a day older is here"


def _commit(root: Path, name: str) -> str | None:
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    return found.strip() if found else None


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails, as it does where there is no repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        metavar="WORDS",
        help='of the tests marked slow, run only those of these areas, and of a share of all ("spark scan 3/8")',
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the slow tests that ``--slow`` does not ask for. Without it all run."""
    words = config.getoption("--slow")
    if words is None:
        return
    try:
        is_asked_for = slow_tests(words.split())
    except ValueError as error:
        raise pytest.UsageError(f"--slow: {error}") from None
    left_out = [item for item in items if item.get_closest_marker("slow") and not is_asked_for(item.nodeid)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


if __name__ == "__main__":
    words, why = words_for_ci(Path(__file__).resolve().parents[2], os.environ.get("DOLMEN_CI_BASE"))
    print(f"CI runs `make test` and {why}", file=sys.stderr)
    print(words)

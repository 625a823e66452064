"""``make test AREA=scan``: what a change to one part of the project needs, in less than two minutes.

    python tests/support/areas.py AREA ...    prints paths for pytest; none for no area, as all tests need none

An area is a folder of tests, or a part of ``shared/dolmen`` whose promises are kept in folders of other names.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PACKAGE = TESTS.parent / "shared" / "dolmen"

ALWAYS = ("tests/project/test_imports.py", "tests/project/test_runtime.py")
"""What any change to the package can break: the arrows between its parts, and who may ask for the time."""

ELSEWHERE = {
    "base": ("tests/api", "tests/commit", "tests/segments", "tests/simulation/test_determinism.py"),
    "entries": ("tests/segments", "tests/index"),
    "errors": ("tests/api",),
    "format": ("tests/docs/test_format_examples.py", "tests/commit", "tests/segments", "tests/write"),
    "rows": ("tests/scan", "tests/write", "tests/changes"),
    "service": ("tests/functions", "tests/local", "tests/handover", "tests/store", "tests/cli/test_check_store.py"),
    "simulator": ("tests/simulation", "tests/interleavings"),
    "transactions": ("tests/api", "tests/merge", "tests/maintenance/gc"),
}
"""Parts of the project that have no folder of tests of their own name."""


def folders() -> list[str]:
    """The folders of tests, at any depth, each an area: ``maintenance``, and ``maintenance/gc``."""
    folders = (path for path in TESTS.rglob("*") if path.is_dir())
    return sorted(str(folder.relative_to(TESTS)) for folder in folders if any(folder.glob("test_*.py")))


def parts() -> list[str]:
    """The parts of the package, its folders and modules, and the simulator."""
    found = (path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    return sorted({*found, "simulator"} - {"__init__"})


def areas() -> list[str]:
    """All names that ``AREA`` can have."""
    return sorted({*folders(), *ELSEWHERE})


def paths_of(names: list[str]) -> list[str]:
    """What is run for some areas.

    Raises:
        ValueError: for a name that is none; it says which there are.
    """
    if unknown := [name for name in names if name not in areas()]:
        raise ValueError(f"there is no area {', '.join(unknown)}; there are: {' '.join(areas())}")
    if not names:
        return []
    found = [path for name in names for path in ELSEWHERE.get(name, (f"tests/{name}",))]
    return list(dict.fromkeys([*found, *(path for path in ALWAYS if "tests/project" not in found)]))


if __name__ == "__main__":
    try:
        print(*paths_of(sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))

"""``make test AREA=scan``: what a change to one part needs. ``.ci/run``: the areas that a change touches.

    python tests/support/areas.py AREA ...     prints paths for pytest; none for no area, since all tests need none
    python tests/support/areas.py --shards     prints the shards of the workflow as JSON, each with its areas

An area is a folder of tests, or a part of ``shared/dolmen`` whose promises are kept in folders of other names.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path, PurePosixPath

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "shared" / "dolmen"

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

BESIDE_THE_PACKAGE = {
    ".github": ("project",),
    "bench": ("benchmarks",),
    "events": ("functions", "packaged"),
    "examples": ("docs",),
    "jobs": ("spark", "handover"),
    "mkdocs.yml": ("docs",),
    "pyspark_dolmen": ("spark",),
    "spark-catalog": ("spark",),
}
"""Folders and files beside the package whose name is no area, and the areas that test them."""

SLOW_ELSEWHERE = {
    "commit": ("minio", "packaged", "isolation", "proof"),
    "functions": ("deploy", "minio", "packaged"),
    "handover": ("deploy",),
    "ingest": ("minio", "packaged"),
    "layers": ("deploy", "packaged"),
    "maintenance": ("minio", "packaged"),
    "spark": ("spark_cluster", "spark_s3"),
    "store": ("minio", "packaged", "spark_s3"),
}
"""Folders whose slow tests kill, deploy or spread out what an area is about."""

SHARDS = {
    "spark": ("spark",),
    "spark_s3": ("spark_s3", "spark_cluster", "handover", "iceberg"),
    "deployed": ("deploy", "packaged", "minio", "functions", "layers", "local"),
    "rows": ("scan", "predicate", "sql", "merge", "write", "changes", "segments", "index", "cdc", "adopt", "proof"),
    "database": ("aio", "api", "commit", "dbapi", "store", "isolation", "maintenance", "health", "cli", "project"),
    "histories": ("simulation", "golden", "interleavings", "machine", "corruption", "mutations", "soak"),
    "ingest": ("ingest", "declaration", "docs", "benchmarks"),
}
"""What the workflow runs side by side: each folder of ``tests/`` is in one of these."""


def folders() -> list[str]:
    """The folders of tests, at any depth, each an area: ``maintenance``, and ``maintenance/gc``."""
    folders = (path for path in TESTS.rglob("*") if path.is_dir())
    return sorted(str(folder.relative_to(TESTS)) for folder in folders if any(folder.glob("test_*.py")))


def parts() -> list[str]:
    """The parts of the package, its folders and modules, and the simulator."""
    found = (path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    return sorted({*found, "simulator"} - {"__init__"})


@cache
def areas() -> tuple[str, ...]:
    """All names that ``AREA`` can have."""
    above = {folder.partition("/")[0] for folder in folders()}  # tests/ingest may have folders and no test beside them
    return tuple(sorted({*folders(), *above, *ELSEWHERE}))


def paths_of(names: list[str]) -> list[str]:
    """The paths of the tests of some areas, and of modules that are named by their paths.

    Raises:
        ValueError: for a name that is none; it says which there are.
    """
    modules = {name for name in names if name.startswith("tests/") and (ROOT / name).is_file()}
    if unknown := [name for name in names if name not in areas() and name not in modules]:
        raise ValueError(f"there is no area {', '.join(unknown)}; there are: {' '.join(areas())}")
    if not names:
        return []
    found = [
        path for name in names for path in ((name,) if name in modules else ELSEWHERE.get(name, (f"tests/{name}",)))
    ]
    return list(dict.fromkeys([*found, *(path for path in ALWAYS if "tests/project" not in found)]))


def areas_touched_by(path: str) -> set[str]:
    """The areas and modules of tests whose slow tests a change to one file needs; all areas if nothing says which.

    A path in the package names areas: ``shared/dolmen/spark/merge/keys.py`` touches ``spark`` and ``merge``. A module
    of tests touches itself and the modules that import it. A helper in ``tests/support``, a page or a script touches
    the modules that name it.
    """
    file = PurePosixPath(path)
    top, *rest = file.with_suffix("").parts
    if path.startswith("tests/support/"):
        return tests_that_name(rf"support[./]{re.escape(rest[1])}\b")
    if top == "tests" and file.name.startswith("test_"):
        return tests_that_name(rf"{re.escape(file.stem)} import\b") | ({path} if (ROOT / path).is_file() else set())
    if file.suffix == ".md":
        return {"docs"} | tests_that_name(rf"[\"'/]{re.escape(file.name)}[\"']")
    if top == "scripts" and (named := tests_that_name(rf"{re.escape(file.name)}\b")):
        return named
    beside = {area for part in file.parts for area in BESIDE_THE_PACKAGE.get(part, ())}
    found = beside | ({top, *rest} & set(areas()) if rest else set())
    also = {folder for area in found for folder in SLOW_ELSEWHERE.get(area, ())}
    return found | also or set(areas())


def tests_that_name(pattern: str) -> set[str]:
    """The modules of tests that contain a pattern, or use a helper that does, directly or through other helpers.

    If that helper is a ``conftest.py``, these are all tests of its folder: an area, or all areas.
    """
    found, patterns, seen = set[str](), [pattern], set[Path]()
    while patterns:
        uses = re.compile(patterns.pop())
        for path in (path for path, text in _sources().items() if path not in seen and uses.search(text)):
            seen.add(path)
            folder, *rest = path.relative_to(TESTS).with_suffix("").parts
            if not rest:
                return set(areas())  # tests/conftest.py
            if folder == "support":
                patterns.append(rf"support[./]{re.escape(rest[0])}\b")
            elif path.name.startswith("test_"):
                found.add(str(path.relative_to(ROOT)))
                patterns.append(rf"{re.escape(path.stem)} import\b")
            else:  # a conftest.py, or a helper of its folder
                found.add(folder)
    return found


@cache
def _sources() -> dict[Path, str]:
    paths = (path for path in TESTS.rglob("*.py") if path.name != "test_lanes.py")  # its names are examples
    return {path: path.read_text() for path in paths}


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["--shards"]:
            print(json.dumps([{"name": name, "areas": " ".join(areas)} for name, areas in SHARDS.items()]))
        else:
            print(*paths_of(sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))

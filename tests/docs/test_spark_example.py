"""The tour of docs/spark.md runs, does what it says, and tells plainly that it needs Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.spark import require_java

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()
EXAMPLE = ROOT / "examples" / "spark.py"

BEFORE = [("EWR", 108, 108), ("LGA", 35, 32)]
FORGOTTEN = [("EWR", 6, 6), ("LGA", 26, 23)]
MERGED = [("EWR", 6, 6), ("LGA", 27, 27)]


def block(name: str) -> str:
    found = re.search(rf"<!-- tour: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"docs/spark.md has no tour: {name}"
    return found[1]


def run_example(directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (directory / "examples").symlink_to(ROOT / "examples")
    command = [str(shutil.which("bash")), "-euo", "pipefail", "-c", block("spark")]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=800
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tour_on_spark_loads_forgets_merges_and_looks_back(tmp_path: Path) -> None:
    require_java()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run_example(tmp_path, {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"})
    assert done.returncode == 0, done.stderr
    assert "336,776 flights of 12 files" in done.stdout
    rows = re.findall(r"^\| +(\w{3})\| +(\d+)\| +(\d+)\|", done.stdout, re.MULTILINE)
    found = [(origin, int(flights), int(departed)) for origin, flights, departed in rows]
    assert found == [*BEFORE, *FORGOTTEN, *MERGED, *BEFORE]


def test_the_steps_that_the_page_shows_are_those_of_the_example() -> None:
    run = {line.partition("  #")[0].strip() for line in EXAMPLE.read_text().splitlines()}
    shown = [line.partition("  #")[0].strip() for line in block("spark steps").splitlines()]
    assert len(shown) >= 5
    assert [line for line in shown if line not in run] == []


@pytest.mark.parametrize("java", [None, "1.8.0_402", "11.0.2"])
def test_the_example_says_that_java_is_missing_or_too_old(java: str | None, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "python"):
        (tools / name).symlink_to(sys.executable if name == "python" else str(shutil.which(name)))
    if java is not None:
        (tools / "java").write_text(f"#!{shutil.which('bash')}\necho 'openjdk version \"{java}\"' >&2\n")
        (tools / "java").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tools)}
    done = run_example(tmp_path, environment)
    assert done.returncode == 1
    assert "Java 17" in done.stderr
    assert "apt install openjdk-17-jre-headless" in done.stderr
    assert ("there is none" if java is None else java.partition(".")[0]) in done.stderr
    assert "Traceback" not in done.stderr

"""The recipes of docs/iceberg.md read what the page's own example has published."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.iceberg_readers import PYTHON
from support.spark import require_java
from support.spark_jars import find_jars

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "iceberg.md").read_text()
READER = ROOT / "tests" / "support" / "iceberg_readers.py"


def code(mark: str) -> str:
    found = re.search(rf"<!-- {mark} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found, mark
    return found[1]


def promised(source: str) -> list[str]:
    return re.findall(r"^print\(.*\)\s+# (.+)$", source, re.MULTILINE)


def run(command: list[str], source: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [*command, "-c", source], cwd=folder, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = code("example: iceberg")
    *lines, found = run(
        [sys.executable], f"{source}\nprint(published.metadata_location)", tmp_path_factory.mktemp("shop")
    )
    assert lines == promised(source)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pyiceberg", "polars", "duckdb"])
def test_a_recipe_shows_what_the_page_says(name: str, location: str, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("make setup installs the readers of Iceberg")
    before = f"location = {location!r}\n"
    if name == "duckdb":
        before += f"import sys\nsys.path.insert(0, {str(READER.parent)!r})\n"
        before += "from iceberg_readers import connect_duckdb\nconnection = connect_duckdb()\n"
    source = code(f"recipe: {name}")
    assert run([str(PYTHON), "-W", "ignore"], before + source, tmp_path) == promised(source)


@pytest.mark.slow
def test_the_recipe_for_spark_shows_what_the_page_says(location: str, tmp_path: Path) -> None:
    require_java()
    class_path, missing = find_jars("iceberg")
    if class_path is None:
        pytest.skip(missing)
    before = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(
    "spark.driver.extraClassPath", {class_path!r}).config("spark.sql.warehouse.dir", {str(tmp_path)!r}).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
location = {location!r}
"""
    source = code("recipe: spark")
    assert run([sys.executable, "-W", "ignore"], before + source, tmp_path) == promised(source)

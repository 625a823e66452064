"""Results that need a package that is not installed: the error says which one to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from importlib.abc import MetaPathFinder
class Uninstalled(MetaPathFinder):
    def find_spec(self, name, *_):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Uninstalled())
import dolmen, pyarrow as pa
from dolmen.errors import InputError
db = dolmen.open(sys.argv[3])
table = db.create_table("t", pa.schema({"id": pa.int64()}))
try:
    eval(sys.argv[2])
except InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [
        ("duckdb", "db.sql('SELECT 1')", "dolmen[sql]"),
        ("duckdb", "table.to_duckdb()", "dolmen[sql]"),
        ("duckdb", "table.delete('id // 2 = 1')", "dolmen[sql]"),
        ("polars", "table.to_polars()", "polars"),
        ("pandas", "table.to_pandas()", "pandas"),
        ("pyspark", "table.to_spark()", "dolmen[spark]"),
        ("pyspark", "db.at(1).table('t').to_spark()", "dolmen[spark]"),
    ],
)
def test_a_result_whose_package_is_missing_says_what_to_install(
    package: str, call: str, extra: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, package, call, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert f"pip install '{extra}'" in done.stdout

"""The examples in Python of docs/jobs.md about load and export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import dolmen
from dolmen.spark import export
from support.landing_files import put, rows_of

PAGE = (Path(__file__).parents[3] / "docs" / "jobs.md").read_text()


@pytest.mark.slow
def test_the_examples_of_load_and_export_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "landing", "events/1.csv", rows_of(0, 10))
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "import load" in block)
    known: dict[str, Any] = {"spark": spark}
    exec(example, known)
    assert "10 1 Counter({'ingested': 1})" in capsys.readouterr().out
    (line,) = re.findall(r"`(export\(db\.at.*?\))`", PAGE)
    line = line.replace("version=17", f"version={known['db'].version}").replace("amount", "id")
    assert eval(line, {"db": known["db"], "export": export}).rows == 9
    assert dolmen.open("./db").table("events").count() == 10

"""Each line of dolmen on docs/coming-from.md runs, in the page's order."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from support.lake import write_plain

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text().partition("\n## What can't be said")[0]
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| to |", "|---"))]


@pytest.mark.slow
def test_each_line_of_the_last_column_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.date32()), ("n", pa.int64())])
    rows = pa.table({"id": [1, 2, 3], "day": [date(2026, 11, 29)] * 3, "n": [7, 8, 9]}, schema)
    write_plain(tmp_path / "shop" / "lake" / "1.parquet", rows)
    names: dict[str, Any] = {"dolmen": dolmen, "pa": pa, "rows": rows}
    assert len(ROWS) > 25
    for row in ROWS:
        cells = re.split(r" (?=\|)", row.removesuffix(" |"))
        assert len(cells) == 6, row
        [code] = re.findall(r"^\| `(.*)`$", cells[-1])
        exec(compile(code, cells[0], "exec"), names)
    assert names["t"].schema.names == ["id", "day", "m", "note"]
    assert names["u"].count() == 9
    assert names["t"].history().num_rows > 10

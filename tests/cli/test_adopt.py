"""``dolmen adopt``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from cli.conftest import Cli
from support.lake import digests, write_plain


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for part in range(3):
        write_plain(tmp_path / "a lake" / f"{part}.parquet", pa.table({"id": range(part * 10, part * 10 + 10)}))
    return tmp_path / "a lake"


def test_a_folder_becomes_a_table(cli: Cli, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake.parent)  # paths are of this machine, as the shell completes them
    before = digests(lake)
    dry = cli("adopt", "t", "a lake", "--dry-run")
    assert dry.code == 0, dry.err
    assert "t would be adopted" in dry.out
    assert "rows: 30" in dry.out
    assert cli("show", "t").code == 3
    done = cli("adopt", "t", "a lake", "--primary-key", "id", "--request-id", "a1", "--message", "from the lake")
    assert done.code == 0, done.err
    assert "t was adopted" in done.out
    assert "before" in cli(
        "adopt", "t", "a lake", "--primary-key", "id", "--request-id", "a1"
    ).out  # fmt: skip
    assert cli("delete", "t", "--keys", "1,2,25").code == 0
    assert cli("scan", "t", "--count").out.split() == ["27"]
    assert "adopt t" in cli("history").out
    assert cli("verify", "--deep").code == 0
    assert digests(lake) == before


def test_named_files_and_json(cli: Cli, lake: Path) -> None:
    done = cli("adopt", "t", lake / "0.parquet", lake / "2.parquet", "--sort-key", "id", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["files"], found["rows"], found["version"], found["columns"]) == (2, 20, 1, ["id"])


def test_all_reasons_are_shown(cli: Cli, lake: Path) -> None:
    write_plain(lake / "4.parquet", pa.table({"id": ["x"], "half": pa.array([1], pa.float16())}))
    (lake / "5.txt").write_text("not a file with rows")
    done = cli("adopt", "t", lake)
    assert done.code == 2
    for reason in ("AdoptionError", "column 'id': ", "column 'half': type halffloat", "5.txt"):
        assert reason in done.err


def test_files_are_added_to_a_table_and_known_ones_skipped(cli: Cli, lake: Path) -> None:
    assert cli("adopt", "t", lake).code == 0
    write_plain(lake / "3.parquet", pa.table({"id": [30], "more": [1]}))
    refused = cli("adopt", "t", lake, "--into")
    assert refused.code == 2
    assert "new_columns='add'" in refused.err
    done = cli("adopt", "t", lake, "--into", "--new-columns", "add")
    assert done.code == 0, done.err
    assert "files were added to t" in done.out
    assert "skipped files: 3" in done.out
    found = json.loads(cli("adopt", "t", lake, "--into", "--json").out)
    assert (found["files"], found["skipped"], found["version"]) == (0, 4, 2)
    assert cli("scan", "t", "--count").out.split() == ["31"]


def test_folders_are_columns_of_adopted_and_of_appended_files(cli: Cli, tmp_path: Path) -> None:
    for day in (1, 2):
        folder = tmp_path / "lake" / f"day=2026-11-0{day}" / "country=DE"
        write_plain(folder / "0.parquet", pa.table({"id": [day]}))
        (folder / "0.csv").write_text(f"id\n{day}\n")
    files = sorted((tmp_path / "lake").rglob("*.parquet"))
    done = cli("adopt", "t", *files)
    assert done.code == 0, done.err
    assert "columns from folders: day, country" in done.out
    assert "values in names of folders: day, country (--no-hive leaves them out)" in done.err
    assert cli("scan", "t", "--where", "day = '2026-11-02' AND country = 'DE'", "--count").out.split() == ["1"]
    assert cli("adopt", "u", *files, "--no-hive").code == 0
    for table, more in (("v", ["--create"]), ("t", [])):
        appended = cli("append", table, *sorted((tmp_path / "lake").rglob("*.csv")), "--hive", "day,country", *more)
        assert "not read" not in appended.err
        assert appended.code == 0, appended.err
        assert cli("scan", table, "--where", "day = '2026-11-01'", "--count").out.split() == [str(1 + (table == "t"))]
    one = tmp_path / "lake" / "day=2026-11-01" / "country=DE" / "0.csv"
    assert "not read: --hive country,day reads them" in cli("append", "v", one).err
    refused = cli("append", "v", one, "--hive", "day")
    assert refused.code == 2
    assert "no column 'country' is read from folders" in refused.err

"""Partitions on the command line: tables with them, and scans written as folders that other readers know."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from cli.conftest import Cli

DAY = date(2026, 11, 29)
COUNTRIES = ["FR", None, "a/b=c d%é", "FR"]


@pytest.fixture
def sales(cli: Cli, tmp_path: Path) -> Cli:
    columns = "n BIGINT, day DATE, country VARCHAR, at TIMESTAMP"
    done = cli("create", "sales", "--columns", columns, "--partition-by", "days(at), Country")
    assert done.code == 0, done.err
    db = dolmen.open(str(tmp_path / "db"))
    rows = {"n": [1, 2, 3, 4], "day": [DAY, DAY, DAY, date(2026, 11, 30)], "country": COUNTRIES}
    db.table("sales").append(pa.table({**rows, "at": pa.array([0, 1, 2, 86_400_000_000], pa.timestamp("us"))}))
    return cli


def test_a_table_is_created_shown_and_set_with_partitions(sales: Cli) -> None:
    assert "day(at), country" in sales("show", "sales").out
    names = [line["partition"] for line in sales("sql", "FROM dolmen_partitions('sales')", "--json").lines()]
    assert names[0] == "at_day=1970-01-01/country=FR"
    assert "at_day=1970-01-01/country=__HIVE_DEFAULT_PARTITION__" in names
    assert sales("set", "sales", "partition_by=bucket[4](n)").code == 0
    assert sales("compact", "sales", "--repartition").code == 0
    assert "n_bucket=" in sales("sql", "FROM dolmen_partitions('sales')", "--json").out
    wrong = sales("set", "sales", "partition_by=hour(day)")
    assert wrong.code
    assert "hour of column 'day'" in wrong.err


def test_a_scan_is_written_as_folders_that_others_read(sales: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = sales("scan", "sales", "--output", folder, "--partition-by", "day, country")
    assert done.code == 0, done.err
    assert pq.read_schema(next(folder.rglob("*.parquet"))).names == ["n", "at"]
    expected = list(zip([1, 2, 3, 4], COUNTRIES, strict=True))
    pattern = f"{folder}/**/*.parquet"
    query = f"SELECT n, day, country FROM read_parquet('{pattern}', hive_partitioning = true) ORDER BY n"
    by_duckdb = duckdb.sql(query).fetchall()
    assert [(n, country) for n, _, country in by_duckdb] == expected
    assert by_duckdb[0][1] == DAY
    by_polars = pl.scan_parquet(pattern, hive_partitioning=True, try_parse_hive_dates=True).sort("n").collect()
    assert list(by_polars.select("n", "country").iter_rows()) == expected
    assert by_polars["day"][0] == DAY
    named = tmp_path / "named"  # pandas reads no NULL from folders
    where = ("--where", "country IS NOT NULL")
    assert sales("scan", "sales", *where, "--output", named, "--partition-by", "day, country").code == 0
    by_pandas = pd.read_parquet(named).sort_values("n")
    assert list(zip(by_pandas["n"], by_pandas["country"], strict=True)) == [each for each in expected if each[1]]
    assert sales("adopt", "back", folder).code == 0
    rows = sales("scan", "back", "--order-by", "n", "--json").lines()
    assert [(row["n"], row["country"]) for row in rows] == expected


def test_folders_of_transforms_and_text_formats(sales: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "months"
    done = sales("scan", "sales", "--output", folder, "--partition-by", "month(day)", "--format", "csv", "--json")
    assert done.lines() == [{"rows": 4, "output": str(folder)}]
    [file] = folder.rglob("*.*")
    assert file.relative_to(folder).as_posix() == "day_month=2026-11/data-0.csv"
    assert file.read_text().startswith('n,day,country,at\n1,2026-11-29,"FR",')


def test_folders_that_cannot_be_are_refused_and_leave_nothing(sales: Cli, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for arguments, part in (
        (("--partition-by", "day"), "--output"),
        (("--partition-by", "day", "--output", tmp_path / "full"), "not an empty directory"),
        (("--partition-by", "nothing", "--output", tmp_path / "a"), "no column"),
        (("--columns", "day", "--partition-by", "day", "--output", tmp_path / "a"), "all columns"),
        (("--partition-by", "day", "--output", tmp_path / "b" / "a"), "no directory"),
    ):
        done = sales("scan", "sales", *arguments)
        assert done.code, arguments
        assert part in done.err
    table = dolmen.open(str(tmp_path / "db")).table("sales")
    for number, (country, reason) in enumerate(
        [("", "can't name a folder"), ("__HIVE_DEFAULT_PARTITION__", "can't name a folder"), ("x" * 300, "308")]
    ):
        table.append([{"n": 100 + number, "country": country}])
        row = ("--where", f"n = {100 + number}", "--partition-by", "country", "--output", tmp_path / "a")
        assert reason in sales("scan", "sales", *row).err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "full"]


def test_a_declaration_has_partitions_and_apply_shows_what_changes(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "tables.yaml"
    columns = "columns: {id: BIGINT, at: TIMESTAMP}"
    for terms, shown in (
        ("days(AT), bucket(4, id)", ("day(at), bucket[4](id)",)),
        ("month(at)", ("day(at), bucket[4](id)", "month(at)")),
        ("", ("month(at)",)),
    ):
        member = f"\n    partition_by: {terms}" if terms else ""
        file.write_text(f"tables:\n  t:\n    {columns}{member}\n")
        done = cli("apply", file, "--yes")
        assert done.code == 0, done.err
        for each in shown:
            assert each in done.out + done.err
        assert cli("apply", file, "--yes").out.count("partition_by") == 0
        table = dolmen.open(str(tmp_path / "db")).table("t")
        assert ", ".join(table.partition_by) == (shown[-1] if terms else "")
    file.write_text(f"tables:\n  t:\n    {columns}\n    partition_by: hour(id)\n")
    refused = cli("apply", file, "--yes")
    assert refused.code
    assert "line 4" in refused.err

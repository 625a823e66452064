"""Export: plain files that hold what the table does, and never among the objects of a database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from jobs.export import main as export_main
from pyspark.sql import SparkSession

from dolmen import Database
from dolmen.api.database import Table
from dolmen.cli.run import run_job
from dolmen.errors import InputError, PredicateError, SchemaError
from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.spark.file_export import FORMATS, Format, export

ROOT = Path(__file__).parents[2]
SUBMIT = Path(sys.executable).with_name("spark-submit")

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("plain", pa.timestamp("us")),
        ("name", pa.string()),
        ("price", pa.decimal128(20, 4)),
        ("x", pa.float64()),
        ("ok", pa.bool_()),
        ("day", pa.date32()),
    ]
)
AT = datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)
ROWS = [
    (1, AT, AT.replace(tzinfo=None), ' "quoted", ', Decimal("1.2300"), 0.1, True, AT.date()),
    (2, None, None, None, None, None, None, None),
    (3, AT, AT.replace(tzinfo=None), "", Decimal("-9.0001"), -1e300, False, AT.date()),
    (4, AT, AT.replace(tzinfo=None), 'two\nlines, a \\ and "" é', Decimal(0), 1.0, False, AT.date()),
]


@pytest.fixture
def table(db: Database) -> Table:
    made = db.create_table("t", SCHEMA)
    columns = zip(*ROWS, strict=True)
    made.append(pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA))
    return made


def exported(directory: Path, form: Format, schema: pa.Schema = SCHEMA) -> list[tuple[object, ...]]:
    """The rows of an export, read by dolmen as landing files are."""
    rows: list[tuple[object, ...]] = []
    for path in sorted(directory.glob("part-*")):
        reader = read(SourceFile(lambda path=path: path.open("rb"), detect(path.name), path.name), schema)  # type: ignore[misc]
        rows += [tuple(row.values()) for row in reader.read_all().to_pylist()]
    return sorted(rows, key=str)


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_exported_is_read_again_as_the_same_rows(
    spark: SparkSession, table: Table, tmp_path: Path, form: Format
) -> None:
    done = export(table, str(tmp_path / "out"), format=form)
    assert done.rows == 4
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert exported(tmp_path / "out", form) == sorted(ROWS, key=str)
    if form == "parquet":
        assert ds.dataset(str(tmp_path / "out")).schema.field("at").type == SCHEMA.field("at").type


@pytest.mark.slow
def test_some_columns_and_rows_of_an_older_version_are_exported(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    before = db.version
    table.delete("TRUE")
    out = tmp_path / "with space %41"
    done = export(table.at(before), str(out), columns=["name", "id"], where="id <> 2", format="json")
    assert done.rows == 3
    names = pa.schema([SCHEMA.field("name"), SCHEMA.field("id")])
    assert exported(out, "json", names) == sorted([(row[3], row[0]) for row in ROWS if row[0] != 2], key=str)
    assert export(table, str(out), overwrite=True).rows == 0
    assert export(table.at(before), str(out), overwrite=True).rows == 4
    assert exported(out, "parquet") == sorted(ROWS, key=str)


def test_nothing_is_written_where_something_is(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert export(table, str(tmp_path / "empty")).rows == 4
    there = sorted((tmp_path / "empty").iterdir())
    with pytest.raises(InputError, match="not empty"):
        export(table, str(tmp_path / "empty"))
    assert sorted((tmp_path / "empty").iterdir()) == there
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="not empty"):
        export(table, str(tmp_path / "file"))


@pytest.mark.parametrize("place", ["db", "db/data", "db/export", ".", "link/export", "other/../db"])
def test_nothing_is_written_among_the_objects_of_the_database_or_around_them(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path, place: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "db")
    (tmp_path / "other").mkdir()
    for spelt in (f"{tmp_path}/{place}", f"file://{tmp_path}/{place}"):
        with pytest.raises(InputError, match="database"):
            export(table, spelt, overwrite=True)
    assert table.count() == 4


def test_what_cannot_be_exported_is_said_before_anything_is_written(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    times = db.create_table("times", pa.schema([("at", pa.time64("us")), ("b", pa.binary()), ("id", pa.int64())]))
    out = tmp_path / "out"
    with pytest.raises(SchemaError, match="'at'"):
        export(times, str(out))
    with pytest.raises(SchemaError, match=r"'b'.*CSV"):
        export(times, str(out), columns=["b"], format="csv")
    with pytest.raises(PredicateError):
        export(table, str(out), where="nothing = 1")
    with pytest.raises(PredicateError, match="filter the frame"):
        export(table, str(out), where="md5(id::VARCHAR) < 'a'")
    with pytest.raises(InputError, match="not a format"):
        export(table, str(out), format="orc")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="hadoop-aws"):
        export(table, "s3://some-bucket/export")
    assert not out.exists()


@pytest.mark.slow
def test_the_job_exports_by_spark_submit(table: Table, tmp_path: Path) -> None:
    command = [SUBMIT, "--master", "local[1]", "--conf", "spark.ui.enabled=false", ROOT / "jobs" / "export.py"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    run = [*command, *options(tmp_path, "db")]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rows"], told["version"]) == (4, 2)
    assert len(exported(tmp_path / "out", "parquet", pa.schema([SCHEMA.field("id"), SCHEMA.field("name")]))) == 4


def options(tmp_path: Path, database: str) -> list[str]:
    out = ["--table", "t", "--to", str(tmp_path / "out"), "--columns", "id, name", "--json"]
    return ["--database", str(tmp_path / database), *out]


def test_a_job_whose_database_is_not_there_says_so_by_its_exit_code(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["export.py", *options(tmp_path, "none")])
    with pytest.raises(SystemExit) as ended:
        run_job(export_main)
    assert ended.value.code == 3
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 3

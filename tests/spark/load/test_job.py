"""``spark-submit jobs/load.py``: on S3, killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs.load import main
from pyspark.sql import SparkSession

import dolmen
from dolmen.cli.exit_codes import SPARK_FAILED
from dolmen.cli.run import run_job
from dolmen.errors import StoreUnavailableError
from dolmen.ingest.drops.announce_files import DropSource
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.service.handover.handover_records import HandoverRecords
from dolmen.store import open_store
from support.landing_files import FORMATS, SCHEMA, drops_in, rows_of
from support.ministack import boto3_client, endpoint_environment

ROOT = Path(__file__).parents[3]
SUBMIT = Path(sys.executable).with_name("spark-submit")


def command(tmp_path: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    settings = {"spark.ui.enabled": "false", "spark.local.dir": str(tmp_path / "local")}
    confs = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return [str(SUBMIT), "--master", "local[2]", *confs, str(ROOT / "jobs" / "load.py"), *options], environment


@pytest.mark.slow
def test_a_job_that_was_killed_is_started_again_and_goes_on(
    spark: SparkSession,
    s3_url: str,
    s3_endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``spark-submit`` starts the first; the second finds the session that tests share."""
    db = dolmen.open(s3_url)
    table = db.create_table("events", SCHEMA, sort_key="at")
    bucket = s3_url.split("/")[2]
    client = boto3_client("s3", s3_endpoint)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    forms = [*FORMATS, "csv", "parquet"]
    for number, form in enumerate(forms):
        key = f"landing/events/{number} é.{form}"
        client.put_object(Bucket=bucket, Key=key, Body=FORMATS[form](rows_of(100 * number, 100)))
    client.put_object(Bucket=bucket, Key="landing/events/9.csv", Body=b"nothing\n")
    source = DropSource.of(f"s3://{bucket}/landing", database=db.url)
    drops = drops_in(source)
    ingest_drops(db, source.landing, drops[:1])

    landing = ["--database", s3_url, "--landing", f"s3://{bucket}/landing"]
    argv, environment = command(tmp_path, *landing, "--max-files", "2")
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        assert job.stdout is not None  # where spark-submit writes the job's stderr, too
        for line in job.stdout:
            if " 300 rows; events: " in line:  # two commits were made, and another one is under way
                break
        os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == -signal.SIGKILL
    done_before = table.count()
    assert 400 <= done_before < 100 * len(forms), line

    handed = HandoverRecords(open_store(f"s3://{bucket}/handed"))
    handed.add(drops)
    for name, value in endpoint_environment(s3_endpoint).items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    argv = ["load.py", "--database", s3_url, "--handed", f"s3://{bucket}/handed", "--json"]
    monkeypatch.setattr(sys, "argv", argv)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run_job(main)
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err  # one file is a reject, which settles it
    told = json.loads(out)
    assert (told["files"], told["rejected"]) == (len(forms) + 1, 1)
    assert (told["duplicate"], told["rows"]) == (done_before // 100, 100 * len(forms) - done_before)
    assert sorted(table.scan(["id"]).to_arrow()["id"].to_pylist()) == list(range(100 * len(forms)))
    assert not list(handed.read_all())
    assert db.verify(deep=True).ok


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "--landing or --handed"),
        (["--landing", "x", "--handed", "y"], 2, "one of them"),
        (["--handed", "y", "--table", "events"], 2, "--table goes with --landing"),
        (["--landing", "nowhere"], 3, "no directory"),
        (["--landing", ".", "--max-bytes", "many"], 2, "is not a size"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_said_by_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["load.py", "--database", str(tmp_path / "db"), *options])
    with pytest.raises(SystemExit) as ended:
        run_job(main)
    assert ended.value.code == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(StoreUnavailableError("away"), 4), (OSError("disk"), 2), (KeyboardInterrupt(), 130)]
)
def test_a_job_ends_with_the_codes_of_the_command(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def job() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["job.py"])
    with pytest.raises(SystemExit) as ended:
        run_job(job)
    assert ended.value.code == code


def test_a_failure_of_spark_is_one_to_try_again(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def job() -> None:
        spark.sql("SELECT * FROM nowhere").collect()

    monkeypatch.setattr(sys, "argv", ["job.py"])
    with pytest.raises(SystemExit) as ended:
        run_job(job)
    assert ended.value.code == SPARK_FAILED

"""``spark-submit jobs/compact.py`` and ``jobs/gc.py``: killed, started again, and what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from jobs.compact import main as compact_main
from jobs.gc import main as gc_main
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.cli.run import run_job
from dolmen.rows.scan.scan import plan_of
from support.killed_streams import Kill

ROOT = Path(__file__).parents[2]
SUBMIT = Path(sys.executable).with_name("spark-submit")
LONG_AGO = 1_750_000_000
MEGABYTE_FILES = {"target_file_bytes": "1MB"}


def submit(tmp_path: Path, script: str, *options: str, kill: Kill | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a job to its end, or until a process of it is killed with all others."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("DOLMEN_TEST_KILL", None)
    if kill:
        plan = {"key": kill.key, "when": kill.when, "roles": kill.roles, "nth": kill.nth}
        environment["DOLMEN_TEST_KILL"] = json.dumps({**plan, "count": str(tmp_path / "count")})
        environment["PYTHONPATH"] = str(ROOT / "tests" / "support" / "killing")
    confs = ["--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={tmp_path / 'local'}"]
    command = [str(SUBMIT), "--master", "local[2]", *confs, str(ROOT / "jobs" / script), *options]
    shell = ["sh", "-c", 'DOLMEN_TEST_DRIVER=$$ exec "$@"', "sh", *command]  # its group is what is killed
    return subprocess.run(shell, env=environment, capture_output=True, text=True, start_new_session=True, check=False)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark: SparkSession) -> Run:
    """Runs a job in this process: its exit code, and what it printed."""

    def call(main: Any, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["job.py", *options])
        with pytest.raises(SystemExit) as ended:
            run_job(main)
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def made(tmp_path: Path) -> Database:
    """6 MB in 24 files, most of their entries in segments."""
    db = dolmen.open(str(tmp_path / "db"))
    db.set(root_bytes="4KB")
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("x", pa.float64())]), properties=MEGABYTE_FILES)
    random = np.random.default_rng(7)
    for first in range(0, 24 * 30_000, 30_000):
        table.append({"id": np.arange(first, first + 30_000), "x": random.random(30_000)})
    return db


def objects(tmp_path: Path, kind: str) -> set[str]:
    return {str(path.relative_to(tmp_path / "db")) for path in (tmp_path / "db" / kind).rglob("*") if path.is_file()}


def checksum(db: Database) -> tuple[int, int]:
    rows = dolmen.open(db.url).table("t").scan(["id"]).to_arrow()["id"].to_numpy()
    return len(rows), int(rows.sum())


@pytest.mark.slow
def test_a_compaction_that_is_killed_leaves_orphans_that_collection_removes(run: Run, tmp_path: Path) -> None:
    db = made(tmp_path)
    before, version = checksum(db), db.version
    database = ["--database", str(tmp_path / "db")]
    files = objects(tmp_path, "data")
    killed = submit(tmp_path, "compact.py", *database, kill=Kill("manifest/", "before", ("worker",)))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert objects(tmp_path, "data") - files
    assert (checksum(db), db.refresh()) == (before, version)
    assert db.verify(deep=True).ok

    code, out, err = run(compact_main, *database, "--json")
    assert code == 0, err
    done = {one["step"]: one for one in json.loads(out)["done"]}
    assert (done["compact"]["groups"], done["compact"]["files_in"], done["compact"]["finished"]) == (2, 24, True)
    assert checksum(db) == before
    compacted = {planned.file.path for planned in plan_of(db.table("t").scan()).files}
    assert len(compacted) == done["compact"]["files_out"] < 10
    left = objects(tmp_path, "data") - files - compacted  # only now: workers outlive the driver, and end their files

    for path in objects(tmp_path, "data") | objects(tmp_path, "intent"):
        os.utime(tmp_path / "db" / path, (LONG_AGO, LONG_AGO))
    collected = submit(tmp_path, "gc.py", *database, "--full", "--json")
    assert collected.returncode == 0, collected.stderr
    told = json.loads(collected.stdout)
    assert (told["revoked"], told["errors"], told["dry_run"]) == (1, {}, False)
    assert told["deleted"]["orphans"] == len(left)
    assert not objects(tmp_path, "data") & left
    assert checksum(db) == before
    report = db.verify(deep=True, all_versions=True)
    assert report.findings == ()
    assert "data/" not in report.orphans


def small(tmp_path: Path, *names: str) -> Database:
    db = dolmen.open(str(tmp_path / "db"))
    for name in names:
        table = db.create_table(name, pa.schema([("id", pa.int64())]), primary_key="id", sort_key="id")
        for first in range(4):
            table.append({"id": [first, first + 10]})
    return db


def test_a_plan_is_printed_and_nothing_done(run: Run, tmp_path: Path) -> None:
    db = small(tmp_path, "a", "b")
    version = db.version
    code, out, _ = run(compact_main, "--database", db.url, "--dry-run")
    assert code == 0
    assert "a: 4 files" in out
    assert "b: 4 files" in out
    assert "saves each scan 3 requests" in out
    code, out, _ = run(gc_main, "--database", db.url, "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "would delete: 0 objects")
    assert db.refresh() == version


@pytest.mark.slow
def test_tables_are_resolved_compacted_and_told_of(run: Run, tmp_path: Path) -> None:
    db = small(tmp_path, "a", "b")
    db.table("a").delete("id = 1")
    code, out, err = run(compact_main, "--database", db.url, "--table", "a", "--recluster")
    assert code == 0
    assert "compact a: 1 group of 1" in err
    assert "4 files in" in out
    (file,) = plan_of(db.table("a").scan()).files
    assert (file.file.rows, file.tombstones, len(plan_of(db.table("b").scan()).files)) == (7, (), 4)
    assert [commit.operation for commit in db.history(2)] == ["compact", "resolve"]


def test_a_table_that_fails_does_not_stop_the_others_and_the_job_ends_with_its_code(run: Run, tmp_path: Path) -> None:
    db = small(tmp_path, "a", "b")
    (tmp_path / "db" / plan_of(db.table("a").scan()).files[0].file.path).unlink()
    code, out, _ = run(compact_main, "--database", db.url, "--json")
    assert code == 7
    assert len(plan_of(db.table("b").scan()).files) == 1
    told = json.loads(out.splitlines()[0])
    assert [one["table"] for one in told["done"] if one["step"] == "compact"] == ["b"]
    assert len(told["failures"]) == 1


@pytest.mark.parametrize(
    ("main", "options", "code", "message"),
    [
        (compact_main, ["--steps", "compact,dance"], 2, "resolve,compact,index,merge"),
        (compact_main, ["--table", "nowhere"], 3, "nowhere"),
        (compact_main, ["--nonsense"], 2, ""),
        (gc_main, ["--nonsense"], 2, ""),
    ],
)
def test_what_is_wrong_with_a_command_line_is_said_by_exit_code(
    run: Run, tmp_path: Path, main: Any, options: list[str], code: int, message: str
) -> None:
    small(tmp_path, "a")
    found, _, err = run(main, "--database", str(tmp_path / "db"), *options)
    assert found == code
    assert message in err

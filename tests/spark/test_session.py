"""A job that finds no Spark ends soon, says so, and does not end as if it were done."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.cli.exit_codes import SPARK_FAILED
from dolmen.errors import RetryableError
from dolmen.spark.sessions import PATIENCE_SECONDS, call_on
from support.ministack import free_port
from support.spark import require_java

ROOT = Path(__file__).parents[2]
JOBS = sorted((ROOT / "jobs").glob("*.py"))


def patient() -> tuple[Runtime, list[float]]:
    """A runtime whose time passes by sleeping, and how long it has slept each time."""
    slept: list[float] = []
    return Runtime(monotonic=lambda: sum(slept), sleep=slept.append), slept


@pytest.mark.slow
def test_a_job_without_a_master_ends_with_a_message(tmp_path: Path) -> None:
    require_java()
    dolmen.open(str(tmp_path / "db")).create_table("t", pa.schema([("id", pa.int64())]))
    master = f"spark://127.0.0.1:{free_port()}"
    argv = [Path(sys.executable).with_name("spark-submit"), "--master", master, "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(
        [*map(str, argv), str(ROOT / "jobs" / "compact.py"), "--database", str(tmp_path / "db")],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == SPARK_FAILED, done.stdout + done.stderr
    assert f"{master}" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_all_jobs_begin_alike(job: Path) -> None:
    assert "job_session(" in job.read_text()
    assert "getOrCreate" not in job.read_text()


def test_a_master_is_called_on_again_and_not_for_ever() -> None:
    runtime, slept = patient()
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:\d+: Connection refused; 127\.0\.0\.1:"):
        call_on(f"spark://127.0.0.1:{free_port()},127.0.0.1:{free_port()}", runtime)
    assert sum(slept) == PATIENCE_SECONDS


def test_one_master_of_several_is_enough_also_one_that_comes_later() -> None:
    port = free_port()
    with socket.socket() as master:

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                master.bind(("127.0.0.1", port))
                master.listen()

        runtime, slept = patient()
        runtime = Runtime(monotonic=runtime.monotonic, sleep=sleep)
        call_on(f"spark://127.0.0.1:{free_port()},127.0.0.1:{port}", runtime)
        assert len(slept) == 3


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://nowhere:443", "local-cluster[2,1,1024]"])
def test_nobody_is_called_on_but_a_standalone_master(master: str) -> None:
    runtime, slept = patient()
    call_on(master, runtime)
    assert not slept

"""What the functions start really runs: the script and the arguments of the recorded start, by spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dolmen.service.functions.scheduled_functions import FILE_BYTES
from handover.conftest import Handing
from support.emr_serverless import StartedRun

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HEAD = "id,user_id,kind\n"
DRIVER = "spark.emr-serverless.driverEnv."


def submit(run: StartedRun, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Runs a job as EMR Serverless would, in the environment it was started with, but with this machine's packages."""
    started = run.request["job_driver"]["sparkSubmit"]
    words = started["sparkSubmitParameters"].split()[1::2]
    told = dict(word.removeprefix(DRIVER).split("=", 1) for word in words if word.startswith(DRIVER))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOLMEN_")}
    settings = {"spark.ui.enabled": "false", "spark.local.dir": str(scratch / "local")}
    return subprocess.run(
        [
            *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            str(ROOT / "jobs" / started["entryPoint"].rpartition("/")[2]),
            *started["entryPointArguments"],
        ],
        env={
            **kept,
            **told,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_job_ingests_what_was_handed_over_once_and_by_the_functions_settings(
    s3_handing: Handing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = s3_handing.world
    monkeypatch.setenv("DOLMEN_REJECTED_URL", f"s3://{world.bucket}/elsewhere")
    large = [HEAD + "".join(f"{first + n},1,x\n" for n in range(50)) for first in (100, 200)]
    drops = [world.drop("events/a.csv", large[0]), world.drop("events/b é.csv", large[1])]
    drops.append(world.drop("events/bad.csv", HEAD + "not a number,1,x\n" * 20))
    small = world.drop("events/small.csv", f"{HEAD}1,1,x\n")
    assert world.ingest(*drops, small) == []
    assert world.ingest(drops[0]) == []  # again, in another batch: a second record
    assert world.ids() == [1]
    assert len(list(s3_handing.records.read_all())) == 2
    [run] = s3_handing.runs()

    done = submit(run, tmp_path)
    assert done.returncode in (0, 2), done.stdout + done.stderr
    assert world.ids() == [1, *range(100, 150), *range(200, 250)]
    assert list(s3_handing.records.read_all()) == []
    assert [info.key for info in world.landing.list("rejected/")] == []
    assert len([info for info in world.landing.list("elsewhere/") if info.key.endswith(".error.json")]) == 1

    s3_handing.server.set_state(run.id, "SUCCESS")
    world.restart()
    assert world.ingest(*drops[:2]) == []
    assert world.call("compact")["finished"] is True
    assert len(s3_handing.runs()) == 1
    assert world.ids() == [1, *range(100, 150), *range(200, 250)]


def test_a_job_compacts_what_is_too_large_for_the_function(
    handing: Handing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = handing.world
    for n in range(8):
        world.database.table("events").append([{"id": n, "user_id": n, "kind": "x"}])
    world.database.table("events").delete("user_id = 3")
    monkeypatch.setenv("DOLMEN_HANDOVER_COMPACT_BYTES", str(4 * FILE_BYTES))
    world.call("compact")
    [run] = handing.runs("dolmen-compact-events-")
    assert world.database.table("events").describe()["files"] > 4

    done = submit(run, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert world.database.table("events").describe()["files"] == 1
    assert world.ids() == [0, 1, 2, 4, 5, 6, 7]
    handing.server.set_state(run.id, "SUCCESS")
    world.call("compact")
    assert len(handing.runs("dolmen-compact-")) == 1

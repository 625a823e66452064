"""The wheel brings all that ``dolmen local`` needs: no checkout is near where it runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.distributions import build_into

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what a wheel of this checkout holds."""
    target = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(build_into(tmp_path_factory.mktemp("dist")).dolmen).extractall(target)
    return target


def dolmen(installed: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from dolmen.cli import main; main()", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(installed), "DOLMEN_DATABASE": ".local/database"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
def test_the_wheel_holds_the_functions_as_they_are(installed: Path) -> None:
    for app in (ROOT / "functions").glob("*/app.py"):
        assert (
            installed / "dolmen/service/local/handlers" / app.parent.name / "app.py"
        ).read_bytes() == app.read_bytes()


@pytest.mark.slow
def test_the_pipeline_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    landing = tmp_path / ".local/landing/events"
    landing.mkdir(parents=True)
    (landing / "1.csv").write_text("id,user_id\n1,42\n2,7\n")
    done = dolmen(installed, tmp_path, "local", "--once", "--json")
    assert done.returncode == 0, done.stderr
    assert {"ingest"} == {json.loads(line)["function"] for line in done.stdout.splitlines()}
    (tmp_path / ".local/queue/1.json").write_text('{"table": "events", "keys": [42], "on": ["user_id"]}')
    assert dolmen(installed, tmp_path, "local", "--once").returncode == 0
    assert dolmen(installed, tmp_path, "scan", "events", "--json").stdout == '{"id":2,"user_id":7}\n'
    where = "import dolmen.service.local.local_functions as f; print(f.functions_directory())"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    found = subprocess.run(
        [sys.executable, "-c", where], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(installed / "dolmen/service/local/handlers")

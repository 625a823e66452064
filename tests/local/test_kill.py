"""Killed at any time and started again, the pipeline loses nothing and doubles nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen.api.database
from dolmen.service.local import LocalLayout, run_local
from support.functions import FUNCTIONS

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from dolmen.service.local import run_local
run_local(*sys.argv[1:5], poll_seconds=0.01, on_event=lambda event: print(event.text, flush=True))
"""


def test_kill_9_at_any_time_is_safe(tmp_path: Path) -> None:
    layout = LocalLayout.under(tmp_path)
    layout.make()
    database = dolmen.api.database.open(layout.database)
    table = database.create_table("events", pa.schema([("id", pa.int64())]), primary_key="id")
    table.append([{"id": n} for n in range(1000, 1040)])
    (layout.landing / "events").mkdir()
    arguments = [layout.database, str(layout.landing), str(layout.queue), str(FUNCTIONS)]
    number = 0
    for told in (1, 2, 3, 5):  # how much it tells before it is killed
        for _ in range(10):
            (layout.landing / "events" / f"{number}.csv").write_text(f"id\n{number}\n{number + 500}\n")
            body = {"table": "events", "keys": [1000 + number]}
            (layout.queue / f"{number}.json").write_text(json.dumps(body))
            number += 1
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        ) as process:
            assert process.stdout is not None
            for _ in range(told):
                assert process.stdout.readline(), "it ended by itself"
            process.send_signal(signal.SIGKILL)
    run_local(*arguments, poll_seconds=0.01, once=True)
    expected = sorted([*range(number), *range(500, 500 + number)])
    assert sorted(table.to_arrow()["id"].to_pylist()) == expected
    assert list(layout.dead_letters.iterdir()) == []
    assert [path for path in layout.queue.rglob("*") if path.is_file()] == []

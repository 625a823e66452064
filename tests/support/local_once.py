"""The local pipeline, run once over what is there, in a process of its own: the functions' loggers keep what standard
output was when they were loaded, and a test's is closed when it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_SCRIPT = """
import json, sys
from dolmen.service.local import pipeline
pipeline.MAX_TRIES = 1
database, root, functions = sys.argv[1:]
told = []
pipeline.run_local(
    database, root + "/landing", root + "/queue", functions, once=True, auto_create=True, poll_seconds=0.05,
    on_event=lambda event: told.append(event.text),
)
print(json.dumps(told))
"""


def local_once(root: Path, database: Path) -> list[str]:
    """Handles what lies in ``landing`` and ``queue`` of ``root``, each once; returns what was told of it."""
    command = [sys.executable, "-c", _SCRIPT, str(database), str(root), str(ROOT / "functions")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told: list[str] = json.loads(done.stdout.splitlines()[-1])
    return told

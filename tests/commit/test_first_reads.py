"""A process whose first manifest is read by many threads at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen

_PROGRAM = """
import sys, threading
from dolmen.format.manifest import Manifest
from pathlib import Path

sys.setswitchinterval(1e-6)
key, body = sys.argv[1], Path(sys.argv[2]).read_bytes()
go, read = threading.Barrier(8), []

def work():
    go.wait()
    read.append(Manifest.decode(body, key).version)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(read)
"""
_PROCESSES = 4  # one of four died


@pytest.mark.slow
def test_threads_that_read_a_processs_first_manifest_at_once_all_read_it(tmp_path: Path) -> None:
    """What msgspec reads a type by was made by whoever came first, and half made for the others: a segmentation fault.

    Seen in one of some twenty runs of ``dolmen check-store`` on a directory.
    """
    dolmen.open(tmp_path).create_table("t", pa.schema([("id", pa.int64())]))
    (path,) = (tmp_path / "manifest").iterdir()
    for _ in range(_PROCESSES):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, f"manifest/{path.name}", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stdout.strip()) == (0, str([1] * 8)), done.stderr

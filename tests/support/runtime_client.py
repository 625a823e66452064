"""AWS's client of the Lambda runtime API, which Lambda's image contains, for the functions' Python."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from support.built import ROOT, RUNTIME

_PACKAGES = ("awslambdaric", "simplejson", "snapshot-restore-py")


@cache
def runtime_client() -> Path:
    """The folder that holds awslambdaric, from the hashed lock. It is installed once, and kept."""
    lock = (ROOT / "locks" / "dev.txt").read_text()
    wanted = [entry for entry in re.split(r"(?m)^(?=[a-z])", lock) if entry.split("==")[0] in _PACKAGES]
    assert len(wanted) == len(_PACKAGES)
    text = "".join(wanted)
    kept = ROOT / ".aws-sam" / f"runtime-client-{RUNTIME}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if kept.exists():
        return kept
    kept.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(text)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"),
                *("--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version", RUNTIME),
                *("--requirement", str(requirements), "--target", f"{scratch}/client"),
            ],
            check=True,
        )
        with suppress(OSError):  # another run was faster
            (Path(scratch) / "client").rename(kept)
    return kept

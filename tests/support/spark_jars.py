"""The jars by which Spark reads S3 by itself, where scripts/spark_jars.sh has fetched them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "spark_jars.sh"


@cache
def find_jars() -> tuple[str | None, str]:
    """The jars' class path, or None and a message that says how to fetch them."""
    environment = {**os.environ, "PYTHON": sys.executable}
    result = subprocess.run([str(SCRIPT), "path"], env=environment, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return result.stdout.strip(), ""
    return None, " ".join(result.stderr.split())

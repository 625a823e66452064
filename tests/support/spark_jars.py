"""The jars by which Spark reads S3 by itself, or Iceberg, where scripts/spark_jars.sh has fetched them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "spark_jars.sh"


@cache
def find_jars(what: str = "s3") -> tuple[str | None, str]:
    """The jars' class path, or None and a message that says how to fetch them.

    Args:
        what: ``s3`` or ``iceberg``.
    """
    environment = {**os.environ, "PYTHON": sys.executable}
    words = [str(SCRIPT), "path", *([what] if what != "s3" else [])]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return result.stdout.strip(), ""
    return None, " ".join(result.stderr.split())

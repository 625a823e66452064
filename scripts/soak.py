"""Runs the whole local pipeline on MinIO for a while, kills its processes at random, and judges what is left.

    make soak MINUTES=60        or        .venv/bin/python scripts/soak.py --minutes 60 --seed 7

Exits with 1 if anything happened that must never happen; the files of the run are then kept.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """The command line."""
    sys.path[0] = str(ROOT / "tests")  # not this directory, where "soak" is this file
    from rich.console import Console

    from soak.run import Soak, look
    from support.minio import find_minio

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**32))
    parser.add_argument("--directory", type=Path, help="for everything; a fresh temporary one by default")
    parser.add_argument("--report", type=Path, help="copy the report, as JSON, here")
    given = parser.parse_args()
    console = Console()
    binary, missing = find_minio()
    if binary is None:
        console.print(missing, style="red")
        return 2
    seconds = float(os.environ.get("DOLMEN_SOAK_SECONDS") or given.minutes * 60)
    place = given.directory or Path(tempfile.mkdtemp(prefix="dolmen-soak-")) / "soak"
    console.print(f"soak of {seconds:,.0f} s in {place}, seed {given.seed}")
    report = Soak(place, given.seed, seconds, console=console).run()
    report.show(console)
    if given.report:
        shutil.copyfile(place / "report.json", given.report)
    if report.violations:
        console.print(f"kept: {place}\nto look into it: {look(report)}", markup=False)
        return 1
    if given.directory is None:
        shutil.rmtree(place.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())

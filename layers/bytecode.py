"""Compiles the modules of a layer for the functions' Python: Lambda can't keep what it compiles itself.

    python bytecode.py FOLDER VERSION

A layer is mounted read-only, so without bytecode in it every cold start compiles all that it imports, which doubles its
time. The bytecode is valid whatever the files' times are, because these are lost on the way, and it names files
as they are called on Lambda.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MOUNTED_AT = "/opt"


def candidates(version: str) -> Iterator[str]:
    yield sys.executable
    if found := shutil.which(f"python{version}"):
        yield found
    # pyenv's command on PATH works only for the versions that are activated.
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True))


def find_python(version: str) -> str | None:
    """An interpreter of that version, such as ``3.13``, or None: bytecode is that of one minor version."""
    source = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in candidates(version):
        asked = subprocess.run([path, "-c", source], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return path
    return None


def compile_all(folder: Path, version: str) -> None:
    python = find_python(version)
    if python is None:
        print(f"no Python {version} on this machine: the layer has no bytecode, and cold starts take twice as long")
        return
    options = ["-q", "--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", MOUNTED_AT]
    # Sets are written in an order that hashing decides: a fixed seed makes a layer that is the same when built again.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run([python, "-m", "compileall", *options, str(folder)], env=environment, check=True)


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]), sys.argv[2])

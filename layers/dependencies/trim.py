"""Removes files that no function reads from an unpacked layer: tests, headers, sources, the SDK's 400 other services.

    python trim.py FOLDER MACHINE

MACHINE is x86_64 or aarch64: pyarrow's libraries, the bulk, are stripped of symbols where this machine has a ``strip``
for it. No others are: wheels repaired by auditwheel (numpy) no longer load once stripped.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

LIMIT_MB = 215  # Lambda takes 250 unzipped, all layers and the function together: bytecode, dolmen and room to grow
SERVICES = {"s3", "sqs", "emr-serverless", "sts", "sso", "sso-oidc", "signin"}  # the last four: credentials
FOLDERS = ["**/tests", "**/__pycache__", "bin", "pyarrow/include", "pyarrow/src", "numpy/_core/include", "numpy/f2py"]
# Arrow's RPC framework, which nothing else links to; and the second and third copy of each library of pyarrow's own,
# under names that only compilers use. (All link to libarrow_substrait and similar ones, which therefore stay.)
FILES = ["pyarrow/*flight*", "pyarrow/_pyarrow_cpp_tests*", "pyarrow/libarrow_python*.so", "pyarrow/*.so.*.*.*"]
SUFFIXES = [".pyx", ".pxd", ".pxi", ".pyi", ".h", ".hpp", ".a", ".c", ".cc", ".cpp"]


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def trim(folder: Path) -> None:
    for pattern in FOLDERS:
        for path in list(folder.glob(pattern)):
            shutil.rmtree(path)
    for path in [path for path in folder.rglob("*") if path.suffix in SUFFIXES]:
        path.unlink()
    for path in [path for pattern in FILES for path in folder.glob(pattern)]:
        path.unlink(missing_ok=True)
    for path in (folder / "botocore" / "data").iterdir():
        if path.is_dir() and path.name not in SERVICES:
            shutil.rmtree(path)


def find_strip(machine: str) -> str | None:
    """What strips libraries of that machine here: LLVM's does for any, binutils' own for its own."""
    tool = shutil.which("llvm-strip") or shutil.which(f"{machine}-linux-gnu-strip")
    return tool or (shutil.which("strip") if platform.machine() == machine else None)


def strip(folder: Path, machine: str) -> None:
    tool = find_strip(machine)
    if tool is None:
        print(f"no strip for {machine} on this machine: the layer keeps its symbols")
        return
    for library in (folder / "pyarrow").rglob("*.so*"):
        subprocess.run([tool, "--strip-unneeded", str(library)], check=True)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    before = size_mb(root)
    trim(root)
    trimmed = size_mb(root)
    strip(root, sys.argv[2])
    after = size_mb(root)
    print(f"layer for {sys.argv[2]}: {before:.0f} MB, trimmed {trimmed:.0f} MB, stripped {after:.0f} MB")
    if after > LIMIT_MB:
        sys.exit(f"the layer has {after:.0f} MB and may have {LIMIT_MB}")

"""The layers and functions as ``sam build`` makes them, built once for each state of the sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from layers.bytecode import find_python

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = "3.13"
FUNCTIONS = ("ingest", "delete", "compact", "gc")
LAYERS = {"x86_64": "DependenciesX8664Layer", "arm64": "DependenciesArm64Layer"}

_MADE_OF = ["template.yaml", "samconfig.toml", "locks/layer.txt", "layers", "functions", "shared/dolmen"]
_BUILDS = ROOT / ".aws-sam" / "tests"
_KEPT = 4  # other processes may work with an earlier one


def find_sam() -> str:
    """The SAM command line: that of ``make setup`` if it is there, else the one on PATH."""
    beside = [ROOT / ".venv-sam" / "bin" / "sam", Path(sys.executable).parent / "sam"]
    found = next((str(path) for path in beside if path.exists()), None) or shutil.which("sam")
    assert found is not None, "the SAM command line is not here: make setup"
    return found


def runtime_python() -> str:
    """An interpreter of the version that the functions run on; skips the test where there is none."""
    found = find_python(RUNTIME)
    if found is None:
        pytest.skip(f"the functions run on Python {RUNTIME}, and there is none on this machine")
    return found


@cache
def built_stack() -> Path:
    """The folder that ``sam build`` made of the current checkout:  ``template.yaml``, and a folder for each layer.

    Functions are not built: the built template names their folders in the checkout. Nothing is built again until
    something changes that goes into it; processes that want it at the same time wait for the one that builds. Don't
    write into it: it is handed to other tests too (run Python with ``PYTHONDONTWRITEBYTECODE``).
    """
    _BUILDS.mkdir(parents=True, exist_ok=True)
    stack = _BUILDS / _digest()
    with _locked(_BUILDS / "lock"):
        if not _finished(stack).exists():
            _forget_old()
            _build(stack)
        _finished(stack).touch()  # the latest used
    return stack


def layer_paths(architecture: str = "x86_64") -> list[Path]:
    """The folders that Lambda unpacks into ``/opt`` for a function: each layer's ``python`` folder, in order."""
    stack = built_stack()
    return [stack / LAYERS[architecture] / "python", stack / "CoreLayer" / "python"]


def run_as_deployed(source: str, *arguments: str, before: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    """Runs Python source on the functions' Python, with the built layers and nothing else of this machine on its path.

    Args:
        source: the program for ``python -c``.
        arguments: ``sys.argv[1:]`` of it.
        before: folders to look for modules in first, such as that of a function.
    """
    path = os.pathsep.join(map(str, [*before, *layer_paths()]))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AWS_", "DOLMEN_"))
    }
    return subprocess.run(
        [runtime_python(), "-s", "-S", "-c", source, *arguments],
        env={**environment, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _build(stack: Path) -> None:
    shutil.rmtree(stack, ignore_errors=True)
    with tempfile.TemporaryDirectory() as home:
        result = subprocess.run(
            [find_sam(), "build", "--parallel", "--build-dir", str(stack)],
            cwd=ROOT,
            env={**os.environ, "SAM_CLI_TELEMETRY": "0", "__SAM_CLI_APP_DIR": home},
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 0, result.stdout + result.stderr
    _finished(stack).touch()


def _finished(stack: Path) -> Path:
    """The marker file beside a build that was not interrupted."""
    return stack.with_suffix(".finished")


def _digest() -> str:
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _files() -> Iterator[Path]:
    for name in _MADE_OF:
        path = ROOT / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)


def _forget_old() -> None:
    builds = sorted(_BUILDS.glob("*.finished"), key=lambda path: path.stat().st_mtime)
    for finished in builds[: -(_KEPT - 1)]:
        finished.unlink()
        shutil.rmtree(finished.with_suffix(""), ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""The wheels as ``make dist`` builds them, and environments with them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

from scripts.distributions import build


@dataclass(frozen=True)
class Built:
    """The distributions that ``make dist`` built.

    Attributes:
        dolmen: the wheel of dolmen.
        simulator: the wheel of dolmen-simulator.
        files: both wheels and both source distributions.
    """

    dolmen: Path
    simulator: Path
    files: tuple[Path, ...]


def build_into(directory: Path, repository: str | None = None) -> Built:
    """Builds all distributions."""
    files = build(directory, repository)
    dolmen, simulator = (path for path in files if path.suffix == ".whl")
    return Built(dolmen, simulator, tuple(files))


def names_in(wheel: Path) -> list[str]:
    """The files that a wheel holds."""
    return zipfile.ZipFile(wheel).namelist()


def metadata(wheel: Path) -> str:
    """The metadata of a wheel: headers, then the description."""
    [name] = [name for name in names_in(wheel) if name.endswith(".dist-info/METADATA")]
    return zipfile.ZipFile(wheel).read(name).decode()


@dataclass(frozen=True)
class Environment:
    """A virtual environment without a checkout near it.

    It takes dolmen's dependencies from the environment of the tests, and so downloads nothing. Projects that
    are installed there in editable mode are not visible: only ``.pth`` files of its own folder are followed.
    """

    directory: Path

    @classmethod
    def make(cls, directory: Path, *wheels: Path) -> Environment:
        """Makes an environment, and installs wheels into it."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
        made = cls(directory)
        [own] = directory.glob("lib/python3*/site-packages")
        (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(directory),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
        ]
        subprocess.run([*install, *map(str, wheels)], check=True)
        return made

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, in its folder."""
        return subprocess.run(
            [str(self.directory / "bin" / program), *arguments],
            cwd=self.directory,
            env={name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DOLMEN_"))},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

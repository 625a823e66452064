"""Builds the wheels and source distributions of dolmen and dolmen-simulator: `make dist`.

    python scripts/distributions.py dist --repository https://...      # for a release
    python scripts/distributions.py dist                               # to look at

A wheel is built from the source distribution, so that the latter is known to be complete. Both are built from copies
in a temporary folder: nothing is left in the checkout. No file of the checkout names the address of the repository: it
is an argument, and so a fork releases under its own.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Distribution:
    """What goes into one distribution.

    Attributes:
        folder: where its pyproject.toml is, below the checkout.
        files: what is copied beside it, from that folder or else from the checkout.
        folders: the same, with all they hold.
    """

    folder: str
    files: tuple[str, ...]
    folders: tuple[str, ...]


DISTRIBUTIONS = (
    Distribution(
        ".",
        ("setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"),
        ("shared", "functions", "spark-catalog"),
    ),
    Distribution("simulator", ("README.md", "LICENSE"), ("dolmen_simulator",)),
)


def build(target: Path, repository: str | None = None) -> list[Path]:
    """Builds all distributions.

    Args:
        target: the folder that they are written to; what it holds of earlier builds is removed.
        repository: address of the repository on the web, which goes into their metadata, and which makes relative links
            of their descriptions absolute; None leaves both as they are.

    Returns:
        The files built, a source distribution before its wheel.
    """
    target.mkdir(parents=True, exist_ok=True)
    for old in [*target.glob("dolmen*.whl"), *target.glob("dolmen*.tar.gz")]:
        old.unlink()
    return [path for distribution in DISTRIBUTIONS for path in _build(distribution, target.resolve(), repository)]


def _build(distribution: Distribution, target: Path, repository: str | None) -> list[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        _copy(distribution, source, repository)
        archive = target / _call_backend("build_sdist", source, target)
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        unpacked = Path(scratch) / archive.name.removesuffix(".tar.gz")
        return [archive, target / _call_backend("build_wheel", unpacked, target)]


def _copy(distribution: Distribution, source: Path, repository: str | None) -> None:
    source.mkdir()
    own = ROOT / distribution.folder
    for name in distribution.files:
        shutil.copy(own / name if (own / name).exists() else ROOT / name, source)
    for name in distribution.folders:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(own / name, source / name, ignore=ignore)
    project = (own / "pyproject.toml").read_text()
    if repository is not None:
        repository = repository.rstrip("/")
        version = tomllib.loads(project)["project"]["version"]
        files = f"{repository}/blob/v{version}/"
        project += _urls(repository)
        readme = source / "README.md"
        readme.write_text(absolute_links(readme.read_text(), files, distribution.folder))
    (source / "pyproject.toml").write_text(project)


def _urls(repository: str) -> str:
    return f"""
[project.urls]
Homepage = "{repository}"
Documentation = "{repository}/tree/main/docs"
Changelog = "{repository}/blob/main/CHANGELOG.md"
Issues = "{repository}/issues"
Source = "{repository}"
"""


def absolute_links(markdown: str, base: str, folder: str = ".") -> str:
    """Makes the relative links of a page absolute.

    Args:
        markdown: the page.
        base: address of the repository's files, with a slash at its end.
        folder: where the page is, below the checkout.
    """

    def join(link: re.Match[str]) -> str:
        path = (ROOT / folder / link[1]).resolve().relative_to(ROOT)
        return f"]({base}{path.as_posix()}{link[2] or ''})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)", join, markdown)


def _call_backend(hook: str, source: Path, target: Path) -> str:
    """Calls setuptools as PEP 517 says, in a process of its own, and returns the name of the file that it made."""
    code = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    before = set(target.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], cwd=source, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{hook} failed:\n{done.stdout}{done.stderr}")
    (made,) = set(target.iterdir()) - before
    return made.name


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Build the wheels and source distributions.")
    parser.add_argument("target", type=Path, help="folder that they are written to")
    parser.add_argument("--repository", help="address of the repository on the web, for the packages' metadata")
    arguments = parser.parse_args()
    for path in build(arguments.target, arguments.repository or None):
        print(f"{path} ({path.stat().st_size / 1000:,.0f} kB)")
    if not arguments.repository:
        print("Without REPOSITORY=https://... these packages name no address: look at them, but do not publish them.")


if __name__ == "__main__":
    main()

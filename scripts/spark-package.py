"""Packages the jobs for EMR Serverless and for Glue, and puts them where those find them. See docs/emr.md.

    .venv/bin/python scripts/spark-package.py                           # into build/spark/<digest>/
    .venv/bin/python scripts/spark-package.py --to s3://bucket/prefix   # and from there to <prefix>/<digest>/

What is made is the same whenever it is made: wheels come from hashed locks (locks/jobs-*.txt), for the machine that the
jobs run on and not for this one, and archives hold no times. Its name is a digest of its content, so what a running job
reads never changes, and nothing is ever overwritten.

    environment.tar.gz     for EMR Serverless: packages for its Python 3.11, and bin/python, which runs that with them
    dolmen.gluewheels.zip  for Glue 6.0: wheels for its Python 3.13
    load.py, ...           the jobs
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from layers.dependencies.trim import strip, trim  # noqa: E402

from dolmen.store import open_store  # noqa: E402
from dolmen.store.base import ObjectStore  # noqa: E402

EMR_PYTHON, GLUE_PYTHON = "3.11", "3.13"
ENVIRONMENT, WHEELS = "environment.tar.gz", "dolmen.gluewheels.zip"
MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}
_CHUNK = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can store."""

LAUNCHER = """\
#!/bin/sh
# Runs this machine's own Python @VERSION@ with the packages beside this folder. A whole Python in here would have to be
# one that was built for this very system.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
PYTHONPATH="$here/packages${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
for python in python@VERSION@ /usr/bin/python@VERSION@ /usr/local/bin/python@VERSION@ python3; do
    if "$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "@VERSION@")' 2>/dev/null; then
        exec "$python" "$@"
    fi
done
echo "dolmen's packages are for Python @VERSION@, and there is none on this machine" >&2
exit 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", help="s3://bucket/prefix, or a directory: where to put it")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "spark", help="where to make it")
    parser.add_argument("--architecture", choices=list(MACHINES), default="arm64", help="of the application")
    options = parser.parse_args()
    made = package(options.output, options.architecture)
    print(f"made {made}")
    for path in sorted(made.iterdir()):
        print(f"  {path.stat().st_size:>12,}  {path.name}")
    if options.to:
        url = f"{options.to.rstrip('/')}/{made.name}"
        for name in upload(made, open_store(url)):
            print(f"put {url}/{name}")
        if url.startswith("s3://"):
            print(f"SparkJobs={url.removeprefix('s3://')}")


def package(output: Path, architecture: str = "arm64") -> Path:
    """Makes everything in ``output``; returns its folder, which is named by a digest of what is in it."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix="making-") as scratch:
        folder, work = Path(scratch) / "package", Path(scratch) / "work"
        folder.mkdir()
        environment(work / "environment", MACHINES[architecture])
        pack(work / "environment", folder / ENVIRONMENT)
        wheels(work / "wheels", MACHINES[architecture])
        zip_flat(work / "wheels", folder / WHEELS)
        for job in sorted((ROOT / "jobs").glob("*.py")):
            shutil.copyfile(job, folder / job.name)
        made = output / digest_of(folder)
        if not made.exists():
            folder.rename(made)
        return made


def environment(folder: Path, machine: str) -> None:
    """The tree that Spark unpacks: ``bin/python`` and ``packages``."""
    packages = folder / "packages"
    pip("install", EMR_PYTHON, machine, "--no-compile", "--target", str(packages))
    trim(packages)
    strip(packages, machine)
    for name in ("dolmen", "pyspark_dolmen"):
        shutil.copytree(ROOT / "shared" / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    launcher = folder / "bin" / "python"
    launcher.parent.mkdir()
    launcher.write_text(LAUNCHER.replace("@VERSION@", EMR_PYTHON))
    launcher.chmod(0o755)


def wheels(folder: Path, machine: str) -> None:
    """dolmen's own wheel, and those of what it imports."""
    folder.mkdir(parents=True)
    pip("download", GLUE_PYTHON, machine, "--dest", str(folder))
    own = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    with (
        tempfile.TemporaryDirectory() as scratch
    ):  # setuptools builds in the folder of its sources, and leaves it there
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / name, Path(scratch) / name)
        shutil.copytree(
            ROOT / "shared", Path(scratch) / "shared", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
        times = {"SOURCE_DATE_EPOCH": "315532800"}
        command = [*own, "--no-build-isolation", "--wheel-dir", str(folder), scratch]
        subprocess.run(command, check=True, env={**os.environ, **times})


def pip(verb: str, python: str, machine: str, *options: str) -> None:
    """Runs pip on the jobs' lock for a Python and a machine, whatever this one is."""
    platforms = [f"--platform={libc}_{machine}" for libc in ("manylinux_2_28", "manylinux_2_27", "manylinux2014")]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--no-deps", "--only-binary=:all:", "--implementation=cp"),
            *(f"--python-version={python}", *platforms),
            *(["--ignore-requires-python", "--root-user-action=ignore"] if verb == "install" else []),
            *("-r", str(ROOT / "locks" / f"jobs-{python}.txt"), *options),
        ],
        check=True,
    )


def pack(folder: Path, archive: Path) -> None:
    """A tar of a folder's content that is the same whenever and by whomever it is made."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted(folder.rglob("*")):
            tar.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=plain)


def zip_flat(folder: Path, archive: Path) -> None:
    """A zip of a folder's files, which are packed already."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(folder.iterdir()):
            packed.writestr(zipfile.ZipInfo(path.name, _EPOCH), path.read_bytes())


def digest_of(folder: Path) -> str:
    """16 hexadecimal digits for what the files of a folder are named and hold."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def upload(folder: Path, store: ObjectStore) -> Iterator[str]:
    """Puts what is not there yet, only ever under names that are free; yields the names."""
    there = {info.key: info.size for info in store.list("")}
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        if path.name in there:
            if there[path.name] != size:
                raise SystemExit(f"{store.url}/{path.name} is there with {there[path.name]:,} bytes, not {size:,}")
            continue
        with path.open("rb") as source, store.open_output(path.name) as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)
            target.commit()
        yield path.name


if __name__ == "__main__":
    main()

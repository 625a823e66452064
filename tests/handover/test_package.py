"""What is packaged for EMR Serverless: the same bytes each time, running wherever unpacked, replacing nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pyspark
import pytest

from dolmen.base.runtime import Runtime
from dolmen.store import open_store
from dolmen.store.local_store import LocalStore
from handover.conftest import Handing

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
VERSION = "{}.{}".format(*sys.version_info)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_package", ROOT / "scripts" / "spark-package.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(script: ModuleType, folder: Path, version: str = VERSION) -> Path:
    """A small environment: one package, and the launcher."""
    (folder / "packages" / "small").mkdir(parents=True)
    (folder / "packages" / "small" / "__init__.py").write_text("ANSWER = 42\n")
    (folder / "bin").mkdir()
    launcher = folder / "bin" / "python"
    launcher.write_text(script.LAUNCHER.replace("@VERSION@", version))
    launcher.chmod(0o755)
    return folder


def run(python: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.run(
        [str(python), *arguments],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_archive_is_the_same_whenever_it_is_made(script: ModuleType, tmp_path: Path) -> None:
    archives = []
    for name, age in (("a", 0), ("b", 1_000_000)):
        made = tree(script, tmp_path / name)
        for path in made.rglob("*"):
            os.utime(path, (age, age))
        script.pack(made, tmp_path / f"{name}.tar.gz")
        script.zip_flat(made / "packages" / "small", tmp_path / f"{name}.zip")
        archives.append([(tmp_path / f"{name}.{kind}").read_bytes() for kind in ("tar.gz", "zip")])
    assert archives[0] == archives[1]


def test_it_runs_wherever_it_is_unpacked_and_leaves_other_paths_as_they_are(script: ModuleType, tmp_path: Path) -> None:
    script.pack(tree(script, tmp_path / "made"), tmp_path / "made.tar.gz")
    place = tmp_path / "a place with blanks" / "environment"
    with tarfile.open(tmp_path / "made.tar.gz") as archive:
        archive.extractall(place, filter="data")
    shutil.rmtree(tmp_path / "made")
    code = "import small, sys; print(small.ANSWER, small.__file__, sys.argv[1:], '/elsewhere' in sys.path)"
    done = run(place / "bin" / "python", "-c", code, "an argument", PYTHONPATH="/elsewhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"42 {place}/packages/small/__init__.py ['an argument'] True"


def test_without_its_python_it_says_so(script: ModuleType, tmp_path: Path) -> None:
    done = run(tree(script, tmp_path / "made", "3.99") / "bin" / "python", "-c", "print(1)")
    assert done.returncode == 1
    assert "Python 3.99" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("place", ["directory", "s3"])
def test_what_is_there_already_is_neither_sent_nor_replaced(
    script: ModuleType, tmp_path: Path, request: pytest.FixtureRequest, place: str
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    for name in ("load.py", "environment.tar.gz"):
        (made / name).write_text(f"this is {name}")
    url = str(tmp_path / "put") if place == "directory" else f"{request.getfixturevalue('s3_url')}/jobs"
    store = open_store(url, Runtime())
    assert list(script.upload(made, store)) == ["environment.tar.gz", "load.py"]
    assert list(script.upload(made, store)) == []
    assert store.get("load.py").body == b"this is load.py"
    (made / "load.py").write_text("something else")
    with pytest.raises(SystemExit, match=r"load\.py is there"):
        list(script.upload(made, store))
    assert store.get("load.py").body == b"this is load.py"


def test_the_name_is_a_digest_of_names_and_contents(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = script.digest_of(tmp_path)
    (tmp_path / "b").write_text("2")
    second = script.digest_of(tmp_path)
    (tmp_path / "b").rename(tmp_path / "c")
    assert len({first, second, script.digest_of(tmp_path)}) == 3
    assert len(first) == 16


@pytest.mark.skipif(os.environ.get("DOLMEN_LONG") != "1", reason="fetches 200 MB: DOLMEN_LONG=1")
def test_the_whole_package_runs_a_job_in_a_clean_directory(
    script: ModuleType, handing: Handing, tmp_path: Path
) -> None:
    """Needs Python 3.11, which EMR Serverless has, on this machine."""
    made = script.package(tmp_path / "made")
    assert made.name == script.digest_of(made)
    assert {path.name for path in made.iterdir()} >= {script.ENVIRONMENT, script.WHEELS, "load.py", "compact.py"}
    clean = tmp_path / "clean"
    with tarfile.open(made / script.ENVIRONMENT) as archive:
        archive.extractall(clean / "environment", filter="data")
    python = clean / "environment" / "bin" / "python"
    assert python.stat().st_mode & stat.S_IXUSR
    world = handing.world
    assert world.ingest(world.drop("events/large.csv", "id,user_id,kind\n" + "7,1,x\n" * 50)) == []
    [started] = handing.runs()
    done = subprocess.run(
        [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]"),
            *("--conf", "spark.ui.enabled=false", str(made / "load.py"), *started.arguments),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(clean),
            "SPARK_HOME": str(SPARK_HOME),  # the archive has no Spark
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": "./environment/bin/python",
            "DOLMEN_LANDING_URL": os.environ["DOLMEN_LANDING_URL"],
        },
        cwd=clean,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert world.ids() == [7] * 50
    assert list(LocalStore(handing.handover_url.removeprefix("file://")).list("")) == []

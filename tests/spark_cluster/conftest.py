"""A cluster on this machine: a master and two workers, each of which starts executors, JVMs of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from support.spark import SparkProcess, require_java
from support.spark_jvm import SHORT_LIVED_JVM


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A process whose Spark runs its tasks on that cluster."""
    require_java()
    scratch = tmp_path_factory.mktemp("spark-cluster")
    home = scratch / "home"  # where workers also put their files: not into the environment
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    settings = {
        "spark__executor__memory": "1024m",
        "spark__driver__memory": "1g",
        "spark__executor__extraJavaOptions": SHORT_LIVED_JVM,
    }
    with SparkProcess.start(scratch, {"SPARK_HOME": str(home)}, "local-cluster[2,1,1024]", **settings) as process:
        yield process

"""One Spark session for all tests: starting the JVM takes seconds."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, little parallelism, no pages to look at."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 or newer, and there is none: apt install openjdk-17-jre-headless")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of the workers
    scratch: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,3]")  # a task is tried three times
        .appName("dolmen tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={scratch}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()

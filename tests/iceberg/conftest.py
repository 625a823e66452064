"""The readers of Iceberg, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pyspark
import pytest

from support.iceberg_readers import PYTHON, IcebergReaders
from support.spark import SparkProcess, require_java
from support.spark_jars import find_jars

collect_ignore = [] if pyspark.__version__ < "4" else ["test_old_spark.py"]
"""What ``scripts/spark_versions.sh`` runs on PySpark 3.5."""


@pytest.fixture(scope="session")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergReaders]:
    if not PYTHON.exists():
        pytest.skip("make setup installs the readers of Iceberg")
    found = IcebergReaders(tmp_path_factory.mktemp("answers"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def spark_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A process whose Spark has Iceberg's runtime on its class path."""
    require_java()
    class_path, missing = find_jars("iceberg")
    if class_path is None:
        pytest.skip(missing)
    with SparkProcess.start(
        tmp_path_factory.mktemp("spark-iceberg"),
        {},
        "local[1]",
        spark__driver__extraClassPath=class_path,
        spark__sql__session__timeZone="UTC",
        spark__sql__extensions="org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    ) as process:
        yield process

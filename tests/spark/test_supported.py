"""A Spark that is too old is told what to do instead; ``scripts/spark_versions.sh`` tries it with PySpark 3.5."""

from __future__ import annotations

import pyspark
import pytest

from dolmen.errors import InputError
from dolmen.spark.sessions import check_supported


@pytest.mark.parametrize("version", ["3.5.7", "3.4.0", "3.5.0.dev1", "2.4.8"])
def test_an_old_spark_is_told_to_read_the_publication(version: str) -> None:
    with pytest.raises(InputError) as caught:
        check_supported(version)
    told, line = str(caught.value), ".".join(version.split(".")[:2])
    assert told.startswith(
        f"dolmen.spark needs PySpark 4.1, and this is {version}, which has no data sources in Python."
    )
    assert "table.publish_iceberg(): docs/iceberg.md" in told
    assert f"(iceberg-spark-runtime-{line}_2.12)" in told


@pytest.mark.parametrize("version", [pyspark.__version__, "4.0.0", "4.1.4", "5.0.0", "unknown"])
def test_newer_ones_are_not(version: str) -> None:
    check_supported(version)

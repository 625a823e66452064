"""What users of PySpark 3.5 meet: dolmen says what to do instead, and Iceberg's runtime reads the publication.

``scripts/spark_versions.sh`` runs this on PySpark 3.5, with the histories that Spark reads, and the recipe of the docs.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import dolmen
from dolmen import Table
from dolmen.commit.head import context_of
from dolmen.errors import InputError
from support import spark_iceberg
from support.spark import SparkProcess

SAID = f"dolmen.spark needs PySpark 4.1, and this is {pyspark.__version__}, .* Publish the table as Iceberg"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = dolmen.open(tmp_path / "db").create_table("t", pa.schema([("id", pa.int64()), ("s", pa.string())]), "id")
    table.append({"id": range(100), "s": [f"s{i}" for i in range(100)]})
    table.delete("id < 40")
    return table


def test_dolmen_spark_says_what_to_do_instead(table: Table) -> None:
    with pytest.raises(InputError, match=SAID):
        importlib.import_module("dolmen.spark")
    with pytest.raises(InputError, match=SAID):
        table.to_spark()


def test_spark_itself_knows_no_such_format(table: Table, spark_reader: SparkProcess) -> None:
    said = spark_reader.run(spark_iceberg.error_of_format, "dolmen", context_of(table).store.url)
    assert "DATA_SOURCE_NOT_FOUND" in said
    assert "dolmen" in said


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_it_reads_the_publication(version: str, table: Table, spark_reader: SparkProcess) -> None:
    table.set(iceberg=version)
    folder = table.publish_iceberg().metadata_location.rpartition("/metadata/")[0]
    assert ids_of(spark_reader, folder, "id < 42") == [40, 41]
    assert len(ids_of(spark_reader, folder)) == 60


def ids_of(spark_reader: SparkProcess, folder: str, where: str | None = None) -> list[int]:
    return sorted(spark_reader.run(spark_iceberg.read, folder, ["id"], where)["id"].to_pylist())

"""A client of Spark Connect, whose server is in the JVM of the shared session."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dolmen import Database
from support import connect_client
from support.spark import SparkProcess


@pytest.fixture(scope="session")
def client(spark: SparkSession) -> Iterator[SparkProcess]:
    """A process that has a session of Spark Connect."""
    url = connect_client.serve(spark)
    try:
        with SparkProcess.start_client(url) as process:
            yield process
    finally:
        connect_client.stop_serving(spark)


@pytest.fixture
def url(db: Database) -> str:
    """A database with a table ``t`` of ten rows in versions 2 and 3, one column of which has a comma in its name."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("s", pa.string()), ("x", pa.float32()), ("a, b", pa.int8())]
    )
    table = db.create_table("t", schema, primary_key="id")
    table.append({"id": range(6), "s": ["a", None, "c"] * 2, "x": [0.5] * 6})
    table.append({"id": range(6, 10), "s": ["d"] * 4})
    return db.url

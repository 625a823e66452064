"""A session with a database attached."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dolmen import Database
from dolmen.spark import attach
from dolmen.spark.sql.attachment import Attachment

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("d", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture
def attached(spark: SparkSession, db: Database) -> Iterator[Attachment]:
    """A session to which a database is attached, with a table ``t`` of ten rows, and ``u``, which is empty."""
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append(pa.table({"id": range(10), "s": [f"s{i % 3}" if i % 4 else None for i in range(10)]}))
    db.create_table("u", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    made = attach(spark, db)
    try:
        yield made
    finally:
        made.detach()

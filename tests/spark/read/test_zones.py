"""Times are what they are, whatever zone a session has, also those that its clocks leave out or repeat."""

from __future__ import annotations

import os
import random
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dolmen import Database
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.write.from_frame import append, delete, upsert
from dolmen.spark.write.merge_frame import merge
from support.spark_history import rows_of, sorted_rows
from support.spark_settings import ZONES, settings

pytestmark = pytest.mark.slow

NAIVE = [
    datetime(2024, 3, 31, 2, 30),  # not there in Berlin
    datetime(2024, 3, 31, 3, 30),
    datetime(2024, 10, 27, 2, 30),  # there twice
    datetime(2024, 3, 10, 2, 30),  # not there in New York
    datetime(2024, 11, 3, 1, 30),
    datetime(2011, 12, 30, 12),  # not there in Apia
    datetime(1883, 11, 18, 12, 1),  # before zones were what they are
    datetime(1582, 10, 10),  # not there in the calendar of Rome
    datetime(1500, 2, 28, 23, 59, 59, 999999),
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
]
DAYS = [moment.date() for moment in NAIVE]
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "naive": (pa.timestamp("us"), NAIVE),
    "zoned": (pa.timestamp("us", tz="UTC"), NAIVE),
    "date": (pa.date32(), [*dict.fromkeys(DAYS), date(1582, 10, 4), date(1582, 10, 15), date(1500, 2, 27)]),
}
EACH = [(kind, zone) for kind in KINDS for zone in ZONES]


def some_of_each() -> list[tuple[str, str]]:
    """Every kind and every zone, each with one of the other or two, drawn anew for each seed; in the long mode all."""
    zones = random.Random(os.environ["DOLMEN_TEST_SEED"]).sample(ZONES, len(ZONES))
    drawn = set(zip([*KINDS, *KINDS], zones, strict=False))
    return [each for each in EACH if os.environ.get("DOLMEN_LONG") or each in drawn]


def rows(kind: str, first: int = 0) -> pa.Table:
    of, values = KINDS[kind]
    return pa.table({"k": pa.array(values, of), "n": list(range(first, first + len(values)))})


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("kind", "zone"), some_of_each())
def test_unresolved_keys_hide_their_own_rows_and_no_others(
    kind: str, zone: str, native: bool, spark: SparkSession, db: Database
) -> None:
    table = db.create_table("t", rows(kind).schema, primary_key="k")
    table.append(rows(kind))
    keys = KINDS[kind][1][1::2]
    table.delete(keys=[key.replace(tzinfo=UTC) for key in keys] if kind == "zoned" else keys)
    table.upsert(rows(kind, 100).slice(0, 1))
    expected = table.to_arrow()
    assert expected.num_rows == rows(kind).num_rows - len(keys)
    with settings(spark, {"spark.sql.session.timeZone": zone}):
        assert rows_of(to_spark(table, native=native), expected.schema) == sorted_rows(expected)


@pytest.mark.parametrize(("kind", "zone"), some_of_each())
def test_what_is_written_and_deleted_from_spark_is_what_was_meant(
    kind: str, zone: str, spark: SparkSession, db: Database
) -> None:
    source = db.create_table("source", rows(kind).schema)
    source.append(rows(kind))
    table = db.create_table("t", rows(kind).schema, primary_key="k")
    with settings(spark, {"spark.sql.session.timeZone": zone, "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}):
        frame = source.to_spark()
        append(table, frame)
        assert sorted_rows(table.to_arrow()) == sorted_rows(source.to_arrow())
        upsert(table, frame.where("n < 4").selectExpr("k", "n + 100 AS n"))
        delete(table, frame.where("n = 4").select("k"))
        merge(table, frame.where("n IN (4, 5)"), "k", when_matched={"n": "target.n + 1000"})
    left = {row["k"]: row["n"] for row in table.to_arrow().to_pylist()}
    given = {row["k"]: row["n"] for row in source.to_arrow().to_pylist()}
    assert left == {k: n + 100 if n < 4 else n + 1000 if n == 5 else n for k, n in given.items()}

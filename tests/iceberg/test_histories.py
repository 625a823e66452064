"""Random histories, published incrementally: real readers of Iceberg see the rows that dolmen sees."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

from dolmen.iceberg.publication import IcebergPublication
from support import spark_iceberg
from support.iceberg_readers import IcebergReaders, sql
from support.published_history import PREDICATES, STEPS, PublishedHistory, counted, run_history
from support.spark import SparkProcess

SEED = os.environ["DOLMEN_TEST_SEED"]
LONG = bool(os.environ.get("DOLMEN_LONG"))
HISTORIES = 200 if LONG else 1
"""The number of histories in each of ten tests. Each has 20 predicates a version in long runs, and one in others."""

SPARK_HISTORIES = 200 if LONG else 1


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10 if LONG else 4))
def test_readers_see_every_published_version_as_it_is(tenth: int, readers: IcebergReaders) -> None:
    for number in range(tenth * HISTORIES, (tenth + 1) * HISTORIES):
        assert run_history(f"{SEED} {number}", readers, PREDICATES if LONG else 1)["histories"] == 1, number


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10 if LONG else 2))
def test_readers_see_every_version_of_partitioned_tables(tenth: int, readers: IcebergReaders) -> None:
    histories = 300 if LONG else 1
    for number in range(tenth * histories, (tenth + 1) * histories):
        counts = run_history(f"partitions {SEED} {number}", readers, PREDICATES if LONG else 2, partitioned=True)
        assert counts["histories"] == 1, number


def columns_for_spark(history: PublishedHistory, found: IcebergPublication) -> list[pa.Field]:
    """The published columns; no nested ones beside unsigned ones and times, as Spark's reader of these refuses files
    that have such columns, even if nobody asks for them."""
    published = [field for field in history.table.schema if field.name not in (found.left_out or {})]
    first = str(history.db.at(history.created).table("t").schema)
    if "uint" not in first and "time64" not in first:
        return published
    return [field for field in published if not pa.types.is_nested(field.type)]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SPARK_HISTORIES))
def test_spark_sees_every_published_version_as_it_is(number: int, spark_reader: SparkProcess, tmp_path: Path) -> None:
    rng = random.Random(f"spark {SEED} {number}")
    history = PublishedHistory(rng, str(tmp_path / "db"), partitioned=number % 2 == 0)
    for _ in range(STEPS):
        history.step()
        if history.rng.random() < 0.5:
            continue
        found = history.table.publish_iceberg()
        folder = found.metadata_location.rpartition("/metadata/")[0]
        fields = columns_for_spark(history, found)
        names = [field.name for field in fields]
        flat = [field for field in fields if not pa.types.is_nested(field.type)]
        pinned = history.db.at(found.version).table("t")
        for where in (None, *(history.condition(flat) for _ in range(PREDICATES if LONG else 2))):
            text = None if where is None else sql(where)
            expected = counted(pinned.scan(names, where=text).to_arrow(), names)
            seen = spark_reader.run(spark_iceberg.read, folder, names, text, found.version)
            assert counted(seen, names) == expected, f"at version {found.version}, where {where}, after {history.log}"

"""Random histories, published incrementally: real readers of Iceberg see the rows that dolmen sees."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest

import dolmen
from dolmen.iceberg.publication import IcebergPublication
from support import spark_iceberg
from support.iceberg_readers import READERS, Condition, IcebergReaders, sql
from support.published_history import PREDICATES, run_history
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
def test_all_readers_see_partitioned_tables_as_they_are(
    tenth: int, readers: IcebergReaders, spark_reader: SparkProcess
) -> None:
    how = {"partitioned": True, "spark": spark_reader, "readings": 2}
    histories = 300 if LONG else 1
    for number in range(tenth * histories, (tenth + 1) * histories):
        counts = run_history(f"partitions {SEED} {number}", readers, PREDICATES // 2 if LONG else 2, **how)
        assert counts["readings"] == 2, number


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SPARK_HISTORIES))
def test_spark_sees_every_published_version_as_it_is(
    number: int, readers: IcebergReaders, spark_reader: SparkProcess
) -> None:
    how = {"partitioned": number % 2 == 0, "spark": spark_reader}
    assert run_history(f"spark {SEED} {number}", readers, PREDICATES if LONG else 2, **how)["comparisons"]


CONDITIONS: list[Condition] = [
    ["id", "=", 7],
    ["seen", "<", {"date": "2026-11-02"}],
    ["and", ["id", ">", 3], ["tenant", "=", "t1"]],
    ["or", ["id", "<", 2], ["id", ">", 35]],
    ["tenant", "null"],
]


@pytest.fixture
def published(tmp_path: Path) -> IcebergPublication:
    table = dolmen.open(tmp_path / "db").create_table("t", "id BIGINT, seen DATE, tenant VARCHAR", partition_by="seen")
    days = [date(2026, 11, 1 + number % 3) for number in range(40)]
    table.append([{"id": id_, "seen": day, "tenant": f"t{id_ % 2}"} for id_, day in enumerate(days)])
    return table.publish_iceberg()


def test_duckdb_is_given_the_filters_of_each_branch(published: IcebergPublication, readers: IcebergReaders) -> None:
    location = published.metadata_location
    filters = readers.pushed(location, CONDITIONS)
    assert [each for (each,) in (readers.pushed(location, [condition]) for condition in CONDITIONS)] == filters
    assert all(column in found for column, found in zip(("id", "seen", "id", "id", "tenant"), filters, strict=True))


@pytest.mark.slow
def test_spark_is_given_the_filters_of_each_branch(published: IcebergPublication, spark_reader: SparkProcess) -> None:
    folder, texts = published.metadata_location.rpartition("/metadata/")[0], [sql(each) for each in CONDITIONS]
    found = spark_reader.run(spark_iceberg.pushed, folder, ["id"], texts, published.version)
    assert len(found) == len(CONDITIONS)
    filters = ("id = 7", "seen < ", "id > 3, tenant = 't1'", "(id < 2 OR id > 35)", "tenant IS NULL")
    for part, description in zip(filters, found, strict=True):
        assert part in description.replace("IS NOT NULL, ", "").replace("id tenant", "tenant"), description


@pytest.mark.slow
def test_zeros_are_found_whatever_their_sign(
    tmp_path: Path, readers: IcebergReaders, spark_reader: SparkProcess
) -> None:
    table = dolmen.open(tmp_path / "db").create_table("t", "id BIGINT, x DOUBLE, y FLOAT")
    for id_, zero in enumerate((0.0, -0.0)):
        table.append([{"id": id_, "x": zero, "y": zero}])
    found = table.publish_iceberg()
    folder = found.metadata_location.rpartition("/metadata/")[0]
    conditions: list[Condition] = [[name, op, 0.0] for name in "xy" for op in ("=", ">=", "<=")]
    expected = [(number, id_) for number in range(len(conditions)) for id_ in (0, 1)]
    texts = [sql(each) for each in conditions]
    seen = [readers.read_each(reader, found.metadata_location, conditions) for reader in READERS]
    for rows in (*seen, spark_reader.run(spark_iceberg.read_each, folder, ["id"], texts, found.version)):
        assert sorted(zip(rows["_condition"].to_pylist(), rows["id"].to_pylist(), strict=True)) == expected

"""The examples of docs/spark-statements.md and docs/spark-catalog.md run."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.spark import attach, detach
from support.spark import SINCE_4_1

PAGE = Path(__file__).parents[3] / "docs" / "spark-statements.md"
CATALOG = PAGE.with_name("spark-catalog.md")


@pytest.mark.slow
def test_the_examples_run(spark: SparkSession, tmp_path: Path) -> None:
    first, options = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    db = dolmen.open(str(tmp_path / "db"))
    events = db.create_table(
        "events",
        pa.schema(
            [
                ("id", pa.int64()),
                ("s", pa.string()),
                ("user_id", pa.int64()),
                ("amount", pa.float64()),
                ("day", pa.date32()),
            ]
        ),
    )
    day = datetime.date(2026, 1, 1)
    events.append([{"id": n, "s": "a", "user_id": 41 + n % 2, "amount": 1.0, "day": day} for n in range(10)])
    version, now = db.refresh(), datetime.datetime.now(datetime.UTC)
    first = first.replace("AS OF 17", f"AS OF {version}").replace("'2026-11-20'", "current_timestamp()")
    try:
        exec(first, {"spark": spark, "db": db, "day": day + datetime.timedelta(1)})
    finally:
        detach(spark, db)
    assert (events.count(), events.count("amount = 2")) == (5, 5)
    options = options.replace("17)", f"{version})").replace("2026-11-20T00:00:00Z", now.isoformat())
    for line in options.splitlines():
        assert eval(line, {"spark": spark, "url": db.url}).count() == 10


@pytest.mark.slow
def test_the_example_of_a_catalog_runs(spark: SparkSession, db: Database) -> None:
    (example,) = re.findall(r"<!-- example: spark catalog -->\n```python\n(.*?)```", CATALOG.read_text(), re.DOTALL)
    columns = "id BIGINT, s VARCHAR, user_id BIGINT, amount DOUBLE, day DATE"
    events, day = db.create_table("events", columns), datetime.date(2026, 11, 20)
    events.append([{"id": n, "s": "a", "user_id": 41 + n % 2, "amount": 1.0, "day": day} for n in range(10)])
    new = [(100, "b", 41, 5.0, day)]
    spark.createDataFrame(new, "id long, s string, user_id long, amount double, day date").createOrReplaceTempView(
        "new_rows"
    )
    try:
        exec(example, {"spark": spark, "db": db})
    finally:
        detach(spark, db)
        spark.catalog.dropTempView("new_rows")
    assert (events.count(), events.count("amount = 10"), events.count("amount = 2")) == (7, 2, 5)
    assert db.table("days").to_arrow().to_pylist() == [{"day": day, "n": 6}]


@pytest.mark.slow
def test_the_table_of_statements_is_true(spark: SparkSession, db: Database) -> None:
    page = PAGE.with_name("spark-sql.md").read_text().partition("## Statements of Delta Lake and Iceberg")[2]
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", page, re.MULTILINE)
    day = datetime.date(2026, 11, 20)
    events = db.create_table("events", "id BIGINT NOT NULL, s VARCHAR, day DATE", primary_key="id")
    events.append([{"id": n, "s": "a", "day": day} for n in range(10)])
    db.create_table("days", "id BIGINT, day DATE", partition_by="day")
    spark.createDataFrame([(100, "b", day)], "id long, s string, day date").createOrReplaceTempView("new_rows")
    attached = attach(spark, db, catalog="lake")
    wrong, refused = [], 0
    try:
        for statement, here in rows:
            if statement in SINCE_4_1 and spark.version < "4.1":
                continue
            refused += here.startswith("refused")
            steps = [(statement, here == "done")]
            if here.startswith("`"):
                steps.append((here.strip("`"), True))
            for step, is_done in steps:
                try:
                    spark.sql(step).collect()
                    found = ""
                except Exception as error:  # noqa: BLE001 - of any class of Spark's
                    found = str(error).strip()[:200]
                if is_done == bool(found):
                    wrong.append((step, found))
    finally:
        attached.detach()
        spark.catalog.dropTempView("new_rows")
        spark.catalog.dropTempView("recent")
    assert (wrong, len(rows) >= 71, refused <= 12) == ([], True, True)

"""The examples of docs/spark-statements.md run."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import dolmen
from dolmen.spark import detach

PAGE = Path(__file__).parents[3] / "docs" / "spark-statements.md"


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

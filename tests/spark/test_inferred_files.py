"""Files that Spark writes, inferred and read: each is equal, or refused, or the line says what was assumed."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.written_tables import judge, write_spark

TABLES = 500 if os.environ.get("DOLMEN_LONG") else 20


@pytest.mark.slow
def test_tables_of_spark_come_back_or_the_line_says_what_was_assumed(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    verdicts = Counter[str]()
    for number in range(TABLES):
        written = write_spark(random.Random(f"{seed} {number}"), spark, tmp_path)
        judgement = judge(written)
        assert judgement.verdict != "wrong", (seed, number, written, judgement)
        verdicts[judgement.verdict] += 1
    assert verdicts["equal"] > 0.75 * TABLES, verdicts

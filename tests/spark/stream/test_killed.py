"""A streaming driver that is killed with SIGKILL at any point of a batch, and started again: each row once."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dolmen
from dolmen.commit.head import context_of
from support.killed_streams import WAYS, Kill, Way, copy, run, stages
from support.spark import streams_arrow

LONG = bool(os.environ.get("DOLMEN_LONG"))
SEED = os.environ["DOLMEN_TEST_SEED"]
FILES, ROWS = (10, 20) if LONG else (3, 20)
SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string())])

ALL: list[tuple[Way, str]] = [(way, stage) for stage in stages("by_format") for way in WAYS]


def draw_kills() -> list[tuple[Way, str]]:
    """A kill at another stage for each way, by the seed of the run."""
    rng = random.Random(SEED)
    print(f"DOLMEN_TEST_SEED={SEED}")
    return list(zip(rng.sample(WAYS, len(WAYS)), rng.sample(list(stages("by_format")), len(WAYS)), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(3600)  # so many JVMs on a busy machine
@streams_arrow
def test_a_driver_that_is_killed_at_every_stage_writes_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for file in range(FILES):
        lines = [json.dumps({"id": file * ROWS + row, "s": f"s{row}"}) for row in range(ROWS)]
        (files / f"{file}.json").write_text("\n".join(lines))
    db = dolmen.open(str(tmp_path / "db"))
    tables = {way: db.create_table(way, SCHEMA) for way in WAYS}
    for place, (way, stage) in enumerate(ALL if LONG else draw_kills()):
        kill = stages(way)[stage]
        if place == 0:  # of the second batch: after the first one's is in the checkpoint
            kill = Kill(kill.key, kill.when, kill.roles, 2)
        code = run(db.url, files, tmp_path, way, kill)
        assert code == -9, f"{way}, {stage}: {code}\n{(tmp_path / 'log').read_text()[-4000:]}"
        for table in tables.values():
            rows = table.to_arrow()["id"].to_pylist()
            assert len(set(rows)) == len(rows)
    copy(spark, db.url, str(files), str(tmp_path), "by_format")
    for way, table in tables.items():
        assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(FILES * ROWS)), way
    applied = {entry.id for entry in context_of(db).head.refresh().manifest.applied}
    assert len(applied) == len(WAYS) * FILES
    assert len({id_.split(":")[1] for id_ in applied}) == len(WAYS)
    assert db.verify(deep=True).ok

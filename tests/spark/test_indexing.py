"""Indexes that Spark makes: the core's parts, byte for byte, beside whatever others do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from jobs.compact import main as compact_main
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.cli.run import run_job
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError, InputError, TableNotFoundError
from dolmen.format.manifest import Segment
from dolmen.maintenance import indexing
from dolmen.maintenance.indexing import FAN_IN, Indexed, IndexVersion, index_table
from dolmen.rows.scan.scan import plan_of
from dolmen.spark import index

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


def parts(db: Database, name: str = "t") -> tuple[Segment, ...]:
    context = context_of(dolmen.open(db.url))
    return context.segments.whole(context.head.refresh().manifest.tables[name]).segments_of("index")


def bodies(db: Database) -> list[bytes]:
    return [(Path(db.url.removeprefix("file://")) / part.object).read_bytes() for part in parts(db)]


@pytest.fixture
def table(db: Database, monkeypatch: pytest.MonkeyPatch) -> dolmen.Table:
    """Ten files whose keys overlap. Two of them make a part."""
    monkeypatch.setattr(indexing, "_ROWS_AT_ONCE", 1_000)
    made = db.create_table("t", SCHEMA, primary_key="id", properties={"index": True})
    ids = np.random.default_rng(3).permutation(5_000)
    for some in np.split(ids, 10):
        made.append({"id": some, "text": some.astype(str)})
    made.delete({"id": 7}, mode="positions")
    return made


@pytest.mark.slow
def test_parts_are_those_that_one_machine_makes(
    spark: SparkSession, db: Database, table: dolmen.Table, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "db", tmp_path / "other")
    other = dolmen.open(str(tmp_path / "other"))
    alone = index_table(context_of(other), "t")
    assert (alone.files, alone.finished) == (10, True)
    seen = []
    done = index(spark, db, progress=lambda each: seen.append(each.commits))["t"]
    assert (done.files, done.entries, done.finished) == (10, alone.entries, True)
    assert seen == list(range(1, done.commits + 1))
    assert done.commits < alone.commits, "what a job has built is one commit"
    assert bodies(db) == bodies(other)
    assert len(parts(db)) == 5 - FAN_IN + 1, "four of five were merged"
    fresh = dolmen.open(db.url)
    assert fresh.table("t").get(4_321) == {"id": 4_321, "text": "4321"}
    assert fresh.table("t").get(7) is None
    assert fresh.verify(deep=True).findings == ()
    again = index(spark, db, "t")["t"]
    assert (again.commits, again.files, again.finished) == (0, 0, True)
    table.set(index=False)
    assert index(spark, db)["t"].commits == 1
    assert parts(db) == ()


@pytest.mark.usefixtures("table")
def test_an_index_that_others_change_meanwhile_is_left_to_them(
    spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = index(spark, db, "t", deadline=lambda: True)["t"]
    assert (stopped.commits, stopped.finished, parts(db)) == (0, False, ())
    statement, others = indexing.IndexVersion.statement, list[Indexed]()

    def late(version: IndexVersion, *args: Any) -> Any:
        if not others:
            others.append(Indexed("t", 0, 0, 0, finished=False))
            others.append(index_table(context_of(dolmen.open(db.url)), "t"))
        return statement(version, *args)

    monkeypatch.setattr(indexing.IndexVersion, "statement", late)
    done = index(spark, db, "t")["t"]
    one_job = min(10, 2 * spark.sparkContext.defaultParallelism)
    assert (done.files, done.entries, done.commits, done.finished) == (one_job, 0, 0, True)
    assert sum(part.count for part in parts(db)) == 5_000
    assert dolmen.open(db.url).verify(deep=True).findings == ()


def test_rows_that_are_erased_while_a_job_runs_are_in_no_part(
    spark: SparkSession, db: Database, table: dolmen.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement, erased = indexing.IndexVersion.statement, list[str]()

    def late(version: IndexVersion, *args: Any) -> Any:
        if not erased:
            erased.append(table.erase("id = 11").id)
        return statement(version, *args)

    monkeypatch.setattr(indexing.IndexVersion, "statement", late)
    done = index(spark, db, "t")["t"]
    assert (len(erased), done.commits, done.finished) == (1, 0, True)
    assert parts(db) == (), "files that may hold the row are indexed when they have been rewritten"
    dolmen.open(db.url).maintain()
    assert sum(part.count for part in parts(db)) == 4_998
    assert dolmen.open(db.url).table("t").get(11) is None


def test_what_a_task_finds_damaged_is_raised(spark: SparkSession, db: Database, table: dolmen.Table) -> None:
    (file, *_) = plan_of(table.scan()).files
    path = Path(db.url.removeprefix("file://")) / file.file.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError):
        index(spark, db, "t")
    assert parts(db) == ()


def test_arguments_are_checked(spark: SparkSession, db: Database) -> None:
    with pytest.raises(TableNotFoundError):
        index(spark, db, "nobody")
    with pytest.raises(InputError):
        index(spark, db, [1])  # type: ignore[list-item]
    with pytest.raises(InputError):
        index(spark, "somewhere")  # type: ignore[arg-type]
    memory = dolmen.open("memory://indexing")
    memory.create_table("t", SCHEMA, primary_key="id", properties={"index": True})
    with pytest.raises(InputError, match="memory"):
        index(spark, memory)


@pytest.mark.slow
@pytest.mark.usefixtures("spark", "table")
def test_the_job_makes_indexes(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Callable[[Any], None] = run_job
    monkeypatch.setattr("sys.argv", ["job.py", "--database", str(tmp_path / "db"), "--steps", "index", "--json"])
    with pytest.raises(SystemExit) as ended:
        run(compact_main)
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    (done,) = json.loads(out)["done"]
    assert (done["step"], done["table"], done["files"], done["finished"]) == ("index", "t", 10, True)
    assert len(parts(db)) == 2

"""Compaction on Spark: by tasks, what the core's compaction makes; nobody sees a difference, whatever happens."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as t
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError, InputError, TableNotFoundError
from dolmen.format.types import quote_name
from dolmen.maintenance.compact import compaction as core
from dolmen.maintenance.compact.compaction import Compacted, CompactionOptions
from dolmen.rows.scan.scan import plan_of
from dolmen.spark import compaction_jobs
from dolmen.spark.compaction_jobs import CompactionTask, compact, rewrite_numbered
from support.random_tables import random_table
from support.spark_history import ROWS, History, sorted_rows

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES = 60 if os.environ.get("DOLMEN_LONG") else 2
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
EAGER = CompactionOptions(growth=2)
PARTS = CompactionOptions(growth=1, group_bytes=3500)
"""Groups of three, three and two files of ``table``."""


class SortedHistory(History):
    """A history of a table that may have a sort key, or be clustered."""

    def __init__(self, seed: int, url: str) -> None:
        self.rng = random.Random(seed)
        self.db = dolmen.open(url)
        self.pool = random_table(self.rng, ROWS)
        flat = [field.name for field in self.pool.schema if not t.is_nested(field.type)]
        names = list(map(quote_name, self.rng.sample(flat, min(2, len(flat)))))
        schema = self.pool.schema.insert(0, pa.field("rid", pa.int64(), nullable=False))
        terms = [
            f"{name} {self.rng.choice(['ASC', 'DESC'])} NULLS {self.rng.choice(['FIRST', 'LAST'])}" for name in names
        ]
        order: dict[str, Any] = [
            {"sort_key": ["bucket[2](rid)", *terms]},
            {"cluster_by": ", ".join([*names, "rid"])},
            {},
            {"sort_key": names},
            {"sort_key": "rid"},
        ][seed % 5]
        self.table = self.db.create_table("t", schema, primary_key="rid", **order)
        self.next_rid = 0


def everything(db: Database) -> list[str]:
    """All rows with their commit timestamps."""
    return sorted_rows(dolmen.open(db.url).table("t").scan(with_commit_ts=True).to_arrow())


def shape(db: Database) -> list[tuple[Any, ...]]:
    """What is said of the files, less their names, and what they were applied through: that is by the clock."""
    files = plan_of(db.table("t").scan()).files
    return sorted((f.file.rows, f.file.row_ts or 0, f.file.row_ts_bounds or ()) for f in files)


def rows(first: int, count: int, text: str = "old") -> pa.Table:
    return pa.table({"id": range(first, first + count), "text": [text] * count}, SCHEMA)


@pytest.fixture
def table(db: Database) -> Table:
    """Eight files of 50 ids each."""
    made = db.create_table("t", SCHEMA, primary_key="id")
    for first in range(0, 400, 50):
        made.append(rows(first, 50))
    return made


def ids(table: Table) -> list[int]:
    return sorted(table.scan(["id"]).to_arrow()["id"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("place", range(HISTORIES))
@pytest.mark.parametrize("recluster", [False, True], ids=["by groups", "as a whole"])
def test_random_histories_hold_the_rows_that_they_held(
    place: int, recluster: bool, spark: SparkSession, tmp_path: Path
) -> None:
    seed = SEED + place
    print(f"DOLMEN_TEST_SEED={seed}")
    history = SortedHistory(seed, str(tmp_path / "db"))
    history.grow()
    shutil.copytree(tmp_path / "db", tmp_path / "other")
    other = dolmen.open(str(tmp_path / "other"))
    before = everything(history.db)
    options = CompactionOptions(growth=1, memory_bytes=history.rng.choice([1 << 12, 32 << 20]))
    done = compact(spark, history.db, "t", options=options, recluster=recluster)["t"]
    assert everything(history.db) == before
    assert history.db.verify(deep=True).findings == ()
    assert done.finished
    expected = core.compact(context_of(other), "t", options=options)
    assert everything(other) == before
    assert shape(history.db) == shape(other)
    assert (done.rows, done.rows_deleted, done.files_in) == (expected.rows, expected.rows_deleted, expected.files_in)


@pytest.mark.slow
def test_tasks_copy_row_groups_and_spark_reads_them(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    options = CompactionOptions(growth=1, deleted_share=0.0, run_bytes=2_000, row_group_bytes=1, splice_bytes=1)
    assert not compact(spark, db, "t", options=options)["t"].bytes_copied, "each row gets its timestamp"
    table.delete("id = 77", mode="positions")
    before = everything(db)
    done = compact(spark, db, "t", options=options)["t"]
    assert done.bytes_copied
    assert everything(db) == before
    assert db.verify(deep=True).findings == ()
    (file,) = plan_of(table.scan()).files
    stored = spark.read.parquet(str(tmp_path / "db" / file.file.path))
    assert sorted(row.id for row in stored.collect()) == [n for n in range(400) if n != 77]
    for wanted, count in ((300, 1), (77, 0), (5, 1)):
        assert stored.filter(f"id = {wanted}").count() == count
        assert db.table("t").count(f"id = {wanted}") == count


def test_each_group_is_rewritten_by_a_task_and_its_objects_bear_the_name_of_an_intent(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    before = everything(db)
    files = {path.name for path in (tmp_path / "db" / "data").rglob("*.parquet")}
    told: list[tuple[str, int]] = []
    done = compact(spark, db, options=PARTS, progress=lambda name, so_far: told.append((name, so_far.groups)))["t"]
    assert done.groups == len(done.plan.groups) == 3
    assert (done.rows, done.files_in, done.dropped, done.finished) == (400, 8, 0, True)
    assert told == [("t", 1), ("t", 2), ("t", 3)]
    assert everything(db) == before
    new = {path.name for path in (tmp_path / "db" / "data").rglob("*.parquet")} - files
    (intent,) = {path.parent.name for path in (tmp_path / "db" / "intent").rglob("done")}
    assert new
    assert all(name.startswith(f"{intent}-") for name in new)


def test_a_dry_run_only_tells(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.version
    done = compact(spark, db, options=EAGER, dry_run=True)["t"]
    assert (len(done.plan.groups), done.commits, done.finished, db.refresh()) == (1, 0, True, version)


def test_without_a_sort_key_the_plan_is_cut_finer_so_that_all_processors_have_something_to_do(
    spark: SparkSession, db: Database, table: Table
) -> None:
    size = max(file.file.size for file in plan_of(table.scan()).files)
    options = CompactionOptions(growth=2, target_file_bytes=5 * size // 2)
    assert len(core.compact(context_of(db), "t", options=options, dry_run=True).plan.groups) == 1
    assert len(compact(spark, db, options=options, dry_run=True)["t"].plan.groups) >= 2


def test_what_cannot_be_compacted_is_said_before_spark_is_asked(
    spark: SparkSession, db: Database, table: Table
) -> None:
    with pytest.raises(TableNotFoundError, match="nowhere"):
        compact(spark, db, ["t", "nowhere"])
    memory = dolmen.open("memory://compaction")
    for number in range(3):
        memory.create_table(f"t{number}", SCHEMA)
        for first in range(4):
            memory.table(f"t{number}").append(rows(first, 1))
    with pytest.raises(InputError, match="memory"):
        compact(spark, memory, options=EAGER)


def between_plan_and_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], times: int = 1) -> None:
    """Does something just before the first commits."""
    submit, left = core.submit, [None] * times

    def racing(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            action()
        return submit(*args, **options)

    monkeypatch.setattr(core, "submit", racing)


@pytest.mark.parametrize("recluster", [False, True], ids=["by groups", "as a whole"])
@pytest.mark.parametrize("delete", [{"where": "id BETWEEN 40 AND 60"}, {"keys": [7, 250]}], ids=["where", "keys"])
def test_what_is_added_and_deleted_between_plan_and_commit_stays_so(
    delete: dict[str, Any], recluster: bool, spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tombstones are younger than what is applied in the new files, and go on hiding their rows."""
    table = db.create_table("t", SCHEMA, primary_key="id", sort_key="id" if recluster else None)
    for first in range(0, 300, 50):
        table.append(rows(first, 50))
    theirs = dolmen.open(db.url).table("t")
    expected: list[list[str]] = []

    def meanwhile() -> None:
        theirs.append(rows(1000, 5))
        theirs.delete(**delete)
        theirs.upsert(rows(100, 3, "new"))
        expected.append(everything(db))

    between_plan_and_commit(monkeypatch, meanwhile)
    done = compact(spark, db, options=EAGER, recluster=recluster)["t"]
    assert (done.groups, done.dropped, done.rows) == (1, 0, 300)
    assert [everything(db)] == expected
    assert any(file.tombstones for file in plan_of(dolmen.open(db.url).table("t").scan()).files)
    db.resolve()
    assert [everything(db)] == expected
    assert db.verify(deep=True).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("recluster", [False, True], ids=["by groups", "as a whole"])
def test_files_whose_rows_were_deleted_by_position_meanwhile_are_tried_again_in_halves(
    recluster: bool, spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id", sort_key="id" if recluster else None)
    for first in range(0, 300, 50):
        table.append(rows(first, 50))
    theirs = dolmen.open(db.url).table("t")
    between_plan_and_commit(monkeypatch, lambda: theirs.delete("id = 120", mode="positions"))
    done = compact(spark, db, options=EAGER, recluster=recluster)["t"]
    assert (done.groups, done.dropped, done.finished) == (2, 1, True)
    assert ids(table) == [i for i in range(300) if i != 120]
    assert db.verify(deep=True).findings == ()


def test_groups_that_fit_are_committed_beside_one_that_does_not(
    spark: SparkSession, db: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = dolmen.open(db.url).table("t")
    between_plan_and_commit(monkeypatch, lambda: theirs.delete("id = 120", mode="positions"))
    monkeypatch.setattr(type(spark.sparkContext), "defaultParallelism", 6)  # three groups to a job
    before = db.version
    done = compact(spark, db, options=PARTS)["t"]
    first = next(commit for commit in db.history() if commit.version == before + 2)
    assert (first.operation, first.counts.groups_dropped, first.counts.files_removed) == ("compact", 1, 5)
    assert (done.groups, done.dropped, done.files_in, done.rows) == (3, 1, 7, 349)  # one file alone is not worth while
    assert ids(table) == [i for i in range(400) if i != 120]
    assert db.verify(deep=True).findings == ()


@pytest.mark.parametrize("action", ["another compaction", "overwrite", "drop"])
def test_who_replaces_the_files_meanwhile_wins(
    action: str, spark: SparkSession, db: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = dolmen.open(db.url)

    def meanwhile() -> None:
        if action == "overwrite":
            theirs.table("t").overwrite(rows(7, 3))
        elif action == "drop":
            theirs.drop_table("t")
            theirs.create_table("t", SCHEMA).append(rows(7, 3))
        else:
            core.compact(context_of(theirs), "t", options=EAGER)

    between_plan_and_commit(monkeypatch, meanwhile)
    done = compact(spark, db, options=EAGER)["t"]
    assert (done.groups, done.dropped, done.finished) == (0, 1, action == "another compaction")
    assert ids(db.table("t")) == (list(range(400)) if action == "another compaction" else [7, 8, 9])
    assert db.verify(deep=True).findings == ()


class Dying:
    """Tasks that rewrite the files of one group die when all is written."""

    def __init__(self, uuid: str, attempts: int) -> None:
        self._uuid, self._attempts = uuid, attempts

    def __call__(self, task: CompactionTask, groups: list[tuple[str, ...]]) -> Callable[[int], pa.RecordBatch]:
        rewrite, attempts = rewrite_numbered(task, groups), self._attempts
        is_dying = any(self._uuid in uuids for uuids in groups)

        def run(number: int) -> pa.RecordBatch:
            found = rewrite(number)
            context = TaskContext.get()
            if is_dying and context is not None and context.attemptNumber() < attempts:
                raise RuntimeError("the executor is gone")
            return found

        return run


def test_a_task_that_dies_once_leaves_orphans_and_nothing_else(
    spark: SparkSession, db: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(db)
    first = plan_of(table.scan()).files[0].file
    monkeypatch.setattr(compaction_jobs, "rewrite_numbered", Dying(first.uuid, 1))
    done = compact(spark, db, options=PARTS)["t"]
    assert (done.groups, done.dropped, done.files_out) == (3, 0, 3)
    assert everything(db) == before
    report = db.verify(deep=True)
    assert report.findings == ()
    assert {place: found.objects for place, found in report.orphans.items()} == {"data/": 1}


@pytest.mark.slow
def test_a_task_that_always_dies_costs_its_own_group_alone(
    spark: SparkSession, db: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(db)
    told: list[int] = []
    last = plan_of(table.scan()).files[-1].file
    monkeypatch.setattr(compaction_jobs, "rewrite_numbered", Dying(last.uuid, 99))
    with pytest.raises((PySparkException, Py4JJavaError), match="executor"):
        compact(spark, db, options=PARTS, progress=lambda name, done: told.append(done.groups))
    assert told == [1, 2]
    assert everything(db) == before
    assert db.verify(deep=True).findings == ()


def test_a_damaged_file_is_told_as_what_it_is(spark: SparkSession, db: Database, table: Table, tmp_path: Path) -> None:
    lost = plan_of(table.scan()).files[0].file.path
    (tmp_path / "db" / lost).unlink()
    with pytest.raises(CorruptionError, match=lost):
        compact(spark, db, options=EAGER)


def test_a_run_that_is_interrupted_leaves_what_it_has_committed(
    spark: SparkSession, db: Database, table: Table
) -> None:
    before = everything(db)

    def interrupt(name: str, done: Compacted) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(spark, db, options=PARTS, progress=interrupt)
    assert len(plan_of(db.table("t").scan()).files) == 6
    assert everything(db) == before


@pytest.mark.slow
def test_what_was_begun_by_the_deadline_is_committed_and_the_next_call_goes_on(
    spark: SparkSession, db: Database, table: Table
) -> None:
    asked = iter([False, True])
    done = compact(spark, db, options=PARTS, deadline=lambda: next(asked))["t"]
    assert (done.groups, done.finished) == (1, False)
    again = compact(spark, db, options=PARTS)["t"]
    assert (again.finished, ids(table)) == (True, list(range(400)))


@pytest.mark.slow
def test_reclustering_makes_files_that_do_not_overlap_and_then_has_nothing_to_do(
    spark: SparkSession, db: Database
) -> None:
    made = db.create_table("t", pa.schema([("k", pa.int64()), ("x", pa.float64())]), sort_key="k")
    rng = random.Random(7)
    for number in range(8):
        k, x = [rng.randrange(10**6) for _ in range(2000)], [rng.random() for _ in range(2000)]
        made.append(pa.table({"k": k, "x": x}))
        if number == 6:
            made.delete("x < 0.1")  # stays unresolved, and is no matter to the last file
    made.delete("k < 100000", mode="positions")
    before = everything(db)
    size = plan_of(made.scan()).files[0].file.size
    options = CompactionOptions(target_file_bytes=size, row_group_bytes=1 << 12)
    done = compact(spark, db, recluster=True, options=options)["t"]
    assert (done.groups, done.commits, done.files_in) == (1, 1, 8)
    assert everything(db) == before
    found = sorted((file.file.stats[1].min, file.file.stats[1].max) for file in plan_of(made.scan()).files)
    assert len(found) > 3
    assert all(one[1] <= next_[0] for one, next_ in pairwise(found))
    assert db.verify(deep=True).findings == ()
    assert compact(spark, db, recluster=True, options=options)["t"].plan.groups == ()

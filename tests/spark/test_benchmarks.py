"""The benchmarks on Spark, at a tiny size: what they ask and delete is right, and they say what was missed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from bench.spark import measured, part
from bench.spark.cpu import Spent, Used, spent_between
from bench.spark.ours import PREDICATES, Dolmen
from bench.spark.source import FILES, Source, make
from bench.spark.writes import PIECES, WRITES, Writing
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROWS = 2_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return make(tmp_path_factory.mktemp("bench"), ROWS)


@pytest.fixture(scope="module")
def dolmen_engine(spark: SparkSession, source: Source, tmp_path_factory: pytest.TempPathFactory) -> Dolmen:
    engine = Dolmen(tmp_path_factory.mktemp("engine"), source, spark)
    engine.prepare()
    return engine


def expected(state: str, query: str, source: Source) -> tuple[Any, ...]:
    rows = pa.concat_tables(source.tables())
    if state.startswith("1 %"):
        gone = pq.read_table(source.keys.removeprefix("file://"))["id"]
        assert len(gone) == ROWS // 100
        rows = rows.filter(pc.invert(pc.is_in(rows["id"], gone)))
    elif state != "clean":
        assert PREDICATES == ("user_id = 5", "amount < 0.0001 AND kind = 'view'")
        seen = pc.and_(pc.less(rows["amount"], 0.0001), pc.equal(rows["kind"], "view"))
        rows = rows.filter(pc.invert(pc.or_(pc.equal(rows["user_id"], 5), seen)))
        assert rows.num_rows < ROWS
    if query == "two columns":
        return tuple(pc.sum(rows[name]).as_py() for name in ("user_id", "items"))
    sums = [pc.sum(rows[name]).as_py() for name in ("id", "user_id", "amount", "score", "items")]
    most = [pc.max(rows[name]).as_py() for name in ("code", "kind")]
    return (*sums, *most, pc.max(rows["event_time"]).value, len(rows))


@pytest.mark.parametrize("state", measured.READS)
def test_what_is_asked_is_answered_right_in_every_state(state: str, dolmen_engine: Dolmen, source: Source) -> None:
    dolmen_engine.go_back(state)
    for query in measured.READS[state]:
        asked = dolmen_engine.query(query)
        for one, other in zip(asked.result, expected(state, query, source), strict=True):
            assert one == (pytest.approx(other, rel=1e-9) if isinstance(other, float) else other)
        assert asked.cpu > 0
    plain = dolmen_engine.plain("two columns").result
    assert plain == expected("clean", "two columns", source), "plain is of all rows, whatever was deleted"


def test_the_time_of_a_worker_that_ends_unnoticed_is_not_taken_from_the_others() -> None:
    before = {"java": Used(5.0, 1.0), "workers": Used(0.5, 0.0), "worker": Used(2.0, 0.0)}
    assert spent_between(before, {**before, "java": Used(6.0, 1.0), "new": Used(0.25, 0.0)}) == 1.25
    java_waited = {"java": Used(6.0, 4.0)}
    assert spent_between(before, java_waited) == 1.0 + (4.0 - 1.0) - 0.5 - 2.0
    assert spent_between(before, {"java": Used(6.0, 1.0)}) == 1.0, "nobody waited for those that ended"


def test_the_steps_of_a_query_are_told_apart(dolmen_engine: Dolmen) -> None:
    class InThisProcess:
        """The engine, called as in a process of its own."""

        def call(self, method: str, *arguments: Any) -> Any:
            return getattr(dolmen_engine, method)(*arguments)

    ours: Any = InThisProcess()
    told = measured.parts(ours, 1)
    assert re.search(r"the frame [\d.]+ s .* \([\d.]+ in Python\), .* planning [\d.]+, running it [\d.]+$", told), told


def test_deletes_delete_and_are_taken_back(dolmen_engine: Dolmen, source: Source) -> None:
    dolmen_engine.go_back("clean")
    dolmen_engine.delete_user(7)
    users = pa.concat_tables(source.tables())["user_id"].to_pylist()
    assert dolmen_engine.table().count() == ROWS - users.count(7) < ROWS
    dolmen_engine.go_back("clean")
    dolmen_engine.delete_keys_and_resolve()
    assert dolmen_engine.table().count() == ROWS - ROWS // 100
    dolmen_engine.go_back("clean")
    assert dolmen_engine.table().count() == ROWS


@pytest.mark.slow
def test_writes_write_all_rows(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    writing = Writing(tmp_path, source, spark)
    writing.prepare()
    assert len(writing.pieces) == FILES * PIECES
    for _, ours, theirs, _ in WRITES:
        assert getattr(writing, ours[0])(*ours[1:]).cpu > 0  # which looks whether all rows are there
        getattr(writing, theirs[0])(*theirs[1:])
        assert spark.read.parquet(writing.newest).count() == ROWS


def test_a_line_says_what_was_reached_and_what_was_missed() -> None:
    class Worker:
        """Deletes in half a second, or in one that is given."""

        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        def call(self, method: str, *arguments: Any) -> None:
            assert (method, arguments) == ("go_back", ("clean",))

        def spend_on(self, method: str, *arguments: Any) -> Spent:
            return Spent(0.0, 2 * self.seconds, self.seconds)

    engines: Any = [Worker("dolmen", 0.5), Worker("Delta", 3.0), Worker("Iceberg", 1.0)]
    user, keys, later = measured.deletes(engines, 2)
    assert user.targets == (
        "0.500 s (<= 0.10): **missed**",
        "6.0 x as fast as Delta (>= 5): reached",
        "2.0 x as fast as Iceberg (>= 5): **missed**",
    )
    assert keys.over == {"Delta": 1 / 6, "Iceberg": 0.5}
    assert later.targets == ()
    told: list[str] = []
    page = part.section("Spark: deletes", "Of rows.", engines, iter([user, keys, later]), told.append)
    assert page.startswith("## Spark: deletes\n\nOf rows.\n\n| what | dolmen | Delta | Iceberg | dolmen / Delta |")
    assert (
        told[1]
        == f"| {keys.name} | 1.00 (0.50) | 6.00 (3.00) | 2.00 (1.00) | 0.17 | 0.50 | {'; '.join(keys.targets)} |"
    )
    widths = {line.count("|") for line in page.splitlines() if line.startswith("|")}
    assert len(widths) == 1


@pytest.mark.skipif(not os.environ.get("DOLMEN_LONG"), reason="fetches Delta and Iceberg: DOLMEN_LONG=1")
def test_all_engines_give_the_same_sums() -> None:
    """Which the benchmark itself looks at, in all states."""
    command = [sys.executable, "-m", "bench", "spark", "--spark-rows", "2000", "--spark-rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| all columns, 1 % deleted |" in done.stdout
    assert "| delete of 1 % of the keys |" in done.stdout

"""Two Spark jobs and a compactor race on one table: no row is lost or doubled, whoever comes first.

In each round the three are begun at once, and none commits before all are ready to: all but one then meet a version
that they did not know. What they did is repeated on plain rows, in the order of their commits.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

import dolmen
from dolmen import Commit, Database
from dolmen.base.runtime import shared_runtime
from dolmen.errors import ConflictError
from dolmen.spark.compaction_jobs import compact
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.write.from_frame import append, delete, overwrite, upsert
from dolmen.spark.write.merge_frame import merge
from dolmen.store import open_store
from support.spark_races import Meeting, MeetingStore

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
ROUNDS = 500 if os.environ.get("DOLMEN_LONG") else 8
LEAST_CONFLICTS = ROUNDS // 5
IDS = 40

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int64())])

Rows: TypeAlias = dict[int, int]
"""``x`` by ``id``, which is there once."""


@dataclass(frozen=True)
class Move:
    """What an actor does in a round.

    Args:
        run: does it; None if it was refused because of what others did.
        effect: the same on plain rows.
    """

    name: str
    run: Callable[[], Commit | None]
    effect: Callable[[Rows], Rows]


class Actor:
    """A process, as it were: a client of its own of the database."""

    def __init__(self, name: str, url: str, spark: SparkSession, dice: random.Random) -> None:
        self.name, self.spark, self.dice = name, spark, dice
        self.store = MeetingStore(open_store(url), name)
        self.database = Database(self.store, shared_runtime())
        self.table = self.database.table("t")

    def frame(self, rows: Rows) -> DataFrame:
        data = pa.table({"id": list(rows), "x": list(rows.values())}, SCHEMA)
        return self.spark.createDataFrame(data)


class Writer(Actor):
    """Runs Spark jobs that write; each knows what others may have done meanwhile only when it commits."""

    def move(self, round_: int, before: Rows) -> Move:
        ways = [self.append, self.upsert, self.delete, self.overwrite, self.merge]
        if before and self.dice.random() < 0.2:
            return self.delete_positions(self.dice.choice(list(before.values())))
        return self.dice.choice(ways)(round_)

    def append(self, round_: int) -> Move:
        """Rows of ids that nobody else writes."""
        mine = 1000 * (round_ + 1) + (500 if self.name == "second" else 0)
        rows = {mine + n: round_ for n in range(self.dice.randint(1, 4))}
        return Move("append", lambda: append(self.table, self.frame(rows)), lambda before: before | rows)

    def upsert(self, round_: int) -> Move:
        rows = self._rows(round_)
        return Move("upsert", lambda: upsert(self.table, self.frame(rows)), lambda before: before | rows)

    def delete(self, round_: int) -> Move:
        rows = self._rows(round_)

        def effect(before: Rows) -> Rows:
            return {id_: x for id_, x in before.items() if id_ not in rows}

        return Move("delete", lambda: delete(self.table, self.frame(rows).select("id")), effect)

    def delete_positions(self, of: int) -> Move:
        """What dolmen itself does in the driver: looks rows up, and must look again if they have moved."""

        def effect(before: Rows) -> Rows:
            return {id_: x for id_, x in before.items() if x != of}

        return Move("delete positions", lambda: self.table.delete(f"x = {of}", mode="positions"), effect)

    def overwrite(self, round_: int, *, force: bool | None = None) -> Move:
        """Fewer rows than there were, of the table's own ids."""
        rows = dict.fromkeys(self.dice.sample(range(IDS), IDS // 2), round_)
        force = self.dice.random() < 0.5 if force is None else force

        def run() -> Commit | None:
            try:
                return overwrite(self.table, self.frame(rows), force=force)
            except ConflictError:
                return None

        return Move("overwrite by force" if force else "overwrite", run, lambda before: dict(rows))

    def merge(self, round_: int, ids: Iterable[int] | None = None) -> Move:
        """Counts up what it reads, and inserts what is not there: another one's count may not be lost."""
        rows = self._rows(round_) if ids is None else dict.fromkeys(ids, round_)

        def run() -> Commit:
            return merge(self.table, self.frame(rows), "id", {"x": "target.x + source.x"}, "insert")

        return Move("merge", run, lambda before: before | {id_: before.get(id_, 0) + x for id_, x in rows.items()})

    def _rows(self, round_: int) -> Rows:
        return dict.fromkeys(self.dice.sample(range(IDS), self.dice.randint(1, 4)), round_)


class Compactor(Actor):
    """Moves rows about, and changes none."""

    def move(self, round_: int, before: Rows) -> Move:
        ways = {
            "compact": lambda: self.database.compact("t"),
            "compact on Spark": lambda: compact(self.spark, self.database, "t"),
            "resolve": lambda: self.database.resolve(),
        }
        name = self.dice.choice(list(ways))

        def run() -> None:
            ways[name]()

        return Move(name, run, lambda before: before)


class Race:
    """A table, three actors, and what must be in it."""

    def __init__(self, url: str, spark: SparkSession, seed: int) -> None:
        self.dice = random.Random(seed)
        self.database, self.spark = dolmen.open(url), spark
        self.table = self.database.create_table("t", SCHEMA, primary_key="id", sort_key="id")
        self.rows: Rows = dict.fromkeys(range(IDS), 0)
        for first in range(0, IDS, 10):
            self.table.append([{"id": id_, "x": 0} for id_ in range(first, first + 10)])
        kinds: list[tuple[type[Any], str]] = [(Writer, "first"), (Writer, "second"), (Compactor, "compactor")]
        self.actors = [kind(name, url, spark, self.dice) for kind, name in kinds]
        self.writers: dict[str, Writer] = {actor.name: actor for actor in self.actors if isinstance(actor, Writer)}
        self.seen: Counter[str] = Counter()

    def round(self, number: int) -> None:
        """All three move at once; afterwards exactly the rows are there that should be."""
        moves = {actor.name: actor.move(number, self.rows) for actor in self.actors}
        order = self.dice.sample(list(moves), len(moves))
        if number % 2 == 0:
            moves |= self._certain_conflict(number, [self.writers[name] for name in order if name in self.writers])
        meeting = Meeting(order)
        with ThreadPoolExecutor(len(moves)) as pool:
            running = {
                actor.name: pool.submit(
                    inheritable_thread_target(self.spark)(self._move), actor, meeting, moves[actor.name].run
                )
                for actor in self.actors
            }
        done = {name: future.result() for name, future in running.items()}
        for name, commit in sorted(done.items(), key=lambda item: _place(item[1])):
            if commit is not None:
                self._apply(moves[name], commit)
            elif name != "compactor":
                self.seen["refused for good"] += 1
            self._count(commit, meeting.refused[name])
        found = self.table.to_arrow().to_pylist()
        context = {name: (move.name, done[name]) for name, move in moves.items()}
        assert sorted((row["id"], row["x"]) for row in found) == sorted(self.rows.items()), (number, context)

    def _certain_conflict(self, number: int, writers: list[Writer]) -> dict[str, Move]:
        """What the later of two can't but do anew, as it counts up what the other has counted, or is refused with."""
        first, second = writers
        if number % 8 == 0:
            ids = self.dice.sample(range(IDS), 3)
            return {writer.name: writer.merge(number, ids) for writer in writers}
        return {first.name: first.append(number), second.name: second.overwrite(number, force=False)}

    @staticmethod
    def _move(actor: Actor, meeting: Meeting, run: Callable[[], Commit | None]) -> Commit | None:
        actor.store.meeting = meeting
        try:
            return run()
        finally:
            meeting.leave(actor.name)

    def _apply(self, move: Move, commit: Commit) -> None:
        after = move.effect(self.rows)
        assert commit.attempts or after == self.rows, f"{move.name} did nothing, where it had something to do"
        self.rows = after
        self.seen[move.name] += 1

    def _count(self, commit: Commit | None, refused: int) -> None:
        self.seen["commits that met another one"] += refused
        if commit is not None and refused > commit.attempts - 1:
            self.seen["made anew"] += 1


def _place(commit: Commit | None) -> tuple[int, bool]:
    """In the order of the table's history. What changed nothing comes after the version that it was done on."""
    return (commit.version, commit.attempts == 0) if commit else (0, True)


@pytest.mark.slow
def test_no_row_is_lost_or_doubled_by_two_jobs_and_a_compactor(spark: SparkSession, tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    race = Race(str(tmp_path / "db"), spark, SEED)
    for number in range(ROUNDS):
        race.round(number)
        if number % 10 == 7:
            found = to_spark(race.table).collect()
            assert sorted((row.id, row.x) for row in found) == sorted(race.rows.items())
    print(dict(race.seen))
    assert race.seen["commits that met another one"] >= ROUNDS, "two writers meet in every round"
    assert race.seen["made anew"] + race.seen["refused for good"] >= LEAST_CONFLICTS
    assert race.database.verify(deep=True, all_versions=True).ok

"""Rounds of maintenance: fair among tables, in time, and stopped by nobody."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.errors import InputError
from dolmen.maintenance.debt import STEPS
from dolmen.maintenance.round import CompletedStep, Deadline, StepFailure, maintain

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


class Hurry:
    """A time that passes by one second whenever somebody asks how much is left."""

    def __init__(self, seconds: float) -> None:
        self.now, self._end = 0.0, seconds

    @property
    def deadline(self) -> Deadline:
        return Deadline(Runtime(monotonic=lambda: self.now, threads=1), self._remaining)

    def _remaining(self) -> float:
        self.now += 1
        return self._end - self.now


def fill(db: Database, name: str, files: int) -> None:
    """Files of two rows, with a delete that takes one of each."""
    table = db.create_table(name, SCHEMA)
    with db.transaction() as tx:
        for n in range(files):
            tx.table(name).append(pa.table({"id": [n, n], "n": [0, 1]}))
    table.delete("n = 1")


@pytest.fixture
def tables(db: Database) -> Database:
    """One with very much to do, and three with little."""
    for name, files in (("big", 60), ("x", 5), ("y", 5), ("z", 5)):
        fill(db, name, files)
    return db


def rows(db: Database) -> dict[str, int]:
    return {name: db.table(name).count() for name in db.tables()}


def test_a_round_takes_all_steps_in_their_order_and_those_with_most_to_do_first(tables: Database) -> None:
    heard: list[CompletedStep | StepFailure] = []
    done = maintain(tables._context, progress=heard.append)
    assert done.finished
    assert list(done.done) == heard
    turns = [(one.step, one.table) for one in done.done]
    assert [step for step in STEPS for one in turns if one[0] == step] == [step for step, _ in turns]
    assert next(table for step, table in turns if step == "compact") == "big"
    assert {table for step, table in turns if step == "resolve"} == {"big", "x", "y", "z"}
    assert [tables.table(name).describe()["files"] for name in tables.tables()] == [1, 1, 1, 1]
    assert rows(tables) == {"big": 60, "x": 5, "y": 5, "z": 5}


def test_a_table_with_endless_work_does_not_keep_the_others_from_their_turn(tables: Database) -> None:
    done = maintain(tables._context, steps=["resolve"], deadline=Hurry(75).deadline)
    assert not done.finished
    assert {one.table for one in done.done} == {"big", "x", "y", "z"}
    assert [len(tables.table(name).describe()["unresolved_deletes"]) for name in "xyz"] == [0, 0, 0]
    assert tables.table("big").describe()["unresolved_deletes"]


def test_what_was_begun_is_kept_and_the_next_rounds_go_on_from_there(tables: Database) -> None:
    before = rows(tables)
    for _ in range(40):
        if maintain(tables._context, deadline=Hurry(75).deadline).finished:
            break
        assert rows(tables) == before
    assert tables.stats(exact=True).total("tombstones") == 0
    assert tables.stats(exact=True).total("files_saved") == 0
    assert rows(tables) == before


def test_time_that_one_does_not_need_goes_to_the_others(db: Database) -> None:
    fill(db, "big", 60)
    for name in ("x", "y", "z"):
        db.create_table(name, SCHEMA)
    assert maintain(db._context, steps=["resolve"], deadline=Hurry(400).deadline).finished
    assert db.table("big").describe()["unresolved_deletes"] == []


def test_a_table_dropped_meanwhile_is_no_failure(tables: Database, other: Database) -> None:
    def tell(ended: CompletedStep | StepFailure) -> None:
        if ended.step == "resolve" and "y" in other.tables():
            other.drop_table("y")

    done = maintain(tables._context, progress=tell)
    assert done.failures == ()
    assert tables.tables() == ["big", "x", "z"]


def test_a_round_that_finds_nothing_makes_no_version(tables: Database) -> None:
    maintain(tables._context)
    version = tables.version
    again = maintain(tables._context)
    assert (again.finished, tables.refresh()) == (True, version)


def test_without_tables_there_is_nothing_to_do(db: Database) -> None:
    done = maintain(db._context)
    assert (done.finished, done.failures, db.version) == (True, (), 0)


def test_a_round_shows_what_it_changed_and_only_counts_what_it_did_not(db: Database) -> None:
    for number in range(12):
        db.create_table(f"idle_{number}", SCHEMA).append(pa.table({"id": [1], "n": [0]}))
    fill(db, "busy", 5)
    shown = repr(db.maintain())
    assert "resolve busy" in shown
    assert "idle" not in shown
    assert "nothing to do" in shown
    assert "there was nothing to do" in repr(db.maintain())


def test_keys_of_too_many_digits_are_refused_in_words(db: Database) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id")
    with pytest.raises(InputError, match=r"id int64: '10{30}'"):
        table.delete(keys=[Decimal("1e30")])

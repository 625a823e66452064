"""The feed of an erasure: whoever has the rows is told their keys alone, and nobody else ever gets them."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen

SEED = os.environ["DOLMEN_TEST_SEED"]
HISTORIES = 120 if os.environ.get("DOLMEN_LONG") else 3
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("user", pa.int64()), ("x", pa.string())])


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"id": i, "user": i % 3, "x": f"x{i}"} for i in range(start, stop)]


def fed(table: Any, since: int, until: int | None = None, **options: Any) -> list[tuple[Any, ...]]:
    found = table.changes(since, until, **options).read_all().to_pylist()
    return sorted(
        ((row["_version"], row["_change"], *(value for name, value in row.items() if name[0] != "_")) for row in found),
        key=repr,
    )


def test_an_erasure_is_fed_as_deletes_of_keys_alone(db: dolmen.Database) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append(rows(0, 6))
    before = db.version
    done = table.erase("user = 1").commit.version
    assert fed(table, before) == [(done, "delete", 1, None, None), (done, "delete", 4, None, None)]
    assert fed(table, before, net=True) == [(done, "delete", 1, None, None), (done, "delete", 4, None, None)]
    assert fed(table, before, columns=["x", "id"], where="id = 4") == [(done, "delete", None, 4)]
    assert fed(table, before, columns=["x"]) == [(done, "delete", None)] * 2
    assert [change[:3] for change in fed(table, 0, before)] == [(before, "insert", i) for i in (0, 2, 3, 5)]
    assert fed(table, 0, before, net=True) == fed(table, 0, before)
    assert all(change[2] not in (1, 4) or change[1] == "delete" for change in fed(table, 0))


def test_without_a_key_the_deletes_have_what_the_erasure_names(db: dolmen.Database) -> None:
    table = db.create_table("t", SCHEMA)
    table.append(rows(0, 6))
    before = db.version
    done = table.erase("user = 1 AND x <> 'x4'").commit.version
    assert fed(table, before) == [(done, "delete", None, 1, "x1")]
    table.erase(keys=[2], on=["user"])
    assert [change[1:] for change in fed(table, done)] == [("delete", None, 2, None)] * 2


def test_a_row_of_the_same_key_that_comes_later_is_another_one(db: dolmen.Database) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append(rows(0, 3))
    before = db.version
    with db.transaction() as transaction:
        transaction.table("t").erase("id = 1")
        transaction.table("t").upsert([{"id": 1, "user": 9, "x": "new"}])
    changes = [(row["_change"], row["id"], row["user"]) for row in table.changes(before).read_all().to_pylist()]
    assert changes == [("delete", 1, None), ("insert", 1, 9)]
    changes = [(row["_change"], row["id"]) for row in table.changes(before, net=True).read_all().to_pylist()]
    assert changes == [("delete", 1), ("insert", 1)]
    assert fed(table, 0, before)[0][2] == 0


def test_clones_and_who_is_forgotten_are_fed_too(db: dolmen.Database) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id", properties={"subject": "user"})
    table.append(rows(0, 3))
    db.clone("t", "c")
    before = db.version
    for number in range(12):  # the feed goes by the words of the history first
        db.create_table(f"other{number}", SCHEMA)
    done = db.forget(1).commit.version
    for number in range(12):
        db.create_table(f"more{number}", SCHEMA)
    for name in ("t", "c"):
        assert fed(db.table(name), before) == [(done, "delete", 1, None, None)]


class Replica:
    """The rows of a reader of changes, by key, or all of them where there is no key."""

    def __init__(self, has_key: bool) -> None:
        self.has_key, self.rows = has_key, Counter[tuple[Any, ...]]()

    def take(self, changes: pa.RecordBatchReader, names: list[str]) -> None:
        for change in changes.read_all().to_pylist():
            row = tuple(change[name] for name in names)
            if change["_change"] in ("insert", "update_after"):
                self.rows[row] += 1
            elif self.rows[row] > 0:
                self.rows[row] -= 1
            elif self.has_key:
                self._drop(lambda known, key=row[0]: known[0] == key)
            else:
                self._drop(lambda known, row=row: known[1:] == row[1:] if row[2] is not None else known[1] == row[1])
        self.rows = +self.rows

    def _drop(self, is_meant: Any) -> None:
        for known in [known for known in self.rows if is_meant(known)]:
            del self.rows[known]


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(HISTORIES))
def test_replays_are_exact_at_every_version_as_it_is_read_now(turn: int, tmp_path: Path) -> None:
    rng, has_key = random.Random(f"{SEED} {turn}"), turn % 3 > 0
    db = dolmen.open(str(tmp_path / "db"))
    db.set(root_bytes="4KB")
    table = db.create_table("t", SCHEMA, primary_key="id" if has_key else None)
    replica, seen, next_id = Replica(has_key), db.version, 0
    names = SCHEMA.names
    for _ in range(30):
        act = rng.choice(["append", "append", "upsert", "delete", "positions", "erase", "erase", "restore", "work"])
        new = [{"id": next_id + i, "user": rng.randrange(6), "x": rng.choice("ab")} for i in range(rng.randrange(1, 9))]
        if act == "append" or (act == "upsert" and not has_key):
            table.append(new)
            next_id += len(new)
        elif act == "upsert":
            table.upsert([{**row, "id": rng.randrange(next_id + 3)} for row in new])
            next_id += 3
        elif act == "delete":
            table.delete(f"user = {rng.randrange(6)}")
        elif act == "positions":
            table.delete(f"id % 5 = {rng.randrange(5)}", mode="positions")
        elif act == "erase":
            table.erase(f"user = {rng.randrange(6)} AND x = '{rng.choice('ab')}'")
        elif act == "restore":
            table.restore(rng.randrange(2, db.version + 1))
        else:
            db.maintain()
        if rng.random() < 0.5:
            replica.take(table.changes(seen, net=rng.random() < 0.5), names)
            seen = db.version
            assert replica.rows == content(table, names)
    for version in rng.sample(range(2, db.version + 1), 6):
        other = Replica(has_key)
        middle = rng.randrange(2, version + 1)
        other.take(table.changes(0, middle, net=rng.random() < 0.5), names)
        assert other.rows == content(db.at(middle).table("t"), names)
        other.take(table.changes(middle, version, net=rng.random() < 0.5), names)
        assert other.rows == content(db.at(version).table("t"), names), (middle, version)


def content(table: Any, names: list[str]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in names) for row in table.to_arrow().to_pylist())


def test_rows_of_a_time_when_the_table_had_a_subject_are_not_fed(tmp_path: Path) -> None:
    """Found by the simulation: reading that version hides them, though the table has no subject any more."""
    db = dolmen.open(tmp_path / "db")
    table = db.create_table("t", pa.schema([("id", pa.int64())]), primary_key="id", properties={"subject": "id"})
    since = db.version
    table.append({"id": [1, 2]})
    table.delete("id = 1")
    table.set(subject=None)
    db.create_table("people", pa.schema([("id", pa.int64())]), properties={"subject": "id"})
    db.forget(1)
    assert [row["id"] for row in table.changes(since).read_all().to_pylist() if row["_change"] == "insert"] == [2]
    assert db.at(since + 1).table("t").to_arrow()["id"].to_pylist() == [2]

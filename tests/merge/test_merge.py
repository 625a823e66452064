"""MERGE: what happens to which row, and what of it is read, written and refused."""

from __future__ import annotations

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dolmen import Database, Delete, Insert, Update
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import AppliedIdError, DuplicateKeyError, InputError, LimitError, RowError, SchemaError
from dolmen.transactions.merge import merge as merging
from dolmen.transactions.merge import merge_source as merge_source

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int32()), ("u", pa.uint64())])


@pytest.fixture
def table(db: Database) -> Table:
    """Ids 0 to 9, whose n is ten times as large, in two files."""
    table = db.create_table("t", SCHEMA, primary_key="id")
    for some in (range(5), range(5, 10)):
        u = pa.array([2**63 + i for i in some], pa.uint64())
        table.append({"id": list(some), "name": ["old"] * 5, "n": [10 * i for i in some], "u": u})
    return table


def source(*rows: tuple[Any, ...], names: str = "id name n") -> list[dict[str, Any]]:
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def rows(table: Table) -> dict[int, tuple[Any, ...]]:
    found = table.scan(["id", "name", "n"]).to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["name"], row["n"]) for row in found}


def before(*but: int) -> dict[int, tuple[Any, ...]]:
    return {i: ("old", 10 * i) for i in range(10) if i not in but}


def test_matched_rows_are_updated_and_others_inserted(db: Database, table: Table) -> None:
    version = db.version
    done = table.merge(source((3, "new", 1), (12, "new", 2)), "id")
    assert (done.version, done.operation) == (version + 1, "merge")
    assert (done.counts.rows_added, done.counts.rows_deleted, done.counts.files_removed) == (2, 1, 0)
    assert rows(table) == {**before(3), 3: ("new", 1), 12: ("new", 2)}
    # What the source does not have stays as it was, or is NULL.
    assert table.scan(["u"], "id IN (3, 12)").to_arrow()["u"].to_pylist() in ([2**63 + 3, None], [None, 2**63 + 3])
    assert db.verify(deep=True).ok


def test_expressions_say_what_columns_become(table: Table) -> None:
    table.merge(
        source((3, "x", 1), (12, "y", 2)),
        ["id"],
        when_matched={"n": "target.n + source.n"},
        when_not_matched={"id": "source.id", "name": "upper(source.name)"},
    )
    assert rows(table) == {**before(3), 3: ("old", 31), 12: ("Y", None)}


def test_the_first_clause_whose_condition_holds_is_what_happens(db: Database, table: Table) -> None:
    done = table.merge(
        source((1, "D", 0), (2, "U", 7), (3, "?", 0), (20, "D", 0), (21, "U", 5), names="id op n"),
        "id",
        when_matched=[Delete(when="source.op = 'D'"), Update({"n": "source.n"}, when="source.op = 'U'")],
        when_not_matched=Insert(when="source.op <> 'D'"),
    )
    assert (done.counts.rows_deleted, done.counts.rows_added, done.counts.tombstones_added) == (2, 2, 0)
    assert rows(table) == {**before(1, 2), 2: ("old", 7), 21: (None, 5)}
    assert db.verify(deep=True).ok


def test_rows_that_no_source_row_matches_are_deleted_or_changed(table: Table) -> None:
    table.merge(
        source((3, "new", 1), (12, "new", 2)),
        "id",
        when_matched=None,
        when_not_matched_by_source=[Delete(when="target.id > 3"), Update({"name": "concat(target.name, 'er')"})],
    )
    assert rows(table) == {0: ("older", 0), 1: ("older", 10), 2: ("older", 20), 3: ("old", 30), 12: ("new", 2)}


def test_a_merge_of_no_rows_by_source_is_a_change_of_all_others(table: Table) -> None:
    table.merge([], "id", None, None, "delete")
    assert rows(table) == {}


def test_whole_rows_by_their_primary_key_are_an_upsert_which_reads_nothing(db: Database, table: Table) -> None:
    store = context_of(db).store
    whole = [{"id": 3, "name": "new", "n": 1, "u": None}]
    store.reset()  # type: ignore[attr-defined]
    assert table.merge(whole, "id").operation == "upsert"
    assert table.merge([{"n": 1}], "n", "delete", None).operation == "delete"
    assert (store.puts, store.gets) == (4 + 3, 2)  # type: ignore[attr-defined]  # of the pointer, before each
    with pytest.raises(InputError, match=r"same key \(columns 'id'\)"):
        table.merge(whole * 2, "id")


def test_what_is_matched_may_be_deleted_and_that_is_all(table: Table) -> None:
    table.merge(source((3, "x", 1), (3, "y", 1), (None, "z", 1), (12, "x", 1)), "id", "delete", None)
    assert rows(table) == before(3)
    several = source((4, "x", 1), (4, "y", 1))
    table.merge(several, "id", "delete", None, {"n": "target.n + 1"})
    assert rows(table) == {i: (name, n + 1) for i, (name, n) in before(3, 4).items()}


def test_several_source_rows_for_one_row_are_an_error(db: Database, table: Table) -> None:
    version = db.version
    twice = source((0, "a", 1), (0, "b", 2))
    for when in (None, "source.n > 0"):
        with pytest.raises(InputError, match="several source rows"):
            table.merge(twice, "id", Update(when=when), None)
    with pytest.raises(InputError, match=r"same key \(columns 'id'\)"):
        table.merge(twice, "id")
    assert (db.version, rows(table)) == (version, before())
    table.merge(twice, "id", Update(when="source.n > 1"), None)  # one of them counts
    assert rows(table) == {**before(0), 0: ("b", 2)}


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    ("given", "clauses", "left"),
    [
        ({"name": "new", "n": 9, "u": None}, {}, [("new", 9)]),
        ({"name": "new"}, {}, [("new", 2)]),
        ({"n": 9}, {"when_matched": {"n": "target.n + source.n"}}, [("old", 11)]),
        ({}, {"when_matched": Update({"n": "7"}, when="target.n = 2")}, [("old", 7)]),
        ({}, {"when_matched": Update({"n": "7"}, when="target.n = 0")}, [("old", 0), ("old", 1), ("old", 2)]),
        ({}, {"when_matched": Delete(when="target.n = 2")}, []),
        ({}, {"when_matched": "delete", "when_not_matched": None}, []),
        ({"name": "new"}, {"when_matched": None}, [("old", 0), ("old", 1), ("old", 2)]),
        ({"name": "new"}, {"when_not_matched_by_source": "delete"}, [("new", 2)]),
    ],
)
def test_several_rows_of_one_primary_key_are_one_row_whatever_the_source_has(
    db: Database, given: dict[str, Any], clauses: dict[str, Any], left: list[tuple[str, int]], compacted: bool
) -> None:
    table = db.create_table("keyed", SCHEMA, primary_key="id")
    for n in range(3):
        table.append({"id": [n + 2, 1], "name": ["other", "old"], "n": [0, n]})
    if compacted:
        db.compact()
    table.merge([{"id": 1, **given}], "id", **clauses)
    found = table.scan(["name", "n"], "id = 1", order_by="n").to_arrow().to_pylist()
    assert [(row["name"], row["n"]) for row in found] == left
    assert db.verify(deep=True).ok


def test_without_a_primary_key_each_row_that_matches_is_changed_by_itself(db: Database) -> None:
    table = db.create_table("free", SCHEMA)
    table.append({"id": [1, 1], "name": ["old", "old"], "n": [0, 1]})
    table.merge([{"id": 1, "name": "new", "n": 9, "u": None}, *[{"id": 5, "name": "new", "n": 3, "u": None}] * 2], "id")
    assert sorted(table.to_arrow()["n"].to_pylist()) == [3, 3, 9, 9]


@pytest.mark.parametrize(
    ("rows_given", "on", "values"),
    [
        ([{"id": 3, "name": "a"}], "name", None),
        ([{"id": 50, "name": "a"}, {"id": 50, "name": "b"}], "name", None),
        ([{"id": 50, "name": "a"}, {"id": 51, "name": "b"}], "id", {"id": "3"}),
        ([{"id": 50, "name": "a"}, {"id": 51, "name": "b"}], "id", {"id": "60 + source.id // 100"}),
        ([{"id": 3, "name": "a"}], ["id", "name"], None),
    ],
)
def test_no_merge_gives_a_row_a_primary_key_that_another_has(
    db: Database, table: Table, rows_given: list[dict[str, Any]], on: Any, values: dict[str, str] | None
) -> None:
    version = db.version
    with pytest.raises(DuplicateKeyError):
        table.merge(rows_given, on, None, "insert" if values is None else values)
    assert (db.version, rows(table)) == (version, before())


def test_a_row_may_be_inserted_under_the_key_of_one_that_the_same_merge_deletes(table: Table) -> None:
    moved = [{"id": 3, "name": "old", "n": 30}, {"id": 3, "name": "moved", "n": 31}]
    table.merge(moved, ["id", "name"], "delete")
    assert rows(table) == {**before(3), 3: ("moved", 31)}


def test_a_condition_that_is_null_holds_for_no_row(db: Database, table: Table) -> None:
    version = db.version
    done = table.merge(source((0, "a", 1)), "id", [Delete(when="NULL"), Update(when="NULL = source.n")], None)
    assert (done.operation, db.version) == ("nothing", version)


def test_null_matches_nothing(table: Table) -> None:
    table.append({"id": [100], "name": [None], "n": [1]})
    table.merge(source((101, None, 5), (102, "no such", 6)), "name", {"n": "source.n"})
    assert rows(table) == {**before(), 100: (None, 1), 101: (None, 5), 102: ("no such", 6)}
    with pytest.raises(RowError, match=r"NULL.*key"):
        table.merge(source((None, "x", 5)), "id")


@pytest.mark.parametrize(
    ("on", "matched", "by_source"),
    [
        ("id", {"id": "source.n"}, None),
        ("id", {"id": "source.id + 1"}, None),
        ("id", [Delete(when="source.n > 5"), Update({"name": "source.name", "id": "20"}, when="TRUE")], None),
        ("id", {"n": "source.n"}, {"id": "target.id + 1"}),
        ("id", {"n": "source.n"}, {"id": "source.id"}),
        ("name", {"id": "source.id"}, None),
        ("name", "update", None),
        ("name", [Delete(when="source.n > 5"), Update()], None),
    ],
    ids=str,
)
def test_no_update_changes_a_primary_key(db: Database, table: Table, on: str, matched: Any, by_source: Any) -> None:
    version = db.version
    for target in (table, db.transaction().table("t")):
        with pytest.raises(SchemaError, match="column 'id'"):
            target.merge(source((1, "old", 2)), on, matched, None, by_source)
    assert (db.version, rows(table)) == (version, before())


def test_an_update_may_set_a_primary_key_to_what_it_is(table: Table) -> None:
    table.merge(source((1, "x", 2)), "id", {"id": "source.id", "n": "source.n"}, None, {"id": ' target."id" '})
    assert rows(table) == {**before(), 1: ("old", 2)}
    table.merge(source((1, "x", 3)), ["id", "n"], "update", None)
    table.merge([{"name": "old", "n": 0}], "name", "update", None)
    assert rows(table) == dict.fromkeys(range(10), ("old", 0))


def test_a_part_of_a_primary_key_is_no_less_kept(db: Database) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("n", pa.int64())])
    table = db.create_table("pairs", schema, primary_key=["a", "b"])
    table.append({"a": [1, 1], "b": [1, 2], "n": [0, 0]})
    with pytest.raises(SchemaError, match=r"column 'b'.*when_matched=\{\.\.\.\}"):
        table.merge([{"a": 1, "b": 2, "n": 5}], "a", "update", None)
    table.merge([{"a": 1, "b": 2, "n": 5}], "a", {"a": "source.a", "n": "source.n"}, None)
    assert table.count("n = 5") == 2


def test_many_target_rows_of_one_key_are_all_rewritten(table: Table) -> None:
    table.merge(source(("old", 1), names="name n"), "name", {"n": "target.n + source.n"}, None)
    assert rows(table) == {i: ("old", 10 * i + 1) for i in range(10)}


def test_pairs_are_worked_on_in_parts(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MAX_PAIRS", 3)
    many = [{"name": "old", "i": i} for i in range(10)]
    table.merge(many, "name", Update({"n": "source.i"}, when="source.i = target.id"), None)
    assert rows(table) == {i: ("old", i) for i in range(10)}


def test_a_merge_of_more_keys_than_are_listed_goes_by_their_range(db: Database, table: Table) -> None:
    many = pa.table({"id": range(5, 20_000), "name": ["new"] * 19_995})
    done = table.merge(many, "id")
    assert (done.counts.rows_added, done.counts.rows_deleted) == (19_995, 5)
    assert table.count("name = 'new'") == 19_995
    assert table.scan(["n"], "id = 7").to_arrow()["n"].to_pylist() == [70]
    assert db.verify(deep=True).ok


@pytest.mark.parametrize(
    "key",
    [
        ("a", "b", "ab"),
        (b"a", b"", b"\x00"),
        (True, False),
        tuple(range(100)),
    ],
)
def test_keys_of_several_columns_and_any_types_are_matched(db: Database, key: tuple[Any, ...]) -> None:
    kind = pa.array(list(key)).type
    made = db.create_table("keyed", pa.schema([("a", kind), ("b", kind), ("n", pa.int64())]))
    made.append([{"a": a, "b": b, "n": 0} for a in (*key, None) for b in (*key, None)])
    made.merge([{"a": a, "b": key[0], "n": 1} for a in (*key, None)], ["a", "b"], "update", None)
    assert made.count("n = 1") == len(key)
    assert made.count({"n": 1, "b": key[0]}) == len(key)


def test_an_empty_source_and_one_that_matches_nothing_are_no_commit(db: Database, table: Table) -> None:
    version = db.version
    assert table.merge([], "id").operation == "nothing"
    assert table.merge(source((77, "x", 1)), "id", "update", None).operation == "nothing"
    assert db.version == version


def test_under_one_id_a_merge_is_applied_once(table: Table) -> None:
    changes = source((3, "x", 1))
    plus = {"n": "target.n + source.n"}
    first = table.merge(changes, "id", plus, None, request="m")
    assert table.merge(pl.DataFrame(changes), "id", plus, None, request="m").already == {"m": first.version}
    assert rows(table)[3] == ("old", 31)
    with pytest.raises(AppliedIdError):
        table.merge(changes, "id", {"n": "target.n - source.n"}, None, request="m")
    with pytest.raises(AppliedIdError):
        table.merge(source((3, "x", 2)), "id", plus, None, request="m")


def test_a_value_that_does_not_fit_fails_the_merge(db: Database, table: Table) -> None:
    version = db.version
    with pytest.raises(RowError, match="column 'n'"):
        table.merge(source((3, "x", 1)), "id", {"n": "3000000000 * source.n"}, None)
    with pytest.raises(InputError, match=r"out of range|Out of Range|Overflow"):
        table.merge(source((3, "x", 1)), "id", {"n": "(target.n * 1000000000)::TINYINT"}, None)
    assert db.version == version


def test_what_makes_no_sense_is_refused_before_a_row_is_read(db: Database, table: Table) -> None:
    version, changes = db.version, source((3, "x", 1))
    for wrong, clauses in (
        (r"source\.nn", {"when_matched": {"n": "source.nn"}}),
        (r"target\.n", {"when_not_matched": {"n": "target.n"}}),
        (r"source\.n", {"when_not_matched_by_source": {"n": "source.n"}}),
        ("condition", {"when_matched": Update(when="source.n")}),
        ("when_matched='insert'", {"when_matched": "insert"}),
        ("'m'", {"when_matched": {"m": "source.n"}}),
        ("column 'n'", {"when_matched": {"n": "source.name"}}),
        ("aggregates", {"when_matched": {"n": "max(source.n)"}}),
        ("subquery", {"when_matched": {"n": "(SELECT max(n) FROM source)"}}),
    ):
        with pytest.raises(InputError, match=wrong):
            table.merge(changes, "id", **clauses)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="column 'extra'"):
        table.merge([{**changes[0], "extra": 1}], "id")
    with pytest.raises(SchemaError, match="column 'id'"):
        table.merge([{"name": "x", "n": 1}], "id")
    with pytest.raises(SchemaError, match="int64"):
        table.merge([{"id": "3", "n": 1}], "id")
    table.add_column("x", pa.float64())
    version += 1
    with pytest.raises(SchemaError, match="key"):
        table.merge([{"x": 0.5, "n": 1}], "x")
    assert db.version == version


def test_frames_are_sources_whatever_types_they_have(table: Table) -> None:
    frame = pd.DataFrame({"id": [3.0, 4.0, 50.0], "n": [1.0, None, 2.0], "name": ["x", None, "y"]})
    table.merge(frame, "id", {"n": "target.n + source.n"})
    assert rows(table) == {**before(3, 4), 3: ("old", 31), 4: ("old", None), 50: ("y", 2)}


def test_a_stream_is_a_source_and_taken_once(table: Table) -> None:
    batches = [pa.record_batch({"id": [i], "n": pa.array([1], pa.int8())}) for i in (3, 70)]
    table.merge(pa.RecordBatchReader.from_batches(batches[0].schema, batches), "id")
    assert rows(table) == {**before(3), 3: ("old", 1), 70: (None, 1)}


def test_a_source_that_is_too_large_is_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_source, "MAX_BYTES", 1_000)
    with pytest.raises(LimitError, match="split it"):
        table.merge(pa.table({"id": range(1_000)}), "id")


def test_a_merge_in_a_transaction_sees_the_statements_before_it(db: Database, table: Table) -> None:
    with db.transaction() as tx:
        mine = tx.table("t")
        mine.append(source((20, "mine", 1)))
        mine.delete("id < 3")
        mine.merge(source((0, "back", 1), (20, "x", 5), (4, "y", 6)), "id")
        assert mine.count() == 9
        mine.update({"n": 7}, "id = 20")
    assert rows(table) == {**before(1, 2, 0, 4), 0: ("back", 1), 4: ("y", 6), 20: ("x", 7)}
    assert db.verify(deep=True).ok

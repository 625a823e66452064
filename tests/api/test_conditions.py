"""Conditions that are no predicates: DuckDB finds the rows for scans, updates and deletes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database, Expression, Table
from dolmen.base.runtime import Runtime
from dolmen.errors import AppliedIdError, ConflictError, InputError, PredicateError, TableNotFoundError
from dolmen.ingest.delete_requests import apply_deletes, parse_request
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.commit_world import ScriptedStore, lose_the_request, lose_the_response, meanwhile, retry_below
from support.oracle import connect_oracle
from support.random_predicates import random_predicate

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
ROUNDS = 150 if os.environ.get("DOLMEN_LONG") else 20

REFUSED = r"(?i)levenshtein"
PEOPLE = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "name": ["Ada", "Grace", "Linus", None],
        "tags": [["a"], ["b", "c"], [], None],
    }
)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int32(), [None, -3, 0, 1, 7]),
    "x": (pa.float64(), [None, float("nan"), -0.0, 0.0, 1.5, float("inf")]),
    "s": (pa.string(), [None, "", "a", "ä", "ab", "it's"]),
    "b": (pa.bool_(), [None, True, False]),
    "day": (pa.date32(), [None, 0, 20_000]),
    "tags": (pa.list_(pa.string()), [None, [], ["a"], ["b", None]]),
    "home": (pa.struct([("city", pa.string())]), [None, {"city": "a"}, {"city": None}]),
}
SQL = [
    "regexp_matches(s, 'a|ä')", "strlen(s) > 1", "s || 'x' = 'ax'", "n // 2 = 3", "s[1] = 'a'",
    "CASE WHEN n > 0 THEN b END", "nullif(n, 1) = 7", "day + 1 > DATE '2000-01-01'", "len(tags) = 1",
    "tags[1] = 'b'", "home['city'] = 'a'", "greatest(n, 1) = 1", "n BETWEEN 0 AND strlen(s)", "isinf(x)",
    "s IN ('a', upper(s))", "(n > 0) = b", "NULL::BOOLEAN", "target.n + 1 > target.x",
    "(n, s) IN ((7, 'a'), (0, NULL))",
]  # fmt: skip


@pytest.fixture
def store(bucket: MemoryBucket) -> ScriptedStore:  # type: ignore[override]
    return ScriptedStore(bucket, Runtime())


@pytest.fixture
def people(db: Database) -> Table:
    return db.create_table("people", PEOPLE, primary_key="id")


def ids(table: Any, where: Any = None) -> list[int]:
    found: list[int] = sorted(table.scan(["id"], where).to_arrow()["id"].to_pylist())
    return found


def test_a_tuple_with_null_finds_the_rows_that_duckdb_finds(people: Table) -> None:
    where = "(id, name) IN ((1, 'Ada'), (2, NULL), (4, NULL))"
    assert ids(people, where) == [1, 4]
    assert ids(people, f"NOT ({where})") == [2, 3]
    with pytest.raises(PredicateError, match="not NULL"):
        people.delete(where, mode="tombstone")
    people.delete(where)
    assert ids(people) == [2, 3]


def random_rows(rng: random.Random, count: int) -> pa.Table:
    columns = {name: pa.array([rng.choice(pool) for _ in range(count)], kind) for name, (kind, pool) in VALUES.items()}
    return pa.table({"id": pa.array(range(count), pa.int64()), **columns})


def random_condition(rng: random.Random, rows: pa.Table) -> str:
    """A condition of which at least a part is no predicate."""
    parts = [rng.choice(SQL), *(random_predicate(rng, rows, 0) for _ in range(rng.randint(0, 2)))]
    rng.shuffle(parts)
    parts = [f"NOT ({part})" if rng.random() < 0.2 else f"({part})" for part in parts]
    return rng.choice((" AND ", " AND ", " OR ")).join(parts)


@pytest.mark.slow
def test_random_conditions_find_the_rows_that_duckdb_finds() -> None:
    rng, matches, implied = random.Random(SEED), 0, 0
    for _ in range(ROUNDS):
        db = Database(MemoryStore(MemoryBucket(), Runtime()), Runtime())
        rows = random_rows(rng, rng.randint(1, 30))
        table = db.create_table("t", rows.schema, sort_key=rng.choice([None, "n"]))
        for start in range(0, rows.num_rows, 8):
            table.append(rows.slice(start, 8))
        oracle = connect_oracle()
        oracle.register("rows", rows)
        oracle.execute("CREATE TABLE target AS FROM rows")
        if rng.random() < 0.3:
            table.delete("n = 7")
            oracle.execute("DELETE FROM target WHERE n = 7")
        where = random_condition(rng, rows)
        message = f"seed {SEED}: {where}"
        expected = sorted(id_ for (id_,) in oracle.execute(f"SELECT id FROM target WHERE {where}").fetchall())
        assert ids(table, where) == expected, message
        assert table.count(where) == len(expected), message
        assert table.scan().filter(where).count() == len(expected), message
        implied += "\nwhere " in repr(table.scan(where=where))
        with db.transaction() as tx:
            tx.table("t").update({"s": Expression("concat(s, '!')")}, where)
        oracle.execute(f"UPDATE target SET s = concat(s, '!') WHERE {where}")
        assert table.count("s LIKE '%!'") == len(expected), message
        where = random_condition(rng, rows)
        deleted = oracle.execute(f"SELECT count(*) FROM target WHERE {where}").fetchone()[0]  # type: ignore[index]
        commit = table.delete(where)
        oracle.execute(f"DELETE FROM target WHERE {where}")
        left = oracle.execute("SELECT id, s FROM target ORDER BY id").fetchall()
        found = table.scan(["id", "s"], order_by="id").to_arrow()
        assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == left, message
        assert commit.mode == ("positions" if deleted else None), message
        assert (commit.rows or 0) == deleted, message
        matches += bool(expected)
    assert db.verify(deep=True).ok
    assert ROUNDS > matches > ROUNDS / 10
    assert implied


def test_a_delete_says_how_it_was_done(people: Table) -> None:
    assert people.delete("id = 1").mode == "tombstone"
    assert people.delete("id = 2", mode="positions").mode == "positions"
    done = people.delete("levenshtein(name, '') = 5")
    assert (done.mode, done.rows, done.done) == ("positions", 1, "delete people(name)")
    assert people.delete(keys=[4]).mode == "tombstone"
    assert people.append(PEOPLE).mode is None
    assert people.upsert(PEOPLE).mode is None
    with pytest.raises(PredicateError, match=REFUSED):
        people.delete("levenshtein(name, '') = 5", mode="tombstone")
    assert people.delete("levenshtein(name, '') = 5", mode="positions").rows == 2
    with pytest.raises(InputError, match="sometimes"):
        people.delete("TRUE", mode="sometimes")  # type: ignore[arg-type]


def test_the_history_of_a_delete_names_the_column_of_a_field_and_no_column_of_its_name(db: Database) -> None:
    table = db.create_table("t", pa.table({"a": [1, 2], "s": [{"a": 6, "b": 1}, {"a": 1, "b": 1}], "b": [1, 1]}))
    (effect,) = table.delete("s.a & 7 = 6 AND B + 0 = 1").did
    assert sorted(effect.over) == ["b", "s"]
    assert table.to_arrow()["a"].to_pylist() == [2]


def test_a_result_of_null_deletes_nothing(people: Table) -> None:
    assert people.delete("CASE WHEN id > 100 THEN TRUE END").mode is None
    assert people.delete("nullif(levenshtein(name, ''), levenshtein(name, '')) = 3").mode is None
    assert people.count() == 4


def test_parameters_are_values_and_never_sql(people: Table) -> None:
    people.append([{"id": 5, "name": "it's ?"}])
    assert ids(people, ("levenshtein(name, '') > ? AND name <> ?", [3, "Grace"])) == [3, 5]
    assert ids(people, ("concat(name, '?') = :name", {"name": "it's ??"})) == [5]
    assert ids(people, ("list_contains(tags, ?) OR id + levenshtein(name, '') IN ?", ["c", [4, -1]])) == [1, 2]
    assert ids(people, ("name[1:2] = :two", {"two": "Gr"})) == [2]
    with pytest.raises(PredicateError, match="parameter 'b'"):
        people.count("levenshtein(name, '') > :a", parameters={"a": 1, "b": 2})
    with pytest.raises(PredicateError, match="parameter '2'"):
        people.count("tags[1] = ? AND id = ?", parameters=["a"])


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("nmae = 'Ada'", "name"),  # a mistake stays one
        ("name = NULL", "IS NULL"),
        ("1 < id < 3", "chained"),
        ("levenstein(name, 'Ada') < 2", "levenshtein"),
        ("levenshtein(name, '')", "int64"),
        ("id IN (SELECT 1)", "subquer"),
        ("sum(id) > 3", "aggregate"),
        ("row_number() OVER () > 1", "window"),
        ("getenv('HOME') = ''", "getenv"),
        ("levenshtein(name, '') > 1) OR (TRUE", "single"),
        ("levenshtein(name, '') > 1; DELETE FROM people", "FROM"),
    ],
)
def test_what_is_no_condition_is_refused(people: Table, where: str, says: str) -> None:
    for call in (people.delete, people.count, lambda where: people.update({"name": "x"}, where)):
        with pytest.raises(PredicateError, match=says):
            call(where)
    assert people.version == 1


def test_a_row_for_which_duckdb_fails_is_an_error_only_if_it_may_match(people: Table) -> None:
    where = "id <> 4 AND (name || '1')::INT = 1"
    with pytest.raises(InputError, match="Ada1"):
        people.delete(where)
    people.append([{"id": 10, "name": ""}])
    people.delete("id < 4")  # a deleted row is not looked at
    people.append([{"id": 4, "name": "Ada"}])
    assert people.delete(where).rows == 1


def test_functions_without_one_value_are_evaluated_when_the_rows_are_found(people: Table) -> None:
    assert people.delete("random() > 1").rows == 0
    assert people.delete("uuid() IS NULL").rows == 0
    assert people.count("random() < 0.5") <= 4
    assert people.delete("now() - to_days(1) > TIMESTAMPTZ '2020-01-01' AND random() >= 0").rows == 4


CHANGES = pytest.mark.parametrize(
    ("change", "expected", "replays"),
    [
        (lambda table: table.append([{"id": 7, "name": "Alan"}]), [3, 4], True),
        (lambda table: table.append([{"id": 70, "name": "Alan"}]), [3, 4, 70], False),  # id < 50
        (lambda table: table.delete("id = 4"), [3], True),
        (lambda table: table.upsert([{"id": 3, "name": "Anna"}]), [4], True),
        (lambda table: table.overwrite([{"id": 9, "name": "Anna"}, {"id": 8, "name": "Bob"}]), [8], True),
        (lambda table: table.rename_column("tags", "words"), [3, 4], True),
    ],
)


@CHANGES
def test_what_others_commit_meanwhile_is_seen(
    people: Table,
    store: ScriptedStore,
    other: Database,
    change: Callable[[Table], Any],
    expected: list[int],
    replays: bool,
) -> None:
    store.script.append(meanwhile(lambda: change(other.table("people"))))
    people.delete("id < 50 AND regexp_matches(name, '^(A|G)')")
    assert ids(other.table("people")) == expected
    assert sum(key.startswith("tombstone/") for key in store.puts) == 1 + replays, "positions are uploaded each time"
    assert other.verify(deep=True).ok


@CHANGES
def test_a_transaction_whose_rows_changed_is_not_committed(
    people: Table, other: Database, db: Database, change: Callable[[Table], Any], expected: list[int], replays: bool
) -> None:
    tx = db.transaction()
    tx.table("people").delete("id < 50 AND regexp_matches(name, '^(A|G)')")
    assert tx.table("people").count("id < 50") == 2
    change(other.table("people"))
    if replays:
        with pytest.raises(ConflictError):
            tx.commit()
    else:
        tx.commit()
        assert ids(other.table("people")) == expected


def test_a_compaction_meanwhile_keeps_what_is_deleted(people: Table, store: ScriptedStore, other: Database) -> None:
    for id_ in range(20, 28):
        people.append([{"id": id_, "name": "Ada"}])
    store.script.append(meanwhile(other.compact))
    assert people.delete("levenshtein(name, '') = 3").rows == 9
    assert ids(other.table("people")) == [2, 3, 4]
    assert other.verify(deep=True).ok


def test_a_table_that_is_dropped_meanwhile_is_not_there(people: Table, store: ScriptedStore, other: Database) -> None:
    store.script.append(meanwhile(lambda: other.drop_table("people")))
    with pytest.raises(TableNotFoundError):
        people.delete("levenshtein(name, '') = 3")


@pytest.mark.parametrize("fault", [lose_the_request, lose_the_response, retry_below])
def test_a_lost_answer_neither_loses_nor_doubles_a_delete(
    people: Table, store: ScriptedStore, other: Database, fault: Any
) -> None:
    store.script.append(fault)
    people.delete("levenshtein(name, '') = 3", request="d1")
    assert ids(other.table("people")) == [2, 3, 4]
    people.append([{"id": 9, "name": "Eve"}])
    again = people.delete("levenshtein(name, '') = 3", request="d1")
    assert again.operation == "nothing"
    assert again.already
    assert 9 in ids(people)


def test_a_request_is_applied_once_and_for_one_condition(people: Table) -> None:
    first = people.delete("levenshtein(name, '') = ?", parameters=[3], request="d1")
    people.append([{"id": 9, "name": "Eve"}])
    assert people.delete("levenshtein(name, '') = ?", parameters=[3], request="d1").already == {"d1": first.version}
    with pytest.raises(AppliedIdError):
        people.delete("levenshtein(name, '') = ?", parameters=[4], request="d1")
    update = people.update({"name": "x"}, "levenshtein(name, '') = 3", request="u1")
    assert people.update({"name": "x"}, "levenshtein(name, '') = 3", request="u1").already == {"u1": update.version}
    with pytest.raises(AppliedIdError):
        people.update({"name": "x"}, "levenshtein(name, '') = 5", request="u1")


def test_a_transaction_sees_its_own_rows_and_finds_them(db: Database, people: Table) -> None:
    with db.transaction() as tx:
        table = tx.table("people")
        table.append([{"id": 9, "name": "Eve"}])
        table.delete("levenshtein(name, '') = 3")
        assert ids(table) == [2, 3, 4]
        table.update({"name": Expression("name || '!'")}, "name[1] = 'G'")
        table.delete("right(name, 1) = '!' AND id = 2")
        assert ids(table) == [3, 4]
    assert ids(people) == [3, 4]
    assert db.verify(deep=True).ok


def test_sql_deletes_in_the_same_way(db: Database, people: Table) -> None:
    assert db.sql("DELETE FROM people p WHERE levenshtein(p.name, '') = ?", [3]).mode == "positions"
    assert db.sql("DELETE FROM people WHERE id = 2").mode == "tombstone"
    assert db.sql("UPDATE people SET name = 'x' WHERE name ~ '^L.*'").rows == 1
    assert db.sql("DELETE FROM people WHERE id IN (SELECT max(id) FROM people)").mode == "positions"
    assert ids(people) == [3]


def test_a_scan_with_such_a_condition_is_like_any_other(people: Table) -> None:
    where = "levenshtein(name, '') >= 3"
    scan = people.scan(["id"], where)
    assert scan.count() == 3
    assert people.scan(where=where, limit=2).to_arrow().num_rows == 2
    assert people.scan(where=where, limit=2, offset=2).count() == 1
    assert people.scan(["id"], where, order_by="-id", limit=1).to_arrow()["id"].to_pylist() == [3]
    assert scan.filter("id > 1").filter("id % levenshtein(name, '') = 3").to_arrow()["id"].to_pylist() == [3]
    assert scan.to_duckdb().filter("id > 1").aggregate("count(*)").fetchall() == [(2,)]
    assert scan.to_polars_lazy().collect().height == 3
    assert where in repr(scan)
    assert where in repr(scan.explain())
    assert people.scan(where="id = 1 AND levenshtein(name, '') = 3").explain().plan.where is not None
    with pytest.raises(PredicateError, match=REFUSED):
        people.changes(since=0, where=where)


def test_what_must_be_stored_is_a_predicate(people: Table) -> None:
    where = "levenshtein(name, '') = 3"
    for call in (people.erase, lambda where: people.overwrite([], where=where)):
        with pytest.raises(PredicateError, match=REFUSED):
            call(where)
    with people.writer() as writer, pytest.raises(PredicateError, match=REFUSED):
        writer.delete(where)
    assert people.count() == 4


@pytest.mark.parametrize("mode", ["tombstone", "positions"])
def test_a_delete_request_brings_no_sql(db: Database, people: Table, mode: str) -> None:
    body = {"table": "people", "where": "levenshtein(name, '') = 3", "mode": mode, "request_id": "r1"}
    result = apply_deletes(db, [parse_request(json.dumps(body), None)])
    assert [type(outcome.error) for outcome in result.outcomes] == [PredicateError]
    assert people.count() == 4
    with pytest.raises(InputError, match="auto"):
        parse_request({**body, "mode": "auto"}, None)

"""A check is FALSE for no visible row, and NOT NULL holds for each; a primary key is proven before it is added."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.commit.head import context_of
from dolmen.errors import ConflictError, Error, InputError, LimitError, PredicateError, RowError, SchemaError
from dolmen.maintenance.compact.compaction import compact
from dolmen.transactions.constraints import MAX_CHECK_BYTES

COLUMNS = pa.schema([("id", pa.int64()), ("amount", pa.float32()), ("day", pa.date32()), ("name", pa.string())])
GOOD = [{"id": n, "amount": n + 0.5, "name": f"n{n}"} for n in range(1, 4)]
BAD = {"id": 9, "amount": -2.0, "name": "x"}


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


@pytest.fixture
def table(db: dolmen.Database) -> dolmen.Table:
    table = db.create_table("t", COLUMNS, primary_key="id")
    table.append(GOOD)
    return table


@pytest.fixture
def checked(table: dolmen.Table) -> dolmen.Table:
    table.add_check("positive", "amount > 0")
    return table


def ids(table: Any) -> list[int]:
    found: list[int] = sorted(table.to_arrow()["id"].to_pylist())
    return found


def write_buffered(table: dolmen.Table) -> None:
    with table.writer() as writer:
        writer.append([BAD])


WRITES: dict[str, Callable[[dolmen.Table], object]] = {
    "append": lambda table: table.append([*GOOD, BAD]),
    "insert": lambda table: table.insert([BAD]),
    "upsert": lambda table: table.upsert([BAD]),
    "overwrite": lambda table: table.overwrite([BAD]),
    "overwrite where": lambda table: table.overwrite([BAD], where="id = 9"),
    "cast": lambda table: table.append([{**BAD, "amount": "-2"}], cast=True),
    "new columns": lambda table: table.append([{**BAD, "more": 1}], new_columns="add"),
    "update": lambda table: table.update({"amount": dolmen.Expression("-amount")}, "id = 2"),
    "update by a value": lambda table: table.update({"amount": -1.0}, "id = 2"),
    "merge": lambda table: table.merge(pa.table({"id": [2], "amount": [-1.0]}), "id"),
    "merge that inserts": lambda table: table.merge(pa.table({"id": [7], "amount": [-1.0]}), "id", None),
    "writer": write_buffered,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_write_is_refused_for_a_row_that_breaks_a_check(
    checked: dolmen.Table, write: Callable[[dolmen.Table], object]
) -> None:
    before = checked.to_arrow()
    with pytest.raises(RowError, match=r"'positive'.*amount > 0.*amount is -"):
        write(checked)
    assert checked.to_arrow().equals(before)


HOME = pa.struct([("zip", pa.string()), ("geo", pa.struct([("x", pa.int32())]))])
FOREIGN = pa.table({"id": [9], "home": pa.array([{"zip": "1", "geo": {"x": -1}}], HOME)})
"""A row whose structs have no ids of fields, as rows of other programs."""


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.append(FOREIGN),
        lambda table: table.upsert(FOREIGN),
        lambda table: table.overwrite(FOREIGN),
        lambda table: table.overwrite(FOREIGN, where="home.zip = '1'"),
        lambda table: table.merge(FOREIGN, on="id"),
        lambda table: table.update({"home": dolmen.Expression("{'zip': '1', 'geo': {'x': -1}}")}),
        lambda table: table.update({"home": {"zip": "1", "geo": {"x": -1}}}),
    ],
)
def test_a_check_of_a_field_is_found_in_rows_without_ids(
    db: dolmen.Database, write: Callable[[dolmen.Table], object]
) -> None:
    table = db.create_table("homes", FOREIGN.schema, primary_key="id")
    table.append([{"id": 1, "home": {"zip": "1", "geo": {"x": 5}}}])
    table.add_check("east", "home.geo.x > 0")
    assert "predicate-fields" in context_of(db).head.refresh().manifest.features
    with pytest.raises(RowError, match="'east' is FALSE"):
        write(table)
    assert ids(table) == [1]
    with pytest.raises(SchemaError, match="east"):
        table.drop_column("home")


def test_an_error_names_row_and_values(checked: dolmen.Table) -> None:
    checked.add_check("named", "amount < 2 OR name IS NOT NULL")
    with pytest.raises(RowError) as raised:
        checked.append([*GOOD, {"id": 8, "amount": 7.0, "name": None}])
    assert raised.value.row == 4
    assert "amount is 7.0, name is NULL" in str(raised.value)


def test_null_passes(checked: dolmen.Table) -> None:
    checked.append([{"id": 9, "amount": None}])
    assert checked.count("amount IS NULL") == 1


def test_sql_declares_checks_and_drops_them(db: dolmen.Database) -> None:
    db.sql(
        "CREATE TABLE u (id BIGINT CHECK (id > 0), a INTEGER, b INTEGER, CHECK (a < b),"
        " CONSTRAINT small CHECK (b < 100));"
        "ALTER TABLE u ADD CHECK (a + b <> 7); ALTER TABLE u ADD COLUMN c INTEGER DEFAULT 1 CHECK (c > 0)"
    )
    table = db.table("u")
    assert table.checks == {
        "id_check": "id > 0",
        "u_check": "a < b",
        "small": "b < 100",
        "u_check1": "(a + b) <> 7",
        "c_check": "c > 0",
    }
    assert table.describe()["checks"] == table.checks
    with pytest.raises(RowError, match="u_check1"):
        db.sql("INSERT INTO u VALUES (1, 3, 4, 1)")
    db.sql("ALTER TABLE u DROP CONSTRAINT u_check1, DROP CONSTRAINT IF EXISTS nothing")
    db.sql("INSERT INTO u VALUES (1, 3, 4, 1)")
    with pytest.raises(RowError, match="small"):
        db.sql("UPDATE u SET b = 100")
    with pytest.raises(InputError, match=r"only the primary key is unique"):
        db.sql("CREATE TABLE v (a INTEGER, UNIQUE (a))")


def test_rows_that_break_a_check_refuse_it_and_the_error_says_how_to_see_them(table: dolmen.Table) -> None:
    table.append([BAD])
    with pytest.raises(SchemaError, match=r"FALSE for 1 row of table 't'; scan\(where='NOT \(amount > 0.0\)'\)"):
        table.add_check("positive", "amount > 0")
    assert table.scan(where="NOT (amount > 0.0)").count() == 1
    table.delete(keys=[9])
    assert table.add_check("positive", "amount > 0").done == "alter t(positive)"


def test_a_check_is_named_once_and_follows_its_columns(checked: dolmen.Table) -> None:
    with pytest.raises(SchemaError, match="there is a check"):
        checked.add_check("Positive", "amount > 1")
    with pytest.raises(SchemaError, match="no check 'other'; there are: positive"):
        checked.drop_check("other")
    with pytest.raises(SchemaError, match="'amount' is named by the check 'positive': drop the check first"):
        checked.drop_column("amount")
    with pytest.raises(SchemaError, match="drop the check, and add it again"):
        checked.widen_column("amount", pa.float64())
    checked.rename_column("amount", "sum")
    assert checked.checks == {"positive": "sum > 0.0"}
    with pytest.raises(RowError, match="sum is -2"):
        checked.append([{"id": 9, "sum": -2.0}])
    checked.drop_check("POSITIVE")
    checked.drop_column("sum")
    assert checked.checks == {}


def test_a_check_holds_for_wider_columns(db: dolmen.Database) -> None:
    table = db.create_table("w", pa.schema([("n", pa.int8()), ("day", pa.date32())]))
    table.append([{"n": 100, "day": None}])
    table.add_check("n", "n * 2 < 300")
    table.add_check("day", "day < DATE '2026-01-02'")
    table.widen_column("n", pa.int64())
    table.widen_column("day", pa.timestamp("us"))
    for row in ({"n": 2**62, "day": None}, {"n": 1, "day": pa.scalar(1767312000000001, pa.timestamp("us")).as_py()}):
        with pytest.raises(RowError, match="is FALSE"):
            table.append([row])
    table.append([{"n": 149, "day": pa.scalar(1767311999999999, pa.timestamp("us")).as_py()}])
    assert table.count() == 2


@pytest.mark.parametrize(
    ("predicate", "problem"),
    [
        ("day > CAST(now() AS DATE)", "depend on the time"),
        ("day > current_date - INTERVAL 3 DAY", "depend on the time"),
        ("nothing > 1", "no column"),
        ("amount >", "can't read|expected|character"),
    ],
)
def test_a_check_is_a_predicate_that_does_not_depend_on_the_time(
    table: dolmen.Table, predicate: str, problem: str
) -> None:
    with pytest.raises(PredicateError, match=problem):
        table.add_check("c", predicate)


def test_names_and_sizes_of_checks_have_limits(db: dolmen.Database, table: dolmen.Table) -> None:
    for name in ("", " ", "n" * 201, "a\nb"):
        with pytest.raises(InputError, match="1 to 200 printable characters"):
            table.add_check(name, "id > 0")
    with pytest.raises(LimitError, match="16,384"):
        table.add_check("long", {"name": ["x" * 100 + str(n) for n in range(MAX_CHECK_BYTES // 100)]})
    with db.transaction() as tx:
        for number in range(100):
            tx.table("t").add_check(f"c{number}", f"id > -{number + 1}")
    with pytest.raises(LimitError, match="at most 100 checks"):
        table.add_check("one more", "id > 0")


def test_versions_have_their_own_checks(db: dolmen.Database, table: dolmen.Table) -> None:
    without = db.version
    table.add_check("positive", "amount > 0")
    with_check = db.version
    table.drop_check("positive")
    table.append([BAD])
    assert table.at(with_check).checks == {"positive": "amount > 0.0"}
    db.clone("t", "copy", version=with_check)
    with pytest.raises(RowError):
        db.table("copy").append([BAD])
    table.restore(version=with_check, settled=False)
    assert (ids(table), table.checks) == ([1, 2, 3], {"positive": "amount > 0.0"})
    table.restore(version=without, settled=False)
    assert table.checks == {}
    table.append([BAD])
    assert not db.verify(deep=True).findings


def test_a_repeated_request_is_not_compared_with_a_later_check(table: dolmen.Table) -> None:
    table.append([BAD], request="r")
    table.delete(keys=[9])
    table.add_check("positive", "amount > 0", request="c")
    assert table.append([BAD], request="r").operation == "nothing"
    assert table.add_check("positive", "amount > 0", request="c").operation == "nothing"
    assert ids(table) == [1, 2, 3]


# ---- beside other writers --------------------------------------------------------------------------------------------


def racing(db: dolmen.Database, other: Callable[[dolmen.Table], object]) -> dolmen.Table:
    """The table in a process that does not know of a commit which another process has made."""
    mine = dolmen.open(db.url).table("t")
    mine.count()
    other(db.table("t"))
    return mine


def test_an_append_that_lands_after_a_check_is_compared_with_it(db: dolmen.Database, table: dolmen.Table) -> None:
    mine = racing(db, lambda other: other.add_check("positive", "amount > 0"))
    with pytest.raises(RowError, match="'positive'"):
        mine.append([BAD])
    mine.append([{"id": 4, "amount": 1.0}])
    assert ids(table) == [1, 2, 3, 4]


@pytest.mark.parametrize("row", [BAD, {"id": 4, "amount": 1.0, "name": "x"}])
def test_a_transaction_that_lands_after_a_check_needs_statistics_that_prove_it(
    db: dolmen.Database, table: dolmen.Table, row: dict[str, Any]
) -> None:
    with db.transaction() as tx:
        tx.table("t").append([row])
        dolmen.open(db.url).table("t").add_check("positive", "amount > 0")
        if row is BAD:
            with pytest.raises(ConflictError, match="the check 'positive' was added meanwhile"):
                tx.commit()
        else:
            tx.commit()
    assert (4 in ids(table)) is (row is not BAD)


def test_rows_that_can_be_read_once_conflict_with_a_check_that_statistics_do_not_prove(
    db: dolmen.Database, table: dolmen.Table
) -> None:
    mine = racing(db, lambda other: other.add_check("c", "id % 5 <> 4"))
    rows = pa.RecordBatchReader.from_batches(COLUMNS, pa.Table.from_pylist([{"id": 4}], COLUMNS).to_batches())
    with pytest.raises(ConflictError, match="read only once"):
        mine.append(rows)
    mine.append([{"id": 5}])
    assert ids(table) == [1, 2, 3, 5]


def test_buffered_rows_meet_a_check_that_came_meanwhile(db: dolmen.Database, table: dolmen.Table) -> None:
    other = dolmen.open(db.url).table("t")
    with table.writer(max_seconds=3600) as writer:
        done = writer.append([{"id": 6, "amount": 1.0, "name": "x"}])
        other.add_check("c", "id % 5 <> 4")
        other.set_not_null("name")
        done.result()
        late = writer.append([{"id": 7, "amount": 1.0, "name": "x"}])
        other.add_check("d", "id % 7 <> 0")
        with pytest.raises(ConflictError, match="the check 'd' is FALSE"):
            late.result()
    assert ids(table) == [1, 2, 3, 6]


def test_a_check_reads_rows_that_land_while_it_is_proven(db: dolmen.Database, table: dolmen.Table) -> None:
    mine = racing(db, lambda other: other.append([BAD]))
    with pytest.raises(SchemaError, match="1 row"):
        mine.add_check("positive", "amount > 0")


def test_threads_that_commit_together_keep_a_check(db: dolmen.Database, table: dolmen.Table) -> None:
    problems: list[Error] = []

    def append(number: int) -> None:
        try:
            table.append([{"id": 10 + number, "amount": float(number % 3 - 1)}])
        except Error as error:
            problems.append(error)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(12)]
    for thread in threads[:6]:
        thread.start()
    try:
        table.add_check("c", "amount >= 0")
    except SchemaError:
        assert table.count("amount < 0")
    for thread in threads[6:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert not table.checks or not table.count("amount < 0")
    assert all(isinstance(problem, RowError) for problem in problems)


def test_compaction_does_not_compare_rows_and_a_pending_delete_hides_them(
    db: dolmen.Database, table: dolmen.Table
) -> None:
    table.append([BAD])
    table.delete(keys=[9])
    table.add_check("positive", "amount > 0")
    compact(context_of(db), "t")
    assert (ids(table), table.checks) == ([1, 2, 3], {"positive": "amount > 0.0"})
    assert not db.verify(deep=True).findings


# ---- NOT NULL --------------------------------------------------------------------------------------------------------


def test_not_null_is_proven(db: dolmen.Database, table: dolmen.Table) -> None:
    table.append([{"id": 4, "amount": 1.0}])
    with pytest.raises(SchemaError, match=r"'name' is NULL in 1 row of table 't'; scan\(where='name IS NULL'\)"):
        table.set_not_null("name")
    table.update({"name": "x"}, "name IS NULL")
    table.set_not_null("name")
    assert table.set_not_null("name").operation == "nothing"
    assert not table.schema.field("name").nullable
    with pytest.raises(RowError, match="NULL in a column that is not nullable"):
        table.append([{"id": 5, "name": None}])
    db.sql("ALTER TABLE t ALTER name DROP NOT NULL; ALTER TABLE t ALTER COLUMN name SET NOT NULL")
    assert not db.verify(deep=True).findings


def test_not_null_of_a_nested_column_reads_it(db: dolmen.Database) -> None:
    table = db.create_table("n", [{"tags": ["a"]}, {"tags": None}])
    with pytest.raises(SchemaError, match="1 row"):
        table.set_not_null("tags")
    table.overwrite([{"tags": ["a"]}])
    table.set_not_null("tags")
    assert not table.schema.field("tags").nullable


def test_files_without_a_column_may_stay_when_all_their_rows_are_deleted(
    db: dolmen.Database, table: dolmen.Table
) -> None:
    table.add_column("more", pa.int64())
    table.append([{"id": 4, "more": 1}])
    table.delete("more IS NULL")
    table.set_not_null("more")
    assert table.to_arrow()["more"].to_pylist() == [1]
    assert not db.verify(deep=True).findings


@pytest.mark.parametrize("name", ["x", None])
def test_an_append_that_lands_after_not_null_is_compared_with_it(
    db: dolmen.Database, table: dolmen.Table, name: str | None
) -> None:
    mine = racing(db, lambda other: other.set_not_null("name"))
    if name is None:
        with pytest.raises(RowError, match="NULL"):
            mine.append([{"id": 4, "name": name}])
    else:
        mine.append([{"id": 4, "name": name}])
    assert (4 in ids(table)) is (name is not None)


# ---- primary keys ----------------------------------------------------------------------------------------------------


def test_a_primary_key_is_added_once_its_values_are_distinct(db: dolmen.Database) -> None:
    table = db.create_table("k", [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": None}])
    with pytest.raises(SchemaError, match=r'1 keys \("a"\) have several rows each; db.sql\('):
        table.add_primary_key("a")
    assert db.sql('FROM "k" SELECT "a" GROUP BY ALL HAVING count(*) > 1').fetchall() == [(1,)]
    with pytest.raises(SchemaError, match=r"""scan\(where='"a" IS NULL OR "b" IS NULL'\)"""):
        table.add_primary_key(["a", "b"])
    table.delete("b IS NULL")
    db.sql("ALTER TABLE k ADD PRIMARY KEY (a, b)")
    assert table.primary_key == ("a", "b")
    assert not any(field.nullable for field in table.schema)
    table.upsert([{"a": 1, "b": 1}])
    with pytest.raises(SchemaError, match="there is a primary key already"):
        table.add_primary_key("b")
    with pytest.raises(SchemaError, match="can't be part of a key"):
        db.create_table("f", [{"x": 0.5}]).add_primary_key("x")


def test_a_primary_key_sees_rows_that_land_while_it_is_read(db: dolmen.Database) -> None:
    db.create_table("t", [{"a": 1}])
    mine = racing(db, lambda other: other.append([{"a": 1}]))
    with pytest.raises(SchemaError, match="several rows"):
        mine.add_primary_key("a")


def test_rows_that_land_between_the_proof_and_the_commit_are_compared(db: dolmen.Database) -> None:
    table, other = db.create_table("t", [{"a": 1}]), dolmen.open(db.url).table("t")
    with db.transaction() as tx:
        tx.table("t").add_primary_key("a")
        other.append([{"a": 1}])
        with pytest.raises(ConflictError, match="added rows"):
            tx.commit()
    with db.transaction() as tx:
        tx.table("t").add_check("c", "a < 5")
        tx.table("t").set_not_null("a")
        other.append([{"a": 7}])
        with pytest.raises(SchemaError, match="FALSE for 1 row"):
            tx.commit()
    assert (table.primary_key, table.checks, table.count()) == ((), {}, 3)

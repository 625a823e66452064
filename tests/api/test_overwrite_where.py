"""``overwrite(rows, where=...)``: a day is replaced in one commit."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.errors import AppliedIdError, ConflictError, Error, InputError, PredicateError, RowError, SchemaError
from dolmen.store.memory import MemoryBucket, MemoryStore

SCHEMA = pa.schema([("day", pa.date32()), ("n", pa.int64())])
MONDAY, TUESDAY = date(2026, 11, 23), date(2026, 11, 24)


def rows(day: date | None, *numbers: int | None) -> pa.Table:
    return pa.table({"day": [day] * len(numbers), "n": numbers}, SCHEMA)


@pytest.fixture
def table(db: Database) -> dolmen.Table:
    table = db.create_table("days", SCHEMA)
    table.append(pa.concat_tables([rows(MONDAY, 1, 2), rows(TUESDAY, 3, 4)]))
    return table


def numbers(table: Any, where: str | None = None) -> list[int]:
    return sorted(table.scan(["n"], where=where).to_arrow()["n"].to_pylist())


def test_rows_of_a_day_are_replaced_in_one_version(db: Database, table: dolmen.Table) -> None:
    before = db.version
    commit = table.overwrite(rows(TUESDAY, 5), where="day = ?", parameters=[TUESDAY], message="again")
    assert (commit.version, commit.operation, commit.rows) == (before + 1, "overwrite", 1)
    assert commit.done == "overwrite days(day)"
    assert numbers(table) == [1, 2, 5]
    assert numbers(table.at(version=before)) == [1, 2, 3, 4]
    assert table.overwrite([], where={"day": MONDAY}).version == before + 2
    assert numbers(table) == [5]
    table.overwrite(rows(TUESDAY, 6, 7), where={"day": TUESDAY})
    assert numbers(table) == [6, 7]
    changes = table.changes(before + 2).read_all().to_pylist()
    assert sorted(change["n"] for change in changes if change["_change"] in ("insert", "update_after")) == [6, 7]
    assert [change["n"] for change in changes if change["_change"] in ("delete", "update_before")] == [5]


@pytest.mark.parametrize(("day", "n", "row"), [(MONDAY, 7, 3), (None, 7, 3), (TUESDAY, None, None)])
def test_rows_of_another_day_are_refused(table: dolmen.Table, day: date | None, n: int | None, row: int | None) -> None:
    new = pa.concat_tables([rows(TUESDAY, 5, 6), rows(day, n)])
    if row is None:
        table.overwrite(new, where={"day": TUESDAY})
        assert table.count("n IS NULL") == 1
        return
    with pytest.raises(RowError, match=r"row 3: .*check=False") as error:
        table.overwrite(new, where={"day": TUESDAY})
    assert error.value.row == row
    assert numbers(table) == [1, 2, 3, 4]
    table.overwrite(new, where={"day": TUESDAY}, check=False)
    assert numbers(table) == [1, 2, 5, 6, 7]


def test_others_rows_of_the_same_day_are_a_conflict(db: Database, table: dolmen.Table, other: Database) -> None:
    transaction = db.transaction()
    transaction.table("days").overwrite(rows(TUESDAY, 5), where={"day": TUESDAY})
    other.table("days").append(rows(MONDAY, 10))
    transaction.commit()
    assert numbers(table) == [1, 2, 5, 10]
    for change in (lambda t: t.append(rows(TUESDAY, 11)), lambda t: t.delete({"n": 5})):
        transaction = db.transaction()
        transaction.table("days").overwrite(rows(TUESDAY, 6), where={"day": TUESDAY})
        change(other.table("days"))
        with pytest.raises(ConflictError):
            transaction.commit()
    transaction = db.transaction()
    transaction.table("days").overwrite(rows(TUESDAY, 7), where={"day": TUESDAY}, force=True)
    other.table("days").append(rows(TUESDAY, 12))
    transaction.commit()
    assert numbers(table) == [1, 2, 7, 10]
    other.table("days").append(rows(TUESDAY, 13))  # committed before the call: it is replaced too
    table.overwrite(rows(TUESDAY, 8), where={"day": TUESDAY})
    assert numbers(table) == [1, 2, 8, 10]


def test_a_request_is_applied_once(table: dolmen.Table) -> None:
    first = table.overwrite(rows(TUESDAY, 5), where={"day": TUESDAY}, request="r")
    table.append(rows(TUESDAY, 6))
    again = table.overwrite(rows(TUESDAY, 5), where="day = '2026-11-24'", request="r")
    assert again.already == {"r": first.version}
    assert numbers(table) == [1, 2, 5, 6]
    for other in ({"where": {"day": MONDAY}, "check": False}, {}):
        with pytest.raises(AppliedIdError):
            table.overwrite(rows(TUESDAY, 5), request="r", **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"where": "dai = 1"}, PredicateError),
        ({"where": "day ="}, PredicateError),
        ({"where": ""}, InputError),
        ({"where": {}}, InputError),
        ({"where": {"n": 1}, "check": 1}, InputError),
        ({"where": {"n": 1}, "force": "no"}, InputError),
        ({"parameters": [1]}, PredicateError),
        ({"data": [{"x": 1}], "where": {"n": 1}}, SchemaError),
    ],
)
def test_wrong_arguments_change_nothing(db: Database, table: dolmen.Table, arguments: Any, error: type[Error]) -> None:
    before = db.refresh()
    with pytest.raises(error):
        table.overwrite(**{"data": rows(MONDAY, 1), **arguments})
    assert db.refresh() == before


days = st.sampled_from([MONDAY, TUESDAY, None])
drawn_rows = st.lists(st.tuples(days, st.one_of(st.none(), st.integers(0, 9))), max_size=8)
WHERES = ["day = '2026-11-24'", "n < 5", "n IS NULL", "day IS NULL OR n = 3", "TRUE", "NOT n > 2"]


@pytest.mark.slow
@given(old=drawn_rows, new=drawn_rows, where=st.sampled_from(WHERES), compacted=st.booleans())
def test_it_is_a_delete_and_an_append(old: Any, new: Any, where: str, compacted: bool) -> None:
    db = Database(MemoryStore(MemoryBucket(), Runtime()), Runtime())
    one, two = (db.create_table(name, SCHEMA) for name in ("one", "two"))
    for table in (one, two):
        table.append(pa.table({"day": [day for day, _ in old], "n": [n for _, n in old]}, SCHEMA))
    added = pa.table({"day": [day for day, _ in new], "n": [n for _, n in new]}, SCHEMA)
    one.overwrite(added, where=where, check=False)
    with db.transaction() as tx:
        tx.table("two").delete(where)
        tx.table("two").append(added)
    if compacted:
        db.resolve()
        db.compact()
    key = [("day", "ascending"), ("n", "ascending")]
    assert one.to_arrow().sort_by(key).equals(two.to_arrow().sort_by(key))
    db.create_table("new", SCHEMA).append(added)
    if added.num_rows != db.table("new").count(where):
        with pytest.raises(RowError):
            one.overwrite(added, where=where)

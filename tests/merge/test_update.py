"""UPDATE: which rows get which values, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database, Expression
from dolmen.api.database import Table
from dolmen.errors import AppliedIdError, InputError, PredicateError, RowError, SchemaError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("price", pa.decimal128(10, 2)),
        ("x", pa.float64()),
        pa.field("name", pa.string(), nullable=False),
        ("at", pa.timestamp("us", tz="UTC")),
        ("code", pa.binary(3)),
        ("tags", pa.list_(pa.string())),
    ]
)
NAN = float("nan")


@pytest.fixture
def table(db: Database) -> Table:
    """Ids 0 to 9 in two files; n is NULL for 9."""
    table = db.create_table("t", SCHEMA, primary_key="id", sort_key="n")
    for some in (range(5), range(5, 10)):
        n = [i if i < 9 else None for i in some]
        table.append({"id": list(some), "n": n, "price": [Decimal("1.50")] * 5, "name": ["a"] * 5, "x": [0.5] * 5})
    return table


def values(table: Table, column: str) -> dict[int, Any]:
    found = table.scan(["id", column]).to_arrow().to_pydict()
    assert len(set(found["id"])) == len(found["id"])
    return dict(sorted(zip(found["id"], found[column], strict=True)))


def test_rows_for_which_the_predicate_is_true_get_new_values(db: Database, table: Table) -> None:
    version = db.version
    done = table.update({"price": Expression("price * 2"), "name": "it's"}, "n > 2")
    assert (done.version, done.operation) == (version + 1, "update")
    assert (done.counts.rows_added, done.counts.rows_deleted, done.counts.files_removed) == (6, 6, 0)
    assert values(table, "name") == {**dict.fromkeys([0, 1, 2, 9], "a"), **dict.fromkeys(range(3, 9), "it's")}
    assert values(table, "price")[3] == Decimal("3.00")
    assert values(table, "n") == {**{i: i for i in range(9)}, 9: None}  # NULL > 2 is not TRUE
    assert db.at(version=version).table("t").count("name = 'a'") == 10
    assert db.verify(deep=True).ok


def test_without_a_predicate_all_rows_change(table: Table) -> None:
    assert table.update({"n": 7}).counts.rows_added == 10
    assert set(values(table, "n").values()) == {7}


@pytest.mark.parametrize(
    ("column", "given", "stored"),
    [
        ("n", None, None),
        ("n", Expression("NULL"), None),
        ("n", Expression("n % 3"), 1),
        ("n", Expression("CASE WHEN n = 4 THEN -1 END"), -1),
        ("n", Expression("price::INTEGER + 1 -- a comment"), 3),
        ("price", Decimal("7"), Decimal("7.00")),
        ("price", 7, Decimal("7.00")),
        ("price", Expression("round(price / 3, 2)"), None),
        ("x", Expression("'nan'::DOUBLE"), NAN),
        ("x", NAN, NAN),
        ("x", Expression("x + n"), 4.5),
        ("name", "n + 1", "n + 1"),
        ("name", Expression("name || '-' || id"), "a-4"),
        ("at", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        ("at", Expression("TIMESTAMPTZ '2026-01-01 01:00:00+01'"), datetime(2026, 1, 1, tzinfo=UTC)),
        ("code", b"abc", b"abc"),
        ("code", Expression("'abc'::BLOB"), b"abc"),
        ("tags", ["a", None], ["a", None]),
        ("tags", Expression("list_value(name, upper(name))"), ["a", "A"]),
    ],
)
def test_values_are_constants_or_expressions(table: Table, column: str, given: Any, stored: Any) -> None:
    if column == "price" and isinstance(given, Expression):
        with pytest.raises(SchemaError, match=r"column 'price': .*double"):
            table.update({column: given}, "id = 4")
        return
    table.update({column: given}, "id = 4")
    found = values(table, column)[4]
    assert found == stored or (found != found and stored != stored)
    assert table.count("id <> 4 AND name = 'a'") == 9


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        ({"n": Expression("n / 2")}, SchemaError, r"column 'n'.*double.*int32"),
        ({"price": Expression("price * 1.001")}, RowError, r"column 'price': '1.50150'"),
        ({"n": Expression("3000000000 + n")}, RowError, "column 'n'"),
        ({"n": Expression("n * 1000000000")}, InputError, r"DuckDB.*n \* 1000000000"),
        ({"n": "7"}, InputError, "value '7' of column 'n'"),
        ({"n": "n + 1"}, InputError, r"dolmen.Expression\('n \+ 1'\)"),
        ({"n": 7.5}, InputError, "value 7.5 of column 'n'"),
        ({"name": None}, RowError, r"column 'name'.*NULL"),
        ({"name": Expression("CASE WHEN id < 3 THEN 'x' END")}, RowError, "column 'name': NULL"),
        ({"name": Expression("NULL")}, RowError, "column 'name': NULL"),
        ({"code": b"toolong"}, RowError, "column 'code'"),
        ({"id": 3}, SchemaError, "primary key"),
        ({"nope": 3}, SchemaError, "no column 'nope'"),
        ({"n": Expression("nope + 1")}, InputError, '"nope" not found'),
        ({"n": Expression("n +")}, InputError, "DuckDB can't evaluate"),
        ({"n": Expression("")}, InputError, "empty"),
        ({"n": Expression("max(n)")}, InputError, "aggregates"),
        ({"n": Expression("row_number() OVER ()")}, InputError, "window"),
        ({"n": Expression("(SELECT 1)")}, InputError, "subquery"),
        ({"n": Expression("n IN (SELECT 1)")}, InputError, "subquery"),
        ({"n": Expression("?")}, InputError, "parameter"),
        ({"n": Expression("*")}, InputError, "all columns"),
        ({"n": Expression("1); SELECT (1")}, InputError, "expression"),
        ({"n": Expression("1, n")}, SchemaError, r"column 'n'.*struct"),
        ({"name": Expression("getenv('HOME')")}, InputError, "getenv"),
        ({}, InputError, "changes nothing"),
        ("n = 1", InputError, "not a mapping"),
        ({1: 2}, InputError, "int"),
        ({"n": Expression(3)}, InputError, "int"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    db: Database, table: Table, values: Any, error: type[Exception], match: str
) -> None:
    version = db.version
    with pytest.raises(error, match=match):
        table.update(values, "id < 5")
    assert db.version == version


def test_where_is_a_predicate_as_of_deletes(table: Table) -> None:
    table.update({"n": 50}, {"id": [1, 2]})
    table.update({"n": 60}, "id = ?", parameters=[3])
    table.update({"n": 70}, ("id = :id", {"id": 4}))
    assert {id_: n for id_, n in values(table, "n").items() if n and n > 40} == {1: 50, 2: 50, 3: 60, 4: 70}
    with pytest.raises(PredicateError):
        table.update({"n": 1}, "nope = 3")


def test_updates_that_match_nothing_are_no_commit(db: Database, table: Table) -> None:
    version = db.version
    assert table.update({"n": 1}, "id = 77").operation == "nothing"
    assert db.version == version


def test_under_one_id_an_update_is_applied_once(table: Table) -> None:
    plus = {"n": Expression("n + 1"), "name": "b"}
    first = table.update(plus, "id = 3 AND at IS NULL", request="u")
    assert table.update(dict(reversed(plus.items())), "id = 3 AND at IS NULL", request="u").already == {
        "u": first.version
    }
    assert values(table, "n")[3] == 4
    for other, where in (
        ({"n": Expression("n + 2"), "name": "b"}, "id = 3 AND at IS NULL"),
        ({"n": Expression("n + 1"), "name": "c"}, "id = 3 AND at IS NULL"),
        ({"n": Expression("n + 1"), "name": Expression("'b'")}, "id = 3 AND at IS NULL"),
        (plus, "id = 4"),
        (plus, None),
    ):
        with pytest.raises(AppliedIdError):
            table.update(other, where, request="u")  # type: ignore[arg-type]
    assert values(table, "n")[3] == 4


def test_an_update_that_found_nothing_is_remembered_too(table: Table) -> None:
    assert (
        table.update({"n": 1}, "id = 77", request="u").version == table.update({"n": 1}, "id = 77", request="u").version
    )
    table.append({"id": [77], "name": ["late"]})
    table.update({"n": 1}, "id = 77", request="u")
    assert values(table, "n")[77] is None


def test_columns_that_were_added_and_renamed_are_updated(table: Table) -> None:
    table.add_column("extra", pa.int64(), 5)
    table.rename_column("name", "label")
    table.update({"extra": Expression("extra + n"), "label": Expression("upper(label)")}, "id >= 8")
    assert values(table, "extra") == {**dict.fromkeys(range(9), 5), 8: 13, 9: None}
    assert values(table, "label")[8] == "A"


def test_new_files_are_sorted_by_the_sort_key_that_was_updated(db: Database, table: Table) -> None:
    table.update({"n": Expression("-n")})
    assert table.scan(["n"]).to_arrow()["n"].to_pylist() == [*range(-8, 1), None]
    assert db.verify(deep=True).ok


def test_names_that_differ_only_in_quotes_or_case_are_found(db: Database) -> None:
    odd = db.create_table("odd", pa.schema([("My n", pa.int64()), ('a"b', pa.int64())]))
    odd.append({"My n": [1], 'a"b': [2]})
    odd.update({"My n": Expression('"my n" + "a""b" + target."a""b"')})
    assert odd.to_arrow().to_pylist() == [{"My n": 5, 'a"b': 2}]


def test_all_columns_may_become_constants(db: Database) -> None:
    small = db.create_table("small", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    small.append({"a": [1, 2], "b": ["x", "y"]})
    small.update({"a": 0, "b": None}, "a = 2")
    assert small.scan(order_by="a").to_arrow().to_pylist() == [{"a": 0, "b": None}, {"a": 1, "b": "x"}]


def test_the_sign_of_zero_is_kept(table: Table) -> None:
    table.update({"x": 0.0})
    table.update({"x": Expression("-x")}, "id < 3")
    table.update({"n": Expression("x::INTEGER")})
    assert [str(x) for x in values(table, "x").values()] == ["-0.0"] * 3 + ["0.0"] * 7


def test_now_is_the_same_in_all_rows(table: Table) -> None:
    table.update({"at": Expression("now()")})
    assert len(set(values(table, "at").values())) == 1


def test_updates_in_a_transaction_see_each_other(db: Database, table: Table) -> None:
    with db.transaction() as tx:
        mine = tx.table("t")
        mine.append({"id": [10], "n": [0], "name": ["new"]})
        mine.update({"n": Expression("n + 1")}, "n = 0")
        mine.update({"n": Expression("n + 1")}, "n = 1")
        mine.delete("n = 3")
        mine.update({"n": 100}, "n = 2 AND id <> 2")
    assert values(table, "n") == {0: 100, 1: 100, 2: 2, **{i: i for i in range(4, 9)}, 9: None, 10: 100}
    assert db.verify(deep=True).ok


def test_an_update_that_fails_leaves_the_transaction_as_it_was(db: Database, table: Table) -> None:
    with db.transaction() as tx:
        mine = tx.table("t")
        mine.update({"n": 1}, "id = 0")
        with pytest.raises(RowError):
            mine.update({"name": Expression("CASE WHEN id < 3 THEN 'x' END")})
    assert (values(table, "n")[0], set(values(table, "name").values())) == (1, {"a"})


def test_expressions_are_public() -> None:
    assert dolmen.Expression("a") == Expression("a")
    assert {"Expression", "Update", "Delete", "Insert"} <= set(dolmen.__all__)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (pa.time64("us"), "TIME '24:00:00'", r"column 'v'.*time64.us."),
        (pa.list_(pa.time64("us")), "[TIME '10:00:00', TIME '24:00:00']", r"column 'v'.* day"),
        (pa.decimal128(38, 0), f"{10**38}::HUGEINT", r"column 'v'.* digits"),
    ],
    ids=["time", "list", "decimal"],
)
def test_a_value_that_no_append_takes_is_refused_of_an_expression_too(
    db: Database, kind: pa.DataType, text: str, message: str
) -> None:
    table = db.create_table("odd", pa.schema([("id", pa.int64()), ("v", kind)]), primary_key="id")
    table.append([{"id": 1}])
    version = db.version
    with pytest.raises(RowError, match=message):
        table.update({"v": Expression(text)})
    with pytest.raises(RowError, match=message):
        table.merge([{"id": 1}], "id", {"v": text}, None)
    with pytest.raises(RowError, match=message):
        table.merge([{"id": 2}], "id", None, {"id": "source.id", "v": text})
    assert db.version == version
    assert db.verify(deep=True).ok


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_a_decimal_that_is_no_number_is_refused_in_words(table: Table, value: str) -> None:
    with pytest.raises(RowError, match=r"^column 'price': .*decimal.*NaN"):
        table.update({"price": Decimal(value)})

"""Fields inside columns are added, dropped, renamed and widened; what files hold of them goes by ids."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import ConflictError, Error, SchemaError
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore

SEED = os.environ["DOLMEN_TEST_SEED"]
ADDRESS = pa.struct([pa.field("street", pa.string(), nullable=False), ("zip", pa.int32()), ("rate", pa.float32())])
ORDERS = pa.list_(pa.struct([("price", pa.int32()), ("lines", pa.map_(pa.string(), pa.struct([("n", pa.int8())])))]))
COLUMNS = pa.schema([("id", pa.int64()), ("address", ADDRESS), ("orders", ORDERS), ("tags", pa.list_(pa.int16()))])
FIRST: list[dict[str, Any]] = [
    {
        "id": 0,
        "address": {"street": "A", "zip": 1, "rate": 0.5},
        "orders": [{"price": 5, "lines": [("x", {"n": 1}), ("y", None)]}, None],
        "tags": [1, None],
    },
    {"id": 1, "address": None, "orders": None, "tags": []},
    {"id": 2, "address": {"street": "B", "zip": None, "rate": None}, "orders": [], "tags": None},
]


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


@pytest.fixture
def table(db: dolmen.Database) -> dolmen.Table:
    table = db.create_table("t", COLUMNS)
    table.append(pa.Table.from_pylist(FIRST, COLUMNS))
    return table


def rows(table: Any, *columns: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan(["id", *columns]).to_arrow().sort_by("id").to_pylist()
    return found


def address(**fields: Any) -> dict[str, Any]:
    return fields


def test_fields_of_a_struct_change_and_files_keep_theirs(db: dolmen.Database, table: dolmen.Table) -> None:
    before = db.version
    table.rename_column("address.zip", "postcode")
    table.add_column("address.country", pa.string())
    table.widen_column("address.rate", pa.float64())
    table.widen_column("address.postcode", pa.int64())
    table.make_nullable("address.street")
    new = address(street=None, postcode=2**40, rate=0.1, country="CH")
    table.append([{"id": 3, "address": new}])
    assert [row["address"] for row in rows(table, "address")] == [
        address(street="A", postcode=1, rate=0.5, country=None),
        None,
        address(street="B", postcode=None, rate=None, country=None),
        new,
    ]
    assert rows(db.at(version=before).table("t"), "address")[0]["address"] == FIRST[0]["address"]
    assert db.sql("SELECT address.postcode FROM t WHERE address.postcode > 0 ORDER BY id").fetchall() == [
        (1,),
        (2**40,),
    ]
    shown = rows(table, "address")
    assert db.verify(deep=True).ok
    db.compact("t")
    assert rows(table, "address") == shown
    assert db.verify(deep=True).ok


def test_a_field_that_is_dropped_and_added_again_is_new(db: dolmen.Database, table: dolmen.Table) -> None:
    table.drop_column("address.zip")
    table.add_column("address.zip", pa.int32())
    assert [row["address"] and row["address"]["zip"] for row in rows(table, "address")] == [None, None, None]
    table.append([{"id": 3, "address": {"street": "C", "zip": 7}}])
    table.rename_column("address.street", "road")
    table.add_column("address.street", pa.string())
    assert rows(table, "address")[3]["address"] == {"road": "C", "rate": None, "zip": 7, "street": None}
    assert rows(table, "address")[0]["address"] == {"road": "A", "rate": 0.5, "zip": None, "street": None}
    db.compact("t")
    assert rows(table, "address")[0]["address"] == {"road": "A", "rate": 0.5, "zip": None, "street": None}
    assert db.verify(deep=True).ok


def test_structs_in_lists_and_in_values_of_maps_change_too(db: dolmen.Database, table: dolmen.Table) -> None:
    table.widen_column("orders.element.price", pa.int64())
    table.add_column("orders.element.lines.value.note", pa.string())
    table.widen_column("orders.element.lines.value.n", pa.int64())
    table.rename_column("orders.element.lines.value.n", "count")
    table.widen_column("tags.element", pa.int32())
    table.append(
        [{"id": 3, "orders": [{"price": 2**40, "lines": [("z", {"count": 300, "note": "n"})]}], "tags": [70_000]}]
    )
    assert [(row["orders"], row["tags"]) for row in rows(table, "orders", "tags")] == [
        ([{"price": 5, "lines": [("x", {"count": 1, "note": None}), ("y", None)]}, None], [1, None]),
        (None, []),
        ([], None),
        ([{"price": 2**40, "lines": [("z", {"count": 300, "note": "n"})]}], [70_000]),
    ]
    shown = rows(table, "orders", "tags")
    table.delete("id = 1")
    db.resolve("t")
    db.compact("t")
    assert rows(table, "orders", "tags") == [shown[0], *shown[2:]]
    assert db.verify(deep=True).ok


REFUSED: list[tuple[Callable[[dolmen.Table], object], str]] = [
    (lambda t: t.drop_column("address.nope"), "no field 'nope' there; there are: street, zip, rate"),
    (lambda t: t.rename_column("address.zip", "Street"), "differ in case only"),
    (lambda t: t.rename_column("address.zip", ""), "empty"),
    (lambda t: t.rename_column("address.zip", "address.postcode"), "the new name is the field's own"),
    (lambda t: t.rename_column("orders.element.price", "a.b"), "the new name is the field's own"),
    (lambda t: t.add_column("address.zip", pa.int64()), "'zip' is there twice"),
    (lambda t: t.add_column("address.x", pa.int64(), 5), "has no default"),
    (lambda t: t.add_column("address.x", pa.int64(), nullable=False), "has no default"),
    (lambda t: t.add_column("address.x", pa.int64(), comment="c"), "only columns have comments"),
    (lambda t: t.add_column("address.zip.x", pa.int64()), "of type int32 has no fields"),
    (lambda t: t.widen_column("address.zip", pa.float64()), "of their kind only"),
    (lambda t: t.widen_column("address.zip", pa.int32()), "the type int32 already"),
    (lambda t: t.drop_column("tags.element"), "can't be added, dropped or renamed"),
    (lambda t: t.rename_column("tags.element", "x"), "can't be added, dropped or renamed"),
    (lambda t: t.drop_column("orders.element.lines.key"), "there are: value"),
    (lambda t: t.drop_column("orders.element.lines.value.n"), "the only one"),
    (lambda t: t.widen_column("tags", pa.list_(pa.int64())), "of their kind only"),
    (lambda t: t.set_default("address.zip", None), "no column 'address.zip'"),
    (lambda t: t.set_sort_key("address.zip"), "no column 'address.zip'"),
]


@pytest.mark.parametrize(("act", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_can_not_be_is_refused_and_changes_nothing(
    db: dolmen.Database, table: dolmen.Table, act: Callable[[dolmen.Table], object], words: str
) -> None:
    version = db.version
    with pytest.raises(Error, match=words):
        act(table)
    assert db.refresh() == version


def test_a_day_inside_a_column_does_not_become_a_timestamp(db: dolmen.Database) -> None:
    table = db.create_table("t", pa.schema([("s", pa.struct([("day", pa.date32())]))]))
    with pytest.raises(SchemaError, match="statistics"):
        table.widen_column("s.day", pa.timestamp("us"))


def test_a_column_with_a_point_in_its_name_comes_first(db: dolmen.Database) -> None:
    schema = pa.schema([("a.b", pa.int32()), ("a", pa.struct([("b", pa.int32()), ("c", pa.int32())]))])
    table = db.create_table("t", schema)
    table.widen_column("a.b", pa.int64())
    table.widen_column("a.c", pa.int64())
    table.add_column('"x.y"', pa.int8())
    assert [str(field.type) for field in table.schema] == ["int64", "struct<b: int32, c: int64>", "int8"]


@pytest.mark.parametrize("turned", [False, True])
def test_the_longest_name_that_fits_is_taken_whatever_the_order(db: dolmen.Database, turned: bool) -> None:
    small = pa.struct([("c", pa.int8())])
    inner = [("b", pa.int8()), ("b.c", pa.int8()), ("d", pa.struct([("e", pa.int8())])), ("d.e", small)]
    columns = [("a", pa.struct(inner[::-1] if turned else inner)), ("a.x", small)]
    table = db.create_table("t", pa.schema(columns[::-1] if turned else columns))
    for path in ("a.x.c", "a.b.c", "a.d.e.c"):
        table.widen_column(path, pa.int16())
    table.rename_column("a.b.c", "bc")
    table.add_column("a.x.d", pa.int8())
    types = {field.name: field.type for field in table.schema}
    assert str(types["a.x"]) == "struct<c: int16, d: int8>"
    assert {field.name: str(field.type) for field in types["a"]} == {
        "b": "int8",
        "bc": "int16",
        "d": "struct<e: int8>",
        "d.e": "struct<c: int16>",
    }
    with pytest.raises(SchemaError, match=r"'a'.*'y'"):
        table.drop_column("a.y" + ".z" * 5_000)


def test_rows_written_under_older_fields_are_committed_where_they_fit(db: dolmen.Database, table: dolmen.Table) -> None:
    other = dolmen.open(db.url).table("t")
    with db.transaction() as tx:
        tx.table("t").append([{"id": 3, "address": {"street": "C", "zip": 3}}])
        other.add_column("address.country", pa.string())
        other.widen_column("address.zip", pa.int64())
    assert rows(other, "address")[3]["address"] == {"street": "C", "zip": 3, "rate": None, "country": None}
    tx = db.transaction()
    tx.table("t").append([{"id": 4, "address": {"street": "D", "zip": 4}}])
    other.drop_column("address.zip")
    with pytest.raises(ConflictError, match="column 'address' is"):
        tx.commit()
    assert db.verify(deep=True).ok


def test_a_change_inside_a_column_is_two_puts() -> None:
    store = CountingStore(MemoryStore())
    db = Database(store, Runtime())
    table = db.create_table("t", COLUMNS)
    table.append(pa.Table.from_pylist(FIRST, COLUMNS))
    store.reset()
    table.add_column("address.country", pa.string())
    assert (store.puts, store.gets, store.lists) == (2, 0, 0)
    assert context_of(db).head.refresh().manifest.features == ("widened-columns",)


HISTORIES = 100 if os.environ.get("DOLMEN_LONG") else 3


@pytest.mark.parametrize("number", range(HISTORIES))
def test_random_histories_show_what_a_model_of_ids_does(number: int, tmp_path: Path) -> None:
    """A struct of numbers and, in a list of structs, the same fields again: ids decide what a row shows."""
    rng = random.Random(f"{SEED} nested {number}")
    print(f"DOLMEN_TEST_SEED={SEED} history {number}")
    db = dolmen.open(str(tmp_path / "db"))
    inner = pa.struct([("a", pa.int8())])
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("s", inner), ("l", pa.list_(inner))]))
    fields = {"s": {"a": 0}, "l": {"a": 0}}  # ids of the model by name, by column
    held: list[dict[str, Any]] = []
    next_id = 1
    kept: dict[int, list[dict[str, Any]]] = {}
    for _ in range(30):
        column = rng.choice("sl")
        known, prefix = fields[column], {"s": "s", "l": "l.element"}[column]
        what = rng.choice(["append"] * 4 + ["add", "add", "drop", "rename", "compact"])
        if what == "append":
            values = {
                each: {id_: rng.choice([None, rng.randrange(100)]) for id_ in ids.values()}
                for each, ids in fields.items()
            }
            values = {each: rng.choice([None, value, value, value]) for each, value in values.items()}
            held.append(values)
            table.append(pa.Table.from_pylist([{"id": len(held) - 1, **shown(values, fields)}], table.schema))
        elif what == "add":
            name = rng.choice("abcdef")
            if name not in known:
                table.add_column(f"{prefix}.{name}", pa.int8())
                known[name], next_id = next_id, next_id + 1
        elif what == "drop" and len(known) > 1:
            name = rng.choice(list(known))
            table.drop_column(f"{prefix}.{name}")
            del known[name]
        elif what == "rename":
            name, to = rng.choice(list(known)), rng.choice("abcdef")
            if to not in known:
                table.rename_column(f"{prefix}.{name}", to)
                fields[column] = {to if one == name else one: id_ for one, id_ in known.items()}
        elif what == "compact":
            db.compact("t")
        kept[db.version] = [{"id": place, **shown(values, fields)} for place, values in enumerate(held)]
        assert rows(table, "s", "l") == kept[db.version]
    for version, expected in kept.items():
        assert rows(db.at(version=version).table("t"), "s", "l") == expected
    assert db.verify(deep=True).ok


def shown(values: dict[str, Any], fields: dict[str, dict[str, int]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column, known in fields.items():
        own = values[column]
        value = None if own is None else {name: own.get(id_) for name, id_ in known.items()}
        found[column] = value if column == "s" or value is None else [value, None]
    return found

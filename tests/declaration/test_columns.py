"""Columns and sort keys of tables become what a declaration says, by one commit that touches no file."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import declaration
from dolmen.declaration import Declaration, plan
from dolmen.errors import ConflictError, InputError, SchemaError

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
PAIRS = 300 if os.environ.get("DOLMEN_LONG") else 20
TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_NUMBERS = count()

PLAIN = {"id": "BIGINT NOT NULL", "name": "VARCHAR", "n": "INTEGER"}


@pytest.fixture
def db() -> Iterator[dolmen.Database]:
    with dolmen.open(f"memory://declared-columns-{next(_NUMBERS)}") as opened:
        yield opened


def declared(columns: dict[str, Any], **more: Any) -> Declaration:
    return Declaration.parse(json.dumps({"tables": {"t": {"columns": columns, **({"primary_key": "id"} | more)}}}))


def apply(db: dolmen.Database, columns: dict[str, Any], *, drop: bool = False, **more: Any) -> list[tuple[Any, ...]]:
    """Applies a declaration; returns the differences that were shown. Twice gives no commit."""
    wanted = plan(db, declared(columns, **more), drop=drop)
    before = db.refresh()
    wanted.commit()
    assert db.refresh() - before == bool(wanted.changes)
    again = plan(db, declared(columns, **more), drop=drop)
    assert again.changes == ()
    return [(each.kind, each.what, each.name, each.before, each.after) for each in wanted.changes]


def rows(db: dolmen.Database) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = db.table("t").to_arrow().to_pylist()
    return found


def test_columns_are_added_renamed_widened_reordered_and_described_in_one_commit(db: dolmen.Database) -> None:
    apply(db, PLAIN)
    db.table("t").append([{"id": 1, "name": "a", "n": 5}])
    columns = {
        "id": "BIGINT NOT NULL",
        "n": {"type": "BIGINT", "comment": "how many"},
        "label": {"type": "VARCHAR", "renamed_from": "name", "default": "none"},
        "on": {"type": "DATE NOT NULL", "default": "2026-01-05"},
    }
    assert apply(db, columns, sort_key="n", ttl="on 90d") == [
        ("change", "rename", "label", "name", "label"),
        ("change", "column", "n", "INTEGER", "BIGINT"),
        ("add", "comment", "n", None, "how many"),
        ("add", "default", "label", None, "none"),
        ("add", "column", "on", None, "DATE NOT NULL"),
        ("change", "order", "t", ["id", "label", "n"], ["id", "n", "label", "on"]),
        ("add", "sort_key", "t", None, ["n"]),
        ("add", "property", "ttl", None, "on 90d"),
    ]
    db.table("t").append([{"id": 2, "n": 2**40}])
    assert [[str(value) for value in row.values()] for row in rows(db)] == [
        ["1", "5", "a", "2026-01-05"],
        ["2", str(2**40), "none", "2026-01-05"],
    ]
    assert [commit.operation for commit in db.history()] == ["append", "apply", "append", "apply"]


def test_a_column_that_is_not_declared_stays_unless_it_is_to_be_dropped(db: dolmen.Database) -> None:
    apply(db, PLAIN)
    fewer = {"id": "BIGINT NOT NULL", "name": "VARCHAR"}
    wanted = plan(db, declared(fewer))
    assert wanted.changes == ()
    assert [(each.kind, each.name, each.before) for each in wanted.undropped] == [("remove", "n", "INTEGER")]
    assert wanted.commit().operation == "nothing"
    assert apply(db, fewer, drop=True) == [("remove", "column", "n", "INTEGER", None)]
    assert db.table("t").schema.names == ["id", "name"]
    assert apply(db, PLAIN) == [("add", "column", "n", None, "INTEGER")]


def test_a_column_is_dropped_in_the_commit_that_takes_it_out_of_key_and_settings(db: dolmen.Database) -> None:
    dated = PLAIN | {"on": "DATE"}
    apply(db, dated, sort_key=["n"], ttl="on 90d")
    apply(db, {"id": "BIGINT NOT NULL"}, drop=True)
    assert (db.table("t").schema.names, db.table("t").sort_key) == (["id"], ())


def test_fields_inside_of_columns_are_added_widened_and_dropped_by_metadata(db: dolmen.Database) -> None:
    apply(db, {**PLAIN, "s": "STRUCT(a INT, q STRUCT(z INT))", "l": "STRUCT(x INT)[]", "m": "MAP(INT, STRUCT(k INT))"})
    row = {"id": 1, "s": {"a": 1, "q": {"z": 2}}, "l": [{"x": 3}], "m": [(4, {"k": 5})]}
    db.table("t").append(pa.Table.from_pylist([row], db.table("t").schema))
    files = db.table("t").files()["path"]
    other = {
        **PLAIN,
        "s": "STRUCT(b VARCHAR, A BIGINT, q STRUCT(z INT, y DATE[]))",
        "l": "STRUCT(x BIGINT, w INT)[]",
        "m": "MAP(INT, STRUCT(v INT))",
    }
    added = [
        ("add", "column", "s.b", None, "VARCHAR"),
        ("change", "column", "s.a", "INTEGER", "BIGINT"),
        ("add", "column", "s.q.y", None, "DATE[]"),
        ("change", "column", "l.element.x", "INTEGER", "BIGINT"),
        ("add", "column", "l.element.w", None, "INTEGER"),
        ("add", "column", "m.value.v", None, "INTEGER"),
    ]
    assert [each.name for each in plan(db, declared(other)).undropped] == ["m.value.k"]
    assert apply(db, other) == added
    assert apply(db, other, drop=True) == [("remove", "column", "m.value.k", "INTEGER", None)]
    assert db.table("t").files()["path"] == files
    s = {"a": 1, "q": {"z": 2, "y": None}, "b": None}
    found = {"s": s, "l": [{"x": 3, "w": None}], "m": [(4, {"v": None})]}
    assert rows(db) == [{"id": 1, "name": None, "n": None, **found}]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("STRUCT(a VARCHAR)", "s.a"),
        ("STRUCT(a INT NOT NULL)", "s.a"),
        ("STRUCT(a INT, b INT NOT NULL)", "s.b"),
        ("STRUCT(a DATE)", "s.a"),
        ("INT", "'s'"),
        ("STRUCT(a INT)[]", "'s'"),
    ],
)
def test_fields_that_cannot_change_are_named(db: dolmen.Database, kind: str, field: str) -> None:
    apply(db, {**PLAIN, "s": "STRUCT(a INT)"})
    with pytest.raises(SchemaError, match=field):
        plan(db, declared({**PLAIN, "s": kind}))


def test_a_field_is_not_mistaken_for_a_column_of_its_path(db: dolmen.Database) -> None:
    apply(db, {**PLAIN, "s": "STRUCT(a INT, x INT)", "s.a": "INT", "s.x": "INT"})
    for kind in ("STRUCT(a BIGINT, x INT)", "STRUCT(x INT)"):
        with pytest.raises(SchemaError, match=r"s\.a"):
            plan(db, declared({**PLAIN, "s": kind, "s.a": "INT", "s.x": "INT"}), drop=True)
    assert apply(db, {**PLAIN, "s": "STRUCT(a INT, x INT)", "s.a": "BIGINT", "s.x": "INT"}) == [
        ("change", "column", "s.a", "INTEGER", "BIGINT")
    ]


def test_a_rename_is_made_once_and_settings_follow(db: dolmen.Database) -> None:
    apply(db, PLAIN | {"on": "DATE"}, ttl="on 90d", sort_key="on")
    renamed = PLAIN | {"day": {"type": "DATE", "renamed_from": "on"}}
    assert apply(db, renamed, ttl="day 90d", sort_key="day") == [("change", "rename", "day", "on", "day")]
    db.table("t").add_column("on", pa.date32())
    with pytest.raises(SchemaError, match="'day' and column 'on'"):
        plan(db, declared(renamed, ttl="day 90d"))


def test_a_new_table_has_the_defaults_and_comments_that_are_declared(db: dolmen.Database) -> None:
    column = {"type": "INTEGER", "default": 7, "comment": "lucky", "renamed_from": "never"}
    apply(db, {"id": "BIGINT NOT NULL", "n": column})
    db.table("t").append([{"id": 1}])
    assert rows(db) == [{"id": 1, "n": 7}]
    assert apply(db, {"id": "BIGINT NOT NULL", "n": "INTEGER"}) == [
        ("remove", "default", "n", "7", None),
        ("remove", "comment", "n", "lucky", None),
    ]


def test_a_name_with_a_point_is_the_name_of_a_column_and_no_path(db: dolmen.Database) -> None:
    columns: dict[str, Any] = {"id": "BIGINT NOT NULL", "s": "STRUCT(x INTEGER)"}
    apply(db, columns)
    columns |= {"s.x": "INTEGER", "s.z": {"type": "INTEGER", "default": 7, "comment": "beside s"}}
    assert apply(db, columns) == [("add", "column", name, None, "INTEGER") for name in ("s.x", "s.z")]
    assert [str(field.type) for field in db.table("t").schema] == ["int64", "struct<x: int32>", "int32", "int32"]


DEFAULTS = {
    "DATE": ["0000-01-01", "10183-10-05", "-0044-03-15"],
    "TIME": ["03:00:00", "23:59:59.999999"],
    "TIMESTAMP": ["0000-01-01 00:00:00", "2026-01-05 03:04:05.000006"],
    "TIMESTAMPTZ": ["10000-01-01 04:59:59+00:00"],
    "FLOAT": ["0.1", "inf", "nan"],
    "DOUBLE": ["0.1", "1e+300"],
    "DECIMAL(9, 2)": ["-1.50"],
    "BLOB": ["a\\xFF\\x5C"],
    "BOOLEAN": ["true"],
    "UBIGINT": ["18446744073709551615"],
    "VARCHAR": [" 'a' "],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in DEFAULTS.items() for text in texts])
def test_a_default_is_shown_as_it_may_be_declared(db: dolmen.Database, kind: str, text: str) -> None:
    columns = {"id": "BIGINT NOT NULL", "c": {"type": kind, "default": text}}
    assert ("add", "default", "c", None, text) in apply(db, columns)
    db.table("t").append([{"id": 1}])
    assert db.table("t").count("c IS NOT NULL") == 1
    assert apply(db, {"id": "BIGINT NOT NULL", "c": kind}) == [("remove", "default", "c", text, None)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [("FLOAT", "1e300"), ("DOUBLE", "1e400"), ("DATE", "9999999-01-01"), ("TIMESTAMP", "2026-01-05 03:00:00Z")],
)
def test_a_default_that_the_type_does_not_hold_is_refused(db: dolmen.Database, kind: str, text: str) -> None:
    with pytest.raises(InputError, match=f"'{text}' is not a value of "):
        declared({"id": "BIGINT", "c": {"type": kind, "default": text}})


@pytest.mark.parametrize(
    "meddle",
    [
        lambda table: table.add_column("n", pa.string()),
        lambda table: table.drop_column("name"),
        lambda table: table.rename_column("name", "other"),
        lambda table: table.set_sort_key("name"),
    ],
)
def test_columns_that_are_changed_after_the_look_are_a_conflict(
    db: dolmen.Database, meddle: Callable[[Any], Any]
) -> None:
    apply(db, {"id": "BIGINT NOT NULL", "name": "VARCHAR"})
    planned = plan(db, declared(PLAIN))
    meddle(db.table("t"))
    version = db.refresh()
    with pytest.raises(ConflictError):
        planned.commit()
    assert db.refresh() == version


def test_applying_looks_again_after_a_conflict(db: dolmen.Database) -> None:
    apply(db, {"id": "BIGINT NOT NULL", "name": "VARCHAR"})
    planned = plan(db, declared(PLAIN))
    db.table("t").add_column("more", pa.int64())
    with pytest.raises(ConflictError):
        planned.commit()
    declaration.apply(db, declared(PLAIN))
    assert db.table("t").schema.names == ["id", "name", "more", "n"]


def random_columns(rng: random.Random, before: dict[str, Any]) -> dict[str, Any]:
    """Columns that a table may get that has those of ``before``: types grow, and what is nullable stays so."""
    columns: dict[str, Any] = {"id": "BIGINT NOT NULL"}
    gone = [name for name in before if name != "id" and rng.random() < 0.3]
    for name in rng.sample("abcdef", rng.randint(0, 5)):
        old = before.get(name)
        fact: dict[str, Any] = {}
        if old is None and gone and rng.random() < 0.5:
            fact["renamed_from"] = source = gone.pop()
            old = before[source]
        least, nullable = 0, False
        if isinstance(old, dict):
            least, nullable = TYPES.index(old["type"].split()[0]), "NOT NULL" not in old["type"]
        required = not nullable and rng.random() < 0.4
        fact["type"] = rng.choice(TYPES[least:]) + (" NOT NULL" if required else "")
        if required or rng.random() < 0.5:
            fact["default"] = rng.randrange(100)
        if rng.random() < 0.3:
            fact["comment"] = rng.choice(("one", "two"))
        columns[name] = fact
    renamed = {fact.get("renamed_from") for fact in columns.values() if isinstance(fact, dict)}
    return {name: fact for name, fact in columns.items() if name not in renamed}


@pytest.mark.slow
def test_random_declarations_one_after_the_other_give_what_the_last_one_says() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    for number in range(PAIRS):
        db = dolmen.open(f"memory://declared-pairs-{SEED}-{number}")
        columns: dict[str, Any] = {}
        model: list[dict[str, Any]] = []
        for step in range(4):
            wanted = random_columns(rng, columns)
            sort_key = [name for name in wanted if rng.random() < 0.2]
            apply(db, wanted, drop=True, **({"sort_key": sort_key} if sort_key else {}))
            model = [_altered(row, columns, wanted) for row in model]
            db.table("t").append([{"id": step}])
            model.append({name: _default(fact) for name, fact in wanted.items()} | {"id": step})
            table, fresh = db.table("t"), dolmen.open(f"memory://declared-fresh-{SEED}-{number}-{step}")
            apply(fresh, wanted, **({"sort_key": sort_key} if sort_key else {}))
            assert table.schema.equals(fresh.table("t").schema, check_metadata=False), wanted
            assert table.sort_key == tuple(sort_key)
            assert sorted(rows(db), key=lambda row: row["id"]) == model, wanted
            columns = wanted


def _default(fact: Any) -> Any:
    return fact.get("default") if isinstance(fact, dict) else None


def _altered(row: dict[str, Any], before: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """A row of before as the new columns show it."""
    new: dict[str, Any] = {}
    for name, fact in wanted.items():
        source = fact.get("renamed_from", name) if isinstance(fact, dict) and name not in before else name
        new[name] = row[source] if source in before else _default(fact)
    return new


def test_names_of_columns_are_found_in_any_case(db: dolmen.Database) -> None:
    """And another spelling alone is no difference, unless a rename is declared."""
    apply(db, PLAIN, sort_key="n")
    other = {"ID": "BIGINT NOT NULL", "NAME": "VARCHAR", "N": "BIGINT"}
    assert apply(db, other, primary_key="Id", sort_key="N", drop=True) == [
        ("change", "column", "n", "INTEGER", "BIGINT")
    ]
    renamed = {**other, "NAME": {"type": "VARCHAR", "renamed_from": "name"}}
    assert apply(db, renamed, sort_key="n", subject="Name") == [
        ("change", "rename", "NAME", "name", "NAME"),
        ("add", "property", "subject", None, "NAME"),
    ]
    assert db.table("t").schema.names == ["id", "NAME", "n"]

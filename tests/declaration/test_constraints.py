"""Checks, NOT NULL, primary keys and computed defaults of declared tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import dolmen
from dolmen.declaration import Declaration, plan
from dolmen.errors import ConflictError, InputError, PredicateError, RowError, SchemaError

_NUMBERS = count()
COLUMNS = {"id": "BIGINT NOT NULL", "n": "INTEGER", "Name": "VARCHAR"}


@pytest.fixture
def db() -> Iterator[dolmen.Database]:
    with dolmen.open(f"memory://declared-constraints-{next(_NUMBERS)}") as opened:
        yield opened


def declared(columns: dict[str, Any] = COLUMNS, **more: Any) -> Declaration:
    return Declaration.parse(json.dumps({"tables": {"t": {"columns": columns, **more}}}))


def apply(db: dolmen.Database, declaration: Declaration) -> list[tuple[Any, ...]]:
    """Applies a declaration, in one commit; returns the differences that were shown. Then there is none."""
    wanted, before = plan(db, declaration), db.refresh()
    wanted.commit()
    assert db.refresh() - before == bool(wanted.changes)
    assert plan(db, declaration).changes == ()
    return [
        (each.kind, each.what, each.name, each.before, each.after) for each in wanted.changes if each.what != "column"
    ]


def test_checks_become_those_of_the_file(db: dolmen.Database) -> None:
    assert apply(db, declared(checks={"positive": "n>0", "named": "\"NAME\" <> ''"})) == [
        ("add", "table", "t", None, None),
        ("add", "check", "positive", None, "n > 0"),
        ("add", "check", "named", None, "\"Name\" <> ''"),
    ]
    with pytest.raises(RowError, match="positive"):
        db.table("t").append([{"id": 1, "n": 0}])
    db.table("t").append([{"id": 1, "n": 1}, {"id": 2}])
    assert apply(db, declared()) == [], "a file without checks leaves them"
    assert apply(db, declared(checks={"POSITIVE": "n > 0 AND n < 9e0", "few": "id < 5"})) == [
        ("change", "check", "positive", "n > 0", "n > 0 AND n < 9.0e0"),
        ("remove", "check", "named", "\"Name\" <> ''", None),
        ("add", "check", "few", None, "id < 5"),
    ]
    assert db.table("t").checks == {"POSITIVE": "n > 0 AND n < 9.0e0", "few": "id < 5"}
    assert apply(db, declared(checks={})) == [
        ("remove", "check", "POSITIVE", "n > 0 AND n < 9.0e0", None),
        ("remove", "check", "few", "id < 5", None),
    ]


def test_a_check_follows_columns_that_the_same_file_renames_adds_and_widens(db: dolmen.Database) -> None:
    apply(db, declared(checks={"positive": "n > 0", "named": "Name <> ''"}))
    db.table("t").append([{"id": 1, "n": 3, "Name": "a"}])
    columns = {
        "ID": "BIGINT NOT NULL",
        "m": {"type": "BIGINT", "renamed_from": "n"},
        "name": "VARCHAR",
        "new": {"type": "INTEGER", "default": 7},
    }
    found = apply(db, declared(columns, checks={"positive": "m > 0", "named": "name <> ''", "more": "new > id"}))
    assert found == [
        ("change", "rename", "m", "n", "m"),
        ("add", "check", "more", None, "new > id"),
    ]
    with pytest.raises(RowError, match="more"):
        db.table("t").append([{"id": 7, "m": 1, "Name": "b"}])


def test_rows_that_contradict_a_constraint_are_an_error_and_nothing_is_changed(db: dolmen.Database) -> None:
    apply(db, declared())
    db.table("t").append([{"id": 1, "n": 1}, {"id": 1, "n": -1, "Name": "x"}])
    version = db.refresh()
    for declaration, expected in (
        (declared(checks={"positive": "n > 0"}), "'positive'.*FALSE for 1 row"),
        (declared({**COLUMNS, "Name": "VARCHAR NOT NULL"}), "'Name' is NULL in 1 row"),
        (declared(primary_key="id"), "1 keys .* have several rows each"),
    ):
        with pytest.raises(SchemaError, match=expected):
            plan(db, declaration).commit()
        assert db.refresh() == version


def test_not_null_and_a_primary_key_are_added_to_a_table(db: dolmen.Database) -> None:
    apply(db, declared())
    db.table("t").append([{"id": 1, "n": 1, "Name": "a"}, {"id": 2, "n": 1, "Name": "b"}])
    wanted = plan(db, declared({**COLUMNS, "n": "BIGINT NOT NULL"}, primary_key=["id"]))
    assert [(each.what, each.name, each.before, each.after) for each in wanted.changes] == [
        ("column", "n", "INTEGER", "BIGINT NOT NULL"),
        ("primary_key", "t", None, ["id"]),
    ]
    wanted.commit()
    assert db.table("t").primary_key == ("id",)
    with pytest.raises(RowError, match="'n'"):
        db.table("t").append([{"id": 3, "n": None}])
    with pytest.raises(SchemaError, match="no primary key is declared"):
        plan(db, declared({**COLUMNS, "n": "BIGINT NOT NULL"}))


def test_defaults_are_computed(db: dolmen.Database) -> None:
    columns = {**COLUMNS, "made": {"type": "TIMESTAMPTZ", "default_function": "now()"}}
    assert apply(db, declared(columns))[-1] == ("add", "default", "made", None, "now()")
    columns["key"] = {"type": "VARCHAR", "default_function": "UUID()", "comment": "random"}
    apply(db, declared(columns))
    db.table("t").append([{"id": 1}, {"id": 2}])
    rows = db.table("t").to_arrow().to_pylist()
    assert len({row["key"] for row in rows}) == 2
    assert len({row["made"] for row in rows}) == 1
    columns["key"] = {"type": "VARCHAR", "default": "uuid()"}
    assert apply(db, declared(columns)) == [
        ("change", "default", "key", "uuid()", "uuid()"),
        ("remove", "comment", "key", "random", None),
    ]
    db.table("t").append([{"id": 3}])
    assert "uuid()" in db.table("t").to_arrow()["key"].to_pylist(), "a default is a text, whatever it looks like"


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"checks": {"a": "nope > 1"}}, "table 't', check 'a': .*no column 'nope'"),
        ({"checks": {"a": "n > "}}, "table 't', check 'a'"),
        ({"columns": {"d": "DATE"}, "checks": {"a": "d < current_date"}}, "depend on the time"),
        ({"checks": ["n > 0"]}, "not a mapping"),
        ({"columns": {"n": {"type": "INTEGER", "default_function": "now()"}}}, "TIMESTAMPTZ, TIMESTAMP and DATE"),
        ({"columns": {"n": {"type": "DATE", "default_function": "today()"}}}, r"a value, now\(\) or uuid\(\)"),
        ({"columns": {"n": {"type": "DATE", "default": "2026-01-01", "default_function": "now()"}}}, "one of the two"),
    ],
)
def test_an_error_names_the_line(members: dict[str, Any], expected: str) -> None:
    with pytest.raises((InputError, PredicateError), match=f"line 1: .*{expected}"):
        declared(**members)


def test_a_check_that_somebody_adds_after_the_look_is_a_conflict(db: dolmen.Database) -> None:
    apply(db, declared())
    wanted = plan(db, declared(checks={"positive": "n > 0"}))
    db.table("t").add_check("other", "n > 1")
    with pytest.raises(ConflictError):
        wanted.commit()
    assert db.table("t").checks == {"other": "n > 1"}

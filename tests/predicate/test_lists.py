"""``list_contains`` in predicates: what it means for each list, and what stored deletes hide by it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import PredicateError, UnsupportedFormatError
from dolmen.format import manifest
from dolmen.format.schema import Schema
from dolmen.predicate.ast import Constant, from_json, to_builtins, to_json
from dolmen.predicate.evaluate import check_evaluates, evaluate
from dolmen.predicate.parse import parse
from dolmen.predicate.text import to_sql
from support.second_reader import check_versions

SCHEMA = Schema.from_arrow(
    pa.schema(
        [
            ("id", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("f", pa.list_(pa.float32())),
            ("n", pa.list_(pa.int8())),
            ("s", pa.struct([("tags", pa.list_(pa.string())), ("x", pa.int64())])),
            ("deep", pa.list_(pa.list_(pa.int64()))),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("list_contains(tags, 'a')", [["a", None], [None], [], None, ["A", "b"]], [True, False, False, None, False]),
        ("NOT list_has(tags, 'a')", [["a", None], [None], None], [False, True, None]),
        ("list_contains(f, 0.1)", [[0.1], [0.2, None]], [True, False]),
        ("list_contains(f, 1e-1)", [[0.1], [0.2, None]], [False, False]),
        ("array_has(f, 'nan')", [[1.0, math.nan], [1.0], [None]], [True, False, False]),
        ("list_contains(f, 0)", [[-0.0], [1.0]], [True, False]),
        ("list_contains(n, 300)", [[44], None], [False, None]),
        ("list_contains(n, 1.5)", [[1, 2], [None]], [False, False]),
        ("array_contains(n, '7')", [[7], [8]], [True, False]),
    ],
)
def test_an_element_equals_as_a_column_does(text: str, values: list[Any], expected: list[Any]) -> None:
    p = parse(text, SCHEMA, now_us=0)
    check_evaluates(p)
    assert from_json(to_json(p)) == p == parse(to_sql(p, SCHEMA), SCHEMA, now_us=0)
    name = text[text.index("(") + 1 : text.index(",")]
    (field,) = (field for field in SCHEMA.fields if field.name == name)
    array = pa.array(values, field.arrow_type)
    for own in (
        array,
        pa.chunked_array([array.slice(0, 1), array.slice(1)]),
        array.cast(pa.large_list(array.type.value_type)),
    ):
        assert evaluate(p, {field.id: own}, len(values)).to_pylist() == expected
    assert evaluate(p, {field.id: array.slice(1)}, len(values) - 1).to_pylist() == expected[1:]
    assert evaluate(p, {field.id: pa.nulls(2)}, 2).to_pylist() == [None, None], "a file without the column"


def test_elements_of_lists_that_are_null_are_not_found() -> None:
    array = pa.ListArray.from_arrays([0, 1, 2], pa.array(["a", "a"]), mask=pa.array([True, False]))
    assert evaluate(parse("list_contains(tags, 'a')", SCHEMA, now_us=0), {2: array}, 2).to_pylist() == [None, True]


def test_a_condition_is_shown_as_it_is_written() -> None:
    for text in ("NOT list_contains(tags, 'a')", "list_contains(s.tags, 'a') OR id = 1"):
        assert to_sql(parse(text, SCHEMA, now_us=0), SCHEMA) == text


def test_null_is_in_no_list() -> None:
    assert parse("list_contains(tags, NULL)", SCHEMA, now_us=0) == Constant(None)
    assert parse(("list_contains(tags, ?)", [None]), SCHEMA, now_us=0) == Constant(None)
    p = parse(("list_contains(tags, ?)", ["it's"]), SCHEMA, now_us=0)
    assert evaluate(p, {2: pa.array([["it's"]])}, 1).to_pylist() == [True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("list_contains(id, 1)", "lists of plain values, and column 'id' is int64"),
        ("list_contains(deep, 1)", "lists of plain values, and column 'deep' is"),
        ("list_contains(m, 'a')", "lists of plain values, and column 'm' is"),
        ("list_contains(s, 'a')", "lists of plain values, and column 's' is"),
        ("list_contains(tag, 'a')", "no column 'tag'.*did you mean 'tags'"),
        ("list_contains(tags, 1)", "can't compare column 'tags' .string. with a number"),
        ("list_contains(tags, lower(s.tags))", "nested"),
        ("list_contains(tags, id)", "not supported"),
        ("list_contains(lower(tags), 'a')", "for columns that are lists"),
        ("tags = 'a'", "of lists, predicates use list_contains alone"),
        ("length(list_contains(tags, 'a')) = 1", "length is for strings, not for bool"),
    ],
)
def test_what_is_no_list_or_no_value_of_it_is_refused(text: str, expected: str) -> None:
    with pytest.raises(PredicateError, match=expected):
        parse(text, SCHEMA, now_us=0)


def test_what_no_writer_stores_is_not_read() -> None:
    stored = to_builtins(parse("list_contains(s.tags, 'a')", SCHEMA, now_us=0))
    call = stored["left"]
    assert call["args"][0] == {"kind": "list", "id": 9, "type": "string", "inside": [8]}
    a_list, literal = call["args"]
    for changed in (
        a_list,
        {**call, "type": "string"},
        {**call, "function": "coalesce"},
        {**call, "args": [literal, literal]},
        {**call, "args": [a_list, a_list]},
        {**call, "args": [a_list]},
        {**call, "args": [{**a_list, "type": "int64"}, literal]},
        {**call, "args": [{**a_list, "kind": "column"}, literal]},
    ):
        with pytest.raises(PredicateError, match="predicate"):
            from_json(json.dumps({**stored, "left": changed}))


def _open(directory: Path) -> tuple[dolmen.Database, dolmen.Table]:
    db = dolmen.open(str(directory))
    table = db.create_table("t", pa.schema([field for field in SCHEMA.arrow if field.name in ("id", "tags", "n", "s")]))
    rows = {
        "id": [1, 2, 3, 4],
        "tags": [["a", None], ["b"], None, []],
        "n": [[1], [2, 3], [None], None],
        "s": [{"tags": ["x"]}, None, {"tags": None}, {"tags": ["y", "x"]}],
    }
    table.append(pa.table(rows, pa.schema(table.schema)))
    return db, table


def _ids(table: Any, where: Any = None) -> list[int]:
    return sorted(table.scan(columns=["id"], where=where).to_arrow()["id"].to_pylist())


def test_a_reader_that_does_not_know_lists_refuses_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, table = _open(tmp_path)
    assert table.delete("list_contains(tags, 'z')").mode == "tombstone"
    assert context_of(db).head.refresh().manifest.features == ("predicate-expressions", "predicate-lists")
    monkeypatch.setattr(manifest, "FEATURES", manifest.FEATURES - {"predicate-lists"})
    with pytest.raises(UnsupportedFormatError, match="predicate-lists"):
        dolmen.open(str(tmp_path), runtime=Runtime()).table("t").count()


@pytest.mark.parametrize("change", ["none", "rename", "drop", "widen", "compact"])
def test_a_delete_hides_the_same_rows_whatever_becomes_of_the_list(change: str, tmp_path: Path) -> None:
    db, table = _open(tmp_path)
    table.delete("list_contains(n, 3) OR list_contains(s.tags, 'y')")
    assert _ids(table) == [1, 3]
    match change:
        case "rename":
            table.rename_column("n", "m")
            table.rename_column("s.tags", "words")
        case "drop":
            table.drop_column("n")
            table.drop_column("s")
        case "widen":
            table.widen_column("n.element", pa.int64())
        case "compact":
            db.compact()
    assert _ids(table) == [1, 3]
    check_versions(db, lambda key: (tmp_path / key).read_bytes())
    db.resolve()
    assert _ids(table) == [1, 3]


def test_every_statement_takes_lists(tmp_path: Path) -> None:
    db, table = _open(tmp_path)
    assert _ids(table, "list_contains(tags, 'a') OR list_contains(s.tags, 'x')") == [1, 4]
    assert table.count("NOT list_contains(tags, 'a')") == 2
    table.update({"id": 20}, where="list_contains(tags, 'b')")
    assert _ids(table) == [1, 3, 4, 20]
    before = db.version
    table.erase("list_contains(s.tags, 'y')")
    assert _ids(table) == _ids(db.at(before).table("t")) == [1, 3, 20]
    table.erase("list_contains(tags, 'nobody')")
    check_versions(db, lambda key: (tmp_path / key).read_bytes())
    assert db.sql("DELETE FROM t WHERE list_contains(n, 1)").mode == "tombstone"
    assert _ids(table) == [3, 20]
    table.add_check("no_spam", "NOT list_contains(tags, 'spam')")
    with pytest.raises(dolmen.errors.RowError, match="no_spam"):
        table.append({"id": [5], "tags": [["spam"]]})
    table.append({"id": [5], "tags": [["ham", None]]})
    assert _ids(table) == [3, 5, 20]

"""Fields of structs in predicates: the names that lead to them, what files give for them, and what is stored."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import PredicateError, RowError, UnsupportedFormatError
from dolmen.format import manifest
from dolmen.format.column_history import with_field_ids
from dolmen.format.schema import Schema
from dolmen.predicate.ast import all_columns, columns, from_json, listed_tuples, to_builtins, to_json
from dolmen.predicate.evaluate import check_evaluates, evaluate
from dolmen.predicate.parse import parse
from dolmen.predicate.text import to_sql
from support.second_reader import check_versions

GEO = pa.struct([("lat", pa.float32()), ("Lat lon", pa.int8()), ("ok", pa.bool_())])
ADDRESS = pa.struct(
    [("zip", pa.string()), ("geo", GEO), ("geo.lat", pa.int32()), ("tags", pa.list_(GEO)), ("order", pa.date32())]
)
TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("address", ADDRESS),
        ("a.b", pa.int64()),
        ("a", pa.struct([("b", pa.int64()), ("c", pa.int64())])),
        ("My col", pa.struct([('it"s', pa.int64()), ("x", pa.int64())])),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("c.d", pa.int64()),
    ]
)
SCHEMA = Schema.from_arrow(TYPES)
PATHS = {
    "address.zip": ("address", "zip"),
    "ADDRESS.Zip": ("address", "zip"),
    '"address"."zip"': ("address", "zip"),
    "address.geo.lat": ("address", "geo", "lat"),
    'address.geo."Lat lon"': ("address", "geo", "Lat lon"),
    'address."geo.lat"': ("address", "geo.lat"),
    'address."order"': ("address", "order"),
    "address.order": ("address", "order"),
    '"my COL"."IT""S"': ("My col", 'it"s'),
    '"My col".x': ("My col", "x"),
    '"a"."b"': ("a", "b"),
    "a.c": ("a", "c"),
    '"a.b"': ("a.b",),
    '"c.d"': ("c.d",),
}
"""A name in SQL, and what it means."""
KEYS = {
    "address.zip": ("address", "zip"),
    "Address.ZIP": ("address", "zip"),
    "address.geo.ok": ("address", "geo", "ok"),
    "a.b": ("a.b",),
    '"a"."b"': ("a", "b"),
    '"a".b': ("a", "b"),
    "c.d": ("c.d",),
    "My col.x": ("My col", "x"),
    'My col.it"s': ("My col", 'it"s'),
    'address."geo.lat"': ("address", "geo.lat"),
    'address.geo."lat"': ("address", "geo", "lat"),
}
"""A key of a mapping, and what it means."""


def path_of(p: Any) -> tuple[str, ...]:
    """The names that lead to the only column of a predicate."""
    (column,) = all_columns(p)
    kind, names = pa.struct(list(SCHEMA.arrow)), []
    for id_ in (column.column_id, *column.path):
        (field,) = [field for field in kind if int(field.metadata[b"PARQUET:field_id"]) == id_]
        names.append(field.name)
        kind = field.type
    assert str(kind) == column.type
    return tuple(names)


@pytest.mark.parametrize("name", PATHS)
def test_a_path_names_a_field_in_any_case_and_quotes(name: str) -> None:
    p = parse(f"{name} IS NOT NULL", SCHEMA, now_us=0)
    assert path_of(p) == PATHS[name]
    assert from_json(to_json(p)) == p == parse(to_sql(p, SCHEMA), SCHEMA, now_us=0)
    assert listed_tuples(p) is None
    check_evaluates(p)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_a_mapping_names_a_field(key: str) -> None:
    assert path_of(parse({key: {"is not": None}}, SCHEMA, now_us=0)) == KEYS[key]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b = 1", r'a\.b could be column "a\.b" or field "a"\."b": write it with the quotes'),
        ("c.d = 1", r"""the name of column 'c\.d' has a dot: write it in double quotes, "c\.d\""""),
        ("address = 'x'", "column 'address' is nested: name one of its fields, such as address.zip"),
        ("address.geo IS NULL", "column 'address.geo' is nested: name one of its fields, such as address.geo.lat"),
        ("address.tags.ok", "'address.tags' is nested: it is a list, and fields inside lists and maps cannot be used"),
        ("address.tags IS NULL", "'address.tags' is nested: of lists, predicates use list_contains alone"),
        ("m.value = 1", "'m' is nested: it is a map"),
        ("list_contains(address.tags, 1)", "list_contains is for lists of plain values, and column 'address.tags' is"),
        ("address.zpi = '1'", "column 'address' has no field 'zpi'; did you mean 'zip'|there are: zip, geo"),
        ("addres.zip = '1'", "no column 'addres'.*did you mean 'address'"),
        ("id.zip = '1'", "column 'id' is int64, which has no fields"),
        ("people.id = 1", "no column 'people'; write the column's name alone, id"),
        ("address['zip'] = '1'", "write the field of a struct as address.zip"),
        ("address.zip.x = 1", "column 'address.zip' is string, which has no fields"),
        ("address.* = 1", "not supported"),
        (".".join(["address"] * 3000) + " = 1", "'address' has no field 'address'|too deeply"),
        ("address.f(1) = 1", "not supported"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_with_advice(text: str, expected: str) -> None:
    with pytest.raises(PredicateError, match=expected):
        parse(text, SCHEMA, now_us=0)


def test_names_that_differ_in_case_alone_need_quotes() -> None:
    field = pa.struct([("zip", pa.int64())])
    schema = Schema.from_arrow(pa.schema([("s", field)]))
    [old] = schema.fields
    assert isinstance(old.type, dict)
    again = {**old.type["struct"][0], "id": 9, "name": "ZIP"}
    both = Schema((type(old)(1, "s", {"struct": [old.type["struct"][0], again]}),), 10)
    for name, id_ in (('s."zip"', 2), ('s."ZIP"', 9)):
        p = parse(f"{name} = 1", both, now_us=0)
        assert [column.id for column in all_columns(p)] == [id_]
        assert parse(to_sql(p, both), both, now_us=0) == p
    with pytest.raises(PredicateError, match="could be any of zip, ZIP"):
        parse("s.zip = 1", both, now_us=0)


def _struct(values: list[Any]) -> pa.Array:
    return pa.array(values, ADDRESS)


def test_a_field_is_null_where_its_struct_is_and_where_the_file_lacks_it() -> None:
    values = [
        {"zip": "1", "geo": {"lat": 0.1, "ok": True}},
        None,
        {"zip": None, "geo": None},
        {"geo": {"lat": math.nan}},
    ]
    array = with_field_ids(_struct(values), SCHEMA.by_id[2].arrow_type)
    for text, expected in {
        "address.zip = '1'": [True, None, None, None],
        "address.zip IS NULL": [False, True, True, True],
        "address.geo.lat = 0.1": [True, None, None, False],
        "address.geo.lat > 5": [False, None, None, True],
        "address.geo.ok": [True, None, None, None],
        "address.geo.ok IS NOT TRUE": [False, True, True, True],
        "address.\"geo.lat\" + 1 = 1 OR address.zip = '1'": [True, None, None, None],
    }.items():
        p = parse(text, SCHEMA, now_us=0)
        assert columns(p) == {2}
        assert evaluate(p, {2: array}, 4).to_pylist() == expected, text
        assert evaluate(p, {2: array.slice(1)}, 3).to_pylist() == expected[1:], text
        missing = evaluate(p, {2: pa.nulls(1)}, 1).to_pylist()
        assert missing == evaluate(p, {2: array.slice(1, 1)}, 1).to_pylist(), "a file without the column"
    other = pa.array([{"x": "1"}], pa.struct([pa.field("x", pa.string(), metadata={b"PARQUET:field_id": b"99"})]))
    assert evaluate(parse("address.zip IS NULL", SCHEMA, now_us=0), {2: other}, 1).to_pylist() == [True]


def test_what_no_writer_stores_is_not_read() -> None:
    stored = to_builtins(parse("address.zip = '1'", SCHEMA, now_us=0))
    assert stored["left"] == {"kind": "field", "id": 3, "type": "string", "inside": [2]}
    for change in ({"inside": []}, {"inside": None}, {"type": "struct"}, {"kind": "element"}, {"id": "3"}):
        with pytest.raises(PredicateError, match="predicate"):
            from_json(json.dumps({**stored, "left": {**stored["left"], **change}}))


def _append(table: Any, ids: list[int], structs: list[dict[str, Any] | None], *, where: str | None = None) -> None:
    schema = pa.schema(table.schema)
    rows = pa.table({"id": ids, "s": pa.array(structs, schema.field("s").type)})
    table.append(rows) if where is None else table.overwrite(rows, where=where)


def _open(directory: Path) -> tuple[dolmen.Database, dolmen.Table]:
    db = dolmen.open(str(directory))
    kind = pa.struct([("f", pa.float32()), ("n", pa.int8()), ("t", pa.string())])
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("s", kind)]))
    first, second = {"f": 0.1, "n": 1, "t": "a"}, {"f": math.nan, "n": None, "t": "b"}
    fourth, fifth = {"f": -0.0, "n": 3, "t": None}, {"f": None, "n": 5, "t": ""}
    _append(table, [1, 2, 3, 4, 5], [first, second, None, fourth, fifth])
    return db, table


def _ids(table: Any, where: Any = None) -> list[int]:
    return sorted(table.scan(columns=["id"], where=where).to_arrow()["id"].to_pylist())


def test_a_reader_that_does_not_know_fields_refuses_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, table = _open(tmp_path)
    table.delete("id = 9")
    assert context_of(db).head.refresh().manifest.features == ()
    table.delete("lower(s.t) = 'a'")
    assert context_of(db).head.refresh().manifest.features == ("predicate-expressions", "predicate-fields")
    monkeypatch.setattr(manifest, "FEATURES", manifest.FEATURES - {"predicate-fields"})
    with pytest.raises(UnsupportedFormatError, match="predicate-fields"):
        dolmen.open(str(tmp_path), runtime=Runtime()).table("t").count()


@pytest.mark.parametrize("change", ["rename", "drop", "widen", "drop column", "rename column", "add", "compact"])
def test_a_delete_hides_the_same_rows_whatever_becomes_of_the_field(change: str, tmp_path: Path) -> None:
    db, table = _open(tmp_path)
    table.delete("s.f = 0.1 OR s.n = 5 OR s.f = 'nan'")
    assert _ids(table) == [3, 4]
    match change:
        case "rename":
            table.rename_column("s.f", "g")
            table.rename_column("s.n", "f")
        case "drop":
            table.drop_column("s.f")
            table.drop_column("s.n")
            table.add_column("s.f", pa.float64())
        case "widen":
            table.widen_column("s.f", pa.float64())
            table.widen_column("s.n", pa.int64())
        case "drop column":
            table.drop_column("s")
        case "rename column":
            table.rename_column("s", "other")
        case "add":
            table.add_column("s.extra", pa.string())
            _append(table, [6], [{"f": 0.1, "n": 5, "t": None, "extra": "e"}])
            assert _ids(table, "s.extra IS NULL") == [3, 4]
            table.delete("s.extra = 'e'")
        case "compact":
            db.compact()
    assert _ids(table) == [3, 4]
    check_versions(db, lambda key: (tmp_path / key).read_bytes())
    db.resolve()
    assert _ids(table) == [3, 4]


def test_every_statement_takes_fields(tmp_path: Path) -> None:
    db, table = _open(tmp_path)
    assert _ids(table, "s.n >= 3") == [4, 5]
    assert table.count({"s.t": ["a", "b"]}) == 2
    table.update({"id": 40}, where="s.n = 3")
    assert _ids(table) == [1, 2, 3, 5, 40]
    _append(table, [50], [{"f": 1.0, "n": 5, "t": "new"}], where="s.n = 5")
    assert _ids(table) == [1, 2, 3, 40, 50]
    with pytest.raises(RowError, match="not one of the rows that are overwritten"):
        _append(table, [51], [{"f": 1.0, "n": 6, "t": "new"}], where="s.n = 5")
    before = db.version
    table.erase("s.t = 'new'")
    assert _ids(table) == _ids(db.at(before).table("t")) == [1, 2, 3, 40]
    assert db.sql("DELETE FROM t WHERE t.s.t = 'a' OR s.t = 'x'") is not None
    assert _ids(table) == [2, 3, 40]
    db.sql("UPDATE t SET id = 20 WHERE s.t = 'b'")
    assert _ids(table) == [3, 20, 40]
    assert [row["id"] for row in db.sql("SELECT id FROM t WHERE s.n = 3").to_arrow().to_pylist()] == [40]


def test_statistics_of_fields_exclude_row_groups(tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path))
    kind = pa.struct([("in", pa.struct([("n", pa.int64()), ("t", pa.string())])), ("x", pa.date32())])
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("s", kind)]))
    rows = 300_000
    numbers = pa.array(range(rows), pa.int64())
    inner = pa.StructArray.from_arrays([numbers, numbers.cast(pa.string())], names=["n", "t"])
    days = pa.array([number // 1000 for number in range(rows)], pa.int32()).cast(pa.date32())
    table.append(pa.table({"id": numbers, "s": pa.StructArray.from_arrays([inner, days], names=["in", "x"])}))
    for where, count in {"s.in.n = 5": 1, "s.in.n IS NULL": 0, "s.x = '1970-01-01'": 1000, "s.in.n < 0": 0}.items():
        scan = table.scan(where=where)
        assert scan.count() == count
        explained = scan.explain()
        assert explained.row_groups_read < explained.row_groups, where


def test_adopted_files_have_fields_by_their_names(tmp_path: Path) -> None:
    data = pa.table({"id": [1, 2, 3], "s": [{"zip": "1", "in": {"at": 5}}, None, {"zip": "3", "in": None}]})
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.parquet").write_bytes(_parquet(data))
    db = dolmen.open(str(tmp_path / "db"))
    db.adopt("t", str(tmp_path / "data"))
    table = db.table("t")
    assert _ids(table, "s.zip = '1'") == [1]
    assert _ids(table, "s.in.at IS NULL") == [2, 3]
    table.delete("s.zip = '3' OR s.in.at = 5")
    assert _ids(table) == [2]
    table.rename_column("s.zip", "post")
    assert _ids(table) == [2]
    check_versions(db, lambda key: Path(tmp_path / "db" / key).read_bytes())


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()

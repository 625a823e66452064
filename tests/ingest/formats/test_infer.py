"""Types are inferred from every row of a file, and lose nothing."""

from __future__ import annotations

import io
import json
import os
import random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from dolmen.errors import LimitError
from dolmen.ingest.formats.formats import SourceFile, detect, infer, read
from dolmen.ingest.formats.infer import NOTHING, TEXT, TextShape
from dolmen.ingest.formats.json.json_types import infer_columns, join, node_of_array, node_of_values
from dolmen.ingest.formats.json.json_values import parse_line, parse_objects
from dolmen.ingest.formats.source_file import ReadOptions

US, ZONED, BIG = pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(38, 0)


def _csv_type(cells: list[str], block_bytes: int = 1 << 20) -> pa.DataType:
    data = ("n,c\n" + "".join(f"1,{cell}\n" for cell in cells)).encode()
    return (
        infer(SourceFile(lambda: io.BytesIO(data), detect("t.csv"), "t.csv", block_bytes=block_bytes)).field("c").type
    )


def _json_schema(rows: list[Any], block_bytes: int = 1 << 20) -> pa.Schema:
    data = b"".join((row if isinstance(row, str) else json.dumps(row)).encode() + b"\n" for row in rows)
    return infer(SourceFile(lambda: io.BytesIO(data), detect("t.jsonl"), "t.jsonl", block_bytes=block_bytes))


CSV_TYPES = [
    (["1", "", "-5"], pa.int64()),
    (["1", "12.5"], pa.float64()),
    (["1", "abc"], pa.string()),
    (["", ""], pa.string()),
    (['""', ""], pa.string()),
    (["1", '""', " 2 "], pa.int64()),
    (["007", "8"], pa.string()),
    (["-07"], pa.string()),
    (["0", "-0", "0.5"], pa.float64()),
    (["00.5"], pa.string()),
    (["+49", "1"], pa.string()),
    (["0x1F"], pa.string()),
    (["1_000"], pa.string()),
    (["9223372036854775807"], pa.int64()),
    (["9223372036854775808", "0"], pa.uint64()),
    (["18446744073709551615"], pa.uint64()),
    (["9223372036854775808", "-1"], BIG),
    (["18446744073709551616"], BIG),
    (["-99999999999999999999999999999999999999"], BIG),
    (["100000000000000000000000000000000000000"], pa.string()),
    (["9007199254740992", "0.5"], pa.float64()),
    (["9007199254740993", "0.5"], pa.string()),
    (["0.5", "18446744073709551616"], pa.string()),
    (["1e3"], pa.float64()),
    (["1", "nan"], pa.float64()),
    (["1", "1e999"], pa.string()),
    (["true", "FALSE", ""], pa.bool_()),
    (["true", "1"], pa.string()),
    (["0", "1"], pa.int64()),
    (["2024-02-29", ""], pa.date32()),
    (["2024-02-30"], pa.string()),
    (["2024-02-29", "1"], pa.string()),
    (["2024-02-29", "2024-02-29T10:00:00"], US),
    (["2024-02-29 10:00:00.123456"], US),
    (["2024-02-29 10:00:00.123456000"], US),
    (["2024-02-29 10:00:00.123456789"], pa.string()),
    (["2024-02-29T10:00:00Z", "2024-02-29T10:00:00+02:00"], ZONED),
    (["2024-02-29T10:00:00Z", "2024-02-29T10:00:00"], pa.string()),
    (["2024-02-29", "2024-02-29T10:00:00Z"], pa.string()),
    (["10:30:00"], pa.string()),
    (["0", "-0"], pa.float64()),
    (["-0", "9007199254740993"], pa.string()),
    (["1.50", "2.25"], pa.float64()),
    (["1.0", "2.25"], pa.float64()),
    (["1.9", "1.10"], pa.string()),
    (["1", "1.10"], pa.string()),
    (["1.50e3", "2.25E-3"], pa.float64()),
    (["1."], pa.string()),
    (["0.30000000000000004"], pa.float64()),
    (["0.1234567890123456789", "1.5"], pa.string()),
    (["1e-400"], pa.string()),
    (["nan", "Inf"], pa.string()),
    (["2.5", "-Infinity"], pa.float64()),
    (["1", "-nan"], pa.string()),
    (["\u0663"], pa.string()),
    (["2024-02-29T23:59:60"], pa.string()),
    (["2024-02-29 24:00"], pa.string()),
    (["10000-01-01"], pa.string()),
]


@pytest.mark.parametrize(("cells", "expected"), CSV_TYPES, ids=str)
def test_the_narrowest_type_that_holds_every_cell_is_chosen(cells: list[str], expected: pa.DataType) -> None:
    for order in (cells, cells[::-1]):
        for block_bytes in (1, 1 << 20):
            assert _csv_type(order, block_bytes) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "expected"), [("12.5", pa.float64()), ("abc", pa.string()), ("", pa.int64()), ("2024-01-01", pa.string())]
)
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_surprise_in_the_last_line_counts(name: str, last: str, expected: pa.DataType) -> None:
    if name == "t.csv":
        data = b"n,c\n" + b"1,7\n" * 100_000 + f"1,{last}\n".encode()
    else:
        value = last if last == "12.5" else json.dumps(last or None)
        data = b'{"n": 1, "c": 7}\n' * 100_000 + f'{{"n": 1, "c": {value}}}\n'.encode()
    table = read(SourceFile(lambda: io.BytesIO(data), detect(name), name, block_bytes=1 << 16), None).read_all()
    assert table.schema.field("c").type == expected
    assert table.num_rows == 100_001
    kept = {pa.float64(): 12.5, pa.int64(): None, pa.string(): last}
    assert table["c"][-1].as_py() == kept[expected]


JSON_TYPES = [
    (['{"c": 1}', '{"c": 2.5}'], pa.float64()),
    (['{"c": 1}', '{"c": "x"}'], pa.string()),
    (['{"c": 1}', '{"c": true}'], pa.string()),
    (['{"c": null}', "{}"], pa.string()),
    (['{"c": null}', '{"c": false}'], pa.bool_()),
    (['{"c": "5"}', '{"c": "6"}'], pa.string()),
    (['{"c": "true"}'], pa.string()),
    (['{"c": 9223372036854775808}'], pa.uint64()),
    (['{"c": 9223372036854775808}', '{"c": -1}'], BIG),
    (['{"c": 9007199254740993}', '{"c": 0.5}'], pa.string()),
    (['{"c": "2024-01-01"}', '{"c": null}'], pa.date32()),
    (['{"c": "2024-01-01"}', '{"c": "2024-01-01T10:00:00"}'], US),
    (['{"c": "2024-01-01T10:00:00Z"}'], ZONED),
    (['{"c": "2024-01-01T10:00:00Z"}', '{"c": "x"}'], pa.string()),
    (['{"c": []}', '{"c": [1]}', '{"c": [2.5, null]}'], pa.list_(pa.float64())),
    (['{"c": []}'], pa.list_(pa.string())),
    (['{"c": [[1], []]}'], pa.list_(pa.list_(pa.int64()))),
    (['{"c": [1, "x"]}'], pa.string()),
    (['{"c": {"x": 1}}', '{"c": {"y": ["2024-01-01"]}}'], pa.struct([("x", pa.int64()), ("y", pa.list_(pa.date32()))])),
    (['{"c": {"x": 1}}', '{"c": {"x": "a"}}'], pa.string()),
    (['{"c": {"x": 1}}', '{"c": [1]}'], pa.string()),
    (['{"c": {}}'], pa.string()),
    (['{"c": {}}', '{"c": {"x": true}}'], pa.struct([("x", pa.bool_())])),
    (['{"c": 0}', '{"c": -0}'], pa.float64()),
    (['{"c": 1.9}', '{"c": 1.10}'], pa.float64()),
    (['{"c": 1.5}', '{"c": 0.1234567890123456789}'], pa.string()),
    (['{"c": {"x": [1e-400]}}'], pa.string()),
    (['{"c": "0.1234567890123456789"}', '{"c": "1e-400"}'], pa.string()),
]


@pytest.mark.parametrize(("rows", "expected"), JSON_TYPES, ids=str)
def test_json_values_of_all_lines_are_joined(rows: list[str], expected: pa.DataType) -> None:
    for order in (rows, rows[::-1]) if not pa.types.is_struct(expected) else (rows,):
        for block_bytes in (1, 1 << 20):
            assert _json_schema(order, block_bytes).field("c").type == expected


def test_values_of_many_kinds_end_as_their_json_text() -> None:
    data = b'{"c": 1.50}\n{"c": "x"}\n{"c": {"a": [1, null]}}\n{"c": true}\n{"c": null}\n{"c": "7"}\n'
    table = read(SourceFile(lambda: io.BytesIO(data), detect("t.jsonl"), "t.jsonl"), None).read_all()
    assert table["c"].to_pylist() == ["1.50", "x", '{"a":[1,null]}', "true", None, "7"]


def test_columns_keep_the_order_of_their_first_appearance() -> None:
    rows = [
        {"z": "2024-01-01", "a": {"y": 1, "b": "x"}},
        {"m": 1, "z": None},
        {"a": {"c": "2024-01-01", "y": 2}, "k": "x"},
    ]
    for block_bytes in (1, 1 << 20):
        schema = _json_schema(rows, block_bytes)
        assert schema.names == ["z", "a", "m", "k"]
        assert [field.name for field in schema.field("a").type] == ["y", "b", "c"]


SHAPES = [
    NOTHING,
    TEXT,
    TextShape("bool"),
    TextShape("integer", -5, 0),
    TextShape("integer", 0, 2**70),
    TextShape("float", 0, 2**60),
    TextShape("special"),
    TextShape("integer", decimals=0),
    TextShape("float", decimals=2, padded=True),
    TextShape("float", decimals=1),
]
SHAPES += [TextShape("float"), TextShape("date"), TextShape("timestamp"), TextShape("zoned")]


def test_shapes_join_in_any_order_and_grouping() -> None:
    for a in SHAPES:
        assert a.join(a) == a
        assert a.join(NOTHING) == a
        for b in SHAPES:
            assert a.join(b) == b.join(a)
            for c in SHAPES:
                assert a.join(b).join(c) == a.join(b.join(c))
                assert join(join(a, b), c) == join(a, join(b, c))


def _seeded() -> random.Random:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    return random.Random(seed)


CELLS = ["", "1", "-7", "2.5", "1e3", "abc", "true", "2024-01-01", "2024-01-01 10:00:00", "2024-01-01T10:00:00Z", "007"]
CELLS += [
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551616",
    "nan",
    '""',
    " 3 ",
    "1" + "0" * 38,
    "1e999",
]


@pytest.mark.slow
def test_the_inferred_type_holds_every_cell_and_does_not_depend_on_blocks() -> None:
    chance = _seeded()
    for _ in range(5000 if os.environ.get("DOLMEN_LONG") else 100):
        cells = chance.choices(chance.sample(CELLS, k=chance.randint(1, 4)), k=chance.randint(1, 12))
        expected = _csv_type(cells)
        assert _csv_type(cells, chance.choice([1, 9, 30])) == expected
        data = ("n,c\n" + "".join(f"1,{cell}\n" for cell in cells)).encode()
        table = read(SourceFile(lambda data=data: io.BytesIO(data), detect("t.csv"), "t.csv"), None).read_all()
        if pa.types.is_string(expected):
            assert table["c"].to_pylist() == [{"": None, '""': ""}.get(cell, cell) for cell in cells]
        if pa.types.is_integer(expected) or pa.types.is_decimal(expected):
            assert table["c"].to_pylist() == [int(cell) if cell.strip('" ') else None for cell in cells]


def _random_value(chance: random.Random, depth: int) -> Any:
    kind = chance.choices(["leaf", "list", "object"], [6, depth, depth])[0]
    if kind == "list":
        return [_random_value(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if kind == "object":
        return {name: _random_value(chance, depth - 1) for name in chance.sample("xyz", chance.randint(0, 3))}
    leaves = [
        None,
        1,
        -2,
        2.5,
        2**53 + 1,
        2**63,
        2**70,
        True,
        "x",
        "2024-01-01",
        "2024-01-01T10:00:00",
        "2024-01-01T10:00:00Z",
        "",
    ]
    return chance.choice(leaves)  # fmt: skip


@pytest.mark.slow
def test_random_json_is_inferred_alike_in_any_blocks_and_read_without_loss() -> None:
    chance = _seeded()
    for _ in range(4000 if os.environ.get("DOLMEN_LONG") else 100):
        base = [_random_value(chance, 2) for _ in range(chance.randint(1, 3))]
        rows = [{"n": 1, "c": value} for value in chance.choices(base, k=chance.randint(1, 8))]
        expected = _json_schema(rows)
        assert _json_schema(rows, chance.choice([1, 40, 90])) == expected
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        table = read(SourceFile(lambda data=data: io.BytesIO(data), detect("t.jsonl"), "t.jsonl"), None).read_all()
        if pa.types.is_string(expected.field("c").type):
            found = [row["c"] for row in rows]
            texts = [v if v is None or isinstance(v, str) else json.dumps(v, separators=(",", ":")) for v in found]
            assert table["c"].to_pylist() == texts


def test_arrays_and_rows_tell_the_same_of_json() -> None:
    lines = [b'{"a": 1, "b": {"x": [1.5, null], "y": null}}', b'{"a": -7, "b": {"x": []}, "c": true}', b'{"c": null}']
    table = parse_objects(b"\n".join(lines), None, "infer")
    rows = [parse_line(line) for line in lines]
    for name in table.column_names:
        assert node_of_array(table[name].combine_chunks()) == node_of_values([row.get(name) for row in rows])


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_a_typed_column_that_holds_nothing_is_nullable_text(name: str) -> None:
    nothing = pa.nulls(1)
    schema = pa.schema([("n", pa.int64()), ("c", pa.null()), ("s", pa.struct({"x": pa.null()}))])
    table = pa.table([[1], nothing, pa.array([{"x": None}], schema.field("s").type)], schema=schema)
    data = io.BytesIO()
    if name == "t.parquet":
        table = table.append_column("l", pa.array([[None]], pa.list_(pa.null())))
        parquet.write_table(table, data)
    else:
        with ipc.new_file(data, table.schema) as writer:
            writer.write(table)
    made = read(SourceFile(lambda: io.BytesIO(data.getvalue()), detect(name), name), None).read_all()
    assert made.schema.field("c") == pa.field("c", pa.string())
    assert made.schema.field("s").type == pa.struct({"x": pa.string()})
    assert made.to_pylist() == table.to_pylist()


def _columns(data: bytes, **options: Any) -> tuple[pa.Schema, tuple[str, ...]]:
    return infer_columns(SourceFile(lambda: io.BytesIO(data), detect("t.jsonl"), "t.jsonl", ReadOptions(**options)))


def test_objects_with_very_many_keys_are_json_text_and_the_notes_say_so() -> None:
    wide = {f"k{number}": {"n": number} for number in range(2000)}
    rows = [{"id": 1, "counts": wide, "s": {"a": 1}}, {"id": 2, "counts": {"more": {}}, "s": {"b": "x"}}]
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    schema, notes = _columns(data, max_columns=1000)
    assert schema.names == ["id", "counts", "s"]
    assert schema.types == [pa.int64(), pa.string(), pa.struct([("a", pa.int64()), ("b", pa.string())])]
    assert len(notes) == 1
    assert "'counts'" in notes[0]
    source = SourceFile(lambda: io.BytesIO(data), detect("t.jsonl"), "t.jsonl", ReadOptions(max_columns=1000))
    assert [json.loads(text) for text in read(source, schema).read_all()["counts"].to_pylist()] == [wide, {"more": {}}]
    with pytest.raises(LimitError):
        infer(source)
    with pytest.raises(LimitError):
        _columns("".join(f'{{"k{number}": 1}}\n' for number in range(2000)).encode(), max_columns=1000)


def test_columns_that_have_no_common_type_are_json_text_and_the_notes_say_so() -> None:
    schema, notes = _columns(b'{"a":1,"b":{},"c":[1,"x"],"d":null}\n{"a":1.5,"e":[{"y":[null]}]}\n{"e":[{"z":1}]}\n')
    kinds = [pa.float64(), *[pa.string()] * 3, pa.list_(pa.struct([("y", pa.list_(pa.string())), ("z", pa.int64())]))]
    assert (schema.names, schema.types) == (["a", "b", "c", "d", "e"], kinds)
    assert [note.split("'")[1] for note in notes] == ["b", "c"]

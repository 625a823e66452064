"""Files of very many columns, or of very deep types, are refused before they take memory."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

import dolmen
from dolmen.errors import Error, InputError, LimitError, SchemaError
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect, infer, read, survey
from dolmen.transactions.column_types import parse_columns
from support.local_once import local_once

MOST = 10_000


def _csv(names: list[str]) -> bytes:
    return (",".join(names) + "\n" + ",".join("1" for _ in names) + "\n").encode()


def _jsonl(names: list[str]) -> bytes:
    return ("{" + ",".join(f'"{name}":1' for name in names) + "}\n").encode()


def _nested_jsonl(names: list[str]) -> bytes:
    return b'{"a":[{"b":' + _jsonl(names[2:]).rstrip() + b"}]}\n"


def _jsonl_of_other_keys(names: list[str]) -> bytes:
    return b"".join(_jsonl([name]) for name in names)


def _table(names: list[str]) -> pa.Table:
    return pa.Table.from_arrays([pa.array([1])] * len(names), names)


def _parquet(names: list[str]) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(_table(names), sink, write_statistics=False, use_dictionary=False)
    return sink.getvalue()


def _arrow(names: list[str]) -> bytes:
    sink, row = io.BytesIO(), _table(names).to_struct_array()
    table = pa.table({"s": row})
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _avro(names: list[str]) -> bytes:
    sink = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": name, "type": "long"} for name in names]}
    fastavro.writer(sink, schema, [dict.fromkeys(names, 1)])
    return sink.getvalue()


WIDE: dict[str, tuple[str, Any]] = {
    "csv": ("t.csv", _csv),
    "jsonl": ("t.jsonl", _jsonl),
    "nested jsonl": ("t.jsonl", _nested_jsonl),
    "jsonl, each line with a key of its own": ("t.jsonl", _jsonl_of_other_keys),
    "parquet": ("t.parquet", _parquet),
    "arrow": ("t.arrow", _arrow),
    "avro": ("t.avro", _avro),
}


def _outcome(act: Any, name: str, data: bytes, most: int) -> Error | None:
    try:
        act(SourceFile(lambda: io.BytesIO(data), detect(name), name, ReadOptions(max_columns=most)))
    except Error as error:
        return error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", WIDE)
def test_a_file_of_more_columns_than_it_may_have_is_refused(kind: str) -> None:
    name, make = WIDE[kind]
    data = make([f"c{number}" for number in range(2_000)])
    for act in (infer, survey):
        error = _outcome(act, name, data, 1_999)
        assert isinstance(error, LimitError)
        assert f"file '{name}'" in str(error)
        assert "more than 1,999 " in str(error)
        assert "ingest_max_columns" in str(error)
    if kind in ("csv", "parquet", "avro"):  # the others take minutes with pyarrow's own reader, or have a limit before
        assert _outcome(infer, name, data, 2_000) is None


@pytest.mark.parametrize("kind", [kind for kind in WIDE if kind not in ("parquet", "arrow", "avro")])
def test_text_of_a_hundred_thousand_columns_is_refused_at_once(kind: str) -> None:
    """Were they made, each would take minutes."""
    name, make = WIDE[kind]
    data = make([f"c{number}" for number in range(100_000)])
    for act in (infer, survey):
        assert isinstance(_outcome(act, name, data, MOST), LimitError)


@pytest.mark.slow
def test_a_table_says_how_many_columns_its_files_may_have(tmp_path: Path) -> None:
    database = dolmen.open(str(tmp_path / "db"))
    table = database.create_table("t", pa.schema([("c0", pa.int64())]), properties={"ingest_new_columns": "ignore"})
    (tmp_path / "landing" / "t").mkdir(parents=True)
    for most in (29, 30):
        (tmp_path / "landing" / "t" / f"{most}.csv").write_bytes(_csv([f"c{number}" for number in range(30)]))
        table.set(ingest_max_columns=most)
        local_once(tmp_path, tmp_path / "db")
        assert dolmen.open(str(tmp_path / "db")).table("t").count() == most - 29
    [report] = (tmp_path / "rejected" / "t").glob("*.error.json")
    assert "29 columns" in json.loads(report.read_text())["reason"]


@pytest.mark.parametrize("columns", ["a {}", "id BIGINT NOT NULL, a {} NOT NULL"])
@pytest.mark.parametrize(
    "type_of",
    [
        lambda depth: "STRUCT(a " * depth + "DECIMAL(3, 1)" + ")" * depth,
        lambda depth: "MAP(VARCHAR, " * depth + "BIGINT" + ")" * depth,
        lambda depth: "BIGINT" + "[]" * depth,
        lambda depth: "STRUCT(a " * depth + "BIGINT" + "[])" * depth,
    ],
)
def test_declared_types_nest_to_a_limit(type_of: Any, columns: str, tmp_path: Path) -> None:
    database = dolmen.open(str(tmp_path / "db"))
    for depth in (33, 200, 3_000):
        with pytest.raises(SchemaError, match="32 levels"):
            database.create_table("t", parse_columns(columns.format(type_of(depth))))
    database.create_table("t", parse_columns(columns.format(type_of(16))))


def _deep(kind: str, depth: int) -> pa.DataType:
    found = pa.int64()
    for _ in range(depth):
        found = {"list": pa.list_, "struct": lambda inner: pa.struct([("a", inner)]), "map": _map_of}[kind](found)
    return found


def _map_of(inner: pa.DataType) -> pa.DataType:
    return pa.map_(pa.string(), inner)


@pytest.mark.parametrize("kind", ["list", "struct", "map"])
def test_types_of_arrow_nest_to_a_limit(kind: str, tmp_path: Path) -> None:
    database, deep = dolmen.open(str(tmp_path / "db")), _deep(kind, 33)
    with pytest.raises(SchemaError, match="32 levels"):
        database.create_table("t", pa.schema([("a", deep)]))
    table = database.create_table("t", pa.schema([("a", pa.int64())]))
    with pytest.raises(SchemaError, match="32 levels"):
        table.add_column("b", deep)
    with pytest.raises(InputError):
        table.append(pa.table({"a": pa.nulls(1, deep)}))
    with pytest.raises(InputError):
        table.upsert(pa.table({"a": pa.nulls(1, deep)}))


def test_dictionaries_of_dictionaries_are_their_values(tmp_path: Path) -> None:
    kind = pa.string()
    for _ in range(100):
        kind = pa.dictionary(pa.int8(), kind)
    table = dolmen.open(str(tmp_path / "db")).create_table("t", pa.schema([("a", kind)]))
    assert table.schema.field("a").type == pa.string()


@pytest.mark.parametrize(
    "kind", [pa.null(), pa.int64(), pa.run_end_encoded(pa.int32(), pa.int64()), pa.dictionary(pa.int8(), pa.string())]
)
def test_a_huge_record_batch_of_few_bytes_is_read_in_small_ones(kind: pa.DataType) -> None:
    rows = 2_000_000
    array = pa.nulls(rows, kind)
    if pa.types.is_run_end_encoded(kind):
        array = pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array([7]))
    sink, table = io.BytesIO(), pa.table({"a": array})
    with ipc.new_file(sink, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    source = SourceFile(lambda: io.BytesIO(sink.getvalue()), detect("t.arrow"), "t.arrow")
    wanted = pa.schema([("a", pa.string() if pa.types.is_dictionary(kind) else pa.int64())])
    sizes = [batch.num_rows for batch in read(source, wanted)]
    assert (sum(sizes), max(sizes)) == (rows, 65_536)


WIDE_NULL = {
    "fixed": ["null", {"type": "fixed", "name": "f", "size": 65_536}],
    "record": [
        "null",
        {"type": "record", "name": "w", "fields": [{"name": f"c{n}", "type": "long"} for n in range(500)]},
    ],
}


def _avro_rows(kind: Any, rows: list[Any]) -> bytes:
    sink = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}
    fastavro.writer(sink, schema, [{"a": row} for row in rows], codec="deflate")
    return sink.getvalue()


def _parquet_rows(*arrays: pa.Array) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table({"a": pa.chunked_array(arrays)}), sink)
    return sink.getvalue()


def _nulls(items: int, kind: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, items], pa.int32()), pa.nulls(items, kind))


def _list_of(inner: Any) -> dict[str, Any]:
    return {"type": "array", "items": inner}


NULLS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "avro, wide values": (
        "t.avro", lambda: _avro_rows(_list_of(WIDE_NULL["fixed"]), [[], [None] * 5_000]), "record 2 of the file"
    ),
    "avro, records": (
        "t.avro", lambda: _avro_rows(_list_of(WIDE_NULL["record"]), [[None] * 50_000]), "record 1 of the file"
    ),
    "avro, lists in lists": (
        "t.avro", lambda: _avro_rows(_list_of(_list_of(WIDE_NULL["fixed"])), [[[None] * 100] * 50]), "record 1"
    ),
    "avro, maps": (
        "t.avro",
        lambda: _avro_rows({"type": "map", "values": WIDE_NULL["fixed"]}, [{f"{n}": None for n in range(5_000)}]),
        "record 1 of the file",
    ),
    "parquet, wide values": ("t.parquet", lambda: _parquet_rows(_nulls(5_000, pa.binary(65_536))), "column 'a.list."),
    "parquet, many values": ("t.parquet", lambda: _parquet_rows(_nulls(35_000_000, pa.int64())), "column 'a.list."),
    "parquet, records": (
        "t.parquet",
        lambda: _parquet_rows(_nulls(400_000, pa.struct([(f"c{n}", pa.int64()) for n in range(100)]))),
        "row group 0, column 'a.list.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NULLS)
def test_lists_of_nulls_that_take_a_thousand_times_their_bytes_are_refused(kind: str) -> None:
    name, make, place = NULLS[kind]
    error = _outcome(lambda source: read(source, None).read_all(), name, make(), MOST)
    assert isinstance(error, LimitError)
    assert f"file '{name}', " in str(error)
    assert place in str(error)
    assert "268,435,456" in str(error)


@pytest.mark.slow
def test_lists_of_rows_that_take_much_memory_together_are_read_in_small_batches() -> None:
    wide = _avro_rows(_list_of(WIDE_NULL["fixed"]), [[None] * 500] * 20)
    few = _parquet_rows(*[_nulls(500, pa.binary(65_536)) for _ in range(20)])
    for name, data in (("t.avro", wide), ("t.parquet", few)):
        source = SourceFile(partial(io.BytesIO, data), detect(name), name)
        batches = list(read(source, None))
        assert sum(batch.num_rows for batch in batches) == 20
        assert max(batch.nbytes for batch in batches) < 80 << 20


@pytest.mark.slow
def test_long_lists_of_ordinary_values_are_read() -> None:
    numbers = _avro_rows(_list_of(["null", "long"]), [[5] * 3_000_000])
    zeros = _parquet_rows(pa.array([[0] * 40] * 100_000))
    for name, data, rows in (("t.avro", numbers, 1), ("t.parquet", zeros, 100_000)):
        assert (
            read(SourceFile(lambda data=data: io.BytesIO(data), detect(name), name), None).read_all().num_rows == rows
        )  # type: ignore[misc]


def test_a_row_that_takes_more_than_may_be_held_at_once_is_refused() -> None:
    data = _parquet_rows(pa.nulls(1, pa.binary(65 << 20)))
    error = _outcome(lambda source: read(source, None).read_all(), "t.parquet", data, MOST)
    assert isinstance(error, LimitError)
    assert "68,157,440" in str(error)

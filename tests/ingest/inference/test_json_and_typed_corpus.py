"""Small files as people have them: shapes of JSON and formats with types, times contents, times damage.

Each is inferred and read as a newcomer's file is: its rows come back, or the error names the file and the line or row.
"""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import ipc, orc, parquet

from dolmen.errors import InputError
from dolmen.ingest.formats.formats import SourceFile, read
from dolmen.ingest.formats.source_file import ReadOptions
from dolmen.ingest.inference.inference import Inference, infer_file

Rows = list[dict[str, Any]]


def _import(data: bytes, name: str) -> tuple[Inference, pa.Table]:
    found = infer_file(lambda: io.BytesIO(data), name)
    source = SourceFile(lambda: io.BytesIO(data), found.file_format, name, ReadOptions(dialect=found.dialect))
    table = read(source, found.schema).read_all()
    table.validate(full=True)
    return found, table


# --- JSON

CONTENTS: dict[str, Rows] = {
    "plain": [{"id": n, "name": f"n{n}", "ok": n % 2 == 0} for n in range(5)],
    "nested": [{"id": n, "at": {"x": {"y": [n, None]}, "z": "s"}, "tags": ["a"] * n} for n in range(4)],
    "sparse": [{"id": 1, "a": None}, {"id": 2, "b": {"c": 1}}, {"id": 3, "a": "x", "b": {"d": [True]}}],
    "brackets in texts": [{"id": n, "text": t} for n, t in enumerate(['}],"', "\\", '\\"[{', "a\nb", "\u2028é😀"])],
    "mixed types": [{"id": 1, "v": 1}, {"id": 2, "v": "one"}, {"id": 3, "v": [1, {"k": None}]}, {"id": 4, "v": {}}],
    "numbers": [{"id": 2**53 + 1, "f": 0.1, "e": 1e300}, {"id": -(2**63), "f": -2.5, "e": 5e-324}],
    "long numbers": [{"id": 10**25, "v": 1}, {"id": -(10**30), "v": 2}],
    "codes": [{"zip": "007", "phone": "+49 1", "v": "1e5"}, {"zip": "01234", "phone": "0", "v": "true"}],
    "nothing but null": [{"id": 1, "v": None}, {"id": 2, "v": None}],
    "odd names": [{"a b": 1, "ä.ö": 2, "$": 3, "0": {"-": 4}}, {"a b": 5, "ä.ö": 6, "$": 7, "0": {"-": 8}}],
    "lists of lists": [{"id": n, "m": [[n, n + 1], []], "o": [{"p": [n]}, None]} for n in range(3)],
}  # fmt: skip


def _dumped(rows: Rows, indent: int | None = None) -> list[str]:
    return [json.dumps(row, indent=indent, ensure_ascii=bool(len(rows) % 2)) for row in rows]


SHAPES: dict[str, Callable[[Rows], str]] = {
    "lines": lambda rows: "".join(f"{each}\n" for each in _dumped(rows)),
    "lines without a last end": lambda rows: "\n".join(_dumped(rows)),
    "lines of Windows, some blank": lambda rows: "\r\n\r\n".join(_dumped(rows)) + "\r\n",
    "array": json.dumps,
    "pretty array": lambda rows: json.dumps(rows, indent=4),
    "pretty objects": lambda rows: "\n".join(_dumped(rows, 2)),
    "Firehose": lambda rows: "".join(_dumped(rows)),
    "sequence of RFC 7464": lambda rows: "".join(f"\x1e{each}\n" for each in _dumped(rows)),
    "commas between lines": lambda rows: ",\n".join(_dumped(rows)),
    "Records": lambda rows: json.dumps({"Records": rows}),
    "pages": lambda rows: "\n".join(json.dumps({"data": [row], "next": None}) for row in rows),
    "data beside counts": lambda rows: json.dumps({"total": len(rows), "data": rows, "page": 1}, indent=1),
    "the one list beside scalars": lambda rows: json.dumps({"exported": "2026-02-01", "by": None, "users": rows}),
    "a list called values": lambda rows: json.dumps({"range": "A1", "values": rows}, indent=1),
    "a list in an object": lambda rows: json.dumps({"ttl": 3, "data": {"stations": rows}}),
}
_LISTS = [*SHAPES][-6:]


def _is_same(value: Any, found: Any) -> bool:
    """Whether a value of JSON came back, as itself or, of a column of JSON text, as its JSON."""
    if isinstance(found, dict):
        names = value.keys() if isinstance(value, dict) else ()
        return {*names} <= found.keys() and all(_is_same((value or {}).get(name), each) for name, each in found.items())
    if isinstance(found, list):
        return isinstance(value, list) and len(value) == len(found) and all(map(_is_same, value, found))
    if isinstance(found, str) and not isinstance(value, str):
        return bool(json.loads(found) == value)
    if isinstance(found, Decimal):
        return type(value) is int and found == value
    return found is None if value is None else type(found) is type(value) and bool(found == value)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_json_come_back_in_each_shape(shape: str, content: str) -> None:
    rows = CONTENTS[content]
    found, table = _import(SHAPES[shape](rows).encode(), "t.json")
    assert found.format == "jsonl"
    assert [*table.column_names] == [*dict.fromkeys(name for row in rows for name in row)], found.summary
    read_rows = table.to_pylist()
    assert len(read_rows) == len(rows), found.summary
    for row, got in zip(rows, read_rows, strict=True):
        assert all(_is_same(row.get(name), got[name]) for name in got), (row, got)
    if shape in _LISTS and shape != "Records":
        assert found.losses[0].startswith("not in the rows: "), "what is left out is said"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("shape", ["lines", "pretty array", "the one list beside scalars"])
def test_json_is_read_in_each_encoding(shape: str, encoding: str) -> None:
    rows, text = CONTENTS["brackets in texts"], SHAPES[shape](CONTENTS["brackets in texts"]).encode(encoding)
    assert _import(text, "t.json")[1].to_pylist() == rows
    assert _import(gzip.compress(text), "t.json.gz")[1].to_pylist() == rows


@pytest.mark.parametrize("text", ['"a"\n"b"\n', '["a", "b"]', '["a",\n"b"\n]'])
def test_values_that_are_no_objects_are_a_column(text: str) -> None:
    found, table = _import(text.encode(), "t.json")
    assert table.to_pylist() == [{"value": "a"}, {"value": "b"}]
    assert "'value'" in found.summary
    with pytest.raises(InputError, match="line 1"):
        _import(b"1,2\n3,4\n", "t.json")  # it may be CSV


def _in_the_middle(text: str, more: str) -> str:
    """The text with ``more`` before the last key ``id``."""
    at = text.rindex('"id"')
    return text[:at] + more + text[at:]


DAMAGE: dict[str, Callable[[str], str]] = {
    "the end is missing": lambda text: text.rstrip()[:-1],
    "half is missing": lambda text: text[: text.rindex('"name"') + 3],
    "a quote is missing": lambda text: text[: text.rindex('"')] + text[text.rindex('"') + 1 :],
    "single quotes": lambda text: text.replace('"id"', "'id'"),
    "a key twice": lambda text: _in_the_middle(text, '"id": 9, '),
    "no number": lambda text: _in_the_middle(text, '"x": 01, '),
    "NaN": lambda text: _in_the_middle(text, '"x": NaN, '),
    "a bracket too many": lambda text: text.rstrip() + "}",
    "text after the end": lambda text: text.rstrip() + "\nthe end\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("shape", SHAPES)
def test_damaged_json_is_refused_and_the_file_and_line_are_named(shape: str, damage: str) -> None:
    with pytest.raises(InputError) as raised:
        _import(DAMAGE[damage](SHAPES[shape](CONTENTS["plain"])).encode(), "t.json")
    text = str(raised.value)
    assert "'t.json'" in text
    assert "line " in text


# --- Formats with types

UTC = dt.UTC
COLUMNS: dict[str, pa.Array] = {
    "integers": pa.array([1, None, -(2**63), 2**63 - 1]),
    "small integers": pa.array([-128, None, 127], pa.int8()),
    "doubles": pa.array([0.1, None, -0.0, 1e300]),
    "bools": pa.array([True, None, False]),
    "texts": pa.array(["", None, "é😀", "x" * 300]),
    "bytes": pa.array([b"", None, b"\0\xff"]),
    "days": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "times": pa.array([dt.datetime(1969, 12, 31, 23, 59, 59, 999999), None], pa.timestamp("us")),
    "instants": pa.array([dt.datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "decimals": pa.array([Decimal("-1.50"), None, Decimal("99999999.99")], pa.decimal128(10, 2)),
    "lists": pa.array([[1, None], [], None], pa.list_(pa.int64())),
    "structs": pa.array([{"a": 1, "b": ["x"]}, {"a": None, "b": None}]),
    "nothing": pa.array([], pa.int64()),
}


def _avro(table: pa.Table) -> bytes:
    kinds: dict[str, Any] = {
        "int64": "long", "int8": "int", "double": "double", "bool": "boolean", "string": "string", "binary": "bytes",
        "date32[day]": {"type": "int", "logicalType": "date"},
        "timestamp[us]": {"type": "long", "logicalType": "local-timestamp-micros"},
        "timestamp[us, tz=UTC]": {"type": "long", "logicalType": "timestamp-micros"},
        "decimal128(10, 2)": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    }  # fmt: skip

    def kind(arrow: pa.DataType) -> Any:
        if pa.types.is_list(arrow):
            return {"type": "array", "items": ["null", kind(arrow.value_type)]}
        if pa.types.is_struct(arrow):
            inner = [{"name": each.name, "type": ["null", kind(each.type)]} for each in arrow]
            return {"type": "record", "name": "inner", "fields": inner}
        return kinds[str(arrow)]

    fields = [{"name": each.name, "type": ["null", kind(each.type)]} for each in table.schema]
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "row", "fields": fields}, table.to_pylist(), codec="deflate")
    return sink.getvalue()


def _with(write: Callable[[pa.Table, io.BytesIO], Any]) -> Callable[[pa.Table], bytes]:
    def written(table: pa.Table) -> bytes:
        sink = io.BytesIO()
        write(table, sink)
        return sink.getvalue()

    return written


def _write_ipc(new: Callable[[io.BytesIO, pa.Schema], Any]) -> Callable[[pa.Table], bytes]:
    def write(table: pa.Table, sink: io.BytesIO) -> None:
        with new(sink, table.schema) as writer:
            writer.write_table(table)

    return _with(write)


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {
    "t.parquet": _with(parquet.write_table),
    "t.arrow": _write_ipc(ipc.new_file),
    "t.arrows": _write_ipc(ipc.new_stream),
    "t.orc": _with(orc.write_table),
    "t.avro": _avro,
}
_AS_WRITTEN = {("t.avro", "small integers"): pa.int32()}


@pytest.mark.parametrize("content", COLUMNS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("disguise", ["", ".gz", ".bin"])
def test_columns_of_each_type_come_back_whatever_the_file_is_called(name: str, content: str, disguise: str) -> None:
    column = COLUMNS[content]
    data = FORMATS[name](pa.table({"id": pa.array(range(len(column)), pa.int64()), "c": column}))
    found, table = _import(gzip.compress(data) if disguise == ".gz" else data, f"{name}{disguise}")
    assert found.format == name.removeprefix("t.").removesuffix("s")
    assert table["id"].to_pylist() == [*range(len(column))]
    assert table["c"].type == _AS_WRITTEN.get((name, content), column.type)
    assert table["c"].to_pylist() == column.to_pylist()
    assert found.losses == ()


def _damages(data: bytes) -> dict[str, bytes]:
    middle = len(data) // 2
    return {
        "the last byte is missing": data[:-1],
        "half is missing": data[:middle],
        "a tenth is missing": data[: len(data) * 9 // 10],
        "only the magic is there": data[:8],
        "the second half is zero": data[:middle] + bytes(len(data) - middle),
        "bytes follow the end": data + b"\1" * 40,
    }


@pytest.mark.parametrize("damage", [*_damages(b"")])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_with_types_are_refused_by_name(name: str, damage: str) -> None:
    columns = {content: COLUMNS[content].take(pa.array([0, 1] * 50)) for content in ("integers", "texts", "lists")}
    data = FORMATS[name](pa.table(columns))
    with pytest.raises(InputError, match=rf"'{name}'"):
        _import(_damages(data)[damage], name)

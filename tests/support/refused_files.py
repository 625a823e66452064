"""Files that a declared table without settings refuses, each with what its refusal says."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import parquet

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
GOOD = "id,name,amount\n1,Ada,1.5\n2,Bob,2\n"
ROWS: list[dict[str, Any]] = [{"id": 1, "name": "Ada", "amount": 1.5}, {"id": 2, "name": "Bob", "amount": 2}]


def _parquet(columns: dict[str, pa.Array], names: list[str] | None = None) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays(list(columns.values()), names or list(columns)), sink)
    return sink.getvalue()


def _avro(schema: Any, records: list[Any]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records)
    return sink.getvalue()


def _record(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": kind}]}


REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "semicolons": ("csv", GOOD.replace(",", ";"), "no column 'id;name;amount'"),
    "tabs": ("csv", GOOD.replace(",", "\t"), "no column 'id"),
    "no header": ("csv", "1,Ada,1.5\n2,Bob,2\n", "no column '1'"),
    "other names": ("csv", GOOD.replace("amount", "total"), "no column 'total'"),
    "name twice": ("csv", "id,name,name\n1,Ada,x\n", "twice"),
    "no name": ("csv", "id,,amount\n1,Ada,1\n", "no name"),
    "title": ("csv", f"Sales of January\n{GOOD}", "Sales of January"),
    "comment": ("csv", f"# made today\n{GOOD}", "# made today"),
    "Excel's sep": ("csv", f"sep=,\n{GOOD}", "has no name"),
    "short record": ("csv", f"{GOOD}3,Eve\n", "2 fields where the header has 3"),
    "long record": ("csv", f"{GOOD}3,Eve,1,x\n", "4 fields where the header has 3"),
    "single quotes": ("csv", "id,name,amount\n1,'Ada, x',1\n", "4 fields"),
    "escaped delimiter": ("csv", "id,name,amount\n1,Ada\\, x,1\n", "4 fields"),
    "escaped quote": ("csv", 'id,name,amount\n1,"Ada\\"x",1\n', "quote"),
    "open quote": ("csv", 'id,name,amount\n1,"Ada,1\n', "quote"),
    "Latin-1": ("csv", GOOD.replace("Ada", "Zoë").encode("latin-1"), "not UTF-8"),
    "UTF-16": ("csv", GOOD.encode("utf-16"), "UTF-16"),
    "decimal comma": ("csv", 'id,name,amount\n1,Ada,"1,5"\n', "'1,5' is not a valid double"),
    "NULL text": ("csv", "id,name,amount\n1,Ada,NA\n", "'NA' is not a valid double"),
    "footer": ("csv", f"{GOOD}total,2,\n", "'total' is not a valid int64"),
    "empty": ("csv", "", "empty"),
    "array": ("json", json.dumps(ROWS), "array"),
    "pretty": ("json", "\n".join(json.dumps(row, indent=2) for row in ROWS), "line"),
    "rows at a path": ("json", json.dumps({"Records": ROWS}), "Records"),
    "one after the other": ("json", "".join(map(json.dumps, ROWS)), "line"),
    "extra member": ("jsonl", json.dumps({**ROWS[0], "more": 1}), "more"),
    "object for a number": ("jsonl", '{"id": {"a": 1}}', "id"),
    "number with places for an integer": ("jsonl", '{"id": 1.5}', "id"),
    "cut": ("jsonl", '{"id": 1}\n{"id": 2', "not JSON"),
    "extra column": ("parquet", _parquet({"id": pa.array([1]), "more": pa.array([1])}), "more"),
    "text for a number": ("parquet", _parquet({"id": pa.array(["1"])}), "id"),
    "struct for a number": ("parquet", _parquet({"id": pa.array([{"a": 1}])}), "id"),
    "column twice": ("parquet", _parquet({"id": pa.array([1]), "x": pa.array([1])}, ["id", "id"]), "id"),
    "value with loss": ("parquet", _parquet({"id": pa.array([1.5])}), "id"),
    "Avro without records": ("avro", _avro("long", [1]), "value"),
    "union": ("avro", _avro(_record("id", ["long", "string"]), [{"id": 1}]), "id"),
    "Avro map": ("avro", _avro(_record("id", {"type": "map", "values": "long"}), [{"id": {"a": 1}}]), "id"),
}
"""For each kind: the ending of the file's name, its content, and a part of the reason."""


def content(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body

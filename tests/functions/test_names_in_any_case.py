"""Dropped files and changes may spell names of columns, and of fields in structs, in any case."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from support.functions import World

SCHEMA = pa.schema(
    [
        pa.field("Id", pa.int64(), nullable=False),
        ("Name", pa.string()),
        ("At", pa.timestamp("us")),
        ("Price", pa.decimal128(38, 2)),
        ("Place", pa.struct([("City", pa.string()), ("Zip", pa.int64())])),
        ("Stops", pa.list_(pa.struct([("City", pa.string())]))),
    ]
)
ROW: dict[str, Any] = {"ID": 1, "nAME": "ID", "PLACE": {"CITY": "x", "zip": 1}, "STOPS": [{"CITY": "y"}]}
STORED = {"Id": 1, "Name": "ID", "At": None, "Price": None, "Place": {"City": "x", "Zip": 1}, "Stops": [{"City": "y"}]}


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(*rows: dict[str, Any]) -> bytes:
    target = BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), target)
    return target.getvalue()


def arrow(*rows: dict[str, Any]) -> bytes:
    target = BytesIO()
    feather.write_feather(pa.Table.from_pylist(list(rows)), target, compression="uncompressed")
    return target.getvalue()


def _avro_type(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        fields = [{"name": key, "type": _avro_type(inner, name + key)} for key, inner in value.items()]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(value, list):
        return {"type": "array", "items": _avro_type(value[0], f"{name}_item")}
    return "long" if isinstance(value, int) else "string"


def avro(*rows: dict[str, Any]) -> bytes:
    target = BytesIO()
    fastavro.writer(target, _avro_type(rows[0], "row"), rows)
    return target.getvalue()


def csv(*rows: dict[str, Any]) -> bytes:
    cells = [[json.dumps(value).replace('"', '""') for value in row.values()] for row in rows]
    text = [",".join(rows[0]), *(",".join(f'"{cell}"' for cell in row) for row in cells)]
    return "\n".join(text).replace('"""', '"').replace('"""', '"').encode() + b"\n"


FORMATS: dict[str, Callable[..., bytes]] = {
    "jsonl": lines, "avro": avro, "parquet": parquet, "arrow": arrow, "csv": csv,
}  # fmt: skip


@pytest.fixture
def world(world: World) -> World:
    world.database.create_table("events", SCHEMA, primary_key="Id")
    return world


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("new_columns", ["reject", "ignore", "add"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_dropped_file_may_spell_names_in_any_case(world: World, kind: str, new_columns: str, mode: str) -> None:
    world.database.table("events").set(ingest_new_columns=new_columns, ingest_mode=mode)
    more = {} if new_columns == "reject" else {"extra": 7}
    assert world.ingest(world.drop(f"events/a.{kind}", FORMATS[kind]({**ROW, **more}))) == []
    assert world.rejects() == {}
    assert world.rows() == [STORED | (more if new_columns == "add" else {})]


@pytest.mark.parametrize("new_columns", ["reject", "ignore", "add"])
def test_lines_may_mix_spellings_but_a_line_has_a_column_once(world: World, new_columns: str) -> None:
    table = world.database.table("events")
    table.set(ingest_new_columns=new_columns, ingest_on_bad_row="quarantine")
    mixed = [
        {"Id": 1, "Place": {"City": "a"}},
        {"ID": 2, "place": {"CITY": "b"}, "PRICE": 1.5},
        {"id": 3, "Place": {"city": "c"}, "at": "2026-01-05"},
        {"id": 4, "ID": 5},
        {"id": 6, "Place": {"city": "c", "CITY": "d"}},
    ]
    assert world.ingest(world.drop("events/a.jsonl", lines(*mixed))) == []
    found = table.scan(["id", "place", "price"]).to_arrow().sort_by("Id").to_pylist()
    assert [(row["Id"], row["Place"]["City"]) for row in found] == [(1, "a"), (2, "b"), (3, "c")]
    assert str(found[1]["Price"]) == "1.50"
    [report] = world.rejects().values()
    assert "case" in json.dumps(report)


def test_new_keys_that_differ_in_case_only_are_one_column(world: World) -> None:
    table = world.database.table("events")
    table.set(ingest_new_columns="add")
    file = lines({"id": 1, "Extra": 1, "more": {"a": 1}}, {"ID": 2, "EXTRA": 2.5, "MORE": {"A": 2}})
    assert world.ingest(world.drop("events/a.jsonl", file)) == []
    table = world.database.table("events")
    assert table.schema.names == [*SCHEMA.names, "Extra", "more"]
    assert table.scan(["extra", "more"]).to_arrow().sort_by("Extra").to_pylist() == [
        {"Extra": 1.0, "more": {"a": 1}},
        {"Extra": 2.5, "more": {"a": 2}},
    ]


def test_a_wider_value_under_a_name_in_another_case_widens_the_column(world: World) -> None:
    table = world.database.create_table("small", pa.schema([("Id", pa.int32())]))
    table.set(ingest_new_columns="add")
    assert world.ingest(world.drop("small/a.jsonl", lines({"ID": 2**40}))) == []
    assert table.scan().to_arrow().to_pylist() == [{"Id": 2**40}]


CDC = {"ingest_mode": "cdc", "cdc_sequence": "LSN", "cdc_envelope": "debezium", "cdc_sequence_from": "source.lsn"}


@pytest.mark.parametrize("new_columns", ["reject", "ignore", "add"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_rows_in_events_may_spell_names_in_any_case(world: World, wrapped: bool, new_columns: str) -> None:
    table = world.database.create_table("fed", pa.schema([*SCHEMA, ("Lsn", pa.int64())]), primary_key="Id")
    table.set(**CDC, ingest_new_columns=new_columns)
    big = {**ROW, "NAME": "__debezium_unavailable_value", "PRICE": "__debezium_unavailable_value"}
    del big["nAME"]
    events = [
        {"op": "c", "before": None, "after": {**ROW, "price": "1.25"}, "source": {"lsn": 1, "ID": 7}},
        {"op": "u", "before": None, "after": big, "source": {"lsn": 2}},
        {"op": "c", "before": None, "after": {"iD": 2}, "source": {"lsn": 3}},
        {"op": "d", "before": {"ID": 2}, "after": None, "source": {"lsn": 4}},
        {"op": "u", "before": {"ID": 1}, "after": {**big, "ID": 3}, "source": {"lsn": 5}},
    ]
    for place, event in enumerate(events):
        body = lines({"payload": event} if wrapped else event)
        assert world.ingest(world.drop(f"fed/{place}.jsonl", body)) == []
    assert world.rejects() == {}
    [row] = table.scan(["id", "name", "price", "place", "lsn"]).to_arrow().to_pylist()
    assert (row["Id"], row["Name"], str(row["Price"]), row["Place"], row["Lsn"]) == (
        3, "ID", "1.25", {"City": "x", "Zip": 1}, 5,
    )  # fmt: skip
    assert world.database.table("fed").schema.names == [*SCHEMA.names, "Lsn"]


@pytest.mark.parametrize("new_columns", ["reject", "ignore", "add"])
@pytest.mark.parametrize("kind", FORMATS)
def test_flat_changes_may_spell_names_in_any_case(world: World, kind: str, new_columns: str) -> None:
    columns = pa.schema([SCHEMA.field("Id"), ("Name", pa.string()), ("Lsn", pa.int64())])
    table = world.database.create_table("fed", columns, primary_key="Id")
    table.set(ingest_mode="cdc", cdc_sequence="lsn", cdc_envelope="flat", ingest_new_columns=new_columns)
    table.set(cdc_sequence_from="LSN")
    rows = [{"OP": "I", "ID": 1, "NAME": "a", "LSN": 1}, {"OP": "I", "ID": 2, "NAME": "b", "LSN": 2}]
    assert world.ingest(world.drop(f"fed/a.{kind}", FORMATS[kind](*rows))) == []
    gone = {"op": "D", "id": 2, "name": "b", "lsn": 3}
    assert world.ingest(world.drop(f"fed/b.{kind}", FORMATS[kind](gone))) == []
    assert world.rejects() == {}
    assert world.database.table("fed").to_arrow().to_pylist() == [{"Id": 1, "Name": "a", "Lsn": 1}]

"""Dropped files give their tables new columns if these ask for it (``ingest_new_columns: add``), each file once."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.ingest.announcements import read_drops
from dolmen.ingest.batch import read_messages
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.service.functions.function_settings import FunctionSettings
from dolmen.store import open_store
from dolmen_simulator.counting import CountingStore
from support.event_builders import notification, sqs_event
from support.functions import World

HEAD = "id,user_id,kind"


def adding(world: World, **settings: Any) -> None:
    """A table that takes new columns."""
    world.create()
    world.database.table("events").set(ingest_new_columns="add", **settings)


def test_files_that_lack_a_column_have_its_default(world: World) -> None:
    """As rows from Python have. In JSON lines a key that is missing is NULL."""
    world.create()
    table = world.database.table("events")
    table.add_column("source", pa.string(), "before", nullable=False)
    table.set_default("source", "web")
    assert world.ingest(world.drop("events/a.csv", f"{HEAD}\n1,1,x\n")) == []
    table.set(ingest_on_bad_row="quarantine")
    assert world.ingest(world.drop("events/b.csv", f"{HEAD}\n2,1,x\nthree,1,x\n")) == []
    parquet = BytesIO()
    pq.write_table(pa.table({"id": [4]}), parquet)
    assert world.ingest(world.drop("events/c.parquet", parquet.getvalue())) == []
    assert table.scan(["id", "source"]).to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "source": "web"},
        {"id": 2, "source": "web"},
        {"id": 4, "source": "web"},
    ]


def types(world: World) -> dict[str, str]:
    """The columns of the table, without the three that it was created with."""
    return {field.name: str(field.type) for field in list(world.database.table("events").schema)[3:]}


def reasons(world: World) -> list[str]:
    """Why files were rejected."""
    return [report["reason"] for report in world.rejects().values()]


def parquet(**columns: Any) -> bytes:
    target = BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_file_with_new_columns_adds_them_in_its_own_commit(world: World) -> None:
    adding(world)
    before = world.database.version
    assert (
        world.ingest(world.drop("events/a.csv", f"{HEAD},price,paid,at\n1,1,x,1.5,true,2026-01-05T10:00:00Z\n")) == []
    )
    assert types(world) == {"price": "double", "paid": "bool", "at": "timestamp[us, tz=UTC]"}
    assert world.database.version == before + 1
    [commit] = [commit for commit in world.database.history() if commit.operation == "ingest"]
    assert [(deed.what, deed.over) for deed in commit.did] == [("alter", ("price", "paid", "at")), ("append", ())]
    [row] = world.rows()
    assert (row["price"], row["paid"], row["at"]) == (1.5, True, datetime(2026, 1, 5, 10, tzinfo=UTC))


@pytest.mark.slow
def test_types_come_from_the_whole_file_and_not_from_its_beginning(world: World) -> None:
    adding(world)
    rows = "".join(f"{number},1,x,{number},7\n" for number in range(60_000))
    assert world.ingest(world.drop("events/a.csv", f"{HEAD},n,m\n{rows}60000,1,x,0.5,late\n")) == []
    assert types(world) == {"n": "double", "m": "string"}
    more: list[dict[str, Any]] = [{"id": -number, "j": number} for number in range(1, 60_000)]
    assert world.ingest(world.drop("events/b.jsonl", lines(*more, {"id": -60_000, "j": "2026-02-01", "l": [1]}))) == []
    assert types(world) == {"n": "double", "m": "string", "j": "string", "l": "list<item: int64>"}
    assert len(world.ids()) == 120_001


@pytest.mark.parametrize("kind", ["parquet", "arrow", "avro"])
def test_files_that_know_their_types_keep_them(world: World, kind: str) -> None:
    adding(world)
    day = date(2026, 1, 5)
    target = BytesIO()
    if kind == "avro":
        fields = [{"name": "id", "type": "long"}, {"name": "small", "type": ["null", "int"]}]
        fields.append({"name": "day", "type": {"type": "int", "logicalType": "date"}})
        fastavro.writer(target, {"type": "record", "name": "r", "fields": fields}, [{"id": 1, "small": 7, "day": day}])
    else:
        table = pa.table({"id": [1], "small": pa.array([7], pa.int32()), "day": pa.array([day]), "none": pa.nulls(1)})
        pq.write_table(table, target) if kind == "parquet" else feather.write_feather(table, target)
    assert world.ingest(world.drop(f"events/a.{kind}", target.getvalue())) == []
    assert reasons(world) == []
    assert types(world) == {"small": "int32", "day": "date32[day]"}
    assert [(row["small"], row["day"]) for row in world.rows()] == [(7, day)]


def test_a_name_with_a_point_is_the_name_of_a_column_and_no_path(world: World) -> None:
    adding(world)
    world.database.table("events").add_column("s", pa.struct([("x", pa.int32())]))
    assert world.ingest(world.drop("events/a.csv", f"{HEAD},s.x,s.z\n1,1,x,5,6\n")) == []
    assert types(world) == {"s": "struct<x: int32>", "s.x": "int64", "s.z": "int64"}
    [row] = world.rows()
    assert (row["s"], row["s.x"], row["s.z"]) == (None, 5, 6)


def test_a_column_without_a_value_is_not_added(world: World) -> None:
    adding(world)
    assert world.ingest(world.drop("events/a.csv", f"{HEAD},later,n\n1,1,x,,5\n2,1,x,,\n")) == []
    assert world.ingest(world.drop("events/b.jsonl", lines({"id": 3, "later": None}, {"id": 4, "later": None}))) == []
    assert types(world) == {"n": "int64"}
    assert world.ids() == [1, 2, 3, 4]
    assert world.ingest(world.drop("events/c.csv", f"{HEAD},later\n5,1,x,now\n")) == []
    assert types(world) == {"n": "int64", "later": "string"}


def test_a_file_that_fits_is_read_once_and_adds_nothing(world: World) -> None:
    adding(world)
    assert world.ingest(world.drop("events/a.csv", f"{HEAD}\n1,1,x\n"), world.drop("events/b.csv", "id\n2\n")) == []
    assert (types(world), world.ids()) == ({}, [1, 2])


def test_files_of_one_batch_share_a_new_column_and_none_fails_the_others(world: World) -> None:
    adding(world)
    files = [
        world.drop("events/a.csv", f"{HEAD},n\n1,1,x,1\n"),
        world.drop("events/b.csv", f"{HEAD}\n2,1,x\n"),
        world.drop("events/c.jsonl", lines({"id": 3, "n": 3, "other": "o"})),
        world.drop("events/d.csv", f"{HEAD},_commit_ts\n4,1,x,y\n"),
        world.drop("events/e.csv", f"{HEAD},n\n5,1,x,5\n"),
    ]
    assert world.ingest(*files) == ["message-3"]  # columns that are not committed are no reason to reject it
    assert world.ids() == [1, 2, 3, 5]
    assert types(world) == {"n": "int64", "other": "string"}
    assert world.versions("ingest") == 1
    assert world.ingest(files[3]) == []
    [reason] = reasons(world)
    assert "d.csv" in reason
    assert "'_commit_ts'" in reason


def test_a_file_of_another_type_is_read_again_and_then_rejected_with_its_name_and_column(world: World) -> None:
    adding(world)
    first = world.drop("events/a.csv", f"{HEAD},n\n1,1,x,1\n")
    second = world.drop("events/b.csv", f"{HEAD},n\n2,1,x,many\n")
    assert world.ingest(first, second) == ["message-1"]
    assert reasons(world) == []
    assert world.ingest(second) == []
    [report] = world.rejects().values()
    assert (report["file"], report["column"], report["line"]) == ("events/b.csv", "n", 2)
    assert world.ids() == [1]


def test_a_narrower_value_fits_the_column_that_another_file_has_added(world: World) -> None:
    adding(world)
    world.ingest(world.drop("events/a.csv", f"{HEAD},n\n1,1,x,1.5\n"))
    assert world.ingest(world.drop("events/b.csv", f"{HEAD},n\n2,1,x,2\n")) == []
    assert [row["n"] for row in world.rows()] == [1.5, 2.0]


def test_what_is_delivered_again_adds_nothing_again(world: World) -> None:
    adding(world)
    record = world.drop("events/a.csv", f"{HEAD},n\n1,1,x,1\n")
    for _ in range(3):
        assert world.ingest(record, record) == []
        world.restart()
    assert (types(world), world.ids(), world.versions("ingest")) == ({"n": "int64"}, [1], 1)


def test_what_is_delivered_again_after_its_column_was_dropped_does_not_bring_it_back(world: World) -> None:
    adding(world)
    record = world.drop("events/a.csv", f"{HEAD},n\n1,1,x,1\n")
    world.ingest(record)
    world.database.table("events").drop_column("n")
    assert world.ingest(record) == []
    assert types(world) == {}
    assert world.ingest(world.drop("events/late.csv", f"{HEAD},n\n2,1,x,2\n")) == []
    assert types(world) == {"n": "int64"}  # a new column: the old values are gone
    assert [row["n"] for row in world.rows()] == [None, 2]


def test_with_ignore_a_new_column_is_skipped_and_with_reject_its_file_is(world: World) -> None:
    world.create()
    table = world.database.table("events")
    for number, (setting, value) in enumerate(
        [("ingest_new_columns", "ignore"), ("ingest_on_extra", "ignore"), ("ingest_new_columns", "reject")]
    ):
        table.set(**{"ingest_new_columns": None, setting: value})
        assert world.ingest(world.drop(f"events/{number}.csv", f"{HEAD},n\n{number},1,x,1\n")) == []
    assert (types(world), world.ids()) == ({}, [0, 1])
    [reason] = reasons(world)
    assert "'n'" in reason
    assert "events/2.csv" in reason


def test_a_column_that_is_too_narrow_gets_the_type_of_the_file_if_it_may(world: World) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("day", pa.date32()), ("f", pa.float32())])
    world.create(schema=schema)
    world.database.table("events").set(ingest_new_columns="add")
    world.ingest(world.drop("events/fits.parquet", parquet(id=[1], n=[5])))  # int64, whose values fit
    assert world.database.table("events").schema.types == schema.types
    body = f"id,n,day,extra\n2,{2**40},2026-01-05T10:00:00,x\n"
    assert world.ingest(world.drop("events/a.csv", body)) == []
    assert [str(field.type) for field in world.database.table("events").schema] == [
        "int64",
        "int64",
        "timestamp[us]",
        "float",
        "string",
    ]
    assert [(row["n"], row["day"], row["extra"]) for row in world.rows()] == [
        (5, None, None),
        (2**40, datetime(2026, 1, 5, 10), "x"),
    ]
    [facts] = world.log_entries("drop ingested")[1:]
    assert (facts["columns_added"], facts["columns_widened"]) == (1, 2)
    assert world.ingest(world.drop("events/b.csv", "id,n\n3,1.5\n")) == []
    assert [report["column"] for report in world.rejects().values()] == ["n"]


@pytest.mark.parametrize("on_bad_row", ["reject_file", "quarantine"])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "avro"])
def test_days_become_times_also_for_files_that_know_their_types(world: World, kind: str, on_bad_row: str) -> None:
    world.create(schema=pa.schema([("id", pa.int64()), ("n", pa.int32()), ("day", pa.date32())]))
    world.database.table("events").set(ingest_new_columns="add", ingest_on_bad_row=on_bad_row)
    assert world.ingest(world.drop("events/a.csv", "id,n,day\n1,1,2026-01-04\n")) == []
    at, target = datetime(2026, 1, 5, 10), BytesIO()
    table = pa.table({"id": [2], "n": [2**40], "day": pa.array([at], pa.timestamp("us"))})
    if kind == "avro":
        moment = {"type": "long", "logicalType": "local-timestamp-micros"}
        fields = [{"name": "id", "type": "long"}, {"name": "n", "type": "long"}, {"name": "day", "type": moment}]
        fastavro.writer(target, {"type": "record", "name": "r", "fields": fields}, table.to_pylist())
    else:
        pq.write_table(table, target) if kind == "parquet" else feather.write_feather(table, target)
    assert world.ingest(world.drop(f"events/b.{kind}", target.getvalue())) == []
    assert reasons(world) == []
    assert [str(kind) for kind in world.database.table("events").schema.types] == ["int64", "int64", "timestamp[us]"]
    assert [row["day"] for row in world.rows()] == [datetime(2026, 1, 4), at]


def test_a_column_of_another_kind_rejects_a_file_that_knows_its_types_with_the_name(world: World) -> None:
    adding(world)
    assert world.ingest(world.drop("events/a.parquet", parquet(id=[1], user_id=["u"]))) == []
    [report] = world.rejects().values()
    assert (report["column"], types(world)) == ("user_id", {})


def test_upserts_add_columns_too(world: World) -> None:
    adding(world, ingest_mode="upsert")
    world.ingest(world.drop("events/a.csv", f"{HEAD}\n1,1,x\n2,1,x\n"))
    assert world.ingest(world.drop("events/b.jsonl", lines({"id": 2, "kind": "y", "n": 5}))) == []
    assert [(row["id"], row["kind"], row["n"]) for row in world.rows()] == [(1, "x", None), (2, "y", 5)]


def test_bad_rows_are_kept_aside_and_the_others_say_the_types(world: World) -> None:
    adding(world, ingest_on_bad_row="quarantine")
    body = lines({"id": 1, "n": 1}) + "not json\n" + lines({"id": "?", "n": 2}, {"id": 3, "n": 3})
    assert world.ingest(world.drop("events/a.jsonl", body)) == []
    assert world.ingest(world.drop("events/b.csv", f'{HEAD},m\n4,1,x,4\n5,1,x,"5"5\n6,1\n7,1,x,7\n')) == []
    assert types(world) == {"n": "int64", "m": "int64"}
    assert [(row["id"], row["n"], row["m"]) for row in world.rows()] == [
        (1, 1, None),
        (3, 3, None),
        (4, None, 4),
        (7, None, 7),
    ]
    assert sorted(report["rows"] for report in world.rejects().values()) == [2, 2]


@pytest.mark.parametrize(
    ("name", "body", "phrase"),
    [
        ("a.csv", "1,7,x\n2,2,y\n", "column"),
        ("a.csv", f"{HEAD},_commit_ts\n1,1,x,5\n", "reserved"),
        ("a.csv", f"{HEAD},KIND\n1,1,x,5\n", "KIND"),
        ("a.csv", f"{HEAD},{'n' * 201}\n1,1,x,5\n", "201 characters"),
        ("a.jsonl", lines({"id": 1, **{f"user {number}": 1 for number in range(998)}}), "1,001"),
        ("a.jsonl", lines({"id": 1, **{f"user {number}": 1 for number in range(10_000)}}), "data"),
        ("a.jsonl", '{"id": 1, "n": 5\n', "not JSON"),
    ],
)
def test_a_column_that_cannot_be_rejects_its_file_with_the_reason(
    world: World, name: str, body: str, phrase: str
) -> None:
    adding(world)
    assert world.ingest(world.drop(f"events/{name}", body)) == []
    [reason] = reasons(world)
    assert phrase in reason
    assert [report["file"] for report in world.rejects().values()] == [f"events/{name}"]
    assert types(world) == {}


def test_a_new_field_in_a_struct_rejects_its_file(world: World) -> None:
    world.create(schema=pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))]))
    world.database.table("events").set(ingest_new_columns="add")
    body = lines({"id": 1, "s": {"a": 1, "b": 2}, "n": 3})
    assert world.ingest(world.drop("events/a.jsonl", body)) == []
    assert len(reasons(world)) == 1
    assert world.database.table("events").schema.names == ["id", "s"]


def test_logs_and_metrics_count_columns_and_do_not_name_them(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    adding(world)
    world.ingest(world.drop("events/a.csv", f"{HEAD},secret,n\n1,1,x,1,1\n"))
    output = capsys.readouterr().out
    assert "secret" not in output
    [metrics] = [line for line in map(json.loads, output.splitlines()) if "Messages" in line]
    assert metrics["ColumnsAdded"] == [2.0]
    [facts] = world.log_entries("drop ingested")
    assert facts["columns_added"] == 2


def test_new_columns_cost_no_request_of_the_database(world: World) -> None:
    """The dropped file is read twice, since its types are those of all its rows. The commit is as large as any."""
    costs: dict[str, list[tuple[int, int, int, int]]] = {}
    for setting in ("reject", "add"):
        name = f"events_{setting}"
        world.create(name)
        world.database.table(name).set(ingest_new_columns=setting)
        counted, landing = CountingStore(open_store(world.url)), FunctionSettings.of(os.environ).open()[1]
        database = Database(counted, Runtime())
        database.tables()
        for number in range(3):
            record = world.drop(f"{name}/{number}.csv", f"{HEAD},n{number}\n{number},1,x,5\n")
            if setting == "reject":
                record = world.drop(f"{name}/{number}.csv", f"{HEAD}\n{number},1,x\n")
            [message] = read_messages(sqs_event([notification(record)]))
            counted.reset()
            [outcome] = ingest_drops(database, landing, read_drops(message.body)[0]).outcomes
            assert outcome.status == "ingested"
            costs.setdefault(setting, []).append((counted.puts, counted.gets, counted.heads, counted.lists))
        assert len(world.database.table(name).schema.names) == (6 if setting == "add" else 3)
    assert costs["add"] == costs["reject"]
    assert costs["add"][1:] == [(3, 1, 0, 0)] * 2, "data, manifest, pointer; one look at the pointer"

"""Debezium's and DMS's envelopes, as their documentation shows them, become rows; what tells no change is a bad row."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.ingest.drops.drop_outcomes import RowCounts
from support.changes import Feed

CUSTOMERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("first_name", pa.string(), nullable=False),
        ("email", pa.string()),
        ("lsn", pa.int64()),
    ]
)


def customers(**properties: Any) -> Feed:
    """A table fed by Debezium."""
    feed = Feed()
    told = {"cdc_envelope": "debezium", "cdc_sequence": "lsn", "cdc_sequence_from": "source.lsn", **properties}
    feed.create(CUSTOMERS, **told)
    return feed


def source(lsn: Any) -> dict[str, Any]:
    """As the PostgreSQL connector writes it."""
    return {
        "version": "3.3.1.Final",
        "connector": "postgresql",
        "name": "PostgreSQL_server",
        "ts_ms": 1559033904863,
        "snapshot": "true",
        "db": "postgres",
        "sequence": '["24023119","24023128"]',
        "schema": "public",
        "table": "customers",
        "txId": 555,
        "lsn": lsn,
        "xmin": None,
    }


def event(op: str | None, before: Any, after: Any, lsn: Any, **more: Any) -> dict[str, Any]:
    """The payload of an event."""
    return {"before": before, "after": after, "source": source(lsn), "op": op, "ts_ms": 1559033904863, **more}


def row(id: int, name: str = "Anne", email: str | None = "annek@noanswer.org", **more: Any) -> dict[str, Any]:
    """An image of a customer."""
    return {"id": id, "first_name": name, "email": email, **more}


def lines(*documents: Any) -> bytes:
    """JSON lines."""
    return "".join(json.dumps(document) + "\n" for document in documents).encode()


def rows(feed: Feed, key: str = "id") -> dict[Any, dict[str, Any]]:
    """The table's rows by key."""
    return {row[key]: row for row in feed.place.db.table("t").to_arrow().to_pylist()}


WRAPPED = {"type": "struct", "name": "PostgreSQL_server.inventory.customers.Envelope", "optional": False, "fields": []}


@pytest.mark.parametrize("wrap", [False, True], ids=["bare", "with its schema"])
def test_events_of_debezium_create_read_update_and_delete_rows(wrap: bool) -> None:
    events: list[Any] = [
        event("r", None, row(1), 24023100),
        event("c", None, row(2, "Bob", None), 24023128, transaction=None),
        event("u", {"id": 1}, row(1, "Anne Marie"), 24023130),
        event("u", row(2, "Bob", None), row(2, "Robert", "b@example.org"), 24023131),
        event("d", {"id": 1, "first_name": "", "email": None}, None, 24023140),
    ]
    if wrap:
        events = [{"schema": WRAPPED, "payload": each} for each in events]
    feed = customers()
    assert feed.drop("a", lines(*events)) == RowCounts(upserted=1, deleted=1, unchanged=3)
    assert rows(feed) == {2: {**row(2, "Robert", "b@example.org"), "lsn": 24023131}}


POSITIONS: list[list[Any]] = [
    [24023100, 24023128, 24023130, 24023140],
    ["24023100", "24023128", "24023130", "24023140"],
    ["0/16E903C", "0/16E9058", "0/16E905A", "0/16e9064"],
]
"""One and the same, as connectors write them."""


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.string()], ids=str)
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_positions_are_numbers_or_text_and_one_order(kind: pa.DataType, wrap: bool, order: list[int]) -> None:
    feed = Feed()
    told = {"cdc_envelope": "debezium", "cdc_sequence": "lsn", "cdc_sequence_from": "source.lsn"}
    feed.create(CUSTOMERS.set(3, pa.field("lsn", kind)), **told)
    for number, form in enumerate(order):
        first, second, third, last = POSITIONS[form]
        events: list[Any] = [
            event("t", None, None, None) if number > 2 else None,
            event("u", row(1), row(1, f"older {form}"), first),
            event("u", row(1), row(1, "newest"), last),
            event("c", None, row(2, "gone"), second),
            event("d", row(2), None, third),
        ]
        body = lines(*({"schema": WRAPPED, "payload": each} if wrap and each else each for each in events))
        assert feed.drop(f"f{form}", body).upserted == (1 if number == 0 else 0)
    (found,) = rows(feed).values()
    assert (found["first_name"], int(found["lsn"])) == ("newest", 24023140)


def test_a_position_that_orders_nothing_may_be_anything() -> None:
    feed = customers(cdc_sequence_from="source.ts_ms")
    at = {"lsn": "0/16E903C", "txId": "x", "ts_ms": 7, "file": {"a": [1]}, "pos": -1.5, "scn": True}
    assert feed.drop("a", lines({"before": None, "after": row(1), "source": at, "op": "c"})).upserted == 1
    assert rows(feed)[1]["lsn"] == 7


@pytest.mark.parametrize(
    ("paths", "sources"),
    [
        (
            "source.file,source.pos",
            [{"file": "mysql-bin.000003", "pos": 154}, {"file": "mysql-bin.000003", "pos": 1540}],
        ),
        ("source.commit_lsn", [{"commit_lsn": "00000025:00000448:0003"}, {"commit_lsn": "00000027:00000758:0005"}]),
        ("source.scn", [{"scn": "999999"}, {"scn": "2868546"}]),
        ("source.scn", [{"scn": 999999}, {"scn": 2868546}]),
        ("source.ts_ms,source.ord", [{"ts_ms": 1580000000000, "ord": 9}, {"ts_ms": 1580000000000, "ord": 31}]),
    ],
    ids=["MySQL", "SQL Server", "Oracle", "Oracle, numbers", "MongoDB"],
)
def test_positions_of_other_connectors_order_changes(paths: str, sources: list[dict[str, Any]]) -> None:
    feed = Feed()
    told = {"cdc_envelope": "debezium", "cdc_sequence": "lsn", "cdc_sequence_from": paths}
    feed.create(CUSTOMERS.set(3, pa.field("lsn", pa.string())), **told)
    for number, at in enumerate(reversed(sources)):
        name = "newest" if number == 0 else "late"
        feed.drop(f"f{number}", lines({"before": None, "after": row(1, name), "source": at, "op": "u"}))
    assert rows(feed)[1]["first_name"] == "newest"


def test_a_position_that_is_none_is_a_bad_row() -> None:
    feed = customers()
    with pytest.raises(RowError, match="no sequence"):
        feed.drop("a", lines(event("c", None, row(1), "here")))


def test_tombstones_of_kafka_are_skipped() -> None:
    feed = customers()
    body = lines(event("c", None, row(1), 1), None, {"schema": None, "payload": None}, event("c", None, row(2), 2))
    assert feed.drop("a", body) == RowCounts(upserted=2)
    assert feed.drop("b", b"null\n" + lines(None) + b" null\r\n\r\nnull") == RowCounts()


def test_an_update_that_changes_the_key_deletes_the_old_one() -> None:
    feed = customers()
    feed.drop("a", lines(event("c", None, row(1), 10), event("c", None, row(3), 11)))
    assert feed.drop("b", lines(event("u", row(1), row(2), 12))) == RowCounts(upserted=1, deleted=1)
    assert rows(feed).keys() == {2, 3}
    assert feed.drop("late", lines(event("u", row(1), row(1, "older"), 11))) == RowCounts(unchanged=1)


def test_events_that_tell_no_change_are_bad_rows() -> None:
    bad: list[tuple[Any, str | None, str]] = [
        (event("t", None, None, 2), None, "its operation"),
        (event("x", None, row(3), 3), None, "its operation"),
        (event(None, None, row(4), 4), None, "its operation"),
        (event("u", row(5), None, 5), None, "the row it needs"),
        (event("d", None, row(6), 6), None, "the row it needs"),
        (event("c", None, row(7), None), "lsn", "no sequence"),
        (event("c", None, {"first_name": "x"}, 8), "id", "NULL in a key"),
        (event("d", {"first_name": "x"}, None, 9), "id", "NULL in a key"),
        (event("c", None, {"id": 10}, 10), "first_name", "NULL in a column that is not nullable"),
        ({"id": 11, "first_name": "no envelope"}, None, ""),
        (event("c", None, row(12, extra=1), 12), None, ""),
    ]
    feed = customers()
    feed.quarantine = True
    body = lines(event("c", None, row(1), 1), *(document for document, _, _ in bad[:-2]), event("c", None, row(9), 20))
    assert feed.drop("a", body) == RowCounts(upserted=2)
    told = [(each.row, each.column) for each in feed.bad]
    assert told == [(place, column) for place, (_, column, _) in enumerate(bad[:-2], 2)]
    assert all(reason in each.reason for each, (_, _, reason) in zip(feed.bad, bad, strict=False))
    feed.quarantine = False
    for number, (document, _, reason) in enumerate(bad[:-2]):
        with pytest.raises(RowError, match=f"row 2.*{reason}"):
            feed.drop(f"bad {number}", lines(event("c", None, row(100), 100), document))
    assert rows(feed).keys() == {1, 9}


def test_row_numbers_count_lines_that_could_not_be_parsed_but_not_those_that_say_null() -> None:
    feed = customers()
    feed.quarantine = True
    good = lines(event("c", None, row(1), 1))
    body = good + b"null\n{broken\n" + lines(event("t", None, None, 2)) + good + b"null\n" + lines(event("x", 1, 2, 3))
    feed.drop("a", body)
    assert [(each.row, each.line) for each in feed.bad if each.text is None] == [(3, None)]
    assert [(each.row, each.line) for each in feed.bad if each.text is not None] == [(2, 3), (5, 7)]


def test_a_column_that_the_table_does_not_have_is_refused_in_the_row_and_ignored_around_it() -> None:
    body = lines(event("c", None, row(1), 1, more={"x": 1}), event("c", None, row(2, phone="1"), 2))
    with pytest.raises(InputError, match="phone"):
        customers().drop("a", body)
    feed = customers(ingest_on_extra="ignore")
    assert feed.drop("a", body) == RowCounts(upserted=2)
    feed = customers()
    feed.quarantine = True
    assert feed.drop("a", body) == RowCounts(upserted=1)
    assert [bad.row for bad in feed.bad] == [2]


def test_times_and_decimals_as_debezium_writes_them() -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us")),
            ("zoned", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("hour", pa.time64("us")),
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("changed", pa.timestamp("us", tz="UTC")),
        ]
    )
    feed = Feed()
    feed.create(
        schema,
        cdc_envelope="debezium",
        cdc_sequence="changed",
        cdc_sequence_from="source.ts_ms",
        ingest_timestamp_format="epoch_ms",
    )
    after = {
        "id": 1,
        "at": 1559033904863,
        "zoned": "2019-05-28T08:58:24.863Z",
        "day": 18044,
        "hour": 32304863,
        "price": "12.50",
        "tags": ["a", "b"],
    }
    feed.drop("a", lines(event("c", None, after, 1)))
    assert rows(feed)[1] == {
        "id": 1,
        "at": datetime(2019, 5, 28, 8, 58, 24, 863000),
        "zoned": datetime(2019, 5, 28, 8, 58, 24, 863000, UTC),
        "day": date(2019, 5, 28),
        "hour": time(8, 58, 24, 863000),
        "price": Decimal("12.50"),
        "tags": ["a", "b"],
        "changed": datetime(2019, 5, 28, 8, 58, 24, 863000, UTC),
    }
    older = event("c", None, {**after, "price": "1"}, 1)
    older["source"]["ts_ms"] -= 1
    assert feed.drop("b", lines(older)) == RowCounts(unchanged=1)


def test_a_position_in_several_parts_orders_as_numbers_do() -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("position", pa.string())])
    feed = Feed()
    feed.create(
        schema, cdc_envelope="debezium", cdc_sequence="position", cdc_sequence_from="source.file,source.pos,source.row"
    )

    def binlog(file: str, pos: int, v: str) -> dict[str, Any]:
        at = {"connector": "mysql", "server_id": 223344, "file": file, "pos": pos, "row": 0, "thread": 7}
        return {"before": None, "after": {"id": 1, "v": v}, "source": at, "op": "u"}

    feed.drop("a", lines(binlog("mysql-bin.000003", 154, "a"), binlog("mysql-bin.000003", 99, "b")))
    assert rows(feed)[1]["v"] == "a"
    assert rows(feed)[1]["position"] == f"mysql-bin.000003/{154:020}/{0:020}"
    assert feed.drop("b", lines(binlog("mysql-bin.000004", 4, "c"))) == RowCounts(upserted=1)
    assert feed.drop("c", lines(binlog("mysql-bin.000003", 1540, "d"))) == RowCounts(unchanged=1)


def test_events_in_avro() -> None:
    image = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "first_name", "type": "string"},
            {"name": "email", "type": ["null", "string"]},
        ],
    }
    schema = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", image]},
            {"name": "after", "type": ["null", "Value"]},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "fields": [{"name": "name", "type": "string"}, {"name": "lsn", "type": ["null", "long"]}],
                },
            },
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"]},
        ],
    }

    def body(schema: Any, *events: Any) -> bytes:
        sink = BytesIO()
        fastavro.writer(sink, fastavro.parse_schema(schema), events, codec="deflate")
        return sink.getvalue()

    at = {"name": "server"}
    events: list[dict[str, Any]] = [
        {"before": None, "after": row(1), "source": {**at, "lsn": 1}, "op": "c", "ts_ms": 5},
        {"before": None, "after": row(2), "source": {**at, "lsn": 2}, "op": "c", "ts_ms": 5},
        {"before": row(1), "after": None, "source": {**at, "lsn": 3}, "op": "d", "ts_ms": None},
    ]
    feed = customers()
    assert feed.drop("a", body(schema, *events), "t/a.avro") == RowCounts(upserted=1, deleted=1, unchanged=1)
    assert rows(feed) == {2: {**row(2), "lsn": 2}}
    image["fields"].append({"name": "phone", "type": ["null", "string"], "default": None})  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="phone"):
        customers().drop("a", body(schema, *events), "t/a.avro")
    assert customers(ingest_on_extra="ignore").drop("a", body(schema, *events), "t/a.avro").upserted == 1


EMPLOYEES = pa.schema(
    [
        ("employee_id", pa.int64()),
        ("last_name", pa.string()),
        ("location", pa.string()),
        ("changed_at", pa.timestamp("us")),
    ]
)


def employees(**properties: Any) -> Feed:
    """A table fed by AWS DMS."""
    feed = Feed()
    told = {"cdc_envelope": "dms", "cdc_sequence": "changed_at", **properties}
    feed.create(EMPLOYEES, "employee_id", **told)
    return feed


def test_files_of_dms_with_operations_and_full_loads_without() -> None:
    feed = employees()
    load = "employee_id,last_name,location,changed_at\n101,Smith,New York,2014-06-04 00:00:00.000000\n"
    assert feed.drop("load", load.encode(), "t/LOAD00000001.csv") == RowCounts(upserted=1)
    changes = (
        "Op,employee_id,last_name,location,changed_at\n"
        "I,102,Jones,Boston,2014-06-05 10:00:00.000001\n"
        "U,101,Smith,Los Angeles,2015-10-08 10:00:00.000000\n"
        "U,101,Smith,Dallas,2017-03-13 10:00:00.000000\n"
        "D,102,,,2017-03-13 10:00:00.000001\n"
    )
    name = "t/20141029-1134010000.csv"
    assert feed.drop("a", changes.encode(), name) == RowCounts(upserted=1, deleted=1, unchanged=2)
    assert feed.drop("load again", load.encode(), "t/LOAD00000001.csv") == RowCounts(unchanged=1)
    found = rows(feed, "employee_id")
    assert {key: found[key]["location"] for key in found} == {101: "Dallas"}
    with pytest.raises(RowError, match="row 1: its operation"):
        feed.drop("b", b"Op,employee_id,last_name,location,changed_at\nX,1,a,b,2020-01-01 00:00:00\n", name)


@pytest.mark.parametrize("first", ["I,102,Jones,Boston,2014-06-05 10:00:00", ",102,Jones,Boston,2014-06-05 10:00:00"])
def test_a_file_of_which_only_some_rows_have_an_operation_has_bad_rows(first: str) -> None:
    feed = employees()
    second = ("" if first[0] == "I" else "D") + ",101,Smith,Dallas,2017-03-13 10:00:00"
    with pytest.raises(RowError, match="row 2: its operation"):
        feed.drop("a", f"Op,employee_id,last_name,location,changed_at\n{first}\n{second}\n".encode(), "t/a.csv")


def test_files_of_dms_without_a_header_have_the_operation_first() -> None:
    feed = employees(ingest_header="false")
    body = b"I,101,Smith,New York,2014-06-04 00:00:00\nD,101,Smith,New York,2014-06-05 00:00:00\n"
    assert feed.drop("a", body, "t/a.csv") == RowCounts(deleted=1, unchanged=1)


def test_files_of_dms_in_parquet_ordered_by_a_column_that_only_they_have() -> None:
    feed = Feed()
    schema = pa.schema([("employee_id", pa.int64()), ("last_name", pa.string()), ("sequence", pa.string())])
    feed.create(schema, "employee_id", cdc_envelope="dms", cdc_sequence="sequence", cdc_sequence_from="AR_H_CHANGE_SEQ")

    def drop(id: str, *changes: tuple[str, int, str, str]) -> RowCounts:
        names = ["Op", "employee_id", "last_name", "AR_H_CHANGE_SEQ"]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist([dict(zip(names, each, strict=True)) for each in changes]), sink)
        return feed.drop(id, bytes(sink.getvalue()), "t/a.parquet")

    first, second = "20260105100000000000000000000000017", "20260105100000000000000000000000018"
    assert drop("a", ("I", 1, "Smith", first), ("U", 1, "Miller", second)) == RowCounts(upserted=1, unchanged=1)
    assert drop("b", ("D", 1, "Smith", first)) == RowCounts(unchanged=1)
    assert rows(feed, "employee_id")[1] == {"employee_id": 1, "last_name": "Miller", "sequence": second}


@pytest.mark.parametrize("word", ["I", "insert", "INSERT", "c", "U", "Update", "d", "DELETE", " D ", None])
def test_words_for_operations_of_flat_files(word: str | None) -> None:
    feed = Feed()
    feed.create(cdc_operation="what")
    counts = feed.drop("a", lines({"what": word, "id": 1, "v": "a", "seq": 1}))
    assert counts == (RowCounts(deleted=1) if word and word.strip()[0] in "dD" else RowCounts(upserted=1))


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"cdc_envelope": "debezium", "cdc_sequence_from": "after.seq"}, "deletes"),
        ({"cdc_envelope": "debezium", "cdc_sequence_from": "source.a,source.a.b", "cdc_sequence": "v"}, "continues"),
        ({"cdc_operation": "v"}, "column"),
        ({"cdc_sequence_from": "v"}, "is no int64"),
    ],
)
def test_settings_that_do_not_go_with_the_table_are_explained(properties: dict[str, str], problem: str) -> None:
    feed = Feed()
    feed.create(**properties)
    with pytest.raises(SchemaError, match=problem):
        feed.drop("a", lines({"id": 1}))


def test_fields_around_the_row_may_be_of_any_type_and_of_several() -> None:
    feed = customers()
    odd: list[Any] = [1, "text", None, {"x": [1, "a", {}]}, [[1], ["a"]], True, 1e400, 12345678901234567890123]
    events = [event("c", None, row(n), n, transaction=what, more={"it": what}) for n, what in enumerate(odd)]
    assert feed.drop("a", lines(*events)) == RowCounts(upserted=len(odd))
    with pytest.raises(InputError, match="phone"):
        feed.drop("b", lines(*events, event("c", None, row(99, phone="1"), 99)))

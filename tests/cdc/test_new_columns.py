"""Columns that a source gets while its changes are captured: added, named by a schema or inferred, or refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.errors import RowError, SchemaError
from dolmen.format.ingest_properties import IngestSettings
from dolmen.ingest.cdc.apply_changes import ingest_changes
from dolmen.ingest.drops.drop_outcomes import RowCounts
from dolmen.ingest.formats.formats import SourceFile, detect
from dolmen.ingest.formats.source_file import ReadOptions
from dolmen.ingest.new_columns import NewColumns, ingest_with_new_columns
from dolmen.transactions.transaction import unit_of
from support.changes import Place

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("lsn", pa.int64())])
DEBEZIUM = {"cdc_envelope": "debezium", "cdc_sequence": "lsn", "cdc_sequence_from": "source.lsn"}


class Adding:
    """A table that gets the columns of the changes it takes."""

    def __init__(self, **properties: Any) -> None:
        self.db = Place().db
        told = {"ingest_mode": "cdc", "ingest_new_columns": "add", **(properties or DEBEZIUM)}
        self.db.create_table("t", COLUMNS, primary_key="id", properties=told)

    def drop(self, body: bytes | str, name: str = "t/a.jsonl") -> RowCounts:
        """Applies one file."""
        content, counts = body.encode() if isinstance(body, str) else body, RowCounts()
        with self.db.transaction("ingest") as transaction:
            settings = IngestSettings.of(unit_of(transaction).entry("t"))
            source = SourceFile(lambda: BytesIO(content), detect(name), name, ReadOptions.of(settings))

            def ingest(settings: IngestSettings, new: NewColumns) -> None:
                nonlocal counts
                counts = ingest_changes(
                    transaction, "t", source, settings=settings, on_bad_row=None, request=name, unused=new.empty
                )

            transaction.bind(name, "")
            ingest_with_new_columns(transaction, "t", source, settings, name, ingest)
        return counts

    def types(self) -> dict[str, str]:
        """The columns that were added."""
        return {field.name: str(field.type) for field in list(self.db.table("t").schema)[3:]}

    def rows(self) -> list[dict[str, Any]]:
        """The rows by key, without the sequence."""
        found = self.db.table("t").to_arrow().drop_columns(["lsn"]).to_pylist()
        return sorted(found, key=lambda row: row["id"])


def event(lsn: int, after: Any, *, op: str = "c", before: Any = None, fields: Any = None) -> str:
    """One line, with a schema if ``fields`` are given: types of the columns by name."""
    payload = {"before": before, "after": after, "source": {"lsn": lsn, "snapshot": "false"}, "op": op, "ts_ms": lsn}
    if fields is None:
        return json.dumps(payload) + "\n"
    columns = [{"field": name, **(kind if isinstance(kind, dict) else {"type": kind})} for name, kind in fields.items()]
    images = [{"type": "struct", "fields": columns, "optional": True, "field": side} for side in ("before", "after")]
    schema = {"type": "struct", "fields": images, "optional": False, "name": "s.public.t.Envelope"}
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")) + "\n"


def test_a_column_that_appears_is_added_and_older_rows_have_none() -> None:
    table = Adding()
    assert table.drop(event(1, {"id": 1, "name": "a"}) + event(2, {"id": 2, "name": "b", "n": 7})).upserted == 2
    assert table.types() == {"n": "int64"}
    assert table.rows() == [{"id": 1, "name": "a", "n": None}, {"id": 2, "name": "b", "n": 7}]
    table.drop(event(3, {"id": 2, "name": "b"}, op="u"), "t/b.jsonl")  # the source has dropped it
    assert table.rows()[1] == {"id": 2, "name": "b", "n": None}


def test_types_come_from_the_schema_in_the_envelope() -> None:
    table = Adding(**DEBEZIUM, ingest_timestamp_format="epoch_us")
    fields = {
        "id": "int64",
        "name": "string",
        "tiny": "int8",
        "small": "int16",
        "whole": "int32",
        "ratio": "float",
        "exact": "double",
        "flag": "boolean",
        "raw": "bytes",
        "day": {"type": "int32", "name": "io.debezium.time.Date"},
        "us": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        "ms": {"type": "int64", "name": "io.debezium.time.Timestamp"},
        "zoned": {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        "money": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "unset": "int32",
    }
    row = {
        "id": 1,
        "name": "a",
        "tiny": 1,
        "small": 2,
        "whole": 3,
        "ratio": 0.5,
        "exact": 0.1,
        "flag": True,
        "raw": "AQI=",
        "day": 20458,
        "us": 1767607200000001,
        "ms": 1767607200000,
        "zoned": "2026-01-05T10:00:00.5Z",
        "money": "12.50",
        "tags": ["x"],
        "unset": None,
    }
    table.drop(event(1, row, fields=fields))
    assert table.types() == {
        "tiny": "int8",
        "small": "int16",
        "whole": "int32",
        "ratio": "float",
        "exact": "double",
        "flag": "bool",
        "raw": "binary",
        "day": "date32[day]",
        "us": "timestamp[us]",
        "ms": "int64",
        "zoned": "timestamp[us, tz=UTC]",
        "money": "string",
        "tags": "list<item: string>",
        "unset": "int32",
    }
    [found] = table.rows()
    assert found == row | {
        "raw": b"\x01\x02",
        "day": date(2026, 1, 5),
        "us": datetime(2026, 1, 5, 10, 0, 0, 1),
        "zoned": datetime(2026, 1, 5, 10, 0, 0, 500_000, UTC),
    }


@pytest.mark.parametrize("schema_first", [True, False])
def test_types_come_from_the_schema_also_of_tables_with_columns_named_like_its_members(schema_first: bool) -> None:
    """The outbox of the outbox pattern has a column ``payload``."""
    table = Adding(**DEBEZIUM, ingest_timestamp_format="epoch_us")
    fields = {"id": "int64", "payload": "string", "schema": "string", "field": "int16", "later": "int32"}
    row = {"id": 1, "payload": '{"schema": 1}', "schema": "public", "field": 1, "later": None}
    lines = [event(lsn, {**row, "id": lsn}, fields=fields) for lsn in (1, 2)]
    at = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
    lines.append(event(3, {**row, "id": 3, "at": 1767607200000001}, fields={**fields, "at": at}))
    if not schema_first:
        lines = [json.dumps(dict(reversed(json.loads(line).items()))) + "\n" for line in lines]
    table.drop("".join(lines))
    kinds = {"payload": "string", "schema": "string", "field": "int16", "later": "int32", "at": "timestamp[us]"}
    assert table.types() == kinds
    assert len(table.rows()) == 3


@pytest.mark.parametrize("fields", [5, ["n"], [{"type": "int32"}], [{"field": "n", "type": "array"}]])
def test_a_schema_that_can_not_be_read_rejects_its_file(fields: Any) -> None:
    image = {"field": "after", "type": "struct", "fields": fields}
    payload = json.loads(event(1, {"id": 1, "name": "a", "n": 1}))
    with pytest.raises(SchemaError, match=r"'t/a\.jsonl'"):
        Adding().drop(json.dumps({"schema": {"type": "struct", "fields": [image]}, "payload": payload}) + "\n")


def test_a_column_that_is_widened_within_a_file_gets_the_wider_type() -> None:
    table, small = Adding(), {"id": "int64", "name": "string", "n": "int32"}
    body = event(1, {"id": 1, "name": "a", "n": 1}, fields=small)
    body += event(2, {"id": 2, "name": "b", "n": 2**40}, fields=small | {"n": "int64"})
    table.drop(body)
    assert table.types() == {"n": "int64"}
    assert [row["n"] for row in table.rows()] == [1, 2**40]


def test_a_column_that_the_source_has_widened_is_widened() -> None:
    table = Adding()
    fields = {"id": "int64", "name": "string", "n": "int32"}
    table.drop(event(1, {"id": 1, "name": "a", "n": 1}, fields=fields))
    table.drop(event(2, {"id": 2, "name": "b", "n": 2**40}, fields=fields | {"n": "int64"}), "t/b.jsonl")
    assert table.types() == {"n": "int64"}
    assert [row["n"] for row in table.rows()] == [1, 2**40]


def test_decimals_in_bytes_are_refused_with_what_to_do() -> None:
    kind = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    fields = {"id": "int64", "name": "string", "price": kind}
    with pytest.raises(SchemaError, match=r"'price'.*decimal\.handling\.mode"):
        Adding().drop(event(1, {"id": 1, "name": "a", "price": "BNI="}, fields=fields))


def test_a_renamed_column_is_another_one() -> None:
    table = Adding()
    table.drop(event(1, {"id": 1, "name": "a", "old": "x"}))
    table.drop(event(2, {"id": 1, "name": "a", "new": "x"}, op="u"), "t/b.jsonl")
    assert table.rows() == [{"id": 1, "name": "a", "old": None, "new": "x"}]


def test_messages_about_the_schema_and_tombstones_are_skipped_and_the_former_counted() -> None:
    ddl = {
        "source": {"lsn": 2, "file": "mysql-bin.000003", "pos": 219},
        "ts_ms": 1,
        "databaseName": "inventory",
        "schemaName": None,
        "ddl": "ALTER TABLE t ADD COLUMN n INT",
        "tableChanges": [{"type": "ALTER", "id": '"inventory"."t"', "table": {"columns": []}}],
    }
    table = Adding()
    body = (
        event(1, {"id": 1, "name": "a"})
        + json.dumps(ddl)
        + "\nnull\n"
        + json.dumps({"payload": ddl | {"ddl": None}})
        + "\n"
    )
    body += event(3, None, op="d", before={"id": 1}) + event(4, {"id": 2, "name": "b", "n": 1})
    counts = table.drop(body)
    assert (counts.upserted, counts.deleted, counts.ddl) == (1, 1, 2)
    assert table.rows() == [{"id": 2, "name": "b", "n": 1}]


def test_a_column_of_nulls_is_added_only_if_a_schema_names_its_type() -> None:
    table = Adding()
    table.drop(event(1, {"id": 1, "name": "a", "n": None}))
    assert table.types() == {}
    fields = {"id": "int64", "name": "string", "n": "int32"}
    table.drop(event(2, {"id": 1, "name": "a", "n": None}, fields=fields), "t/b.jsonl")
    assert table.types() == {"n": "int32"}


def test_avro_says_the_types() -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    row["fields"] += [{"name": "name", "type": "string"}, {"name": "n", "type": ["null", "int"]}]
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": {"type": "record", "name": "S", "fields": [{"name": "lsn", "type": "long"}]}},
            {"name": "op", "type": "string"},
        ],
    }
    after = {"id": 1, "name": "a", "n": 5}
    target = BytesIO()
    fastavro.writer(target, envelope, [{"before": None, "after": after, "source": {"lsn": 1}, "op": "c"}])
    table = Adding()
    table.drop(target.getvalue(), "t/a.avro")
    assert (table.types(), table.rows()) == ({"n": "int32"}, [after])


TIMES = {
    "day": ("int", "io.debezium.time.Date"),
    "us": ("long", "io.debezium.time.MicroTimestamp"),
    "ms": ("long", "io.debezium.time.Timestamp"),
    "zoned": ("string", "io.debezium.time.ZonedTimestamp"),
    "unset": ("long", "io.debezium.time.MicroTimestamp"),
    "kafka": ("int", "org.apache.kafka.connect.data.Date"),
    "other": ("long", "io.debezium.time.Elsewhere"),
}
WRITTEN = {
    "day": 20458,
    "us": 1767607200000001,
    "ms": 1767607200000,
    "unset": None,
    "kafka": 20458,
    "other": 7,
    "zoned": "2026-01-05T10:00:00.5Z",
}


def avro_event(lsn: int, after: dict[str, Any]) -> bytes:
    """A file with one event, as Debezium's connectors write it through Kafka Connect."""
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    for name, (kind, connect) in TIMES.items():
        fields.append({"name": name, "type": ["null", {"type": kind, "connect.version": 1, "connect.name": connect}]})
    images = [
        {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": fields}]},
        {"name": "after", "type": ["null", "Value"]},
    ]
    source = {"name": "source", "type": {"type": "record", "name": "S", "fields": [{"name": "lsn", "type": "long"}]}}
    envelope = {"type": "record", "name": "Envelope", "fields": [*images, source, {"name": "op", "type": "string"}]}
    target = BytesIO()
    fastavro.writer(target, envelope, [{"before": None, "after": after, "source": {"lsn": lsn}, "op": "c"}])
    return target.getvalue()


@pytest.mark.parametrize("unit", ["epoch_us", "epoch_ms", None])
def test_avro_says_the_times_that_kafka_connect_names(unit: str | None) -> None:
    table = Adding(**DEBEZIUM, **({"ingest_timestamp_format": unit} if unit else {}))
    table.drop(avro_event(1, {"id": 1, **WRITTEN}), "t/a.avro")
    day = "date32[day]" if unit else "int32"
    us, ms = ("timestamp[us]" if unit == each else "int64" for each in ("epoch_us", "epoch_ms"))
    zoned = "timestamp[us, tz=UTC]"
    kinds = {"day": day, "us": us, "ms": ms, "zoned": zoned, "unset": us, "kafka": day, "other": "int64"}
    assert table.types() == kinds
    [found] = table.rows()
    assert found["zoned"] == datetime(2026, 1, 5, 10, 0, 0, 500_000, tzinfo=UTC)
    assert found["day"] == (date(2026, 1, 5) if unit else 20458)
    assert found["us"] == (datetime(2026, 1, 5, 10, 0, 0, 1) if unit == "epoch_us" else WRITTEN["us"])
    assert found["ms"] == (datetime(2026, 1, 5, 10) if unit == "epoch_ms" else WRITTEN["ms"])


def test_times_that_kafka_connect_names_in_avro_fit_columns_of_times_and_of_what_they_are_written_as() -> None:
    table = Adding()
    stored = {"day": pa.date32(), "us": pa.timestamp("us", tz="UTC"), "ms": pa.timestamp("us"), "zoned": pa.string()}
    for name, kind in stored.items():
        table.db.table("t").add_column(name, kind)
    table.drop(avro_event(1, {"id": 1, **WRITTEN}), "t/a.avro")
    [found] = table.rows()
    assert {name: found[name] for name in stored} == {
        "day": date(2026, 1, 5),
        "us": datetime(2026, 1, 5, 10, 0, 0, 1, tzinfo=UTC),
        "ms": datetime(2026, 1, 5, 10),
        "zoned": WRITTEN["zoned"],
    }


def test_a_text_in_avro_that_is_no_time_with_a_zone_is_the_fault_of_its_row() -> None:
    table = Adding()
    table.db.table("t").add_column("zoned", pa.timestamp("us", tz="UTC"))
    with pytest.raises(RowError, match=r"row 1.*'soon'"):
        table.drop(avro_event(1, {"id": 1, **WRITTEN, "zoned": "soon"}), "t/a.avro")


def test_files_of_dms_with_a_column_more_and_one_less() -> None:
    table = Adding(cdc_envelope="dms", cdc_sequence="lsn")
    table.drop("id,name,lsn\n1,a,1\n2,b,1\n", "t/LOAD00000001.csv")
    table.drop("Op,id,name,lsn,price\nI,3,c,2,1.5\nU,1,A,3,2.5\n", "t/20260105-1.csv")
    table.drop("Op,id,lsn\nD,2,4\nU,3,5\n", "t/20260105-2.csv")
    assert table.types() == {"price": "double"}
    assert table.rows() == [{"id": 1, "name": "A", "price": 2.5}, {"id": 3, "name": None, "price": None}]
    target = BytesIO()
    pq.write_table(pa.table({"Op": ["U"], "id": [3], "lsn": [6], "day": pa.array([date(2026, 1, 5)])}), target)
    table.drop(target.getvalue(), "t/20260105-3.parquet")
    assert table.types() == {"price": "double", "day": "date32[day]"}


def test_days_become_times_in_typed_files_of_dms() -> None:
    table = Adding(cdc_envelope="dms", cdc_sequence="lsn")
    at = datetime(2026, 1, 5, 10)
    for lsn, day in ((1, pa.array([date(2026, 1, 4)])), (2, pa.array([at], pa.timestamp("us")))):
        target = BytesIO()
        pq.write_table(pa.table({"Op": ["I"], "id": [lsn], "lsn": [lsn], "day": day}), target)
        table.drop(target.getvalue(), f"t/2026010{lsn}-1.parquet")
    assert table.types() == {"day": "timestamp[us]"}
    assert [row["day"] for row in table.rows()] == [datetime(2026, 1, 4), at]


def test_a_file_that_fits_but_for_one_bad_row_is_refused_for_that_row() -> None:
    with pytest.raises(SchemaError):
        Adding().drop(event(1, {"other": 1}))

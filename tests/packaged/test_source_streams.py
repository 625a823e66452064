"""Streams of sources whose columns change, replayed through the packaged ingest function, equal the source at the end.

The files come in random batches, out of order, and twice. By default each connector has schemas in its lines or not, as
the run's seed says: if one has, the other has none.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database
from support.event_builders import notification, s3_record, sqs_event
from support.ministack import boto3_client
from support.rie import Emulator, Start
from support.source_streams import LiveSource, Row, debezium_lines, dms_files

pytestmark = pytest.mark.slow

SEED = os.environ["DOLMEN_TEST_SEED"]
CHANGES = 60
CONNECTORS = ["mysql", "mysql with schemas", "postgresql", "postgresql with schemas"]
PAIRED = random.Random(SEED).choice([CONNECTORS[::3], CONNECTORS[1:3]])
DRAWN = CONNECTORS if os.environ.get("DOLMEN_LONG") else PAIRED


def files_of(source: LiveSource, form: str, rng: random.Random) -> list[str]:
    """The change files that a connector writes for a source; each has some of the lines."""
    if form == "dms":
        return list(dms_files(source.told))
    connector, _, schemas = form.partition(" ")
    lines = list(debezium_lines(source.told, connector, schemas=bool(schemas)))
    files = []
    while lines:
        count = rng.randint(1, 15)
        files.append("".join(line + "\n" for line in lines[:count]))
        lines = lines[count:]
    return files


def create(database: Database, form: str) -> str:
    """Creates the table that follows the source; returns the name of its sequence."""
    settings: dict[str, Any] = {"ingest_mode": "cdc", "ingest_new_columns": "add"}
    if form == "dms":
        name, kind = "change_seq", pa.int64()
        settings |= {"cdc_envelope": "dms", "cdc_sequence": name}
    elif form.startswith("mysql"):
        name, kind = "place", pa.string()
        paths = "source.file,source.pos"
        settings |= {"cdc_envelope": "debezium", "cdc_sequence": name, "cdc_sequence_from": paths}
    else:
        name, kind = "place", pa.int64()
        settings |= {"cdc_envelope": "debezium", "cdc_sequence": name, "cdc_sequence_from": "source.lsn"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), (name, kind)])
    database.create_table("customers", schema, primary_key="id", properties=settings)
    return name


@pytest.mark.parametrize("form", [*DRAWN, "dms"])
def test_a_stream_with_changes_of_columns_gives_the_rows_of_its_source(
    database: Database, start: Start, ministack: str, s3_url: str, form: str
) -> None:
    rng = random.Random(f"{SEED} {form}")
    source = LiveSource(rng)
    source.live(CHANGES)
    sequence = create(database, form)
    files = files_of(source, form, rng)
    records = [put(ministack, s3_url, f"{number}{ending(form)}", body) for number, body in enumerate(files)]
    again = [*records, *rng.sample(records, len(records) // 2)]
    rng.shuffle(again)
    ingest = start("ingest")
    deliver(ingest, again, rng)
    assert rejects(ministack, s3_url) == []
    assert rows(database, sequence, source) == source.rows(), f"{SEED} {form}"


def rows(database: Database, sequence: str, source: LiveSource) -> list[Row]:
    """The rows by key, with the columns that the source has now; one that nobody has a value in may be missing."""
    table = database.table("customers").to_arrow().drop_columns([sequence])
    found = sorted(table.to_pylist(), key=lambda row: row["id"])
    return [{name: row.get(name) for name in source.types} for row in found]


def ending(form: str) -> str:
    return ".csv" if form == "dms" else ".jsonl"


def put(endpoint: str, url: str, name: str, body: str) -> dict[str, Any]:
    """Drops a file; returns S3's record of it."""
    bucket, key = url.removeprefix("s3://").partition("/")[0], f"landing/customers/{name}"
    done = boto3_client("s3", endpoint).put_object(Bucket=bucket, Key=key, Body=body.encode())
    return s3_record(key, done["ETag"], bucket=bucket, size=len(body.encode()), sequencer="01")


def deliver(ingest: Emulator, records: list[dict[str, Any]], rng: random.Random) -> None:
    """Delivers records in batches until none of them fails, as a queue does."""
    for _ in range(100):
        batch, records = records[: (count := rng.randint(1, 6))], records[count:]
        if not batch:
            return
        answer = ingest.invoke(sqs_event([notification(record) for record in batch]))
        assert answer.error is None, answer.error
        failed = {failure["itemIdentifier"] for failure in answer.payload["batchItemFailures"]}
        records += [record for number, record in enumerate(batch) if f"message-{number}" in failed]
    raise AssertionError(f"{len(records)} records fail again and again")


def rejects(endpoint: str, url: str) -> list[str]:
    """The reports of rejected files, and what was rejected."""
    client, bucket = boto3_client("s3", endpoint), url.removeprefix("s3://").partition("/")[0]
    listed = client.list_objects_v2(Bucket=bucket, Prefix="rejected/").get("Contents", [])
    return [client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read().decode() for each in listed]

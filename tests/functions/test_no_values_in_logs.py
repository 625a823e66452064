"""No value of the data or of a request reaches a log record or a metric, whatever is wrong with it.

Marked values stand in every place that a file, a request and an event have; nothing that a function logs, prints or
raises may hold them. Names are no values: of buckets, keys, tables and columns, and request ids. What is rejected lies
beside the data, and its report may quote it.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.event_builders import notification, sqs_event
from support.functions import World
from support.malformed_case import USERS, as_parquet
from support.malformed_events import MALFORMED_EVENTS
from support.malformed_requests import MALFORMED_REQUESTS, TYPED

TEXT, NUMBER = "Zqx Marker", 7391846205518273
TRACES = ("zqx", "7391846205", "7,391,846,205")


def variants(document: Any) -> Iterator[Any]:
    """The document with each of its values, and each name of a member, marked in turn."""
    if isinstance(document, dict):
        for name, value in document.items():
            rest = {other: each for other, each in document.items() if other != name}
            yield {**rest, TEXT: value}
            if name not in ("request_id", "key", "versionId", "version-id", "size"):  # ids, places and sizes are logged
                yield from ({**document, name: variant} for variant in variants(value))
    elif isinstance(document, list):
        for place, value in enumerate(document[:3]):
            yield from ([*document[:place], variant, *document[place + 1 :]] for variant in variants(value))
    else:
        yield from (TEXT, NUMBER, -NUMBER, NUMBER / 1024)


def assert_silent(world: World, printed: str, raised: Sequence[BaseException] = ()) -> None:
    """Nothing heard, printed or raised holds a marked value."""
    told = [json.dumps(facts, default=str, ensure_ascii=False) for facts in world.listener.entries]
    for facts in world.listener.entries:
        if facts.get("exc_info"):
            told += traceback.format_exception(*facts["exc_info"])
    told += [line for error in raised for line in traceback.format_exception(error)]
    assert told
    assert '"_aws":' in printed
    told += printed.splitlines()
    assert [line for line in told if any(trace in line.lower() for trace in TRACES)] == []


PREDICATES = [
    f"kind = '{TEXT}'",
    f"kind = '{TEXT}",
    f"kind = '{TEXT}' AND",
    f"kind = '{TEXT}' id = 1",
    f"kind = '{TEXT}'; DELETE FROM typed",
    f"lower(kind) = '{TEXT}'",
    f"kind = lower('{TEXT}')",
    f"kind IN ('a', '{TEXT}', lower('b'))",
    f"kind LIKE '{TEXT}' ESCAPE '{TEXT}'",
    f"kind IN (SELECT '{TEXT}')",
    f"'{TEXT}'",
    f'"{TEXT}" = 1',
    f"{TEXT}",
    f"-- {TEXT}",
    f"/* {TEXT} */ id",
    f"id = '{TEXT}'",
    f"id = '{NUMBER}x'",
    f"id = {NUMBER} id",
    f"id = {NUMBER}.5.5",
    f"id + {NUMBER} = 1",
    f"id = {NUMBER} / 0",
    f"small = CAST({NUMBER} AS TINYINT)",
    f"small = '{NUMBER}'",
    f"paid = '{NUMBER}.123'",
    f"born = '{TEXT}'",
    f"born = {NUMBER}",
    f"seen = '{TEXT}'",
    f"seen < now() - INTERVAL '{TEXT}'",
    f"seen < now() - INTERVAL {NUMBER} YEAR",
    f"seen < now() - INTERVAL {NUMBER} fortnight",
    f"raw = '{TEXT}ä'",
    f"ok = '{TEXT}'",
    f"tags = '{TEXT}'",
    f"id BETWEEN '{TEXT}' AND {NUMBER}",
    f"id = CAST('{TEXT}' AS INTEGER)",
    f"id = $1 AND kind = '{TEXT}'",
    f"kind = read_text('{TEXT}')",
    f"zqx('{TEXT}') = 1",
    "(" * 30 + f"kind = '{TEXT}'" + ")" * 30,
]


@pytest.mark.slow
def test_values_of_delete_requests_are_in_no_log(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.database.create_table("typed", TYPED, primary_key="id")
    world.database.create_table("keyless", pa.schema([("id", pa.int64())]))
    world.database.table("typed").append(pa.table({"id": range(3), "kind": [TEXT] * 3}))
    bodies: list[Any] = [{"table": "typed", "where": where} for where in PREDICATES]
    bodies += [{"table": "typed", "where": where, "mode": "positions"} for where in PREDICATES]
    for case in MALFORMED_REQUESTS:
        if len(case.text) < 1000 and case.text.startswith(("{", "[")):
            try:
                bodies += variants(json.loads(case.text))
            except (ValueError, RecursionError):
                bodies.append(case.text.replace("1", str(NUMBER)).replace("x", TEXT))
    assert len(bodies) > 1000
    for number, start in enumerate(range(0, len(bodies), 300)):
        part = bodies[start : start + 300]
        world.invoke("delete", sqs_event(part, [f"message-{number}-{n}" for n in range(len(part))]))
    raised = []
    for number, body in enumerate(bodies[:: len(bodies) // 40]):
        world.context.aws_request_id = f"invocation-{number}"
        try:
            world.invoke("delete", body)
        except Exception as error:  # noqa: BLE001 - what Lambda would log
            raised.append(error)
    assert len(raised) > 10
    assert len(world.log_entries("delete failed")) > 1000
    assert len(world.log_entries("delete applied")) > 10
    assert_silent(world, capsys.readouterr().out, raised)


@pytest.mark.parametrize("key", [99.99, -99.99, 1.5, 10.0625, 1e-7, 3.0e22])
@pytest.mark.parametrize("form", ["delete", "erase"])
def test_short_numbers_of_delete_requests_are_in_no_log(world: World, key: float, form: str) -> None:
    world.database.create_table("typed", TYPED, primary_key="id")
    request = {"table": "typed", "keys": [7, key]}
    assert len(world.delete(request if form == "delete" else {"erase": request})) == 1
    [entry] = world.log_entries("delete failed")
    assert entry["reason"].startswith("keys do not fit id int64: ")
    assert [part for part in re.findall(r"\d+", entry["reason"].partition(": ")[2]) if part in repr(key)] == []


def _files() -> Iterator[tuple[str, bytes | str]]:
    """Files with marked values everywhere, for the table ``users`` of schema ``USERS``; some can be read."""
    yield "good.csv", f"id,name\n{NUMBER},{TEXT}\n"
    yield "good.jsonl", json.dumps({"id": NUMBER, "name": TEXT, "tags": [TEXT]})
    yield "good.parquet", as_parquet(pa.table({"id": [NUMBER], "name": [TEXT]}))
    for column in (field.name for field in USERS if field.name != "id"):
        for place, value in enumerate((TEXT, f"{NUMBER}.{NUMBER}")):
            yield f"{column}-{place}.csv", f'id,{column}\n1,"{value}"\n'
            yield f"{column}-{place}.tsv", f"id\t{column}\n1\t{value}\n"
            yield f"{column}-{place}.jsonl", json.dumps({"id": 1, column: value})
            yield f"{column}-{place}-list.jsonl", json.dumps({"id": 1, column: [value, NUMBER, {TEXT: value}]})
            yield f"{column}-{place}-object.jsonl", json.dumps({"id": 1, column: {TEXT: value, "x": NUMBER}})
        yield f"{column}-number.jsonl", json.dumps({"id": 1, column: NUMBER / 1024})
        yield f"{column}.parquet", as_parquet(pa.table({"id": [1], column: [TEXT]}))
        yield f"{column}-number.parquet", as_parquet(pa.table({"id": [1], column: [NUMBER]}))
        yield f"{column}-float.parquet", as_parquet(pa.table({"id": [1], column: [NUMBER / 1024]}))
    for place, text in enumerate(
        (
            f"{TEXT}\n1\n",
            f"id,{TEXT}\n1,2\n",
            f"{TEXT},{TEXT}\n1,2\n",
            f"{TEXT}",
            f"id\n{TEXT}\n",
            f"id,name\n1,{TEXT},{TEXT}\n",
            f'id,name\n1,"{TEXT}\n',
            f'id,name\n1,"{TEXT}"{TEXT}\n',
            f"id,name\n,{TEXT}\n",
            f"id;name\n{NUMBER};{TEXT}\n",
            f"PK\x03\x04{TEXT}",
            f"PAR1{TEXT}PAR1",
            f"{TEXT}\0{TEXT}",
        )
    ):
        yield f"text-{place}.csv", text
        yield f"text-{place}.csv.gz", text
        yield f"text-{place}.parquet", text
        yield f"text-{place}.zst.parquet", text
    for place, text in enumerate(
        (
            f'{{"id": 1, "{TEXT}": 1}}',
            f'{{"id": 1, "at": {{"{TEXT}": 1}}}}',
            f'{{"{TEXT}": 1, "{TEXT}": 2}}',
            f'{{"id": 1, "name": "{TEXT}"',
            f'{{"id": 1, "name": {TEXT}}}',
            f'{{"id": 1}} {TEXT}',
            f'["{TEXT}"]',
            f'"{TEXT}"',
            f"{TEXT}",
            f"{NUMBER}",
            f'{{"id": "{TEXT}"}}',
            f'{{"id": null, "name": "{TEXT}"}}',
            f'{{"name": "{TEXT}"}}',
            f'{{"id": {NUMBER}{NUMBER}}}',
            f'{{"id": 1, "name": "{TEXT}\\ud800"}}',
        )
    ):
        yield f"line-{place}.jsonl", text
    yield "columns.parquet", as_parquet(pa.table({"id": [1], TEXT: [1]}))
    yield "missing.parquet", as_parquet(pa.table({TEXT: [1]}))


@pytest.mark.slow
def test_values_of_files_are_in_no_log(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("users", USERS, primary_key="id")
    files = list(_files())
    assert len(files) > 150
    records = [world.drop(f"users/{name}", data) for name, data in files]
    for start in range(0, len(records), 100):
        assert world.ingest(*records[start : start + 100]) == []
    assert len(world.log_entries("drop ingested")) >= 3
    assert len(world.log_entries("drop rejected")) > 100
    quoting = [report for report in world.rejects().values() if "zqx" in report["reason"].lower()]
    assert len(quoting) > 50, "the reports are where a reader finds out what was wrong"

    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    world.restart()
    fresh = [world.drop(f"new_{place}/{name}", data) for place, (name, data) in enumerate(files[::8])]
    assert world.ingest(*fresh) == []
    assert world.delete({"table": "users", "where": {"name": TEXT}}, {"table": "users", "keys": [NUMBER]}) == []
    world.call("compact")
    world.call("gc")
    assert_silent(world, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["reject_file", "quarantine"])
def test_values_of_changes_are_in_no_log(world: World, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    """Of files of changes, and of rows that are put aside."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("small", pa.int8()), ("lsn", pa.int64())])
    world.create("changes", schema)
    cdc = {"ingest_mode": "cdc", "cdc_envelope": "debezium", "cdc_sequence": "lsn", "cdc_sequence_from": "source.lsn"}
    world.database.table("changes").set(**cdc, ingest_on_bad_row=policy)
    row = {"id": 1, "name": TEXT, "small": 1}
    change = {"op": "u", "before": row, "after": row, "source": {"lsn": NUMBER}}
    files = [json.dumps(variant) for variant in variants(change)] + [f"{TEXT}\n", f'{{"op": "{TEXT}"\n']
    assert len(files) > 40
    assert world.ingest(*(world.drop(f"changes/{n}.jsonl", body) for n, body in enumerate(files))) == []
    assert len(world.log_entries("drop ingested")) > 10
    assert len(world.log_entries("drop rejected" if policy == "reject_file" else "drop ingested")) > 20
    assert_silent(world, capsys.readouterr().out)


@pytest.mark.slow
def test_values_of_events_are_in_no_log(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.create()
    bodies: list[Any] = []
    for case in MALFORMED_EVENTS:
        if len(case.text) < 2000:
            try:
                bodies += variants(json.loads(case.text))
            except (ValueError, RecursionError):
                bodies.append(f"{case.text}{TEXT}{NUMBER}")
    assert len(bodies) > 1000
    for start in range(0, len(bodies), 500):
        world.invoke("ingest", sqs_event(bodies[start : start + 500]))
    raised = []
    for body in bodies[:: len(bodies) // 40]:
        try:
            world.invoke("ingest", body)
        except Exception as error:  # noqa: BLE001 - what Lambda would log
            raised.append(error)
    assert len(raised) > 10
    assert len(world.log_entries("message malformed")) > 500
    assert world.ingest(notification(world.drop("events/a.csv", f"id\n{NUMBER}\n"))["Records"][0]) == []
    assert_silent(world, capsys.readouterr().out, raised)


def test_values_in_damaged_files_are_in_no_log(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Background work that meets damage says where, not what."""
    world.create()
    for n in range(6):
        assert world.ingest(world.drop(f"events/{n}.csv", f"id,kind\n{NUMBER + n},{TEXT}\n{n},other\n")) == []
    assert world.delete({"table": "events", "where": f"kind LIKE '%{TEXT}'"}) == []
    for victim in Path(world.url, "data").rglob("*.parquet"):
        victim.write_bytes(victim.read_bytes()[:-100] + bytes(100))
    with pytest.raises(RuntimeError) as raised:
        world.call("compact")
    assert_silent(world, capsys.readouterr().out, [raised.value])

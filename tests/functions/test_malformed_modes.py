"""Malformed files of tables that put bad rows aside or take changes, and files that unpack to too much."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import ipc

from support.functions import World
from support.malformed_case import as_parquet
from support.malformed_files import DROPPED_FILES, USERS


@pytest.mark.slow
def test_each_malformed_file_gives_up_its_bad_rows_or_is_rejected_whole(world: World) -> None:
    """With quarantine, what has a bad row is ingested without it, and what is bad as a whole is rejected."""
    files = [file for file in DROPPED_FILES if file.schema is USERS][:: 1 if os.environ.get("DOLMEN_LONG") else 3]
    world.create("users", USERS, primary_key=None)
    world.database.table("users").set(ingest_on_bad_row="quarantine")
    records = [world.drop("users/first.csv", "id\n1\n")]
    records += [world.drop(f"users/bad/{file.name}", file.data) for file in files]
    records += [world.drop("users/last.jsonl", '{"id": 2}\n{"id": 3}\n')]
    assert world.ingest(*records) == []
    assert world.versions("ingest") == 1

    told = {facts["source"].rpartition("/")[2]: facts for facts in world.listener.entries if "source" in facts}
    reports = {report["file"].rpartition("/")[2]: report for report in world.rejects().values()}
    assert set(reports) == {file.name for file in files}
    wrong, ingested = [], 3
    for file in files:
        facts, report = told[file.name], reports[file.name]
        if not file.is_at(report) or file.reason not in report["reason"]:
            wrong.append((file.name, report))
        if facts["text"] == "drop ingested":
            assert file.row is not None, file.name
            assert facts["rows_quarantined"] == report["rows"] >= 1, file.name
            ingested += facts["rows"]
            if file.name.endswith((".jsonl", ".json", ".ndjson")):
                assert facts["rows"] + facts["rows_quarantined"] == sum(map(bool, file.data.split(b"\n"))), file.name
        else:
            assert facts["text"] == "drop rejected", file.name
    assert wrong == []
    assert world.database.table("users").count() == ingested
    assert sum(facts["text"] == "drop ingested" for facts in told.values()) > len(files) / 2


@dataclass(frozen=True)
class BadChange:
    """A line of a file of changes that cannot be applied."""

    name: str
    line: str
    reason: str


_CHANGE = {"op": "c", "before": None, "after": {"id": 7, "name": "a"}, "source": {"lsn": 70}}


def _changed(**members: object) -> str:
    """A change of Debezium with other members; ``...`` takes one away."""
    return json.dumps({name: value for name, value in (_CHANGE | members).items() if value is not ...})


DEBEZIUM = [
    BadChange("unknown operation", _changed(op="x"), ""),
    BadChange("truncate", _changed(op="t"), ""),
    BadChange("no operation", _changed(op=...), ""),
    BadChange("operation null", _changed(op=None), ""),
    BadChange("operation a number", _changed(op=1), ""),
    BadChange("operation in capitals", _changed(op="C"), ""),
    BadChange("insert of nothing", _changed(after=None), ""),
    BadChange("update to nothing", _changed(op="u", after=...), ""),
    BadChange("delete of nothing", _changed(op="d", after=None), ""),
    BadChange("key null", _changed(after={"id": None, "name": "a"}), ""),
    BadChange("key missing", _changed(after={"name": "a"}), ""),
    BadChange("key text", _changed(after={"id": "seven", "name": "a"}), ""),
    BadChange("key a fraction", _changed(after={"id": 7.5}), "7.5"),
    BadChange("key of a delete null", _changed(op="d", before={"id": None}, after=None), ""),
    BadChange("row a list", _changed(after=[7, "a"]), ""),
    BadChange("row text", _changed(after="7"), ""),
    BadChange("value of another type", _changed(after={"id": 7, "name": "a", "small": 300}), "300"),
    BadChange("column unknown", _changed(after={"id": 7, "nmae": "a"}), "nmae"),
    BadChange("sequence missing", _changed(source={}), ""),
    BadChange("source missing", _changed(source=...), ""),
    BadChange("source null", _changed(source=None), ""),
    BadChange("source a list", _changed(source=[70]), ""),
    BadChange("sequence null", _changed(source={"lsn": None}), ""),
    BadChange("sequence text", _changed(source={"lsn": "new"}), ""),
    BadChange("sequence a fraction", _changed(source={"lsn": 7.5}), "7.5"),
    BadChange("sequence beyond int64", _changed(source={"lsn": 2**63}), ""),
    BadChange("a word", "hello", "not JSON"),
    BadChange("cut off", _changed()[:-5], "not JSON"),
    BadChange("an array", f"[{_changed()}]", "not a JSON object"),
    BadChange("a key twice", _changed().replace('"op"', '"op": "d", "op"'), "twice"),
    BadChange("NaN", _changed().replace("70", "NaN"), "NaN"),
    BadChange("nested too deeply", '{"op":' * 300 + "1" + "}" * 300, "nested"),
]
FLAT = [
    BadChange("unknown operation", "X,7,a,70", ""),
    BadChange("operation a word", "upsert,7,a,70", ""),
    BadChange("key empty", "I,,a,70", ""),
    BadChange("key a word", "I,seven,a,70", "seven"),
    BadChange("key of a delete empty", "D,,,70", ""),
    BadChange("sequence empty", "I,7,a,", ""),
    BadChange("sequence a word", "I,7,a,new", "new"),
    BadChange("sequence of 40 digits", f"I,7,a,{'9' * 40}", "999"),
    BadChange("field too few", "I,7,a", "3 fields"),
    BadChange("field too many", "I,7,a,70,", "5 fields"),
    BadChange("text after a quote", 'I,7,"a"b,70', "quote"),
]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["reject_file", "quarantine"])
def test_bad_changes_are_kept_aside_and_good_ones_are_applied(world: World, policy: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("small", pa.int8()), ("lsn", pa.int64())])
    for table, changes in (("debezium", DEBEZIUM), ("flat", FLAT)):
        world.create(table, schema)
        settings = {"ingest_mode": "cdc", "cdc_envelope": table, "cdc_sequence": "lsn", "ingest_on_bad_row": policy}
        if table == "debezium":
            settings["cdc_sequence_from"] = "source.lsn"
        world.database.table(table).set(**settings)
        records, expected = [], {}
        for number, change in enumerate(changes):
            id_, lsn = 100 + number, 1000 + number
            if table == "debezium":
                good = _changed(after={"id": id_, "name": "good"}, source={"lsn": lsn})
                body = f"{good}\n{change.line}\n"
            else:
                body = f"Op,id,name,lsn\nI,{id_},good,{lsn}\n{change.line}\n"
            records.append(world.drop(f"{table}/{number}.{'jsonl' if table == 'debezium' else 'csv'}", body))
            expected[id_] = lsn
        ending, whole = (
            ("jsonl", _changed(after={"id": 1}, source={"lsn": 1}))
            if table == "debezium"
            else ("csv", "Op,id,lsn\nI,1,1")
        )
        records.insert(5, world.drop(f"{table}/good.{ending}", whole))
        assert world.ingest(*records) == []

        reports = {report["file"]: report for report in _reports(world) if report["file"].startswith(f"{table}/")}
        assert len(reports) == len(changes)
        wrong = []
        for number, change in enumerate(changes):
            report = reports[f"{table}/{number}.{ending}"]
            if report["row"] != 2 or change.reason not in report["reason"] or not report["reason"]:
                wrong.append((change.name, report["row"], report["reason"]))
        assert wrong == []
        rows = {row["id"]: row["lsn"] for row in world.rows(table)}
        assert rows == ({1: 1, **expected} if policy == "quarantine" else {1: 1})
        assert world.ingest(*records) == []
        assert {row["id"]: row["lsn"] for row in world.rows(table)} == rows


def _reports(world: World) -> list[dict[str, Any]]:
    """The reports of rejects; asserts that what they name is there, and is what was dropped."""
    reports: list[dict[str, Any]] = []
    for info in world.landing.list("rejected/"):
        if not info.key.endswith(".error.json"):
            continue
        report = json.loads(world.landing.get(info.key).body)
        dropped = world.landing.get(f"landing/{report['file']}").body
        kept = world.landing.get(f"rejected/{report.get('copy_of_file', report['copy'])}").body
        if "rows" not in report or "copy_of_file" in report:
            assert kept == dropped
        else:
            [row] = map(json.loads, kept.splitlines())
            assert row["text"].encode() in dropped
        reports.append(report)
    return reports


_LIMIT = 4_000_000


def _arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with ipc.new_file(sink, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table, max_chunksize=100_000)
    return sink.getvalue()


def _avro(rows: int) -> bytes:
    sink = io.BytesIO()
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "long"}, {"name": "kind", "type": "string"}],
    }
    fastavro.writer(sink, schema, ({"id": 1, "kind": "x" * 100} for _ in range(rows)), codec="deflate")
    return sink.getvalue()


def _bombs() -> dict[str, bytes]:
    """Small files that hold more than the limit."""
    lines = b"id,kind\n" + b"1,xxxxxxxx\n" * 500_000
    objects = b'{"id": 1, "kind": "xxxxxxxx"}\n' * 200_000
    rows = pa.table({"id": pa.array([1], pa.int64()).take(pa.array([0] * 600_000)), "kind": ["x"] * 600_000})
    return {
        "lines.csv.gz": gzip.compress(lines, mtime=0),
        "members.csv.gz": gzip.compress(lines[: len(lines) // 2], mtime=0) * 3,
        "lines.csv.bz2": bz2.compress(lines),
        "lines.csv.zst": pa.compress(lines, codec="zstd", asbytes=True),
        "one-line.csv.gz": gzip.compress(b"id,kind\n1," + b"x" * 6_000_000, mtime=0),
        "zeros.csv.gz": gzip.compress(bytes(6_000_000), mtime=0),
        "line-ends.csv.gz": gzip.compress(b"id\n" + b"\n" * 6_000_000, mtime=0),
        "objects.jsonl.gz": gzip.compress(objects, mtime=0),
        "blank.jsonl.zst": pa.compress(b" " * 6_000_000, codec="zstd", asbytes=True),
        "rows.parquet": as_parquet(rows),
        "rows.parquet.gz": gzip.compress(as_parquet(rows, compression="none", use_dictionary=False), mtime=0),
        "rows.arrow": _arrow(rows),
        "rows.avro": _avro(60_000),
    }


@pytest.mark.slow
def test_files_that_unpack_to_more_than_they_may_are_rejected_and_block_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", str(_LIMIT))
    world.restart()
    world.create("events", pa.schema([("id", pa.int64()), ("kind", pa.string())]), primary_key=None)
    bombs = _bombs()
    assert all(len(data) < _LIMIT for name, data in bombs.items()), {name: len(data) for name, data in bombs.items()}
    records = [world.drop(f"events/{name}", data) for name, data in bombs.items()]
    records.insert(4, world.drop("events/good.csv.gz", gzip.compress(b"id,kind\n1,a\n")))
    assert world.ingest(*records) == []
    reports = {report["file"].partition("/")[2]: report for report in world.rejects().values()}
    assert set(reports) == set(bombs)
    assert world.ids() == [1]
    assert world.versions("ingest") == 1

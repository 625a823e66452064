"""Each kind of event, and each marker, that Debezium and DMS write: what becomes of it (the table in docs/cdc.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import RowError
from dolmen.ingest.drops.drop_outcomes import RowCounts
from support.changes import COLUMNS, Feed

OLD: dict[int, Any] = {1: (1, "old")}
AT = {"lsn": 5}
NOTHING = RowCounts()

LEFT_OUT = "__debezium_unavailable_value"
Expected = dict[int, Any] | str
"""The rows afterwards, or the reason why the row is bad."""

DEBEZIUM: dict[str, tuple[Any, Expected]] = {
    "create": ({"op": "c", "before": None, "after": {"id": 2, "v": "x"}, "source": AT}, {**OLD, 2: (5, "x")}),
    "snapshot": ({"op": "r", "before": None, "after": {"id": 2, "v": "x"}, "source": AT}, {**OLD, 2: (5, "x")}),
    "incremental snapshot of a row that is newer": (
        {"op": "r", "after": {"id": 1, "v": "x"}, "source": {"lsn": 0, "snapshot": "incremental"}},
        OLD,
    ),
    "update": ({"op": "u", "before": None, "after": {"id": 1, "v": "x"}, "source": AT}, {1: (5, "x")}),
    "update of the key": ({"op": "u", "before": {"id": 1}, "after": {"id": 2, "v": "x"}, "source": AT}, {2: (5, "x")}),
    "update without after": (
        {"op": "u", "before": {"id": 1, "v": "old"}, "after": None, "source": AT},
        "the row it needs",
    ),
    "delete": ({"op": "d", "before": {"id": 1, "v": None}, "after": None, "source": AT}, {}),
    "delete without before": ({"op": "d", "before": None, "after": None, "source": AT}, "the row it needs"),
    "delete of a key without value": (
        {"op": "d", "before": {"id": None}, "after": None, "source": AT},
        "NULL in a key",
    ),
    "tombstone": (None, OLD),
    "tombstone with its schema": ({"schema": None, "payload": None}, OLD),
    "truncate": ({"op": "t", "before": None, "after": None, "source": AT}, "its operation"),
    "message of the log": ({"op": "m", "message": {"prefix": "p", "content": "eA=="}, "source": AT}, OLD),
    "heartbeat": ({"ts_ms": 1}, OLD),
    "border of a transaction": ({"status": "END", "id": "5:1", "event_count": 2, "data_collections": []}, OLD),
    "schema change": ({"source": AT, "databaseName": "x", "ddl": "ALTER TABLE t", "tableChanges": []}, OLD),
    "unknown operation": ({"op": "x", "after": {"id": 1, "v": "x"}, "source": AT}, "its operation"),
    "no sequence": ({"op": "c", "after": {"id": 2, "v": "x"}, "source": {"lsn": None}}, "no sequence"),
    "value left out": (
        {"op": "u", "after": {"id": 1, "v": LEFT_OUT}, "source": AT},
        {1: (5, "old")},
    ),
    "value left out of a row that is not there": (
        {"op": "u", "after": {"id": 2, "v": LEFT_OUT}, "source": AT},
        "the source left this value out",
    ),
    "field that is missing": ({"op": "u", "after": {"id": 1}, "source": AT}, {1: (5, None)}),
    "event of a signal table": ({"op": "c", "after": {"id": "x", "type": "y"}, "source": AT}, "no column 'type'"),
}

FLAT: dict[str, tuple[Any, Expected]] = {
    "r of a snapshot": ({"__op": "r", "id": 2, "v": "x", "seq": 5, "__deleted": "false"}, {**OLD, 2: (5, "x")}),
    "c": ({"__op": "c", "id": 2, "v": "x", "seq": 5, "__deleted": "false"}, {**OLD, 2: (5, "x")}),
    "u": ({"__op": "u", "id": 1, "v": "x", "seq": 5}, {1: (5, "x")}),
    "d, rewritten": ({"__op": "d", "id": 1, "v": None, "seq": 5, "__deleted": "true"}, {}),
    "__deleted without an operation": ({"id": 1, "v": None, "seq": 5, "__deleted": "true"}, {}),
    "__deleted is true of JSON": ({"id": 1, "v": None, "seq": 5, "__deleted": True}, {}),
    "not __deleted, without an operation": ({"id": 1, "v": "x", "seq": 5, "__deleted": "false"}, {1: (5, "x")}),
    "other fields that are added": ({"__op": "u", "id": 1, "v": "x", "seq": 5, "__table": "t"}, "no column '__table'"),
    "tombstone": (None, "not a JSON object"),
    "t": ({"__op": "t", "id": 1, "seq": 5}, "its operation"),
    "value left out": (
        {"__op": "u", "id": 1, "v": LEFT_OUT, "seq": 5},
        {1: (5, "old")},
    ),
}

DMS: dict[str, tuple[str, Expected]] = {
    "insert": ("Op,id,v,seq\nI,2,x,5", {**OLD, 2: (5, "x")}),
    "update": ("Op,id,v,seq\nU,1,x,5", {1: (5, "x")}),
    "delete": ("Op,id,v,seq\nD,1,,5", {}),
    "full load": ("id,v,seq\n2,x,5", {**OLD, 2: (5, "x")}),
    "its operation among others": ("Op,id,v,seq\nI,2,x,5\n,3,x,6", "its operation"),
    "insert of Debezium": ("Op,id,v,seq\nc,2,x,5", "its operation"),
    "column that was not logged": ("Op,id,v,seq\nU,1,__debezium_unavailable_value,5", {1: (5, "old")}),
    "column that was not logged, written as NULL": ("Op,id,v,seq\nU,1,,5", {1: (5, None)}),
}


def check(feed: Feed, body: bytes, name: str, expected: Expected) -> None:
    """A file that is read: its rows, or the reason why it is rejected."""
    if isinstance(expected, str):
        with pytest.raises(RowError, match=expected):
            feed.drop("b", body, name)
        assert feed.rows() == OLD
    else:
        counts = feed.drop("b", body, name)
        assert feed.rows() == expected
        assert (counts in (NOTHING, RowCounts(ddl=1), RowCounts(unchanged=1))) == (expected == OLD)


def table(**properties: Any) -> Feed:
    """A table with a row."""
    feed = Feed()
    feed.create(**properties)
    feed.place.db.table("t").append(pa.Table.from_pylist([{"id": 1, "v": "old", "seq": 1}], COLUMNS))
    return feed


@pytest.mark.parametrize("kind", DEBEZIUM)
@pytest.mark.parametrize("wrap", [False, True], ids=["bare", "with its schema"])
def test_debezium(kind: str, wrap: bool) -> None:
    document, expected = DEBEZIUM[kind]
    if wrap and document and "payload" not in document:
        document = {"schema": {"type": "struct", "fields": []}, "payload": document}
    feed = table(cdc_envelope="debezium", cdc_sequence_from="source.lsn")
    check(feed, json.dumps(document).encode(), "t/f.jsonl", expected)


@pytest.mark.parametrize("kind", FLAT)
def test_events_without_their_envelope(kind: str) -> None:
    document, expected = FLAT[kind]
    feed = table(cdc_operation="__op")
    check(feed, json.dumps(document).encode(), "t/f.jsonl", expected)


@pytest.mark.parametrize("word", ["false", "true"])
def test_deleted_may_be_the_operation(word: str) -> None:
    feed = table(cdc_operation="__deleted")
    line = json.dumps({"id": 1, "v": "x", "seq": 5, "__deleted": word}).encode()
    check(feed, line, "t/f.jsonl", {} if word == "true" else {1: (5, "x")})


@pytest.mark.parametrize("kind", DMS)
def test_dms(kind: str) -> None:
    text, expected = DMS[kind]
    check(table(cdc_envelope="dms"), text.encode(), "t/f.csv", expected)


def test_the_documentation_has_each_operation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cdc.md").read_text()
    for word in (
        "`c`",
        "`r`",
        "`u`",
        "`d`",
        "`t`",
        "`m`",
        "`null`",
        "`__deleted`",
        "CsvNoSupValue",
        "Maxwell",
        "heartbeat",
    ):
        assert word in page, word

"""What delete messages say."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import dolmen
from dolmen.ingest.delete_requests import DeleteRequest, TableDelete, parse_request


def parse(document: Any, message_id: str | None = "message-1") -> DeleteRequest:
    return parse_request(json.dumps(document), message_id)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"where": "user_id = 42"}, TableDelete("events", "user_id = 42", None, None, "tombstone")),
        ({"where": {"user_id": 42}}, TableDelete("events", {"user_id": 42}, None, None, "tombstone")),
        ({"keys": [1, 2]}, TableDelete("events", None, [1, 2], None, "tombstone")),
        ({"keys": ["a"], "on": "name"}, TableDelete("events", None, ["a"], ["name"], "tombstone")),
        (
            {"keys": [[1, "a"]], "on": ["id", "name"]},
            TableDelete("events", None, [[1, "a"]], ["id", "name"], "tombstone"),
        ),
        ({"where": "TRUE", "mode": "positions"}, TableDelete("events", "TRUE", None, None, "positions")),
    ],
)
def test_one_table(said: dict[str, Any], expected: TableDelete) -> None:
    assert parse({"table": "events", **said}).deletes == (expected,)


def test_names_of_tables_share_what_is_deleted() -> None:
    request = parse({"tables": ["a", "b"], "where": {"user_id": 42}})
    assert [(delete.table, delete.where) for delete in request.deletes] == [
        ("a", {"user_id": 42}),
        ("b", {"user_id": 42}),
    ]


def test_objects_of_tables_each_say_what_is_deleted() -> None:
    request = parse({"tables": [{"table": "a", "where": "x = 1"}, {"table": "b", "keys": [1], "on": ["y"]}]})
    assert [(delete.table, delete.where, delete.keys, delete.on) for delete in request.deletes] == [
        ("a", "x = 1", None, None),
        ("b", None, [1], ["y"]),
    ]


def test_the_message_id_stands_in_for_a_request_id() -> None:
    assert parse({"table": "a", "where": "x = 1"}).id == "message-1"
    assert parse({"table": "a", "where": "x = 1", "request_id": "r"}).id == "r"


def test_the_digest_is_of_what_is_deleted_and_not_of_how_it_is_written() -> None:
    digest = parse({"table": "a", "where": {"x": 1, "y": 2}, "request_id": "r"}).digest
    assert parse({"request_id": "other", "where": {"y": 2, "x": 1}, "table": "a"}, None).digest == digest
    assert parse({"tables": ["a"], "where": {"x": 1, "y": 2}}).digest == digest
    assert parse({"tables": [{"table": "a", "where": {"x": 1, "y": 2}}]}).digest == digest
    assert parse({"table": "a", "where": {"x": 1, "y": 2}, "mode": "positions"}).digest == digest
    assert parse({"table": "a", "where": {"x": 1, "y": 3}}).digest != digest
    assert parse({"table": "b", "where": {"x": 1, "y": 2}}).digest != digest
    assert parse({"tables": ["a", "b"], "where": {"x": 1, "y": 2}}).digest != digest


def test_text_and_integers_keep_their_value() -> None:
    request = parse({"table": "a", "keys": [2**63 - 1, -(2**63), "日本", "", None, True]})
    assert request.deletes[0].keys == [2**63 - 1, -(2**63), "日本", "", None, True]


def test_where_may_say_ranges_lists_and_patterns() -> None:
    table = dolmen.open(f"memory:///{uuid4()}").create_table(
        "events", pa.schema([("id", pa.int64()), ("price", pa.decimal128(9, 2)), ("kind", pa.string())])
    )
    prices = [Decimal("3.00"), Decimal("8.99"), Decimal("9.00"), None]
    table.append({"id": [1, 2, 3, 4], "price": prices, "kind": ["ab", "ab", "ab", "b"]})
    where = {"price": {">=": 3, "<": 9.0}, "id": {"in": [2, 3]}, "kind": {"like": "a%"}}
    request = parse_request(json.dumps({"table": "events", "where": where}), "m1")
    table.delete(request.deletes[0].where)
    assert table.to_arrow()["id"].to_pylist() == [1, 3, 4]
    again = parse_request(json.dumps({"table": "events", "where": {"price": {"is": None}}}), "m2")
    table.delete(again.deletes[0].where)
    assert table.to_arrow()["id"].to_pylist() == [1, 3]

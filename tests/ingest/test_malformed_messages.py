"""Messages that cannot be read, each with what its refusal says. None of them reaches the database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dolmen.errors import InputError, LimitError
from dolmen.ingest import requests
from dolmen.ingest.events import MAX_BODY_BYTES, Message, drops_of
from dolmen.ingest.requests import parse_request
from support.event_builders import created, notification, s3_record


def _record(**object_members: Any) -> dict[str, Any]:
    record = s3_record("landing/events/a.csv", "e")
    record["s3"]["object"] |= object_members
    return notification(record)


def _without(*path: str) -> dict[str, Any]:
    record = s3_record("landing/events/a.csv", "e")
    holder = record
    for name in path[:-1]:
        holder = holder[name]
    del holder[path[-1]]
    return notification(record)


EVENTS: dict[str, tuple[Any, str]] = {
    "empty": ("", "not JSON"),
    "not JSON": ("{", "not JSON"),
    "a word": ("hello", "not JSON"),
    "truncated": (json.dumps(_record())[:-10], "not JSON"),
    "too deep": ("[" * 100_000, "not JSON"),
    "an array": ([], "not list"),
    "a number": ("7", "not int"),
    "null": ("null", "not NoneType"),
    "text": ('"s3://drops/landing/events/a.csv"', "not"),
    "too large": (" " * (MAX_BODY_BYTES + 1), "at most"),
    "another object": ({"hello": "world"}, "no list 'Records'"),
    "records not a list": ({"Records": {}}, "no list 'Records'"),
    "a record that is none": ({"Records": ["x"]}, "record 1: a record is not an object"),
    "another source": ({"Records": [{"eventSource": "aws:sns"}]}, "eventSource is 'aws:sns'"),
    "no source": (_without("eventSource"), "eventSource is None"),
    "no event name": (_without("eventName"), "eventName is missing"),
    "no s3": (_without("s3"), "s3 is missing"),
    "no object": (_without("s3", "object"), "object is missing"),
    "no bucket": (_without("s3", "bucket"), "bucket is missing"),
    "no bucket name": (_without("s3", "bucket", "name"), "name is missing"),
    "no key": (_without("s3", "object", "key"), "key is missing"),
    "no etag": (_without("s3", "object", "eTag"), "neither eTag nor versionId"),
    "empty key": (_record(key=""), "a key of 0 characters"),
    "key too long": (_record(key="x" * 1025), "a key of 1025 characters"),
    "key not UTF-8": (_record(key="landing/events/%FF%FE.csv"), "not URL-encoded UTF-8"),
    "key a surrogate": (_record(key="landing/events/\ud800.csv"), "not Unicode"),
    "key a number": (_record(key=7), "key is not text"),
    "size text": (_record(size="12"), "size '12'"),
    "size negative": (_record(size=-1), "size -1"),
    "size true": (_record(size=True), "size True"),
    "etag a number": (_record(eTag=5), "is not text"),
    "version a number": (_record(versionId=5), "is not text"),
    "sequencer a list": (_record(sequencer=[]), "is not text"),
    "bucket name a path": (notification(s3_record("k", "e", bucket="a/b")), "bucket name 'a/b'"),
    "EventBridge of another service": ({**created("k", "e"), "source": "aws.ec2"}, "an event of 'aws.ec2'"),
    "EventBridge without detail": ({"source": "aws.s3", "detail-type": "Object Created"}, "detail is missing"),
    "EventBridge without etag": (created("k", ""), "neither etag nor version-id"),
    "EventBridge without key": (
        {**created("k", "e"), "detail": {"bucket": {"name": "b"}, "object": {}}},
        "key is missing",
    ),
    "SNS around nothing": ({"Type": "Notification", "Message": "?"}, "not JSON"),
    "SNS around SNS": (
        {"Type": "Notification", "Message": json.dumps({"Type": "Notification", "Message": "{}"})},
        "inside another",
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_a_malformed_event_is_refused_with_its_reason(name: str) -> None:
    body, reason = EVENTS[name]
    drops, error = drops_of(Message("m", body if isinstance(body, str) else json.dumps(body)))
    assert drops == []
    assert isinstance(error, InputError)
    assert reason in str(error)


_MANY = 1_000_001

REQUESTS: dict[str, tuple[Any, str]] = {
    "empty": ("", "not JSON"),
    "not JSON": ("DELETE FROM events", "not JSON"),
    "truncated": ('{"table": "events", "wh', "not JSON"),
    "trailing comma": ('{"table": "events",}', "not JSON"),
    "two documents": ('{"table": "a", "where": "x=1"} {}', "not JSON"),
    "single quotes": ("{'table': 'events'}", "not JSON"),
    "too deep": ('{"where":' * 50_000, "not JSON"),
    "NaN": ('{"table": "a", "where": {"x": NaN}}', "NaN is not JSON"),
    "Infinity": ('{"table": "a", "keys": [-Infinity]}', "-Infinity is not JSON"),
    "a member twice": ('{"table": "a", "table": "b", "where": "x=1"}', "'table' stands in an object twice"),
    "a column twice": ('{"table": "a", "where": {"x": 1, "x": 2}}', "'x' stands in an object twice"),
    "half a surrogate pair": ('{"table": "a", "keys": ["\\ud83d"]}', "surrogate"),
    "an array": ([{"table": "a", "where": "x=1"}], "not a list"),
    "null": (None, "not null"),
    "a number": (7, "not a number"),
    "an empty object": ({}, "name a table"),
    "no table": ({"where": "x = 1"}, "name a table"),
    "table and tables": ({"table": "a", "tables": ["b"], "where": "x=1"}, "name a table"),
    "unknown member": ({"table": "a", "were": "x = 1"}, "unknown member 'were'"),
    "table's name too long": ({"table": "x" * 65, "where": "x=1"}, "table name"),
    "table's name in capitals": ({"table": "Events", "where": "x=1"}, "table name 'Events'"),
    "table a number": ({"table": 7, "where": "x=1"}, "table name 7"),
    "table a path": ({"table": "../users", "where": "x=1"}, "table name"),
    "nothing to delete": ({"table": "a"}, "delete what"),
    "where and keys": ({"table": "a", "where": "x=1", "keys": [1]}, "delete what"),
    "where null": ({"table": "a", "where": None}, "where: a predicate"),
    "where empty": ({"table": "a", "where": ""}, "where is empty"),
    "where blank": ({"table": "a", "where": "  \n"}, "where is empty"),
    "where an empty object": ({"table": "a", "where": {}}, "where is empty"),
    "where a list": ({"table": "a", "where": ["x=1"]}, "not a list"),
    "where true": ({"table": "a", "where": True}, "not true or false"),
    "keys one value": ({"table": "a", "keys": 1}, "keys: a list, not a number"),
    "keys text": ({"table": "a", "keys": "1,2"}, "keys: a list, not text"),
    "keys empty": ({"table": "a", "keys": []}, "empty list"),
    "keys objects": ({"table": "a", "keys": [{"id": 1}]}, "not objects"),
    "keys nested twice": ({"table": "a", "keys": [[[1]]]}, "plain values"),
    "too many keys": ({"table": "a", "keys": [0] * _MANY}, "1,000,001 keys"),
    "too many keys in all": (
        {"tables": [{"table": t, "keys": [0] * 500_001} for t in ("a", "b")]},
        "1,000,002 keys",
    ),
    "on with where": ({"table": "a", "where": "x=1", "on": ["x"]}, "'on' goes with keys"),
    "on empty": ({"table": "a", "keys": [1], "on": []}, "on: a list of names"),
    "on numbers": ({"table": "a", "keys": [1], "on": [1]}, "on: a list of names"),
    "unknown mode": ({"table": "a", "where": "x=1", "mode": "hard"}, "mode 'hard'"),
    "keys by position": ({"table": "a", "keys": [1], "mode": "positions"}, "goes with where"),
    "tables text": ({"tables": "a", "where": "x=1"}, "tables: a list"),
    "tables empty": ({"tables": [], "where": "x=1"}, "tables: a list"),
    "tables mixed": ({"tables": ["a", {"table": "b", "where": "x=1"}], "where": "x=1"}, "not both"),
    "tables numbers": ({"tables": [1], "where": "x=1"}, "not both"),
    "a table twice": ({"tables": ["a", "a"], "where": "x=1"}, "table 'a' stands in the request twice"),
    "too many tables": ({"tables": [f"t{n}" for n in range(101)], "where": "x=1"}, "101 tables"),
    "shared and own": ({"tables": [{"table": "a", "where": "x=1"}], "where": "x=2"}, "'where' stands beside tables"),
    "unknown member of a table": (
        {"tables": [{"table": "a", "where": "x=1", "id": 1}]},
        "table 1: unknown member 'id'",
    ),
    "request id of one table": ({"tables": [{"table": "a", "where": "x=1", "request_id": "r"}]}, "unknown member"),
    "request id empty": ({"table": "a", "where": "x=1", "request_id": ""}, "printable"),
    "request id a number": ({"table": "a", "where": "x=1", "request_id": 7}, "request_id: text"),
    "request id null": ({"table": "a", "where": "x=1", "request_id": None}, "no request_id"),
    "request id too long": ({"table": "a", "where": "x=1", "request_id": "r" * 257}, "256"),
    "request id with a newline": ({"table": "a", "where": "x=1", "request_id": "a\nb"}, "printable"),
    "request id of a file": ({"table": "a", "where": "x=1", "request_id": "s3://b/k#e"}, "s3://"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_malformed_request_is_refused_with_its_reason(name: str) -> None:
    body, reason = REQUESTS[name]
    with pytest.raises(InputError) as refusal:
        parse_request(body if isinstance(body, str) else json.dumps(body), "message-1")
    assert reason in str(refusal.value)


def test_a_request_larger_than_the_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_BODY_BYTES", 1000)
    with pytest.raises(LimitError):
        parse_request(json.dumps({"table": "a", "where": "x" * 1000}), "message-1")


def test_there_are_many_causes() -> None:
    assert len(EVENTS) >= 40
    assert len(REQUESTS) >= 40

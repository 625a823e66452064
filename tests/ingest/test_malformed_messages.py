"""Messages that cannot be read, each with what its refusal says. None of them reaches the database."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from dolmen.errors import InputError, LimitError
from dolmen.ingest import delete_requests
from dolmen.ingest.announcements import read_drops
from dolmen.ingest.delete_requests import parse_request
from support.malformed_events import MALFORMED_EVENTS, MalformedEvent
from support.malformed_requests import MALFORMED_REQUESTS, MalformedRequest


@pytest.mark.parametrize("event", MALFORMED_EVENTS, ids=lambda event: event.name)
def test_a_malformed_event_is_refused_with_its_reason(event: MalformedEvent) -> None:
    drops, error = read_drops(event.text)
    if event.read:
        assert error is None
        assert len(drops) <= 1
    else:
        assert drops == []
        assert isinstance(error, InputError)
        assert event.reason in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("request_", MALFORMED_REQUESTS, ids=lambda request: request.name)
def test_a_malformed_request_is_refused_with_its_reason(request_: MalformedRequest) -> None:
    if request_.readable:
        assert parse_request(request_.text, "message-1").deletes
        return
    with pytest.raises(InputError) as refusal:
        parse_request(request_.text, "message-1")
    assert request_.reason in str(refusal.value)
    assert type(refusal.value).__name__ == request_.error


def test_a_request_larger_than_the_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_requests, "MAX_BODY_BYTES", 1000)
    with pytest.raises(LimitError):
        parse_request(json.dumps({"table": "a", "where": "x" * 1000}), "message-1")


def test_there_are_many_of_them() -> None:
    for corpus in (MALFORMED_EVENTS, MALFORMED_REQUESTS):
        assert len({case.name for case in corpus}) == len(corpus)
    assert len(MALFORMED_EVENTS) + len(MALFORMED_REQUESTS) >= 300
    assert sum(event.outcome == "failed" for event in MALFORMED_EVENTS) >= 100


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("0.1", "0.1"),
        ("1.10", "1.10"),
        ("123456789012345678.91", "123456789012345678.91"),
        ("1e2", "100"),
        ("0.0", "0"),
        ("-0.0", "0"),
        ("9007199254740993.0", "9007199254740993"),
    ],
)
def test_numbers_mean_their_digits(text: str, means: str) -> None:
    [delete] = parse_request(f'{{"table": "a", "keys": [{text}]}}', "m").deletes
    assert delete.keys is not None
    [key] = delete.keys
    assert (key if isinstance(key, Decimal) else Decimal(repr(key))) == Decimal(means)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud83d", [1, "\udc00"]])
def test_what_an_event_without_a_queue_holds_is_looked_at_too(value: object) -> None:
    with pytest.raises(InputError):
        parse_request({"table": "a", "where": {"x": value}}, "m")
